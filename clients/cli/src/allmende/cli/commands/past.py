"""The lab's past, gathered from what the services answer: jobs with attempts, the ledger's books, trees in force, today's nodes.

Only asks. Instants are fixed before the first question, so that a lab that goes on meanwhile does not blur the end.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from allmende.cli import session
from allmende.cli.commands.paging import pages
from allmende.cli.commands.tree import WholeTree, fetch_tree
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import Session
from allmende.proto import subjects
from allmende.proto.admission import HistoryPage, HistoryQuery, NodesPage, NodesQuery, NodeView, PastJob, PastMark
from allmende.proto.history import LabHistory, PastTree
from allmende.proto.ledger import BucketBooks, CapacityQuery, CapacityReply
from allmende.proto.units import DAY_MS, HOUR_MS, SECOND_MS, Ms

# The look-back of standings: a replay that begins so much earlier has the debts that there were.
WARM_UP_MS: Final = 7 * DAY_MS
# Books in steps of an hour; a younger lab's in finer ones, so that its first hour is not one number.
STEPS: Final = 500
# Revisions of the tree that are told apart; who changes it more often has no tree in force for long.
REVISIONS_MOST: Final = 1_000


async def gather(lab: Path | None, cluster: str | None, length_ms: Ms) -> LabHistory:
    """The past of one cluster, and what leads up to it.

    Raises:
        CommandFailed: no lab answers, or it is not said which of several clusters.
    """
    async with session.opened(lab) as opened:
        with _watched() as watch:
            return await collect(opened, cluster, length_ms, watch)


async def collect(opened: Session, cluster: str | None, length_ms: Ms, watch: "Watch") -> LabHistory:
    """The same of a lab that is connected to."""
    opened.check_cluster(cluster)
    to_ms = opened.now_ms()
    from_ms = max(0, to_ms - length_ms)
    begin_ms = max(0, from_ms - WARM_UP_MS)
    nodes = await _nodes(opened, cluster)
    jobs = await _jobs(opened, begin_ms, to_ms, watch)
    # Nothing is said of the time before anybody asked for anything.
    begin_ms = max(begin_ms, min((job.submitted_at_ms for job in jobs), default=from_ms))
    step_ms = max(SECOND_MS, min(HOUR_MS, (to_ms - begin_ms) // STEPS))
    watch("the ledger's books")
    books = await _books(opened, nodes[0].cluster, begin_ms, to_ms, step_ms)
    watch("the trees that were in force")
    trees = await _trees(opened, begin_ms)
    return LabHistory(
        cluster=nodes[0].cluster,
        begin_ms=begin_ms,
        from_ms=from_ms,
        to_ms=to_ms,
        trees=tuple(PastTree(revision=each.revision, from_ms=each.effective_from_ms, budgets=each.budgets) for each in trees),
        nodes=nodes,
        step_ms=step_ms,
        books=books,
        jobs=jobs,
    )


async def _nodes(opened: Session, cluster: str | None) -> tuple[NodeView, ...]:
    found = await pages(opened, subjects.NODES, NodesQuery(cluster=cluster), NodesPage)
    nodes = tuple(node for page in found for node in page.nodes)
    clusters = sorted({node.cluster for node in nodes})
    if not clusters:
        raise CommandFailed(Exit.REFUSED, "no node has reported yet: there is nothing to replay on", "no_nodes")
    if len(clusters) > 1:
        raise CommandFailed(Exit.USAGE, f"this lab has {', '.join(clusters)}; say which with --cluster")
    return nodes


async def _jobs(opened: Session, from_ms: Ms, to_ms: Ms, watch: "Watch") -> tuple[PastJob, ...]:
    """All pages; the attempts of a job that lies on several are put together again."""
    found: dict[str, PastJob] = {}
    after: PastMark | None = None
    while True:
        page = await opened.ask(subjects.HISTORY, HistoryQuery(from_ms=from_ms, to_ms=to_ms, after=after), HistoryPage)
        for job in page.jobs:
            before = found.get(job.job)
            found[job.job] = job if before is None else replace(job, attempts=(*before.attempts, *job.attempts))
        watch(f"{len(found):,} jobs")
        if page.next_after is None:
            return tuple(found.values())
        after = page.next_after


async def _books(opened: Session, cluster: str, from_ms: Ms, to_ms: Ms, step_ms: Ms) -> tuple[BucketBooks, ...]:
    found: list[BucketBooks] = []
    at_ms: Ms | None = from_ms
    while at_ms is not None and at_ms < to_ms:
        query = CapacityQuery(cluster=cluster, from_ms=at_ms, to_ms=to_ms, step_ms=step_ms)
        reply = await opened.ask(subjects.BOOKS, query, CapacityReply)
        found += reply.buckets
        at_ms = reply.next_from_ms
    return tuple(found)


async def _trees(opened: Session, begin_ms: Ms) -> list[WholeTree]:
    """The revisions that were in force since an instant, oldest first."""
    trees = [await fetch_tree(opened)]
    while trees[-1].effective_from_ms > begin_ms and trees[-1].revision > 1 and len(trees) < REVISIONS_MOST:
        trees.append(await fetch_tree(opened, trees[-1].revision - 1))
    return trees[::-1]


class Watch:
    """Says on a terminal what is being read."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task("reading the past", total=None)

    def __call__(self, what: str) -> None:
        """What was read last."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=f"reading the past: {what}")


@contextmanager
def _watched() -> Iterator[Watch]:
    if not sys.stderr.isatty():
        yield Watch()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        yield Watch(progress)
