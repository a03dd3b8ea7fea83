"""The books: everything admission knows about what has not ended, in memory, with the indices that make a pass fast.

`Books.apply` is the only place where a change reaches memory, and it marks what the store has to write: so memory and rows cannot
differ. Never decides anything, and never knows how a row looks.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from allmende.admission.model.arrays import Arrays, Unfolding
from allmende.admission.model.facts import Change
from allmende.admission.model.lines import EVICTIONS_ALIKE, Group, Kind, Line, Turn, slice_class
from allmende.admission.model.room import ClusterRoom
from allmende.admission.model.values import (
    Attempt,
    Claim,
    Cluster,
    Cordon,
    Counted,
    Decided,
    Job,
    KnownBudget,
    KnownPolicy,
    KnownRevision,
    Node,
    NodeKey,
    Reserved,
    Saves,
    Tree,
)
from allmende.proto.policy import Policy
from allmende.proto.units import LARGEST_AMOUNT, GpuMs, Ms

TimerKind: TypeAlias = Literal["start", "runtime", "answer", "claim", "claims", "job", "settle", "reserved", "cordon", "array"]
Timer: TypeAlias = tuple[Ms, TimerKind, str]


class Loose(NamedTuple):
    """An interruptible attempt, with what it holds worked out."""

    attempt: Attempt
    held: tuple[tuple[str, int], ...]
    gpus: int
    slice_gpu_ms: GpuMs
    """Of the whole gang."""


_NO_POLICY = Policy()


class Dirty(NamedTuple):
    """What the store has to write. `jobs` carry the version that their row must become."""

    jobs: tuple[Job, ...]
    attempts: tuple[Attempt, ...]
    claims: tuple[Claim, ...]
    nodes: tuple[Node, ...]
    cordons: tuple[Cordon, ...]
    clusters: tuple[Cluster, ...]
    counted: tuple[Counted, ...]
    known: tuple[KnownBudget, ...]
    newest: KnownRevision | None
    tree: Tree | None
    policies: tuple[KnownPolicy, ...]
    decisions: tuple[Decided, ...]
    payloads: tuple[tuple[str, bytes], ...]
    arrays: tuple[Unfolding, ...]


class Books:
    """Jobs, attempts and claims that have not ended; nodes, clusters, standings and the tree."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.arrays = Arrays()
        self.attempts: dict[str, Attempt] = {}
        self.claims: dict[str, Claim] = {}
        self.nodes: dict[NodeKey, Node] = {}
        self.cordons: dict[str, dict[str, Cordon]] = defaultdict(dict)
        """The newest word about the cordon of each node, by cluster; a node may be cordoned before it has reported."""
        self.clusters: dict[str, Cluster] = {}
        self.counted: dict[str, dict[str, Counted]] = {}
        self.known: dict[str, KnownBudget] = {}
        self.newest: KnownRevision | None = None
        self.tree: Tree | None = None
        self.policies: dict[str, KnownPolicy] = {}
        """The policy in force of each cluster that has one."""
        self.waiting: dict[str | None, Line] = {}
        """By leaf; None: unallocated. Jobs that nothing may be decided about are in none."""
        self.on_node: dict[NodeKey, dict[str, int]] = defaultdict(dict)
        """GPUs held on each node, by attempt."""
        self.rooms: dict[str, ClusterRoom] = defaultdict(ClusterRoom)
        """Free GPUs of each cluster."""
        self.loose: dict[str, dict[str | None, dict[str, Loose]]] = {}
        """Interruptible attempts of each cluster, by leaf; see `loosen`."""
        self.newest_grant: dict[str, int] = defaultdict(int)
        """The highest number of a grant whose attempt was seen alive, by cluster."""
        self.unallocated_gpus: dict[str, int] = defaultdict(int)
        """GPUs held unallocated, by user."""
        self.saves: dict[str, Saves] = {}
        """When each live attempt saved its work last, as its agents have said. Kept in memory: the next tick says it again."""
        self.idle: set[str] = set()
        """Live attempts whose devices have shown no activity for long (contract §7). Kept in memory, as `saves` is."""
        self.to_look_at: dict[str, dict[str, set[Kind]]] = defaultdict(dict)
        """Kinds of waiting jobs, by leaf, that were not looked at for claims in vain since the last round began."""
        self.next_round_ms: dict[str, Ms] = defaultdict(int)
        """When each cluster's next round of looks for claims may begin; until then only kinds that somebody has joined since."""
        self.reserved: dict[str, dict[str, Reserved]] = defaultdict(dict)
        """The reservations of each cluster, by job."""
        self.seen: dict[NodeKey, Ms] = {}
        """Signs of life that are newer than what is stored of the node: a row for every tick would be too many."""
        self.timers: list[Timer] = []
        self._expiries: list[tuple[Ms, str]] = []
        self._newest: KnownRevision | None = None
        self._tree: Tree | None = None
        self._stored: dict[str, int] = {}
        self._turns: dict[str, tuple[str | None, Group, Turn]] = {}
        self._priorities: dict[str | None, Counter[int]] = defaultdict(Counter)
        self.forget()

    # ------------------------------------------------------------------------------------------------------------------ reading

    def partition(self, job: Job) -> tuple[bool, str | None]:
        """(may be decided about, leaf it is charged to; None: unallocated). Contract §5."""
        if not job.accepted or job.held or job.state != "queued" or self.tree is None:
            return False, None
        if job.budget is not None and job.budget not in self.tree.leaves:
            return False, None
        if job.slice_ms == 0:
            return True, None
        if self.tree.covers(job.budget):
            return True, job.budget
        return job.may_run_unallocated or self._takes_uncovered(job), None

    def cluster_names(self) -> list[str]:
        """Clusters of which at least one node was ever reported."""
        return sorted({cluster for cluster, _node in self.nodes})

    def cluster(self, name: str) -> Cluster:
        """The counts of a cluster, zero when nothing was granted there yet."""
        return self.clusters.get(name) or Cluster(cluster=name)

    def policy(self, cluster: str) -> Policy:
        """A cluster's policy; where nobody has set one, that which changes nothing."""
        known = self.policies.get(cluster)
        return _NO_POLICY if known is None else known.policy

    def last_seen_ms(self, node: Node) -> Ms:
        """When the node last gave a sign of life."""
        return max(node.last_seen_ms, self.seen.get(node.key, 0))

    def claims_on(self, cluster: str) -> list[Claim]:
        """Open claims, oldest first."""
        return sorted((each for each in self.claims.values() if each.cluster == cluster), key=lambda each: each.claim)

    def highest_priority(self, leaf: str) -> int:
        """The highest priority of those who wait for the leaf; below all where nobody does."""
        return max(self._priorities.get(leaf, ()), default=-LARGEST_AMOUNT)

    # ----------------------------------------------------------------------------------------------------------------- changing

    def apply(self, change: Change) -> None:
        """Bring a decision into memory and mark it for the store."""
        for job in change.jobs:
            self._put_job(replace(job, version=self._stored.get(job.job, 0) + 1))
            self._jobs[job.job] = None
        for attempt in change.attempts:
            self._put_attempt(attempt)
            self._attempts[attempt.attempt] = attempt
        for claim in change.claims:
            self._put_claim(claim)
            self._claims[claim.claim] = claim
        for node in change.nodes:
            self._put_node(node)
            self._nodes[node.key] = node
        for cordon in change.cordons:
            self._put_cordon(cordon)
            self._cordons[cordon.key] = cordon
        for attempt in change.attempts:
            if attempt.state == "starting" and attempt.grant_seq > self.cluster(attempt.cluster).grant_seq:
                self._put_cluster(replace(self.cluster(attempt.cluster), grant_seq=attempt.grant_seq))
        for cluster in sorted(set(change.stirred)):
            self._put_cluster(replace(self.cluster(cluster), stirrings=self.cluster(cluster).stirrings + 1))
        self._decisions.extend(change.decisions)

    def put_counted(self, counted: Counted) -> None:
        """A newer standing."""
        self.counted.setdefault(counted.cluster, {})[counted.budget] = counted
        self._counted[counted.cluster, counted.budget] = counted

    def put_known(self, known: KnownBudget) -> None:
        """A newer definition of a budget."""
        self.known[known.budget] = known
        self._known[known.budget] = known

    def put_newest(self, newest: KnownRevision) -> None:
        """A newer complete revision."""
        self.newest = newest
        self._newest = newest

    def put_tree(self, tree: Tree) -> None:
        """Switch to another tree; who waits where is found anew."""
        self.tree = tree
        self._tree = tree
        self.reindex()

    def put_policy(self, known: KnownPolicy) -> None:
        """A cluster's next policy; who waits where is found anew."""
        self.policies[known.cluster] = known
        self._policies.append(known)
        self.reindex()

    def put_payload(self, job: str, payload: bytes) -> None:
        """What a new job runs: kept for the store alone."""
        self._payloads[job] = payload

    def drain(self) -> Dirty:
        """Hand over what must be written, once. Call inside the transaction that writes it; when that fails, drop the books."""
        jobs = []
        for name in self._jobs:
            job = self.jobs.get(name) or self._ended[name]
            self._stored[name] = job.version
            jobs.append(job)
        for name in self._ended:
            self._stored.pop(name, None)
        dirty = Dirty(
            jobs=tuple(jobs),
            attempts=tuple(self._attempts.values()),
            claims=tuple(self._claims.values()),
            nodes=tuple(self._nodes.values()),
            cordons=tuple(self._cordons.values()),
            clusters=tuple(self._clusters.values()),
            counted=tuple(self._counted.values()),
            known=tuple(self._known.values()),
            newest=self._newest,
            tree=self._tree,
            policies=tuple(self._policies),
            decisions=tuple(self._decisions),
            payloads=tuple(self._payloads.items()),
            arrays=self.arrays.drain(),
        )
        self.forget()
        return dirty

    def load(
        self,
        jobs: Iterable[Job],
        attempts: Iterable[Attempt],
        claims: Iterable[Claim],
        nodes: Iterable[Node],
        clusters: Iterable[Cluster],
        counted: Iterable[Counted],
        cordons: Iterable[Cordon] = (),
    ) -> None:
        """Fill fresh books from rows: jobs, attempts and claims that have not ended."""
        for cluster in clusters:
            self.clusters[cluster.cluster] = cluster
        for node in nodes:
            self._put_node(node)
        for cordon in cordons:
            self._put_cordon(cordon)
        for each in counted:
            self.counted.setdefault(each.cluster, {})[each.budget] = each
        for attempt in attempts:
            self._put_attempt(attempt)
        for claim in claims:
            self._put_claim(claim)
        for job in jobs:
            self._stored[job.job] = job.version
            self._put_job(job)

    def load_policies(self, policies: Iterable[KnownPolicy]) -> None:
        """Fill fresh books with the policies in force; before the jobs, because they say who may wait."""
        self.policies = {each.cluster: each for each in policies}

    def load_tree(self, known: Iterable[KnownBudget], newest: KnownRevision | None, tree: Tree | None) -> None:
        """Fill fresh books with what is known of the tree."""
        self.known = {each.budget: each for each in known}
        self.newest, self.tree = newest, tree
        self.reindex()

    def reindex(self) -> None:
        """Find for every job the line it stands in."""
        self.waiting.clear()
        self._turns.clear()
        self._priorities.clear()
        for job in self.jobs.values():
            self._enter_line(job)

    # ------------------------------------------------------------------------------------------------------------------- inside

    def forget(self) -> None:
        """Let go of what would be written: it was handed over, or there is no store behind the books, as in the simulator."""
        self._jobs: dict[str, None] = {}
        self._ended: dict[str, Job] = {}
        self._attempts: dict[str, Attempt] = {}
        self._claims: dict[str, Claim] = {}
        self._nodes: dict[NodeKey, Node] = {}
        self._cordons: dict[NodeKey, Cordon] = {}
        self._clusters: dict[str, Cluster] = {}
        self._counted: dict[tuple[str, str], Counted] = {}
        self._known: dict[str, KnownBudget] = {}
        self._newest = None
        self._tree = None
        self._policies: list[KnownPolicy] = []
        self._decisions: list[Decided] = []
        self._payloads: dict[str, bytes] = {}

    def _takes_uncovered(self, job: Job) -> bool:
        return any(
            known.policy.uncovered == "unallocated"
            for cluster, known in self.policies.items()
            if not job.clusters or cluster in job.clusters
        )

    def _put_node(self, node: Node) -> None:
        self.nodes[node.key] = node
        self.rooms[node.cluster].report(node.node, node.gpu_model, node.healthy, node.last_seen_ms)

    def _put_cordon(self, cordon: Cordon) -> None:
        self.cordons[cordon.cluster][cordon.node] = cordon
        if cordon.from_ms is not None and not cordon.confirmed:
            heapq.heappush(self.timers, (cordon.from_ms, "cordon", f"{cordon.cluster}/{cordon.node}"))

    def _put_cluster(self, cluster: Cluster) -> None:
        self.clusters[cluster.cluster] = cluster
        self._clusters[cluster.cluster] = cluster

    def _put_job(self, job: Job) -> None:
        self._leave_line(job.job)
        old = self.jobs.get(job.job)
        if old is not None and old.reserved is not None:
            del self.reserved[old.reserved.cluster][job.job]
        if job.reserved is not None:
            self.reserved[job.reserved.cluster][job.job] = job.reserved
            heapq.heappush(self.timers, (max(job.reserved.order_ms, job.claim_after_ms), "reserved", job.job))
        if job.state == "ended":
            self.jobs.pop(job.job, None)
            self._ended[job.job] = job
            return
        self.jobs[job.job] = job
        self._enter_line(job)
        for instant in {job.not_before_ms, job.avoid_until_ms} - {0}:
            heapq.heappush(self.timers, (instant, "job", job.job))

    def _enter_line(self, job: Job) -> None:
        may, leaf = self.partition(job)
        if not may:
            return
        kind = Kind(job.shape, slice_class(job.next_slice_ms) if leaf is not None else 0)
        # Unallocated work knows no priority: who was evicted less comes first, so that bad luck is shared among those who wait.
        group = Group(kind, job.user, job.priority if leaf is not None else -(job.evictions // EVICTIONS_ALIKE))
        turn = (job.submitted_at_ms, job.job)
        if leaf is not None:
            for to_look_at in self.to_look_at.values():
                to_look_at.setdefault(leaf, set()).add(kind)
        insort(self.waiting.setdefault(leaf, {}).setdefault(kind, {}).setdefault(group, []), turn)
        self._turns[job.job] = (leaf, group, turn)
        self._priorities[leaf][group.priority] += 1

    def _leave_line(self, name: str) -> None:
        entered = self._turns.pop(name, None)
        if entered is None:
            return
        leaf, group, turn = entered
        priorities = self._priorities[leaf]
        priorities[group.priority] -= 1
        if not priorities[group.priority]:
            del priorities[group.priority]
        kinds = self.waiting[leaf]
        groups = kinds[group.kind]
        line = groups[group]
        del line[bisect_left(line, turn)]
        if not line:
            del groups[group]
            if not groups:
                del kinds[group.kind]
                if not kinds:
                    del self.waiting[leaf]

    def _put_attempt(self, attempt: Attempt) -> None:
        old = self.attempts.pop(attempt.attempt, None)
        if old is not None:
            self._release(old)
        for node, gpus in attempt.held().items():
            self.on_node[attempt.cluster, node][attempt.attempt] = gpus
            self.rooms[attempt.cluster].hold(node, gpus)
            if attempt.budget is None and not attempt.is_lost:
                self.unallocated_gpus[attempt.user] += gpus
        if attempt.state == "ended":
            self.saves.pop(attempt.attempt, None)
            self.idle.discard(attempt.attempt)
            return
        self.attempts[attempt.attempt] = attempt
        self.newest_grant[attempt.cluster] = max(attempt.grant_seq, self.newest_grant[attempt.cluster])
        if attempt.state == "starting":
            heapq.heappush(self.timers, (attempt.start_by_ms, "start", attempt.attempt))
        elif not attempt.is_lost and attempt.started_at_ms is not None and attempt.plan is None and attempt.stop is None:
            assert attempt.protected_until_ms is not None
            free_ms = 0 if attempt.budget is None else attempt.protected_until_ms
            heapq.heappush(self._expiries, (free_ms, attempt.attempt))
        if attempt.state == "running" and attempt.max_runtime_ms is not None and attempt.started_at_ms is not None:
            heapq.heappush(self.timers, (attempt.started_at_ms + attempt.max_runtime_ms, "runtime", attempt.attempt))

    def _release(self, attempt: Attempt) -> None:
        leaves = self.loose.get(attempt.cluster, {})
        if (loose := leaves.get(attempt.budget)) is not None and loose.pop(attempt.attempt, None) is not None and not loose:
            del leaves[attempt.budget]
        for node, gpus in attempt.held().items():
            self.rooms[attempt.cluster].hold(node, -gpus)
            here = self.on_node[attempt.cluster, node]
            del here[attempt.attempt]
            if not here:
                del self.on_node[attempt.cluster, node]
            if attempt.budget is None and not attempt.is_lost:
                self.unallocated_gpus[attempt.user] -= gpus
                if not self.unallocated_gpus[attempt.user]:
                    del self.unallocated_gpus[attempt.user]

    def _put_claim(self, claim: Claim) -> None:
        if claim.ended is not None:
            self.claims.pop(claim.claim, None)
            return
        self.claims[claim.claim] = claim
        if claim.plan is None:
            heapq.heappush(self.timers, (claim.answer_by_ms, "answer", claim.claim))
        heapq.heappush(self.timers, (claim.deadline_ms, "claim", claim.claim))

    def loosen(self, now_ms: Ms) -> None:
        """Bring `loose` up to now: attempts whose slice has passed since."""
        while self._expiries and self._expiries[0][0] <= now_ms:
            _at_ms, name = heapq.heappop(self._expiries)
            attempt = self.attempts.get(name)
            if attempt is not None and attempt.interruptible(now_ms):
                held = attempt.held()
                loose = Loose(attempt, tuple(held.items()), sum(held.values()), attempt.hold_gpu_ms)
                self.loose.setdefault(attempt.cluster, {}).setdefault(attempt.budget, {})[name] = loose

    def set_timer(self, at_ms: Ms, kind: TimerKind, about: str) -> None:
        """Ask to be woken; whoever is woken checks whether there is still anything to do."""
        heapq.heappush(self.timers, (at_ms, kind, about))

    def due(self, now_ms: Ms) -> list[Timer]:
        """Take the timers that have come due, each once."""
        found: dict[Timer, None] = {}
        while self.timers and self.timers[0][0] <= now_ms:
            found[heapq.heappop(self.timers)] = None
        return list(found)

    def next_timer_ms(self) -> Ms | None:
        """When to be woken next."""
        return self.timers[0][0] if self.timers else None
