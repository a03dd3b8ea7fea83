"""Room on the nodes, counted as things change: how much is free, will be, and may be used without delaying a reservation.

Asked in O(1) whether a gang fits, however many nodes there are. Never says who gets the room.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from allmende.proto.placement import NodeReplicas, Room
from allmende.proto.units import Ms
from allmende.simulator.model import Job, NodeSpec


class Shape(NamedTuple):
    """What a gang needs of the nodes."""

    replicas: int
    gpus_per_replica: int
    gpu_model: str | None


def shape_of(job: Job) -> Shape:
    """The shape of a job's gang."""
    return Shape(job.replicas, job.gpus_per_replica, job.gpu_model)


def gpus_by_node(placement: Sequence[NodeReplicas], gpus_per_replica: int) -> dict[str, int]:
    """GPUs that a placement takes of each node."""
    return {part.node: part.replicas * gpus_per_replica for part in placement}


class Rooms:
    """GPUs of each node, never below 0, by one way of counting; and how many replicas of each size they take in all."""

    def __init__(self, models: Mapping[str, str | None]) -> None:
        self._models = models
        self.gpus: dict[str, int] = dict.fromkeys(models, 0)
        self._slots: dict[tuple[int, str | None], int] = {}

    def put(self, node: str, gpus: int) -> None:
        """Set a node's GPUs; below 0 counts as 0. Cost: O(sizes asked for so far)."""
        before, after = self.gpus[node], max(0, gpus)
        if before == after:
            return
        self.gpus[node] = after
        model = self._models[node]
        for (size, wanted), slots in self._slots.items():
            if wanted is None or wanted == model:
                self._slots[size, wanted] = slots + after // size - before // size

    def fits(self, shape: Shape) -> bool:
        """True when the whole gang fits: exactly when `placement.place` finds a place in `of(shape)`."""
        key = (shape.gpus_per_replica, shape.gpu_model)
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = sum(gpus // key[0] for _node, gpus in self._usable(shape.gpu_model))
        return slots >= shape.replicas

    def of(self, shape: Shape, last: Mapping[str, Ms] | None = None) -> list[Room]:
        """The nodes that take a replica. Among equally full ones, smallest `last` (default 0) first."""
        put_off = {} if last is None else last
        return [
            Room(node, gpus, gpus, put_off.get(node, 0))
            for node, gpus in self._usable(shape.gpu_model)
            if gpus >= shape.gpus_per_replica
        ]

    def _usable(self, model: str | None) -> Iterator[tuple[str, int]]:
        if model is None:
            yield from self.gpus.items()
        else:
            yield from ((node, gpus) for node, gpus in self.gpus.items() if self._models[node] == model)


class _Node(Struct):
    """`held` counts attempts to their end, `leaving` those of them that were told to go, `yielding` those that stay, by level."""

    yielding: list[int]
    healthy: int = 0
    held: int = 0
    leaving: int = 0
    earmarked: int = 0


class Floor:
    """All nodes of a cluster. Levels are 0 (lowest) to `levels - 1`; only what yields to a higher level is counted by level.

    healthy: all GPUs in order. open: free and nobody's. soon[level]: open once all that is told to go is gone, and all that yields
    to this level is too (level 0 displaces nothing and has none). `open_beside`, `soon_beside`: the same, but no more of a node
    than `limit` leaves.
    """

    def __init__(self, nodes: Sequence[NodeSpec], levels: int) -> None:
        self.models = {node.node: node.gpu_model for node in nodes}
        self.installed = Rooms(self.models)
        for node in nodes:
            self.installed.put(node.node, node.gpus)
        self.healthy, self.open, self.open_beside = Rooms(self.models), Rooms(self.models), Rooms(self.models)
        self.soon = {level: Rooms(self.models) for level in range(1, levels)}
        self.soon_beside = {level: Rooms(self.models) for level in range(1, levels)}
        self._nodes = {node: _Node([0] * levels) for node in self.models}
        self._limit: dict[str, int] | None = None

    def free(self, node: str) -> int:
        """GPUs in order that no attempt holds, earmarked ones among them."""
        return self._nodes[node].healthy - self._nodes[node].held

    def unclaimed(self) -> dict[str, int]:
        """Of each node what neither an attempt holds nor a claim has earmarked; below 0 where a claim waits for those who leave."""
        return {name: node.healthy - node.held - node.earmarked for name, node in self._nodes.items()}

    def left_behind(self) -> dict[str, int]:
        """`unclaimed`, once all that was told to go is gone."""
        return {name: node.healthy - node.held - node.earmarked + node.leaving for name, node in self._nodes.items()}

    def set_healthy(self, node: str, gpus: int) -> None:
        """The node has so many GPUs in order."""
        self._nodes[node].healthy = gpus
        self.healthy.put(node, gpus)
        self._refresh(node)

    def hold(self, gpus: Mapping[str, int], sign: int, yields_at: int | None) -> None:
        """An attempt takes (`sign` 1) or gives back (-1) GPUs; `yields_at`: its level, where higher ones may displace it."""
        for name, count in gpus.items():
            node = self._nodes[name]
            node.held += sign * count
            if yields_at is not None:
                node.yielding[yields_at] += sign * count
            self._refresh(name)

    def leave(self, gpus: Mapping[str, int], sign: int, yielded_at: int | None) -> None:
        """An attempt that holds these was told to go (1), or does and gives them back (-1); `yielded_at`: its level until now."""
        for name, count in gpus.items():
            node = self._nodes[name]
            node.leaving += sign * count
            if yielded_at is not None:
                node.yielding[yielded_at] -= sign * count
            self._refresh(name)

    def earmark(self, gpus: Mapping[str, int], sign: int) -> None:
        """A claim takes (1) or gives back (-1) room, free or about to be."""
        for name, count in gpus.items():
            self._nodes[name].earmarked += sign * count
            self._refresh(name)

    def limit(self, spare: dict[str, int]) -> None:
        """What may be used of each node beside a reservation, until the next is made. Taken over: `lower` changes it."""
        before, self._limit = self._limit, spare
        for name, gpus in spare.items():
            if before is None or before[name] != gpus:
                self._refresh(name)

    def lower(self, gpus: Mapping[str, int]) -> bool:
        """So much less may be used beside the reservation. False: it is broken into."""
        assert self._limit is not None
        kept = True
        for name, count in gpus.items():
            self._limit[name] -= count
            kept = kept and self._limit[name] >= 0
            self._refresh(name)
        return kept

    def _refresh(self, name: str) -> None:
        node = self._nodes[name]
        free = node.healthy - node.held - node.earmarked
        self.open.put(name, free)
        most = None if self._limit is None else self._limit[name]
        if most is not None:
            self.open_beside.put(name, min(free, most))
        soon = free + node.leaving
        for level, rooms in self.soon.items():
            soon += node.yielding[level - 1]
            rooms.put(name, soon)
            if most is not None:
                self.soon_beside[level].put(name, min(soon, most))
