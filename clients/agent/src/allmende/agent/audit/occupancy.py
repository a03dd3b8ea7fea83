"""Availability, occupancy and the unallocated share, as contract §10 defines them, from the cluster's own log. Pure.

Amounts are integers; quotients are taken elsewhere, last, and only to be shown.
"""

from typing import NamedTuple

from allmende.agent.audit.history import History, held_gpu_ms, overlap_ms
from allmende.proto.units import HOUR_MS, GpuMs, Ms


class Amounts(NamedTuple):
    """GPU-ms of one interval. `lost` is work not saved when an attempt was ended: held, but to nobody's use."""

    installed: GpuMs
    available: GpuMs
    allocated: GpuMs
    unallocated: GpuMs
    lost: GpuMs

    @property
    def occupied(self) -> GpuMs:
        """Allocated and unallocated."""
        return self.allocated + self.unallocated


def amounts(history: History, from_ms: Ms, to_ms: Ms) -> Amounts:
    """What was there and what was held in `[from_ms, to_ms)`. Work is lost at the instant when its attempt ends."""
    installed = available = 0
    for part in history.capacity:
        length_ms = overlap_ms(part.from_ms, part.to_ms, from_ms, to_ms)
        installed += part.installed_gpus * length_ms
        available += part.healthy_gpus * length_ms
    allocated = unallocated = lost = 0
    for ran in history.attempts.values():
        held = held_gpu_ms(ran, from_ms, to_ms)
        if ran.budget is None:
            unallocated += held
        else:
            allocated += held
        if from_ms <= ran.ended_at_ms < to_ms:
            lost += ran.lost_ms * ran.gpus
    return Amounts(installed, available, allocated, unallocated, lost)


def available_by_hour(history: History, from_ms: Ms, to_ms: Ms) -> dict[int, GpuMs]:
    """Available GPU-ms by hour (number of hours since the epoch) of `[from_ms, to_ms)`."""
    hours: dict[int, GpuMs] = {}
    for hour in range(from_ms // HOUR_MS, -(-to_ms // HOUR_MS)):
        since_ms, until_ms = max(from_ms, hour * HOUR_MS), min(to_ms, (hour + 1) * HOUR_MS)
        hours[hour] = sum(part.healthy_gpus * overlap_ms(part.from_ms, part.to_ms, since_ms, until_ms) for part in history.capacity)
    return hours
