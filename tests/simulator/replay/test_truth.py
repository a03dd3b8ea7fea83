"""What was, as a history of the simulator: what lies in the span and on the cluster, and nothing that nobody knows."""

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from allmende.proto.admission import PastJob
from allmende.proto.agent import Outcome
from allmende.proto.history import LabHistory
from allmende.proto.units import MINUTE_MS
from allmende.simulator.model import Cluster, History, NodeSpec, RunEnd, Window
from allmende.simulator.replay import truth
from tests.simulator.replay.builders import LENGTH, at, attempt, books, past, past_job

CLUSTER = Cluster("c1", (NodeSpec("n1", 8),))


def was(*jobs: PastJob, **other: Any) -> History:
    known = past(*jobs, **other)
    return truth.history(known, CLUSTER, truth.here(known))


# A past, and what is measured of it: begin, from, to, in minutes.
MEASURED: dict[str, tuple[LabHistory, tuple[float, float, float]]] = {
    "what was asked about": (past(past_job(1, submitted=-50), begin=-50), (-50, 0, LENGTH)),
    "not before the first job": (past(past_job(1, submitted=30), begin=-50), (30, 30, LENGTH)),
    "with as much to lead up to it as there is": (past(past_job(1, submitted=-20), begin=-50), (-20, 0, LENGTH)),
    "a job that was there before does not stretch it": (past(past_job(1, submitted=-90), begin=-50), (-50, 0, LENGTH)),
    "a past without jobs is all measured": (past(begin=-50), (-50, 0, LENGTH)),
}


@pytest.mark.parametrize("sentence", MEASURED)
def test_window(sentence: str) -> None:
    known, minutes = MEASURED[sentence]
    assert truth.window(known) == Window(*map(at, minutes))


ELSEWHERE = attempt(1, (0, 9, "evicted"), cluster="c2")
BEFORE = attempt(1, (0, 5, "evicted"))
HERE = attempt(2, (10, 40, "finished"))
LATER = attempt(3, (LENGTH + 2, None, None))

# A job, and which of its attempts count; None: the job does not count at all.
COUNTED: dict[str, tuple[PastJob, list[str] | None]] = {
    "who ran here": (past_job(1, attempts=(HERE,)), [HERE.attempt]),
    "who ran here and elsewhere counts with what was here": (past_job(1, attempts=(ELSEWHERE, HERE)), [HERE.attempt]),
    "who ran elsewhere only does not count": (past_job(1, attempts=(ELSEWHERE,)), None),
    "who ran nowhere and may run anywhere counts": (past_job(1), []),
    "who ran nowhere and may run here counts": (past_job(1, clusters=("c0", "c1")), []),
    "who may run elsewhere only does not count": (past_job(1, clusters=("c2",)), None),
    "what came after the past is not known yet": (past_job(1, attempts=(LATER,)), []),
    "attempts are in the order in which they came": (past_job(1, attempts=(HERE, BEFORE)), [BEFORE.attempt, HERE.attempt]),
}  # fmt: skip


@pytest.mark.parametrize("sentence", COUNTED)
def test_here(sentence: str) -> None:
    job, attempts = COUNTED[sentence]
    found = truth.here(past(job))
    assert [[each.attempt for each in own.attempts] for own in found] == ([] if attempts is None else [attempts])


# A job; its end, first start (minutes), evictions and leaf; the end of its last run.
LIVES: dict[str, tuple[PastJob, tuple[str | None, float | None, int, str | None], RunEnd | None]] = {
    "finished": (past_job(1, (10, 40, "finished"), until=40), ("finished", 10, 0, "vision"), "finished"),
    "evicted, and in line again": (past_job(1, (10, 40, "evicted")), (None, 10, 1, "vision"), "evicted"),
    "resumed": (past_job(1, (10, 20, "evicted"), (30, 50, "finished"), until=50), ("finished", 10, 1, "vision"), "finished"),
    "running": (past_job(1, (10, None, None)), (None, 10, 0, "vision"), "still_running"),
    "ended when the past did": (past_job(1, (10, LENGTH, "evicted"), until=LENGTH), (None, 10, 0, "vision"), "still_running"),
    "waiting": (past_job(1), (None, None, 0, None), None),
    "granted, not started": (past_job(1, (LENGTH, None, None)), (None, None, 0, "vision"), "still_running"),
    "never started": (past_job(1, (None, 20, "never_started")), (None, None, 0, "vision"), "never_started"),
    "cancelled while it waited": (past_job(1, until=9, outcome="cancelled"), ("cancelled", None, 0, None), None),
    "unallocated": (past_job(1, (10, 40, "finished"), until=40, budget=None), ("finished", 10, 0, None), "finished"),
    "an end that a later release has": (past_job(1, (10, 40, "teleported")), (None, 10, 0, "vision"), "stopped"),
}


@pytest.mark.parametrize("sentence", LIVES)
def test_life_and_runs(sentence: str) -> None:
    job, (end, started, evictions, leaf), run_end = LIVES[sentence]
    history = was(job)
    life = history.lives[job.job]
    started_ms = None if started is None else at(started)
    assert (life.end, life.first_started_at_ms, life.evictions, life.leaf) == (end, started_ms, evictions, leaf)
    assert (life.ended_at_ms is None) == (end is None)
    assert (history.runs[-1].end if history.runs else None) == run_end
    assert all(run.ended_at_ms <= at(LENGTH) for run in history.runs)


def test_what_no_service_keeps_is_not_made_up() -> None:
    history = was(past_job(1, (10, 40, "evicted"), (50, None, None)))
    assert {(run.ordered_at_ms, run.claimant, run.lost_gpu_ms) for run in history.runs} == {(None, None, 0)}
    assert (history.standings, history.rooms, history.promises) == ([], [], [])


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_every_way_in_which_an_attempt_ends_is_one_of_the_simulators(outcome: str) -> None:
    assert was(past_job(1, (10, 40, outcome))).runs[0].end == outcome


# Available GPU-ms of a step of ten minutes, and how many GPUs that is.
STEPS = {"none": (0, 0), "just below a half": (5 * MINUTE_MS - 1, 0), "a half": (5 * MINUTE_MS, 1), "one": (10 * MINUTE_MS, 1)}


@pytest.mark.parametrize("sentence", STEPS)
def test_capacity_is_that_of_the_books_to_the_nearest_gpu(sentence: str) -> None:
    amount, gpus = STEPS[sentence]
    first, second = books([8, 8], 10)
    history = was(past_job(1), books=(first, replace(second, available_gpu_ms=amount)), length=20)
    assert [(change.at_ms, change.healthy) for change in history.nodes] == [(at(0), 8), (at(10), gpus)]


def test_the_last_step_of_the_books_ends_with_the_past() -> None:
    first, second = books([8, 8], 10)
    history = was(past_job(1), books=(first, replace(second, available_gpu_ms=8 * 5 * MINUTE_MS)), length=15)
    assert [change.healthy for change in history.nodes] == [8, 8]
