"""Which waiting jobs ask the preemptor for room: an upper bound of what could be freed for them, cheap and in order (contract §5).

Pure. Never names a victim and never decides that room can be made: only the preemptor does.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from allmende.admission.model.books import Books, Loose
from allmende.admission.model.lines import Kind, Line, slice_class
from allmende.admission.model.values import Claim, Job, Terms
from allmende.admission.rules.freeing import Lawful, Pool
from allmende.admission.rules.line import AllocatedLine, Next
from allmende.admission.rules.reserving import due
from allmende.admission.rules.rooms import Rooms, Wish
from allmende.admission.rules.standings import Standings
from allmende.proto.order import largest_hold
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import GpuMs, Ms

# Looking at a job costs some 50 us. A pass looks at so many without success; the next one looks on where it stopped
# (`Books.to_look_at`), and anew at kinds that somebody joined since.
LOOKS_MAX = 32
# Jobs of one kind and leaf fit or fail together, but for their exact slices and for those that rest after a claim that failed.
LOOKS_PER_KIND = 2


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


def raise_claims(setting: Setting, new_id: Callable[[], str]) -> list[Claim]:
    """The claims to raise now, in the order of the queue; their holds count for those behind them."""
    # What was promised is asked for however many claims are open.
    raised = [
        _claim(setting, job.budget, job, new_id(), reserved=job.reserved.placement)
        for job in due(setting.books, setting.cluster, setting.now_ms)
        if job.job not in setting.gone and job.budget is not None and job.reserved is not None
    ]
    space = setting.terms.claims_max - len(setting.still_open)
    to_look_at = _to_look_at(setting) if space > 0 else {}
    if not to_look_at:
        return raised
    seen = _Seen(setting, raised, to_look_at)
    if not seen.anybody:
        return raised
    line = AllocatedLine(seen.hopeful(), seen.standings)
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
        seen.moved()
        line.served(turn)
    return raised


def _to_look_at(setting: Setting) -> dict[str, set[Kind]]:
    """The kinds of this round that are left; a new round, of everybody who waits, where the last one is over and has rested."""
    books, cluster = setting.books, setting.cluster
    to_look_at = books.to_look_at[cluster]
    if books.next_round_ms[cluster] <= setting.now_ms and not to_look_at:
        to_look_at.update((leaf, set(kinds)) for leaf, kinds in books.waiting.items() if leaf is not None)
    return to_look_at


def _displaceable(setting: Setting) -> dict[str | None, list[Loose]]:
    """Whom somebody may displace, by leaf; None: whom anybody may: the idle, and those of a closed budget, which is owed nothing.
    Who goes for a claim already is not counted twice."""
    idle = setting.books.idle
    promised = {attempt for claim in setting.still_open for attempt in claim.victims}
    found: dict[str | None, list[Loose]] = {}
    for leaf, those in setting.books.loose.get(setting.cluster, {}).items():
        if promised.isdisjoint(those) and idle.isdisjoint(those):
            found.setdefault(leaf if leaf in setting.standings.paths else None, []).extend(those.values())
            continue
        for name, each in those.items():
            if name not in promised:
                found.setdefault(leaf if leaf in setting.standings.paths and name not in idle else None, []).append(each)
    return found


class _Seen:
    """What has been found hopeless in this pass, so that it is not looked at again."""

    def __init__(self, setting: Setting, raised: Sequence[Claim], to_look_at: dict[str, set[Kind]]) -> None:
        self._setting = setting
        self._gone = setting.gone | {claim.job for claim in raised}
        self.standings = setting.standings.with_holds((claim.budget, claim.hold_gpu_ms) for claim in setting.still_open)
        loose = _displaceable(setting)
        self.anybody = bool(loose)
        now = self.standings.now
        # The most over-served first: whoever may not displace the first of these may displace none of them by its own ratio.
        self._victims = sorted(
            sorted(leaf for leaf in loose if leaf is not None and self.standings.knows(leaf)),
            key=lambda leaf: now[leaf].ratio,
            reverse=True,
        )
        self.pool = Pool(setting.books, setting.rooms, loose, setting.now_ms, setting.terms.waste_ppm)
        self._to_look_at = to_look_at
        self._looks: dict[tuple[str | None, Kind], int] = {}
        self._hopeless: dict[tuple[str, Kind], bool] = {}
        self._reaches: dict[str, int] = {}
        self._largest: dict[str, list[tuple[GpuMs, str]]] = {}
        self._closed: dict[int, frozenset[str]] = {}
        self._gathered_for = {
            (job.budget, Kind(job.shape, slice_class(job.next_slice_ms)))
            for job in map(setting.books.jobs.__getitem__, setting.books.reserved[setting.cluster])
        }
        self._signature = (self.standings.revision, setting.books.cluster(setting.cluster).stirrings)

    def hopeful(self) -> dict[str | None, Line]:
        """Those who wait and might displace enough, as far as can be told of a whole kind."""
        waiting = self._setting.books.waiting
        found: dict[str | None, Line] = {}
        for leaf in self._to_look_at:
            if leaf in waiting and self.standings.knows(leaf):
                # In the order in which they wait: a set's own depends on the hash seed.
                line = {kind: groups for kind, groups in waiting[leaf].items() if not self.skip(leaf, kind)}
                if line:
                    found[leaf] = line
        return found

    def moved(self) -> None:
        """A claim was raised, so holds have grown: what was lawful may be so no more. (That the claimant's own attempts have become
        better victims is left to the next pass.)"""
        self._largest.clear()
        self._reaches.clear()
        self._hopeless.clear()

    def skip(self, leaf: str | None, kind: Kind) -> bool:
        """Can nobody of the kind displace enough?"""
        assert leaf is not None
        if kind not in self._to_look_at[leaf]:
            return True
        found = self._hopeless.get((leaf, kind))
        if found is None:
            found = self._hopeless[leaf, kind] = self._is_hopeless(leaf, kind)
        return found

    def _is_hopeless(self, leaf: str, kind: Kind) -> bool:
        shape = kind.shape
        if shape.claim is not None or (shape.clusters and self._setting.cluster not in shape.clusters):
            return True
        gpus = shape.replicas * shape.gpus
        if gpus > self._reach(leaf):
            return True
        # The smallest hold displaces most leaves, the largest most unsaved work: whoever cannot with both cannot at all.
        at_best = Lawful(
            leaves=self._lawful_leaves(leaf, max(1, kind.slice_ms_least * gpus)),
            own=leaf,
            priority=self._setting.books.highest_priority(leaf),
            hold=kind.slice_ms_most * gpus,
            closed=frozenset() if (leaf, kind) in self._gathered_for else self._closed_to(kind),
        )
        return not self.pool.fits(shape, at_best)

    def _reach(self, leaf: str) -> int:
        """GPUs that the leaf's jobs could get at most, wherever they are."""
        found = self._reaches.get(leaf)
        if found is None:
            found = self._reaches[leaf] = self.pool.gpus((leaf, *self._lawful_leaves(leaf, 1)))
        return found

    def _closed_to(self, kind: Kind) -> frozenset[str]:
        """Nodes that are closed to all of the kind, but for one that nodes are gathered for."""
        found = self._closed.get(kind.slice_class)
        if found is None:
            found = self._closed[kind.slice_class] = self._setting.rooms.closed_to(Wish("", kind.slice_ms_least))
        return found

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
        return lawful if self.pool.fits(shape, lawful) else None

    def failed(self, turn: Next) -> None:
        """Looked at in vain; after some of a kind, the kind is passed over until the next round."""
        assert turn.leaf is not None
        looked = (turn.leaf, turn.group.kind)
        self._looks[looked] = self._looks.get(looked, 0) + 1
        if self._looks[looked] >= LOOKS_PER_KIND:
            self._to_look_at[turn.leaf].discard(turn.group.kind)

    def _lawful_leaves(self, leaf: str, hold: GpuMs) -> tuple[str, ...]:
        """Leaves whose attempts it may displace."""
        largest = self._largest.get(leaf)
        if largest is None:
            largest = self._largest[leaf] = self._largest_holds(leaf)
        return tuple(victim for most, victim in largest if hold <= most)

    def _largest_holds(self, leaf: str) -> list[tuple[GpuMs, str]]:
        """The largest hold with which the leaf may displace each other one; those that it may not displace are left out."""
        standings, margin_ppm = self.standings, self._setting.terms.margin_ppm
        guaranteed, path = standings.now[leaf].guaranteed, standings.path(leaf)
        found = []
        for victim in self._victims:
            most = largest_hold(path, standings.path(victim), standings.now, margin_ppm)
            if most > 0:
                found.append((most, victim))
            elif guaranteed and victim != leaf:
                break
        return found


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
