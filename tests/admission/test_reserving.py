"""Which nodes are gathered for whom, and by when: contract §5 and decision 0015, one sentence a row."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change
from allmende.admission.model.values import Attempt, Job, Node, Reserved, Saves, Terms
from allmende.admission.rules import life
from allmende.admission.rules.passing import Passed
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.admission.builders import (
    CLUSTER,
    NOW,
    OWED,
    TERMS,
    an_id,
    attempt,
    claim,
    counting,
    granted_jobs,
    job,
    lab,
    node,
    run_pass,
)

# On four nodes of 8 GPUs a gang is what needs 16 and more.
GATHER = replace(TERMS, reservations_max=4, reserved_ppm=1_000_000, gang_ppm=500_000, notice_ms=150 * SECOND_MS)
LONG = 2 * HOUR_MS
ALLOWANCE = TERMS.start_timeout_ms


class Held(NamedTuple):
    """An attempt, and when it saved last and at which pace."""

    job: Job
    attempt: Attempt
    saves: Saves | None = None


def held(number: int, where: str, left: float, gpus: int = 8, saves: Saves | None = None, **fields: object) -> Held:
    """GPUs of a node, held for `b` by a slice of two hours that ends in `left` minutes (negative: has ended)."""
    holder = job(100 + number, budget="b", user="u2", gpus_per_replica=gpus, slice_ms=LONG, state="running")
    ends_ms = NOW + round(left * MINUTE_MS)
    started = {"granted_at_ms": ends_ms - LONG, "started_at_ms": ends_ms - LONG, "protected_until_ms": ends_ms}
    running = attempt(number, holder, {where: 1}, **(started | fields))
    return Held(replace(holder, attempt=running.attempt), running, saves)


def unallocated(number: int, where: str) -> Held:
    """A whole node, held by nobody's budget."""
    holder = job(100 + number, budget=None, user="u2", gpus_per_replica=8, slice_ms=0, state="running")
    running = attempt(number, holder, {where: 1})
    return Held(replace(holder, attempt=running.attempt), running)


def gang(number: int, budget: str = "a", shape: str = "2x8", **fields: object) -> Job:
    """A waiting gang."""
    replicas, gpus = (int(part) for part in shape.split("x"))
    return job(number, budget=budget, replicas=replicas, gpus_per_replica=gpus, **fields)


NODES = tuple(node(number) for number in range(1, 5))
# All four nodes are held: n001 for 10 more minutes, n002 for 20 ...
FULL = tuple(held(number, f"n00{number}", 10 * number) for number in range(1, 5))


class Row(NamedTuple):
    """`expected`: for which jobs how many replicas are gathered where, and in how many minutes whoever is left is told to leave."""

    jobs: list[Job]
    expected: dict[int, tuple[dict[str, int], float]]
    standings: Mapping[str, int] = MappingProxyType({})
    holders: tuple[Held, ...] = FULL
    terms: Terms = GATHER
    nodes: tuple[Node, ...] = NODES


def with_lab(row: Row) -> Books:
    books = lab(
        [*(each.job for each in row.holders), *row.jobs],
        row.nodes,
        dict(row.standings),
        attempts=[each.attempt for each in row.holders],
    )
    for each in row.holders:
        if each.saves is not None:
            books.saves[each.attempt.attempt] = each.saves
    return books


def reserved_in(change: Change) -> dict[str, Reserved | None]:
    """The last word of a change about each job that still waits."""
    return {each.job: each.reserved for each in change.jobs if each.state == "queued"}


def check(row: Row) -> None:
    passed = run_pass(with_lab(row), terms=row.terms)
    found = {name: word for name, word in reserved_in(passed.change).items() if word is not None}
    assert set(found) == {an_id(number) for number in row.expected}
    for number, (where, minutes) in row.expected.items():
        word = found[an_id(number)]
        assert dict(word.placement) == where
        assert (word.order_ms - NOW) / MINUTE_MS == minutes
        assert word.by_ms == word.order_ms + row.terms.notice_ms, "the promise: when all are told, and the longest notice"
        assert word.made_at_ms == NOW


FIRST_TWO = ({"n001": 1, "n002": 1}, 20.0)
LAST_TWO = ({"n003": 1, "n004": 1}, 40.0)
WAITED = {"gang_wait_ms": HOUR_MS, "gang_ratio_ppm": 1_250_000}
# Builders let a job be submitted an hour before now, and its number of milliseconds later.
PATIENT = replace(GATHER, **{**WAITED, "gang_wait_ms": HOUR_MS - 1})

