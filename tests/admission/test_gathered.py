"""While nodes are gathered: who may use them, that the promise is kept, and what a failing node does to it. Decision 0015."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change
from allmende.admission.model.values import Attempt, Job, Reserved
from allmende.admission.rules import life
from allmende.admission.rules.passing import Passed
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.admission.builders import (
    CLUSTER,
    NOW,
    OWED,
    TERMS,
    an_id,
    claim,
    counting,
    granted_jobs,
    job,
    run_pass,
)
from tests.admission.gathering import (
    ALLOWANCE,
    FULL,
    GATHER,
    LONG,
    NODES,
    Held,
    Row,
    gang,
    held,
    unallocated,
    with_lab,
)


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
