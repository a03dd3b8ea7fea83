"""Committed schemas and asyncapi.yaml are those that the code generates, and the schemas say what the decoder does."""

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from allmende.proto import subjects
from allmende.proto.envelope import decode
from tests.proto.samples import BODIES

PROTO = Path(__file__).parents[2] / "proto"
GENERATE = runpy.run_path(str(PROTO / "generate.py"))
MADE: dict[str, str] = GENERATE["files"]()
HINT = "run `./dev run python proto/generate.py` and look at the difference"


@pytest.mark.parametrize("path", sorted(MADE))
def test_a_committed_file_is_what_the_code_generates(path: str) -> None:
    assert (PROTO / path).is_file(), HINT
    assert (PROTO / path).read_text(encoding="utf-8") == MADE[path], HINT


def test_no_schema_is_left_of_a_message_that_is_no_more() -> None:
    assert sorted(f"schemas/{path.name}" for path in (PROTO / "schemas").iterdir()) == sorted(set(MADE) - {"asyncapi.yaml"}), HINT


def validator(name: str) -> jsonschema.Draft202012Validator:
    """The validator of a committed schema."""
    schema = json.loads(MADE[f"schemas/{name}.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", sorted(set(MADE) - {"asyncapi.yaml"}))
def test_a_schema_is_a_schema_that_other_languages_can_read(path: str) -> None:
    validator(path.removeprefix("schemas/").removesuffix(".json"))
    assert "\\\\A" not in MADE[path]
    assert "\\\\Z" not in MADE[path]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.TYPE)
def test_a_sample_fits_its_schema_and_what_is_broken_does_not(body: Any) -> None:
    name = f"{body.TYPE}.v{body.VERSION}"
    sample = json.loads((PROTO / "samples" / f"{name}.json").read_bytes())
    check = validator(name)
    check.validate(sample)
    for broken in ({**sample, "type": "other"}, {**sample, "id": "1"}, {**sample, "sent_at_ms": 1.5}, {**sample, "body": {}}):
        assert not check.is_valid(broken)
    assert decode(json.dumps(sample).encode()).type == body.TYPE


def test_asyncapi_names_every_subject_who_says_it_and_who_hears_it() -> None:
    # The same document before it is written as YAML.
    document = GENERATE["asyncapi"]()
    for row in subjects.SUBJECTS:
        name = f"{row.message.TYPE}.v{row.message.VERSION}"
        address = document["channels"][name]["address"]
        assert [token if token[0] != "{" else "*" for token in address.split(".")] == row.pattern.split(".")
        assert document["operations"][f"say.{name}"]["x-said-by"] == list(row.says)
        assert document["operations"][f"hear.{name}"]["x-heard-by"] == list(row.hears)
    for request in subjects.REQUESTS:
        assert document["operations"][f"ask.{request.prefix}"]["x-asked-by"] == list(request.asks)
    assert len(document["channels"]) == len(subjects.SUBJECTS) + 2 * len(subjects.REQUESTS)


def test_every_reference_in_asyncapi_leads_somewhere() -> None:
    document = GENERATE["asyncapi"]()
    for reference in _references(document):
        if reference.startswith("./"):
            assert reference.removeprefix("./") in MADE
            continue
        at = document
        for step in reference.removeprefix("#/").split("/"):
            at = at[step]


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["$ref"]] if "$ref" in value else [found for each in value.values() for found in _references(each)]
    if isinstance(value, list):
        return [found for each in value for found in _references(each)]
    return []


def test_the_yaml_says_what_the_document_says() -> None:
    # Our writer's subset of YAML, read by the rules it is written by.
    lines = MADE["asyncapi.yaml"].splitlines()
    value, end = _read(lines, 0, 0)
    assert end == len(lines)
    assert value == json.loads(json.dumps(GENERATE["asyncapi"]()))


def _read(lines: list[str], at: int, indent: int) -> tuple[Any, int]:
    items: list[Any] = []
    pairs: dict[str, Any] = {}
    while at < len(lines) and len(lines[at]) - len(lines[at].lstrip(" ")) == 2 * indent:
        line = lines[at].strip(" ")
        if line.startswith("-"):
            head, rest = None, line[1:].strip(" ")
        elif line.startswith('"'):
            head, stop = json.JSONDecoder().raw_decode(line)
            rest = line[stop + 1 :].strip(" ")
        else:
            head, _, rest = line.partition(":")
            rest = rest.strip(" ")
        at += 1
        if rest:
            value = json.loads(rest)
        else:
            value, at = _read(lines, at, indent + 1)
        if head is None:
            items.append(value)
        else:
            pairs[head] = value
    return (items or pairs), at
