"""The preemptor's values: what it knows about a cluster at one instant, and what it decides. Never a wire form or a row.

All instants and lengths are milliseconds of the lab's clock, all amounts GPU-milliseconds.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from allmende.proto.order import DEFAULT_MARGIN_PPM, Comparison, Path
from allmende.proto.placement import NodeReplicas
from allmende.proto.standing import Standing
from allmende.proto.units import MINUTE_MS, SECOND_MS, GpuMs, Ms, Ppm

NodeGpus: TypeAlias = tuple[str, int]
"""A node, and GPUs on it."""


class Policy(NamedTuple):
    """What an operator may set about evictions; `config` explains each."""

    margin_ppm: Ppm = DEFAULT_MARGIN_PPM
    grace_ms: Ms = 2 * MINUTE_MS
    unallocated_grace_ms: Ms = 10 * SECOND_MS
    leave_allowance_ms: Ms = 60 * SECOND_MS
    """After its grace, until an attempt that was told to leave counts as overdue."""
    search_steps: int = 200_000
    waste_ppm: Ppm = 0
    """An eviction may lose at most this part of what the claimant's slice gives (`proto.order.spared`); 0: any."""
    loss_first: bool = False
    """Among equally many GPUs, least lost work before most over-served leaf. Both are lawful victims by the margin."""
    bother_ms: Ms = 0
    """Each earlier eviction of a job counts as so much lost time of its GPUs when victims are chosen."""


class Node(NamedTuple):
    """A node as its agent reported it. `heard` False: no sign of life for too long; `cordoned`: it is or will be taken out of use.

    Nothing is planned on either.
    """

    node: str
    healthy: int
    model: str | None
    heard: bool
    cordoned: bool = False


class Attempt(NamedTuple):
    """An attempt that has not ended. `budget` None: unallocated, charged to nobody and never protected.

    `held` lists the GPUs that its agent has not freed yet. `protected_until_ms` None: the start is not confirmed.
    `saved_at_ms` has the last checkpoint of every replica that has saved one. `leaving`: an eviction was ordered.
    """

    attempt: str
    job: str
    budget: str | None
    held: tuple[NodeGpus, ...]
    replicas: int
    gpus_per_replica: int
    priority: int
    started_at_ms: Ms | None
    protected_until_ms: Ms | None
    saved_at_ms: tuple[Ms, ...] = ()
    leaving: bool = False
    idle: bool = False
    """Its devices have shown no activity for long (contract §7)."""
    evictions: int = 0
    """How often its job was evicted before."""
    overdue: bool = False
    """It was told to leave and should be gone: whoever waits for its GPUs would wait for ever."""

    @property
    def gpus(self) -> int:
        """GPUs it still holds."""
        return sum(gpus for _, gpus in self.held)

    def interruptible(self, now_ms: Ms) -> bool:
        """Contract §1: unallocated, or past `protected_until`. An allocated attempt whose start is not confirmed is neither."""
        return self.budget is None or (self.protected_until_ms is not None and self.protected_until_ms <= now_ms)

    @property
    def courtesy_gpu_ms(self) -> GpuMs:
        """Its slice x GPUs: who has saved nothing for longer than that is spared no more (`proto.order.spared`)."""
        if self.started_at_ms is None or self.protected_until_ms is None:
            return 0
        return (self.protected_until_ms - self.started_at_ms) * self.replicas * self.gpus_per_replica

    def lost_gpu_ms(self, now_ms: Ms) -> GpuMs:
        """GPU-time since the last saved checkpoint, replica by replica; one that never saved loses all since the start."""
        if self.started_at_ms is None:
            return 0
        started = self.started_at_ms
        never = self.replicas - len(self.saved_at_ms)
        lost = never * max(0, now_ms - started) + sum(max(0, now_ms - max(started, saved)) for saved in self.saved_at_ms)
        return lost * self.gpus_per_replica


class Claim(NamedTuple):
    """Admission's demand for room for one named job. `replicas` x `gpus_per_replica`, whole or not at all."""

    cluster: str
    claim: str
    job: str
    budget: str
    replicas: int
    gpus_per_replica: int
    gpu_model: str | None
    slice_ms: Ms
    hold_gpu_ms: GpuMs
    priority: int
    newest_grant_seq: int
    fence: int
    tree_revision: int
    usage_revision: int
    avoid_nodes: tuple[str, ...] = ()
    reserved_nodes: tuple[str, ...] = ()
    """Set when a reservation has come due: room is made there and nowhere else, by whoever is past his slice (contract §5)."""


class Snapshot(NamedTuple):
    """One cluster at one instant: all that a plan is made from.

    `promised` has, by node, the GPUs that open planned claims were promised. `standings` already count the holds of grants that
    the ledger has not counted and of claims that are planned but not granted. A budget without a standing is unknown, not zero.
    """

    cluster: str
    now_ms: Ms
    nodes: tuple[Node, ...]
    attempts: tuple[Attempt, ...]
    promised: Mapping[str, int]
    paths: Mapping[str, Path]
    standings: Mapping[str, Standing]
    tree_revision: int
    usage_revision: int


class Victim(NamedTuple):
    """An attempt that a plan evicts, by which rule and on which numbers. `compared` is set when ratios decided."""

    attempt: Attempt
    rule: str
    sentence: str
    compared: Comparison | None
    lost_gpu_ms: GpuMs
    grace_ms: Ms


class Planned(NamedTuple):
    """The claimant fits at `placement` once the victims are gone; without victims, it fits already or room is on its way."""

    code: str
    sentence: str
    victims: tuple[Victim, ...]
    placement: tuple[NodeReplicas, ...]


class Infeasible(NamedTuple):
    """No lawful plan makes the claimant fit; the sentence names what came nearest."""

    code: str
    sentence: str


