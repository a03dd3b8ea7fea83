"""Evictions and what they cost: counts, lost work, and the one thing that must never happen, an eviction inside a slice.

An eviction, a failure and its loss count at the instant the attempt ended; an order counts when it was given. What an attempt lost
is not split at the window's edge. Never divides.
"""

from collections import defaultdict

from msgspec import Struct

from allmende.proto.units import GpuMs
from allmende.simulator.figures.span import Span
from allmende.simulator.model import History, Run


class Losses(Struct):
    """Counts and GPU-ms over the span. Keys None: unallocated."""

    evictions: dict[str | None, int]
    evicted_ms: dict[str | None, GpuMs]
    """Lost to evictions."""
    failed_ms: dict[str | None, GpuMs]
    """Lost to nodes that failed."""
    by_hour: list[int]
    by_tag: dict[str, int]
    most: int = 0
    """Evictions of one job over its whole life, where at least one lies in the span."""
    most_allocated: int = 0
    violations: int = 0

    @property
    def allocated(self) -> int:
        """Evictions of allocated attempts."""
        return sum(count for leaf, count in self.evictions.items() if leaf is not None)


def losses(history: History, span: Span) -> Losses:
    """One pass over the attempts."""
    found = Losses(defaultdict(int), defaultdict(int), defaultdict(int), [0] * span.hours, defaultdict(int))
    lives_evictions: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    touched: dict[str, None] = {}
    for run in history.runs:
        found.violations += _violates(run, span)
        if run.end == "evicted" and run.ended_at_ms < span.to_ms:
            counts = lives_evictions[run.job]
            counts[0] += 1
            counts[1] += run.leaf is not None
        if not span.has(run.ended_at_ms):
            continue
        if run.end == "evicted":
            touched[run.job] = None
            found.evictions[run.leaf] += 1
            found.evicted_ms[run.leaf] += run.lost_gpu_ms
            found.by_hour[span.hour(run.ended_at_ms)] += 1
            found.by_tag[history.lives[run.job].job.tag] += 1
        elif run.end == "node_lost":
            found.failed_ms[run.leaf] += run.lost_gpu_ms
    found.most = max((lives_evictions[job][0] for job in touched), default=0)
    found.most_allocated = max((lives_evictions[job][1] for job in touched), default=0)
    return found


def _violates(run: Run, span: Span) -> bool:
    """An allocated attempt that was told to leave before its protection was over, or before it even had one."""
    if run.leaf is None or run.ordered_at_ms is None or not span.has(run.ordered_at_ms):
        return False
    return run.protected_until_ms is None or run.ordered_at_ms < run.protected_until_ms
