"""`allmende ledger gaps`: stretches in which a running replica had no counter, and what is missing. Changes nothing."""

from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.paging import pages
from allmende.cli.commands.reporting import FromOption, LastOption, UntilOption, span_of
from allmende.cli.session import JsonOption, LabOption, Session, WatchOption
from allmende.proto import subjects
from allmende.proto.gaps import GapsPage, GapsQuery

OpenOption = Annotated[bool, typer.Option("--open", help="Only those that are open now.")]


def gaps(
    open_only: OpenOption = False,
    cluster: ClusterOption = None,
    last: LastOption = "7d",
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """Show where counters were silent, whether they came back, and how much is missing. Silence is not death."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            chosen = opened.one_cluster(cluster)

            async def fetch() -> tuple[Struct, RenderableType]:
                # An open gap ends now: a span that ends then as well would not touch the youngest.
                span = span_of(last, from_, until, opened.now_ms() + 1, edge_ms=1)
                query = GapsQuery(cluster=chosen, from_ms=span.from_ms, to_ms=span.to_ms, open_only=open_only)
                whole = await whole_gaps(opened, query)
                return whole, _table(whole)

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


async def whole_gaps(opened: Session, query: GapsQuery) -> GapsPage:
    """All pages; each is of its own instant."""
    found = await pages(opened, subjects.GAPS, query, GapsPage)
    return replace(found[-1], gaps=tuple(gap for page in found for gap in page.gaps))


def _table(whole: GapsPage) -> RenderableType:
    words = {None: "open", "counter": "the counter came back", "epoch": "a new counter began", "end": "the attempt ended"}
    rows = [
        (
            f"{each.attempt}/{each.replica}",
            each.budget or "unallocated",
            instants.show(each.from_ms),
            "-" if each.to_ms is None else instants.show(each.to_ms),
            words[each.closed_by],
            render.gpu_hours(each.missing_gpu_ms),
        )
        for each in whole.gaps
    ]
    still = sum(each.to_ms is None for each in whole.gaps)
    title = f"{whole.cluster}: {render.count(len(whole.gaps), 'gap')} of more than {whole.silence_ms // 1_000} s, {still} open"
    return render.table(title, ("ATTEMPT", "BUDGET", "FROM", "UNTIL", "HOW IT CLOSED", "MISSING GPU-H#"), rows)
