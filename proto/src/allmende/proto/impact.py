"""How well a cluster served its teams: the definitions of contract §10, which ledger and simulator share.

Pure sums of integers. Never divides, but by choosing a rank; never reads a history.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, GpuMs, Ms

# A team counts as served from here on: Ai2's own line (contract §10).
SERVED_PERCENT = 95
HOURS_A_WEEK = 7 * DAY_MS // HOUR_MS

# Contract §10: debug = at most 8 GPUs and slice at most 15 min. Slice 0 is unallocated work, to which no service is promised.
DEBUG_GPUS = 8
DEBUG_SLICE_MS = 15 * MINUTE_MS
# Eight whole nodes: from here on a job needs holes that open only by gathering nodes.
LARGE_GPUS = 64
# Issue 3 compares jobs of this size with FIFO.
VERY_LARGE_GPUS = 256

SizeClass: TypeAlias = Callable[[int, Ms], bool]
"""Whether a job of so many GPUs and such a slice belongs to it."""

# A job may be in several: `debug`, `all` and `large` are for people, the others split all jobs by size.
SIZE_CLASSES: Mapping[str, SizeClass] = {
    "debug": lambda gpus, slice_ms: gpus <= DEBUG_GPUS and 0 < slice_ms <= DEBUG_SLICE_MS,
    "all": lambda _gpus, _slice_ms: True,
    "gpus_1_8": lambda gpus, _slice_ms: gpus <= 8,
    "gpus_9_63": lambda gpus, _slice_ms: 9 <= gpus <= 63,
    "gpus_64_255": lambda gpus, _slice_ms: LARGE_GPUS <= gpus < VERY_LARGE_GPUS,
    "gpus_256": lambda gpus, _slice_ms: gpus >= VERY_LARGE_GPUS,
    "large": lambda gpus, _slice_ms: gpus >= LARGE_GPUS,
}
SIZE_TITLES: Mapping[str, str] = {
    "debug": "debug: to 8 GPUs, slice to 15 min",
    "all": "all allocated jobs",
    "gpus_1_8": "1 to 8 GPUs",
    "gpus_9_63": "9 to 63 GPUs",
    "gpus_64_255": "64 to 255 GPUs",
    "gpus_256": "256 GPUs and more",
    "large": "64 GPUs and more",
}


class Impact(NamedTuple):
    """Sums over hours, in GPU-ms. `strict` and `weekly` are what counts as delivered after the cap."""

    owed: GpuMs
    delivered: GpuMs
    strict: GpuMs
    weekly: GpuMs


def impact(owed: Sequence[GpuMs], delivered: Sequence[GpuMs]) -> Impact:
    """One leaf's sums over the same hours, where `owed(h) = min(entitlement in h, demand(h))`.

    Strict is capped hour by hour, weekly by each seven days from the first hour on; a last shorter week is one of its own.
    """
    return Impact(
        owed=sum(owed),
        delivered=sum(delivered),
        strict=sum(map(min, delivered, owed)),
        weekly=sum(map(min, _weeks(delivered), _weeks(owed))),
    )


def total(parts: Iterable[Impact]) -> Impact:
    """All leaves together: the caps stay those of each team."""
    columns = list(zip(*parts, strict=True))
    return Impact(*(sum(column) for column in columns)) if columns else Impact(0, 0, 0, 0)


def _weeks(hours: Sequence[GpuMs]) -> list[GpuMs]:
    return [sum(hours[at : at + HOURS_A_WEEK]) for at in range(0, len(hours), HOURS_A_WEEK)]


def nearest_rank(sorted_values: Sequence[int], percent: int) -> int:
    """The smallest value with at least `percent` of all values at or below it. `sorted_values` is ascending and not empty."""
    return sorted_values[-(-len(sorted_values) * percent // 100) - 1]
