"""Who holds room, until when, and what that does to the reservation: attempts, and claims that wait for victims to leave.

Keeps the books of room, of teams' protected GPUs and of the one reservation in step. Never decides who holds.
"""

from bisect import bisect_left, insort

from msgspec import Struct

from allmende.proto.placement import NodeReplicas
from allmende.proto.units import Ms
from allmende.simulator.policies.queue import Kind, Waiting
from allmende.simulator.policies.reservation import Release, Reservation, choose, earliest
from allmende.simulator.policies.room import Floor


class Hold(Struct):
    """GPUs that an attempt holds or a claim has earmarked, at the latest until `ends_ms`."""

    name: str
    waiting: Waiting
    kind: Kind
    """As it was when the hold began, whatever tree comes into force."""
    gpus: dict[str, int]
    granted_at_ms: Ms
    ends_ms: Ms
    claim: tuple[NodeReplicas, ...] | None = None
    """Set: the job waits for victims to leave, and then starts there."""
    slice_ms: Ms = 0
    started_at_ms: Ms | None = None
    leaving: bool = False

    def yields_to(self, level: int) -> bool:
        """True when a job of this level need not wait for it: it can be displaced; a claim, once it has become an attempt."""
        return self.kind.team is None and self.kind.level < level and not self.leaving


class Holds:
    """Attempts by id, and claims."""

    def __init__(self, floor: Floor) -> None:
        self.attempts: dict[str, Hold] = {}
        self.claims: dict[str, Hold] = {}
        self.reservation: Reservation | None = None
        """None: there is none, or what it rested on has changed."""
        self._floor = floor
        self._ends: list[tuple[Ms, str]] = []
        self._team_gpus: dict[str, int] = {}

    def protected_gpus(self, team: str) -> int:
        """GPUs that the team's protected work holds or has earmarked."""
        return self._team_gpus.get(team, 0)

    def claims_on(self, node: str) -> list[Hold]:
        """Claims for room on this node."""
        return [claim for claim in self.claims.values() if node in claim.gpus]

    def begin(self, hold: Hold) -> None:
        """An attempt was granted or a claim made."""
        insort(self._ends, (hold.ends_ms, hold.name))
        self._count(hold, 1)
        if hold.claim is None:
            self.attempts[hold.name] = hold
            self._floor.hold(hold.gpus, 1, hold.kind.level if hold.kind.team is None else None)
        else:
            self.claims[hold.name] = hold
            self._floor.earmark(hold.gpus, 1)
        reservation = self.reservation
        if reservation is not None and reservation.number == hold.waiting.number:
            reservation = self.reservation = None
        if reservation is None or hold.ends_ms <= reservation.at_ms or hold.yields_to(reservation.level):
            return
        for node, gpus in hold.gpus.items():
            reservation.then[node] -= gpus
        if not self._floor.lower(hold.gpus):
            self.reservation = None

    def end(self, hold: Hold, now_ms: Ms) -> None:
        """An attempt ended, or a claim was fulfilled or given up."""
        del self._ends[bisect_left(self._ends, (hold.ends_ms, hold.name))]
        self._count(hold, -1)
        reservation = self.reservation
        if reservation is not None and not hold.yields_to(reservation.level) and hold.ends_ms != now_ms:
            # Earlier than was known: the reservation's instant may come earlier too.
            self.reservation = None
        elif reservation is not None:
            reservation.stale = True
        if hold.claim is not None:
            del self.claims[hold.name]
            self._floor.earmark(hold.gpus, -1)
            return
        del self.attempts[hold.name]
        if hold.leaving:
            self._floor.leave(hold.gpus, -1, None)
        yields = hold.kind.team is None and not hold.leaving
        self._floor.hold(hold.gpus, -1, hold.kind.level if yields else None)

    def leaves(self, hold: Hold, until_ms: Ms) -> None:
        """An attempt was told to go and is gone by then."""
        hold.leaving = True
        self._floor.leave(hold.gpus, 1, hold.kind.level if hold.kind.team is None else None)
        self.ends_at(hold, min(hold.ends_ms, until_ms))
        self.reservation = None

    def ends_at(self, hold: Hold, ends_ms: Ms) -> None:
        """The latest end of a hold turns out to be another."""
        if hold.ends_ms == ends_ms:
            return
        del self._ends[bisect_left(self._ends, (hold.ends_ms, hold.name))]
        hold.ends_ms = ends_ms
        insort(self._ends, (ends_ms, hold.name))
        self.reservation = None

    def reserve(self, waiting: Waiting, now_ms: Ms) -> Reservation:
        """The reservation of this job, made anew only where what it rested on has changed. What yields to its level counts as free.

        It must fit on what is healthy.
        """
        reservation = self.reservation
        if reservation is None or reservation.number != waiting.number or reservation.at_ms < now_ms:
            level = waiting.kind.level
            free = self._floor.unclaimed()
            releases: list[Release] = []
            for ends_ms, name in self._ends:
                hold = self.attempts.get(name) or self.claims[name]
                if hold.yields_to(level):
                    for node, gpus in hold.gpus.items():
                        free[node] += gpus
                else:
                    releases.append(Release(ends_ms, hold.gpus))
            at_ms, then = earliest(now_ms, free, releases, waiting.shape, self._floor)
            reservation = self.reservation = Reservation(waiting.number, level, waiting.shape, at_ms, then)
        if reservation.stale:
            self._floor.limit(choose(reservation, self._floor))
        return reservation

    def _count(self, hold: Hold, sign: int) -> None:
        if hold.kind.team is not None:
            gpus = sum(hold.gpus.values())
            self._team_gpus[hold.kind.team] = self._team_gpus.get(hold.kind.team, 0) + sign * gpus
