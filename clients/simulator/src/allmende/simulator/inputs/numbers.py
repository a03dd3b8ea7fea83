"""Reading cells: seconds, whole numbers, names, words. Exact: a decimal becomes milliseconds without a float.

Never mends what it reads: `1e3`, `NaN`, `-0`, `1_000` and `٣` are faults.
"""

import re
from collections.abc import Mapping

from allmende.proto.ids import is_name
from allmende.proto.units import SECOND_MS, Ms
from allmende.simulator.inputs.faults import Cell, quote

_DECIMAL = re.compile(r"(\d{1,12})(?:\.(\d{1,12}))?\Z", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,9}\Z", re.ASCII)


def seconds(name: str, text: str, least_ms: Ms, most_ms: Ms) -> Ms:
    """Seconds as milliseconds: `90`, `0.5`, `66.000`.

    Raises:
        Cell: not a plain decimal (`bad_number`), finer than a millisecond (`too_fine`), out of bounds (`out_of_range`).
    """
    match = _DECIMAL.match(text)
    if match is None:
        raise Cell(name, "bad_number", f"{quote(text)} is not a number of seconds such as 90 or 0.5")
    whole, part = match.groups()
    part = (part or "").rstrip("0")
    if len(part) > 3:
        raise Cell(name, "too_fine", f"{quote(text)} s is finer than a millisecond; write at most three decimals")
    value = int(whole) * SECOND_MS + int(part.ljust(3, "0"))
    if not least_ms <= value <= most_ms:
        raise Cell(name, "out_of_range", f"{text} s is not within {in_seconds(least_ms)} to {in_seconds(most_ms)} s")
    return value


def in_seconds(value: Ms) -> str:
    """Milliseconds as seconds, exactly and as short as possible: `90`, `0.5`."""
    whole, part = divmod(value, SECOND_MS)
    return f"{whole}.{part:03d}".rstrip("0") if part else str(whole)


def whole(name: str, text: str, least: int, most: int) -> int:
    """A whole number.

    Raises:
        Cell: something else (`bad_number`), or out of bounds (`out_of_range`).
    """
    if not _WHOLE.match(text):
        raise Cell(name, "bad_number", f"{quote(text)} is not a whole number")
    value = int(text)
    if not least <= value <= most:
        raise Cell(name, "out_of_range", f"{value} is not within {least} to {most}")
    return value


def name_of(name: str, text: str) -> str:
    """A user's or budget's name.

    Raises:
        Cell: not a name as `allmende.proto.ids` has it (`bad_name`).
    """
    if not is_name(text):
        raise Cell(
            name,
            "bad_name",
            f"{quote(text)} is not a name: 1 to 63 of a-z, 0-9, - and _, beginning and ending with a letter or digit",
        )
    return text


def word(name: str, text: str, meanings: Mapping[str, object]) -> str:
    """One of the known words, whatever its case, in lower case.

    Raises:
        Cell: another word (`bad_word`).
    """
    lower = text.lower()
    if lower not in meanings:
        raise Cell(name, "bad_word", f"{quote(text)} is none of {', '.join(meanings)}")
    return lower
