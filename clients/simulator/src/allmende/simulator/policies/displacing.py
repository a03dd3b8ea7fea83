"""Whom to send away for a gang that does not fit: few, of the lowest levels, and those that began last.

Never sends anybody: it names them. The smallest number of victims is a set-cover problem; the best of two greedy choices is taken,
each without anybody who turns out unneeded, as schedulers do (Kubernetes gives victims back in the same way).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allmende.proto.placement import NodeReplicas, Room, place
from allmende.proto.units import Ms
from allmende.simulator.policies.room import Shape


class Candidate(NamedTuple):
    """An attempt that may be sent away."""

    attempt: str
    level: int
    granted_at_ms: Ms
    gpus: Mapping[str, int]


class Displacement(NamedTuple):
    """Once the victims are gone, the gang fits there. In the order of sending."""

    victims: tuple[str, ...]
    placement: tuple[NodeReplicas, ...]


class _Tally:
    """Room of the nodes as victims are added and given back, and the replicas that fit."""

    def __init__(self, free: Mapping[str, int], most: Mapping[str, int], size: int) -> None:
        self.free, self._most, self._size = dict(free), most, size
        self.slots = sum(self._fit(node) for node in most)

    def room(self, node: str) -> int:
        return max(0, min(self.free[node], self._most[node]))

    def _fit(self, node: str) -> int:
        return self.room(node) // self._size

    def add(self, gpus: Mapping[str, int], sign: int) -> None:
        for node, count in gpus.items():
            if node in self._most:
                self.slots -= self._fit(node)
                self.free[node] += sign * count
                self.slots += self._fit(node)


def displace(
    shape: Shape, free: Mapping[str, int], most: Mapping[str, int], candidates: Sequence[Candidate]
) -> Displacement | None:
    """Whose leaving makes the gang fit; nobody's, where it fits once those are gone that were told to go before.

    Args:
        free: GPUs of each node, with those that are about to be free; not what is promised to others.
        most: how much of each node the gang may use at most; only nodes of its model.
    """
    newest = sorted(candidates, key=lambda each: (-each.level, each.granted_at_ms, each.attempt), reverse=True)
    largest = sorted(newest, key=lambda each: (each.level, -sum(each.gpus.values())))
    plans = [
        plan for order in (newest, largest) if (plan := _greedy(shape, _Tally(free, most, shape.gpus_per_replica), order, most))
    ]
    return min(plans, key=lambda plan: len(plan.victims), default=None)


def _greedy(shape: Shape, tally: _Tally, order: Sequence[Candidate], nodes: Mapping[str, int]) -> Displacement | None:
    chosen: list[Candidate] = []
    for candidate in order:
        if tally.slots >= shape.replicas:
            break
        tally.add(candidate.gpus, 1)
        chosen.append(candidate)
    if tally.slots < shape.replicas:
        return None
    needed: list[Candidate] = []
    for candidate in reversed(chosen):
        tally.add(candidate.gpus, -1)
        if tally.slots < shape.replicas:
            tally.add(candidate.gpus, 1)
            needed.append(candidate)
    rooms = [Room(node, tally.room(node), tally.room(node)) for node in nodes]
    placement = place(rooms, shape.replicas, shape.gpus_per_replica)
    assert placement is not None
    return Displacement(tuple(each.attempt for each in reversed(needed)), placement)
