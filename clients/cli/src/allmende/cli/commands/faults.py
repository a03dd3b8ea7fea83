"""`allmende faults`: what the ledger was told and does not count, and why. Changes nothing."""

from msgspec import Struct
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.session import JsonOption, LabOption, Session, WatchOption
from allmende.proto import subjects
from allmende.proto.ledger import FaultsPage, FaultsQuery, FaultView


def faults(cluster: ClusterOption = None, lab: LabOption = None, as_json: JsonOption = False, watch: WatchOption = False) -> None:
    """Show what was reported and is not counted, newest first. It is neither posted nor lost; the rest of its message counts."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            chosen = opened.one_cluster(cluster)

            async def fetch() -> tuple[Struct, RenderableType]:
                views = await _all_faults(opened, chosen)
                return FaultsPage(faults=views), _faults_table(chosen, views)

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


async def _all_faults(opened: Session, cluster: str) -> tuple[FaultView, ...]:
    found: list[FaultView] = []
    query = FaultsQuery(cluster=cluster)
    while True:
        page = await opened.ask(subjects.FAULTS, query, FaultsPage)
        found += page.faults
        if not page.more:
            return tuple(sorted(found, key=lambda each: (-each.last_at_ms, each.what, each.code)))
        query = FaultsQuery(cluster=cluster, after_what=found[-1].what, after_code=found[-1].code)


def _faults_table(cluster: str, views: tuple[FaultView, ...]) -> RenderableType:
    """One line a thing and reason."""
    columns = ("LAST", "CODE", "TIMES#", "GPU-H#", "WHY")
    rows = (
        (
            instants.show(each.last_at_ms),
            each.code,
            str(each.times),
            render.gpu_hours(each.most_excess_gpu_ms),
            each.sentence,
        )
        for each in views
    )
    return render.table(f"{cluster}: {render.count(len(views), 'thing')} not counted, newest first", columns, rows)
