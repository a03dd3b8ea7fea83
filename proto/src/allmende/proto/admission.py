"""What admission says: who waits and why, who starts where, who is protected until when, which room must be made."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from allmende.proto.demand import Asked
from allmende.proto.ids import Id, Name
from allmende.proto.message import Code, Message, Problem, Text
from allmende.proto.units import Amount, GpuCount, Instant, Sequence, Span
from allmende.proto.user import InArray, Kind

Replicas = Annotated[int, Meta(ge=1, le=4_096)]
JobOutcome = Literal["finished", "failed", "cancelled", "preempted", "max_runtime", "refused"]
JobState = Literal["queued", "starting", "running", "ending", "ended"]
StopReason = Literal["cancel", "max_runtime", "start_timeout"]


class Placed(Struct, frozen=True, kw_only=True):
    """Replicas of one attempt on one node. Replica numbers run on through the nodes in order."""

    node: Name
    replicas: Replicas


class Blocker(Struct, frozen=True, kw_only=True):
    """One reason why a job waits, with the numbers compared and what would lift it."""

    code: Code
    sentence: Text


class JobQueued(Message, frozen=True, kw_only=True):
    """A job waits: newly submitted, or back after an attempt (`after_attempt`) with its first submission time."""

    TYPE: ClassVar[str] = "job.queued"

    user: Name
    job: Id
    budget: Name | None
    submitted_at_ms: Instant
    after_attempt: Id | None = None
    warnings: tuple[Problem, ...] = ()
    blockers: Annotated[tuple[Blocker, ...], Meta(max_length=20)] = ()
    asked: Asked | None = None


class JobRefused(Message, frozen=True, kw_only=True):
    """A job that can never run as it was submitted."""

    TYPE: ClassVar[str] = "job.refused"

    user: Name
    job: Id
    problem: Problem


class JobGranted(Message, frozen=True, kw_only=True):
    """A job may start now, exactly here. `budget` None: unallocated.

    `grant_seq` numbers the grants of a cluster without gaps, so that the ledger can say which holds it has counted. `fence` is
    admission's term: an agent refuses a smaller one than it has seen. `hold_gpu_ms` = slice x GPUs, counted from now on.
    """

    TYPE: ClassVar[str] = "job.granted"

    cluster: Name
    job: Id
    attempt: Id
    user: Name
    budget: Name | None
    placement: Annotated[tuple[Placed, ...], Meta(min_length=1, max_length=1_024)]
    gpus_per_replica: GpuCount
    slice_ms: Span
    hold_gpu_ms: Amount
    priority: int
    kind: Kind
    resumable: bool
    max_runtime_ms: Span | None
    granted_at_ms: Instant
    grant_seq: Sequence
    fence: Sequence
    tree_revision: Sequence
    usage_revision: Sequence
    claim: Id | None = None
    asked: Asked | None = None


class AttemptProtected(Message, frozen=True, kw_only=True):
    """The attempt started and nobody may evict it before `protected_until_ms`. Written once, by admission alone."""

    TYPE: ClassVar[str] = "attempt.protected"

    cluster: Name
    attempt: Id
    job: Id
    budget: Name | None
    started_at_ms: Instant
    protected_until_ms: Instant


class AttemptStopOrdered(Message, frozen=True, kw_only=True):
    """The agent shall end the attempt for a reason that is not an eviction: SIGTERM, `grace_ms` of clock time, SIGKILL."""

    TYPE: ClassVar[str] = "attempt.stop_ordered"

    cluster: Name
    attempt: Id
    job: Id
    reason: StopReason
    grace_ms: Span
    fence: Sequence


class JobEnded(Message, frozen=True, kw_only=True):
    """Nothing more will happen to the job."""

    TYPE: ClassVar[str] = "job.ended"

    user: Name
    job: Id
    budget: Name | None
    outcome: JobOutcome
    exit_code: int | None = None
    attempts: int
    submitted_at_ms: Instant
    first_started_at_ms: Instant | None = None
    ended_at_ms: Instant
    asked: Asked | None = None


class JobChanged(Message, frozen=True, kw_only=True):
    """Somebody has changed a waiting job, or holds it; all that may change, as it is now.

    `author`: its owner or an operator; `budget` where its budget was closed and its jobs went to another one.
    """

    TYPE: ClassVar[str] = "job.changed"

    user: Name
    job: Id
    held: bool
    priority: int
    slice_ms: Span
    author: Name
    budget: Name | None = None
    asked: Asked | None = None


class ClaimRaised(Message, frozen=True, kw_only=True):
    """The preemptor shall make room for one named job, whose leaf is owed time.

    `newest_grant_seq` is the newest grant that admission had made when it raised the claim: the preemptor waits until it has
    heard of it, so that both judge by the same holds and the same free GPUs. Admission grants nothing more on the cluster until
    the answer, for at most a second.
    """

    TYPE: ClassVar[str] = "claim.raised"

    cluster: Name
    claim: Id
    job: Id
    user: Name
    budget: Name
    replicas: Replicas
    gpus_per_replica: GpuCount
    gpu_model: Name | None
    slice_ms: Span
    hold_gpu_ms: Amount
    priority: int
    raised_at_ms: Instant
    newest_grant_seq: Sequence
    fence: Sequence
    tree_revision: Sequence
    usage_revision: Sequence
    avoid_nodes: Annotated[tuple[Name, ...], Meta(max_length=1_024)] = ()
    """Nodes that admission would not place the job on (they failed to start it): room there would be made for nothing."""
    reserved_nodes: Annotated[tuple[Name, ...], Meta(max_length=1_024)] = ()
    """Set where a reservation has come due: room is made on these nodes and nowhere else, by whoever is past his slice there."""


class ClaimWithdrawn(Message, frozen=True, kw_only=True):
    """The claim's job started, was cancelled, or its time ran out; its earmarks are void."""

    TYPE: ClassVar[str] = "claim.withdrawn"

    cluster: Name
    claim: Id
    job: Id
    reason: Literal["started", "cancelled", "timed_out", "refused", "elsewhere"]


