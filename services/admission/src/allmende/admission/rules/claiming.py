"""Which waiting jobs ask the preemptor for room: an upper bound of what could be freed for them, cheap and in order (contract §5).

Pure. Never names a victim and never decides that room can be made: only the preemptor does.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from allmende.admission.model.books import Books, Group
from allmende.admission.model.values import Claim, Job, Shape, Terms
from allmende.admission.rules.line import AllocatedLine, Next
from allmende.admission.rules.rooms import Rooms
from allmende.admission.rules.standings import Standings
from allmende.proto.order import may_displace
from allmende.proto.placement import Room, place
from allmende.proto.units import LARGEST_AMOUNT, GpuMs, Ms

Source: TypeAlias = tuple[str | None, int]
"""Interruptible GPUs of one leaf (None: unallocated) and one priority."""

# Looking at a job costs some 20 us; the next pass looks on. 64 claims may be open, so four times as many looks find them.
LOOKS_MAX = 256
_NEVER = LARGEST_AMOUNT


class Setting(NamedTuple):
    """Where claims are raised: the cluster as the pass has left it."""

    books: Books
    cluster: str
    now_ms: Ms
    terms: Terms
    rooms: Rooms
    standings: Standings
    newest_grant_seq: int
    gone: frozenset[str]
    """Jobs that the pass has granted."""
    still_open: tuple[Claim, ...]


class _Pool:
    """GPUs that are free or interruptible, node by node, less what earlier claims of this pass will take."""

    def __init__(self, setting: Setting) -> None:
        books, cluster = setting.books, setting.cluster
        promised = {attempt for claim in setting.still_open for attempt in claim.victims}
        self.nodes = setting.rooms.free_for_all()
        self.free = {name: free for name, (_model, free, _total) in self.nodes.items()}
        self.interruptible: dict[str, dict[Source, int]] = {}
        self._could: dict[frozenset[Source], dict[str, int]] = {}
        for attempt in books.attempts.values():
            if attempt.cluster == cluster and attempt.attempt not in promised and attempt.interruptible(setting.now_ms):
                for node, gpus in attempt.held().items():
                    if node in self.free:
                        here = self.interruptible.setdefault(node, {})
                        source = (attempt.budget, attempt.priority)
                        here[source] = here.get(source, 0) + gpus

    def sources(self) -> set[Source]:
        return {source for here in self.interruptible.values() for source in here}

    def could(self, sources: frozenset[Source]) -> dict[str, int]:
        """GPUs of each node that are free or of these sources."""
        found = self._could.get(sources)
        if found is None:
            found = self._could[sources] = dict(self.free)
            for node, here in self.interruptible.items():
                found[node] += sum(gpus for source, gpus in here.items() if source in sources)
        return found

    def most(self, shape: Shape, sources: frozenset[Source]) -> int:
        """Upper bound of the replicas that fit once these sources have left."""
        could = self.could(sources)
        if shape.model is None and not shape.avoid:
            return sum(gpus // shape.gpus for gpus in could.values())
        return sum(
            gpus // shape.gpus
            for node, gpus in could.items()
            if (shape.model is None or self.nodes[node][0] == shape.model) and node not in shape.avoid
        )

    def promise(self, shape: Shape, sources: frozenset[Source]) -> None:
        """Take away what a claim will probably get, so that the next one does not count on the same GPUs."""
        could = self.could(sources)
        rooms = [
            Room(node, could[node], total)
            for node, (model, _free, total) in self.nodes.items()
            if (shape.model is None or model == shape.model) and node not in shape.avoid and could[node] >= shape.gpus
        ]
        for part in place(rooms, shape.replicas, shape.gpus) or ():
            missing = part.replicas * shape.gpus - self.free[part.node]
            self.free[part.node] = max(0, -missing)
            here = self.interruptible.get(part.node, {})
            # Unallocated goes first (contract §7).
            for source in sorted(here, key=lambda each: (each[0] is not None, each[0] or "", each[1])):
                if missing > 0 and source in sources:
                    taken = min(missing, here[source])
                    here[source] -= taken
                    missing -= taken
            for known, gpus_by_node in self._could.items():
                left = sum(gpus for source, gpus in here.items() if source in known)
                gpus_by_node[part.node] = self.free[part.node] + left


def raise_claims(setting: Setting, new_id: Callable[[], str]) -> list[Claim]:
    """The claims to raise now, in the order of the queue; their holds count for those behind them."""
    space = setting.terms.claims_max - len(setting.still_open)
    pool = _Pool(setting)
    sources = pool.sources()
    if space <= 0 or not sources:
        return []
    standings = setting.standings.with_holds((claim.budget, claim.hold_gpu_ms) for claim in setting.still_open)
    line = AllocatedLine(setting.books.waiting, standings)
    seen = _Seen(setting, standings, pool, sources)
    raised: list[Claim] = []
    for _look in range(LOOKS_MAX):
        turn = line.next(seen.skip)
        if turn is None or len(raised) >= space:
            break
        job = setting.books.jobs[turn.job]
        enough = seen.enough_for(turn, job)
        if enough is None:
            line.passed(turn)
            continue
        claim = _claim(setting, turn, job, new_id())
        raised.append(claim)
        pool.promise(turn.group.shape, enough)
        standings.hold(claim.budget, claim.hold_gpu_ms)
        seen.moved(claim.budget)
        line.served(turn)
    return raised


class _Seen:
    """What has been found hopeless in this pass, so that it is not looked at again."""

    def __init__(self, setting: Setting, standings: Standings, pool: _Pool, sources: set[Source]) -> None:
        self._setting, self._standings, self._pool = setting, standings, pool
        self._sources = sorted(sources, key=lambda each: (each[0] or "", each[1]))
        self._known = {victim for victim, _priority in sources if victim is not None and standings.knows(victim)}
        self._all = frozenset(sources)
        self._small: set[tuple[int, int, str | None, tuple[str, ...]]] = set()
        self._failed: dict[tuple[str, int, int, str | None, tuple[str, ...]], list[tuple[int, GpuMs]]] = {}
        self._hopeless: dict[str, bool] = {}
        # Of each claimant's and victim's leaf: the largest hold known to be lawful, the smallest known not to be.
        self._bounds: dict[tuple[str, str], tuple[GpuMs, GpuMs]] = {}
        self._sets: dict[tuple[Source, ...], frozenset[Source]] = {}
        self._signature = (standings.revision, setting.books.cluster(setting.cluster).stirrings)

    def moved(self, leaf: str) -> None:
        """A claim of the leaf was raised, so holds have grown: what was lawful for it, or by shared ancestors in the surplus tier,
        may be so no more. (That the leaf's own attempts have become better victims is left to the next pass.)"""
        now = self._standings.now
        for key in [key for key in self._bounds if key[0] == leaf or not now[key[0]].guaranteed]:
            del self._bounds[key]

    def skip(self, leaf: str | None, group: Group) -> bool:
        shape = group.shape
        if shape.claim is not None or (shape.clusters and self._setting.cluster not in shape.clusters):
            return True
        assert leaf is not None
        if leaf not in self._hopeless:
            # Priority above all others and the smallest hold: whoever cannot displace then cannot at all.
            self._hopeless[leaf] = not self._displaceable(leaf, 1_001, 1)
        return self._hopeless[leaf] or (shape.replicas, shape.gpus, shape.model, shape.avoid) in self._small

    def enough_for(self, turn: Next, job: Job) -> frozenset[Source] | None:
        """The sources that a job may displace, where together with what is free they could make it fit."""
        now_ms = self._setting.now_ms
        if job.job in self._setting.gone or max(job.not_before_ms, job.claim_after_ms) > now_ms:
            return None
        if job.claims_failed and job.claim_signature == self._signature:
            return None
        assert turn.leaf is not None
        shape = turn.group.shape
        hold = job.next_slice_ms * job.gpus
        failed = self._failed.setdefault((turn.leaf, shape.replicas, shape.gpus, shape.model, shape.avoid), [])
        # Who holds more at no higher priority may displace no more.
        if any(job.priority <= priority and hold >= less for priority, less in failed):
            return None
        sources = self._displaceable(turn.leaf, job.priority, hold)
        if not sources:
            failed.append((job.priority, hold))
            return None
        if self._pool.most(shape, sources) < shape.replicas:
            if self._pool.most(shape, self._all) < shape.replicas:
                self._small.add((shape.replicas, shape.gpus, shape.model, shape.avoid))
            failed.append((job.priority, hold))
            return None
        return sources

    def _displaceable(self, leaf: str, priority: int, hold: GpuMs) -> frozenset[Source]:
        found = [
            (victim, theirs)
            for victim, theirs in self._sources
            if (theirs < priority if victim == leaf else self._lawful(leaf, victim, hold))
        ]
        return self._sets.setdefault(tuple(found), frozenset(found))

    def _lawful(self, leaf: str, victim: str | None, hold: GpuMs) -> bool:
        """What a smaller hold may not displace, a larger one may not either: two bounds for each pair save most comparisons."""
        if victim is None:
            return True
        may, may_not = self._bounds.get((leaf, victim), (-1, _NEVER))
        if hold <= may or hold >= may_not:
            return hold <= may
        lawful = self._may_displace(leaf, victim, hold)
        self._bounds[leaf, victim] = (hold, may_not) if lawful else (may, hold)
        return lawful

    def _may_displace(self, leaf: str, victim: str, hold: GpuMs) -> bool:
        if victim not in self._known:
            return False
        path, theirs = self._standings.path(leaf), self._standings.path(victim)
        return may_displace(path, hold, theirs, self._standings.now, self._setting.terms.margin_ppm).allowed


def _claim(setting: Setting, turn: Next, job: Job, name: str) -> Claim:
    assert turn.leaf is not None
    assert setting.books.tree is not None
    now_ms, terms = setting.now_ms, setting.terms
    return Claim(
        claim=name,
        cluster=setting.cluster,
        job=job.job,
        user=job.user,
        budget=turn.leaf,
        replicas=job.replicas,
        gpus_per_replica=job.gpus_per_replica,
        gpu_model=job.gpu_model,
        slice_ms=job.next_slice_ms,
        priority=job.priority,
        raised_at_ms=now_ms,
        answer_by_ms=now_ms + terms.answer_wait_ms,
        deadline_ms=now_ms + terms.claim_timeout_ms,
        newest_grant_seq=setting.newest_grant_seq,
        tree_revision=setting.books.tree.revision,
        usage_revision=setting.standings.revision,
        stirrings=setting.books.cluster(setting.cluster).stirrings,
        avoid=job.avoid,
    )
