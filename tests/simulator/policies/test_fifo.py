"""FIFO with backfill starts jobs when a person with pencil and paper would, and never keeps the first one waiting for another."""

from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.proto.units import MINUTE_MS
from allmende.simulator.model import Cluster, Job, NodeSpec
from allmende.simulator.policies.fifo import Fifo, Settings
from allmende.simulator.ports import Close, Grant, Promised, Refuse
from tests.simulator.policies.builders import at, cluster, job, nodes, played, starts, tree

TWO = nodes(2)
THREE = nodes(3)


def fifo(where: Cluster, **knobs: Any) -> Fifo:
    return Fifo(Settings(**knobs), where)


class Case(NamedTuple):
    sentence: str
    nodes: tuple[NodeSpec, ...]
    jobs: list[Job]
    expected: dict[str, float]


CASES = [
    Case(
        "who comes first starts first, whatever slice, priority or budget it has",
        TWO,
        [
            job("a", 0, "2x8", 10),
            job("b", 1, "2x8", 10, priority=-1),
            job("c", 2, "2x8", 10, priority=9, slice_ms=MINUTE_MS, budget="vision"),
        ],
        {"a": 0, "b": 10, "c": 20},
    ),
    Case(
        "at one instant the order of the list decides",
        TWO,
        [job("b", 0, "2x8", 10), job("a", 0, "2x8", 10)],
        {"b": 0, "a": 10},
    ),
    Case(
        "a shorter one starts before the first in the queue, where it ends before that one's turn",
        TWO,
        [job("a", 0, "1x8", 10), job("head", 1, "2x8", 10), job("short", 2, "1x8", 5)],
        {"a": 0, "head": 10, "short": 2},
    ),
    Case(
        "where it ends exactly then, too",
        TWO,
        [job("a", 0, "1x8", 10), job("head", 1, "2x8", 10), job("short", 2, "1x8", 8)],
        {"a": 0, "head": 10, "short": 2},
    ),
    Case(
        "a millisecond longer, and it waits",
        TWO,
        [job("a", 0, "1x8", 10), job("head", 1, "2x8", 10), job("long", 2, "1x8", 8 + 1 / 60_000)],
        {"a": 0, "head": 10, "long": 20},
    ),
    Case(
        "the first of those that are short enough starts, not the shortest",
        TWO,
        [job("a", 0, "1x8", 10), job("head", 1, "2x8", 10), job("b", 2, "1x8", 50), job("c", 2, "1x8", 7), job("d", 2, "1x8", 1)],
        {"a": 0, "head": 10, "b": 20, "c": 2, "d": 9},
    ),
    Case(
        "a long one starts on a node that the first in the queue will not need",
        THREE,
        [job("a", 0, "2x8", 10), job("head", 1, "2x8", 10), job("long", 2, "1x8", 100), job("longer", 3, "1x8", 200)],
        {"a": 0, "head": 10, "long": 2, "longer": 20},
    ),
    Case(
        "what comes free at the same instant is no longer needed",
        nodes(4),
        [job("a", 0, "2x8", 10), job("b", 0, "1x8", 10), job("head", 1, "2x8", 10), job("long", 2, "1x8", 100)],
        {"a": 0, "b": 0, "head": 10, "long": 2},
    ),
    Case(
        "a short one leaves the nodes that are not needed to a long one",
        nodes(3, 1),
        [job("a", 0, "1x1", 10), job("head", 1, "2x1", 10), job("short", 2, "1x1", 3), job("long", 2, "1x1", 100)],
        {"a": 0, "head": 1, "short": 10, "long": 11},
    ),
    Case(
        "a gang needs whole pieces of nodes: 8 free GPUs on two nodes do not take a replica of 8",
        TWO,
        [job("a", 0, "1x5", 10), job("b", 0, "1x4", 20), job("head", 1, "1x8", 5), job("next", 2, "1x1", 60)],
        {"a": 0, "b": 0, "head": 10, "next": 2},
    ),
    Case(
        "who reaches the maximum runtime is told to stop and has its notice of 2 minutes",
        TWO,
        [job("a", 0, "2x8", 100, max_runtime_ms=10 * MINUTE_MS), job("b", 1, "2x8", 5)],
        {"a": 0, "b": 12},
    ),
    Case(
        "who is done just then is done",
        TWO,
        [job("a", 0, "2x8", 10, max_runtime_ms=10 * MINUTE_MS), job("b", 1, "2x8", 5)],
        {"a": 0, "b": 10},
    ),
    Case(
        "a job for one model keeps nobody from another",
        nodes(1, 8, "H100") + nodes(1, 8, "A100", first=1),
        [
            job("a", 0, "1x8", 10, gpu_model="H100"),
            job("head", 1, "1x8", 10, gpu_model="H100"),
            job("b", 2, "1x8", 100, gpu_model="A100"),
            job("c", 3, "1x8", 10, gpu_model="H100"),
        ],
        {"a": 0, "head": 10, "b": 2, "c": 20},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_starts(case: Case) -> None:
    where = cluster(*case.nodes)
    history = played(fifo(where), where, case.jobs)
    assert starts(history) == {name: [minute] for name, minute in case.expected.items()}


def test_only_so_many_jobs_from_the_head_are_looked_at() -> None:
    where = cluster(*TWO)
    jobs = [
        job("a", 0, "1x8", 10),
        job("head", 1, "2x8", 10),
        *(job(f"w{each}", 2, "2x8", 10) for each in range(3)),
        job("short", 3, "1x8", 5),
    ]
    assert starts(played(fifo(where), where, jobs))["short"] == [3]
    assert starts(played(fifo(where, backfill_depth=4), where, jobs))["short"] == [50]
    assert starts(played(fifo(where, backfill_depth=5), where, jobs))["short"] == [3]


def test_ends_are_named() -> None:
    where = cluster(*TWO)
    jobs = [
        job("done", 0, "1x8", 5),
        job("broken", 0, "1x8", 5, fails=True),
        job("stopped", 10, "1x8", 50, max_runtime_ms=MINUTE_MS, resumable=False),
        job("too-wide", 10, "3x8", 5),
        job("too-large", 10, "1x9", 5),
        job("elsewhere", 10, "1x1", 5, gpu_model="H100"),
    ]
    lives = played(fifo(where), where, jobs).lives
    assert {name: (life.end, life.refused) for name, life in lives.items()} == {
        "done": ("finished", None),
        "broken": ("failed", None),
        "stopped": ("max_runtime", None),
        "too-wide": ("refused", "never_fits"),
        "too-large": ("refused", "never_fits"),
        "elsewhere": ("refused", "never_fits"),
    }


@pytest.mark.parametrize(
    ("sentence", "budget", "slice_min", "leaf", "protected_min"),
    [
        ("a slice on a leaf with a share is allocated", "vision", 30, "vision", 30),
        ("slice 0 is unallocated", "vision", 0, None, 0),
        ("without a budget nothing is allocated", None, 30, None, 0),
        ("an unset leaf covers no slice", "unset", 30, None, 0),
        ("a share of zero is a share", "zero", 30, "zero", 30),
        ("an inner budget is charged nothing", "org", 30, None, 0),
        ("nor is one that nobody knows", "nobody", 30, None, 0),
    ],
)
def test_charged_as_allmende_would(sentence: str, budget: str | None, slice_min: int, leaf: str | None, protected_min: int) -> None:
    where = cluster(*TWO)
    one = job("j", 3, "1x8", 60, budget=budget, slice_ms=slice_min * MINUTE_MS)
    (run,) = played(fifo(where), where, [one], tree({"vision": 50, "zero": 0, "unset": None})).runs
    assert (run.leaf, run.protected_until_ms) == (leaf, at(3 + protected_min)), sentence


def test_a_tree_that_changes_counts_for_who_starts_later() -> None:
    where = cluster(*nodes(1))
    jobs = [job(f"j{each}", 0, "1x8", 10, budget="vision", slice_ms=MINUTE_MS) for each in range(2)]
    runs = played(fifo(where), where, jobs, tree({"vision": 50}), tree({"vision": None}, at_minute=5)).runs
    assert [run.leaf for run in runs] == ["vision", None]


def told(where: Cluster, policy: Fifo, **healthy: int) -> None:
    """All nodes report, those named here with so many healthy GPUs."""
    for spec in where.nodes:
        policy.node(spec.node, spec.gpus, healthy.get(spec.node, spec.gpus), spec.gpu_model, at(0))


def test_a_job_that_loses_its_node_keeps_its_place_and_its_saved_work() -> None:
    where = cluster(*TWO)
    policy = fifo(where)
    policy.tree(tree({}))
    told(where, policy)
    for each in (job("a", 0, "2x8", 60), job("b", 1, "2x8", 10), job("c", 1, "1x8", 40), job("d", 1, "1x8", 41)):
        policy.submitted(each, at(0))
    (grant,) = [each for each in policy.decide(at(0)) if isinstance(each, Grant)]
    policy.started(grant.attempt, at(0))
    policy.node("n01", 8, 0, None, at(30))
    policy.ended(grant.attempt, "node_lost", at(30), at(20))
    # a and b need both nodes and stand aside; c and d may use the one that is left, in turn.
    assert [each.job for each in policy.decide(at(30)) if isinstance(each, Grant)] == ["c"]
    policy.node("n01", 8, 8, None, at(31))
    # 40 minutes of a are still to do. It is first again, at 30 + 40, and d would end after that.
    assert list(policy.decide(at(31))) == [Promised("a", at(70), False)]
    assert policy.waiting() == (3, 40)


def grants(policy: Fifo, minute: float) -> dict[str, str]:
    """The attempts that are granted at an instant, by job; all start at once. Nothing else is said."""
    actions = list(policy.decide(at(minute)))
    found = {action.job: action.attempt for action in actions if isinstance(action, Grant)}
    assert len(found) == len(actions)
    for attempt in found.values():
        policy.started(attempt, at(minute))
    return found


def promised(policy: Fifo, *waiting: Job) -> tuple[str, Promised]:
    """Attempt of the first job, which starts at once on two nodes, and the word that is given to one of the others."""
    policy.tree(tree({}))
    for each in waiting:
        policy.submitted(each, at(0))
    grant, word = policy.decide(at(0))
    assert isinstance(grant, Grant)
    assert isinstance(word, Promised)
    policy.started(grant.attempt, at(0))
    return grant.attempt, word


def test_a_word_that_a_failure_breaks_is_given_anew() -> None:
    where = cluster(*nodes(3))
    policy = fifo(where)
    told(where, policy)
    lost, word = promised(
        policy, job("a", 0, "2x5", 20), job("head", 0, "3x8", 10), job("tiny", 0, "1x1", 30), job("b", 0, "3x2", 40)
    )
    assert word == Promised("head", at(20), False)
    policy.node("n00", 8, 0, None, at(5))
    policy.ended(lost, "node_lost", at(5), None)
    assert grants(policy, 5).keys() == {"a", "tiny"}
    policy.node("n00", 8, 8, None, at(6))
    assert list(policy.decide(at(6))) == [Promised("head", at(35), True)]


def test_where_nobody_gave_it_anew_the_start_says_that_a_failure_broke_it() -> None:
    where = cluster(*TWO)
    policy = fifo(where)
    told(where, policy)
    lost, word = promised(policy, job("a", 0, "2x5", 20), job("head", 0, "2x8", 10), job("tiny", 0, "1x1", 30))
    assert word == Promised("head", at(20), False)
    policy.node("n00", 8, 0, None, at(5))
    policy.ended(lost, "node_lost", at(5), None)
    tiny = grants(policy, 5)["tiny"]
    policy.node("n00", 8, 8, None, at(6))
    again = grants(policy, 6)["a"]
    policy.ended(again, "finished", at(26), None)
    assert list(policy.decide(at(26))) == []
    policy.ended(tiny, "finished", at(35), None)
    said, grant = policy.decide(at(35))
    assert said == Promised("head", at(35), True)
    assert isinstance(grant, Grant)


def test_an_earlier_end_brings_the_start_forward() -> None:
    where = cluster(*THREE)
    jobs = [job("a", 0, "2x8", 60, max_runtime_ms=10 * MINUTE_MS), job("head", 1, "3x8", 10), job("long", 1, "1x8", 60)]
    quick = where._replace(leaving=where.leaving._replace(ignore_ppm=0, median_ms=1_000, p95_ms=1_001))
    history = played(fifo(quick), quick, jobs)
    assert history.promises[0][1:] == ("head", at(12), False)
    started_ms = history.lives["head"].first_started_at_ms
    assert started_ms is not None
    assert at(10) < started_ms < at(10.1)


def test_refusals_and_closings_are_said_once() -> None:
    where = cluster(*TWO)
    policy = fifo(where)
    told(where, policy)
    policy.tree(tree({}))
    policy.submitted(job("large", 0, "9x8", 1), at(0))
    (refusal,) = policy.decide(at(0))
    assert isinstance(refusal, Refuse)
    assert refusal.sentence == "9 x 8 GPUs never fit, even when the cluster is empty"
    policy.submitted(job("j", 0, "1x8", 60, max_runtime_ms=MINUTE_MS), at(1))
    (grant,) = policy.decide(at(1))
    assert isinstance(grant, Grant)
    policy.started(grant.attempt, at(1))
    assert policy.due_ms() == at(2)
    assert len(policy.decide(at(2))) == 1
    assert policy.due_ms() is None
    policy.ended(grant.attempt, "stopped", at(3), None)
    assert list(policy.decide(at(3))) == [Close("j", "max_runtime")]
    assert list(policy.decide(at(3))) == []
    assert policy.standings(at(3)).standings == {}


# ----------------------------------------------------------------------------------------------------------------------- properties


class Wish(NamedTuple):
    """A job for nodes of one GPU, in minutes."""

    submitted: int
    width: int
    length: int


@st.composite
def wishes(draw: st.DrawFn) -> tuple[int, list[Wish]]:
    """Few nodes and lengths near one another, so that ends fall on the edges of reservations."""
    width = draw(st.integers(1, 6))
    one = st.builds(Wish, st.integers(0, 12), st.integers(1, width), st.integers(1, 8))
    return width, sorted(draw(st.lists(one, min_size=1, max_size=14)), key=lambda wish: wish.submitted)


def textbook(width: int, asked: list[Wish]) -> list[int]:
    """EASY backfill as it is published, with a count of free nodes and nothing else: the minute at which each starts."""
    started: dict[int, int] = {}
    queue: list[int] = []
    running: list[tuple[int, int]] = []
    minute = 0
    while len(started) < len(asked):
        running = [(end, size) for end, size in running if end > minute]
        queue += [number for number, wish in enumerate(asked) if wish.submitted == minute]
        free = width - sum(size for _end, size in running)
        shadow, extra = 10**9, 0
        for place, number in enumerate(list(queue)):
            _submitted, size, length = asked[number]
            if shadow == 10**9 and size > free:
                available = free
                for end, freed in sorted(running):
                    if available >= size and end > shadow:
                        break
                    shadow, available = end, available + freed
                extra = available - size
            elif size <= free and (place == 0 or minute + length <= shadow or size <= extra):
                extra -= size if minute + length > shadow else 0
                free -= size
                started[number] = minute
                running.append((minute + length, size))
        queue = [number for number in queue if number not in started]
        minute += 1
    return [started[number] for number in range(len(asked))]


@given(wishes())
@settings(max_examples=300, deadline=None)
def test_on_nodes_of_one_gpu_it_is_easy_backfill_as_published(given_wishes: tuple[int, list[Wish]]) -> None:
    width, asked = given_wishes
    where = cluster(*nodes(width, 1))
    jobs = [job(f"j{number:02d}", wish.submitted, f"{wish.width}x1", wish.length) for number, wish in enumerate(asked)]
    history = played(fifo(where), where, jobs, until=1_000)
    assert [minute for (minute,) in starts(history).values()] == textbook(width, asked)


@st.composite
def labs(draw: st.DrawFn) -> tuple[Cluster, list[Job]]:
    """A few nodes of several sizes and models, and jobs of which most fit."""
    sizes = draw(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=4))
    models = draw(st.lists(st.sampled_from(["A", "B"]), min_size=4, max_size=4))
    specs = [NodeSpec(f"n{number}", size, models[number]) for number, size in enumerate(sizes)]
    jobs = [
        job(
            f"j{number:02d}",
            submitted,
            shape,
            length,
            gpu_model=model,
            max_runtime_ms=None if most is None else most * MINUTE_MS,
        )
        for number, (submitted, shape, length, model, most) in enumerate(
            draw(
                st.lists(
                    st.tuples(
                        st.integers(0, 10),
                        st.sampled_from(["1x1", "1x2", "3x1", "1x4", "2x2", "2x4", "1x8", "2x8", "4x2"]),
                        st.integers(1, 9),
                        st.sampled_from([None, None, None, "A", "B"]),
                        st.sampled_from([None, None, None, 3]),
                    ),
                    max_size=20,
                )
            )
        )
    ]
    leaving = draw(st.sampled_from([cluster(*specs).leaving, cluster(*specs).leaving._replace(ignore_ppm=0)]))
    return cluster(*specs, leaving=leaving)._replace(start_ms=draw(st.sampled_from([0, 1_000]))), jobs


@given(labs())
@settings(max_examples=200, deadline=None)
def test_backfill_never_delays_whom_a_start_was_promised(lab: tuple[Cluster, list[Job]]) -> None:
    where, jobs = lab
    history = played(fifo(where), where, jobs, until=2_000)
    assert all(life.end is not None for life in history.lives.values()), "everybody gets a turn"
    assert not any(run.end == "evicted" for run in history.runs)
    for name in history.lives:
        said = [promise.by_ms for promise in history.promises if promise.job == name]
        assert all(earlier > later for earlier, later in pairwise(said)), "a promise only ever comes forward"
        granted = [run.granted_at_ms for run in history.runs if run.job == name]
        assert not said or granted[0] <= min(said)
    assert not any(promise.moved_by_failure for promise in history.promises)
