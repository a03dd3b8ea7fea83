"""Which waiting jobs ask the preemptor for room: an upper bound of what could be freed for them, cheap and in order (contract §5).

Pure. Never names a victim and never decides that room can be made: only the preemptor does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.admission.model.books import Books, Kind, Line, Loose
from allmende.admission.model.values import Claim, Job, Shape, Terms
from allmende.admission.rules.line import AllocatedLine, Next
from allmende.admission.rules.reserving import due
from allmende.admission.rules.rooms import Rooms, Wish
from allmende.admission.rules.standings import Standings
from allmende.proto.order import may_displace, spared
from allmende.proto.placement import NodeReplicas, Room, place
from allmende.proto.units import LARGEST_AMOUNT, GpuMs, Ms

# Looking at a job costs some 50 us. A pass looks at so many without success; the next one looks on where it stopped
# (`Books.to_look_at`), and anew at kinds that somebody joined since.
LOOKS_MAX = 32
# Jobs of one kind and leaf fit or fail together, but for their exact slices and for those that rest after a claim that failed.
LOOKS_PER_KIND = 2
_NEVER = LARGEST_AMOUNT

Model: TypeAlias = str | None
Size: TypeAlias = tuple[int, int, Model, tuple[str, ...]]
# What says which nodes a job may use: model, nodes that it avoids, nodes on which nothing may be freed for it.
Where: TypeAlias = tuple[Model, tuple[str, ...], frozenset[str]]


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


class Lawful(NamedTuple):
    """Whom a claimant may displace: unallocated work, attempts of `leaves`, and those of lower priority in its own leaf."""

    leaves: frozenset[str]
    own: str
    priority: int
    hold: GpuMs
    closed: frozenset[str]
    """Nodes that the claimant may not use (`Rooms.closed_to`)."""

    def covers(self, attempt: "_Loose", waste_ppm: int) -> bool:
        """May this attempt be displaced, as far as leaf, priority and loss go?"""
        if attempt.leaf is None or attempt.idle:
            return True
        lawful = attempt.priority < self.priority if attempt.leaf == self.own else attempt.leaf in self.leaves
        return lawful and not spared(attempt.lost, attempt.courtesy, self.hold, waste_ppm)


class _Loose(NamedTuple):
    """An interruptible attempt: what it holds, what its going would lose, and up to which loss it is spared."""

    leaf: str | None
    priority: int
    held: tuple[tuple[str, int], ...]
    lost: GpuMs
    courtesy: GpuMs
    idle: bool


class _Pool:
    """GPUs that are free or interruptible, node by node, less what earlier claims of this pass will take."""

    def __init__(self, setting: Setting, loose: dict[str, Loose]) -> None:
        self.nodes = setting.rooms.free_for_all()
        self.free = {name: free for name, (_model, free, _total) in self.nodes.items()}
        self._waste_ppm = setting.terms.waste_ppm
        self._loose = {name: _loose(attempt, setting) for name, attempt in loose.items()}
        self._by_leaf: dict[str | None, list[str]] = {}
        for name, attempt in self._loose.items():
            self._by_leaf.setdefault(None if attempt.idle else attempt.leaf, []).append(name)
        self._usable: dict[Where, dict[str, int]] = {}
        self._fit: dict[tuple[int, Where], int] = {}

    def most(self, shape: Shape, lawful: Lawful) -> int:
        """Upper bound of the replicas that fit once these have left."""
        where, size = (shape.model, shape.avoid, lawful.closed), shape.gpus
        usable = self._free(where)
        fit = self._fit.get((size, where))
        if fit is None:
            fit = self._fit[size, where] = sum(free // size for free in usable.values())
        for node, gpus in self._added(lawful).items():
            if (free := usable.get(node)) is not None:
                fit += (free + gpus) // size - free // size
        return fit

    def promise(self, shape: Shape, lawful: Lawful) -> None:
        """Take away what a claim will probably get, so that the next one does not count on the same GPUs."""
        added = self._added(lawful)
        could = {node: free + added.get(node, 0) for node, free in self._free((shape.model, shape.avoid, lawful.closed)).items()}
        rooms = [Room(node, gpus, self.nodes[node][2]) for node, gpus in could.items() if gpus >= shape.gpus]
        for part in place(rooms, shape.replicas, shape.gpus) or ():
            self._take(part.node, part.replicas * shape.gpus, lawful)
        self._usable.clear()
        self._fit.clear()

    def _free(self, where: Where) -> dict[str, int]:
        """Free GPUs of the nodes that such a job may use."""
        found = self._usable.get(where)
        if found is None:
            model, avoid, closed = where
            found = self._usable[where] = {
                node: free
                for node, free in self.free.items()
                if node not in closed and node not in avoid and model in (None, self.nodes[node][0])
            }
        return found

    def _added(self, lawful: Lawful) -> dict[str, int]:
        """GPUs by node of those who may be made to leave."""
        added: dict[str, int] = {}
        for leaf in (None, lawful.own, *lawful.leaves):
            for name in self._by_leaf.get(leaf, ()):
                attempt = self._loose[name]
                if lawful.covers(attempt, self._waste_ppm):
                    for node, gpus in attempt.held:
                        added[node] = added.get(node, 0) + gpus
        return added

    def _take(self, node: str, gpus: int, lawful: Lawful) -> None:
        here = [
            (attempt.leaf is not None, attempt.lost, name)
            for name, attempt in self._loose.items()
            if any(where == node for where, _gpus in attempt.held) and lawful.covers(attempt, self._waste_ppm)
        ]
        missing = gpus - self.free[node]
        self.free[node] = max(0, -missing)
        # Unallocated goes first (contract §7). What a victim holds beyond the need may go to another who may displace it.
        for _allocated, _lost, name in sorted(here):
            if missing <= 0:
                break
            attempt = self._loose[name]
            held = dict(attempt.held)
            taken = min(missing, held[node])
            held[node] -= taken
            missing -= taken
            self._loose[name] = attempt._replace(held=tuple((where, left) for where, left in held.items() if left))


def _loose(loose: Loose, setting: Setting) -> _Loose:
    books, now_ms, attempt = setting.books, setting.now_ms, loose.attempt
    started_ms = attempt.started_at_ms if attempt.started_at_ms is not None else now_ms
    saves = books.saves.get(attempt.attempt)
    since_ms = now_ms - max(started_ms, saves.at_ms if saves is not None else started_ms)
    gpus = sum(gpus for _node, gpus in loose.held)
    return _Loose(
        attempt.budget, attempt.priority, loose.held, since_ms * gpus, attempt.slice_ms * gpus, attempt.attempt in books.idle
    )


def raise_claims(setting: Setting, new_id: Callable[[], str]) -> list[Claim]:
    """The claims to raise now, in the order of the queue; their holds count for those behind them."""
    space = setting.terms.claims_max - len(setting.still_open)
    if space <= 0:
        return []
    raised = [
        _claim(setting, job.budget, job, new_id(), reserved=job.reserved.placement)
        for job in due(setting.books, setting.cluster, setting.now_ms)
        if job.job not in setting.gone and job.budget is not None and job.reserved is not None
    ]
    to_look_at = _to_look_at(setting)
    if not to_look_at:
        return raised
    seen = _Seen(setting, raised, to_look_at)
    if not seen.anybody:
        return raised
    line = AllocatedLine(_only(setting.books.waiting, to_look_at), seen.standings)
    looks = 0
    while looks < LOOKS_MAX and len(raised) < space:
        turn = line.next(seen.skip)
        if turn is None:
            to_look_at.clear()
            setting.books.next_round_ms[setting.cluster] = setting.now_ms + setting.terms.claims_rest_ms
            break
        job = setting.books.jobs[turn.job]
        enough = seen.enough_for(turn, job)
        if enough is None:
            looks += 1
            seen.failed(turn)
            line.passed(turn)
            continue
        assert turn.leaf is not None
        claim = _claim(setting, turn.leaf, job, new_id(), avoid=tuple(sorted({*job.avoid, *enough.closed})))
        raised.append(claim)
        seen.pool.promise(turn.group.kind.shape, enough)
        seen.standings.hold(claim.budget, claim.hold_gpu_ms)
        seen.moved(claim.budget)
        line.served(turn)
    return raised


def _to_look_at(setting: Setting) -> dict[str, set[Kind]]:
    """The kinds of this round that are left; a new round, of everybody who waits, where the last one is over and has rested."""
    books, cluster = setting.books, setting.cluster
    to_look_at = books.to_look_at[cluster]
    if books.next_round_ms[cluster] <= setting.now_ms and not to_look_at:
        to_look_at.update((leaf, set(kinds)) for leaf, kinds in books.waiting.items() if leaf is not None)
    return to_look_at


def _only(waiting: Mapping[str | None, Line], to_look_at: Mapping[str, set[Kind]]) -> dict[str | None, Line]:
    # In the order in which they wait: a set's own depends on the hash seed.
    return {
        leaf: {kind: waiting[leaf][kind] for kind in waiting[leaf] if kind in kinds}
        for leaf, kinds in to_look_at.items()
        if leaf in waiting
    }


class _Seen:
    """What has been found hopeless in this pass, so that it is not looked at again."""

    def __init__(self, setting: Setting, raised: Sequence[Claim], to_look_at: dict[str, set[Kind]]) -> None:
        self._setting = setting
        self._gone = setting.gone | {claim.job for claim in raised}
        self.standings = setting.standings.with_holds((claim.budget, claim.hold_gpu_ms) for claim in setting.still_open)
        promised = {attempt for claim in setting.still_open for attempt in claim.victims}
        self._loose = {
            name: loose
            for leaf in setting.books.loose.get(setting.cluster, {}).values()
            for name, loose in leaf.items()
            if name not in promised
        }
        self.anybody = bool(self._loose)
        # Whom everybody may displace.
        self._free_game = any(loose.attempt.budget is None or name in setting.books.idle for name, loose in self._loose.items())
        known = {leaf for loose in self._loose.values() if (leaf := loose.attempt.budget) is not None}
        now = self.standings.now
        # The most over-served first: whoever may not displace the first of these may displace none of them by its own ratio.
        self._victims = sorted(
            sorted(leaf for leaf in known if self.standings.knows(leaf)), key=lambda leaf: now[leaf].ratio, reverse=True
        )
        self._lowest: dict[str, int] = {}
        for attempt, _held in self._loose.values():
            if attempt.budget is not None:
                self._lowest[attempt.budget] = min(attempt.priority, self._lowest.get(attempt.budget, attempt.priority))
        self._pool: _Pool | None = None
        self._small: dict[tuple[str, Size], bool] = {}
        self._looks: dict[tuple[str | None, Kind], int] = {}
        self._to_look_at = to_look_at
        self._at_best: dict[str, Lawful | None] = {}
        # Of each claimant's and victim's leaf: the largest hold known to be lawful, the smallest known not to be.
        self._bounds: dict[tuple[str, str], tuple[GpuMs, GpuMs]] = {}
        self._signature = (self.standings.revision, setting.books.cluster(setting.cluster).stirrings)

    @property
    def pool(self) -> _Pool:
        """Made at the first look: most passes find nobody who may displace anybody, and need none."""
        if self._pool is None:
            self._pool = _Pool(self._setting, self._loose)
        return self._pool

    def moved(self, leaf: str) -> None:
        """A claim of the leaf was raised, so holds have grown: what was lawful for it, or by shared ancestors in the surplus tier,
        may be so no more. (That the leaf's own attempts have become better victims is left to the next pass.)"""
        now = self.standings.now
        for key in [key for key in self._bounds if key[0] == leaf or not now[key[0]].guaranteed]:
            del self._bounds[key]
        self._at_best.clear()
        self._small.clear()

    def skip(self, leaf: str | None, kind: Kind) -> bool:
        shape = kind.shape
        if shape.claim is not None or (shape.clusters and self._setting.cluster not in shape.clusters):
            return True
        assert leaf is not None
        if leaf not in self._at_best:
            # The smallest hold and the highest priority: whoever cannot displace then cannot at all.
            leaves = self._lawful_leaves(leaf, 1)
            anybody = leaves or self._free_game or self._outranks_own(leaf)
            highest = self._setting.books.highest_priority(leaf)
            self._at_best[leaf] = Lawful(leaves, leaf, highest, _NEVER, frozenset()) if anybody else None
        at_best = self._at_best[leaf]
        if at_best is None or kind not in self._to_look_at[leaf]:
            return True
        key = (leaf, _size(shape))
        if key not in self._small:
            self._small[key] = self.pool.most(shape, at_best) < shape.replicas
        return self._small[key]

    def enough_for(self, turn: Next, job: Job) -> Lawful | None:
        """Whom a job may displace, where together with what is free that could make it fit."""
        now_ms = self._setting.now_ms
        if job.job in self._gone or job.idled or max(job.not_before_ms, job.claim_after_ms) > now_ms:
            return None
        if job.claims_failed and job.claim_signature == self._signature:
            return None
        assert turn.leaf is not None
        shape, hold = turn.group.kind.shape, job.next_slice_ms * job.gpus
        closed = self._setting.rooms.closed_to(Wish(job.job, job.next_slice_ms))
        lawful = Lawful(self._lawful_leaves(turn.leaf, hold), turn.leaf, job.priority, hold, closed)
        return lawful if self.pool.most(shape, lawful) >= shape.replicas else None

    def failed(self, turn: Next) -> None:
        """Looked at in vain; after some of a kind, the kind is passed over until the next round."""
        assert turn.leaf is not None
        looked = (turn.leaf, turn.group.kind)
        self._looks[looked] = self._looks.get(looked, 0) + 1
        if self._looks[looked] >= LOOKS_PER_KIND:
            self._to_look_at[turn.leaf].discard(turn.group.kind)

    def _outranks_own(self, leaf: str) -> bool:
        return leaf in self._lowest and self._setting.books.highest_priority(leaf) > self._lowest[leaf]

    def _lawful_leaves(self, leaf: str, hold: GpuMs) -> frozenset[str]:
        """Leaves whose attempts it may displace."""
        guaranteed = self.standings.now[leaf].guaranteed
        found = []
        for victim in self._victims:
            if victim == leaf or (not guaranteed and self.standings.now[victim].guaranteed):
                continue
            if self._lawful(leaf, victim, hold):
                found.append(victim)
            elif guaranteed:
                break
        return frozenset(found)

    def _lawful(self, leaf: str, victim: str, hold: GpuMs) -> bool:
        """What a smaller hold may not displace, a larger one may not either: two bounds for each pair save most comparisons."""
        may, may_not = self._bounds.get((leaf, victim), (-1, _NEVER))
        if hold <= may or hold >= may_not:
            return hold <= may
        path, theirs = self.standings.path(leaf), self.standings.path(victim)
        lawful = may_displace(path, hold, theirs, self.standings.now, self._setting.terms.margin_ppm).allowed
        self._bounds[leaf, victim] = (hold, may_not) if lawful else (may, hold)
        return lawful


def _size(shape: Shape) -> Size:
    return shape.replicas, shape.gpus, shape.model, shape.avoid


def _claim(
    setting: Setting, leaf: str, job: Job, name: str, *, avoid: tuple[str, ...] = (), reserved: tuple[NodeReplicas, ...] = ()
) -> Claim:
    assert setting.books.tree is not None
    now_ms, terms = setting.now_ms, setting.terms
    return Claim(
        claim=name,
        cluster=setting.cluster,
        job=job.job,
        user=job.user,
        budget=leaf,
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
        avoid=avoid,
        reserved=reserved,
    )
