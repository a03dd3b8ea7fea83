"""Write schemas/*.json and asyncapi.yaml from the subject table: `python proto/generate.py`. A test holds both against the code.

A script and not a module, because the package `allmende.proto` touches no file. Never writes samples/.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from allmende.proto.envelope import MAX_MESSAGE_BYTES
from allmende.proto.ids import ID_PATTERN, NAME_PATTERN
from allmende.proto.message import Problem
from allmende.proto.streams import STREAMS
from allmende.proto.subjects import REQUESTS, SUBJECTS, Request, Subject
from allmende.proto.units import LATEST_INSTANT_MS

HERE = Path(__file__).parent
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Json = dict[str, Any]


def files() -> dict[str, str]:
    """Every generated file: its path below proto/ and its text."""
    result = {f"schemas/{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas().items()}
    result["asyncapi.yaml"] = "\n".join(_yaml(asyncapi(), 0)) + "\n"
    return result


# ----------------------------------------------------------------------------------------------------------------- schemas


def schemas() -> dict[str, Json]:
    """A schema for each message as it travels (with its envelope), and for each request and reply."""
    result = {_name(row): _message_schema(row) for row in SUBJECTS}
    for request in REQUESTS:
        result[f"{_verb(request)}.request"] = _schema(request.request)
        result[f"{_verb(request)}.reply"] = _schema(request.reply)
    result["problem"] = _schema(Problem)
    return result


def _name(row: Subject) -> str:
    return f"{row.message.TYPE}.v{row.message.VERSION}"


def _verb(row: Request) -> str:
    return row.prefix


def _schema(kind: type[Struct]) -> Json:
    (top,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    definitions = {name: _portable(each) for name, each in sorted(components.items())}
    return {"$schema": DIALECT, **top, "$defs": definitions}


def _message_schema(row: Subject) -> Json:
    body = _schema(row.message)
    identity = {"type": "string", "pattern": _portable_pattern(ID_PATTERN)}
    instant = {"type": "integer", "minimum": 0, "maximum": LATEST_INSTANT_MS}
    return {
        "$schema": DIALECT,
        "title": _name(row),
        "description": _doc(row.message).partition("\n")[0],
        "type": "object",
        "properties": {
            "id": identity,
            "type": {"const": row.message.TYPE},
            "version": {"const": row.message.VERSION},
            "occurred_at_ms": instant,
            "sent_at_ms": instant,
            "cause": {"anyOf": [{"type": "null"}, identity], "default": None},
            "trace": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 128}], "default": None},
            "body": {"$ref": body["$ref"]},
        },
        "required": ["id", "type", "version", "occurred_at_ms", "sent_at_ms", "body"],
        "$defs": body["$defs"],
    }


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _portable_pattern(each) if key == "pattern" else _portable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_portable(each) for each in value]
    return value


def _portable_pattern(pattern: str) -> str:
    r"""Python's \A and \Z as JSON Schema's ^ and $, where $ means the very end (ECMA-262)."""
    return pattern.replace(r"\A", "^").replace(r"\Z", "$")


# ---------------------------------------------------------------------------------------------------------------- asyncapi


def asyncapi() -> Json:
    """The AsyncAPI 3 document: channels, messages, and operations from the view of those who say and ask."""
    channels: Json = {}
    operations: Json = {}
    messages: Json = {}
    for row in SUBJECTS:
        channels[_name(row)] = _event_channel(row)
        messages[_name(row)] = {"name": row.message.TYPE, "contentType": "application/json", **_payload(_name(row))}
        operations[f"say.{_name(row)}"] = _operation("send", _name(row), {"x-said-by": list(row.says)})
        operations[f"hear.{_name(row)}"] = _operation("receive", _name(row), {"x-heard-by": list(row.hears)})
    for request in REQUESTS:
        name = _verb(request)
        channels[name] = _request_channel(request)
        channels[f"{name}.reply"] = {"address": None, "messages": _refs(f"{name}.reply", "problem")}
        messages[f"{name}.request"] = {"contentType": "application/json", **_payload(f"{name}.request")}
        messages[f"{name}.reply"] = {"contentType": "application/json", **_payload(f"{name}.reply")}
        operations[f"ask.{name}"] = _ask(request)
    messages["problem"] = {"contentType": "application/json", **_payload("problem")}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Allmende",
            "version": "0.1.0",
            "description": "Every subject on the bus. Generated by proto/generate.py from the table in subjects.py; do not edit.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _event_channel(row: Subject) -> Json:
    stream = next(each for each in STREAMS if each.name == row.stream)
    channel: Json = {
        "address": ".".join((row.prefix, *(f"{{{token}}}" for token in row.tokens))),
        "title": row.message.TYPE,
        "description": _doc(row.message),
        "messages": _refs(_name(row)),
    }
    if row.tokens:
        channel["parameters"] = {token: {"description": _token(token)} for token in row.tokens}
    return {**channel, "x-stream": stream.name, "x-last-value-only": stream.last_value_only, "x-max-bytes": MAX_MESSAGE_BYTES}


def _doc(kind: type[Struct]) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _token(token: str) -> str:
    if token in ("attempt", "claim", "job"):
        return f"the {token}'s id, as in the body"
    return f"the {token}'s name, as in the body: {_portable_pattern(NAME_PATTERN)}"


def _request_channel(row: Request) -> Json:
    return {
        "address": f"{row.prefix}.{{caller}}",
        "title": f"{row.service}: {row.verb}",
        "description": _doc(row.request),
        "messages": _refs(f"{_verb(row)}.request"),
        "parameters": {"caller": {"description": "the caller's own name; the server lets nobody use another's"}},
    }


def _operation(action: str, channel: str, extra: Mapping[str, Any]) -> Json:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{channel}"}],
        **extra,
    }


def _ask(row: Request) -> Json:
    name = _verb(row)
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{name}.request"}],
        "reply": {
            "address": {"location": "$message.header#/reply", "description": "the NATS reply subject"},
            "channel": {"$ref": f"#/channels/{name}.reply"},
            "messages": [
                {"$ref": f"#/channels/{name}.reply/messages/{name}.reply"},
                {"$ref": f"#/channels/{name}.reply/messages/problem"},
            ],
        },
        "x-asked-by": list(row.asks),
        "x-answered-by": row.service,
        "x-changes-state": row.changes,
    }


def _refs(*names: str) -> Json:
    return {name: {"$ref": f"#/components/messages/{name}"} for name in names}


def _payload(name: str) -> Json:
    return {"payload": {"schemaFormat": f"application/schema+json;version={DIALECT}", "schema": {"$ref": f"./schemas/{name}.json"}}}


# -------------------------------------------------------------------------------------------------------------------- yaml


def _yaml(value: Json | Sequence[Any], indent: int) -> Iterator[str]:
    """Block YAML of mappings and lists; scalars are written as JSON, of which YAML 1.2 is a superset."""
    space = "  " * indent
    if isinstance(value, dict):
        for key, each in value.items():
            label = key if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", key) else json.dumps(key)
            yield from _entry(f"{space}{label}:", each, indent)
    else:
        for each in value:
            yield from _entry(f"{space}-", each, indent)


def _entry(head: str, value: Any, indent: int) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield head
        yield from _yaml(value, indent + 1)
    else:
        yield f"{head} {json.dumps(value, ensure_ascii=False)}"


def main() -> None:
    """Write every file, and remove the schemas of messages that are no more."""
    made = files()
    (HERE / "schemas").mkdir(exist_ok=True)
    for old in (HERE / "schemas").glob("*.json"):
        if f"schemas/{old.name}" not in made:
            old.unlink()
    for path, text in made.items():
        (HERE / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
