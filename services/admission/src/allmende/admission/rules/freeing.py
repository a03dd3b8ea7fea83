"""How much room there would be if those left whom a claimant may displace: an upper bound, node by node (contract §5, §7).

Pure. Never names a victim: only the preemptor does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.admission.model.books import Books, Loose
from allmende.admission.model.room import NodeRoom
from allmende.admission.model.values import Shape
from allmende.admission.rules.rooms import Rooms
from allmende.proto.order import unspared_from
from allmende.proto.placement import Room, place
from allmende.proto.units import GpuMs, Ms, Ppm

Model: TypeAlias = str | None
# What says which nodes a job may use: model, nodes that it avoids, nodes on which nothing may be freed for it.
Where: TypeAlias = tuple[Model, tuple[str, ...], frozenset[str]]


class Lawful(NamedTuple):
    """Whom a claimant may displace: unallocated work, attempts of `leaves`, and those of lower priority in its own leaf."""

    leaves: tuple[str, ...]
    own: str
    priority: int
    hold: GpuMs
    closed: frozenset[str]
    """Nodes that the claimant may not use (`Rooms.closed_to`)."""


class _Attempt(NamedTuple):
    """An interruptible attempt: what it holds, what its going would lose, and from which hold of the claimant on it may go."""

    attempt: str
    leaf: str | None
    """None: whoever asks may displace it; it is unallocated, or idle."""
    priority: int
    held: tuple[tuple[str, int], ...]
    lost: GpuMs
    from_hold: GpuMs


class Pool:
    """GPUs that are free or interruptible, node by node, less what earlier claims of this pass will take."""

    def __init__(self, books: Books, rooms: Rooms, loose: Mapping[str | None, Sequence[Loose]], now_ms: Ms, waste_ppm: Ppm) -> None:
        """`loose`: the attempts that may be displaced, by leaf; None: those that anybody may displace."""
        self._books, self._now_ms, self._waste_ppm = books, now_ms, waste_ppm
        self._loose = loose
        self._gpus = {leaf: sum([each.gpus for each in those]) for leaf, those in loose.items()}
        self._rooms = rooms
        self._free = rooms.open()
        self._free_gpus = sum(self._free.values())
        # Made at the first look: most leaves are looked at by nobody, and often two sums of GPUs have said enough.
        self._nodes: dict[str, NodeRoom] = {}
        self._attempts: dict[str | None, list[_Attempt]] = {}
        self._usable: dict[Where, dict[str, int]] = {}
        self._fit: dict[tuple[int, Where], int] = {}
        # Of each leaf: the lowest priority of those who may leave.
        self._lowest: dict[str, int] = {}

    def gpus(self, leaves: Sequence[str]) -> int:
        """GPUs that are free, or held by attempts of these leaves or by those whom anybody may displace."""
        held = self._gpus
        return self._free_gpus + held.get(None, 0) + sum(held.get(leaf, 0) for leaf in leaves)

    def fits(self, shape: Shape, lawful: Lawful) -> bool:
        """Would all replicas fit once these have left?"""
        where, size = (shape.model, shape.avoid, lawful.closed), shape.gpus
        # Cheap, and often enough: all that is free or may go is too little, wherever it is.
        if self.gpus(lawful.leaves) + self._own_gpus(lawful) < shape.replicas * size:
            return False
        usable = self._usable_nodes(where)
        fit = self._fit.get((size, where))
        if fit is None:
            fit = self._fit[size, where] = sum(free // size for free in usable.values())
        missing = shape.replicas - fit
        if missing <= 0:
            return True
        added: dict[str, int] = {}
        for attempt in self._covered(lawful):
            for node, gpus in attempt.held:
                if node in usable:
                    before = usable[node] + added.get(node, 0)
                    added[node] = added.get(node, 0) + gpus
                    missing -= (before + gpus) // size - before // size
            if missing <= 0:
                return True
        return False

    def promise(self, shape: Shape, lawful: Lawful) -> None:
        """Take away what a claim will probably get, so that the next one does not count on the same GPUs."""
        could = dict(self._usable_nodes((shape.model, shape.avoid, lawful.closed)))
        for attempt in self._covered(lawful):
            for node, gpus in attempt.held:
                if node in could:
                    could[node] += gpus
        rooms = [Room(name, gpus, self._nodes[name].healthy) for name, gpus in could.items() if gpus >= shape.gpus]
        for part in place(rooms, shape.replicas, shape.gpus) or ():
            self._take(part.node, part.replicas * shape.gpus, lawful)
        self._usable.clear()
        self._fit.clear()

    def _usable_nodes(self, where: Where) -> dict[str, int]:
        """Free GPUs of the nodes that such a job may use; only nodes that have some, or on which somebody may leave."""
        found = self._usable.get(where)
        if found is None:
            if not self._nodes:
                self._nodes = self._with_room()
            model, avoid, closed = where
            found = self._usable[where] = {
                name: self._free.get(name, 0)
                for name, room in self._nodes.items()
                if name not in closed and name not in avoid and model in (None, room.model)
            }
        return found

    def _with_room(self) -> dict[str, NodeRoom]:
        """Nodes that are up, and have free GPUs or somebody who may leave."""
        names = dict.fromkeys(self._free)
        for those in self._loose.values():
            for each in those:
                for node, _gpus in each.held:
                    names[node] = None
        return {name: room for name in names if (room := self._rooms.node(name)) is not None}

    def _own_gpus(self, lawful: Lawful) -> int:
        """GPUs in the claimant's own leaf whose holders have a lower priority, as `promise` has left them at most."""
        own = lawful.own
        if own not in self._lowest:
            self._lowest[own] = min([each.attempt.priority for each in self._loose.get(own, ())], default=0)
        return self._gpus.get(own, 0) if self._lowest[own] < lawful.priority else 0

    def _covered(self, lawful: Lawful) -> Iterator[_Attempt]:
        """Whose going the law allows, as far as leaf, priority and loss go."""
        hold = lawful.hold
        for leaf in (None, *lawful.leaves):
            for attempt in self._of(leaf):
                if hold >= attempt.from_hold:
                    yield attempt
        for attempt in self._of(lawful.own):
            if attempt.priority < lawful.priority and hold >= attempt.from_hold:
                yield attempt

    def _of(self, leaf: str | None) -> list[_Attempt]:
        found = self._attempts.get(leaf)
        if found is None:
            found = self._attempts[leaf] = [self._attempt(each, leaf) for each in self._loose.get(leaf, ())]
        return found

    def _attempt(self, loose: Loose, leaf: str | None) -> _Attempt:
        attempt, books, now_ms = loose.attempt, self._books, self._now_ms
        started_ms = attempt.started_at_ms if attempt.started_at_ms is not None else now_ms
        saves = books.saves.get(attempt.attempt)
        since_ms = now_ms - (started_ms if saves is None else max(started_ms, saves.at_ms))
        lost = since_ms * loose.gpus
        from_hold = 0 if leaf is None else unspared_from(lost, loose.slice_gpu_ms, self._waste_ppm)
        return _Attempt(attempt.attempt, leaf, attempt.priority, loose.held, lost, from_hold)

    def _take(self, node: str, gpus: int, lawful: Lawful) -> None:
        here = [attempt for attempt in self._covered(lawful) if any(where == node for where, _gpus in attempt.held)]
        missing = gpus - self._free.get(node, 0)
        self._free[node] = max(0, -missing)
        self._free_gpus = sum(self._free.values())
        # Unallocated goes first (contract §7). What a victim holds beyond the need may go to another who may displace it.
        for attempt in sorted(here, key=lambda each: (each.leaf is not None, each.lost, each.attempt)):
            if missing <= 0:
                break
            held = dict(attempt.held)
            taken = min(missing, held[node])
            held[node] -= taken
            missing -= taken
            left = attempt._replace(held=tuple((where, gpus) for where, gpus in held.items() if gpus))
            those = self._of(attempt.leaf)
            those[those.index(attempt)] = left
            self._gpus[attempt.leaf] -= taken
