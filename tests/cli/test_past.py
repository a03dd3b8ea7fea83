"""The past as it is gathered: every piece of every answer once, and never further back than anybody asked for anything."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from allmende.cli.commands.past import STEPS, WARM_UP_MS, Watch, collect
from allmende.cli.errors import CommandFailed, Exit
from allmende.proto import subjects
from allmende.proto.admission import HistoryPage, HistoryQuery, NodesPage, NodesQuery, PastJob, PastMark
from allmende.proto.budget import TreePage, TreeQuery
from allmende.proto.history import LabHistory
from allmende.proto.ledger import CapacityQuery, CapacityReply
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Ms
from tests.simulator.replay.builders import LENGTH, at, books, node, past_job, tree

NOW = at(LENGTH)
EVICTED = (0.0, 1.0, "evicted")


class Lab:
    """In a session's stead: a lab whose answers come in pieces of one, but the books in pieces of two."""

    def __init__(self, *jobs: PastJob, clusters: Sequence[str] = ("c1",), revisions: Sequence[float] = (0,)) -> None:
        self.jobs, self.revisions = jobs, revisions
        self.nodes = [replace(node(f"n{number}"), cluster=cluster) for cluster in clusters for number in range(3)]
        self.asked: list[Any] = []

    def now_ms(self) -> Ms:
        return NOW

    def check_cluster(self, cluster: str | None) -> None:
        assert cluster in (None, "c1", "c2")

    async def ask(self, row: object, request: Any, reply: type[Struct]) -> Struct:
        self.asked.append(request)
        answers: dict[object, Any] = {
            subjects.NODES: self._nodes, subjects.HISTORY: self._history, subjects.BOOKS: self._books, subjects.TREE: self._tree
        }  # fmt: skip
        answer = answers[row](request)
        assert isinstance(answer, reply)
        return answer

    def _nodes(self, query: NodesQuery) -> NodesPage:
        mine = [each for each in self.nodes if query.cluster in (None, each.cluster)]
        (each, *_rest), more = after(mine, [(each.cluster, each.node) for each in mine], query.after)
        return NodesPage(nodes=(each,), next_after=more)

    def _history(self, query: HistoryQuery) -> HistoryPage:
        """One attempt a piece, or one job without any; the first piece is empty, as a piece may be."""
        if query.after is None and self.jobs:
            return HistoryPage(jobs=(), next_after=PastMark(job="0" * 26))
        pieces = [replace(job, attempts=(each,)) for job in self.jobs for each in job.attempts]
        pieces += [job for job in self.jobs if not job.attempts]
        marks = [PastMark(job=each.job, attempt=each.attempts[0].attempt if each.attempts else None) for each in pieces]
        found, more = after(pieces, marks, query.after if query.after and query.after.job != "0" * 26 else None)
        return HistoryPage(jobs=tuple(found[:1]), next_after=more)

    def _books(self, query: CapacityQuery) -> CapacityReply:
        step, steps = query.step_ms / MINUTE_MS, -(-(query.to_ms - query.from_ms) // query.step_ms)
        begin = (query.from_ms - at(0)) / MINUTE_MS
        return CapacityReply(
            buckets=books([8] * min(2, steps), step, begin), next_from_ms=query.from_ms + 2 * query.step_ms if steps > 2 else None
        )

    def _tree(self, query: TreeQuery) -> TreePage:
        revision = query.revision or len(self.revisions)
        budgets = tree(vision=revision)
        found, more = after(budgets, [each.budget for each in budgets], query.after)
        since_ms = at(self.revisions[revision - 1])
        return TreePage(
            revision=revision, effective_from_ms=since_ms, author="ada", reason="", budgets=tuple(found[:1]), next_after=more
        )


def after(pieces: Sequence[Any], marks: Sequence[Any], mark: Any) -> tuple[Sequence[Any], Any]:
    """The pieces behind a mark, and the mark of the first of them where more come."""
    first = 0 if mark is None else marks.index(mark) + 1
    return pieces[first:], marks[first] if first + 1 < len(pieces) else None


async def gathered(lab: Any, length_ms: Ms = DAY_MS, cluster: str | None = None) -> LabHistory:
    return await collect(lab, cluster, length_ms, Watch())


async def test_every_piece_is_there_once() -> None:
    jobs = (past_job(1, EVICTED, EVICTED, EVICTED), past_job(2, EVICTED), past_job(3), past_job(4))
    lab = Lab(*jobs, revisions=(-2, 20, 50))
    found = await gathered(lab)
    assert found.jobs == jobs
    assert [each.node for each in found.nodes] == ["n0", "n1", "n2"]
    assert [(each.revision, each.budgets) for each in found.trees] == [(number, tree(vision=number)) for number in (1, 2, 3)]
    starts = [bucket.from_ms for bucket in found.books]
    assert starts == list(range(at(0), NOW, found.step_ms))
    assert (found.from_ms, found.begin_ms, found.to_ms) == (NOW - DAY_MS, at(0), NOW)


# Since when each revision was in force (minutes), and which are asked for: those since the first job, at minute 0.
REVISIONS: dict[str, tuple[tuple[float, ...], list[int]]] = {
    "one that was there all along": ((-5,), [1]),
    "the one before began before the past did": ((-9, -5, 5), [2, 3]),
    "at the very beginning": ((-5, 0), [2]),
    "the first came later: before it there was none": ((1, 5), [1, 2]),
}


@pytest.mark.parametrize("sentence", REVISIONS)
async def test_trees_since_the_beginning(sentence: str) -> None:
    since, revisions = REVISIONS[sentence]
    assert [each.revision for each in (await gathered(Lab(past_job(1), revisions=since))).trees] == revisions


# When the only job came (days ago), how many days are asked about; days from the beginning to the end, and minutes of a step.
SPANS: dict[str, tuple[float, int, float, float]] = {
    "a young lab begins with its first job": (1, 30, 1, 1_440 / STEPS),
    "an old one a look-back earlier than what is asked about": (90, 30, 37, 60),
    "a step is an hour at most": (60, 60, 60, 60),
    "and a second at least": (1 / 8_640, 30, 1 / 8_640, 1 / 60),
}


@pytest.mark.parametrize("sentence", SPANS)
async def test_spans(sentence: str) -> None:
    ago, days, length, step = SPANS[sentence]
    came = LENGTH - ago * 24 * 60
    lab = Lab(past_job(1, submitted=came))
    found = await gathered(lab, days * DAY_MS)
    assert (found.to_ms - found.begin_ms, found.to_ms - found.from_ms) == (round(length * DAY_MS), days * DAY_MS)
    assert found.step_ms == int(step * MINUTE_MS)
    assert SECOND_MS <= found.step_ms <= HOUR_MS
    asked = next(each for each in lab.asked if isinstance(each, HistoryQuery))
    assert (asked.from_ms, asked.to_ms) == (NOW - days * DAY_MS - WARM_UP_MS, NOW)


async def test_a_lab_with_several_clusters_is_asked_for_one() -> None:
    lab = Lab(past_job(1), clusters=("c1", "c2"))
    with pytest.raises(CommandFailed, match="c1, c2; say which with --cluster") as failed:
        await gathered(lab)
    assert failed.value.exit_code == Exit.USAGE
    found = await gathered(lab, cluster="c2")
    assert {each.cluster for each in found.nodes} == {found.cluster} == {"c2"}


async def test_a_lab_without_jobs_has_an_empty_past() -> None:
    found = await gathered(Lab())
    assert (found.jobs, found.begin_ms) == ((), found.from_ms)


async def test_only_questions_are_asked_that_change_nothing() -> None:
    lab = Lab(past_job(1), revisions=(0, 1))
    await gathered(lab)
    kinds = {type(each) for each in lab.asked}
    assert kinds == {NodesQuery, HistoryQuery, CapacityQuery, TreeQuery}
    assert not any(row.changes for row in subjects.REQUESTS if row.request in kinds)
