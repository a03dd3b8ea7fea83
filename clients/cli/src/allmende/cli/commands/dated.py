"""`allmende budgets planned|call-off`, and what `set --from --until` plans: shares with dates. Nothing is decided here."""

from typing import Annotated

import typer
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands import writes
from allmende.cli.commands.paging import ending_in, newest
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.budget import ChildShare
from allmende.proto.dated import DatedPage, DatedQuery, DatedReply, DatedShares, PlanShares, WithdrawDated
from allmende.proto.units import Ms, format_instant

FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="WHEN", help="From then on: 2026-12-24T08:00Z, or in how long, such as 4h.", show_default=False),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="WHEN", help="Until then; the shares of before come back by themselves.", show_default=False),
]
ChangeArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The change's id, or the last letters of it (four at least).", show_default=False)
]


async def plan(
    opened: Session,
    parent: str,
    children: tuple[ChildShare, ...],
    dates: tuple[Ms | None, Ms | None],
    expected_revision: int,
    reason: str,
    cluster: str | None,
) -> DatedShares:
    """Plan shares from one date, until the other, or both.

    Raises:
        CommandFailed: it was refused.
    """
    request = PlanShares(
        change=opened.ids.new(opened.now_ms()),
        parent=parent,
        children=children,
        effective_from_ms=dates[0],
        effective_until_ms=dates[1],
        expected_revision=expected_revision,
        reason=reason,
        cluster=cluster,
    )
    return _done(await opened.ask(subjects.PLAN_SHARES, request, DatedReply), expected_revision)


def read_dates(from_: str | None, until: str | None, now_ms: Ms) -> tuple[Ms | None, Ms | None]:
    """The instants that `--from` and `--until` name; a duration counts from now.

    Raises:
        CommandFailed: one of them is no instant.
    """
    return instants.read("--from", from_, now_ms), instants.read("--until", until, now_ms)


def planned(
    change: Annotated[str | None, typer.Argument(metavar="[ID]", help="One, with all its steps.", show_default=False)] = None,
    parent: Annotated[str | None, session.name_option("Only shares below this budget.", "BUDGET")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many, newest first.")] = 30,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show shares with dates: what is planned, and what runs until when."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            if change is not None:
                one = await find(opened, change)
                session.show(one, _in_full(one), as_json)
                return
            found = await _newest(opened, DatedQuery(parent=parent, open_only=not everything), limit)
            session.show(DatedPage(changes=found), _table(found), as_json)

    session.run(work())


def call_off(
    change: ChangeArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the history for everybody to read.", show_default=False)],
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a planned change back, or end one that runs: then the shares of before come back at once."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            found = await find(opened, change)
            request = WithdrawDated(change=found.planned.change, reason=reason)
            done = _done(await opened.ask(subjects.WITHDRAW_DATED, request, DatedReply), found.planned.tree_revision)
            over = done.steps[-1]
            words = "taken back: it does not begin"
            if over.step == "ended":
                words = f"ended: the shares of before hold again, revision {over.tree_revision} is in force"
            session.show(done, words, as_json)

    session.run(work())


def add_to(app: typer.Typer) -> None:
    """Make them commands of `allmende budgets`."""
    app.command()(planned)
    app.command()(call_off)


async def find(opened: Session, ending: str) -> DatedShares:
    """The dated change whose id ends so.

    Raises:
        CommandFailed: none or several do.
    """

    async def two(letters: str) -> tuple[DatedShares, ...]:
        return await _newest(opened, DatedQuery(change=letters), 2)

    return await ending_in(ending, two, thing="dated change", owner="change", listed_by="allmende budgets planned --all")


def dates(from_ms: Ms | None, until_ms: Ms | None) -> str:
    """Dates in words: `from 2026-12-24T08:00Z until 2027-01-07T08:00Z`, `until ...`, or `for good`."""
    parts = [f"from {format_instant(from_ms)}"] if from_ms is not None else []
    parts += [f"until {format_instant(until_ms)}"] if until_ms is not None else []
    return " ".join(parts) or "for good"


def summary(change: DatedShares) -> str:
    """What was planned, in one line, and what it does."""
    asked = change.planned
    when = dates(asked.from_ms, change.until_ms)
    return f"{render.short(asked.change)}: {change.state}, {when}: {_shares(change)}"


async def _newest(opened: Session, query: DatedQuery, most: int) -> tuple[DatedShares, ...]:
    return await newest(opened, subjects.DATED, query, DatedPage, lambda page: page.changes, most)


def _done(reply: DatedReply, read_at: int) -> DatedShares:
    if reply.dated is not None:
        return reply.dated
    raise writes.refused(reply.rejected, read_at)


def _table(changes: tuple[DatedShares, ...]) -> RenderableType:
    columns = ("CHANGE", "BELOW", "FROM", "UNTIL", "STATE", "BY", "SHARES~", "REASON~")
    title = "shares with dates, newest first" if changes else "no share has a date"
    return render.table(title, columns, [_row(each) for each in changes])


def _row(each: DatedShares) -> tuple[str, ...]:
    asked = each.planned
    until = "for good" if each.until_ms is None else format_instant(each.until_ms)
    return (
        render.short(asked.change),
        asked.parent if asked.cluster is None else f"{asked.parent} on {asked.cluster}",
        format_instant(asked.from_ms),
        until,
        each.state if each.renewal is None else f"{each.state}, renewal {render.short(each.renewal)} asked",
        asked.author,
        _shares(each),
        asked.reason,
    )


def _in_full(each: DatedShares) -> str:
    asked = each.planned
    lines = [summary(each), f"planned by {asked.author} at {format_instant(asked.planned_at_ms)}: {asked.reason}"]
    for step in each.steps:
        until = "" if step.until_ms is None else f" until {format_instant(step.until_ms)}"
        lines.append(f"{step.step}{until} at {format_instant(step.at_ms)}, revision {step.tree_revision}, {step.by}: {step.reason}")
    if each.renewal is not None:
        lines.append(f"proposal {each.renewal} asks for its renewal: until somebody answers it stays, also beyond its end")
    return "\n".join(lines)


def _shares(each: DatedShares) -> str:
    return " ".join(f"{child.budget}={writes.share(child.share_ppm)}" for child in each.planned.children)
