"""`allmende ledger`: the statement of a budget, and who used a cluster when. Only asks; sums are the ledger's own."""

from enum import StrEnum
from typing import Annotated

import typer
from msgspec import structs
from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.paging import pages
from allmende.cli.commands.reporting import (
    EDGE_MS,
    Answer,
    CsvOption,
    FromOption,
    LastOption,
    Span,
    UntilOption,
    report,
    span_of,
)
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.corrections import Correction, CorrectionsPage, CorrectionsQuery
from allmende.proto.reports import StatementPage, StatementQuery, UsageByPage, UsageByQuery, UsagePage, UsageQuery, UsageSide
from allmende.proto.units import DAY_MS, HOUR_MS

app = typer.Typer(help="What was charged: statements of budgets, and usage by budget and time.", no_args_is_help=True)

BudgetArgument = Annotated[
    str, typer.Argument(metavar="BUDGET", help="A budget that jobs are charged to.", parser=session.read_name)
]

# The books may advance between two pages of a statement; so often it is read anew.
ATTEMPTS = 5


class By(StrEnum):
    """The steps of usage."""

    hour = "hour"
    day = "day"
    all = "all"


class Of(StrEnum):
    """Whose usage."""

    budget = "budget"
    user = "user"
    gpu_model = "gpu-model"


class Statement(StatementPage, frozen=True, kw_only=True):
    """A whole statement, with the corrections of its span by number."""

    corrections: tuple[Correction, ...] = ()


