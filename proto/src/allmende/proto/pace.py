"""Pace: when a budget comes to 100 % of its entitlement if everything goes on as it did. Exact integers, an honest "unknown".

The gap between entitlement and use is looked at twice: now, and at the oldest sample that is kept. Two points and not a fitted
line, because that can be said to people in one sentence. Never a promise: the next grant may change it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

from allmende.proto.units import DAY_MS, HOUR_MS, GpuMs, Ms

# One sample an hour for a day: more would not make it truer, since slices take hours, and a day has its night in it.
SAMPLE_EVERY_MS: Ms = HOUR_MS
SAMPLES_KEPT_MS: Ms = DAY_MS
# From less, one job's start would look like a trend.
HISTORY_LEAST_MS: Ms = 6 * HOUR_MS
# The default look-back. Farther away, all that counts today has left the window.
HORIZON_MS: Ms = 7 * DAY_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Not strftime: its names follow the process's locale.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Sample(NamedTuple):
    """One budget on one cluster at an instant: `used` = charged + held, both GPU-ms over the look-back window."""

    at_ms: Ms
    used: GpuMs
    entitlement: GpuMs


Pace: TypeAlias = Ms | Literal["unknown", "not_soon"]
"""The instant of 100 %; or that too little is known; or that it is not reached within a week at this rate."""


def pace(history: Sequence[Sample], now: Sample) -> Pace:
    """When `used` comes to `entitlement` at the rate of the last day.

    With gap = entitlement - used, over the time from the oldest usable sample to now: 100 % comes after
    ceil(gap x time / (old gap - gap)). Samples of any order; older than a day or not before now they do not count. A budget without
    entitlement has no percentage, so no pace.
    """
    usable = [each for each in history if now.at_ms - SAMPLES_KEPT_MS <= each.at_ms <= now.at_ms - HISTORY_LEAST_MS]
    usable = [each for each in usable if each.entitlement]
    if not usable or not now.entitlement:
        return "unknown"
    gap = now.entitlement - now.used
    if gap <= 0:
        return now.at_ms
    old = min(usable)
    closed = old.entitlement - old.used - gap
    if closed <= 0:
        return "not_soon"
    left_ms = -(-gap * (now.at_ms - old.at_ms) // closed)
    return now.at_ms + left_ms if left_ms <= HORIZON_MS else "not_soon"


def is_sample_due(last_ms: Ms | None, at_ms: Ms) -> bool:
    """Whether a standing of this instant is kept as a sample. One that came late never is."""
    return last_ms is None or at_ms >= last_ms + SAMPLE_EVERY_MS


def day_and_time(instant_ms: Ms) -> str:
    """An instant as people plan by it: `Thursday 2026-12-10 14:00 UTC`, rounded up to the minute."""
    at = _EPOCH + timedelta(minutes=-(-instant_ms // 60_000))
    return f"{_WEEKDAYS[at.weekday()]} {at:%Y-%m-%d %H:%M} UTC"
