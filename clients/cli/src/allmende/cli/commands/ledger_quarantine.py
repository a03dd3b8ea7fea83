"""`allmende ledger quarantine` and `release`: what was said and is not counted, and how an operator lets it count.

Only asks: what may be released, and what that does, is the ledger's to judge.
"""

from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.session import JsonOption, LabOption, Session, WatchOption
from allmende.proto import subjects
from allmende.proto.quarantine import QuarantineItem, QuarantinePage, QuarantineQuery, Released, ReleaseItem

WhatArgument = Annotated[str, typer.Argument(metavar="WHAT", help="The thing, as the list names it.", show_default=False)]
CodeArgument = Annotated[str, typer.Argument(metavar="CODE", help="Why it waits, as the list names it.", show_default=False)]
CodeOption = Annotated[str | None, typer.Option("--code", metavar="CODE", help="Only what waits for this reason.")]
AllOption = Annotated[bool, typer.Option("--all", help="Also what was released.")]
ReasonOption = Annotated[str, typer.Option(help="Why; it is kept with your name.", show_default=False)]
IdOption = Annotated[
    str | None, typer.Option("--id", help="The id of a release whose answer was lost: it is done once.", show_default=False)
]


def quarantine(
    code: CodeOption = None,
    also_released: AllOption = False,
    cluster: ClusterOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """Show what was said and is not counted, and why. It is neither posted nor lost; the rest of its message counts."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            query = QuarantineQuery(cluster=opened.one_cluster(cluster), code=code, also_released=also_released)

            async def fetch() -> tuple[Struct, RenderableType]:
                whole = await whole_quarantine(opened, query)
                return whole, _table(query.cluster, whole.items)

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


def release(
    what: WhatArgument,
    code: CodeArgument,
    reason: ReasonOption,
    id_: IdOption = None,
    cluster: ClusterOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """For operators: let one thing count as if it were said now, by a right clock. What contradicts the books is refused."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            request = ReleaseItem(
                release=id_ or opened.ids.new(opened.now_ms()),
                cluster=opened.one_cluster(cluster),
                what=what,
                code=code,
                reason=reason,
            )
            done = await opened.ask(subjects.RELEASE, request, Released)
            counted = f"{done.counted_gpu_ms} GPU-ms more are counted" if done.counted_gpu_ms else "it was counted already"
            session.show(done, f"{done.what} ({done.code}) is released by {done.author}: {counted}", as_json)

    session.run(work())


async def whole_quarantine(opened: Session, query: QuarantineQuery) -> QuarantinePage:
    """All pages, newest first; each is of its own instant."""
    items: list[QuarantineItem] = []
    while True:
        page = await opened.ask(subjects.QUARANTINE, query, QuarantinePage)
        items += page.items
        if not page.more:
            return QuarantinePage(items=tuple(sorted(items, key=lambda each: (-each.last_at_ms, each.what, each.code))))
        query = replace(query, after_what=items[-1].what, after_code=items[-1].code)


def _table(cluster: str, items: tuple[QuarantineItem, ...]) -> RenderableType:
    columns = ("LAST", "WHAT", "CODE", "TIMES#", "GPU-H#", "WHY")
    rows = (
        (
            instants.show(each.last_at_ms),
            each.what,
            each.code,
            "-" if each.times is None else f"{each.times}",
            render.gpu_hours(each.most_excess_gpu_ms),
            each.sentence if each.released is None else f"released by {each.released.author}: {each.released.reason}",
        )
        for each in items
    )
    return render.table(f"{cluster}: {render.count(len(items), 'thing')} in quarantine, newest first", columns, rows)
