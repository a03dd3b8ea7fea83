"""Who is tried next: leaves by their standing, inside a leaf by priority, received, submission and id (contract §4).

Pure. Never looks at a node: the caller says whether a job could be placed.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from allmende.admission.model.books import Group, Turn
from allmende.admission.rules.standings import Standings
from allmende.proto.order import LeafKey

Skip = Callable[[str | None, Group], bool]
"""(leaf, group): True when nobody of the group needs to be tried."""


class Next(NamedTuple):
    """The job whose turn it is."""

    leaf: str | None
    group: Group
    job: str


class LeafLine:
    """The waiting jobs of one leaf. A leaf is not blocked by its first job: groups that `skip` names are passed over whole."""

    def __init__(self, leaf: str, groups: Mapping[Group, Sequence[Turn]]) -> None:
        self._leaf = leaf
        self._groups = dict(groups)
        self._at = dict.fromkeys(groups, 0)
        self._received: dict[str, int] = {}

    def next(self, skip: Skip) -> tuple[Group, str] | None:
        """The group and job whose turn it is, or None when none is left."""
        best: tuple[tuple[int, int, int, str], Group] | None = None
        for group in [group for group in self._groups if skip(self._leaf, group)]:
            del self._groups[group]
        for group, line in self._groups.items():
            submitted, job = line[self._at[group]]
            key = (-group.priority, self._received.get(group.user, 0), submitted, job)
            if best is None or key < best[0]:
                best = key, group
        return None if best is None else (best[1], best[0][3])

    def passed(self, group: Group) -> None:
        """The head of the group has had its turn."""
        self._at[group] += 1
        if self._at[group] >= len(self._groups[group]):
            del self._groups[group]

    def served(self, group: Group) -> None:
        """The head of the group received its GPUs: its user has received more than before in this pass."""
        self._received[group.user] = self._received.get(group.user, 0) + group.shape.replicas * group.shape.gpus
        self.passed(group)


class AllocatedLine:
    """All allocated jobs of a cluster. Leaf keys only grow within a pass, so a stored key is a lower bound: it is renewed when
    it comes up, and only then (the surplus tier shares ancestors, so one grant may move many leaves)."""

    def __init__(self, waiting: Mapping[str | None, Mapping[Group, Sequence[Turn]]], standings: Standings) -> None:
        self._standings = standings
        self._lines = {
            leaf: LeafLine(leaf, groups) for leaf, groups in waiting.items() if leaf is not None and standings.knows(leaf)
        }
        self._heap: list[tuple[LeafKey, str]] = [(standings.key(leaf), leaf) for leaf in self._lines]
        heapq.heapify(self._heap)
        self._exhausted: list[str] = []

    def next(self, skip: Skip) -> Next | None:
        """The job whose turn it is; the same again until `passed` or `served` is told."""
        while self._heap:
            stored, leaf = self._heap[0]
            key = self._standings.key(leaf)
            if key != stored:
                heapq.heapreplace(self._heap, (key, leaf))
                continue
            found = self._lines[leaf].next(skip)
            if found is not None:
                return Next(leaf, *found)
            heapq.heappop(self._heap)
            self._exhausted.append(leaf)
        return None

    def passed(self, turn: Next) -> None:
        """The job could not start; the next of its leaf may."""
        assert turn.leaf is not None
        self._lines[turn.leaf].passed(turn.group)

    def served(self, turn: Next) -> None:
        """The job was granted; the caller has counted its hold."""
        assert turn.leaf is not None
        self._lines[turn.leaf].served(turn.group)

    def ahead(self) -> tuple[str, ...]:
        """Leaves that stood before the present one and could start nothing more, nearest first, at most 10."""
        return tuple(reversed(self._exhausted[-10:]))


class UnallocatedLine:
    """Partition 2: fewest unallocated GPUs now held by the submitter, then submission time, then id."""

    def __init__(self, groups: Mapping[Group, Sequence[Turn]], held: Mapping[str, int]) -> None:
        self._groups = dict(groups)
        self._at = dict.fromkeys(groups, 0)
        self._held = dict(held)

    def next(self, skip: Skip) -> Next | None:
        """The job whose turn it is; the same again until `passed` or `served` is told."""
        best: tuple[tuple[int, int, str], Group] | None = None
        for group in [group for group in self._groups if skip(None, group)]:
            del self._groups[group]
        for group, line in self._groups.items():
            submitted, job = line[self._at[group]]
            key = (self._held.get(group.user, 0), submitted, job)
            if best is None or key < best[0]:
                best = key, group
        return None if best is None else Next(None, best[1], best[0][2])

    def passed(self, turn: Next) -> None:
        """The job could not start."""
        self._at[turn.group] += 1
        if self._at[turn.group] >= len(self._groups[turn.group]):
            del self._groups[turn.group]

    def served(self, turn: Next) -> None:
        """The job was granted: its user holds more."""
        shape = turn.group.shape
        self._held[turn.group.user] = self._held.get(turn.group.user, 0) + shape.replicas * shape.gpus
        self.passed(turn)


def in_order(line: AllocatedLine | UnallocatedLine, serve: Callable[[Next], None]) -> Iterator[Next]:
    """Everybody in the order in which they would start if there were room: what the queue shows."""
    while (turn := line.next(_nobody)) is not None:
        yield turn
        serve(turn)
        line.served(turn)


def _nobody(_leaf: str | None, _group: Group) -> bool:
    return False
