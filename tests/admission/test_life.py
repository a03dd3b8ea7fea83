"""An attempt's life, in whatever order the messages come: contract §5 to §7, one sentence a row."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import NOTHING, Ended, Protected, Queued, Refused, StopOrdered
from allmende.admission.model.values import AttemptOutcome, Job
from allmende.admission.rules import life
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.admission.builders import NOW, TERMS, an_id, attempt, free_gpus, job, lab, node, order

NODE = ("c1", "n001")


def running(**fields: object) -> Books:
    """Job 1 runs on 4 GPUs of n001."""
    values: dict[str, object] = {"gpus_per_replica": 4, "state": "running", "attempts": 1} | fields
    holder = job(1, **values)
    lab_attempt = attempt(1, holder, {"n001": 1})
    holder = replace(holder, attempt=lab_attempt.attempt)
    return lab([holder], [node(1)], attempts=[lab_attempt])


def starting() -> Books:
    """Job 1 was granted 4 GPUs of n001 and has not started."""
    holder = job(1, gpus_per_replica=4, state="starting", attempts=1)
    granted = attempt(
        1,
        holder,
        {"n001": 1},
        state="starting",
        started_at_ms=None,
        protected_until_ms=None,
        granted_at_ms=NOW,
        start_by_ms=NOW + 30_000,
    )
    return lab([replace(holder, attempt=granted.attempt)], [node(1)], attempts=[granted])


def attempt_of(books: Books) -> str:
    return next(iter(books.attempts))


def end(outcome: AttemptOutcome, **fields: object) -> Callable[[Books], None]:
    def apply(books: Books) -> None:
        for name in list(books.attempts):
            books.apply(life.ended(books, name, life.End(outcome, NOW, **fields), NOW, TERMS))  # type: ignore[arg-type]

    return apply


def stop(reason: str) -> Callable[[Books], None]:
    return lambda books: books.apply(life.stop(books, attempt_of(books), reason, NOW))  # type: ignore[arg-type]


class Row(NamedTuple):
    """What happens to a running job, and how it ends: an outcome, or `queued`."""

    steps: list[Callable[[Books], None]]
    expected: str
    job: Mapping[str, object] = MappingProxyType({})


ROWS: dict[str, Row] = {
    "a job that finishes has finished": Row([end("finished", exit_code=0)], "finished"),
    "a job that fails has failed": Row([end("failed", exit_code=1)], "failed"),
    "an evicted job that can resume goes back": Row([end("evicted")], "queued"),
    "an evicted job that cannot resume ends as preempted": Row([end("evicted")], "preempted", {"resumable": False}),
    "a lost node puts the job back, resumable or not": Row([end("node_lost")], "queued", {"resumable": False}),
    "a cancelled job that is stopped is cancelled": Row([stop("cancel"), end("stopped")], "cancelled"),
    "a cancelled job that finished first has finished": Row([stop("cancel"), end("finished")], "finished"),
    "a cancelled job that is evicted meanwhile is cancelled": Row([stop("cancel"), end("evicted")], "cancelled"),
    "a cancelled job whose node is lost is cancelled": Row([stop("cancel"), end("node_lost")], "cancelled"),
    "a job stopped at its maximum runtime says so": Row([stop("max_runtime"), end("stopped")], "max_runtime"),
    "a job stopped by somebody else on the cluster is cancelled": Row([end("stopped")], "cancelled"),
    "a job that never started goes back": Row([end("never_started")], "queued"),
    "a job that missed its start time-out goes back": Row([stop("start_timeout"), end("stopped")], "queued"),
    "a cancellation after a start time-out counts": Row([stop("start_timeout"), stop("cancel"), end("never_started")], "cancelled"),
}


def check(row: Row) -> None:
    books = running(**row.job)
    (name,) = books.jobs
    outcomes: list[str] = []
    for step in row.steps:
        step(books)
    dirty = {each.job: each for each in books.drain().jobs}
    outcomes.append(dirty[name].outcome or dirty[name].state)
    assert outcomes == [row.expected]
    assert free_gpus(books, NODE) == 8
    assert books.attempts == {}


def test_who_is_told_to_leave_may_read_for_whom_and_by_which_numbers() -> None:
    books = running()
    (name,) = books.attempts
    (decided,) = life.ordered(books, name, order(an_id(8))).decisions
    assert decided.sentence == (
        f"told to leave within 2m for job {an_id(1)} (plan {an_id(8)}): a stands at 0.5 after the grant + 0.1 margin, below b's 0.9"
    )
    assert (decided.kind, decided.usage_revision, decided.numbers) == ("evicted", 7, {"margin_ppm": 100_000})
    books.apply(life.ordered(books, name, order(an_id(8))))
    assert life.ordered(books, name, order(an_id(9))) == NOTHING


def test_why_a_job_failed_is_told_in_the_agents_words_as_far_as_they_fit() -> None:
    books = running()
    (name,) = books.attempts
    told = life.End("failed", NOW, exit_code=127, detail="command not found" + "!" * 2_000)
    (decided,) = life.ended(books, name, told, NOW, TERMS).decisions
    assert decided.sentence.startswith("failed with exit code 127: command not found!")
    assert len(decided.sentence) <= 1_000


@pytest.mark.parametrize("sentence", ROWS)
def test_how_a_job_ends(sentence: str) -> None:
    check(ROWS[sentence])


class Start(NamedTuple):
    """When the agent says it started, relative to the grant, and when that was heard; when it counts as started."""

    said: int
    heard: int
    expected: int


STARTS = {
    "the agent's word counts": Start(5_000, 6_000, 5_000),
    "nothing starts before it was granted": Start(-1, 6_000, 0),
    "nothing starts after it was heard of": Start(6_001, 6_000, 6_000),
}


@pytest.mark.parametrize("sentence", STARTS)
def test_protection_begins_at_the_start(sentence: str) -> None:
    row, books = STARTS[sentence], starting()
    change = life.started(books, attempt_of(books), NOW + row.said, NOW + row.heard)
    books.apply(change)
    (only,) = books.attempts.values()
    assert (only.started_at_ms, only.protected_until_ms) == (NOW + row.expected, NOW + row.expected + HOUR_MS)
    assert only.state == "running"
    assert [type(fact) for fact in change.facts] == [Protected]


def test_protection_is_said_once_whatever_is_repeated() -> None:
    books = starting()
    books.apply(life.started(books, attempt_of(books), NOW, NOW))
    again = life.started(books, attempt_of(books), NOW + 9_000, NOW + 9_000)
    assert again.facts == ()


def test_a_start_that_is_heard_after_the_stop_order_does_not_undo_it() -> None:
    books = starting()
    stop("start_timeout")(books)
    books.apply(life.started(books, attempt_of(books), NOW, NOW))
    (only,) = books.attempts.values()
    assert (only.state, only.stop, only.protected_until_ms) == ("ending", "start_timeout", NOW + HOUR_MS)


def test_an_end_that_is_heard_before_the_start_ends_it() -> None:
    books = starting()
    name = attempt_of(books)
    end("finished")(books)
    assert life.started(books, name, NOW, NOW).facts == ()
    assert books.jobs == {}


def test_gpus_are_free_when_the_agent_says_so_and_not_twice() -> None:
    books = running()
    name = attempt_of(books)
    for _repeat in range(3):
        books.apply(life.freed(books, name, (("n001", 2),)))
        assert free_gpus(books, NODE) == 6
    books.apply(life.freed(books, name, (("n001", 99), ("n999", 8))))
    assert free_gpus(books, NODE) == 8
    end("finished")(books)
    assert free_gpus(books, NODE) == 8


def test_what_is_heard_of_an_unknown_attempt_changes_nothing() -> None:
    books = running()
    unknown = "0" * 26
    for change in (
        life.started(books, unknown, NOW, NOW),
        life.freed(books, unknown, (("n001", 4),)),
        life.ended(books, unknown, life.End("finished", NOW), NOW, TERMS),
        life.ordered(books, unknown, order(unknown)),
    ):
        assert (change.jobs, change.attempts, change.facts) == ((), (), ())


def test_a_requeued_job_keeps_its_first_submission_time_and_says_after_which_attempt() -> None:
    books = running()
    before = next(iter(books.jobs.values()))
    change = life.ended(books, attempt_of(books), life.End("evicted", NOW, checkpoint_at_ms=NOW), NOW, TERMS)
    (queued,) = [fact for fact in change.facts if isinstance(fact, Queued)]
    assert queued.job.submitted_at_ms == before.submitted_at_ms
    assert queued.after_attempt == before.attempt
    assert queued.job.next_slice_ms == before.slice_ms


def evict(books: Books, checkpoint_at_ms: int | None) -> Job:
    end("evicted", checkpoint_at_ms=checkpoint_at_ms)(books)
    return next(iter(books.jobs.values()))


@pytest.mark.parametrize(
    ("slice_ms", "checkpoint_at_ms", "expected"),
    [
        (HOUR_MS, None, 2 * HOUR_MS),
        (HOUR_MS, NOW - HOUR_MS, 2 * HOUR_MS),
        (HOUR_MS, NOW - HOUR_MS + 1, HOUR_MS),
        (5 * HOUR_MS, None, 8 * HOUR_MS),
        (8 * HOUR_MS, None, 8 * HOUR_MS),
    ],
    ids=["saved nothing", "saved nothing new", "saved something", "up to the cap", "already at the cap"],
)
def test_an_attempt_evicted_before_it_saved_anything_new_gets_a_longer_slice(
    slice_ms: int, checkpoint_at_ms: int | None, expected: int
) -> None:
    assert evict(running(slice_ms=slice_ms), checkpoint_at_ms).next_slice_ms == expected


@pytest.mark.parametrize(("evictions", "minutes"), [(0, 1), (1, 2), (4, 16), (5, 30), (800, 30)])
def test_an_evicted_unallocated_job_waits_longer_each_time(evictions: int, minutes: int) -> None:
    back = evict(running(slice_ms=0, budget=None, evictions=evictions), None)
    assert back.not_before_ms == NOW + minutes * MINUTE_MS
    assert back.next_slice_ms == 0


def test_a_job_that_cannot_be_started_avoids_those_nodes_and_is_refused_in_the_end() -> None:
    books = running(start_failures=1)
    end("never_started")(books)
    back = next(iter(books.jobs.values()))
    assert (back.avoid, back.start_failures) == (("n001",), 2)
    assert life.rested(books, back.job, NOW + TERMS.avoid_ms - 1).jobs == ()
    books.apply(life.rested(books, back.job, NOW + TERMS.avoid_ms))
    assert next(iter(books.jobs.values())).avoid == ()
    books = running(start_failures=2)
    change = life.ended(books, attempt_of(books), life.End("never_started", NOW), NOW, TERMS)
    assert [fact.reason.code for fact in change.facts if isinstance(fact, Refused)] == ["cannot_start"]


def test_a_stop_is_ordered_once_and_a_waiting_job_is_cancelled_at_once() -> None:
    books = running()
    first = life.cancel(books, next(iter(books.jobs.values())), NOW)
    assert [fact.reason for fact in first.facts if isinstance(fact, StopOrdered)] == ["cancel"]
    books.apply(first)
    assert life.cancel(books, next(iter(books.jobs.values())), NOW).facts == ()
    queue = lab([job(2)], [node(1)])
    change = life.cancel(queue, next(iter(queue.jobs.values())), NOW)
    assert [fact.job.outcome for fact in change.facts if isinstance(fact, Ended)] == ["cancelled"]


def test_time_outs_ring_once_they_are_due() -> None:
    books = starting()
    name = attempt_of(books)
    assert life.overdue(books, name, NOW + 30 * SECOND_MS - 1) is None
    assert life.overdue(books, name, NOW + 30 * SECOND_MS) == "start_timeout"
    books = running(max_runtime_ms=HOUR_MS)
    assert life.overdue(books, attempt_of(books), NOW - 1) is None
    assert life.overdue(books, attempt_of(books), NOW) == "max_runtime"
    assert [kind for _at, kind, _about in books.due(NOW)] == ["runtime"]


def test_an_eviction_that_is_overdue_is_told_and_changes_nothing() -> None:
    books = running()
    change = life.overdue_to_leave(books, attempt_of(books), "it still holds 8 GPUs", NOW)
    assert [(each.kind, each.sentence) for each in change.decisions] == [("overdue", "it still holds 8 GPUs")]
    assert (change.attempts, change.jobs, change.stirred) == ((), (), ())
    assert life.overdue_to_leave(books, "unknown", "late", NOW) is NOTHING
