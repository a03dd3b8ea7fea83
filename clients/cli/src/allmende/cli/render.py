"""Values as people read them: durations, ratios, GPU-hours, tables. Pure: text in, text out.

Floats appear here and only here, where a number is about to be looked at.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from allmende.proto.standing import Standing
from allmende.proto.units import HOUR_MS, GpuMs, Ms, format_duration

SHORT_ID = 8
MARKS = "#~?"
# Spaces between two columns.
GAP = 2
# Narrower than this a sentence is not readable any more.
SENTENCE_WIDTH = 36
# What a terminal obeys instead of showing it: control characters (C0 without the line's end, DEL, C1), separators of lines, and
# those that turn the direction of what follows.
_OBEYED = dict.fromkeys(
    (*range(10), *range(11, 32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A)), "\N{REPLACEMENT CHARACTER}"
)


def short(identifier: str) -> str:
    """The end of an id, which tells it from its neighbours; its beginning is only the time."""
    return identifier[-SHORT_ID:]


def ago(instant_ms: Ms | None, now_ms: Ms) -> str:
    """How long ago, or in how long: `5m ago`, `in 2h`; a dash where there is no instant."""
    if instant_ms is None:
        return "-"
    if instant_ms > now_ms:
        return f"in {format_duration(instant_ms - now_ms)}"
    return f"{format_duration(now_ms - instant_ms)} ago"


def gpu_hours(amount: GpuMs) -> str:
    """GPU-hours with one decimal and thousands separated: `1,234.5`."""
    tenths = amount * 10 // HOUR_MS
    return f"{tenths // 10:,}.{tenths % 10}"


def ratio(used: GpuMs | None, entitlement: GpuMs | None) -> str:
    """`used / entitlement` with three decimals, rounded down; words where it is no number."""
    if used is None or entitlement is None:
        return "-"
    if not entitlement:
        return "no share"
    thousandths = used * 1_000 // entitlement
    return f"{thousandths // 1000}.{thousandths % 1000:03d}"


def tier(standing: Standing) -> str:
    """What a standing means: owed time, or over-served."""
    if not standing.entitlement:
        return "no share"
    return "owed" if standing.guaranteed else "over"


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 GPU`, `16 GPUs`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def harmless(text: str) -> str:
    """Anybody's text as a terminal may have it: what it would obey is marked instead. Names, titles and reasons are anybody's."""
    return text.translate(_OBEYED)


class Harmless:
    """Something drawn, with our own colours and without what anybody's text in it would make a terminal do."""

    def __init__(self, drawn: RenderableType) -> None:
        self.drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The same pieces, each with its own style."""
        for piece in console.render(self.drawn, options):
            yield piece if piece.control else Segment(harmless(piece.text), piece.style)


class Listing:
    """A table that leaves words whole: ids and names are never folded, and sentences only between words. Columns without names have
    no head.

    A column's last letters say what it holds: `#` numbers, to the right; `~` sentences, which may take several lines; `?` what may
    be left out on a narrow screen, the last such column first. A row is a row: line breaks in a text are spaces here.
    """

    def __init__(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        self.title = title
        self.columns = tuple(columns)
        self.rows = [tuple(" ".join(cell.splitlines()) for cell in row) for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Title, head and rows; a listing without rows is its title."""
        yield Text(self.title, style="italic")
        if self.rows:
            shown = fitting(self.columns, [self._width(at) for at in range(len(self.columns))], options.max_width)
            yield self._drawn([at for at in range(len(self.columns)) if at in shown])

    def _width(self, column: int) -> int:
        name = self.columns[column].rstrip(MARKS)
        widest = max(cell_len(row[column]) for row in self.rows)
        is_sentence = "~" in self.columns[column][len(name) :]
        return max(cell_len(name), min(widest, SENTENCE_WIDTH) if is_sentence else widest)

    def _drawn(self, shown: Sequence[int]) -> Table:
        has_head = any(self.columns[at].rstrip(MARKS) for at in shown)
        drawn = Table(box=None, pad_edge=False, header_style="bold", show_header=has_head)
        for at in shown:
            name = self.columns[at].rstrip(MARKS)
            marks = self.columns[at][len(name) :]
            drawn.add_column(name, justify="right" if "#" in marks else "left", no_wrap="~" not in marks, overflow="fold")
        for row in self.rows:
            drawn.add_row(*(Text(row[at]) for at in shown))
        return drawn


def fitting(columns: Sequence[str], widths: Sequence[int], room: int) -> set[int]:
    """Which columns are shown in so many characters: those marked `?` go, the last one first, until the others fit."""
    shown = set(range(len(columns)))
    for at in reversed(range(len(columns))):
        if sum(widths[each] + GAP for each in shown) - GAP <= room:
            break
        if columns[at].endswith("?"):
            shown.remove(at)
    return shown


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Listing:
    """A titled table (see `Listing`)."""
    return Listing(title, columns, rows)


def comma_separated(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for spreadsheets, with a head: unknown is empty, and amounts stay the integers that they are."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return text.getvalue().rstrip("\n")
