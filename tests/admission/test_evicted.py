"""What an eviction earns: a longer slice for bad luck, a place in line, and nothing for whoever was idle. Decision 0015."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.values import Job, Saves, Terms
from allmende.admission.rules import life
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.admission.builders import NOW, TERMS, an_id, attempt, granted_jobs, job, lab, node, run_pass

PATIENT = replace(TERMS, patience=2)
SLICE = 90 * MINUTE_MS


def evicted(had: int, *, saved: bool = True, idle: bool = False, terms: Terms = PATIENT, **fields: object) -> Books:
    """Job 1, evicted `had` times before, is evicted once more."""
    holder = job(1, slice_ms=SLICE, state="running", evictions=had, **fields)
    running = attempt(1, holder, {"n001": 1}, slice_ms=holder.next_slice_ms)
    books = lab([replace(holder, attempt=running.attempt)], [node(1)], attempts=[running])
    if idle:
        books.idle.add(running.attempt)
    end = life.End("evicted", NOW, plan=an_id(9), checkpoint_at_ms=NOW - 1 if saved else None)
    books.apply(life.ended(books, running.attempt, end, NOW, terms))
    return books


class Row(NamedTuple):
    """The job's evictions before this one, and the slice that it has next, in minutes."""

    had: int
    expected: int
    saved: bool = True
    terms: Terms = PATIENT
    next_slice_ms: int = SLICE


PATIENCE: dict[str, Row] = {
    "the first eviction costs nothing where the work was saved": Row(0, 90),
    "the second doubles the slice": Row(1, 180),
    "the third changes nothing": Row(2, 180),
    "the fourth doubles it again": Row(3, 360),
    "not above the cap": Row(5, 480),
    "after very many, too": Row(10_000, 480),
    "with a patience of three the third is the first to count": Row(1, 90, terms=replace(TERMS, patience=3)),
    "and does": Row(2, 180, terms=replace(TERMS, patience=3)),
    "without the rule it never grows where the work was saved": Row(9, 90, terms=TERMS),
    "it is counted from what was asked for, not from the last one": Row(1, 180, next_slice_ms=4 * HOUR_MS),
    "who saved nothing new has the double of what he had": Row(0, 180, saved=False),
    "of what he had, not of what he asked for": Row(0, 360, saved=False, next_slice_ms=2 * SLICE),
}


def check(row: Row) -> None:
    books = evicted(row.had, saved=row.saved, terms=row.terms, next_slice_ms=row.next_slice_ms)
    after = books.jobs[an_id(1)]
    assert after.next_slice_ms == row.expected * MINUTE_MS
    assert after.slice_ms == SLICE, "what was asked for stays"
    assert after.evictions == row.had + 1


@pytest.mark.parametrize("sentence", PATIENCE)
def test_patience(sentence: str) -> None:
    check(PATIENCE[sentence])


@given(
    st.integers(0, 40), st.integers(0, 5), st.sampled_from([1, SLICE, TERMS.slice_cap_ms - 1, TERMS.slice_cap_ms]), st.booleans()
)
def test_a_slice_is_never_shorter_than_asked_for_nor_above_the_cap(had: int, patience: int, slice_ms: int, saved: bool) -> None:
    terms = replace(TERMS, patience=patience)
    holder = job(1, slice_ms=slice_ms, state="running", evictions=had)
    running = attempt(1, holder, {"n001": 1})
    books = lab([replace(holder, attempt=running.attempt)], [node(1)], attempts=[running])
    end = life.End("evicted", NOW, checkpoint_at_ms=NOW if saved else None)
    after = life.ended(books, running.attempt, end, NOW, terms).jobs[-1]
    assert slice_ms <= after.next_slice_ms <= terms.slice_cap_ms
    assert after.submitted_at_ms == holder.submitted_at_ms, "its place in line is that of its first submission"


# ------------------------------------------------------------------------------------------------------------------------- idle


def full_of(victim: Job, claimant: Job, *, idle: bool, **fields: object) -> Books:
    """One node, held by the victim; the claimant's leaf stands too near to displace anybody."""
    running = attempt(1, victim, {"n001": 1}, **fields)
    books = lab([replace(victim, attempt=running.attempt), claimant], [node(1)], {"a": 50, "b": 55}, attempts=[running])
    if idle:
        books.idle.add(running.attempt)
    return books


def whole(number: int, budget: str, **fields: object) -> Job:
    return job(number, budget=budget, gpus_per_replica=8, **fields)


def claims(books: Books) -> list[str]:
    return [each.job for each in run_pass(books).change.claims]


def test_room_is_asked_for_where_an_attempt_is_idle_past_its_slice_whatever_the_ratios() -> None:
    victim, claimant = whole(9, "b", state="running"), whole(1, "a")
    assert claims(full_of(victim, claimant, idle=False)) == []
    assert claims(full_of(victim, claimant, idle=True)) == [an_id(1)]


def test_inside_its_slice_an_idle_attempt_is_protected_as_any_other() -> None:
    victim, claimant = whole(9, "b", slice_ms=4 * HOUR_MS, state="running"), whole(1, "a")
    assert claims(full_of(victim, claimant, idle=True)) == []


