"""The ledger's values: attempts, counters, postings, faults, capacity and the tree's history. All immutable, all integers.

Never a row of the database nor a message: `store` and `wire` translate those.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from allmende.proto.units import GpuMs, Ms, Ppm

AttemptKey: TypeAlias = tuple[str, str]
"""Cluster and attempt. The cluster is part of every key: no agent can take a place that belongs to another's attempt."""

ReplicaKey: TypeAlias = tuple[str, str, int]
"""Cluster, attempt, replica."""

CounterKey: TypeAlias = tuple[str, str, int, int]
"""Cluster, attempt, replica, epoch."""

BUCKET_MS: Ms = 300_000
"""Five minutes of the clock (contract §3). Edges are multiples of it since the epoch, in UTC, half-open."""


class Limits(NamedTuple):
    """What bounds a claim. `allowance_ms`: how far a clock may be off, in clock milliseconds.

    `skew_ms`: how far the sender's clock may be off at sending, either way, before nothing of what it says is believed.
    """

    now_ms: Ms
    allowance_ms: Ms
    skew_ms: Ms


class Grant(NamedTuple):
    """What admission granted: `gpus` per replica. `budget` None: unallocated."""

    job: str
    budget: str | None
    gpus: int
    replicas: int
    slice_ms: Ms
    granted_at_ms: Ms
    grant_seq: int

    @property
    def all_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.gpus * self.replicas


class Attempt(NamedTuple):
    """What is known of an attempt on a cluster. `grant` None: somebody spoke of it before admission did."""

    cluster: str
    attempt: str
    grant: Grant | None = None
    started_at_ms: Ms | None = None
    protected_from_ms: Ms | None = None
    protected_until_ms: Ms | None = None
    ended_at_ms: Ms | None = None
    outcome: str | None = None

    @property
    def key(self) -> AttemptKey:
        """Cluster and attempt."""
        return self.cluster, self.attempt


class Granted(NamedTuple):
    """Admission granted an attempt to a user. `nodes`: each with its number of replicas, whose numbers run on in this order."""

    event: str
    cluster: str
    attempt: str
    grant: Grant
    user: str
    nodes: tuple[tuple[str, int], ...]


class Started(NamedTuple):
    """The agent says since when all replicas run."""

    event: str
    cluster: str
    attempt: str
    started_at_ms: Ms


class Protected(NamedTuple):
    """Admission wrote the slice's end."""

    event: str
    cluster: str
    attempt: str
    from_ms: Ms
    until_ms: Ms


class Ended(NamedTuple):
    """The agent says that no replica runs any more."""

    event: str
    cluster: str
    attempt: str
    ended_at_ms: Ms
    outcome: str


Fact: TypeAlias = Granted | Started | Protected | Ended


class Reading(Struct, frozen=True, array_like=True, gc=False):
    """One counter as an agent said it. `final`: it came with the attempt's end.

    Thousands of these and of `Counter` come with a batch: a struct that the garbage collector need not look at costs a third of a
    tuple. As JSON both are arrays, in the order of their fields.
    """

    event: str
    cluster: str
    attempt: str
    replica: int
    epoch: int
    seq: int
    since_ms: Ms
    held_ms: Ms
    used_gpu_ms: GpuMs
    sent_at_ms: Ms
    final: bool
    off_ms: Ms = 0
    """How far the sender's clock was ahead of ours at sending; below 0: behind."""


Runs: TypeAlias = Mapping[CounterKey, Sequence[Reading]]
"""What a batch says of each counter, in the order in which it was heard."""


class Counter(Struct, frozen=True, array_like=True, gc=False):
    """The best reading of (attempt, replica, epoch), and how far it is in the books.

    Counted is `[from_ms, to_ms)`, posted `[from_ms, posted_until_ms)`; what lies between is the rest that waits for a bucket's
    edge or the end. `from_ms` None: the grant is not known, nothing is counted. `event`: the message that advanced it last.
    """

    cluster: str
    attempt: str
    replica: int
    epoch: int
    seq: int
    since_ms: Ms
    held_ms: Ms
    used_gpu_ms: GpuMs
    from_ms: Ms | None
    to_ms: Ms
    posted_until_ms: Ms
    final: bool
    event: str

    @property
    def key(self) -> CounterKey:
        """Cluster, attempt, replica, epoch."""
        return self.cluster, self.attempt, self.replica, self.epoch


class Posting(NamedTuple):
    """`gpus` held by one replica in `[from_ms, to_ms)`, inside one bucket. Amount = gpus x (to - from)."""

    cluster: str
    attempt: str
    replica: int
    epoch: int
    from_ms: Ms
    to_ms: Ms
    gpus: int
    budget: str | None
    event: str

    @property
    def amount_gpu_ms(self) -> GpuMs:
        """GPU-milliseconds."""
        return self.gpus * (self.to_ms - self.from_ms)


class FaultRow(NamedTuple):
    """What was not counted of one thing for one reason, over all messages that said it."""

    what: str
    code: str
    sentence: str
    excess_gpu_ms: GpuMs
    most_excess_gpu_ms: GpuMs
    times: int
    first_at_ms: Ms
    last_at_ms: Ms
    last_event: str