WHO: dict[str, Row] = {
    "a gang of a leaf that is owed time gets nodes by name": Row([gang(1)], {1: FIRST_TWO}),
    "where no reservations are allowed it gets none": Row([gang(1)], {}, terms=replace(GATHER, reservations_max=0)),
    "a job that is smaller than a gang gets none": Row([gang(1, shape="3x5")], {}),
    "a gang of a leaf just below 1 gets nodes": Row([gang(1)], {1: FIRST_TWO}, {"a": 99}),
    "a gang of a leaf at 1 gets none": Row([gang(1)], {}, {"a": 100}),
    "after its wait it does, over budget": Row([gang(1)], {1: FIRST_TWO}, {"a": 124}, terms=PATIENT),
    "a millisecond before the wait is over it does not": Row([gang(2)], {}, {"a": 124}, terms=PATIENT),
    "however long it waited not where its leaf stands too far above 1": Row([gang(1)], {}, {"a": 125}, terms=PATIENT),
    "a ratio of at most 1: never over budget": Row([gang(1)], {}, {"a": 100}, terms=replace(PATIENT, gang_ratio_ppm=1_000_000)),
    "a leaf that is owed time need not wait": Row([gang(2)], {2: FIRST_TWO}, {"a": 99}, terms=replace(PATIENT, gang_wait_ms=LONG)),
    "one a leaf: the one that has waited longest": Row([gang(1), gang(2)], {1: FIRST_TWO}),
    "one a leaf: the highest priority before the longest wait": Row([gang(1), gang(2, priority=1)], {2: FIRST_TWO}),
    "one a leaf: of different shapes, too, the one that has waited longest": Row([gang(1), gang(2, shape="4x4")], {1: FIRST_TWO}),
    "two leaves get different nodes, who has waited longest the first": Row(
        [gang(1, "c"), gang(2, "a")], {1: FIRST_TWO, 2: LAST_TWO}, {"c": 90, "a": 10}
    ),
    "where one more is allowed it is for the longest wait, not for the lowest ratio": Row(
        [gang(1, "c"), gang(2, "a")], {1: FIRST_TWO}, {"c": 90, "a": 10}, terms=replace(GATHER, reservations_max=1)
    ),
    "whoever does not get enough nodes blocks those behind it, smaller ones, too": Row(
        [
            gang(1, "c", "3x8", submitted_at_ms=NOW - 3),
            gang(2, "a", submitted_at_ms=NOW - 2),
            gang(3, "b", "1x8", submitted_at_ms=NOW - 1),
        ],
        {1: ({"n001": 1, "n002": 1, "n003": 1}, 30.0)},
        terms=replace(GATHER, gang_ppm=250_000),
    ),
    "beside others only a part of the nodes is gathered": Row(
        [gang(1, "c"), gang(2, "a")], {1: FIRST_TWO}, terms=replace(GATHER, reserved_ppm=750_000)
    ),
    "the first may be as large as it is": Row(
        [gang(1, shape="4x8")],
        {1: ({"n001": 1, "n002": 1, "n003": 1, "n004": 1}, 40.0)},
        terms=replace(GATHER, reserved_ppm=250_000),
    ),
    "a job that rests gets none, the next of its leaf does": Row([gang(1, not_before_ms=NOW + 1), gang(2)], {2: FIRST_TWO}),
    "a job whose rest is over does": Row([gang(1, not_before_ms=NOW), gang(2)], {1: FIRST_TWO}),
    "a job that was idle before gets none": Row([gang(1, idled=True)], {}),
    "a job for another cluster gets none here": Row([gang(1, clusters=("c2",))], {}),
    "unallocated work gets none": Row([job(1, budget=None, slice_ms=0, replicas=2, gpus_per_replica=8)], {}),
    "a gang that could not even fit into all of the nodes gets none": Row([gang(1, shape="5x8")], {}),
    "what fits at once is granted, not gathered": Row([gang(1)], {}, holders=FULL[:2]),
}

