"""The clocks: the lab's time, real or scaled, and elapsed real time. With `entropy` the only reader of the system's clock.

A scaled run shares origin and rate among all its processes, so that they agree on `now_ms` without talking to each other.
"""

import asyncio
import time

from allmende.chassis.errors import Misconfigured
from allmende.chassis.ports import Clock
from allmende.proto.units import LATEST_INSTANT_MS, Ms

_NS_PER_MS = 1_000_000
# A wall clock that is set anew is noticed within this time; more often would wake idle services for nothing.
_LONGEST_SLEEP_S = 10.0
# A year in five minutes. Beyond it one real millisecond is more than the shortest grace, and timers lose their meaning.
_RATE_MAX = 100_000


class ScaledClock:
    """`now = origin_ms + (real - real_origin_ms) x rate`, in whole milliseconds. Never goes backwards within a process."""

    def __init__(self, real_origin_ms: Ms, origin_ms: Ms, rate: int) -> None:
        if not 1 <= rate <= _RATE_MAX:
            raise ValueError(f"a clock's rate is between 1 and {_RATE_MAX}, not {rate}")
        self._real_origin_ns = real_origin_ms * _NS_PER_MS
        self._origin_ms = origin_ms
        self._rate = rate
        self._latest_ms = 0

    @property
    def rate(self) -> int:
        """Clock milliseconds per real millisecond."""
        return self._rate

    def now_ms(self) -> Ms:
        """The instant, in clock milliseconds since the epoch, UTC."""
        passed_ms = (time.time_ns() - self._real_origin_ns) * self._rate // _NS_PER_MS
        # A wall clock that is set back stops ours until it has caught up: going back would undo deadlines.
        self._latest_ms = max(self._latest_ms, self._origin_ms + passed_ms)
        return self._latest_ms

    async def sleep_until(self, instant_ms: Ms) -> None:
        """Return once `now_ms() >= instant_ms`; at once when that has passed."""
        while (left_s := real_delay_s(self, instant_ms)) > 0:  # noqa: ASYNC110 time is no event
            await asyncio.sleep(min(left_s, _LONGEST_SLEEP_S))


class RealClock(ScaledClock):
    """The system's clock."""

    def __init__(self) -> None:
        super().__init__(0, 0, 1)


def parse_clock(text: str) -> Clock:
    """Read the setting `clock`: `real`, or `REAL_MS:ORIGIN_MS:RATE` (at real REAL_MS it shows ORIGIN_MS; RATE times as fast).

    Raises:
        Misconfigured: anything else.
    """
    if text == "real":
        return RealClock()
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise Misconfigured(
            f"clock {text!r} is neither real nor REAL_MS:ORIGIN_MS:RATE, for example 1764633600000:1507161600000:360"
        )
    real_origin_ms, origin_ms, rate = (int(part) for part in parts)
    if max(real_origin_ms, origin_ms) > LATEST_INSTANT_MS or not 1 <= rate <= _RATE_MAX:
        raise Misconfigured(
            f"clock {text!r}: instants are milliseconds before the year 2100, the rate is between 1 and {_RATE_MAX}"
        )
    return ScaledClock(real_origin_ms, origin_ms, rate)


def real_delay_s(clock: Clock, instant_ms: Ms) -> float:
    """Real seconds until the clock shows an instant; 0 when it has passed. For waiting only, never for accounts."""
    return max(0, instant_ms - clock.now_ms()) / (1_000 * clock.rate)


def real_seconds() -> float:
    """Elapsed real seconds since some fixed moment, for liveness and time-outs. Where it can, it counts suspended time too."""
    boottime = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(boottime)


def real_ms_since(real_ns: int) -> int:
    """Real milliseconds since an instant of some server's clock, in nanoseconds since the epoch; 0 where that lies ahead."""
    return max(0, time.time_ns() - real_ns) // _NS_PER_MS
