"""`allmende ledger waits` and `idle`: who waited how long for GPUs, and who held them without using them. Only asks."""

from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.reporting import (
    Answer,
    BelowOption,
    CsvOption,
    FromOption,
    LastOption,
    UntilOption,
    fields_csv,
    hours_of,
    percent,
    report,
)
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.figures import ClassWaits, IdlePage, IdleQuery, IdleRow, WaitsQuery, WaitsReply
from allmende.proto.impact import SIZE_TITLES
from allmende.proto.units import Ms, format_duration


def waits(
    cluster: ClusterOption = None,
    budget: BelowOption = None,
    last: LastOption = "7d",
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show how long the allocated jobs submitted in a span waited for their first start, by size class."""

    async def ask(opened: Session) -> Answer:
        span = hours_of(last, from_, until, opened.now_ms())
        query = WaitsQuery(cluster=opened.one_cluster(cluster), budget=budget, from_ms=span.from_ms, to_ms=span.to_ms)
        reply = await opened.ask(subjects.WAITS, query, WaitsReply)
        return Answer(reply, waits_csv(reply), _waits_table(reply))

    report(ask, lab, as_json, as_csv)


def idle(
    cluster: ClusterOption = None,
    budget: BelowOption = None,
    last: LastOption = "1d",
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show who held GPUs in hours in which neither they nor their memory did anything, most idle first."""

    async def ask(opened: Session) -> Answer:
        span = hours_of(last, from_, until, opened.now_ms())
        query = IdleQuery(cluster=opened.one_cluster(cluster), budget=budget, from_ms=span.from_ms, to_ms=span.to_ms)
        whole = await whole_idle(opened, query)
        return Answer(whole, idle_csv(whole), _idle_table(whole, span.from_ms))

    report(ask, lab, as_json, as_csv)


async def whole_idle(opened: Session, query: IdleQuery) -> IdlePage:
    """All pages; each is of its own instant, so an attempt that has just become idler may stand twice: its later row counts."""
    rows: dict[str, IdleRow] = {}
    while True:
        page = await opened.ask(subjects.IDLE, query, IdlePage)
        rows |= {each.attempt: each for each in page.rows}
        if not page.more:
            return replace(page, rows=tuple(sorted(rows.values(), key=lambda each: (-each.idle_gpu_ms, each.attempt))))
        query = replace(query, offset=query.offset + len(page.rows))


def waits_csv(reply: WaitsReply) -> str:
    """One row a class; empty where it has no jobs."""
    return fields_csv(ClassWaits, reply.classes)


def idle_csv(whole: IdlePage) -> str:
    """One row an attempt; an empty budget is unallocated, an empty user not known."""
    return fields_csv(IdleRow, whole.rows)


def _waits_table(reply: WaitsReply) -> RenderableType:
    title = f"{reply.cluster}: waits of jobs submitted {instants.show(reply.from_ms)} to {instants.show(reply.to_ms)}"
    if reply.jobs_not_known:
        title += f"; of {render.count(reply.jobs_not_known, 'job')} it is not known what they ask for"
    rows = [
        (
            SIZE_TITLES.get(each.name, each.name),
            f"{each.jobs}",
            f"{each.never_started}",
            _waited(each.p50_ms),
            _waited(each.p90_ms),
            _waited(each.max_ms),
        )
        for each in reply.classes
    ]
    return render.table(title, ("CLASS", "JOBS#", "WAITING#", "P50#", "P90#", "LONGEST#"), rows)


def _waited(length_ms: Ms | None) -> str:
    return "-" if length_ms is None else format_duration(length_ms)


def _idle_table(whole: IdlePage, from_ms: Ms) -> RenderableType:
    title = f"{whole.cluster}: idle while held, {instants.show(from_ms)} to {instants.show(whole.to_ms)}"
    rows = [
        (
            render.short(each.job),
            each.user or "not known",
            each.budget or "unallocated",
            f"{each.gpus}",
            "running" if each.ended_at_ms is None else instants.show(each.ended_at_ms),
            render.gpu_hours(each.watched_gpu_ms),
            percent(each.busy_gpu_ms, each.watched_gpu_ms),
            render.gpu_hours(each.idle_gpu_ms),
        )
        for each in whole.rows
    ]
    return render.table(title, ("JOB", "USER", "BUDGET", "GPUS#", "ENDED?", "HELD GPU-H#", "BUSY#", "IDLE GPU-H#"), rows)
