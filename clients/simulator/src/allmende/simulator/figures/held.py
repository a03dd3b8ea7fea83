"""What was held and what was asked for: one pass over the attempts and one over the jobs, into totals and hours.

Occupied is from start to end, the time of leaving included; the time from grant to start is starting, held by nobody's budget.
Never judges whether it was deserved.
"""

from collections import defaultdict

from msgspec import Struct

from allmende.proto.units import PPM_WHOLE, GpuMs, Ms
from allmende.simulator.figures.span import HourSums, Span
from allmende.simulator.model import History, Life, Run


class Held(Struct):
    """Sums over the span. `*_ppm_ms` are GPU-ms times parts per million, so that busy time stays an integer until the end."""

    span: Span
    delivered: dict[str, HourSums]
    """By leaf: what its allocated attempts occupied."""
    past_slice: dict[str, HourSums]
    """The part of it after `protected_until`."""
    unallocated: HourSums
    starting: HourSums
    busy_ppm_ms: dict[str | None, int]
    """By leaf; None: unallocated."""
    tag_held: dict[str, GpuMs]
    tag_busy_ppm_ms: dict[str, int]


def charged(life: Life) -> str | None:
    """The leaf that a job's demand belongs to; None: it is unallocated, or was refused.

    A job that never had a grant is charged to nobody yet: then its own words count, a budget and a slice above 0.
    """
    if life.end == "refused":
        return None
    if life.attempts:
        return life.leaf
    return life.job.budget if life.job.slice_ms > 0 else None


def past_slice_from_ms(run: Run) -> Ms:
    """From when an attempt is interruptible: unallocated from its first second, allocated after its protection."""
    assert run.started_at_ms is not None, "asked only of attempts that started"
    if run.leaf is None:
        return run.started_at_ms
    return run.started_at_ms + run.slice_ms if run.protected_until_ms is None else run.protected_until_ms


def held(history: History, span: Span) -> Held:
    """One pass over the attempts."""
    sums = Held(span, {}, {}, HourSums(span), HourSums(span), defaultdict(int), defaultdict(int), defaultdict(int))
    for run in history.runs:
        if run.ended_at_ms <= span.from_ms or run.granted_at_ms >= span.to_ms:
            continue
        started_ms = run.ended_at_ms if run.started_at_ms is None else run.started_at_ms
        gpus = run.gpus
        sums.starting.add(gpus, run.granted_at_ms, started_ms)
        if run.started_at_ms is not None:
            _occupied(sums, run, history.lives[run.job], gpus)
    return sums


def _occupied(sums: Held, run: Run, life: Life, gpus: int) -> None:
    assert run.started_at_ms is not None, "asked only of attempts that started"
    if run.leaf is None:
        amount = sums.unallocated.add(gpus, run.started_at_ms, run.ended_at_ms)
    else:
        if run.leaf not in sums.delivered:
            sums.delivered[run.leaf], sums.past_slice[run.leaf] = HourSums(sums.span), HourSums(sums.span)
        amount = sums.delivered[run.leaf].add(gpus, run.started_at_ms, run.ended_at_ms)
        sums.past_slice[run.leaf].add(gpus, max(run.started_at_ms, past_slice_from_ms(run)), run.ended_at_ms)
    busy = amount * life.job.busy_ppm
    sums.busy_ppm_ms[run.leaf] += busy
    if life.job.tag:
        sums.tag_held[life.job.tag] += amount
        sums.tag_busy_ppm_ms[life.job.tag] += busy


def demand(history: History, span: Span) -> dict[str, HourSums]:
    """GPU-ms that the allocated jobs of each leaf asked for, running or waiting, by hour."""
    sums: dict[str, HourSums] = {}
    for life in history.lives.values():
        leaf = charged(life)
        if leaf is None:
            continue
        if leaf not in sums:
            sums[leaf] = HourSums(span)
        sums[leaf].add(life.job.gpus, life.submitted_at_ms, span.to_ms if life.ended_at_ms is None else life.ended_at_ms)
    return sums


def busy_ms(busy_ppm_ms: int) -> GpuMs:
    """Device-busy GPU-ms, rounded down once."""
    return busy_ppm_ms // PPM_WHOLE
