"""Domain values: jobs, attempts, nodes, claims, standings. Immutable; a change is a new value.

Never a wire type and never a row: `wire` and `store` translate. Times are milliseconds on the lab's clock; amounts are GPU-ms.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from allmende.proto.admission import DecisionKind
from allmende.proto.budget import Budget
from allmende.proto.placement import NodeReplicas
from allmende.proto.policy import Policy
from allmende.proto.tree import covers_slices
from allmende.proto.units import GpuMs, Ms
from allmende.proto.user import InArray

JobState: TypeAlias = Literal["queued", "starting", "running", "ending", "ended"]
JobOutcome: TypeAlias = Literal["finished", "failed", "cancelled", "preempted", "max_runtime", "refused"]
StopReason: TypeAlias = Literal["cancel", "max_runtime", "start_timeout"]
AttemptOutcome: TypeAlias = Literal["finished", "failed", "evicted", "stopped", "never_started", "node_lost"]
ClaimEnd: TypeAlias = Literal["started", "cancelled", "timed_out", "refused", "elsewhere", "infeasible"]
NodeKey: TypeAlias = tuple[str, str]
"""(cluster, node)."""


class Shape(NamedTuple):
    """What decides whether a waiting job fits: two jobs of one shape fit or fail together."""

    replicas: int
    gpus: int
    """Per replica."""
    model: str | None
    clusters: tuple[str, ...]
    avoid: tuple[str, ...]
    """Nodes that failed to start the job lately."""
    claim: str | None
    """The job's own claim: GPUs earmarked for it count as free for it alone."""


class Reserved(NamedTuple):
    """Nodes that are gathered for a job, and the promise that goes with them (contract §5)."""

    cluster: str
    placement: tuple[NodeReplicas, ...]
    order_ms: Ms
    """When whoever is left there is told to leave. Until then others may use the GPUs if they are unallocated or their slice ends
    in time."""
    by_ms: Ms
    """The promise: the job starts no later. `order_ms` and the longest notice."""
    made_at_ms: Ms

    def gpus(self, gpus_per_replica: int) -> dict[str, int]:
        """GPUs reserved on each node."""
        return {part.node: part.replicas * gpus_per_replica for part in self.placement}


class Saves(NamedTuple):
    """When an attempt saved its work last, and after how long it did so again; None: it has saved once."""

    at_ms: Ms
    every_ms: Ms | None


class Job(Struct, frozen=True, kw_only=True):
    """One job and where it is in its life. `next_slice_ms` is the slice of its next attempt: it grows with bad luck (§7)."""

    job: str
    user: str
    name: str
    budget: str | None
    clusters: tuple[str, ...]
    replicas: int
    gpus_per_replica: int
    gpu_model: str | None
    slice_ms: Ms
    stated_runtime_ms: Ms | None
    max_runtime_ms: Ms | None
    resumable: bool
    priority: int
    kind: Literal["batch", "session"]
    may_run_unallocated: bool
    submitted_at_ms: Ms
    next_slice_ms: Ms
    version: int = 0
    """Counts the writes of the row: each is conditional on the one before (contract: a grant is a conditional update)."""
    state: JobState = "queued"
    outcome: JobOutcome | None = None
    accepted: bool = False
    """False: not judged yet, because the tree or the capacity was not known."""
    attempts: int = 0
    attempt: str | None = None
    """The latest attempt."""
    claim: str | None = None
    """The open claim."""
    not_before_ms: Ms = 0
    """An evicted unallocated job and one that could not start wait until then."""
    evictions: int = 0
    """How often it was evicted: doubles the wait of an unallocated job, and lengthens the slice of an allocated one."""
    start_failures: int = 0
    avoid: tuple[str, ...] = ()
    avoid_until_ms: Ms = 0
    claims_failed: int = 0
    claim_after_ms: Ms = 0
    """No new claim before this instant: the last one was infeasible or timed out."""
    claim_signature: tuple[int, int] = (0, 0)
    """What the last failed claim was judged on: (usage revision, stirrings of the cluster)."""
    idled: bool = False
    """Its last attempt was idle at its end: nobody is asked to make room for the job. In memory only."""
    reserved: Reserved | None = None
    """The reservation while it waits."""
    first_started_at_ms: Ms | None = None
    ended_at_ms: Ms | None = None
    held: bool = False
    """Its owner or an operator does not want it to start."""
    digest: str | None = None
    """Of the whole submission; None: from before digests were kept."""
    moved: bool = False
    """Its budget was closed and a manager sent its jobs to this one: its owner need not be a member."""
    array: InArray | None = None
    would: tuple[str, ...] = ()
    """What mode `observe` has said that it would have done: each kind of decision once."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.replicas * self.gpus_per_replica

    @property
    def shape(self) -> Shape:
        """What its placement depends on."""
        return Shape(self.replicas, self.gpus_per_replica, self.gpu_model, self.clusters, self.avoid, self.claim)


class Attempt(Struct, frozen=True, kw_only=True):
    """One placement of a job. `budget` None: unallocated, interruptible from the first second."""

    attempt: str
    job: str
    user: str
    cluster: str
    budget: str | None
    placement: tuple[NodeReplicas, ...]
    gpus_per_replica: int
    slice_ms: Ms
    priority: int
    grant_seq: int
    granted_at_ms: Ms
    start_by_ms: Ms
    max_runtime_ms: Ms | None
    claim: str | None = None
    state: Literal["starting", "running", "ending", "lost", "ended"] = "starting"
    """lost: over for its job and its budget; its GPUs are held until the agent says that nothing of it runs."""
    started_at_ms: Ms | None = None
    protected_until_ms: Ms | None = None
    stop: StopReason | None = None
    plan: str | None = None
    """The plan that evicts it."""
    freed: tuple[tuple[str, int], ...] = ()
    """GPUs a node already freed, on the agent's word."""
    ended_at_ms: Ms | None = None
    outcome: AttemptOutcome | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return sum(part.replicas for part in self.placement) * self.gpus_per_replica

    @property
    def hold_gpu_ms(self) -> GpuMs:
        """The whole slice: what counts against the budget from the grant on (contract §1); nothing once it was declared lost."""
        return 0 if self.is_lost else self.slice_ms * self.gpus

    @property
    def is_lost(self) -> bool:
        """Declared lost: its hold is refunded, and only its GPUs are not free yet."""
        return self.state == "lost"

    def held(self) -> dict[str, int]:
        """GPUs still occupied on each node; nothing once it has ended."""
        if self.state == "ended":
            return {}
        freed = dict(self.freed)
        held = {part.node: part.replicas * self.gpus_per_replica - freed.get(part.node, 0) for part in self.placement}
        return {node: gpus for node, gpus in held.items() if gpus > 0}

    def interruptible(self, now_ms: Ms) -> bool:
        """May a plan name it at `now_ms`? Running, not leaving already, unallocated or past its slice (contract §1)."""
        if self.state != "running" or self.stop is not None or self.plan is not None:
            return False
        return self.budget is None or (self.protected_until_ms is not None and self.protected_until_ms <= now_ms)