WHERE: dict[str, Row] = {
    "of free nodes and others those that have room first": Row([gang(1)], {1: ({"n001": 1, "n004": 1}, 10.0)}, holders=FULL[:3]),
    "nodes that the job avoids are not gathered for it": Row(
        [gang(1, avoid=("n001",), avoid_until_ms=NOW + HOUR_MS)], {1: ({"n002": 1, "n003": 1}, 30.0)}
    ),
    "nor are nodes of another model": Row(
        [gang(1, gpu_model="h100")],
        {1: LAST_TWO},
        nodes=(*(replace(each, gpu_model="a100") for each in NODES[:2]), *(replace(each, gpu_model="h100") for each in NODES[2:])),
    ),
    "nor nodes that were granted a moment ago": Row(
        [gang(1), job(2, budget="c", gpus_per_replica=8, slice_ms=LONG)],
        {1: ({"n002": 1, "n003": 1}, 30.0)},
        {"a": 50},
        holders=FULL[1:],
    ),
    "nor silent nodes": Row(
        [gang(1)], {1: LAST_TWO}, nodes=(*(replace(each, last_seen_ms=NOW - HOUR_MS) for each in NODES[:2]), *NODES[2:])
    ),
    "nor nodes that are down": Row([gang(1)], {1: LAST_TWO}, nodes=(*(replace(each, healthy=0) for each in NODES[:2]), *NODES[2:])),
    "nor nodes that are kept for quick work": Row(
        [gang(1, shape="4x8")], {}, terms=replace(GATHER, quick_ppm=250_000, quick_slice_ms=MINUTE_MS)
    ),
    "several replicas share a node": Row([gang(1, shape="4x4")], {1: ({"n001": 2, "n002": 2}, 20.0)}),
    "a node with fewer healthy GPUs takes fewer": Row(
        [gang(1, shape="4x4")],
        {1: ({"n001": 1, "n002": 2, "n003": 1}, 30.0)},
        nodes=(replace(NODES[0], healthy=7), *NODES[1:]),
        holders=(held(1, "n001", 10, 7), *FULL[1:]),
    ),
    "of nodes with room at the same time the one where fewest must leave": Row(
        [gang(1)],
        {1: ({"n001": 1, "n003": 1}, 10.0)},
        holders=(
            held(1, "n001", 10), held(2, "n002", 10, 4), held(5, "n002", 10, 4), held(3, "n003", 10), held(4, "n004", 10, 3),
            held(6, "n004", 10, 5),
        ),
    ),
}  # fmt: skip


def saved(minutes_ago: float, every: float | None) -> Saves:
    return Saves(NOW - round(minutes_ago * MINUTE_MS), None if every is None else round(every * MINUTE_MS))


def after(*first: Held) -> tuple[Held, ...]:
    """n001 and n002 are held so; the others for very long."""
    return (*first, held(3, "n003", 110), held(4, "n004", 119))


STARTING: dict[str, Any] = {"state": "starting", "started_at_ms": None, "protected_until_ms": None, "granted_at_ms": NOW}