Decision: TypeAlias = Planned | Infeasible


class Progress(NamedTuple):
    """How far the preemptor has heard of one cluster; None: nothing yet."""

    grants_heard: int
    fence: int
    tree_revision: int | None
    usage_revision: int | None
    nodes: int


class Counted(NamedTuple):
    """A standing as the ledger published it, with the newest grant whose hold it counts."""

    standing: Standing
    counted_grants: int


class Granted(NamedTuple):
    """A live grant's hold, for standings that do not count it yet."""

    budget: str
    hold_gpu_ms: GpuMs
    grant_seq: int


class Waiting(NamedTuple):
    """A claim that has no answer yet, and the message that raised it."""

    claim: Claim
    message: str


class Expired(NamedTuple):
    """A slice that has passed."""

    cluster: str
    attempt: str
    job: str
    budget: str | None
    due_at_ms: Ms


class Departure(NamedTuple):
    """An attempt that was told to leave, and the instant by which its agent should have said that it is gone."""

    cluster: str
    attempt: str
    job: str
    plan: str
    due_at_ms: Ms


class Stuck(NamedTuple):
    """A departure that is overdue: the GPUs that are still held, and those of its nodes that give no sign of life."""

    departure: Departure
    held: tuple[NodeGpus, ...]
    silent: tuple[str, ...]


class Facts(NamedTuple):
    """What a snapshot of one cluster is made from."""

    nodes: tuple[Node, ...]
    attempts: tuple[Attempt, ...]
    grants: tuple[Granted, ...]
    promised: Mapping[str, int]
    published: Mapping[str, Counted]
    planned: tuple[tuple[str, GpuMs], ...]


class GrantRow(NamedTuple):
    """Columns of `add_grants`."""

    cluster: str
    attempt: str
    job: str
    budget: str | None
    replicas: int
    gpus_per_replica: int
    priority: int
    hold_gpu_ms: int
    grant_seq: int


class ProtectionRow(NamedTuple):
    """Columns of `protect`."""

    cluster: str
    attempt: str
    job: str
    budget: str | None
    started_at_ms: Ms
    protected_until_ms: Ms


class NodeRow(NamedTuple):
    """Columns of `report_nodes`; `sent_at_ms` becomes the age of the sign of life."""

    cluster: str
    node: str
    at_ms: Ms
    seq: int
    healthy_gpus: int
    gpu_model: str | None
    cordon: str | None
    sent_at_ms: Ms


class StandingRow(NamedTuple):
    """Columns of `set_standings`."""

    cluster: str
    budget: str
    used_gpu_ms: int
    entitlement_gpu_ms: int
    usage_revision: int
    counted_grants: int


class ClaimRow(NamedTuple):
    """Columns of `add_claims`."""

    claim: Claim
    stream_seq: int
    message: str


class Mode(NamedTuple):
    """Of a cluster's policy: its revision, and whether it lets anybody be evicted (contract §8)."""

    revision: int
    evicts: bool


class Heard:
    """What one batch says. Keys are (cluster, name, ...); a later word replaces an earlier one only where that is right."""

    def __init__(self) -> None:
        self.fences: dict[str, int] = {}
        self.grants: dict[tuple[str, str], GrantRow] = {}
        self.held: dict[tuple[str, str, str], int] = {}
        self.protected: dict[tuple[str, str], ProtectionRow] = {}
        self.freed: dict[tuple[str, str, str], int] = {}
        self.ended: set[tuple[str, str]] = set()
        self.nodes: dict[tuple[str, str], NodeRow] = {}
        self.closed: dict[tuple[str, str], Closed] = {}
        self.signs: dict[tuple[str, str], Ms] = {}
        self.checkpoints: dict[tuple[str, str, int], Ms] = {}
        self.standings: dict[tuple[str, str], StandingRow] = {}
        self.changes: dict[tuple[str, int], str | None] = {}
        self.revisions: dict[int, tuple[int, str]] = {}
        self.claims: dict[tuple[str, str], ClaimRow] = {}
        self.ended_claims: set[tuple[str, str]] = set()
        self.clusters: set[str] = set()
        self.modes: dict[str, Mode] = {}
        self.lost_nodes: dict[tuple[str, str], tuple[Ms, int]] = {}
        self.lost: set[tuple[str, str]] = set()

    @property
    def tree(self) -> bool:
        """True when the batch says anything about the tree."""
        return bool(self.changes or self.revisions)


class Cordon(NamedTuple):
    """Why and from when a node takes nothing new; with `drain` it also gives up what may be interrupted. Half-open in time."""

    by: str
    reason: str
    drain: bool
    from_ms: Ms
    until_ms: Ms | None = None
    deadline_ms: Ms | None = None


class Closed(NamedTuple):
    """Admission's word that it has heard of a cordon: all that it ever granted there is up to this grant."""

    revision: int
    newest_grant_seq: int


class Drain(NamedTuple):
    """Where a node's cordon stands. `operator` and `agent`: who wants it, each for himself.

    `said` is what was last published of it, with `terms` where that was `cordoned` or `drained`; `revision` numbers what was said.
    """

    node: str
    operator: Cordon | None
    agent: Cordon | None
    said: str
    terms: Cordon | None
    terms_revision: int
    revision: int
    closed: Closed | None


class Ended(NamedTuple):
    """Who has ended a cordon, and why."""

    by: str
    reason: str


class Word(NamedTuple):
    """Something to publish of a node: `cordoned` and `drained` with the terms in force; `returned` with those that were, but by
    whom and why it returns."""

    kind: str
    terms: Cordon


class OrderedOut(NamedTuple):
    """An attempt that a drain ends, and how long it has after its notice."""

    attempt: Attempt
    node: str
    sentence: str
    grace_ms: Ms
