"""How scenarios draw: picks from a table, rounding, and the working week. Every draw comes from a stream with a name.

Never draws from a shared stream, so that the k-th job of a stream is the same whatever happened to the others.
"""

import random
from collections.abc import Sequence
from itertools import accumulate
from math import exp, log
from typing import Final, TypeVar

from allmende.proto.units import DAY_MS, HOUR_MS, Ms, Ppm
from allmende.simulator.model import ORIGIN_MS

Picked = TypeVar("Picked")

# The 95th percentile of a standard normal distribution.
_Z95: Final = 1.6448536269514722

# How likely something is begun in each hour of a working day. Shape: Helios, SC'21 (low at night, dips at lunch and dinner).
_HOURS: Final = (1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 9, 9, 6, 8, 9, 9, 9, 8, 5, 4, 4, 4, 3, 2)
# A day of the weekend against a working day: 52 % in the Philly trace (7,073 against 13,620 submissions a day of the week).
_WEEKEND_PERCENT: Final = 52
_HOURS_OF_WEEK: Final = tuple(100 * weight for weight in _HOURS) * 5 + tuple(_WEEKEND_PERCENT * weight for weight in _HOURS) * 2
_BEFORE_HOUR: Final = (0, *accumulate(_HOURS_OF_WEEK))
_WEEK_MS: Final = 7 * DAY_MS
WORKING_DAY: Final = 100 * sum(_HOURS)
"""The working time of one working day, in the units of `after`."""
WORKING_DAYS_A_WEEK: Final = _BEFORE_HOUR[-1] / WORKING_DAY
"""How much a week holds of what a working day holds: 5 and a little for the weekend."""


def stream(seed: int, *names: str | int) -> random.Random:
    """The stream of that name: the same on every machine and any hash seed."""
    return random.Random("/".join(str(name) for name in (seed, *names)))


def picked(chance: random.Random, table: Sequence[tuple[Picked, int]]) -> Picked:
    """One of the table's values, each as likely as its weight says."""
    at = chance.randrange(sum(weight for _value, weight in table))
    for value, weight in table:
        at -= weight
        if at < 0:
            return value
    raise AssertionError("a table has weights above 0")


def hit(chance: random.Random, ppm: Ppm) -> bool:
    """True in `ppm` of a million draws."""
    return chance.randrange(1_000_000) < ppm


def spread_ms(chance: random.Random, median_ms: Ms, p95_ms: Ms, least_ms: Ms, most_ms: Ms) -> Ms:
    """A log-normal length with this median and 95th percentile, in whole seconds, held between the two bounds."""
    drawn = median_ms * exp(chance.gauss(0.0, log(p95_ms / median_ms) / _Z95))
    return min(most_ms, max(least_ms, round(drawn / 1_000) * 1_000))


def mean_ms(median_ms: Ms, p95_ms: Ms) -> float:
    """The mean of that log-normal without its bounds: median x exp(sigma^2 / 2)."""
    return median_ms * exp((log(p95_ms / median_ms) / _Z95) ** 2 / 2)


def up_to(length_ms: Ms, step_ms: Ms) -> Ms:
    """The length, rounded up to a whole number of steps."""
    return -(-length_ms // step_ms) * step_ms


def after(at_ms: Ms, working: int) -> Ms:
    """The instant at which `working` (in parts of `WORKING_DAY`) of working time has passed since `at_ms`; always later than it."""
    weeks, in_week_ms = divmod(at_ms - ORIGIN_MS, _WEEK_MS)
    hour, in_hour_ms = divmod(in_week_ms, HOUR_MS)
    # In units x ms, so that nothing is lost to rounding.
    goal = working * HOUR_MS + _BEFORE_HOUR[hour] * HOUR_MS + _HOURS_OF_WEEK[hour] * in_hour_ms
    more, goal = divmod(goal, _BEFORE_HOUR[-1] * HOUR_MS)
    hour = next(hour for hour in range(7 * 24) if goal < _BEFORE_HOUR[hour + 1] * HOUR_MS)
    in_hour_ms = (goal - _BEFORE_HOUR[hour] * HOUR_MS) // _HOURS_OF_WEEK[hour]
    return max(at_ms + 1, ORIGIN_MS + (weeks + more) * _WEEK_MS + hour * HOUR_MS + in_hour_ms)


def next_arrival(chance: random.Random, at_ms: Ms, per_working_day: float) -> Ms:
    """When the next of an open stream comes: exponential gaps in working time."""
    return after(at_ms, round(chance.expovariate(per_working_day) * WORKING_DAY))
