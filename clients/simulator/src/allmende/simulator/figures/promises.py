"""Whether reservations kept their word: a job starts no later than its first promise said.

A promise belongs to one wait: a job that is evicted waits anew and may be promised anew. It is about when room is granted, so the
agent's own time from grant to start is allowed on top. Never counts a promise that a failing node moved as kept or broken.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from allmende.proto.units import Ms
from allmende.simulator.figures.span import Span
from allmende.simulator.model import History, Life, Promise

Outcome: TypeAlias = Literal["kept", "broken", "open", "withdrawn", "moved_by_failure"]


class Promises(NamedTuple):
    """Promises made in the span, one for each wait of a job, and what became of them. `made` is the sum of the others."""

    made: int
    kept: int
    broken: int
    open: int
    withdrawn: int
    moved_by_failure: int


def promises(history: History, span: Span) -> Promises:
    """Count by outcome, as far as the span tells."""
    counts: dict[Outcome, int] = {"kept": 0, "broken": 0, "open": 0, "withdrawn": 0, "moved_by_failure": 0}
    by_job: dict[str, list[Promise]] = defaultdict(list)
    for promise in history.promises:
        by_job[promise.job].append(promise)
    starts: dict[str, list[Ms]] = defaultdict(list)
    for run in history.runs:
        if run.job in by_job and run.started_at_ms is not None:
            starts[run.job].append(run.started_at_ms)
    for job, said in by_job.items():
        for wait, started_ms in _by_wait(said, sorted(starts[job])):
            if span.has(wait[0].at_ms):
                counts[_outcome(wait, started_ms, history.lives[job], history.cluster.start_ms, span)] += 1
    return Promises(sum(counts.values()), **counts)


def _by_wait(said: list[Promise], starts: list[Ms]) -> Iterator[tuple[list[Promise], Ms | None]]:
    """The promises of each wait, and the start that ended it."""
    waits: dict[int, list[Promise]] = {}
    for promise in said:
        waits.setdefault(bisect_left(starts, promise.at_ms), []).append(promise)
    for number, wait in waits.items():
        yield wait, starts[number] if number < len(starts) else None


def _outcome(wait: list[Promise], started_ms: Ms | None, life: Life, start_ms: Ms, span: Span) -> Outcome:
    # A word that is not later than the first moves nothing, whatever caused it.
    if any(promise.moved_by_failure and promise.by_ms > wait[0].by_ms for promise in wait):
        return "moved_by_failure"
    latest_ms = wait[0].by_ms + start_ms
    if started_ms is not None and started_ms < span.to_ms:
        return "kept" if started_ms <= latest_ms else "broken"
    if life.ended_at_ms is not None and life.ended_at_ms < span.to_ms:
        return "withdrawn" if life.ended_at_ms <= latest_ms else "broken"
    return "open" if latest_ms >= span.to_ms else "broken"
