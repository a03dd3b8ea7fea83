"""Free GPUs, node by node: what is healthy, neither held nor earmarked for somebody else, on nodes that show signs of life
and are not cordoned.

Pure. The placement itself is `proto.placement`, which the preemptor uses too; here is only a cheap test before it.
"""

from typing import NamedTuple

from allmende.admission.model.books import Books
from allmende.admission.model.room import FreeKey, NodeRoom
from allmende.admission.model.values import Reserved, Shape, Terms
from allmende.admission.rules.cordons import closed_now, closing
from allmende.proto.placement import NodeReplicas, Room, place
from allmende.proto.units import Ms


class Wish(NamedTuple):
    """What a job asks of a node beyond its shape. `slice_ms` 0: unallocated, gone within its short notice whenever asked."""

    job: str
    slice_ms: Ms


class Rooms:
    """The room of one cluster during one pass: the books' own counts, less what this pass has taken."""

    def __init__(self, books: Books, cluster: str, now_ms: Ms, terms: Terms) -> None:
        self._books, self._cluster, self._now_ms, self._terms = books, cluster, now_ms, terms
        self._base = books.rooms[cluster]
        cordons = books.cordons.get(cluster, {})
        self._closing = closing(cordons, now_ms)
        self._silent = self._base.silent(now_ms - terms.silent_after_ms, lambda name: _seen_ms(books, cluster, name))
        # A cordoned node is as one that is not heard of: nothing is placed there, and nothing freed there is anybody's room.
        self._silent = self._silent | (closed_now(cordons, now_ms) & self._base.nodes.keys())
        self._quick = frozenset(self._base.last_by_name(terms.quick_ppm))
        self._reserved: dict[str, tuple[str, int, Ms]] = {}
        for job, reserved in books.reserved[cluster].items():
            self.reserve(job, reserved, books.jobs[job].gpus_per_replica)
        self._taken: dict[str, int] = {}
        self._ends_ms: dict[str, Ms] = {}
        self._marks: dict[str, dict[str, int]] = {}
        for claim in books.claims_on(cluster):
            for name, gpus in claim.earmarks().items():
                if self._up(name):
                    self._marks.setdefault(name, {})[claim.claim] = gpus
        self._free: dict[FreeKey, int] = dict(self._base.counts)
        # GPUs free for everybody, of each node that has any: what is asked most often is kept, not counted anew.
        self._open: dict[str, int] = dict(self._base.open)
        for name in self._silent:
            room = self._base.nodes[name]
            self._add((room.model, room.free), -1)
            self._open.pop(name, None)
        for name in self._marks:
            room = self._base.nodes[name]
            self._moved(name, room.free)

    def most(self, shape: Shape) -> int:
        """Upper bound of the replicas of this shape that fit now, without a claim's own earmarks."""
        return sum(
            count * (free // shape.gpus)
            for (model, free), count in self._free.items()
            if shape.model is None or shape.model == model
        )

    @property
    def silent(self) -> frozenset[str]:
        """Nodes without a sign of life, and those that are cordoned."""
        return frozenset(self._silent)

    @property
    def chosen(self) -> bool:
        """True when some free GPUs are for some jobs only, so that a longer slice may fail where a shorter one fits."""
        return bool(self._quick or self._reserved or self._closing)

    def closed_to(self, wish: Wish) -> frozenset[str]:
        """Nodes on which nothing may be freed for such a job: kept for shorter slices, or cordoned or gathered for somebody else
        before it is past its slice."""
        if not wish.slice_ms:
            return frozenset()
        ends_ms = self._now_ms + self._terms.start_timeout_ms + wish.slice_ms
        gathered = {name for name, (job, _gpus, order_ms) in self._reserved.items() if job != wish.job and ends_ms > order_ms}
        gathered |= {name for name, from_ms in self._closing.items() if ends_ms > from_ms}
        return self._quick.union(gathered) if wish.slice_ms > self._terms.quick_slice_ms else frozenset(gathered)

    def place(self, shape: Shape, slice_ends_ms: Ms, wish: Wish) -> tuple[NodeReplicas, ...] | None:
        """Where the whole gang fits, or None."""
        if shape.claim is None and self.most(shape) < shape.replicas:
            return None
        free_on = self._open
        if shape.claim is not None:
            marked = [name for name, marks in self._marks.items() if shape.claim in marks]
            free_on = {**free_on, **{name: self.free(name, shape.claim) for name in marked}}
        nodes, size = self._base.nodes, shape.gpus
        usable = {
            name: free
            for name, all_free in free_on.items()
            if all_free >= size
            and (shape.model is None or nodes[name].model == shape.model)
            and (free := self._usable(name, all_free, wish)) >= size
            and name not in shape.avoid
        }
        # Most attempts to place fail, and the ends of slices matter only to one that succeeds.
        if sum([free // size for free in usable.values()]) < shape.replicas:
            return None
        rooms = [Room(name, free, nodes[name].healthy, self._slice_ends_ms(name)) for name, free in usable.items()]
        return place(rooms, shape.replicas, size, slice_ends_ms)

    def place_exactly(self, shape: Shape, placement: tuple[NodeReplicas, ...]) -> bool:
        """Does the gang fit where a plan has put it?"""
        return bool(placement) and all(self.free(part.node, shape.claim) >= part.replicas * shape.gpus for part in placement)

    def take(self, placement: tuple[NodeReplicas, ...], gpus: int, slice_ends_ms: Ms) -> None:
        """The gang has been granted these nodes."""
        for part in placement:
            before = self.free(part.node, None)
            self._ends_ms[part.node] = max(self._slice_ends_ms(part.node), slice_ends_ms)
            self._taken[part.node] = self._taken.get(part.node, 0) + part.replicas * gpus
            self._moved(part.node, before)

    def reserve(self, job: str, reserved: Reserved | None, gpus_per_replica: int) -> None:
        """From now on these nodes, and no others, are gathered for the job."""
        self._reserved = {name: owner for name, owner in self._reserved.items() if owner[0] != job}
        if reserved is not None:
            for name, gpus in reserved.gpus(gpus_per_replica).items():
                self._reserved[name] = (job, gpus, reserved.order_ms)

    def taken(self, name: str) -> tuple[int, Ms]:
        """GPUs of a node that this pass has granted, and when the last slice there ends."""
        gpus = self._taken.get(name, 0)
        return gpus, self._slice_ends_ms(name) if gpus else 0

    def unmark(self, claim: str) -> bool:
        """The claim's earmarks are void. True when that made room that somebody passed over could use."""
        freed = False
        for name, marks in self._marks.items():
            if claim in marks:
                before = self.free(name, None)
                del marks[claim]
                self._moved(name, before)
                freed |= self.free(name, None) > before
        return freed

    def open(self) -> dict[str, int]:
        """GPUs free for everybody, of each node that has any."""
        return dict(sorted(self._open.items()))

    def node(self, name: str) -> NodeRoom | None:
        """A node that is up, as the books have it; None: it is down, silent or unknown."""
        return self._base.nodes[name] if self._up(name) else None

    def free(self, name: str, claim: str | None) -> int:
        """GPUs of a node that are free for a claim's job, or for everybody (None)."""
        return self._open.get(name, 0) if claim is None else self._counted(name, claim)

    def _counted(self, name: str, claim: str | None) -> int:
        if not self._up(name):
            return 0
        raw = self._base.nodes[name].free - self._taken.get(name, 0)
        marks = self._marks.get(name)
        if marks:
            raw -= sum(gpus for owner, gpus in marks.items() if owner != claim)
        return max(0, raw)

    def _usable(self, name: str, free: int, wish: Wish) -> int:
        """Of the free GPUs of a node, those that such a job may use (contract §5): on a gathered node whatever is gone in time."""
        if not wish.slice_ms or not free:
            return free
        if name in self._quick and wish.slice_ms > self._terms.quick_slice_ms:
            return 0
        if name in self._closing and self._now_ms + self._terms.start_timeout_ms + wish.slice_ms > self._closing[name]:
            return 0
        reserved = self._reserved.get(name)
        if reserved is None or reserved[0] == wish.job:
            return free
        _job, gpus, order_ms = reserved
        if self._now_ms + self._terms.start_timeout_ms + wish.slice_ms <= order_ms:
            return free
        return min(free, self._base.nodes[name].healthy - gpus - self._taken.get(name, 0) - self._protected(name, order_ms))

    def _protected(self, name: str, at_ms: Ms) -> int:
        here = self._books.on_node.get((self._cluster, name), {})
        return sum(gpus for attempt, gpus in here.items() if _slice_ends_ms(self._books, attempt) > at_ms)

    def _up(self, name: str) -> bool:
        room = self._base.nodes.get(name)
        return room is not None and room.healthy > 0 and name not in self._silent

    def _moved(self, name: str, before: int) -> None:
        model = self._base.nodes[name].model
        free = self._counted(name, None)
        self._add((model, before), -1)
        self._add((model, free), 1)
        if free:
            self._open[name] = free
        else:
            self._open.pop(name, None)

    def _add(self, key: FreeKey, by: int) -> None:
        left = self._free.get(key, 0) + by
        if left:
            self._free[key] = left
        else:
            self._free.pop(key, None)

    def _slice_ends_ms(self, name: str) -> Ms:
        found = self._ends_ms.get(name)
        if found is None:
            here = self._books.on_node.get((self._cluster, name), {})
            found = self._ends_ms[name] = max((_slice_ends_ms(self._books, attempt) for attempt in here), default=0)
        return found


def _seen_ms(books: Books, cluster: str, name: str) -> Ms:
    node = books.nodes.get((cluster, name))
    return 0 if node is None else books.last_seen_ms(node)


def _slice_ends_ms(books: Books, attempt: str) -> Ms:
    running = books.attempts[attempt]
    if running.budget is None:
        return 0
    # Before the start is confirmed the end of the slice is an estimate; it only aligns, it protects nobody.
    return running.protected_until_ms or running.granted_at_ms + running.slice_ms
