"""`allmende standings`: who had how much of a cluster."""

from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import render, session
from allmende.cli.commands.paging import pages
from allmende.cli.session import JsonOption, LabOption, Session, WatchOption
from allmende.proto import subjects
from allmende.proto.ledger import StandingsQuery, StandingsReply, UsageStanding
from allmende.proto.standing import Standing

ClusterOption = Annotated[str | None, session.name_option("Which cluster.", "CLUSTER")]


def standings(
    cluster: ClusterOption = None, lab: LabOption = None, as_json: JsonOption = False, watch: WatchOption = False
) -> None:
    """Show what every budget had, and is owed. RATIO is had by owed over the last seven days; below 1 it is owed GPU time."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            chosen = opened.one_cluster(cluster)

            async def fetch() -> tuple[Struct, RenderableType]:
                reply = await all_standings(opened, chosen)
                return reply, _standings_table(reply)

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


async def all_standings(opened: Session, cluster: str) -> StandingsReply:
    """All pieces; the figures beside the rows are those of the last piece."""
    found = await pages(opened, subjects.STANDINGS, StandingsQuery(cluster=cluster), StandingsReply)
    return replace(found[-1], standings=tuple(each for page in found for each in page.standings))


def _standings_table(reply: StandingsReply) -> RenderableType:
    gpus = render.count(reply.available_gpus, "GPU")
    title = f"{reply.cluster}: {gpus} available; the last seven days, most owed first (usage revision {reply.usage_revision})"
    columns = ("BUDGET", "RATIO#", "TIER", "CHARGED GPU-H#", "HELD GPU-H#", "OWED GPU-H#")
    ordered = sorted(reply.standings, key=lambda each: (_standing(each).ratio, each.budget))
    rows = (
        (
            each.budget,
            render.ratio(*_standing(each)),
            render.tier(_standing(each)),
            render.gpu_hours(each.charged_gpu_ms),
            render.gpu_hours(each.held_gpu_ms),
            render.gpu_hours(each.entitlement_gpu_ms),
        )
        for each in ordered
    )
    return render.table(title, columns, rows)


def _standing(each: UsageStanding) -> Standing:
    return Standing(each.charged_gpu_ms + each.held_gpu_ms, each.entitlement_gpu_ms)
