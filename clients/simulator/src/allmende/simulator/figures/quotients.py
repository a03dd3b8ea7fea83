"""The last division: exact integers become the numbers that people read. Nowhere else in the figures is there a float."""

from collections.abc import Sequence

from allmende.proto.units import HOUR_MS, SECOND_MS, GpuMs, Ms

DECIMALS = 6


def quotient(part: int, whole: int) -> float | None:
    """`part / whole` to six decimals; None where there is no whole."""
    return round(part / whole, DECIMALS) if whole else None


def hours(amount: GpuMs) -> float:
    """GPU-hours."""
    return round(amount / HOUR_MS, DECIMALS)


def seconds(length_ms: Ms) -> float:
    """Seconds."""
    return round(length_ms / SECOND_MS, DECIMALS)


def nearest_rank(sorted_values: Sequence[int], percent: int) -> int:
    """The smallest value with at least `percent` of all values at or below it. `sorted_values` is ascending and not empty."""
    return sorted_values[-(-len(sorted_values) * percent // 100) - 1]
