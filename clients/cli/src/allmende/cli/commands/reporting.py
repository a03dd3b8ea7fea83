"""What the commands that report on a span of time share: options, the span, the forms of an answer. Decides nothing."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
from msgspec import Struct
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import Session
from allmende.proto.units import HOUR_MS, MINUTE_MS, Ms, parse_duration

BudgetOption = Annotated[
    str | None, typer.Option("--budget", metavar="BUDGET", help="Only those of this budget.", parser=session.read_name)
]
BelowOption = Annotated[
    str | None, typer.Option("--budget", metavar="BUDGET", help="Only this budget and those below it.", parser=session.read_name)
]
LastOption = Annotated[str, typer.Option("--last", metavar="DURATION", help="The span that ends now, where --from is not given.")]
FromOption = Annotated[str | None, typer.Option("--from", metavar="TIME", help="When the span begins: 2026-12-24T08:00Z.")]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="When it ends; now, where it is not given.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print comma-separated values in GPU-milliseconds and UTC milliseconds.")]

# Usage is kept in steps of so much.
EDGE_MS = 5 * MINUTE_MS

S = TypeVar("S", bound=Struct)


class Span(Struct, frozen=True):
    """`[from_ms, to_ms)`."""

    from_ms: Ms
    to_ms: Ms


class Answer(NamedTuple):
    """One answer in each form that may be asked for."""

    value: Struct
    separated: str
    drawn: RenderableType


def span_of(last: str, from_: str | None, until: str | None, now_ms: Ms, edge_ms: Ms, end_edge_ms: Ms | None = None) -> Span:
    """The span of the options. What follows from now is widened to edges; what was typed stays as it is.

    `end_edge_ms`: the edge of its end, where that is not the finer one of its beginning's edge and the step of usage.

    Raises:
        CommandFailed: an option is no instant, or no duration.
    """
    kept_ms = min(edge_ms, EDGE_MS) if end_edge_ms is None else end_edge_ms
    to_ms = instants.read("--until", until, now_ms)
    if to_ms is None:
        to_ms = -(-now_ms // kept_ms) * kept_ms
    begin_ms = instants.read("--from", from_, now_ms)
    if begin_ms is None:
        begin_ms = max(0, to_ms - _length(last)) // edge_ms * edge_ms
    return Span(begin_ms, to_ms)


def hours_of(last: str, from_: str | None, until: str | None, now_ms: Ms) -> Span:
    """The same in full hours, also at its end."""
    return span_of(last, from_, until, now_ms, HOUR_MS, end_edge_ms=HOUR_MS)


def _length(last: str) -> Ms:
    try:
        return parse_duration(last)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"--last: {error}") from None


def report(ask: Callable[[Session], Awaitable[Answer]], lab: Path | None, as_json: bool, as_csv: bool) -> None:
    """Ask for one answer, and print it in the form that was asked for."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            print_answer(await ask(opened), as_json, as_csv)

    check_forms(as_json, as_csv)
    session.run(work())


def check_forms(as_json: bool, as_csv: bool) -> None:
    """Leave where both forms are asked for."""
    if as_json and as_csv:
        session.fail(CommandFailed(Exit.USAGE, "say --json or --csv, not both"))


def print_answer(answer: Answer, as_json: bool, as_csv: bool) -> None:
    """Print one answer in the form that was asked for."""
    if as_csv:
        session.put(answer.separated)
    else:
        session.show(answer.value, answer.drawn, as_json)


def fields_csv(kind: type[S], rows: Iterable[S]) -> str:
    """Rows with all their fields, named as they are; empty is not known."""
    columns = kind.__struct_fields__
    return render.comma_separated(columns, [[getattr(each, name) for name in columns] for each in rows])


def percent(part: int, whole: int) -> str:
    """A quotient for people, rounded down to a tenth; a dash where there is no whole."""
    if not whole:
        return "-"
    thousandths = part * 1_000 // whole
    return f"{thousandths // 10}.{thousandths % 10} %"
