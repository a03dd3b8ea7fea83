"""The past's jobs as work to be done again, and how much of it is a guess.

A past says when a job ran, not how long it would have: what is only a lower bound, and what was never known, is counted and said.
Never takes an unknown length for zero.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import Literal, NamedTuple, TypeAlias

from allmende.proto.admission import PastJob
from allmende.proto.history import LabHistory
from allmende.proto.units import Ms
from allmende.simulator.model import Job
from allmende.simulator.replay.truth import held_ms, spec

How: TypeAlias = Literal["known", "cancelled", "stated", "so_far", "guessed", "unknown", "not_run"]


class Work(NamedTuple):
    """How long a job works from the beginning on; None: it is left out. `how` says what that is worth."""

    runtime_ms: Ms | None
    how: How


class Again(NamedTuple):
    """The jobs of a replay, by submission, and sentences about what is not known of them."""

    jobs: tuple[Job, ...]
    notes: tuple[str, ...]


def again(past: LabHistory, jobs: Sequence[PastJob], begin_ms: Ms) -> Again:
    """The jobs as they would be submitted again. Who was there before `begin_ms` comes then, with the work that was left."""
    works = [_work(job, begin_ms, past.to_ms) for job in jobs]
    guesses = _Guesses(zip(jobs, works, strict=True))
    made: list[Job] = []
    counts: Counter[How] = Counter()
    for job, work in zip(jobs, works, strict=True):
        if work.how == "unknown":
            work = guesses.of(job)
        counts[work.how] += 1
        if work.runtime_ms is not None:
            made.append(spec(job, max(job.submitted_at_ms, begin_ms), max(1, work.runtime_ms)))
    first = {job.job: job.submitted_at_ms for job in jobs}
    made.sort(key=lambda job: (job.submitted_at_ms, first[job.job], job.job))
    return Again(tuple(made), (*_said(counts), *_repeated(jobs)))


def _work(job: PastJob, begin_ms: Ms, to_ms: Ms) -> Work:
    started = [each for each in job.attempts if each.started_at_ms is not None and each.started_at_ms < to_ms]
    # Who cannot resume began anew each time: only the last attempt tells how long it works.
    counted = started if job.resumable else started[-1:]
    worked_ms = sum(held_ms(each, begin_ms, to_ms) for each in counted)
    before_ms = sum(held_ms(each, 0, begin_ms) for each in counted)
    over = job.ended_at_ms is not None and job.ended_at_ms < to_ms
    if over and job.outcome in ("finished", "failed", "max_runtime") and started:
        return Work(worked_ms, "known")
    if over and job.outcome == "cancelled" and started:
        return Work(worked_ms, "cancelled")
    if over and job.outcome != "preempted":
        return Work(None, "not_run")
    stated_ms = next((each for each in (job.stated_runtime_ms, job.max_runtime_ms) if each and each > worked_ms + before_ms), None)
    if stated_ms is not None:
        return Work(stated_ms - before_ms, "stated")
    return Work(worked_ms, "so_far") if started else Work(None, "unknown")


class _Guesses:
    """For who never started and said nothing: the median of his leaf's known runtimes, else of all."""

    def __init__(self, known: Iterable[tuple[PastJob, Work]]) -> None:
        by_leaf: dict[str | None, list[Ms]] = {}
        for job, work in known:
            if work.how == "known" and work.runtime_ms is not None:
                by_leaf.setdefault(job.budget, []).append(work.runtime_ms)
        self._leaf = {leaf: median_low(lengths) for leaf, lengths in by_leaf.items()}
        every = [length for lengths in by_leaf.values() for length in lengths]
        self._all = median_low(every) if every else None

    def of(self, job: PastJob) -> Work:
        guess = self._leaf.get(job.budget, self._all)
        return Work(guess, "unknown" if guess is None else "guessed")


def _said(counts: Counter[How]) -> Iterable[str]:
    sentences: tuple[tuple[How, str], ...] = (
        ("cancelled", "cancelled after a start: taken to work as long as until then"),
        ("stated", "not done with the work: taken to work as long as was stated, or at most allowed"),
        ("so_far", "not done with the work, its length never stated: taken to work as long as so far, which is too short"),
        ("guessed", "never started, the length never stated: taken as the median of the budget's jobs"),
        ("unknown", "never started, and nothing tells the length: left out of the replays"),
        ("not_run", "ended without having run (cancelled while waiting, or refused): left out of the replays"),
    )
    for how, sentence in sentences:
        if counts[how]:
            yield f"{_jobs(counts[how])} {sentence}"


def _repeated(jobs: Sequence[PastJob]) -> Iterable[str]:
    twice = sum(job.resumable and sum(each.outcome in ("evicted", "node_lost") for each in job.attempts) > 0 for job in jobs)
    if twice:
        yield (
            f"{_jobs(twice)} resumed after an eviction or a lost node, or still to resume: no service keeps what was saved, so all "
            "time held counts as work, which is too long by what was lost"
        )
    lost = sum(each.outcome == "node_lost" for job in jobs for each in job.attempts)
    if lost:
        attempts = "1 attempt" if lost == 1 else f"{lost:,} attempts"
        yield f"{attempts} ended because a node was lost; in the replays no node fails"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
