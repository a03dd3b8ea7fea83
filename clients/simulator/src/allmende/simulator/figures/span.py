"""The measured span, and sums over it: amounts cut at its ends and at each hour, exactly.

An interval costs the same however long it is. Never rounds: amounts are integers, and an interval across an edge is split there.
"""

from itertools import accumulate
from typing import NamedTuple

from allmende.proto.units import HOUR_MS, GpuMs, Ms
from allmende.simulator.model import History


class Span(NamedTuple):
    """`[from_ms, to_ms)`; hours are counted from `from_ms`, the last may be shorter."""

    from_ms: Ms
    to_ms: Ms

    @property
    def length_ms(self) -> Ms:
        """0 where the run never reached the window."""
        return self.to_ms - self.from_ms

    @property
    def hours(self) -> int:
        """Hours, a last partial one included."""
        return -(-self.length_ms // HOUR_MS)

    def has(self, at_ms: Ms) -> bool:
        """Whether the instant lies in the span."""
        return self.from_ms <= at_ms < self.to_ms

    def hour(self, at_ms: Ms) -> int:
        """The number of the hour in which an instant of the span lies."""
        return (at_ms - self.from_ms) // HOUR_MS

    def clip(self, from_ms: Ms, to_ms: Ms) -> tuple[Ms, Ms]:
        """The part of an interval that lies in the span; empty where its end is not after its beginning."""
        return max(from_ms, self.from_ms), min(to_ms, self.to_ms)

    def overlap_ms(self, from_ms: Ms, to_ms: Ms) -> Ms:
        """How much of an interval lies in the span."""
        begin_ms, end_ms = self.clip(from_ms, to_ms)
        return max(0, end_ms - begin_ms)


def measured(history: History) -> Span:
    """The window as far as the clock came, `[from, min(to, reached))`; empty where it came less far than the warm-up."""
    window = history.window
    return Span(window.from_ms, max(window.from_ms, min(window.to_ms, history.reached_ms)))


class HourSums:
    """Amounts by hour of a span. Whole hours of an interval are kept as two marks, so adding is O(1)."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._parts = [0] * span.hours
        self._marks = [0] * (span.hours + 1)

    def add(self, gpus: int, from_ms: Ms, to_ms: Ms) -> GpuMs:
        """Add `gpus` during an interval; returns the amount that lies in the span."""
        span = self.span
        from_ms, to_ms = span.clip(from_ms, to_ms)
        if from_ms >= to_ms:
            return 0
        first, last = span.hour(from_ms), span.hour(to_ms - 1)
        if first == last:
            self._parts[first] += gpus * (to_ms - from_ms)
        else:
            self._parts[first] += gpus * (span.from_ms + (first + 1) * HOUR_MS - from_ms)
            self._parts[last] += gpus * (to_ms - span.from_ms - last * HOUR_MS)
            self._marks[first + 1] += gpus
            self._marks[last] -= gpus
        return gpus * (to_ms - from_ms)

    def by_hour(self) -> tuple[GpuMs, ...]:
        """GPU-ms of each hour."""
        whole = accumulate(self._marks[:-1])
        return tuple(part + gpus * HOUR_MS for part, gpus in zip(self._parts, whole, strict=True))
