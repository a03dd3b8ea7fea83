"""`--set NAME=VALUE`: one setting of a policy, read by the type it has. Never changes a setting that was not named."""

import ast
import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from allmende.proto.units import format_duration, format_share, parse_duration, parse_share


def settings_of(kind: type[Struct], words: Iterable[str]) -> Struct:
    """The settings with these overrides.

    Raises:
        ValueError: an unknown name, or a value that cannot be read; the sentence says what would do.
    """
    known = {field.name: field for field in fields(kind)}
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in known:
            raise ValueError(f"--set {word}: write NAME=VALUE with one of {', '.join(known) or 'no setting at all'}")
        given[name] = _value(name, text, type(known[name].default))
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"--set: {error}") from error


def _value(name: str, text: str, kind: type) -> object:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if name.endswith("_ms"):
            return parse_duration(text)
        if name.endswith("_ppm") and not text.isdecimal():
            return parse_share(text)
        return int(text)
    except (ValueError, KeyError) as error:
        forms = {"_ms": "a length such as 90s, 30m or 8h", "_ppm": "a part such as 10% or 0.1"}
        wanted = "true or false" if kind is bool else next((form for end, form in forms.items() if name.endswith(end)), "a number")
        raise ValueError(f"--set {name}={text}: {wanted} is wanted") from error


def shown(name: str, value: object) -> str:
    """A value as `--set` would read it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and name.endswith("_ms"):
        return format_duration(value).replace(" ", "")
    if isinstance(value, int) and name.endswith("_ppm") and value <= 1_000_000:
        return format_share(value)
    return str(value)


def described(kind: type[Struct]) -> list[tuple[str, str, str]]:
    """(name, default, what it does) of each setting."""
    said = _sentences(kind)
    return [(field.name, shown(field.name, field.default), said.get(field.name, "")) for field in fields(kind)]


def _sentences(kind: type[Struct]) -> dict[str, str]:
    """The text under each field of the class, as it stands in its source."""
    (body,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = re.sub(r"\s+", " ", str(ast.literal_eval(text.value)))
    return found
