"""`allmende ledger forecast`: when budgets come to 100 % of their entitlement if all goes on as it did. Never a promise."""

from typing import Annotated

import typer
from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.paging import pages
from allmende.cli.commands.reporting import Answer, CsvOption, fields_csv, percent, report
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.figures import PacePage, PaceQuery, PaceRow
from allmende.proto.pace import day_and_time

OneOption = Annotated[str | None, typer.Option("--budget", metavar="BUDGET", help="Only this budget.", parser=session.read_name)]


def forecast(
    cluster: ClusterOption = None,
    budget: OneOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show when budgets come to 100 % of their entitlement at the rate of the last day."""

    async def ask(opened: Session) -> Answer:
        whole = await whole_pace(opened, PaceQuery(cluster=opened.one_cluster(cluster), budget=budget))
        return Answer(whole, pace_csv(whole), _table(whole))

    report(ask, lab, as_json, as_csv)


async def whole_pace(opened: Session, query: PaceQuery) -> PacePage:
    """All pages; each is of its own instant."""
    found = await pages(opened, subjects.PACE, query, PacePage)
    return replace(found[-1], rows=tuple(row for page in found for row in page.rows))


def pace_csv(whole: PacePage) -> str:
    """One row a budget; empty is not known."""
    return fields_csv(PaceRow, whole.rows)


def words(row: PaceRow, now_ms: int) -> str:
    """The pace for people, as the budget's notices say it."""
    if row.reaches == "at" and row.at_ms is not None:
        return f"100 % by {day_and_time(row.at_ms)}" if row.at_ms > now_ms else "at 100 % or above"
    return "not within a week" if row.reaches == "not_soon" else "not known"


def _table(whole: PacePage) -> RenderableType:
    title = f"{whole.cluster}: at this rate, as of {instants.show(whole.as_of_ms)}"
    rows = [
        (
            each.budget,
            render.gpu_hours(each.used_gpu_ms),
            render.gpu_hours(each.entitlement_gpu_ms),
            percent(each.used_gpu_ms, each.entitlement_gpu_ms),
            words(each, whole.as_of_ms),
        )
        for each in whole.rows
    ]
    return render.table(title, ("BUDGET", "USED GPU-H#", "ENTITLED#", "NOW#", "AT THIS RATE"), rows)
