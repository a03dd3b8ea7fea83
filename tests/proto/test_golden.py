"""Golden bytes: what was once published is decoded for ever.

proto/samples holds `TYPE.vN.json`, then `TYPE.vN+1.json`, `+2` ... for each compatible addition since. A file that was released is
never touched again: all are decoded, and the newest of each message comes out again byte for byte.
`python -m tests.proto.test_golden` writes the files that are missing from tests/proto/samples.py.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from allmende.proto import subjects
from allmende.proto.envelope import decode, encode
from allmende.proto.message import Message
from tests.proto.samples import BODIES, enveloped

FOLDER = Path(__file__).parents[2] / "proto" / "samples"
FILES = sorted(FOLDER.glob("*.json"))
_NAME = re.compile(r"(?P<message>[a-z_.]+\.v\d+)(?:\+(?P<addition>\d+))?\Z")


def _name(message: type[Message]) -> str:
    return f"{message.TYPE}.v{message.VERSION}"


def newest() -> dict[str, Path]:
    """The newest sample of each message version."""
    found: dict[str, tuple[int, Path]] = {}
    for path in FILES:
        match = _NAME.match(path.stem)
        assert match, f"{path.name} is not called like usage.tick.v1.json or usage.tick.v1+1.json"
        rank = (int(match["addition"] or 0), path)
        found[match["message"]] = max(found.get(match["message"], rank), rank)
    return {name: path for name, (_, path) in found.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sample_is_decoded_for_ever(path: Path) -> None:
    envelope = decode(path.read_bytes())
    assert path.stem.partition("+")[0] == f"{envelope.type}.v{envelope.version}"
    subjects.check(subjects.subject_of(envelope.body), envelope)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.TYPE)
def test_the_newest_sample_comes_out_byte_for_byte(body: Message) -> None:
    path = newest().get(_name(type(body)))
    assert path, f"there is no sample of {body.TYPE}; the docstring of this file says how to write one"
    data = path.read_bytes()
    assert encode(decode(data)) == data, "the message has changed: an addition needs a new sample (+1), a change a new version"
    assert decode(data) == enveloped(body)


def test_every_message_of_the_table_has_a_sample() -> None:
    assert sorted(newest()) == sorted(_name(row.message) for row in subjects.SUBJECTS)
    assert sorted(map(_name, map(type, BODIES))) == sorted(newest())


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.TYPE)
def test_a_sample_sets_every_field(body: Message) -> None:
    # A field that is empty here is pinned by nothing.
    assert list(_unset(msgspec.to_builtins(enveloped(body)), body.TYPE)) == []


def _unset(value: object, path: str) -> Iterator[str]:
    if value is None or value in ("", [], {}, ()):
        yield path
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _unset(each, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _unset(each, f"{path}[{number}]")


def write_missing() -> None:
    """Write a sample for each message that has none, and the next addition for each whose newest no longer comes out."""
    FOLDER.mkdir(exist_ok=True)
    for body in BODIES:
        data, path = encode(enveloped(body)), newest().get(_name(type(body)))
        if path is None:
            (FOLDER / f"{_name(type(body))}.json").write_bytes(data)
        elif path.read_bytes() != data:
            name, _, addition = path.stem.partition("+")
            (FOLDER / f"{name}+{int(addition or 0) + 1}.json").write_bytes(data)


if __name__ == "__main__":
    write_missing()
