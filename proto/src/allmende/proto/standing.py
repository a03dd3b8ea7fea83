"""Exact ratios and standings: how much of what it is owed a budget has had.

No float: a ratio is a pair of integers and comparison is cross-multiplication. Zero entitlement sorts after everything.
"""

from collections.abc import Iterable, Mapping
from functools import total_ordering
from typing import NamedTuple

from allmende.proto.units import PPM_WHOLE, GpuMs, Ppm


@total_ordering
class Ratio:
    """`used / entitlement`, compared exactly. Without entitlement it is infinite, even unused: two such are equal.

    Contract §4: "Zero entitlement sorts last, never NaN."
    """

    __slots__ = ("entitlement", "used")

    def __init__(self, used: GpuMs, entitlement: GpuMs) -> None:
        if used < 0 or entitlement < 0:
            raise ValueError(f"a ratio of negative amounts: {used}/{entitlement}")
        self.used = used
        self.entitlement = entitlement

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ratio):
            return NotImplemented
        if not self.entitlement or not other.entitlement:
            return self.entitlement == other.entitlement
        return self.used * other.entitlement == other.used * self.entitlement

    def __lt__(self, other: "Ratio") -> bool:
        if not self.entitlement:
            return False
        if not other.entitlement:
            return True
        return self.used * other.entitlement < other.used * self.entitlement

    __hash__ = None  # type: ignore[assignment]  # equal ratios of different amounts must not be dictionary keys

    def __repr__(self) -> str:
        return f"Ratio({self.used}, {self.entitlement})"

    def plus(self, margin_ppm: Ppm) -> "Ratio":
        """This ratio plus a margin in parts per million, exactly: used/ent + m/10^6 = (used x 10^6 + m x ent) / (ent x 10^6)."""
        return Ratio(self.used * PPM_WHOLE + margin_ppm * self.entitlement, self.entitlement * PPM_WHOLE)


class Standing(NamedTuple):
    """One budget on one cluster: `used` = charged + held, both in GPU-ms over the look-back window."""

    used: GpuMs
    entitlement: GpuMs

    @property
    def ratio(self) -> Ratio:
        """`used / entitlement`."""
        return Ratio(self.used, self.entitlement)

    @property
    def guaranteed(self) -> bool:
        """True below 1: the budget is owed time (contract §4, first tier)."""
        return self.used < self.entitlement

    @property
    def shortfall(self) -> GpuMs:
        """What is owed, in GPU-ms; negative when over-served."""
        return self.entitlement - self.used

    def after(self, hold: GpuMs) -> "Standing":
        """The standing once `hold` counts as well."""
        return Standing(self.used + hold, self.entitlement)


def with_holds(standings: Mapping[str, Standing], holds: Iterable[tuple[tuple[str, ...], GpuMs]]) -> dict[str, Standing]:
    """Add holds that the ledger has not counted yet, each to every budget on its path (root first, leaf last).

    Budgets without a standing are left out: unknown is not zero.
    """
    result = dict(standings)
    for path, hold in holds:
        for budget in path:
            if budget in result:
                result[budget] = result[budget].after(hold)
    return result
