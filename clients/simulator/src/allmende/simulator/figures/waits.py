"""How long allocated jobs of the window waited for their first start, by class, and the large ones that never started.

A job belongs to the window in which it was submitted, so that two policies are judged on the same jobs. What ended without a start
counts with its wait until then; refused jobs do not count. Never counts unallocated jobs: no service is promised to them.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from allmende.proto.impact import SIZE_CLASSES, VERY_LARGE_GPUS, nearest_rank
from allmende.proto.units import Ms
from allmende.simulator.figures.held import charged
from allmende.simulator.figures.model import NeverStarted, Waits
from allmende.simulator.figures.quotients import hours, quotient, seconds
from allmende.simulator.figures.span import Span
from allmende.simulator.model import History, Life, Promise


class Wait(NamedTuple):
    """One job's wait. `open`: it had neither started nor ended at the end of the span."""

    job: str
    leaf: str
    gpus: int
    slice_ms: Ms
    submitted_at_ms: Ms
    waited_ms: Ms
    open: bool


def waits(history: History, span: Span) -> list[Wait]:
    """The waits of the allocated jobs that were submitted in the span, in the order of their submission."""
    return [_wait(life, leaf, span) for life, leaf in _allocated(history) if span.has(life.submitted_at_ms)]


def percentiles(listed: Iterable[Wait]) -> Waits:
    """p50, p90 and the longest wait, by nearest rank."""
    members = list(listed)
    if not members:
        return Waits(p50=None, p90=None, max=None, jobs=0, never_started=0)
    waited = sorted(wait.waited_ms for wait in members)
    return Waits(
        p50=seconds(nearest_rank(waited, 50)),
        p90=seconds(nearest_rank(waited, 90)),
        max=seconds(waited[-1]),
        jobs=len(members),
        never_started=sum(wait.open for wait in members),
    )


def by_class(listed: list[Wait]) -> dict[str, Waits]:
    """The percentiles of each class."""
    return {
        name: percentiles(wait for wait in listed if belongs(wait.gpus, wait.slice_ms)) for name, belongs in SIZE_CLASSES.items()
    }


def never_started(history: History, span: Span) -> tuple[NeverStarted, ...]:
    """Allocated jobs of 256 GPUs and more that still waited at the end, whenever they came; the longest wait first."""
    promised = {each.job: each for each in history.promises if each.at_ms < span.to_ms}
    last = next((each.standings for each in reversed(history.standings) if each.at_ms <= span.to_ms), {})
    found: list[NeverStarted] = []
    for life, leaf in _allocated(history):
        if life.job.gpus < VERY_LARGE_GPUS or life.submitted_at_ms >= span.to_ms:
            continue
        wait = _wait(life, leaf, span)
        if wait.open:
            found.append(_reasons(wait, promised.get(wait.job), last.get(leaf), span))
    return tuple(sorted(found, key=lambda each: (-each.waited_s, each.job)))


def _allocated(history: History) -> Iterator[tuple[Life, str]]:
    for life in history.lives.values():
        leaf = charged(life)
        if leaf is not None:
            yield life, leaf


def _wait(life: Life, leaf: str, span: Span) -> Wait:
    ends = [each for each in (life.first_started_at_ms, life.ended_at_ms) if each is not None and each < span.to_ms]
    until_ms = min(ends, default=span.to_ms)
    job = life.job
    return Wait(job.job, leaf, job.gpus, job.slice_ms, life.submitted_at_ms, max(0, until_ms - life.submitted_at_ms), not ends)


def _reasons(wait: Wait, promise: Promise | None, standing: tuple[int, int] | None, span: Span) -> NeverStarted:
    used, entitlement = standing or (None, None)
    over = used is not None and entitlement is not None and used >= entitlement
    if promise is not None:
        why = "promise overdue" if promise.by_ms < span.to_ms else "promised"
    else:
        why = "over budget" if over else "waiting"
    return NeverStarted(
        job=wait.job,
        budget=wait.leaf,
        gpus=wait.gpus,
        waited_s=seconds(wait.waited_ms),
        promised_by_ms=None if promise is None else promise.by_ms,
        charged_gpu_hours=None if used is None else hours(used),
        entitled_gpu_hours=None if entitlement is None else hours(entitlement),
        ratio=None if used is None or entitlement is None else quotient(used, entitlement),
        why=why,
    )
