"""The last division: exact integers become the numbers that people read. Nowhere else in the figures is there a float."""

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
