"""What is drawn by chance: how long jobs take to leave, when nodes fail and how long a repair takes.

Each draw has a stream of its own name, so that it is the same under every policy. Never draws anything about what jobs arrive.
"""

import random
from math import exp, log

from allmende.proto.units import PPM_WHOLE, Ms
from allmende.simulator.model import Failures, Leaving

# The 95th percentile of a standard normal distribution.
_Z95 = 1.6448536269514722


def lognormal_ms(chance: random.Random, median_ms: Ms, p95_ms: Ms) -> Ms:
    """A log-normal length with this median and 95th percentile, in ms, at least 1."""
    sigma = log(max(p95_ms, median_ms + 1) / median_ms) / _Z95
    return max(1, round(median_ms * exp(chance.gauss(0.0, sigma))))


def leaving_ms(seed: int, job: str, time: int, leaving: Leaving, grace_ms: Ms) -> Ms:
    """How long the job's `time`-th end takes after SIGTERM; never longer than its notice, at whose end it is killed."""
    chance = random.Random(f"{seed}/leaving/{job}/{time}")
    if chance.randrange(PPM_WHOLE) < leaving.ignore_ppm:
        return grace_ms
    return min(grace_ms, lognormal_ms(chance, leaving.median_ms, leaving.p95_ms))


class Trouble:
    """The failures and repairs of one node, in turn."""

    def __init__(self, seed: int, node: str, failures: Failures) -> None:
        self._chance, self._failures = random.Random(f"{seed}/failures/{node}"), failures

    def up_ms(self) -> Ms:
        """How long the node works before it fails next."""
        return max(1, round(self._chance.expovariate(1.0) * self._failures.mean_between_ms))

    def down_ms(self) -> Ms:
        """How long its repair takes."""
        return lognormal_ms(self._chance, self._failures.repair_median_ms, self._failures.repair_p95_ms)
