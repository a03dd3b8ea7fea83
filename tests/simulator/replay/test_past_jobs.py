"""The past's jobs as work to be done again: how long each works, and what is said where nobody knows."""

from random import Random

import pytest

from allmende.proto.admission import PastJob
from allmende.proto.units import MINUTE_MS
from allmende.simulator.replay.jobs import Again, again
from allmende.simulator.replay.truth import here
from tests.simulator.replay.builders import LENGTH, Ran, an_id, at, past, past_job

OTHER = past_job(90, (0, 7, "finished"), until=7, budget="tools")
STATED = {"stated_runtime_ms": 60 * MINUTE_MS}
LOST_PLACE = "1 job resumed after an eviction or a lost node"


def replayed(*jobs: PastJob, begin: float = 0) -> Again:
    known = past(*jobs, begin=begin)
    return again(known, here(known), at(begin))


# What was, how many minutes it works in a replay (None: it is left out), and a part of the sentence about it.
WORK: dict[str, tuple[PastJob, float | None, str]] = {
    "who finished works as long as it ran; waiting and starting are no work": (past_job(1, (10, 40, "finished"), until=40), 30, ""),
    "who failed works as long as it ran": (past_job(1, (10, 40, "failed"), until=40, outcome="failed"), 30, ""),
    "who was stopped at its maximum works so long": (past_job(1, (0, 30, "stopped"), until=30, outcome="max_runtime"), 30, ""),
    "who was cancelled while it ran works as long as it did": (
        past_job(1, (10, 40, "stopped"), until=40, outcome="cancelled"), 30, "1 job cancelled after a start"
    ),
    "who was cancelled while it waited does not come again": (
        past_job(1, until=40, outcome="cancelled"), None, "1 job ended without having run"
    ),
    "who was refused does not come again": (past_job(1, until=1, outcome="refused"), None, "1 job ended without having run"),
    "who resumed works in all attempts together": (
        past_job(1, (10, 20, "evicted"), (30, 50, "finished"), until=50), 30, LOST_PLACE
    ),
    "who cannot resume began anew: the last attempt counts": (
        past_job(1, (10, 20, "node_lost"), (30, 50, "finished"), until=50, resumable=False), 20, "1 attempt ended because a node"
    ),
    "an attempt that never started is no work": (past_job(1, (None, 5, "never_started"), (10, 40, "finished"), until=40), 30, ""),
    "who ended in no time works for a millisecond, not for none": (
        past_job(1, (10, 10, "finished"), until=10), 1 / MINUTE_MS, ""
    ),
    "who still runs works as long as was stated": (past_job(1, (60, None, None), **STATED), 60, "as long as was stated"),
    "who stated less than it has worked works as long as it may": (
        past_job(1, (30, None, None), max_runtime_ms=90 * MINUTE_MS, **STATED), 90, "or at most allowed"
    ),
    "who has worked longer than it stated works as long as so far": (
        past_job(1, (30, None, None), **STATED), 70, "which is too short"
    ),
    "who stated nothing and still runs works as long as so far": (past_job(1, (60, None, None)), 40, "which is too short"),
    "who ended after the past did still runs": (past_job(1, (60, LENGTH, "finished"), until=LENGTH), 40, "which is too short"),
    "who was preempted for good had not done its work": (
        past_job(1, (0, 20, "evicted"), until=20, outcome="preempted", resumable=False, **STATED), 60, "as long as was stated"
    ),
    "who waits works as long as was stated": (past_job(1, **STATED), 60, "as long as was stated"),
    "who was granted and has not started works as long as was stated": (
        past_job(1, (LENGTH + 1, None, None), **STATED), 60, "as long as was stated"
    ),
    "who waits and stated nothing works as long as others do": (past_job(1), 7, "1 job never started, the length never stated"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", WORK)
def test_work_of(sentence: str) -> None:
    job, minutes, said = WORK[sentence]
    found = replayed(job, OTHER)
    assert [each.runtime_ms for each in found.jobs if each.job == an_id(1)] == ([] if minutes is None else [minutes * MINUTE_MS])
    assert (said in " ".join(found.notes)) if said else found.notes == ()


def test_whose_length_nobody_can_tell_is_left_out_and_counted() -> None:
    assert replayed(past_job(1), past_job(2)) == Again(
        (), ("2 jobs never started, and nothing tells the length: left out of the replays",)
    )


def test_a_guess_is_the_median_of_its_own_budget_before_that_of_all() -> None:
    known = [past_job(number, (0, minutes, "finished"), until=minutes) for number, minutes in enumerate((1, 20, 30, 90), 1)]
    guessed = replayed(*known, OTHER, past_job(7), past_job(8, budget="new"))
    lengths = {job.job: job.runtime_ms // MINUTE_MS for job in guessed.jobs}
    assert (lengths[an_id(7)], lengths[an_id(8)]) == (20, 20)
    assert "2 jobs never started, the length never stated" in guessed.notes[0]


# What was, from which minute the replays begin; the minute when it comes, and the minutes that are left of its work.
LEFT: dict[str, tuple[PastJob, float, float]] = {
    "who came later comes when it came": (past_job(1, (5, 40, "finished"), submitted=2, until=40), 2, 35),
    "who ran comes at the beginning, with what was left": (past_job(1, (-60, 40, "finished"), submitted=-90, until=40), -50, 90),
    "who waited comes at the beginning": (past_job(1, (5, 40, "finished"), submitted=-90, until=40), -50, 35),
    "of what was stated, that is taken away": (past_job(1, (-80, None, None), submitted=-80, stated_runtime_ms=10**8), -50, 0),
}  # fmt: skip


@pytest.mark.parametrize("sentence", LEFT)
def test_before_the_beginning(sentence: str) -> None:
    job, comes, minutes = LEFT[sentence]
    (found,) = replayed(job, begin=-50).jobs
    assert found.submitted_at_ms == at(comes)
    assert found.runtime_ms == (minutes * MINUTE_MS or 10**8 - 30 * MINUTE_MS)


def test_the_order_is_that_of_submission_also_among_those_who_wait_at_the_beginning() -> None:
    ran: Ran = (0, 1, "finished")
    jobs = [past_job(number, ran, submitted=minute, until=1) for number, minute in ((1, -55), (2, -60), (3, -60), (4, -10))]
    assert [job.job for job in replayed(*jobs, begin=-50).jobs] == [an_id(2), an_id(3), an_id(1), an_id(4)]


def test_what_was_asked_for_comes_again_unchanged() -> None:
    asked = {"gpus_per_replica": 4, "replicas": 2, "priority": 3, "kind": "session", "max_runtime_ms": 10**8, "gpu_model": "H100",
             "may_run_unallocated": True, "resumable": False, "user": "bob", "budget": "tools", "slice_ms": 60_000}  # fmt: skip
    (found,) = replayed(past_job(1, (0, 9, "failed"), until=9, **(asked | {"outcome": "failed"}))).jobs
    assert {name: getattr(found, name) for name in asked} == asked
    assert found.fails


def test_nobody_is_lost_and_nobody_works_for_no_time() -> None:
    random = Random("nobody")
    jobs = []
    for number in range(1, 400):
        start = random.choice((None, random.randrange(LENGTH)))
        until = None if start is None else random.choice((None, random.randrange(start, LENGTH)))
        outcome = None if until is None else random.choice(("finished", "failed", "cancelled", "max_runtime", "preempted"))
        ran: list[Ran] = [] if start is None else [(start, until, "finished" if until is not None else None)]
        stated = random.choice((None, random.randrange(1, 200 * MINUTE_MS)))
        jobs.append(past_job(number, *ran, until=until, outcome=outcome, stated_runtime_ms=stated))
    found = replayed(*jobs)
    assert {job.job for job in found.jobs} == {job.job for job in jobs}
    assert min(job.runtime_ms for job in found.jobs) >= 1
    started = {job.job: job.attempts[0] for job in jobs if job.attempts}
    for again_ in found.jobs:
        if (ran_ := started.get(again_.job)) is not None and ran_.started_at_ms is not None:
            assert again_.runtime_ms >= (ran_.ended_at_ms or at(LENGTH)) - ran_.started_at_ms
