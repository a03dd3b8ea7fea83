"""What is wrong with an input file, and where: every fault has a file, a line, a column and a sentence.

Never raises for what a file says, and never stops at the first fault: readers go on, count all and name as many as help.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

# Enough to see every kind of fault in a file; one of another form would name each of its lines.
NAMED_MOST = 100
# Somebody else's text is repeated only so far that it can be found again.
_QUOTED = 60
_SENTENCE = 1_000


class Fault(NamedTuple):
    """One fault. `line` and `column` count from 1; 0 means the whole file, or the whole line.

    `column` is the number of the cell in a table and of the character in TOML. `name` is the column's or key's name, or empty.
    """

    file: str
    line: int
    column: int
    name: str
    code: str
    sentence: str

    def __str__(self) -> str:
        place = (
            self.file
            if not self.line
            else f"{self.file}:{self.line}"
            if not self.column
            else f"{self.file}:{self.line}:{self.column}"
        )
        return f"{place}: {self.name}: {self.sentence}" if self.name else f"{place}: {self.sentence}"


class Read(NamedTuple, Generic[T]):
    """What a reader made of a file. `value` None: it cannot be used, and `faults` says why.

    With a value, faults are of rows that were skipped. At most `NAMED_MOST` faults are named; `counts` (code -> number) has all.
    """

    value: T | None
    faults: tuple[Fault, ...] = ()
    counts: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()
    """Sentences for the report: what was assumed, left out or skipped."""

    @property
    def unnamed(self) -> int:
        """Faults that were counted but not named."""
        return sum(self.counts.values()) - len(self.faults)


class Cell(Exception):
    """A cell that cannot be read. Never leaves `inputs`."""

    def __init__(self, name: str, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name
        self.code = code


class Faults:
    """Collects the faults of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.named: list[Fault] = []
        self.counts: dict[str, int] = {}

    def add(self, line: int, column: int, name: str, code: str, sentence: str) -> None:
        """One more fault."""
        self.counts[code] = self.counts.get(code, 0) + 1
        if len(self.named) < NAMED_MOST:
            # A key of somebody else's file may be long, or hold a line end.
            shown = name if name.isprintable() and len(name) <= _QUOTED else quote(name)
            self.named.append(Fault(self.file, line, column, shown, code, sentence[:_SENTENCE]))

    def take(self, other: "Faults") -> None:
        """The faults of another file too."""
        self.named.extend(other.named[: NAMED_MOST - len(self.named)])
        for code, count in other.counts.items():
            self.counts[code] = self.counts.get(code, 0) + count

    def refused(self) -> Read[T]:
        """The file cannot be used."""
        return Read(None, tuple(self.named), self.counts)

    def done(self, value: T, notes: tuple[str, ...] = ()) -> Read[T]:
        """The file can be used; rows with faults were skipped, and a note says how many of each kind."""
        if self.counts:
            kinds = ", ".join(f"{count} {code}" for code, count in sorted(self.counts.items()))
            notes = (*notes, f"{self.file}: {sum(self.counts.values())} bad rows were skipped: {kinds}")
        return Read(value, tuple(self.named), self.counts, notes)

    def __bool__(self) -> bool:
        return bool(self.counts)


def quote(text: str) -> str:
    """Somebody else's text, shortened, on one line."""
    return repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "...")