@app.command()
def statement(
    budget: BudgetArgument,
    cluster: ClusterOption = None,
    last: LastOption = "7d",
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show what a budget was charged: opening, every attempt, closing; and what is held for running attempts now."""

    async def ask(opened: Session) -> Answer:
        span = span_of(last, from_, until, opened.now_ms(), edge_ms=1)
        query = StatementQuery(cluster=opened.one_cluster(cluster), budget=budget, from_ms=span.from_ms, to_ms=span.to_ms)
        whole = await whole_statement(opened, query)
        return Answer(whole, statement_csv(whole), _statement_table(whole, span))

    report(ask, lab, as_json, as_csv)


@app.command()
def usage(
    by: Annotated[By, typer.Option(help="The steps of time.")] = By.day,
    of: Annotated[Of, typer.Option(help="Whose: of budgets, of users, or of the models of GPUs.")] = Of.budget,
    cluster: ClusterOption = None,
    last: LastOption = "7d",
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show who used how much of a cluster, by step of time: budgets, users, or models of GPUs; unallocated use stands by itself."""

    async def ask(opened: Session) -> Answer:
        edge_ms = {By.hour: HOUR_MS, By.day: DAY_MS, By.all: EDGE_MS}[by]
        span = span_of(last, from_, until, opened.now_ms(), edge_ms)
        step_ms = span.to_ms - span.from_ms if by is By.all else edge_ms
        chosen = opened.one_cluster(cluster)
        if of is Of.budget:
            query = UsageQuery(cluster=chosen, from_ms=span.from_ms, to_ms=span.to_ms, step_ms=step_ms)
            whole = await whole_usage(opened, query)
            return Answer(whole, usage_csv(whole), _usage_table(whole, span))
        side: UsageSide = "user" if of is Of.user else "gpu_model"
        asked = UsageByQuery(cluster=chosen, by=side, from_ms=span.from_ms, to_ms=span.to_ms, step_ms=step_ms)
        told = await whole_usage_by(opened, asked)
        return Answer(told, usage_by_csv(told), _usage_by_table(told, span))

    report(ask, lab, as_json, as_csv)


async def whole_statement(opened: Session, query: StatementQuery) -> Statement:
    """All pages of one state of the books.

    Raises:
        CommandFailed: the books advanced between two pages, time and again.
    """
    for _ in range(ATTEMPTS):
        found = await pages(opened, subjects.STATEMENT, query, StatementPage)
        page, lines = found[-1], [line for each in found for line in each.lines]
        corrections = await _corrections_of(opened, query) if page.corrected_gpu_ms else ()
        charged, held = sum(each.charged_gpu_ms for each in lines), sum(each.held_gpu_ms for each in lines)
        corrected = sum(_charged_by(each, query.budget) for each in corrections)
        told = (page.opening_gpu_ms + charged + corrected, held, corrected)
        if told == (page.closing_gpu_ms, page.held_gpu_ms, page.corrected_gpu_ms):
            return Statement(**structs.asdict(page) | {"lines": tuple(lines), "corrections": corrections})
    sentence = "the books advanced between the pages of the statement, again and again: let it end earlier, with --until"
    raise CommandFailed(Exit.REFUSED, sentence, "books_advanced")


async def _corrections_of(opened: Session, query: StatementQuery) -> tuple[Correction, ...]:
    asked = CorrectionsQuery(cluster=query.cluster, budget=query.budget, from_ms=query.from_ms, to_ms=query.to_ms)
    return await kept_corrections(opened, asked)


def _charged_by(each: Correction, budget: str) -> int:
    """What a correction charges to a budget within the span; below 0: what it takes off."""
    return each.within_gpu_ms if each.charge_to == f"budget/{budget}" else -each.within_gpu_ms


async def kept_corrections(opened: Session, query: CorrectionsQuery) -> tuple[Correction, ...]:
    """All pages; a correction is never changed, so they belong together."""
    found = await pages(opened, subjects.CORRECTIONS, query, CorrectionsPage)
    return tuple(each for page in found for each in page.corrections)


async def whole_usage(opened: Session, query: UsageQuery) -> UsagePage:
    """All pages; each is of its own instant."""
    found = await pages(opened, subjects.USAGE, query, UsagePage)
    return replace(found[-1], rows=tuple(row for page in found for row in page.rows))


async def whole_usage_by(opened: Session, query: UsageByQuery) -> UsageByPage:
    """All pages; each is of its own instant."""
    found = await pages(opened, subjects.USAGE_BY, query, UsageByPage)
    return replace(found[-1], rows=tuple(row for page in found for row in page.rows))


def statement_csv(whole: Statement) -> str:
    """Opening, attempts, corrections and closing as rows; what lies between the two sums to their difference."""
    columns = ("row", "attempt", "job", "gpus", "granted_at_ms", "ended_at_ms", "outcome", "charged_gpu_ms", "held_gpu_ms")
    nothing = (None,) * 6
    attempts = [
        ("attempt", x.attempt, x.job, x.gpus, x.granted_at_ms, x.ended_at_ms, x.outcome, x.charged_gpu_ms, x.held_gpu_ms)
        for x in whole.lines
    ]
    opening = ("opening", *nothing, whole.opening_gpu_ms, None)
    closing = ("closing", *nothing, whole.closing_gpu_ms, whole.held_gpu_ms)
    corrections = [
        ("correction", x.correction, None, None, x.at_ms, None, None, _charged_by(x, whole.budget), None) for x in whole.corrections
    ]
    return render.comma_separated(columns, [opening, *attempts, *corrections, closing])


def usage_csv(whole: UsagePage) -> str:
    """One row a step and budget; an empty budget is unallocated."""
    return render.comma_separated(
        ("from_ms", "budget", "gpu_ms"), [(each.from_ms, each.budget, each.gpu_ms) for each in whole.rows]
    )


def usage_by_csv(whole: UsageByPage) -> str:
    """One row a step and user or model; an empty name is not known."""
    rows = [(each.from_ms, each.name, each.allocated_gpu_ms, each.unallocated_gpu_ms) for each in whole.rows]
    return render.comma_separated(("from_ms", whole.by, "allocated_gpu_ms", "unallocated_gpu_ms"), rows)


def _statement_table(whole: Statement, span: Span) -> RenderableType:
    title = f"{whole.budget} on {whole.cluster}, {instants.show(span.from_ms)} to {instants.show(span.to_ms)}"
    attempts = [
        (
            render.short(each.job),
            f"{each.gpus}",
            instants.show(each.granted_at_ms),
            "-" if each.ended_at_ms is None else instants.show(each.ended_at_ms),
            each.outcome or "running",
            render.gpu_hours(each.charged_gpu_ms),
            render.gpu_hours(each.held_gpu_ms),
        )
        for each in whole.lines
    ]
    corrections = [
        (
            "correction",
            "",
            instants.show(x.at_ms),
            "",
            f"{x.author}: {x.reason}",
            render.gpu_hours(_charged_by(x, whole.budget)),
            "",
        )
        for x in whole.corrections
    ]
    opening = ("opening", "", "", "", "", render.gpu_hours(whole.opening_gpu_ms), "")
    closing = ("closing", "", "", "", "", render.gpu_hours(whole.closing_gpu_ms), render.gpu_hours(whole.held_gpu_ms))
    columns = ("JOB", "GPUS#", "GRANTED", "ENDED", "OUTCOME", "CHARGED GPU-H#", "HELD GPU-H#")
    return render.table(title, columns, [opening, *attempts, *corrections, closing])


def _usage_table(whole: UsagePage, span: Span) -> RenderableType:
    title = f"{whole.cluster}: charged, {instants.show(span.from_ms)} to {instants.show(span.to_ms)}"
    rows = [(instants.show(each.from_ms), each.budget or "unallocated", render.gpu_hours(each.gpu_ms)) for each in whole.rows]
    total = ("in all", "", render.gpu_hours(sum(each.gpu_ms for each in whole.rows)))
    return render.table(title, ("FROM", "BUDGET", "GPU-H#"), [*rows, total])


def _usage_by_table(whole: UsageByPage, span: Span) -> RenderableType:
    title = f"{whole.cluster}: held, {instants.show(span.from_ms)} to {instants.show(span.to_ms)}"
    rows = [
        (
            instants.show(each.from_ms),
            each.name or "not known",
            render.gpu_hours(each.allocated_gpu_ms),
            render.gpu_hours(each.unallocated_gpu_ms),
        )
        for each in whole.rows
    ]
    allocated = sum(each.allocated_gpu_ms for each in whole.rows)
    unallocated = sum(each.unallocated_gpu_ms for each in whole.rows)
    total = ("in all", "", render.gpu_hours(allocated), render.gpu_hours(unallocated))
    name = "USER" if whole.by == "user" else "GPU MODEL"
    return render.table(title, ("FROM", name, "ALLOCATED GPU-H#", "UNALLOCATED GPU-H#"), [*rows, total])
