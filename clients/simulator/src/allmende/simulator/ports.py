"""What the world wants of a policy and of a source of jobs. Both are driven by the virtual clock and keep no time of their own.

A policy decides; the world plays the agents: it starts and ends attempts, draws how long a job takes to leave, and lets nodes fail.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from allmende.proto.placement import NodeReplicas
from allmende.proto.units import Ms
from allmende.simulator.model import Cluster, Job, RunEnd, StandingSample, TreeChange, Window


class Workload(Protocol):
    """A source of jobs. In a closed loop it submits more as jobs end."""

    def due_ms(self) -> Ms | None:
        """When it wants to submit next; None: only after something ended, or never again."""

    def submit(self, now_ms: Ms) -> Sequence[Job]:
        """The jobs that are submitted now; `job.submitted_at_ms == now_ms`."""

    def ended(self, job: Job, now_ms: Ms) -> None:
        """One of its jobs is over (finished, failed, refused, preempted ...)."""


class Scenario(NamedTuple):
    """All that a run needs but the policy. `workload` is used up by one run: make the scenario anew for the next."""

    name: str
    cluster: Cluster
    trees: tuple[TreeChange, ...]
    """In the order of their instants; the first is in force from the beginning."""
    workload: Workload
    window: Window
    notes: tuple[str, ...] = ()
    """Sentences for the report: what was assumed, left out or skipped."""


class Grant(NamedTuple):
    """The job may start, exactly there."""

    attempt: str
    job: str
    leaf: str | None
    placement: tuple[NodeReplicas, ...]
    slice_ms: Ms


class Evict(NamedTuple):
    """The attempt must leave: SIGTERM now, SIGKILL after the notice."""

    attempt: str
    grace_ms: Ms
    claimant: str | None


class Stop(NamedTuple):
    """The attempt must end for another reason than an eviction."""

    attempt: str
    grace_ms: Ms


class Refuse(NamedTuple):
    """The job can never run."""

    job: str
    code: str
    sentence: str


class Close(NamedTuple):
    """The job is over without another attempt: not resumable and evicted, or at its maximum runtime."""

    job: str
    end: str


class Promised(NamedTuple):
    """The job starts no later than `by_ms`."""

    job: str
    by_ms: Ms
    moved_by_failure: bool


class Renewed(NamedTuple):
    """The attempt is protected until then."""

    attempt: str
    protected_until_ms: Ms


Action: TypeAlias = Grant | Evict | Stop | Refuse | Close | Promised | Renewed


class Policy(Protocol):
    """Who runs where. Every method but `decide` and the readers only takes note; `decide` returns what to do now."""

    name: str

    def tree(self, change: TreeChange) -> None:
        """A tree of budgets is in force from now on."""

    def node(self, node: str, gpus: int, healthy: int, gpu_model: str | None, now_ms: Ms) -> None:
        """A node reports. Attempts on a node that failed end as `node_lost`, each said separately."""

    def submitted(self, job: Job, now_ms: Ms) -> None:
        """A job came in."""

    def started(self, attempt: str, now_ms: Ms) -> Ms:
        """All replicas run. Returns `protected_until_ms`."""

    def saves(self, attempt: str, every_ms: Ms, now_ms: Ms) -> None:
        """The attempt, just started, saves its work each `every_ms` from now on: what an agent would report as it happens.

        Told at once because the virtual clock has no ticks. A policy may look up past saves, and ask to be woken at future ones.
        """

    def ended(self, attempt: str, end: RunEnd, now_ms: Ms, saved_at_ms: Ms | None) -> None:
        """No replica runs any more. `saved_at_ms`: the last save of this attempt."""

    def due_ms(self) -> Ms | None:
        """When `decide` must be called next even if nothing happens: the earliest timer."""

    def decide(self, now_ms: Ms) -> Sequence[Action]:
        """What to do now. Called after everything that happened at this instant was noted."""

    def standings(self, now_ms: Ms) -> StandingSample:
        """How the budgets stand; empty where the policy knows no budgets."""

    def waiting(self) -> tuple[int, int]:
        """Jobs and GPUs that wait."""
