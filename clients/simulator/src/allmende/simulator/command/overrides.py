"""A policy's settings by name: what `--set NAME=VALUE` changes and `--list-settings` shows.

Names, defaults and sentences are those of the policies' own `Settings`; here is only how a text becomes a value. Never guesses a
unit: a length has one, a part is a percentage or a fraction.
"""

import ast
import inspect
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from allmende.proto.units import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    PPM_WHOLE,
    SECOND_MS,
    Ms,
    Ppm,
    format_share,
    parse_duration,
    parse_share,
)
from allmende.simulator.command.failures import Asked
from allmende.simulator.inputs.faults import quote
from allmende.simulator.policies.offered import POLICIES

# Below these a setting means nothing: no time to look back on, no level to be in, no slice that anybody could ask for.
LEAST: Final = {"window_ms": 5 * MINUTE_MS, "slice_cap_ms": SECOND_MS, "levels": 1, "requeue_backoff_ms": SECOND_MS}
NUMBER_MOST: Final = 1_000_000
# A pass looks at each level.
MOST: Final = {"levels": 100}
LENGTH_MOST_MS: Final[Ms] = 366 * DAY_MS
# What is compared with a whole may be more than one; all others are parts.
FACTOR_MOST_PPM: Final[Ppm] = 100 * PPM_WHOLE
FACTORS: Final = ("_factor_ppm", "_ratio_ppm")
_PERCENT = re.compile(r"(\d{1,5})%\Z", re.ASCII)
_NUMBER = re.compile(r"\d{1,7}\Z", re.ASCII)
_WORDS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_LENGTHS: Final = ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "m"), (SECOND_MS, "s"))


class Setting(NamedTuple):
    """A setting as it is listed."""

    name: str
    default: str
    sentence: str


def listed(policy: str) -> list[Setting]:
    """All settings of a policy, in the order of its own."""
    kind = POLICIES[policy].settings
    sentences = _sentences(kind)
    usual = msgspec.structs.asdict(kind())
    return [Setting(name, in_words(name, value), sentences.get(name, "")) for name, value in usual.items()]


def override(policy: str, sets: Sequence[str], asked: Asked) -> Struct:
    """The policy's settings with `NAME=VALUE` put in; what is wrong goes into `asked`."""
    kind = POLICIES[policy].settings
    usual = msgspec.structs.asdict(kind())
    changed: dict[str, Any] = {}
    for each in sets:
        name, equals, text = (part.strip() for part in each.partition("="))
        option = f"--set {name}" if name.isprintable() and len(name) <= 60 else "--set"
        if not equals:
            asked.add("--set", f"{quote(each)} is not NAME=VALUE, such as {_example(policy)}")
        elif name not in usual:
            asked.add("--set", f"{policy} has no setting {quote(name)}; it has {', '.join(usual)}")
        elif name in changed:
            asked.add(option, "is given twice")
        else:
            try:
                changed[name] = _value(name, usual[name], text)
            except ValueError as error:
                asked.add(option, str(error))
    return msgspec.structs.replace(kind(), **changed) if not asked.faults else kind()


def in_words(name: str, value: object) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if name.endswith("_ppm") and isinstance(value, int):
        return format_share(value)
    if not name.endswith("_ms") or not isinstance(value, int):
        return str(value)
    parts = []
    for size, unit in _LENGTHS:
        count, value = divmod(value, size)
        parts += [f"{count}{unit}"] * (count > 0)
    return "".join(parts) or "0s"


def _value(name: str, usual: object, text: str) -> object:
    """Read a value by the kind of its setting.

    Raises:
        ValueError: it cannot be read, or lies outside its bounds.
    """
    if isinstance(usual, bool):
        if text.lower() not in _WORDS:
            raise ValueError(f"{quote(text)} is neither true nor false")
        return _WORDS[text.lower()]
    if name.endswith("_ms"):
        most, number = LENGTH_MOST_MS, _length(text)
    elif name.endswith("_ppm"):
        most, number = (FACTOR_MOST_PPM if name.endswith(FACTORS) else PPM_WHOLE), _part(name, text)
    else:
        if not _NUMBER.match(text):
            raise ValueError(f"{quote(text)} is not a whole number such as {usual}")
        most, number = MOST.get(name, NUMBER_MOST), int(text)
    least = LEAST.get(name, 0)
    if not least <= number <= most:
        raise ValueError(f"{quote(text)} is not within {in_words(name, least)} to {in_words(name, most)}")
    return number


def _length(text: str) -> Ms:
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError(f"{quote(text)} is not a duration; write for example 90s, 30m, 8h or 7d") from None


def _part(name: str, text: str) -> Ppm:
    if name.endswith(FACTORS) and (match := _PERCENT.match(text)):
        return int(match[1]) * PPM_WHOLE // 100
    if text == "0":
        # Nothing is nothing in every unit, and the settings' own sentences say 0.
        return 0
    try:
        return parse_share(text)
    except ValueError:
        raise ValueError(f"{quote(text)} is not a part between 0% and 100%; write for example 10%, 2.5% or 0.1") from None


def _example(policy: str) -> str:
    first = listed(policy)[0]
    return f"{first.name}={first.default}"


def _sentences(kind: type[Struct]) -> dict[str, str]:
    """What stands below each field in the class: msgspec keeps no docstrings of fields, the source does."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = " ".join(below.value.value.split())  # type: ignore[attr-defined]
    return found