def test_in_the_own_leaf_an_idle_attempt_is_room_whatever_its_priority() -> None:
    victim, claimant = whole(9, "a", state="running", priority=5), whole(1, "a")
    assert claims(full_of(victim, claimant, idle=False)) == []
    assert claims(full_of(victim, claimant, idle=True)) == [an_id(1)]


def test_who_was_evicted_idle_asks_nobody_to_make_room_again_and_still_starts_where_there_is_some() -> None:
    claimant = whole(1, "a", idled=True)
    books = full_of(whole(9, "b", slice_ms=0, state="running"), claimant, idle=False)
    assert claims(books) == []
    books.load([], (), (), [node(2)], (), ())
    assert granted_jobs(run_pass(books).change) == [an_id(1)]


def test_a_lost_node_makes_it_forget_too_for_the_attempt_was_busy() -> None:
    holder = job(1, state="running", idled=True)
    running = attempt(1, holder, {"n001": 1})
    books = lab([replace(holder, attempt=running.attempt)], [node(1)], attempts=[running])
    books.apply(life.ended(books, running.attempt, life.End("node_lost", NOW), NOW, TERMS))
    assert not books.jobs[an_id(1)].idled


def test_a_job_remembers_that_its_last_attempt_was_idle_and_forgets_it_with_the_next() -> None:
    books = evicted(0, idle=True)
    assert books.jobs[an_id(1)].idled
    assert books.idle == set(), "the attempt is gone"
    assert not evicted(1, idle=False, idled=True).jobs[an_id(1)].idled


# the terms, idle or not -> the slice that it has next, in minutes
IDLE_SLICES: dict[str, tuple[int, bool, bool, int]] = {
    "who was evicted idle is protected for no longer than the rule says": (30 * MINUTE_MS, True, True, 30),
    "though he has saved nothing": (30 * MINUTE_MS, True, False, 30),
    "nor for longer than he asked for": (4 * HOUR_MS, True, True, 90),
    "who was busy has his slice": (30 * MINUTE_MS, False, True, 90),
    "without the rule the idle have theirs": (0, True, True, 90),
}


@pytest.mark.parametrize("sentence", IDLE_SLICES)
def test_the_slice_of_the_idle(sentence: str) -> None:
    idle_slice_ms, idle, saved, expected = IDLE_SLICES[sentence]
    books = evicted(0, idle=idle, saved=saved, terms=replace(TERMS, idle_slice_ms=idle_slice_ms))
    assert books.jobs[an_id(1)].next_slice_ms == expected * MINUTE_MS


def test_an_attempt_that_ends_is_forgotten_with_its_saves() -> None:
    holder = job(1, state="running")
    running = attempt(1, holder, {"n001": 1})
    books = lab([replace(holder, attempt=running.attempt)], [node(1)], attempts=[running])
    books.idle.add(running.attempt)
    books.saves[running.attempt] = Saves(NOW, MINUTE_MS)
    books.apply(life.ended(books, running.attempt, life.End("finished", NOW), NOW, TERMS))
    assert not books.idle
    assert not books.saves


# --------------------------------------------------------------------------------------------------------- the unallocated in line


def free(number: int, evictions: int = 0, **fields: object) -> Job:
    """Unallocated, one GPU."""
    return job(number, budget=None, slice_ms=0, evictions=evictions, **fields)


# jobs, GPUs that are free -> who starts, in this order
LINE: dict[str, tuple[list[Job], int, list[int]]] = {
    "who was evicted less comes first, though he came later": ([free(1, 2), free(2, 0)], 1, [2]),
    "one eviction more makes no difference yet": ([free(1, 1), free(2, 0)], 1, [1]),
    "nor does one more than two": ([free(1, 3), free(2, 2)], 1, [1]),
    "but four stand behind two": ([free(1, 4), free(2, 3)], 1, [2]),
    "before the one who holds less: bad luck is shared among those who wait": (
        [free(1, 2, user="u2"), free(2, user="u1"), free(3, user="u1")],
        2,
        [2, 3],
    ),
    "among those alike, who has received least": ([free(1, user="u1"), free(2, user="u1"), free(3, user="u2")], 2, [1, 3]),
    "priority says nothing among the unallocated": ([free(1), free(2, priority=9)], 1, [1]),
    "nor do evictions of the allocated say anything in their line": ([job(1, evictions=9), job(2)], 1, [1]),
    "a rest that is not over is kept": ([free(1, 0, not_before_ms=NOW + 1), free(2, 9)], 1, [2]),
}


@pytest.mark.parametrize("sentence", LINE)
def test_who_of_the_unallocated_is_next(sentence: str) -> None:
    jobs, gpus, expected = LINE[sentence]
    books = lab(jobs, [node(1, installed=gpus, healthy=gpus)])
    assert granted_jobs(run_pass(books).change) == [an_id(number) for number in expected]


def test_an_eviction_moves_the_unallocated_back_in_line() -> None:
    twice = free(1, 1, state="running")
    running = attempt(1, twice, {"n001": 1})
    books = lab([replace(twice, attempt=running.attempt), free(2)], [node(1, installed=1, healthy=1)], attempts=[running])
    books.apply(life.ended(books, running.attempt, life.End("evicted", NOW), NOW, TERMS))
    later = NOW + HOUR_MS
    books.seen[node(1).key] = later
    assert granted_jobs(run_pass(books, later).change) == [an_id(2)]