class NodeClosed(Message, frozen=True, kw_only=True):
    """Admission has heard that a node is cordoned, and grants nothing more there: all that it ever has is up to `newest_grant_seq`.

    Without this word nobody could know that a node is empty: a grant might be on its way.
    """

    TYPE: ClassVar[str] = "node.closed"

    cluster: Name
    node: Name
    revision: Sequence
    """Of the `node.cordoned` that was heard."""
    newest_grant_seq: Sequence


class Nothing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request without arguments."""


class QueueQuery(Struct, frozen=True, kw_only=True):
    """Ask for waiting jobs in the order of the queue, from position `offset` (0 is the head)."""

    cluster: Name | None = None
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class QueueEntry(Struct, frozen=True, kw_only=True):
    """One waiting job. The ratio that sorts it is `used_gpu_ms / entitlement_gpu_ms`; None: unallocated, or not known yet."""

    position: int
    job: Id
    name: str
    user: Name
    budget: Name | None
    gpus: GpuCount
    replicas: Replicas
    slice_ms: Span
    priority: int
    submitted_at_ms: Instant
    tier: Literal["guaranteed", "surplus", "unallocated", "unknown"]
    used_gpu_ms: Amount | None
    entitlement_gpu_ms: Amount | None
    blockers: tuple[Blocker, ...]
    claim: Id | None = None
    starts_by_ms: Instant | None = None
    """The promise of its reservation; unset: nothing is promised."""


class QueuePage(Struct, frozen=True, kw_only=True):
    """`waiting` counts all; `ready` False: admission has not loaded everything and decides nothing (`not_ready` says what)."""

    ready: bool
    not_ready: tuple[Text, ...]
    waiting: int
    entries: tuple[QueueEntry, ...]


class JobsQuery(Struct, frozen=True, kw_only=True):
    """Ask for jobs, newest first. Unset filters select everything; `before` pages."""

    user: Name | None = None
    budget: Name | None = None
    array: Annotated[str, Meta(min_length=4, max_length=26, pattern=r"\A[0-9a-z]+\Z")] | None = None
    """Only the jobs of the array to which this job belongs; an end of its id will do."""
    states: tuple[JobState, ...] = ()
    before: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class AttemptSummary(Struct, frozen=True, kw_only=True):
    """One placement of a job."""

    attempt: Id
    cluster: Name
    placement: tuple[Placed, ...]
    granted_at_ms: Instant
    started_at_ms: Instant | None
    protected_until_ms: Instant | None
    ended_at_ms: Instant | None
    outcome: str | None


class JobSummary(Struct, frozen=True, kw_only=True):
    """One job in a list, with its latest attempt."""

    job: Id
    name: str
    user: Name
    budget: Name | None
    state: JobState
    outcome: JobOutcome | None
    gpus: GpuCount
    replicas: Replicas
    slice_ms: Span
    priority: int
    submitted_at_ms: Instant
    attempts: int
    latest: AttemptSummary | None
    held: bool = False
    """Its owner or an operator lets it wait (`state` is `queued`)."""
    array: InArray | None = None


class JobsPage(Struct, frozen=True, kw_only=True):
    """`next_before` unset: no older jobs."""

    jobs: tuple[JobSummary, ...]
    next_before: Id | None = None


class WhyQuery(Struct, frozen=True, kw_only=True):
    """Ask why a job is where it is. `job` may be an unambiguous end of the id, as the tables print it."""

    job: Annotated[str, Meta(min_length=4, max_length=26, pattern=r"\A[0-9a-z]+\Z")]


DecisionKind: TypeAlias = Literal[
    "queued",
    "refused",
    "granted",
    "claimed",
    "planned",
    "infeasible",
    "started",
    "evicted",
    "overdue",
    "requeued",
    "stopped",
    "ended",
    "would",
    "changed",
]
"""`would`: what mode `observe` would have done."""


class Decision(Struct, frozen=True, kw_only=True):
    """One stored decision about a job: what was decided, by which rule, on which numbers and revisions."""

    at_ms: Instant
    kind: DecisionKind
    sentence: Text
    tree_revision: Sequence | None = None
    usage_revision: Sequence | None = None
    numbers: dict[str, int] = {}
    ahead: tuple[str, ...] = ()
    """Budgets that stood before the job's own, nearest first, at most 10."""


