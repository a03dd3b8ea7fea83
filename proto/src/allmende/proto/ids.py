"""Identifiers: names that people choose, and ids that are never reused.

An id is a ULID in lower case: 48 bits of milliseconds, then 80 random bits, so it sorts by time and cannot be guessed.
Never reads a clock or a random source: both are arguments.
"""

import re
from typing import Annotated

from msgspec import Meta

# Crockford's base 32, as the ULID specification has it (no i, l, o, u).
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_LENGTH = 26
ENTROPY_BYTES = 10

# A name is one token of a subject, so it has no dot, star, greater-than or space; 63 as in DNS labels.
# \A and \Z because `$` also matches before a trailing newline.
NAME_PATTERN = r"\A[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?\Z"
ID_PATTERN = rf"\A[0-7][{_ALPHABET}]{{25}}\Z"

Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=63)]
Id = Annotated[str, Meta(pattern=ID_PATTERN, max_length=ID_LENGTH)]

_NAME = re.compile(NAME_PATTERN, re.ASCII)
_ID = re.compile(ID_PATTERN, re.ASCII)


def make_id(now_ms: int, entropy: bytes) -> str:
    """Make an id from an instant and 10 random bytes.

    Raises:
        ValueError: the instant does not fit 48 bits, or the entropy is not 10 bytes.
    """
    if not 0 <= now_ms < 1 << 48:
        raise ValueError(f"instant {now_ms} does not fit 48 bits")
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"an id needs {ENTROPY_BYTES} random bytes, got {len(entropy)}")
    value = now_ms << 80 | int.from_bytes(entropy, "big")
    return _text(value)


def _text(value: int) -> str:
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def following(first: str, steps: int) -> str:
    """The id that comes so many steps after one: the jobs of an array have neighbouring ids.

    Raises:
        ValueError: it would not fit 128 bits.
    """
    value = steps
    for at, letter in enumerate(reversed(first)):
        value += _ALPHABET.index(letter) << 5 * at
    if value >= 1 << 128:
        raise ValueError(f"there is no id {steps} steps after {first}")
    return _text(value)


def is_id(text: str) -> bool:
    """True when the text has the form of an id."""
    return _ID.match(text) is not None


def is_name(text: str) -> bool:
    """True when the text may name a cluster, node, budget or user."""
    return _NAME.match(text) is not None
