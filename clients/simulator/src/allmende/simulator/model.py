"""The simulator's values: what goes in (a cluster, trees of budgets, jobs) and what comes out (the history of a run).

Times are milliseconds; instants lie on the virtual clock, which begins at `ORIGIN_MS`. Amounts are GPU-milliseconds. Never decides
anything: that is done by the services' own rules.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from allmende.proto.budget import Budget
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import MINUTE_MS, SECOND_MS, GpuMs, Ms, Ppm

ORIGIN_MS: Ms = 1_767_571_200_000
"""Monday 2026-01-05, 00:00 UTC: where every virtual clock begins. A Monday, because scenarios have working days."""

# ---------------------------------------------------------------------------------------------------------------------------- in


class NodeSpec(NamedTuple):
    """One node as it is installed."""

    node: str
    gpus: int
    gpu_model: str | None = None


class Failures(NamedTuple):
    """Nodes fail independently; times between failures are exponential, repairs log-normal."""

    mean_between_ms: Ms
    """Of one node."""
    repair_median_ms: Ms
    repair_p95_ms: Ms


class Leaving(NamedTuple):
    """How long a job takes to end after SIGTERM: log-normal; some ignore it and are killed when their notice is over."""

    median_ms: Ms = 3 * SECOND_MS
    p95_ms: Ms = 20 * SECOND_MS
    ignore_ppm: Ppm = 20_000


class Cluster(NamedTuple):
    """A cluster, and how its nodes and jobs behave."""

    cluster: str
    nodes: tuple[NodeSpec, ...]
    failures: Failures | None = None
    leaving: Leaving = Leaving()
    start_ms: Ms = SECOND_MS
    """From the grant to the agent's word that all replicas run."""

    @property
    def gpus(self) -> int:
        """Installed GPUs."""
        return sum(node.gpus for node in self.nodes)


class Job(Struct, frozen=True, kw_only=True):
    """One job as it will be submitted, with what only the simulator knows: how long it works and how it saves."""

    job: str
    submitted_at_ms: Ms
    user: str
    budget: str | None
    replicas: int
    gpus_per_replica: int
    runtime_ms: Ms
    """Work to be done, undisturbed. What was not saved at an eviction must be done again."""
    slice_ms: Ms
    resumable: bool = True
    priority: int = 0
    kind: Literal["batch", "session"] = "batch"
    max_runtime_ms: Ms | None = None
    gpu_model: str | None = None
    may_run_unallocated: bool = False
    """Where no budget covers its slice it runs unallocated instead of being refused."""
    save_every_ms: Ms | None = None
    """Work between two saves. None: once in each slice; with slice 0, once an hour. A job that is not resumable saves nothing."""
    fails: bool = False
    """It ends as failed instead of finished."""
    busy_ppm: Ppm = 1_000_000
    """Part of the held time in which its devices are busy; 0: a parked job."""
    tag: str = ""
    """What the scenario calls its kind, for figures: `debug`, `parked`, `twin` ..."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.replicas * self.gpus_per_replica

    @property
    def saves_every_ms(self) -> Ms | None:
        """Work between two saves; None: it saves nothing."""
        if not self.resumable:
            return None
        return self.save_every_ms or self.slice_ms or 60 * MINUTE_MS


class TreeChange(NamedTuple):
    """A whole tree that comes into force at an instant."""

    at_ms: Ms
    budgets: tuple[Budget, ...]


class Window(NamedTuple):
    """What is measured, `[from_ms, to_ms)`; before it is the warm-up. The run begins at `begin_ms`."""

    begin_ms: Ms
    from_ms: Ms
    to_ms: Ms


# --------------------------------------------------------------------------------------------------------------------------- out

RunEnd: TypeAlias = Literal["finished", "failed", "evicted", "stopped", "node_lost", "never_started", "still_running"]
JobEnd: TypeAlias = Literal["finished", "failed", "preempted", "max_runtime", "cancelled", "refused"]


class Run(NamedTuple):
    """One attempt, once it is over. `leaf` None: unallocated. `lost_gpu_ms`: work that must be done again (0 if it finished)."""

    attempt: str
    job: str
    leaf: str | None
    placement: tuple[NodeReplicas, ...]
    gpus_per_replica: int
    slice_ms: Ms
    granted_at_ms: Ms
    started_at_ms: Ms | None
    protected_until_ms: Ms | None
    ordered_at_ms: Ms | None
    """When it was told to leave."""
    claimant: str | None
    """The job that it was told to leave for."""
    ended_at_ms: Ms
    end: RunEnd
    lost_gpu_ms: GpuMs = 0

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return sum(part.replicas for part in self.placement) * self.gpus_per_replica


class Promise(NamedTuple):
    """A reservation's word: `job` starts no later than `by_ms`. Later words replace earlier ones; `moved_by_failure` says why."""

    at_ms: Ms
    job: str
    by_ms: Ms
    moved_by_failure: bool = False


class Life(Struct, kw_only=True):
    """A job's life. Mutable while the run goes on."""

    job: Job
    submitted_at_ms: Ms
    leaf: str | None
    """What it is charged to; None: unallocated."""
    first_started_at_ms: Ms | None = None
    ended_at_ms: Ms | None = None
    end: JobEnd | None = None
    refused: str | None = None
    """The code, where it was refused."""
    evictions: int = 0
    attempts: int = 0


class NodeChange(NamedTuple):
    """Healthy GPUs of a node from an instant on."""

    at_ms: Ms
    node: str
    healthy: int


class StandingSample(NamedTuple):
    """(used, entitlement) in GPU-ms of every budget at an instant."""

    at_ms: Ms
    standings: Mapping[str, tuple[GpuMs, GpuMs]]


class RoomSample(NamedTuple):
    """How broken up the free room is, at an instant: free GPUs, and those of them on wholly free nodes; jobs and GPUs waiting."""

    at_ms: Ms
    free: int
    free_on_empty_nodes: int
    waiting_jobs: int
    waiting_gpus: int


class History(Struct, kw_only=True):
    """Everything that happened, in the order in which it did. Figures and reports read only this."""

    policy: str
    cluster: Cluster
    window: Window
    trees: list[TreeChange]
    lives: dict[str, Life]
    runs: list[Run]
    nodes: list[NodeChange]
    standings: list[StandingSample]
    rooms: list[RoomSample]
    promises: list[Promise]
    reached_ms: Ms
    """How far the clock came; less than `window.to_ms` after Ctrl-C."""
    events: int = 0
    """Job events: submissions, starts, ends."""
    looks: int = 0
    """Passes over the queue."""
