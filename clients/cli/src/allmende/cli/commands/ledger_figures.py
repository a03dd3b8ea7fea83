"""`allmende ledger figures`: how well a cluster served its teams (contract §10). Only asks; the quotients are made here, last."""

from collections.abc import Iterator

from msgspec.structs import replace
from rich.console import Group, RenderableType

from allmende.cli import instants, render
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.paging import pages
from allmende.cli.commands.reporting import (
    Answer,
    BelowOption,
    CsvOption,
    FromOption,
    LastOption,
    UntilOption,
    hours_of,
    percent,
    report,
)
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.figures import FiguresPage, FiguresQuery, TeamFigures

COLUMNS = tuple(
    name for name in dict.fromkeys((*FiguresPage.__struct_fields__, *TeamFigures.__struct_fields__)) if name.endswith("_gpu_ms")
)


def figures(
    cluster: ClusterOption = None,
    budget: BelowOption = None,
    last: LastOption = "7d",
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show availability, occupancy, utilisation and impact: delivered / owed, of all teams and of each."""

    async def ask(opened: Session) -> Answer:
        span = hours_of(last, from_, until, opened.now_ms())
        query = FiguresQuery(cluster=opened.one_cluster(cluster), budget=budget, from_ms=span.from_ms, to_ms=span.to_ms)
        whole = await whole_figures(opened, query)
        return Answer(whole, figures_csv(whole), _drawn(whole))

    report(ask, lab, as_json, as_csv)


async def whole_figures(opened: Session, query: FiguresQuery) -> FiguresPage:
    """All teams; the sums are those of the last page."""
    found = await pages(opened, subjects.FIGURES, query, FiguresPage)
    return replace(found[-1], teams=tuple(team for page in found for team in page.teams))


def figures_csv(whole: FiguresPage) -> str:
    """The cluster's row and one a team; what a row has no amount of is empty."""
    rows = [("all", whole.budget, *_amounts(whole)), *(("team", team.budget, *_amounts(team)) for team in whole.teams)]
    return render.comma_separated(("row", "budget", *COLUMNS), rows)


def _amounts(row: FiguresPage | TeamFigures) -> Iterator[int | None]:
    return (getattr(row, name, None) for name in COLUMNS)


def _drawn(whole: FiguresPage) -> RenderableType:
    title = f"{whole.cluster}, {instants.show(whole.from_ms)} to {instants.show(whole.to_ms)}"
    teams = [
        (
            team.budget,
            render.gpu_hours(team.entitled_gpu_ms),
            render.gpu_hours(team.demand_gpu_ms),
            render.gpu_hours(team.owed_gpu_ms),
            render.gpu_hours(team.delivered_gpu_ms),
            percent(team.weekly_gpu_ms, team.owed_gpu_ms),
            percent(team.delivered_gpu_ms, team.owed_gpu_ms),
            percent(team.strict_gpu_ms, team.owed_gpu_ms),
            percent(team.busy_gpu_ms, team.watched_gpu_ms),
        )
        for team in whole.teams
    ]
    columns = ("BUDGET", "ENTITLED GPU-H#", "DEMAND#?", "OWED#", "DELIVERED#", "WEEKLY#", "PLAIN#?", "STRICT#?", "BUSY#?")
    return Group(render.table(title, ("FIGURE", "#", "~"), list(_figures(whole))), "", render.table("teams", columns, teams))


def _figures(whole: FiguresPage) -> Iterator[tuple[str, str, str]]:
    occupied = whole.allocated_gpu_ms + whole.unallocated_gpu_ms
    yield "availability", percent(whole.available_gpu_ms, whole.installed_gpu_ms), "available of installed"
    free = f"{percent(whole.unallocated_gpu_ms, occupied)} of it unallocated" if occupied else "nothing was held"
    yield "occupancy", percent(occupied, whole.available_gpu_ms), f"held of available; {free}"
    seen = f"busy of held, where it is known: {render.gpu_hours(whole.watched_gpu_ms)} GPU-h"
    yield "utilisation", percent(whole.busy_gpu_ms, whole.watched_gpu_ms), seen
    served = (
        f"{whole.teams_at_95} of {render.count(whole.teams_owed, 'team')} at 95 % or more"
        if whole.teams_owed
        else "nothing was owed"
    )
    yield "impact, weekly", percent(whole.weekly_gpu_ms, whole.owed_gpu_ms), f"delivered of owed, each team's week capped; {served}"
    yield "impact, plain", percent(whole.delivered_gpu_ms, whole.owed_gpu_ms), "delivered of owed"
    yield "impact, strict", percent(whole.strict_gpu_ms, whole.owed_gpu_ms), "delivered of owed, each hour capped"
    if whole.hours_of_unknown_capacity:
        yield "not known", f"{whole.hours_of_unknown_capacity}", f"of {whole.hours} hours without capacity, left out"
    if whole.hours_of_unknown_owed:
        yield "not known", f"{whole.hours_of_unknown_owed}", f"of {whole.hours} hours without capacity or demand, not in impact"
    if whole.jobs_not_known:
        yield "not known", f"{whole.jobs_not_known}", "jobs that never told what they ask for, in no demand"