class Cordon(Struct, frozen=True, kw_only=True):
    """The newest word about a node's cordon. `from_ms`: from then on nothing new is granted there; None: it takes work again.

    `confirmed`: `node.closed` has been said of it, so that others may rely on it.
    """

    cluster: str
    node: str
    revision: int
    from_ms: Ms | None
    by: str = ""
    reason: str = ""
    confirmed: bool = False

    @property
    def key(self) -> NodeKey:
        """(cluster, node)."""
        return self.cluster, self.node


class Node(Struct, frozen=True, kw_only=True):
    """One node as its agent reported it last. `last_seen_ms`: any sign of life. `lost_at_ms`: declared lost since that report."""

    cluster: str
    node: str
    gpu_model: str | None
    installed: int
    healthy: int
    at_ms: Ms
    seq: int
    first_seen_ms: Ms
    last_seen_ms: Ms
    lost_at_ms: Ms | None = None
    lost_reason: str = ""

    @property
    def key(self) -> NodeKey:
        """(cluster, node)."""
        return self.cluster, self.node


class Claim(Struct, frozen=True, kw_only=True):
    """Admission's demand that room be made for one job. Once planned, the GPUs of `placement` are earmarked for it."""

    claim: str
    cluster: str
    job: str
    user: str
    budget: str
    replicas: int
    gpus_per_replica: int
    gpu_model: str | None
    slice_ms: Ms
    priority: int
    raised_at_ms: Ms
    answer_by_ms: Ms
    """Until then nothing is granted on the cluster, so that the preemptor judges by the same free GPUs."""
    deadline_ms: Ms
    newest_grant_seq: int
    tree_revision: int
    usage_revision: int
    stirrings: int
    avoid: tuple[str, ...] = ()
    """Nodes where it would not be placed, so nobody may be evicted there for it: those that did not start it, and those that are
    kept for others."""
    reserved: tuple[NodeReplicas, ...] = ()
    """Set where a reservation has come due: everybody past his slice on these nodes may be displaced, and nobody elsewhere."""
    plan: str | None = None
    placement: tuple[NodeReplicas, ...] = ()
    victims: tuple[str, ...] = ()
    ended: ClaimEnd | None = None

    @property
    def hold_gpu_ms(self) -> GpuMs:
        """What the claimant will hold once it starts."""
        return self.slice_ms * self.replicas * self.gpus_per_replica

    def earmarks(self) -> dict[str, int]:
        """GPUs on each node that belong to the claim."""
        if self.ended is not None:
            return {}
        return {part.node: part.replicas * self.gpus_per_replica for part in self.placement}


