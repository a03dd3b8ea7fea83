"""`allmende ledger demand`: who wanted how much of a cluster, hour by hour, and got how much. Only asks."""

from typing import Annotated

import typer
from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.ledger import (
    CsvOption,
    FromOption,
    LastOption,
    Span,
    UntilOption,
    check_forms,
    print_answer,
    read_length,
)
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.figures import DemandMark, DemandPage, DemandQuery, DemandRow
from allmende.proto.units import HOUR_MS, GpuMs, Ms

BelowOption = Annotated[
    str | None, typer.Option("--budget", metavar="BUDGET", help="Only this budget and those below it.", parser=session.read_name)
]


def demand(
    cluster: ClusterOption = None,
    budget: BelowOption = None,
    last: LastOption = "1d",
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show by hour what each budget wanted, was owed and got, and how much of its demand stayed unmet."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            span = hours_of(last, from_, until, opened.now_ms())
            query = DemandQuery(cluster=opened.one_cluster(cluster), budget=budget, from_ms=span.from_ms, to_ms=span.to_ms)
            whole = await whole_demand(opened, query)
            print_answer(whole, demand_csv(whole), _table(whole, span), as_json, as_csv)

    check_forms(as_json, as_csv)
    session.run(work())


def hours_of(last: str, from_: str | None, until: str | None, now_ms: Ms) -> Span:
    """The span of the options. What follows from now is widened to full hours; what was typed stays as it is."""
    to_ms = instants.read("--until", until, now_ms)
    if to_ms is None:
        to_ms = -(-now_ms // HOUR_MS) * HOUR_MS
    begin_ms = instants.read("--from", from_, now_ms)
    if begin_ms is None:
        begin_ms = max(0, to_ms - read_length(last)) // HOUR_MS * HOUR_MS
    return Span(begin_ms, to_ms)


async def whole_demand(opened: Session, query: DemandQuery) -> DemandPage:
    """All pages; each is of its own instant."""
    rows: list[DemandRow] = []
    after: DemandMark | None = None
    while True:
        page = await opened.ask(subjects.DEMAND, replace(query, after=after), DemandPage)
        rows += page.rows
        after = page.next_after
        if after is None:
            return replace(page, rows=tuple(rows))


def demand_csv(whole: DemandPage) -> str:
    """One row an hour and budget; empty is not known."""
    columns = DemandRow.__struct_fields__
    return render.comma_separated(columns, [[getattr(each, name) for name in columns] for each in whole.rows])


def _table(whole: DemandPage, span: Span) -> RenderableType:
    title = f"{whole.cluster}: demand, {instants.show(span.from_ms)} to {instants.show(whole.to_ms)}"
    if whole.jobs_not_known:
        title += f"; of {render.count(whole.jobs_not_known, 'job')} it is not known"
    rows = [
        (
            instants.show(each.from_ms),
            each.budget,
            known_hours(each.entitled_gpu_ms),
            known_hours(each.demand_gpu_ms),
            known_hours(each.owed_gpu_ms),
            known_hours(each.delivered_gpu_ms),
            known_hours(each.unmet_gpu_ms),
        )
        for each in whole.rows
    ]
    columns = ("HOUR", "BUDGET", "ENTITLED GPU-H#", "DEMAND#", "OWED#", "DELIVERED#", "UNMET#")
    return render.table(title, columns, rows)


def known_hours(amount: GpuMs | None) -> str:
    """GPU-hours, or that they are not known."""
    return "not known" if amount is None else render.gpu_hours(amount)
