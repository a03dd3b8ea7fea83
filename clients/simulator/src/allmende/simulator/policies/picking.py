"""Who is next: the first job in the queue that may start without delaying the first one that can't. By kind of job, not job by job.

Never starts or displaces anybody; says with which room it may.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from allmende.proto.units import Ms
from allmende.simulator.policies.holding import Holds
from allmende.simulator.policies.line import Line
from allmende.simulator.policies.queue import Key, Kind, Queue
from allmende.simulator.policies.reservation import Reservation
from allmende.simulator.policies.room import Floor, Rooms, Shape


class Pick(NamedTuple):
    """The job of this number is next. It may use these rooms, at once, or where it `claims` them once others have left."""

    key: Key
    way: int
    """Among ways for the same job the smallest is taken: it disturbs others least."""
    rooms: Rooms
    claims: bool

    @property
    def number(self) -> int:
        """The job's number."""
        return self.key[1]


class Picker:
    """Looks at one queue for one cluster."""

    def __init__(self, floor: Floor, queue: Queue, holds: Holds, limit_of: Callable[[str], int], depth: int, grace_ms: Ms) -> None:
        self._floor, self._queue, self._holds = floor, queue, holds
        self._limit_of, self._depth, self._grace_ms = limit_of, depth, grace_ms

    def pick(self, now_ms: Ms) -> Pick | None:
        """The next job; None: nobody may start now.

        Who does not even fit on what is healthy, and who is at the limit of its team, stands aside and delays nobody.
        """
        if not self._any_fits():
            return None
        best: Pick | None = None
        blocked: Key | None = None
        for shape, kind, line in self._kinds():
            number = line.first()
            assert number is not None
            key = (-kind.level, number)
            way = self._unhindered(shape, kind, key)
            if way is None:
                blocked = key if blocked is None else min(blocked, key)
            elif best is None or way.key < best.key:
                best = way
        if best is None or blocked is None or best.key < blocked:
            return best
        reservation = self._holds.reserve(self._queue.job(blocked[1]), now_ms)
        last = self._queue.last_within(self._depth)
        ways = (way for shape, kind, line in self._kinds() for way in self._beside(shape, kind, line, reservation, now_ms))
        return min((way for way in ways if way.key <= last), key=lambda way: way[:2], default=None)

    def put_off(self) -> dict[str, int] | None:
        """Which nodes to leave to others among equally good ones: who may use a reserved node should."""
        reservation = self._holds.reservation
        return None if reservation is None else {node: int(node not in reservation.needs) for node in reservation.then}

    def _any_fits(self) -> bool:
        top = self._floor.soon.get(len(self._floor.soon), self._floor.open)
        return any(self._floor.open.fits(shape) or top.fits(shape) for shape in self._queue.lines)

    def _kinds(self) -> Iterator[tuple[Shape, Kind, Line]]:
        for shape, kinds in self._queue.lines.items():
            if not self._floor.healthy.fits(shape):
                continue
            gpus = shape.replicas * shape.gpus_per_replica
            for kind, line in kinds.items():
                if kind.team is None or self._holds.protected_gpus(kind.team) + gpus <= self._limit_of(kind.team):
                    yield shape, kind, line

    def _unhindered(self, shape: Shape, kind: Kind, key: Key) -> Pick | None:
        if self._floor.open.fits(shape):
            return Pick(key, 1, self._floor.open, False)
        soon = self._floor.soon.get(kind.level)
        return Pick(key, 3, soon, True) if soon is not None and soon.fits(shape) else None

    def _beside(self, shape: Shape, kind: Kind, line: Line, reservation: Reservation, now_ms: Ms) -> Iterator[Pick]:
        """The ways in which the first of the line, or the first that is short enough, may start.

        Short enough is what ends by the reservation's instant. What the reserved job may displace never delays it.
        """
        left_ms = reservation.at_ms - now_ms
        free = kind.team is None and kind.level < reservation.level
        floor = self._floor
        soon, soon_beside = floor.soon.get(kind.level), floor.soon_beside.get(kind.level)
        ways = (
            (1, floor.open, None if free else left_ms, False),
            (2, floor.open_beside, None, False),
            (3, soon, None if free else left_ms - self._grace_ms, True),
            (4, soon_beside, None, True),
        )
        for way, rooms, at_most_ms, claims in ways:
            if rooms is not None and rooms.fits(shape):
                number = line.first() if at_most_ms is None else line.first(at_most_ms)
                if number is not None:
                    yield Pick((-kind.level, number), way, rooms, claims)
