"""One pass over the queue of one cluster: who starts where, and who asks for room (contract §4 and §5).

Pure: a snapshot goes in, a value comes out. Work-conserving: after it no waiting job fits into GPUs that are not earmarked.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import NOTHING, Change, Claimed, Fact, Granted, Withdrawn, together
from allmende.admission.model.lines import Kind, Line, Turn
from allmende.admission.model.values import Attempt, Claim, Decided, Job, Shape, Terms
from allmende.admission.rules import policies, reserving
from allmende.admission.rules.claiming import Setting, raise_claims
from allmende.admission.rules.line import AllocatedLine, Next, UnallocatedLine
from allmende.admission.rules.policies import Limits
from allmende.admission.rules.rooms import Rooms, Wish
from allmende.admission.rules.standings import Standings
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import Ms, format_duration


class First(NamedTuple):
    """An allocated job that found no room. Only slices that end by `room_from_ms` start behind it; None: none does."""

    job: str
    room_from_ms: Ms | None


class Outlook(NamedTuple):
    """What a pass saw: the numbers it compared, kept for the queue's page and for blockers."""

    cluster: str
    at_ms: Ms
    standings: Standings
    """As the pass left them, its own grants included."""
    missed: Mapping[Shape, int]
    """Shapes that did not fit, with the replicas that would have."""
    limits: Limits
    """The cluster's policy, and how far its limits were used."""
    first: First | None = None
    """Where not anybody may start behind it: the first allocated job that found no room."""


class Passed(NamedTuple):
    """A pass's decision. `again`: earmarks fell that somebody passed over could use, so look once more."""

    change: Change
    outlook: Outlook
    again: bool


def not_ready(books: Books) -> tuple[str, ...]:
    """What is not loaded yet, one sentence each. Nothing is decided before: unknown is not zero."""
    missing = []
    if books.tree is None:
        missing.append("no tree of budgets has arrived from the budget service")
    if not books.nodes:
        missing.append("no agent has reported a node")
    missing.extend(
        f"the ledger has not said how the budgets stand on cluster {cluster}"
        for cluster in books.cluster_names()
        if not books.counted.get(cluster)
    )
    return tuple(missing)


def may_pass(books: Books, cluster: str, now_ms: Ms) -> bool:
    """May anything be granted on the cluster now? Not before all is known, nor while the preemptor is answering a claim."""
    if books.tree is None or not books.counted.get(cluster):
        return False
    return all(claim.plan is not None or claim.answer_by_ms <= now_ms for claim in books.claims_on(cluster))


def decide(books: Books, cluster: str, now_ms: Ms, terms: Terms, new_id: Callable[[], str], *, may_claim: bool = True) -> Passed:
    """Try everybody in order, once; then raise claims for those left over, if `may_claim`. `may_pass` must hold.

    In mode `observe`, and while the cluster is paused, nothing of it happens: what `observe` would have done is stored.
    """
    course = _Course(books, cluster, now_ms, policies.terms_on(books, cluster, terms), new_id)
    policy = course.limits.policy
    course.gathered()
    course.allocated()
    course.unallocated()
    course.reservations()
    if may_claim and policy.mode != "admit":
        # A job may have got its reservation in this very pass.
        changed = {job.job: job for change in course.changes for job in change.jobs}
        course.changes.append(_raised({**books.jobs, **changed} if changed else books.jobs, course.claims(), now_ms))
    change = together(course.changes)
    if policy.paused or policy.mode == "observe":
        kept = NOTHING if policy.paused else policies.would(books, change)
        unmoved = Outlook(cluster, now_ms, Standings(books, cluster), course.missed, Limits(books, cluster, terms))
        return Passed(kept, unmoved, False)
    return Passed(change, Outlook(cluster, now_ms, course.standings, course.missed, course.limits, course.first), course.again)


