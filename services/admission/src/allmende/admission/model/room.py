"""The free room of one cluster, kept up to date with every change, so that a pass need not count all nodes and attempts anew.

Never decides who may use it, and knows no claim: earmarks are the pass's affair (`rules.rooms`).
"""

import heapq
from collections.abc import Callable, Iterable

from allmende.proto.units import PPM_WHOLE, Ms, Ppm

FreeKey = tuple[str | None, int]
"""(GPU model, free GPUs): nodes alike as far as a shape's upper bound goes."""


class NodeRoom:
    """One node: healthy GPUs, and those that attempts hold."""

    __slots__ = ("healthy", "held", "model", "name")

    def __init__(self, name: str, model: str | None, healthy: int) -> None:
        self.name, self.model, self.healthy, self.held = name, model, healthy, 0

    @property
    def free(self) -> int:
        """GPUs that nobody holds; none where more is held than healthy."""
        return max(0, self.healthy - self.held)


class ClusterRoom:
    """All nodes of a cluster. `open`: the free GPUs of each that has any; `counts`: how many nodes are of each (model, free)."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRoom] = {}
        self.open: dict[str, int] = {}
        self.counts: dict[FreeKey, int] = {}
        self.free_gpus = 0
        self.healthy_gpus = 0
        self._heard: list[tuple[Ms, str]] = []
        self._silent: set[str] = set()
        # Nodes with healthy GPUs, the last by name first; None: to be sorted anew.
        self._last: list[str] | None = None

    def report(self, name: str, model: str | None, healthy: int, seen_ms: Ms) -> None:
        """A node says how many GPUs it has."""
        room = self.nodes.get(name)
        if room is None:
            room = self.nodes[name] = NodeRoom(name, model, 0)
            self._count(room, 1)
            heapq.heappush(self._heard, (seen_ms, name))
        self._count(room, -1)
        room.model, room.healthy = model, healthy
        self._last = None
        self._count(room, 1)

    def hold(self, name: str, gpus: int) -> None:
        """An attempt holds `gpus` more there (fewer when negative). A node that has not reported yet holds what it holds."""
        room = self.nodes.get(name)
        if room is None:
            self.report(name, None, 0, 0)
            room = self.nodes[name]
        self._count(room, -1)
        room.held += gpus
        self._count(room, 1)

    def silent(self, before_ms: Ms, seen_ms: Callable[[str], Ms]) -> set[str]:
        """Nodes whose last sign of life (`seen_ms`) lies before an instant. Costs nothing while all are heard of."""
        for name in [name for name in self._silent if seen_ms(name) >= before_ms]:
            self._silent.discard(name)
            heapq.heappush(self._heard, (seen_ms(name), name))
        while self._heard and self._heard[0][0] < before_ms:
            _at_ms, name = heapq.heappop(self._heard)
            if seen_ms(name) >= before_ms:
                heapq.heappush(self._heard, (seen_ms(name), name))
            else:
                self._silent.add(name)
        return self._silent

    def last_by_name(self, part_ppm: Ppm) -> Iterable[str]:
        """The last nodes by name that have healthy GPUs, this part of all of them, rounded down."""
        if not part_ppm:
            return ()
        if self._last is None:
            self._last = sorted((name for name, room in self.nodes.items() if room.healthy > 0), reverse=True)
        return self._last[: len(self._last) * part_ppm // PPM_WHOLE]

    def _count(self, room: NodeRoom, by: int) -> None:
        free = room.free
        key = (room.model, free)
        left = self.counts.get(key, 0) + by
        if left:
            self.counts[key] = left
        else:
            del self.counts[key]
        self.free_gpus += by * free
        self.healthy_gpus += by * room.healthy
        if by > 0 and free:
            self.open[room.name] = free
        elif by > 0:
            self.open.pop(room.name, None)