WHEN: dict[str, Row] = {
    "when the last of the nodes has room": Row([gang(1)], {1: FIRST_TWO}),
    "whoever is past his slice leaves as soon as he is told": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 5.0)}, holders=after(held(1, "n001", -30), held(2, "n002", 5))
    ),
    "unallocated work is no reason to wait": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 0.0)}, holders=after(unallocated(1, "n001"), held(2, "n002", -5))
    ),
    "nor is who leaves already": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 0.0)}, holders=after(held(1, "n001", 0, plan=an_id(9)), held(2, "n002", -5))
    ),
    "who saves at a steady pace leaves at his first save after his slice": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 24.0)}, holders=after(held(1, "n001", 10, saves=saved(6, 30)), held(2, "n002", 20))
    ),
    "who saves at the end of his slice leaves then": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 20.0)}, holders=after(held(1, "n001", 10), held(2, "n002", 20, saves=saved(10, 30)))
    ),
    "past his slice he leaves at his next save": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 4.0)}, holders=after(held(1, "n001", -60, saves=saved(6, 10)), held(2, "n002", -1))
    ),
    "who has saved just now leaves now": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 0.0)}, holders=after(held(1, "n001", -60, saves=saved(10, 10)), held(2, "n002", -1))
    ),
    "a pace that was seen only once is not known": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 10.0)}, holders=after(held(1, "n001", 10, saves=saved(6, None)), held(2, "n002", 5))
    ),
    "a pace slower than his slice is not waited for": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 10.0)}, holders=after(held(1, "n001", 10, saves=saved(6, 121)), held(2, "n002", 5))
    ),
    "who has not started yet has all of his slice before him, and may take all the time to start": Row(
        [gang(1)],
        {1: ({"n001": 1, "n003": 1}, 110.0)},
        holders=after(held(1, "n001", 5), held(2, "n002", 0, **STARTING)),
    ),
    "and is taken where there is nothing sooner": Row(
        [gang(1)],
        {1: ({"n001": 1, "n002": 1}, 120.5)},
        holders=(held(1, "n001", 5), held(2, "n002", 0, **STARTING), held(3, "n003", 121), held(4, "n004", 122)),
    ),
    "on one node several must be past their slices": Row(
        [gang(1)],
        {1: ({"n001": 1, "n002": 1}, 15.0)},
        holders=after(held(1, "n001", 5, 4), held(5, "n001", 15, 4), held(2, "n002", 10)),
    ),
    "only as many as are needed": Row(
        [gang(1, shape="4x4")],
        {1: ({"n001": 1, "n002": 2, "n003": 1}, 10.0)},
        holders=(
            held(1, "n001", 5, 4), held(5, "n001", 99, 4), held(2, "n002", 10), held(3, "n003", 9, 4), held(6, "n003", 98, 4),
            held(4, "n004", 97),
        ),
    ),
}  # fmt: skip

TABLE = WHO | WHERE | WHEN


@pytest.mark.parametrize("sentence", TABLE)
def test_reservations(sentence: str) -> None:
    check(TABLE[sentence])


def test_no_sentence_stands_twice() -> None:
    assert len(TABLE) == len(WHO) + len(WHERE) + len(WHEN)


# ------------------------------------------------------------------------------------------------- while the nodes are gathered


def gathered(
    *others: Job, holders: tuple[Held, ...] = FULL, standings: Mapping[str, int] | None = None, shape: str = "2x8"
) -> Books:
    """Job 1 of `a` has n001 and n002 gathered, in 20 minutes; these others wait as well."""
    books = with_lab(Row([gang(1, shape=shape)], {}, standings or {}, holders))
    books.apply(run_pass(books, terms=GATHER).change)
    assert books.jobs[an_id(1)].reserved is not None
    books.load(others, (), (), (), (), ())
    return books


def word(books: Books) -> Reserved:
    found = books.jobs[an_id(1)].reserved
    assert found is not None
    return found


def leaves(books: Books, number: int, now_ms: int = NOW) -> None:
    """The holder of a node ends by itself."""
    name = next(name for name, each in books.attempts.items() if each.placement[0].node == f"n00{number}")
    books.apply(life.ended(books, name, life.End("finished", now_ms), now_ms, GATHER))


IN_TIME = 20 * MINUTE_MS - ALLOWANCE

# jobs that wait while n001 is free and gathered: who of them starts there
MEANWHILE: dict[str, tuple[list[Job], list[int]]] = {
    "unallocated work may use gathered GPUs": ([job(2, budget=None, slice_ms=0, gpus_per_replica=8)], [2]),
    "a slice that ends in time may": ([job(2, budget="c", slice_ms=IN_TIME)], [2]),
    "a slice that ends a millisecond later may not": ([job(2, budget="c", slice_ms=IN_TIME + 1)], []),
    "not even the same leaf's": ([job(2, budget="a", slice_ms=IN_TIME + 1)], []),
    "a shorter slice of the same shape starts though the longer one before it may not": (
        [job(2, budget="c", slice_ms=HOUR_MS), job(3, budget="c", slice_ms=MINUTE_MS)],
        [3],
    ),
    "unallocated work starts though an allocated job before it may not": (
        [job(2, budget="c", slice_ms=HOUR_MS), job(3, budget=None, slice_ms=0)],
        [3],
    ),
}


@pytest.mark.parametrize("sentence", MEANWHILE)
def test_until_then_the_nodes_serve_what_is_gone_in_time(sentence: str) -> None:
    waiting, expected = MEANWHILE[sentence]
    books = gathered(*waiting)
    before = word(books)
    leaves(books, 1)
    passed = run_pass(books, terms=GATHER)
    assert granted_jobs(passed.change) == [an_id(number) for number in expected]
    books.apply(passed.change)
    assert word(books) == before


