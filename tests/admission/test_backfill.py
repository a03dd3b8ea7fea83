"""Policy `backfill`: who may start behind an allocated job that found no room (decision 0045)."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.admission.model.books import Books
from allmende.admission.model.values import Job
from allmende.admission.rules import explaining
from allmende.admission.rules.passing import First
from allmende.proto.policy import Backfill, DebugLane, Policy
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.admission.builders import CLUSTER, NOW, TERMS, an_id, granted_jobs, job, run_pass
from tests.admission.gathering import ALLOWANCE, FULL, Held, Row, gang, held, unallocated, with_lab
from tests.admission.test_policies import ruled

# Node n003 has four free GPUs; the gang of two nodes could have n001 and n002 in 20 minutes.
HOLDERS = (*FULL[:2], held(3, "n003", 30, gpus=4), FULL[3])
IN_TIME = 20 * MINUTE_MS - ALLOWANCE
FIRST = f"job {an_id(1)} found no room on c1"
BY_THEN = f"{FIRST} and may have some in 20m: only slices that end by then start behind it, and this one is "
WITHIN = Policy(backfill="within_deadline")


def waiting(*jobs: Job, policy: Policy = WITHIN, holders: Sequence[Held] = HOLDERS) -> Books:
    """The gang of `a`, which is served first, and these others of `c`."""
    return ruled(with_lab(Row([gang(1), *jobs], {}, {"c": 50}, tuple(holders))), policy)


def small(number: int, slice_ms: int, **fields: object) -> Job:
    return job(number, budget="c", slice_ms=slice_ms, **fields)


class Case(NamedTuple):
    """What waits behind the gang; expected: who of them starts."""

    backfill: Backfill
    jobs: list[Job]
    expected: list[int]


CASES = {
    "any: whoever fits": Case("any", [small(2, HOUR_MS)], [2]),
    "unallocated only: no allocated one": Case("unallocated_only", [small(2, 1), job(3, budget=None, slice_ms=0)], [3]),
    "within deadline: a slice that ends in time": Case("within_deadline", [small(2, IN_TIME)], [2]),
    "a millisecond longer waits": Case("within_deadline", [small(2, IN_TIME + 1)], []),
    "a shorter one behind a longer one starts": Case("within_deadline", [small(2, IN_TIME + 1), small(3, IN_TIME)], [3]),
    "of the same leaf as the first too": Case("within_deadline", [job(2, budget="a", slice_ms=IN_TIME)], [2]),
    "unallocated work always": Case("within_deadline", [job(2, budget=None, slice_ms=0)], [2]),
    "as many as fit": Case("within_deadline", [small(number, MINUTE_MS) for number in range(2, 8)], [2, 3, 4, 5]),
}


@pytest.mark.parametrize("sentence", CASES)
def test_behind_a_job_that_found_no_room(sentence: str) -> None:
    case = CASES[sentence]
    change = run_pass(waiting(*case.jobs, policy=Policy(backfill=case.backfill)), terms=TERMS).change
    assert granted_jobs(change) == [an_id(number) for number in case.expected]


def test_whoever_comes_before_the_first_one_is_not_bound() -> None:
    books = ruled(with_lab(Row([gang(1), small(2, HOUR_MS)], {}, {"a": 50}, HOLDERS)), WITHIN)
    assert granted_jobs(run_pass(books, terms=TERMS).change) == [an_id(2)]


def test_where_nobody_can_tell_an_instant_no_allocated_job_starts() -> None:
    # On three nodes of those that it does not avoid there is never room for four replicas.
    first = gang(1, shape="4x8", avoid=("n004",), avoid_until_ms=NOW + HOUR_MS)
    books = ruled(with_lab(Row([first, small(2, 1)], {}, {"c": 50}, HOLDERS)), WITHIN)
    passed = run_pass(books, terms=TERMS)
    assert granted_jobs(passed.change) == []
    assert passed.outlook.first == First(an_id(1), None)


def test_a_reservation_is_the_deadline_where_there_is_one() -> None:
    policy = Policy(backfill="within_deadline", reservations=1, reserve_from_gpus=16)
    books = waiting(policy=policy, holders=FULL)
    books.apply(run_pass(books, terms=TERMS).change)
    assert books.reserved[CLUSTER][an_id(1)].order_ms == NOW + 20 * MINUTE_MS
    assert run_pass(books, terms=TERMS).outlook.first == First(an_id(1), NOW + 20 * MINUTE_MS)


def test_the_debug_lane_obeys_it_as_well() -> None:
    lane = Policy(backfill="within_deadline", debug_lane=DebugLane())
    soon = (held(1, "n001", 1), held(2, "n002", 2), held(3, "n003", 30, gpus=4), FULL[3])
    short, shorter = small(2, 10 * MINUTE_MS), small(3, MINUTE_MS)
    assert granted_jobs(run_pass(waiting(short, shorter, policy=lane, holders=soon), terms=TERMS).change) == [shorter.job]


@pytest.mark.parametrize(
    ("backfill", "slice_ms", "sentence"),
    [
        ("unallocated_only", 1, f"{FIRST}, and its policy lets no allocated job start behind it"),
        (
            "within_deadline",
            HOUR_MS,
            f"{BY_THEN}1h",
        ),
        (
            "within_deadline",
            IN_TIME + SECOND_MS,
            f"{BY_THEN}19m 31s, and its start may take 30s",
        ),
    ],
)
def test_why_says_behind_whom_it_waits_and_how_long(backfill: Backfill, slice_ms: int, sentence: str) -> None:
    books = waiting(small(2, slice_ms), policy=Policy(backfill=backfill))
    outlook = run_pass(books, terms=TERMS).outlook
    reasons = explaining.blockers(books.jobs[an_id(2)], books, {CLUSTER: outlook}, NOW, TERMS)
    assert [each.sentence for each in reasons if each.code == "backfill"] == [sentence]
    own = explaining.blockers(books.jobs[an_id(1)], books, {CLUSTER: outlook}, NOW, TERMS)
    assert "backfill" not in [each.code for each in own]


def test_whoever_may_start_behind_it_and_finds_no_room_either_is_told_of_no_deadline() -> None:
    books = waiting(small(2, IN_TIME, replicas=5))
    outlook = run_pass(books, terms=TERMS).outlook
    reasons = explaining.blockers(books.jobs[an_id(2)], books, {CLUSTER: outlook}, NOW, TERMS)
    assert [each.code for each in reasons if each.code in ("backfill", "no_room")] == ["no_room"]


SLICES = st.sampled_from([1, MINUTE_MS, IN_TIME - 1, IN_TIME, IN_TIME + 1, HOUR_MS])
LEFT = st.sampled_from([-1, 5, 10, 20, 30])


@given(
    lefts=st.lists(LEFT, min_size=4, max_size=4),
    sizes=st.lists(st.sampled_from([2, 4, 6, 8]), min_size=4, max_size=4),
    free=st.booleans(),
    behind=st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), SLICES, st.sampled_from([1, 2, 4])), max_size=6),
)
def test_no_grant_behind_it_moves_the_instant_and_all_that_start_anyway_start_here_too(
    lefts: list[int], sizes: list[int], free: bool, behind: list[tuple[str, int, int]]
) -> None:
    holders = [
        held(number, f"n00{number}", left, gpus=size) for number, (left, size) in enumerate(zip(lefts, sizes, strict=True), 1)
    ]
    if free:
        holders[0] = unallocated(1, "n001")
    others = enumerate(behind, 2)
    jobs = [job(number, budget=leaf, slice_ms=slice_ms, gpus_per_replica=gpus) for number, (leaf, slice_ms, gpus) in others]
    strict = run_pass(waiting(*jobs, policy=Policy(backfill="unallocated_only"), holders=holders), terms=TERMS)
    books = waiting(*jobs, holders=holders)
    passed = run_pass(books, terms=TERMS)
    first = passed.outlook.first
    before = granted_jobs(strict.change)
    assert granted_jobs(passed.change)[: len(before)] == before
    extra = [each for each in passed.change.attempts if each.job not in before]
    if first is None or first.room_from_ms is None:
        assert extra == []
        return
    assert all(NOW + each.slice_ms + ALLOWANCE <= first.room_from_ms for each in extra)
    books.apply(passed.change)
    again = run_pass(books, terms=TERMS).outlook.first
    if again is not None and again.job == first.job:
        assert again.room_from_ms is not None
        assert again.room_from_ms <= first.room_from_ms
