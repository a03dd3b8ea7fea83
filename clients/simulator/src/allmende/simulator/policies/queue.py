"""The queue of the two older worlds: higher levels first, inside a level who came first. Kept in lines of jobs alike.

So the first job that may start is found by looking at each kind of job once, not at each job. Never says whether one may start.
"""

from bisect import bisect_left, insort
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from allmende.proto.units import Ms
from allmende.simulator.model import Job
from allmende.simulator.policies.line import Line
from allmende.simulator.policies.room import Shape, shape_of

Key: TypeAlias = tuple[int, int]
"""A job's place in the queue, smallest first: the negated level, then the number."""


class Kind(NamedTuple):
    """How a job is treated. `team`: whose limit its GPUs count against, and nobody displaces it; None: it counts nowhere."""

    level: int
    team: str | None


class Waiting(Struct):
    """A job until it is over. Numbers are given in the order of submission and kept when a job waits again."""

    number: int
    job: Job
    kind: Kind
    length_ms: Ms = 0
    """From the grant to the end at the latest, if undisturbed."""
    saved_ms: Ms = 0
    promised_ms: Ms | None = None

    @property
    def shape(self) -> Shape:
        """What its gang needs."""
        return shape_of(self.job)

    @property
    def key(self) -> Key:
        """Its place in the queue."""
        return -self.kind.level, self.number


class Queue:
    """Jobs that may be picked. Kind and length of a job never change while it stands here."""

    def __init__(self) -> None:
        self.lines: dict[Shape, dict[Kind, Line]] = {}
        """The lines in which someone waits."""
        self._jobs: dict[int, Waiting] = {}
        self._keys: list[Key] = []

    def put(self, waiting: Waiting) -> None:
        """A job waits. Cost: O(log n), and a move of the keys behind it."""
        self._jobs[waiting.number] = waiting
        insort(self._keys, waiting.key)
        self.lines.setdefault(waiting.shape, {}).setdefault(waiting.kind, Line()).put(waiting.number, waiting.length_ms)

    def take(self, waiting: Waiting) -> None:
        """A job waits no more."""
        del self._jobs[waiting.number]
        del self._keys[bisect_left(self._keys, waiting.key)]
        kinds = self.lines[waiting.shape]
        line = kinds[waiting.kind]
        line.take(waiting.number)
        if not len(line):
            del kinds[waiting.kind]
            if not kinds:
                del self.lines[waiting.shape]

    def job(self, number: int) -> Waiting:
        """Who waits under this number."""
        return self._jobs[number]

    def all(self) -> list[Waiting]:
        """Who waits, in order."""
        return [self._jobs[number] for _level, number in self._keys]

    def last_within(self, depth: int) -> Key:
        """The place of the `depth`-th job, or of the last."""
        return self._keys[min(depth, len(self._keys)) - 1]
