"""Who is tried next: leaves by their standing, inside a leaf by priority, received, submission and id (contract §4).

Pure. Never looks at a node: the caller says whether a job could be placed.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.admission.model.lines import Group, Kind, Turn
from allmende.admission.rules.standings import Standings
from allmende.proto.order import LeafKey
from allmende.proto.units import Ms

Skip = Callable[[str | None, Kind], bool]
"""(leaf, kind): True when nobody of the kind needs to be tried."""

Hopeless = Callable[[str], bool]
"""(job): True when it need not be tried."""

Kinds: TypeAlias = Mapping[Kind, Mapping[Group, Sequence[Turn]]]


_Key: TypeAlias = tuple[int, int, Ms, str]


class Next(NamedTuple):
    """The job whose turn it is."""

    leaf: str | None
    group: Group
    job: str


class LeafLine:
    """The waiting jobs of one leaf. A leaf is not blocked by its first job: kinds that `skip` names are passed over whole.

    A group's key only grows within a pass (its user receives, its head moves on), so a stored key is a lower bound: it is renewed
    when it comes up, and only then.
    """

    def __init__(self, leaf: str | None, kinds: Kinds, held: Mapping[str, int]) -> None:
        self._leaf, self._kinds = leaf, kinds
        self._at: dict[Group, int] = {}
        self._received = dict(held)
        self._heap: list[tuple[_Key, Group]] | None = None

    def next(self, skip: Skip) -> tuple[Group, str] | None:
        """The group and job whose turn it is, or None when none is left."""
        if self._heap is None:
            # Made at the first look: by then most kinds have failed already, and their groups need no key.
            self._heap = [
                (self._key(group), group) for kind, groups in self._kinds.items() if not skip(self._leaf, kind) for group in groups
            ]
            heapq.heapify(self._heap)
        while self._heap:
            stored, group = self._heap[0]
            if self._at.get(group, 0) >= len(self._kinds[group.kind][group]) or skip(self._leaf, group.kind):
                heapq.heappop(self._heap)
                continue
            key = self._key(group)
            if key == stored:
                return group, key[3]
            heapq.heapreplace(self._heap, (key, group))
        return None

    def passed(self, group: Group, hopeless: Hopeless | None = None) -> None:
        """The head of the group has had its turn; so have those next to it in the group that are `hopeless` as well."""
        at = self._at.get(group, 0) + 1
        if hopeless is not None:
            turns = self._kinds[group.kind][group]
            while at < len(turns) and hopeless(turns[at][1]):
                at += 1
        self._at[group] = at

    def served(self, group: Group) -> None:
        """The head of the group received its GPUs: its user has more than before."""
        self._received[group.user] = self._received.get(group.user, 0) + group.kind.shape.replicas * group.kind.shape.gpus
        self.passed(group)

    def _key(self, group: Group) -> _Key:
        submitted_ms, job = self._kinds[group.kind][group][self._at.get(group, 0)]
        return -group.priority, self._received.get(group.user, 0), submitted_ms, job


class AllocatedLine:
    """All allocated jobs of a cluster. Leaf keys only grow within a pass, so a stored key is a lower bound: it is renewed when
    it comes up, and only then (the surplus tier shares ancestors, so one grant may move many leaves)."""

    def __init__(self, waiting: Mapping[str | None, Kinds], standings: Standings, hopeless: Sequence[str] = ()) -> None:
        """`hopeless`: leaves of which nobody needs to be tried; they are named only where it is asked who stands ahead."""
        self._standings = standings
        self._lines = {
            leaf: LeafLine(leaf, kinds, {}) for leaf, kinds in waiting.items() if leaf is not None and standings.knows(leaf)
        }
        self._heap: list[tuple[LeafKey, str]] = [(standings.key(leaf), leaf) for leaf in self._lines]
        heapq.heapify(self._heap)
        self._exhausted = [leaf for leaf in hopeless if standings.knows(leaf)]
        # (version of the standings, leaf) for which the top of the heap is known to be right.
        self._checked: tuple[int, str] | None = None

    def next(self, skip: Skip) -> Next | None:
        """The job whose turn it is; the same again until `passed` or `served` is told."""
        while self._heap:
            stored, leaf = self._heap[0]
            if self._checked != (self._standings.version, leaf):
                key = self._standings.key(leaf)
                if key != stored:
                    heapq.heapreplace(self._heap, (key, leaf))
                    continue
                self._checked = (self._standings.version, leaf)
            found = self._lines[leaf].next(skip)
            if found is not None:
                return Next(leaf, *found)
            heapq.heappop(self._heap)
            self._exhausted.append(leaf)
        return None

    def passed(self, turn: Next, hopeless: Hopeless | None = None) -> None:
        """The job could not start; the next of its leaf may. `hopeless`: nor can those behind it of which this is true."""
        assert turn.leaf is not None
        self._lines[turn.leaf].passed(turn.group, hopeless)

    def served(self, turn: Next) -> None:
        """The job was granted; the caller has counted its hold."""
        assert turn.leaf is not None
        self._lines[turn.leaf].served(turn.group)

    def ahead(self) -> tuple[str, ...]:
        """Leaves that stand before the present one and could start nothing more, nearest first, at most 10."""
        if not self._exhausted or not self._heap:
            return ()
        present = self._heap[0][0]
        before = [(key, leaf) for leaf in self._exhausted if (key := self._standings.key(leaf)) < present]
        return tuple(leaf for _key, leaf in sorted(before, reverse=True)[:10])


class UnallocatedLine:
    """Partition 2: fewest unallocated GPUs now held by the submitter, then submission time, then id."""

    def __init__(self, kinds: Kinds, held: Mapping[str, int]) -> None:
        self._line = LeafLine(None, kinds, held)

    def next(self, skip: Skip) -> Next | None:
        """The job whose turn it is; the same again until `passed` or `served` is told."""
        found = self._line.next(skip)
        return None if found is None else Next(None, *found)

    def passed(self, turn: Next) -> None:
        """The job could not start."""
        self._line.passed(turn.group)

    def served(self, turn: Next) -> None:
        """The job was granted: its user holds more."""
        self._line.served(turn.group)


def in_order(line: AllocatedLine | UnallocatedLine, serve: Callable[[Next], None]) -> Iterator[Next]:
    """Everybody in the order in which they would start if there were room: what the queue shows."""
    while (turn := line.next(_nobody)) is not None:
        yield turn
        serve(turn)
        line.served(turn)


def _nobody(_leaf: str | None, _kind: Kind) -> bool:
    return False