class _Course:
    """A pass under way."""

    def __init__(self, books: Books, cluster: str, now_ms: Ms, terms: Terms, new_id: Callable[[], str]) -> None:
        assert books.tree is not None
        self.books, self.cluster, self.now_ms, self.terms, self.new_id = books, cluster, now_ms, terms, new_id
        self.tree_revision = books.tree.revision
        self.standings = Standings(books, cluster)
        self.rooms = Rooms(books, cluster, now_ms, terms)
        self.limits = Limits(books, cluster, terms)
        books.loosen(now_ms)
        self.missed: dict[Shape, int] = {}
        # The shortest slice of each shape that found no place; 0: none does.
        self._missed_from_ms: dict[Shape, Ms] = {}
        self.first: First | None = None
        # The longest slice that may start behind `first`; None: any.
        self._slice_ms_most: Ms | None = None
        self.grant_seq = books.cluster(cluster).grant_seq
        self.changes: list[Change] = []
        self.granted: set[str] = set()
        self.started_claims: set[str] = set()
        self.again = False
        # Of each leaf: the jobs of the debug lane that have not had their turn.
        self._debug: dict[str, Iterator[Turn]] = {}

    def gathered(self) -> None:
        """Jobs whose nodes are gathered and free: nobody else could use these now, or it would be his turn as well."""
        for name in list(self.books.reserved[self.cluster]):
            job = self.books.jobs[name]
            if job.reserved is not None and self.rooms.place_exactly(job.shape, job.reserved.placement):
                _may, leaf = self.books.partition(job)
                if leaf is not None and self.standings.knows(leaf) and self.limits.bar(leaf, job) is None:
                    self._grant(leaf, job, job.reserved.placement, job.next_slice_ms, ())
                    self._hold(leaf, job)

    def allocated(self) -> None:
        """Partition 1. A hold counts at once, so the order is taken anew after each grant."""
        strictly = self.limits.policy.backfill != "any"
        skip = self._skip_strictly if strictly else self._skip
        # The usual case: what ended is too small for most who wait, and their order matters to nobody.
        hopeful: dict[str | None, Line] = {}
        others: list[str] = []
        for leaf, kinds in self.books.waiting.items():
            if leaf is not None and not all(skip(leaf, kind) for kind in kinds):
                hopeful[leaf] = kinds
            elif leaf is not None:
                others.append(leaf)
        if not hopeful:
            return
        line = AllocatedLine(hopeful, self.standings, others)
        while (turn := line.next(skip)) is not None:
            job = self.books.jobs[turn.job]
            if self._debugs(turn, line):
                continue
            missed_from_ms = self._missed_from_ms.get(turn.group.kind.shape)
            if missed_from_ms is not None and job.next_slice_ms >= missed_from_ms:
                line.passed(turn, partial(self._too_long, missed_from_ms))
                continue
            if self._slice_ms_most is not None and job.next_slice_ms > self._slice_ms_most:
                line.passed(turn, partial(self._too_long, self._slice_ms_most + 1))
                continue
            if job.not_before_ms > self.now_ms or job.job in self.granted or self.limits.bar(turn.leaf, job):
                line.passed(turn)
                continue
            placement = self._place(job, job.next_slice_ms)
            if placement is None:
                self._miss(turn.group.kind.shape, job.next_slice_ms)
                if strictly:
                    strictly, skip = False, self._skip
                    if not self._may_follow(job):
                        break
                continue
            assert turn.leaf is not None
            self._grant(turn.leaf, job, placement, job.next_slice_ms, line.ahead())
            self._hold(turn.leaf, job)
            line.served(turn)

    def unallocated(self) -> None:
        """Partition 2: what no allocated job could use now."""
        self._uncharged(UnallocatedLine(self.books.waiting.get(None, {}), self.books.unallocated_gpus))
        if self.limits.policy.over_budget == "unallocated":
            self._uncharged(UnallocatedLine(policies.uncharged(self.books, self.standings), self.books.unallocated_gpus))

    def _uncharged(self, line: UnallocatedLine) -> None:
        while (turn := line.next(self._skip)) is not None:
            job = self.books.jobs[turn.job]
            if job.not_before_ms > self.now_ms or job.job in self.granted or self.limits.bar(None, job):
                line.passed(turn)
                continue
            placement = self._place(job, 0)
            if placement is None:
                self._miss(turn.group.kind.shape, 0)
                continue
            self._grant(None, job, placement, 0, ())
            line.served(turn)

    def _debugs(self, turn: Next, line: AllocatedLine) -> bool:
        """The turn is the leaf's; grant it to the next job of its debug lane that fits, if there is one."""
        leaf = turn.leaf
        assert leaf is not None
        if leaf not in self._debug:
            self._debug[leaf] = iter(policies.debug_jobs(self.books, leaf, self.limits.policy.debug_lane))
        for _submitted_ms, name in self._debug[leaf]:
            job = self.books.jobs[name]
            in_time = self._slice_ms_most is None or job.next_slice_ms <= self._slice_ms_most
            may = in_time and name not in self.granted and job.not_before_ms <= self.now_ms and self.limits.debugs(job.user)
            elsewhere = bool(job.clusters) and self.cluster not in job.clusters
            if not may or elsewhere or self.limits.bar(leaf, job):
                continue
            placement = self._place(job, job.next_slice_ms)
            if placement is not None:
                self._grant(leaf, job, placement, job.next_slice_ms, line.ahead())
                self._hold(leaf, job)
                return True
        return False

    def reservations(self) -> None:
        """Nodes gathered for large jobs of leaves that are owed time."""
        setting = self._to_gather()
        changes = reserving.mend(setting)
        if self.terms.reservations_max:
            changes += reserving.reserve(setting)
        for job in (job for change in changes for job in change.jobs):
            self.rooms.reserve(job.job, job.reserved, job.gpus_per_replica)
        self.changes.extend(changes)

    def _to_gather(self) -> reserving.Setting:
        return reserving.Setting(
            books=self.books,
            cluster=self.cluster,
            now_ms=self.now_ms,
            terms=self.terms,
            standings=self.standings,
            rooms=self.rooms,
            taken=frozenset(self.granted),
            limits=self.limits,
        )

    def _may_follow(self, first: Job) -> bool:
        """May any allocated job start behind the first one that found no room? If so, `_slice_ms_most` says which."""
        from_ms: Ms | None = None
        if self.limits.policy.backfill == "within_deadline":
            from_ms = reserving.room_from_ms(self._to_gather(), first)
        self.first = First(first.job, from_ms)
        if from_ms is None:
            return False
        # Its start may take the allowance.
        self._slice_ms_most = max(0, from_ms - self.now_ms - self.terms.start_timeout_ms)
        return True

    def claims(self) -> list[Claim]:
        """Room that the preemptor shall make for those who are left."""
        still_open = tuple(claim for claim in self.books.claims_on(self.cluster) if claim.claim not in self.started_claims)
        setting = Setting(
            books=self.books,
            cluster=self.cluster,
            now_ms=self.now_ms,
            terms=self.terms,
            rooms=self.rooms,
            standings=self.standings,
            newest_grant_seq=self.grant_seq,
            gone=frozenset(self.granted),
            still_open=still_open,
        )
        raised = raise_claims(setting, self.new_id)
        if self.limits.policy.over_budget != "queue":
            # A promise that was made is kept: its own hold may have carried the leaf past 1.
            raised = [claim for claim in raised if claim.reserved or self.standings.now[claim.budget].guaranteed]
        return [claim for claim in raised if self.limits.with_claim(claim)]

    def _barred(self, leaf: str | None, kind: Kind) -> bool:
        if kind.shape.clusters and self.cluster not in kind.shape.clusters:
            return True
        if leaf is None:
            return False
        if self.limits.policy.over_budget != "queue" and self.standings.knows(leaf) and not self.standings.now[leaf].guaranteed:
            return True
        return self.limits.bars_kind(leaf, kind)

    def _skip_strictly(self, leaf: str | None, kind: Kind) -> bool:
        """Who finds no room is not passed over, unless no empty cluster could hold it."""
        return self._barred(leaf, kind) or not policies.ever_fits(self.books, self.cluster, kind.shape)

    def _skip(self, leaf: str | None, kind: Kind) -> bool:
        shape = kind.shape
        missed_from_ms = self._missed_from_ms.get(shape)
        if missed_from_ms is not None and kind.slice_ms_least >= missed_from_ms:
            return True
        late = leaf is not None and self._slice_ms_most is not None and kind.slice_ms_least > self._slice_ms_most
        if late or self._barred(leaf, kind):
            return True
        if missed_from_ms is not None:
            return False
        if shape.claim is None and self.rooms.most(shape) < shape.replicas:
            self._miss(shape, 0)
            return True
        return False

    def _too_long(self, missed_from_ms: Ms, name: str) -> bool:
        return self.books.jobs[name].next_slice_ms >= missed_from_ms

    def _miss(self, shape: Shape, slice_ms: Ms) -> None:
        fit = self.rooms.most(shape)
        self.missed[shape] = fit
        # Where room is kept for shorter slices, only longer ones fail with this one.
        shorter_may_fit = self.rooms.chosen and fit >= shape.replicas
        self._missed_from_ms[shape] = slice_ms if shorter_may_fit else 0

    def _place(self, job: Job, slice_ms: Ms) -> tuple[NodeReplicas, ...] | None:
        claim = self.books.claims.get(job.claim) if job.claim is not None else None
        if claim is not None and claim.cluster == self.cluster and self.rooms.place_exactly(job.shape, claim.placement):
            return claim.placement
        return self.rooms.place(job.shape, self.now_ms + slice_ms if slice_ms else 0, Wish(job.job, slice_ms))

    def _hold(self, leaf: str, job: Job) -> None:
        amount = job.next_slice_ms * job.gpus
        if job.reserved is not None and job.reserved.cluster == self.cluster:
            self.standings.unhold(leaf, amount)
        self.standings.hold(leaf, amount)

    def _grant(self, leaf: str | None, job: Job, placement: tuple[NodeReplicas, ...], slice_ms: Ms, ahead: tuple[str, ...]) -> None:
        self.grant_seq += 1
        attempt = Attempt(
            attempt=self.new_id(),
            job=job.job,
            user=job.user,
            cluster=self.cluster,
            budget=leaf,
            placement=placement,
            gpus_per_replica=job.gpus_per_replica,
            slice_ms=slice_ms,
            priority=job.priority,
            grant_seq=self.grant_seq,
            granted_at_ms=self.now_ms,
            start_by_ms=self.now_ms + self.terms.start_timeout_ms,
            max_runtime_ms=job.max_runtime_ms,
            claim=job.claim,
        )
        granted = replace(
            job,
            state="starting",
            attempt=attempt.attempt,
            attempts=job.attempts + 1,
            claim=None,
            claims_failed=0,
            claim_after_ms=0,
            reserved=None,
        )
        facts: list[Fact] = [Granted(granted, attempt, self.tree_revision, self.standings.revision)]
        ended = self._claim_started(job)
        facts.extend(Withdrawn(claim, "started" if claim.ended == "started" else "elsewhere") for claim in ended)
        self.rooms.take(placement, job.gpus_per_replica, self.now_ms + slice_ms if slice_ms else 0)
        self.granted.add(job.job)
        self.limits.count(attempt)
        decided = self._decided(leaf, job, attempt, ahead)
        self.changes.append(Change(jobs=(granted,), attempts=(attempt,), claims=ended, facts=tuple(facts), decisions=(decided,)))

    def _claim_started(self, job: Job) -> tuple[Claim, ...]:
        claim = self.books.claims.get(job.claim) if job.claim is not None else None
        if claim is None:
            return ()
        self.started_claims.add(claim.claim)
        self.again |= self.rooms.unmark(claim.claim)
        return (replace(claim, ended="started" if claim.cluster == self.cluster else "elsewhere"),)

    def _decided(self, leaf: str | None, job: Job, attempt: Attempt, ahead: tuple[str, ...]) -> Decided:
        nodes = len(attempt.placement)
        where = f"{job.replicas} x {job.gpus_per_replica} GPUs on {nodes} node{'s' if nodes > 1 else ''} of {self.cluster}"
        numbers = {"gpus": job.gpus, "nodes": nodes, "grant_seq": self.grant_seq, "hold_gpu_ms": attempt.hold_gpu_ms}
        if leaf is None:
            why = "unallocated: slice 0, charged to nobody; no allocated job could use these GPUs now"
            numbers["unallocated_gpus_of_user"] = self.books.unallocated_gpus.get(job.user, 0)
        else:
            standing = self.standings.now[leaf]
            numbers |= {"used_gpu_ms": standing.used, "entitlement_gpu_ms": standing.entitlement}
            tier = "owed time" if standing.guaranteed else "over budget, on GPUs that nobody ahead can use"
            why = f"budget {leaf} is {tier}, and it was this job's turn"
        if job.claim is not None:
            why += "; room was made for it by a claim"
        if job.reserved is not None:
            late_ms = self.now_ms - job.reserved.by_ms
            numbers |= {"promised_by_ms": job.reserved.by_ms, "late_ms": max(0, late_ms)}
            length = format_duration(abs(late_ms))
            why += f"; {length} later than was promised" if late_ms > 0 else f"; {length} before the promised instant"
        return Decided(
            job=job.job,
            at_ms=self.now_ms,
            kind="granted",
            sentence=f"granted {where}: {why}",
            tree_revision=self.tree_revision,
            usage_revision=self.standings.revision,
            numbers=numbers,
            ahead=ahead,
        )


def _raised(jobs: Mapping[str, Job], claims: list[Claim], now_ms: Ms) -> Change:
    return Change(
        jobs=tuple(replace(jobs[claim.job], claim=claim.claim) for claim in claims),
        claims=tuple(claims),
        facts=tuple(Claimed(claim) for claim in claims),
        decisions=tuple(
            Decided(
                job=claim.job,
                at_ms=now_ms,
                kind="claimed",
                sentence=f"asked for room for {claim.replicas} x {claim.gpus_per_replica} GPUs on {claim.cluster}",
                tree_revision=claim.tree_revision,
                usage_revision=claim.usage_revision,
                numbers={"hold_gpu_ms": claim.hold_gpu_ms},
            )
            for claim in claims
        ),
    )