class NodeStep(NamedTuple):
    """The GPUs of a node from `at_ms` on, until its next step. `gpu_model` None: the report named none."""

    cluster: str
    node: str
    at_ms: Ms
    seq: int
    installed: int
    healthy: int
    gpu_model: str | None = None


class Claim(NamedTuple):
    """What was said and not believed, as it was said. An end comes with its last counters."""

    readings: tuple[Reading, ...] = ()
    started: Started | None = None
    ended: Ended | None = None
    step: NodeStep | None = None


class Fault(NamedTuple):
    """Something that is not counted, kept and shown. `what` names the thing inside the cluster; the excess may be 0."""

    event: str
    cluster: str
    what: str
    code: str
    sentence: str
    excess_gpu_ms: GpuMs
    claim: Claim | None = None


class Level(NamedTuple):
    """The capacity of a cluster during `[from_ms, to_ms)`, in GPUs."""

    from_ms: Ms
    to_ms: Ms
    installed: int
    available: int


class Share(NamedTuple):
    """A budget's place and effective share during `[from_ms, until_ms)`; `until_ms` None: still.

    `path` runs from the root to the budget. The share is the product of `ppm` over 10^6 to the power of their number, or
    nothing at all where `covers` is False (an unset leaf, contract §2). `cluster` empty: wherever a cluster has none of its own.
    """

    budget: str
    path: tuple[str, ...]
    ppm: tuple[Ppm, ...]
    covers: bool
    from_ms: Ms
    until_ms: Ms | None
    revision: int
    cluster: str = ""

    def holds_at(self, instant_ms: Ms) -> bool:
        """True when it is in force at the instant."""
        return self.from_ms <= instant_ms and (self.until_ms is None or instant_ms < self.until_ms)


class Live(NamedTuple):
    """A granted attempt that has not ended: `counted_ms` over its replicas, of which `rest_ms` is not posted yet.

    With a half-life the rest is what is left of it by the weights of its buckets.
    """

    budget: str | None
    gpus: int
    replicas: int
    slice_ms: Ms
    counted_ms: Ms
    rest_ms: Ms


class Account(NamedTuple):
    """One budget on one cluster over the window, in GPU-ms."""

    budget: str
    charged_gpu_ms: GpuMs
    held_gpu_ms: GpuMs
    entitlement_gpu_ms: GpuMs


class Round(NamedTuple):
    """The standings of one cluster at one instant: all budgets, by name."""

    as_of_ms: Ms
    tree_revision: int
    available_gpus: int
    accounts: tuple[Account, ...]


Kind: TypeAlias = Literal["allocated", "unallocated", "starting", "unknown"]


class Piece(NamedTuple):
    """GPUs in one condition during `[from_ms, to_ms)`."""

    kind: Kind
    from_ms: Ms
    to_ms: Ms
    gpus: int


class Run(NamedTuple):
    """One replica of an attempt for the books: what of its life is counted, as intervals in order."""

    gpus: int
    counted: tuple[tuple[Ms, Ms], ...]


class Life(NamedTuple):
    """An attempt for the books. `started_at_ms` None: not started, or nobody said so. One run a replica."""

    granted_at_ms: Ms
    started_at_ms: Ms | None
    ended_at_ms: Ms | None
    runs: tuple[Run, ...]


class ClusterRow(NamedTuple):
    """A cluster's newest round: `as_of_ms` None: none yet; `content` is a digest of what it said."""

    cluster: str
    usage_revision: int
    as_of_ms: Ms | None
    counted_grants: int
    content: bytes | None


class StateRow(NamedTuple):
    """Counts over a cluster's books."""

    postings: int
    posted_gpu_ms: GpuMs
    open_attempts: int
    unattributed: int
    faults: int


class Charged(NamedTuple):
    """What an attempt was charged before a span and within it, and what is left of its hold now. `gpus` of all replicas."""

    attempt: str
    job: str
    gpus: int
    granted_at_ms: Ms
    ended_at_ms: Ms | None
    outcome: str | None
    before_gpu_ms: GpuMs
    within_gpu_ms: GpuMs
    held_gpu_ms: GpuMs


class Used(NamedTuple):
    """What a budget (None: nobody) was charged in the step that begins at `from_ms`."""

    from_ms: Ms
    budget: str | None
    gpu_ms: GpuMs


class Part(NamedTuple):
    """What a user or a GPU model (None: not known) held in the step that begins at `from_ms`."""

    from_ms: Ms
    name: str | None
    allocated_gpu_ms: GpuMs
    unallocated_gpu_ms: GpuMs


class BudgetKnown(NamedTuple):
    """Whether the ledger ever heard of a budget, and whether another one is below it."""

    known: bool
    has_below: bool


class InUse(NamedTuple):
    """What a budget uses of a cluster now, in GPUs, and was charged since the hour and the day of UTC began."""

    cluster: str
    budget: str
    attempts: int
    gpus: int
    hour_from_ms: Ms
    hour_gpu_ms: GpuMs
    day_gpu_ms: GpuMs