def test_the_part_of_a_gathered_node_that_is_not_needed_serves_everybody() -> None:
    # 3 x 6: two GPUs of each node are not needed.
    books = gathered(job(2, budget="c", gpus_per_replica=2, slice_ms=LONG), job(3, budget="c", gpus_per_replica=1), shape="3x6")
    leaves(books, 1)
    assert granted_jobs(run_pass(books, terms=GATHER).change) == [an_id(2)]


def test_as_soon_as_all_of_the_nodes_are_free_it_starts_there_before_anybody_else() -> None:
    rival = job(2, budget="c", gpus_per_replica=8, slice_ms=0)
    books = gathered(rival, standings={"a": 99, "c": 0})
    leaves(books, 1)
    leaves(books, 2)
    leaves(books, 3)
    passed = run_pass(books, terms=GATHER)
    first = passed.change.attempts[0]
    assert (first.job, first.placement) == (an_id(1), (NodeReplicas("n001", 1), NodeReplicas("n002", 1)))
    books.apply(passed.change)
    assert books.jobs[an_id(1)].reserved is None
    assert not books.reserved[CLUSTER]


def test_a_gathered_job_that_fits_elsewhere_sooner_starts_there_and_its_nodes_are_everybodys() -> None:
    books = gathered(job(2, budget="c", slice_ms=LONG), standings={"c": 50})
    leaves(books, 3)
    leaves(books, 4)
    passed = run_pass(books, terms=GATHER)
    assert {each.job: [part.node for part in each.placement] for each in passed.change.attempts} == {an_id(1): ["n003", "n004"]}
    books.apply(passed.change)
    leaves(books, 1)
    assert granted_jobs(run_pass(books, terms=GATHER).change) == [an_id(2)]


