"""When nodes of a synthetic cluster fail, and for how long. Pure: a seed decides."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from allmende.agent.synthetic.chance import lognormal_ms, uniform
from allmende.proto.units import DAY_MS, MINUTE_MS, Ms

# A reboot takes 20 minutes with its tests; one in twenty waits for a hand.
DOWN_MEDIAN_MS: Ms = 20 * MINUTE_MS
DOWN_P95_MS: Ms = 240 * MINUTE_MS


class Failure(NamedTuple):
    """One node (by its index) goes down at an instant and is back after `down_ms`."""

    at_ms: Ms
    node: int
    down_ms: Ms


def failures(seed: int, nodes: int, per_day: int, from_ms: Ms) -> Iterator[Failure]:
    """The failures of `nodes` nodes from an instant on, without end, in order; a Poisson process of `per_day` a day."""
    at_ms, number = from_ms, 0
    while per_day:
        # The distance of two events of a Poisson process is exponential: -log(u) times the mean.
        at_ms += max(1, round(-math.log(uniform(seed, "failure", number, "after")) * DAY_MS / per_day))
        node = int(uniform(seed, "failure", number, "node") * nodes)
        down_ms = lognormal_ms(uniform(seed, "failure", number, "down"), median_ms=DOWN_MEDIAN_MS, p95_ms=DOWN_P95_MS)
        yield Failure(at_ms, node, down_ms)
        number += 1
