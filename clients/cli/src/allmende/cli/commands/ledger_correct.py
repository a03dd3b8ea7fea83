"""`allmende ledger correct` and `corrections`: what operators put right, for a reason and for ever. Sums are the ledger's own."""

from typing import Annotated

import typer
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.ledger import kept_corrections
from allmende.cli.commands.reporting import EDGE_MS, BudgetOption, FromOption, LastOption, UntilOption, span_of
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption
from allmende.proto import subjects
from allmende.proto.corrections import Correct, Correction, CorrectionsPage, CorrectionsQuery
from allmende.proto.units import Ms, parse_duration

AccountArgument = Annotated[str, typer.Argument(help="budget/NAME, unallocated or capacity.", show_default=False)]
AmountOption = Annotated[
    str | None,
    typer.Option(metavar="GPU-TIME", help="How much: 12h is 12 GPU-hours; 7200000 is GPU-milliseconds.", show_default=False),
]
AllOption = Annotated[bool, typer.Option("--all", help="All that the first account has in the span.")]
ReasonOption = Annotated[str, typer.Option(help="Why; it is kept with your name.", show_default=False)]
IdOption = Annotated[
    str | None, typer.Option("--id", help="The id of a correction whose answer was lost: it is made once.", show_default=False)
]
BeginOption = Annotated[
    str, typer.Option("--from", metavar="TIME", help="When the span begins: 2026-12-24T08:00Z.", show_default=False)
]
EndOption = Annotated[str, typer.Option("--until", metavar="TIME", help="When it ends.", show_default=False)]


def correct(
    take_from: AccountArgument,
    charge_to: AccountArgument,
    reason: ReasonOption,
    from_: BeginOption,
    until: EndOption,
    amount: AmountOption = None,
    everything: AllOption = False,
    id_: IdOption = None,
    cluster: ClusterOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """For operators: take GPU time off one account and charge it to another. Nothing that was posted changes: it is a new entry."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            now_ms = opened.now_ms()
            request = Correct(
                correction=id_ or opened.ids.new(now_ms),
                cluster=opened.one_cluster(cluster),
                take_from=take_from,
                charge_to=charge_to,
                from_ms=instants.read("--from", from_, now_ms) or 0,
                to_ms=instants.read("--until", until, now_ms) or 0,
                amount_gpu_ms=None if everything else read_amount(amount),
                reason=reason,
            )
            made = await opened.ask(subjects.CORRECT, request, Correction)
            session.show(
                made, f"{made.amount_gpu_ms} GPU-ms are taken off {made.take_from} and charged to {made.charge_to}", as_json
            )

    if everything == (amount is not None):
        session.fail(CommandFailed(Exit.USAGE, "say --amount or --all, one of them"))
    session.run(work())


def corrections(
    budget: BudgetOption = None,
    cluster: ClusterOption = None,
    last: LastOption = "7d",
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what was put right in a span, by whom and why."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            span = span_of(last, from_, until, opened.now_ms(), EDGE_MS)
            query = CorrectionsQuery(cluster=opened.one_cluster(cluster), budget=budget, from_ms=span.from_ms, to_ms=span.to_ms)
            whole = await kept_corrections(opened, query)
            session.show(CorrectionsPage(corrections=whole), _table(query, whole), as_json)

    session.run(work())


def read_amount(text: str | None) -> Ms:
    """GPU time as people type it.

    Raises:
        CommandFailed: it is neither a duration of one GPU nor a number of GPU-milliseconds, or nothing at all.
    """
    if text is not None and text.isascii() and text.isdigit() and int(text):
        return int(text)
    try:
        return parse_duration(text or "")
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"--amount: {error}, or GPU-milliseconds") from None


def _table(query: CorrectionsQuery, whole: tuple[Correction, ...]) -> RenderableType:
    title = (
        f"{query.cluster}: {render.count(len(whole), 'correction')}, {instants.show(query.from_ms)} to {instants.show(query.to_ms)}"
    )
    rows = [
        (
            instants.show(each.at_ms),
            each.take_from,
            each.charge_to,
            render.gpu_hours(each.within_gpu_ms),
            f"{instants.show(each.from_ms)} to {instants.show(each.to_ms)}",
            f"{each.author}: {each.reason}",
        )
        for each in whole
    ]
    return render.table(title, ("MADE", "TAKEN FROM", "CHARGED TO", "GPU-H#", "OF", "BY"), rows)
