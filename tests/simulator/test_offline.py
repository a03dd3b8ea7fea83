"""The offline answers (`tests/experiments/offline.py`): no schedule is above the bound, and the schedule keeps its own promises."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.units import MINUTE_MS
from tests.experiments.offline import Job, Node, Record, Shape, bound, planned

HOUR = 60


def node(*free: tuple[int, int], failed: tuple[int, ...] = ()) -> Node:
    """GPUs that are free from each minute on."""
    return Node([at * MINUTE_MS for at, _gpus in free], [gpus for _at, gpus in free], frozenset(at * MINUTE_MS for at in failed))


def job(name: str, work: int, replicas: int = 1, gpus: int = 8, submitted: int = 0) -> Job:
    """`work` in minutes."""
    return Job(name, Shape(replicas, gpus), submitted * MINUTE_MS, work * MINUTE_MS, None)


class Row(NamedTuple):
    """GPU-minutes that the bound and the schedule hold in the first two hours, and evictions in the schedule."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    limit: int | None
    bound: int
    planned: int
    evictions: int = 0


# Free for 30 minutes, taken for 10, free for 20, taken for 10, free for 50.
THRICE = ((0, 8), (30, 0), (40, 8), (60, 0), (70, 8))

TABLE = {
    "a job that fits is held for its work": Row((node((0, 8)),), (job("a", 60),), 0, 8 * 60, 8 * 60),
    "without evictions it starts only where it can finish": Row((node(*THRICE),), (job("a", 40),), 0, 8 * 40, 8 * 40),
    "and one that finishes nowhere where it may stay to the end": Row((node(*THRICE),), (job("a", 75),), 0, 8 * 75, 8 * 50),
    "one eviction is one attempt more": Row((node(*THRICE),), (job("a", 60),), 1, 8 * 60, 8 * 60, 1),
    "two jobs cannot hold more than is free": Row((node((0, 8)),), (job("a", 120), job("b", 120)), None, 8 * 120, 8 * 120),
    "a failing node evicts nobody": Row((node((0, 8), (30, 0), (40, 8), failed=(30,)),), (job("a", 120),), 0, 8 * 110, 8 * 80),
    "a gang needs all its nodes at once": Row(
        (node((0, 8)), node((0, 0), (90, 8))), (job("a", 30, replicas=2),), 0, 16 * 30, 16 * 30
    ),
    "nobody starts before he is submitted": Row((node((0, 8)),), (job("a", 120, submitted=60),), 0, 8 * 60, 8 * 60),
    "the smallest who is enough makes room": Row(
        (node((0, 8), (60, 4)),), (job("a", 120, gpus=4), job("b", 60, gpus=4)), 1, 4 * 180, 4 * 180
    ),
    "moments are not worth an eviction": Row((node((0, 8), (5, 0)),), (job("a", 60),), None, 8 * 5, 0),
}


def record(nodes: tuple[Node, ...], jobs: tuple[Job, ...]) -> Record:
    """Two hours of nodes and jobs, nothing of them allocated."""
    named = {f"n{number}": each for number, each in enumerate(nodes)}
    return Record(0, 2 * HOUR * MINUTE_MS, 16 * 2 * HOUR * MINUTE_MS, 0, 0, 0, named, jobs)


def test_offline_answers() -> None:
    """Bound and schedule of small clusters, worked out by hand."""
    for sentence, row in TABLE.items():
        played = record(row.nodes, row.jobs)
        held, evictions = planned(played, row.limit)
        found = (bound(played, row.limit) // MINUTE_MS, held // MINUTE_MS, max(evictions.values()))
        assert found == (row.bound, row.planned, row.evictions), sentence


steps = st.lists(st.tuples(st.integers(0, 119), st.sampled_from([0, 4, 8])), max_size=6, unique_by=lambda step: step[0])
jobs = st.lists(
    st.tuples(st.sampled_from([5, 30, 90]), st.sampled_from([1, 2]), st.sampled_from([1, 4, 8]), st.integers(0, 119)),
    min_size=1,
    max_size=5,
)


@given(st.lists(steps, min_size=1, max_size=3), jobs, st.sampled_from([0, 1, 3, None]))
def test_no_schedule_is_above_the_bound(
    free: list[list[tuple[int, int]]], asked: list[tuple[int, int, int, int]], limit: int | None
) -> None:
    """Whatever is free when: the schedule keeps the limit, and holds no more than the bound and than with no limit at all."""
    nodes = tuple(node((-1, 8), *sorted(each)) for each in free)
    played = record(nodes, tuple(job(f"j{number}", *each) for number, each in enumerate(asked)))
    held, evictions = planned(played, limit)
    assert held <= bound(played, limit) <= bound(played, None)
    assert limit is None or max(evictions.values()) <= limit