class Ahead(Struct, frozen=True, kw_only=True):
    """A job that stands before another one, with the standing that sorts it, and by which rule (contract §4)."""

    position: int
    job: Id
    budget: Name | None
    used_gpu_ms: Amount | None
    entitlement_gpu_ms: Amount | None
    rule: Literal["tier", "ratio", "holds", "ancestors", "priority", "inside_leaf", "unallocated"]
    sentence: Text


class WhyReply(Struct, frozen=True, kw_only=True):
    """The story of a job, oldest first (its last 100 decisions), its present blockers and place."""

    job: JobSummary
    attempts: tuple[AttemptSummary, ...]
    decisions: tuple[Decision, ...]
    blockers: tuple[Blocker, ...]
    position: int | None
    tier: Literal["guaranteed", "surplus", "unallocated", "unknown"] | None = None
    """Of a waiting job, as the next two: the numbers that sort it."""
    used_gpu_ms: Amount | None = None
    entitlement_gpu_ms: Amount | None = None
    ahead: tuple[Ahead, ...] = ()
    """Who stands before it, nearest first, at most 10."""


class NodesQuery(Struct, frozen=True, kw_only=True):
    """Ask for the nodes of a cluster (None: of all), by name, after `after`."""

    cluster: Name | None = None
    after: tuple[Name, Name] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 200


class NodeView(Struct, frozen=True, kw_only=True):
    """One node as admission sees it. `silent_since_ms` set: no sign of life for 30 s, so nothing new is placed there."""

    cluster: Name
    node: Name
    gpu_model: Name | None
    installed_gpus: GpuCount
    healthy_gpus: GpuCount
    held_gpus: GpuCount
    earmarked_gpus: GpuCount
    attempts: int
    silent_since_ms: Instant | None
    cordoned_from_ms: Instant | None = None
    """From then on, which may lie ahead, it takes nothing new; unset: it is not cordoned."""
    cordon_reason: Text = ""
    lost_at_ms: Instant | None = None
    """An operator has declared it lost then, and no agent has reported it since."""
    lost_reason: Text = ""


class NodesPage(Struct, frozen=True, kw_only=True):
    """`next_after` unset: this was the last piece."""

    nodes: tuple[NodeView, ...]
    next_after: tuple[Name, Name] | None = None


class PastMark(Struct, frozen=True, kw_only=True):
    """How far a reader of the history has come: behind this attempt of this job (None: behind a job without attempts)."""

    job: Id
    attempt: Id | None = None


class HistoryQuery(Struct, frozen=True, kw_only=True):
    """Ask for the jobs that lived in `[from_ms, to_ms)`, by id, with all their attempts. `limit` counts attempts."""

    from_ms: Instant
    to_ms: Instant
    after: PastMark | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 200


class PastAttempt(Struct, frozen=True, kw_only=True):
    """One placement of a job, as it was. `budget` None: unallocated."""

    attempt: Id
    cluster: Name
    budget: Name | None
    placement: tuple[Placed, ...]
    slice_ms: Span
    granted_at_ms: Instant
    started_at_ms: Instant | None
    protected_until_ms: Instant | None
    ended_at_ms: Instant | None
    outcome: str | None


class PastJob(Struct, frozen=True, kw_only=True):
    """What was asked for and what became of it; never what it runs. `outcome` None: it has not ended."""

    job: Id
    user: Name
    budget: Name | None
    clusters: tuple[Name, ...]
    replicas: Replicas
    gpus_per_replica: GpuCount
    gpu_model: Name | None
    slice_ms: Span
    stated_runtime_ms: Span | None
    max_runtime_ms: Span | None
    resumable: bool
    priority: int
    kind: Kind
    may_run_unallocated: bool
    submitted_at_ms: Instant
    ended_at_ms: Instant | None
    outcome: JobOutcome | None
    attempts: tuple[PastAttempt, ...]


class HistoryPage(Struct, frozen=True, kw_only=True):
    """A job whose attempts do not fit is in the next page too, with the others. `next_after` unset: this was the last piece.

    A page may be empty and not the last.
    """

    jobs: tuple[PastJob, ...]
    next_after: PastMark | None = None
