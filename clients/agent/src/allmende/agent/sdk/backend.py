"""What an agent's author writes: a `Backend` that starts, signals and observes processes. The SDK does the rest.

Holds values and protocols only. Never decides anything and never talks to the bus.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from allmende.proto.units import GpuMs, Ms
from allmende.proto.user import Payload

How = Literal["finished", "failed", "signalled", "node_lost"]
"""How an attempt left: by itself with exit code 0, by itself with another, because of our signal, or with its node."""


class NodeState(NamedTuple):
    """The GPUs of one node. A node that is down has 0 healthy GPUs; `reason` is a sentence for the operator.

    `cordon`: why the node should be drained, as long as that is so: it is not well, but what runs there may end its slice.
    """

    node: str
    installed_gpus: int
    healthy_gpus: int
    gpu_model: str | None = None
    reason: str = ""
    cordon: str | None = None


class Cause(NamedTuple):
    """Which order ends an attempt: `name` is the plan's id of an eviction, or the reason of a stop. `grace_ms` is clock time."""

    kind: Literal["eviction", "stop"]
    name: str
    grace_ms: Ms = 0


class ReplicaPlace(NamedTuple):
    """Where one replica runs: its number, its node and the device indices that are its own there."""

    replica: int
    node: str
    devices: tuple[int, ...]


class Launch(NamedTuple):
    """Everything a backend needs to start an attempt. All replicas or none."""

    attempt: str
    job: str
    user: str
    budget: str | None
    payload: Payload
    places: tuple[ReplicaPlace, ...]
    gpus_per_replica: int
    slice_ms: Ms
    epoch: int = 0
    """Of its counters. A backend whose jobs outlive the agent keeps it for `Running`."""


class Running(NamedTuple):
    """An attempt that an earlier agent of the cluster started and that still runs, or ended unnoticed (then say its exit soon).

    `held_ms` as in `Vitals`. `cause`: it was sent SIGTERM for this already. The launch's command may be left out.
    """

    launch: Launch
    started_at_ms: Ms
    held_ms: Ms
    cause: Cause | None = None


class Exit(NamedTuple):
    """No process of the attempt runs any more, on any node, since `ended_at_ms`."""

    attempt: str
    ended_at_ms: Ms
    how: How
    exit_code: int | None = None
    checkpoint_at_ms: Ms | None = None
    detail: str = ""
    held_ms: Ms | None = None
    """As in `Vitals`, until the end."""


class Vitals(NamedTuple):
    """What is known of a running attempt.

    `busy_gpu_ms` is cumulative, of one replica; None: the backend does not measure it. `held_ms` is how long the GPUs have been
    held by a clock that nobody sets; None: as long as the SDK's clock says.
    """

    checkpoint_at_ms: Ms | None = None
    busy_gpu_ms: GpuMs | None = None
    held_ms: Ms | None = None


class CannotStart(Exception):
    """The attempt cannot be started here; the sentence is the detail of `never_started`. Nothing of it may be left running."""


class Notices(Protocol):
    """How a backend tells the SDK what happened. Both may be called at any time from the event loop's thread."""

    def exited(self, left: Exit) -> None:
        """An attempt ended. Said exactly once for each attempt that was started."""

    def node_changed(self, node: NodeState, at_ms: Ms) -> None:
        """A node came, went down, came back, or changed its number of healthy GPUs, at this instant."""


class Backend(Protocol):
    """Starts, signals and observes the processes of one cluster. Called from one event loop."""

    async def run(self, notices: Notices) -> None:
        """Watch the cluster until cancelled. Called once, before anything else."""

    async def nodes(self) -> Sequence[NodeState]:
        """All nodes as they are now."""

    async def start(self, launch: Launch) -> Ms:
        """Start every replica; returns the instant since which all of them hold their GPUs.

        Raises:
            CannotStart: nothing was started.
        """

    async def terminate(self, attempt: str, cause: Cause) -> None:
        """Send SIGTERM (or its like) to all replicas. Unknown or ended attempts are no error."""

    async def kill(self, attempt: str, cause: Cause) -> None:
        """Send SIGKILL (or its like) to all replicas. Unknown or ended attempts are no error."""

    async def observe(self, at_ms: Ms) -> Mapping[str, Vitals]:
        """The attempts that run at `at_ms`.

        Where the backend can, it gives every exit before `at_ms` to its notices before it returns: then what was counted is
        exact. Where it cannot, the SDK keeps the counters monotone, so that the attempt held its GPUs until its end was noticed.
        """
