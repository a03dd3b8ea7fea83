"""Chance that depends on a seed and on names alone: the same draw whatever happened before it. Pure."""

import hashlib
import math
from statistics import NormalDist

from allmende.proto.units import Ms

_NORMAL = NormalDist()
# The 95th percentile of the standard normal distribution.
_Z95 = _NORMAL.inv_cdf(0.95)


def uniform(seed: int, *names: object) -> float:
    """A number strictly between 0 and 1 that the seed and the names decide."""
    text = "/".join(map(str, (seed, *names)))
    drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())
    # 48 bits and a half: exactly representable, and never 0 or 1, where quantiles are infinite.
    return (drawn + 0.5) / (1 << 48)


def lognormal_ms(at: float, *, median_ms: Ms, p95_ms: Ms) -> Ms:
    """The quantile `at` (between 0 and 1) of the lognormal distribution with this median and 95th percentile, in whole ms."""
    sigma = math.log(p95_ms / median_ms) / _Z95
    return round(median_ms * math.exp(sigma * _NORMAL.inv_cdf(at)))
