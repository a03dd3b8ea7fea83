"""`allmende ledger forecast`: when budgets come to 100 % of their entitlement if all goes on as it did. Never a promise."""

from typing import Annotated

import typer
from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.ledger import CsvOption, check_forms, print_answer
from allmende.cli.commands.ledger_figures import percent
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

    async def work() -> None:
        async with session.opened(lab) as opened:
            whole = await whole_pace(opened, PaceQuery(cluster=opened.one_cluster(cluster), budget=budget))
            print_answer(whole, pace_csv(whole), _table(whole), as_json, as_csv)

    check_forms(as_json, as_csv)
    session.run(work())


async def whole_pace(opened: Session, query: PaceQuery) -> PacePage:
    """All pages; each is of its own instant."""
    rows: list[PaceRow] = []
    while True:
        page = await opened.ask(subjects.PACE, query, PacePage)
        rows += page.rows
        if page.next_after is None:
            return replace(page, rows=tuple(rows))
        query = replace(query, after=page.next_after)


def pace_csv(whole: PacePage) -> str:
    """One row a budget; empty is not known."""
    columns = PaceRow.__struct_fields__
    return render.comma_separated(columns, [[getattr(each, name) for name in columns] for each in whole.rows])


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
