"""Where tables and keys stand in a TOML file, because Python's reader does not say.

Understands headers, keys and texts over several lines; for anything finer (an inline table) the place is the key it belongs to.
Never judges the file: that is the reader's work.
"""

import re
from typing import TypeAlias

Trail: TypeAlias = tuple[str | int, ...]
"""Keys from the top of the file; the number of a table in a list of tables counts from 0."""

_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEYS = rf"{_NAME}(?:[ \t]*\.[ \t]*{_NAME})*"
_LIST = re.compile(rf"\s*\[\[[ \t]*({_KEYS})[ \t]*\]\]")
_TABLE = re.compile(rf"\s*\[[ \t]*({_KEYS})[ \t]*\]")
_KEY = re.compile(rf"\s*({_KEYS})[ \t]*=")
_AT = re.compile(r"\(at line (\d+), column (\d+)\)")
_SPLIT = re.compile(_NAME)


class Places:
    """The places of one file."""

    def __init__(self, text: str) -> None:
        self._found: dict[Trail, tuple[int, int]] = {}
        self._end = (text.count("\n") + 1, len(text) - text.rfind("\n"))
        lengths: dict[Trail, int] = {}
        table: Trail = ()
        closing: str | None = None
        for number, line in enumerate(text.split("\n"), start=1):
            if closing is not None:
                if line.count(closing) % 2:
                    closing = None
                continue
            if match := _LIST.match(line):
                trail = _trail(match[1])
                lengths[trail] = lengths.get(trail, -1) + 1
                table = (*trail, lengths[trail])
            elif match := _TABLE.match(line):
                table = _trail(match[1])
            elif not (match := _KEY.match(line)):
                continue
            trail = table if match.re is not _KEY else (*table, *_trail(match[1]))
            self._found.setdefault(trail, (number, match.start(1) + 1))
            closing = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), None)

    def of(self, *trail: str | int) -> tuple[int, int]:
        """(line, column) of a key or table, both from 1; of what it lies in where it has no line of its own; else (1, 1)."""
        for length in range(len(trail), 0, -1):
            if place := self._found.get(trail[:length]):
                return place
        return 1, 1

    def of_name(self, name: str) -> tuple[int, int] | None:
        """(line, column) of the first table whose last key is `name`."""
        return next((place for trail, place in self._found.items() if trail[-1] == name), None)

    def of_error(self, sentence: str) -> tuple[int, int]:
        """(line, column) out of a sentence of `tomllib`; the end of the file where it says none."""
        match = _AT.search(sentence)
        return (int(match[1]), int(match[2])) if match else self._end


def _trail(keys: str) -> Trail:
    return tuple(part.strip("\"'") for part in _SPLIT.findall(keys))
