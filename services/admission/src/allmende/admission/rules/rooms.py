"""Free GPUs, node by node: what is healthy, neither held nor earmarked for somebody else, on nodes that show signs of life.

Pure. The placement itself is `proto.placement`, which the preemptor uses too; here is only a cheap test before it.
"""

from collections import Counter
from collections.abc import Mapping

from allmende.admission.model.books import Books
from allmende.admission.model.values import Shape
from allmende.proto.placement import NodeReplicas, Room, place
from allmende.proto.units import Ms


class _NodeRoom:
    __slots__ = ("ends_ms", "marks", "model", "name", "raw", "total")

    def __init__(self, name: str, model: str | None, total: int, raw: int, ends_ms: Ms) -> None:
        self.name, self.model, self.total, self.raw, self.ends_ms = name, model, total, raw, ends_ms
        self.marks: dict[str, int] = {}

    def free(self, claim: str | None) -> int:
        """GPUs free for a claim's job, or for everybody (None)."""
        if not self.marks:
            return self.raw
        return max(0, self.raw - sum(gpus for owner, gpus in self.marks.items() if owner != claim))


class Rooms:
    """The room of one cluster during one pass."""

    def __init__(self, books: Books, cluster: str, now_ms: Ms, silent_after_ms: Ms) -> None:
        self._nodes: dict[str, _NodeRoom] = {}
        for node in books.nodes.values():
            if node.cluster == cluster and node.healthy > 0 and books.last_seen_ms(node) + silent_after_ms >= now_ms:
                here = books.on_node.get(node.key, {})
                raw = max(0, node.healthy - sum(here.values()))
                ends_ms = max((_slice_ends_ms(books, attempt) for attempt in here), default=0)
                self._nodes[node.node] = _NodeRoom(node.node, node.gpu_model, node.healthy, raw, ends_ms)
        for claim in books.claims_on(cluster):
            for name, gpus in claim.earmarks().items():
                if name in self._nodes:
                    self._nodes[name].marks[claim.claim] = gpus
        self._free: dict[str | None, Counter[int]] = {}
        for room in self._nodes.values():
            self._free.setdefault(room.model, Counter())[room.free(None)] += 1

    def most(self, shape: Shape) -> int:
        """Upper bound of the replicas of this shape that fit now, without a claim's own earmarks."""
        return sum(
            count * (free // shape.gpus)
            for model, counts in self._free.items()
            if shape.model is None or shape.model == model
            for free, count in counts.items()
        )

    def place(self, shape: Shape, slice_ends_ms: Ms) -> tuple[NodeReplicas, ...] | None:
        """Where the whole gang fits, or None."""
        if shape.claim is None and self.most(shape) < shape.replicas:
            return None
        rooms = [
            Room(room.name, free, room.total, room.ends_ms)
            for room in self._nodes.values()
            if (shape.model is None or room.model == shape.model)
            and (free := room.free(shape.claim)) >= shape.gpus
            and room.name not in shape.avoid
        ]
        return place(rooms, shape.replicas, shape.gpus, slice_ends_ms)

    def place_exactly(self, shape: Shape, placement: tuple[NodeReplicas, ...]) -> bool:
        """Does the gang fit where a plan has put it?"""
        return bool(placement) and all(
            (room := self._nodes.get(part.node)) is not None and room.free(shape.claim) >= part.replicas * shape.gpus
            for part in placement
        )

    def take(self, placement: tuple[NodeReplicas, ...], gpus: int, slice_ends_ms: Ms) -> None:
        """The gang has been granted these nodes."""
        for part in placement:
            room = self._nodes[part.node]
            before = room.free(None)
            room.raw -= part.replicas * gpus
            room.ends_ms = max(room.ends_ms, slice_ends_ms)
            self._moved(room, before)

    def unmark(self, claim: str) -> bool:
        """The claim's earmarks are void. True when that made room that somebody passed over could use."""
        freed = False
        for room in self._nodes.values():
            if claim in room.marks:
                before = room.free(None)
                del room.marks[claim]
                freed |= room.free(None) > before
                self._moved(room, before)
        return freed

    def free_for_all(self) -> Mapping[str, tuple[str | None, int, int]]:
        """Of each node: model, GPUs free for everybody, GPUs in all."""
        return {name: (room.model, room.free(None), room.total) for name, room in self._nodes.items()}

    def _moved(self, room: _NodeRoom, before: int) -> None:
        counts = self._free[room.model]
        counts[before] -= 1
        if not counts[before]:
            del counts[before]
        counts[room.free(None)] += 1


def _slice_ends_ms(books: Books, attempt: str) -> Ms:
    running = books.attempts[attempt]
    if running.budget is None:
        return 0
    # Before the start is confirmed the end of the slice is an estimate; it only aligns, it protects nobody.
    return running.protected_until_ms or running.granted_at_ms + running.slice_ms
