"""Half-life: how much a bucket still counts at its age, as an integer weight (contract §3, decision 0019).

The table is made with decimal arithmetic, so that it is the same on every machine. Never holds a float.
"""

from decimal import Context, Decimal
from itertools import accumulate
from typing import Final, NamedTuple

from allmende.ledger.model import BUCKET_MS
from allmende.proto.units import Ms

WEIGHT_BITS: Final = 32
WEIGHT_ONE: Final = 1 << WEIGHT_BITS
# Far more digits than the ten of a weight: no rounding of the power reaches them.
_DECIMAL: Final = Context(prec=40)


def weights(half_life_ms: Ms, buckets: int) -> tuple[int, ...]:
    """Weights by age in buckets, the current one first, `buckets` of them: `round(2^32 x 2^(-age x bucket / half-life))`."""
    return tuple(_weight(age, half_life_ms) for age in range(buckets))


def _weight(age: int, half_life_ms: Ms) -> int:
    halvings = _DECIMAL.divide(Decimal(-age * BUCKET_MS), Decimal(half_life_ms))
    return int(_DECIMAL.multiply(_DECIMAL.power(Decimal(2), halvings), WEIGHT_ONE).to_integral_value())


class Weights(NamedTuple):
    """Weights by age, of which the first is that of the bucket that begins at `bucket_ms`."""

    by_age: tuple[int, ...]
    bucket_ms: Ms


class Aging(NamedTuple):
    """A table of weights, and their sums: `sums[n]` is the sum of the first n."""

    weights: tuple[int, ...]
    sums: tuple[int, ...]

    def at(self, now_ms: Ms) -> Weights:
        """The table as of an instant."""
        return Weights(self.weights, now_ms - now_ms % BUCKET_MS)

    def over(self, from_ms: Ms, to_ms: Ms, now_ms: Ms) -> int:
        """The sum of the weights of the buckets of `[from_ms, to_ms)`, both on edges, at an instant not before the last one begins.

        What is older than the table weighs nothing.
        """
        edge_ms = now_ms - now_ms % BUCKET_MS + BUCKET_MS
        last = len(self.weights)
        return self.sums[min((edge_ms - from_ms) // BUCKET_MS, last)] - self.sums[min((edge_ms - to_ms) // BUCKET_MS, last)]


def aging(half_life_ms: Ms, window_ms: Ms) -> Aging:
    """The table for a look-back: its whole buckets and the current one."""
    table = weights(half_life_ms, window_ms // BUCKET_MS + 1)
    return Aging(table, (0, *accumulate(table)))
