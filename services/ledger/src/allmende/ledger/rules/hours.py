"""A span in hours of UTC, and sums over it: an interval costs the same however long it is, and is cut at each hour exactly."""

from itertools import accumulate
from typing import NamedTuple

from allmende.proto.units import HOUR_MS, GpuMs, Ms


class Span(NamedTuple):
    """`[from_ms, to_ms)`; `from_ms` is a full hour, the last hour may be shorter."""

    from_ms: Ms
    to_ms: Ms

    @property
    def hours(self) -> int:
        """Hours, a last partial one included."""
        return max(0, -(-(self.to_ms - self.from_ms) // HOUR_MS))

    def has(self, at_ms: Ms) -> bool:
        """Whether the instant lies in the span."""
        return self.from_ms <= at_ms < self.to_ms

    def begins(self, hour: int) -> Ms:
        """When an hour of the span begins."""
        return self.from_ms + hour * HOUR_MS

    def hour_of(self, at_ms: Ms) -> int:
        """The number of the hour in which an instant lies."""
        return (at_ms - self.from_ms) // HOUR_MS

    def clip(self, from_ms: Ms, to_ms: Ms) -> tuple[Ms, Ms]:
        """The part of an interval that lies in the span; empty where its end is not after its beginning."""
        return max(from_ms, self.from_ms), min(to_ms, self.to_ms)


class HourSums:
    """GPU-ms by hour of a span. What begins in an hour counts in its rest and from then on; what ends there takes it away again."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._parts = [0] * (span.hours + 1)
        self._marks = [0] * (span.hours + 1)

    def add(self, gpus: int, from_ms: Ms, to_ms: Ms) -> None:
        """Add `gpus` during an interval; what lies outside of the span does not count."""
        from_ms, to_ms = self._span.clip(from_ms, to_ms)
        if from_ms < to_ms:
            self._turn(gpus, from_ms)
            self._turn(-gpus, to_ms)

    def _turn(self, gpus: int, at_ms: Ms) -> None:
        hour = self._span.hour_of(at_ms)
        self._parts[hour] += gpus * (self._span.begins(hour + 1) - at_ms)
        self._marks[hour] += gpus

    def by_hour(self) -> tuple[GpuMs, ...]:
        """GPU-ms of each hour."""
        before = accumulate(self._marks, initial=0)
        return tuple(part + gpus * HOUR_MS for part, gpus in zip(self._parts[: self._span.hours], before, strict=False))
