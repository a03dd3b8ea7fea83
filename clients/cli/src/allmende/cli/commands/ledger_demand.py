"""`allmende ledger demand`: who wanted how much of a cluster, hour by hour, and got how much. Only asks."""

from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.paging import pages
from allmende.cli.commands.reporting import (
    Answer,
    BelowOption,
    CsvOption,
    FromOption,
    LastOption,
    Span,
    UntilOption,
    fields_csv,
    hours_of,
    report,
)
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.figures import DemandPage, DemandQuery, DemandRow
from allmende.proto.units import GpuMs


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

    async def ask(opened: Session) -> Answer:
        span = hours_of(last, from_, until, opened.now_ms())
        query = DemandQuery(cluster=opened.one_cluster(cluster), budget=budget, from_ms=span.from_ms, to_ms=span.to_ms)
        whole = await whole_demand(opened, query)
        return Answer(whole, demand_csv(whole), _table(whole, span))

    report(ask, lab, as_json, as_csv)


async def whole_demand(opened: Session, query: DemandQuery) -> DemandPage:
    """All pages; each is of its own instant."""
    found = await pages(opened, subjects.DEMAND, query, DemandPage)
    return replace(found[-1], rows=tuple(row for page in found for row in page.rows))


def demand_csv(whole: DemandPage) -> str:
    """One row an hour and budget; empty is not known."""
    return fields_csv(DemandRow, whole.rows)


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