def test_the_hold_counts_at_once_so_that_a_leaf_saves_up_for_its_gang() -> None:
    books = with_lab(Row([gang(1, slice_ms=OWED // 32)], {}, {"a": 60, "c": 90}))
    books.apply(run_pass(books, terms=GATHER).change)
    books.load([job(2, budget="a", gpus_per_replica=8), job(3, budget="c", gpus_per_replica=8)], (), (), (), (), ())
    leaves(books, 4)
    # `a` stands at 60 %, and at 110 % with its gang.
    assert granted_jobs(run_pass(books, terms=GATHER).change) == [an_id(3)]


def test_a_leaf_has_one_reservation_at_a_time() -> None:
    books = gathered(gang(2))
    books.apply(run_pass(books, terms=GATHER).change)
    assert list(books.reserved[CLUSTER]) == [an_id(1)]


def test_at_the_instant_of_the_order_the_nodes_are_claimed_by_name_and_not_before() -> None:
    # By ratios the claimant could displace nobody.
    books = gathered(standings={"a": 99, "b": 0})
    order_ms = word(books).order_ms
    alive(books, order_ms)
    assert run_pass(books, order_ms - 1, GATHER).change.claims == ()
    (raised,) = run_pass(books, order_ms, GATHER).change.claims
    assert raised.job == an_id(1)
    assert raised.reserved == word(books).placement
    assert raised.deadline_ms == order_ms + GATHER.claim_timeout_ms


def test_books_wake_up_at_the_instant_of_the_order() -> None:
    books = gathered()
    order_ms = word(books).order_ms
    assert ("reserved", an_id(1)) in [(kind, about) for _at, kind, about in books.due(order_ms)]


def test_nobody_is_asked_to_make_room_on_gathered_nodes_for_somebody_who_would_stay_too_long() -> None:
    long, short = job(2, budget="c", gpus_per_replica=8, slice_ms=HOUR_MS), job(3, budget="c", gpus_per_replica=8, slice_ms=IN_TIME)
    books = gathered(long, short, standings={"b": 90, "a": 50}, holders=(held(1, "n001", -5), *FULL[1:]))
    claims = {each.job: each.avoid for each in run_pass(books, terms=GATHER).change.claims}
    # Only n001 is past its slice, and it is gathered.
    assert claims == {an_id(3): ()}


def test_what_became_of_a_reservation_that_is_cancelled() -> None:
    books = gathered(job(2, budget="c", slice_ms=LONG))
    books.apply(life.cancel(books, books.jobs[an_id(1)], NOW))
    assert not books.reserved[CLUSTER]
    leaves(books, 1)
    assert granted_jobs(run_pass(books, terms=GATHER).change) == [an_id(2)]


# ------------------------------------------------------------------------------------------------------------ promises and failures


def fails(number: int, healthy: int = 0) -> Callable[[Books], None]:
    """A node reports fewer GPUs."""
    return lambda books: books.apply(Change(nodes=(replace(NODES[number - 1], healthy=healthy, seq=2),)))


def squats(number: int) -> Callable[[Books], None]:
    """The holder of a node ends by itself, and unallocated work takes its place."""

    def happen(books: Books) -> None:
        leaves(books, number)
        squatter = unallocated(10 + number, f"n00{number}")
        books.load([squatter.job], [squatter.attempt], (), (), (), ())

    return happen


# what happens -> nodes and minute of the order afterwards; None: void
AFTERWARDS: dict[str, tuple[list[Callable[[Books], None]], tuple[tuple[str, ...], float] | None]] = {
    "a failing node is replaced, and the promise moves as far as it must": ([fails(1)], (("n002", "n003"), 30)),
    "a node that lost one GPU of eight is replaced": ([fails(2, 7)], (("n001", "n003"), 30)),
    "a failing node that is not gathered moves nothing": ([fails(3)], (("n001", "n002"), 20)),
    "of the other nodes those that have room first": ([fails(1), squats(3)], (("n002", "n003"), 20)),
    "though other nodes have room earlier the promise stays as it was": ([fails(1), squats(3), squats(4)], (("n003", "n004"), 20)),
    "without enough nodes it is void": ([fails(1), fails(3), fails(4)], None),
    "both nodes at once are replaced": ([fails(1), fails(2)], (("n003", "n004"), 40)),
}


@pytest.mark.parametrize("sentence", AFTERWARDS)
def test_a_promise_moves_for_a_failing_node_alone(sentence: str) -> None:
    happens, expected = AFTERWARDS[sentence]
    books = gathered()
    before = word(books)
    for happen in happens:
        happen(books)
    change = run_pass(books, terms=GATHER).change
    books.apply(change)
    moved = books.jobs[an_id(1)].reserved
    if expected is None:
        assert moved is None
        return
    assert moved is not None
    assert (tuple(part.node for part in moved.placement), (moved.order_ms - NOW) / MINUTE_MS) == expected
    assert moved.by_ms >= before.by_ms
    assert moved.made_at_ms == before.made_at_ms
    said = [decided.sentence for decided in change.decisions if decided.job == an_id(1)]
    if moved != before:
        assert "failed" in said[0], "it says that a failure moved it"
    else:
        assert said == []


def test_a_silent_node_is_replaced() -> None:
    books = gathered()
    for each in NODES[1:]:
        books.seen[each.key] = NOW + MINUTE_MS
    books.apply(run_pass(books, NOW + MINUTE_MS, GATHER).change)
    assert [part.node for part in word(books).placement] == ["n002", "n003"]
    assert word(books).made_at_ms == NOW, "it is still the first promise"


def test_nodes_that_were_promised_to_a_claim_are_not_gathered_for_somebody_else() -> None:
    rival = job(9, budget="c", replicas=2, gpus_per_replica=8)
    planned = claim(9, rival, placement=(NodeReplicas("n001", 1), NodeReplicas("n002", 1)), plan=an_id(8))
    books = with_lab(Row([gang(1)], {}))
    books.load([replace(rival, claim=planned.claim)], (), [planned], (), (), ())
    books.apply(run_pass(books, terms=GATHER).change)
    assert [part.node for part in word(books).placement] == ["n003", "n004"]


def test_the_hold_counts_for_claims_of_the_same_pass() -> None:
    small = job(2, budget="a", gpus_per_replica=8)
    jobs = [gang(1, slice_ms=OWED // 32), small]
    books = with_lab(Row(jobs, {}, {"a": 60, "b": 90}, (*FULL[:3], held(4, "n004", -1))))
    # By itself it may claim: 60 % is far below 90 %. With the gang its leaf stands at 110 %.
    assert [each.job for each in run_pass(books, terms=TERMS).change.claims] == [small.job]
    assert run_pass(books, terms=GATHER).change.claims == ()


def test_a_gathered_node_of_which_enough_is_left_is_kept() -> None:
    books = gathered(shape="3x6")
    before = word(books)
    fails(1, 6)(books)
    assert run_pass(books, terms=GATHER).change == Change()
    fails(1, 5)(books)
    books.apply(run_pass(books, terms=GATHER).change)
    assert [part.node for part in before.placement] == ["n001", "n002", "n003"]
    assert [part.node for part in word(books).placement] == ["n002", "n003", "n004"]


def test_a_promise_that_was_mended_is_not_mended_again() -> None:
    books = gathered()
    fails(2, 7)(books)
    books.apply(run_pass(books, terms=GATHER).change)
    assert run_pass(books, terms=GATHER).change.decisions == ()


def alive(books: Books, now_ms: int) -> None:
    for each in books.nodes.values():
        books.seen[each.key] = now_ms


LENGTHS = st.sampled_from([MINUTE_MS, IN_TIME - 1, IN_TIME, IN_TIME + 1, 20 * MINUTE_MS, HOUR_MS])


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, list[Job], list[int]]]:
    """(instant, jobs that come, nodes whose first holder ends): everything that may be in the way of a promise."""
    found = []
    number = 10
    for at_ms in sorted(draw(st.lists(st.integers(0, 20 * MINUTE_MS), max_size=6))):
        jobs = []
        for _each in range(draw(st.integers(0, 4))):
            number += 1
            budget = draw(st.sampled_from(["a", "b", "c", None]))
            slice_ms = 0 if budget is None else draw(LENGTHS)
            size = {"replicas": draw(st.sampled_from([1, 2])), "gpus_per_replica": draw(st.sampled_from([1, 4, 8]))}
            jobs.append(job(number, budget=budget, slice_ms=slice_ms, submitted_at_ms=NOW + at_ms, **size))
        found.append((NOW + at_ms, jobs, draw(st.lists(st.integers(1, 4), max_size=2))))
    return found


@given(arrivals(), st.sampled_from([0, ALLOWANCE]), st.sampled_from(["2x8", "3x6", "4x4"]))
@settings(max_examples=150, deadline=None)
def test_no_grant_made_after_it_moves_a_promise_and_at_its_instant_there_is_room(
    story: list[tuple[int, list[Job], list[int]]], starts_after_ms: int, shape: str
) -> None:
    books, new_id = gathered(standings={"a": 50, "b": 60, "c": 70}, shape=shape), counting()
    promise, starting = word(books), list[tuple[int, str]]()

    def pass_at(now_ms: int) -> bool:
        while starting and starting[0][0] <= now_ms:
            at_ms, name = starting.pop(0)
            if name in books.attempts:
                books.apply(life.started(books, name, at_ms, at_ms))
        alive(books, now_ms)
        passed: Passed = run_pass(books, now_ms, GATHER, new_id)
        # Nobody is asked to leave here: claims are made as if the preemptor had no answer.
        books.apply(passed.change._replace(claims=(), jobs=tuple(replace(each, claim=None) for each in passed.change.jobs)))
        starting.extend((now_ms + starts_after_ms, each.attempt) for each in passed.change.attempts)
        return an_id(1) in granted_jobs(passed.change)

    for now_ms, jobs, ended in story:
        books.load(jobs, (), (), (), (), ())
        for number in ended:
            if here := sorted(books.on_node.get((CLUSTER, f"n00{number}"), {})):
                books.apply(life.ended(books, here[0], life.End("finished", now_ms), now_ms, GATHER))
        if pass_at(now_ms):
            return
        assert word(books) == promise
    if pass_at(promise.order_ms):
        return
    for name, gpus in promise.gpus(books.jobs[an_id(1)].gpus_per_replica).items():
        on_node = books.on_node.get((CLUSTER, name), {})
        staying = sum(held for each, held in on_node.items() if not gone_by(books.attempts[each], promise.order_ms))
        assert NODES[0].healthy - staying >= gpus, "somebody there is inside his slice at the instant of the order"


def gone_by(running: Attempt, at_ms: int) -> bool:
    """May it be told to leave at the instant? One that has not started is asked for by its latest start."""
    if running.budget is None:
        return True
    ends_ms = running.protected_until_ms
    return (running.granted_at_ms + ALLOWANCE + running.slice_ms if ends_ms is None else ends_ms) <= at_ms
