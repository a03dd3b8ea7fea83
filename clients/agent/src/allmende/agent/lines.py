"""Logs of one JSON value a line, as they are written while things happen and read back afterwards."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read(decoder: msgspec.json.Decoder[T], lines: Iterable[bytes], what: str) -> Iterator[T]:
    """Read a log back.

    Raises:
        ValueError: a line does not decode; the sentence has `what` and its number. A last line without newline was cut by a
            crash and is left out.
    """
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{what}, line {number}: {error}") from error