class Cluster(Struct, frozen=True, kw_only=True):
    """What admission counts about one cluster. `stirrings` grows whenever something became free or interruptible."""

    cluster: str
    grant_seq: int = 0
    stirrings: int = 0


class Counted(Struct, frozen=True, kw_only=True):
    """A budget's standing on one cluster as the ledger said it, with the grants that it already includes."""

    cluster: str
    budget: str
    usage_revision: int
    tree_revision: int
    counted_grants: int
    used_gpu_ms: GpuMs
    entitlement_gpu_ms: GpuMs


class Tree(Struct, frozen=True, kw_only=True):
    """The tree of budgets in force."""

    revision: int
    budgets: Mapping[str, Budget]
    paths: Mapping[str, tuple[str, ...]]
    leaves: frozenset[str]

    def covers(self, budget: str | None) -> bool:
        """May a slice be charged to the budget? Only to a leaf, and only to one that covers slices."""
        return budget is not None and budget in self.leaves and covers_slices(self.budgets[budget])


class KnownBudget(Struct, frozen=True, kw_only=True):
    """The newest definition heard of one budget, in force or not yet. None: gone, and then where its jobs go, if anybody said."""

    budget: str
    revision: int
    definition: Budget | None
    jobs_to: str | None = None
    gone_at_ms: Ms | None = None
    """When the bus had the word that it is gone: what people submitted before that was on its way."""
    members: tuple[str, ...] = ()
    """Of a budget that is gone: who could charge it until then."""


class KnownRevision(Struct, frozen=True, kw_only=True):
    """The newest `revision_complete` heard; in force once the known budgets match it."""

    revision: int
    budgets: int
    digest: str


class KnownPolicy(Struct, frozen=True, kw_only=True):
    """A cluster's policy, from `from_ms` until the next one."""

    cluster: str
    revision: int
    from_ms: Ms
    author: str
    reason: str
    policy: Policy


class Decided(Struct, frozen=True, kw_only=True):
    """One stored decision about a job: what `why` reads (contract §9)."""

    job: str
    at_ms: Ms
    kind: DecisionKind
    sentence: str
    tree_revision: int | None = None
    usage_revision: int | None = None
    numbers: dict[str, int] = {}
    ahead: tuple[str, ...] = ()


class Reason(NamedTuple):
    """A stable code and one sentence for people."""

    code: str
    sentence: str


class Terms(Struct, frozen=True, kw_only=True):
    """The settings that rules need, all in clock milliseconds (real time-outs already multiplied by the clock's rate)."""

    slice_cap_ms: Ms
    silent_after_ms: Ms
    start_timeout_ms: Ms
    answer_wait_ms: Ms
    claim_timeout_ms: Ms
    claims_max: int
    claim_backoff_ms: Ms
    claim_backoff_max_ms: Ms
    requeue_backoff_ms: Ms
    requeue_backoff_max_ms: Ms
    avoid_ms: Ms
    start_failures_max: int
    settle_ms: Ms
    stop_grace_ms: Ms
    margin_ppm: int
    waste_ppm: int = 0
    """An eviction may lose at most this part of what the claimant's slice gives; 0: any (`proto.order.spared`)."""
    reservations_max: int = 0
    """Jobs that nodes are gathered for at the same time, one a leaf; 0: none."""
    reserved_ppm: int = 500_000
    """The part of a cluster's nodes that reservations may cover together."""
    gang_ppm: int = 125_000
    """Nodes are gathered for jobs of at least this part of a cluster's GPUs; smaller ones find a hole, or a claim makes one."""
    gang_gpus: int = 0
    """And of at least so many GPUs."""
    gang_wait_ms: Ms = 0
    """After so long, nodes are gathered also for a job whose leaf is over budget, while that stands below `gang_ratio_ppm`."""
    gang_ratio_ppm: int = 0
    """See `gang_wait_ms`; at most 1: never."""
    notice_ms: Ms = 0
    """The longest notice of whoever must leave, and what messages take: between a reservation's `order_ms` and its promise."""
    claims_rest_ms: Ms = 0
    """Between two rounds of looks for claims only kinds that somebody has joined are looked at; 0: no rest."""
    idle_slice_ms: Ms = 0
    """A job that was evicted idle is protected for no longer than this from then on; 0: as any other."""
    patience: int = 0
    """Each time a job was evicted so often again, its next slice doubles, up to the cap; 0: only where it saved nothing new."""
    quick_ppm: int = 0
    """The part of a cluster's nodes that is kept for unallocated work and for slices of at most `quick_slice_ms`, so that a short
    test need not wait; rounded down."""
    quick_slice_ms: Ms = 0
