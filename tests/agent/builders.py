"""Values for the tests of clients/agent."""

from allmende.agent.sdk.attempts import Action, Attempts, Say, Signal, Start
from allmende.agent.sdk.backend import Launch, NodeState, ReplicaPlace
from allmende.agent.synthetic.cluster import Cluster
from allmende.agent.synthetic.command import Command
from allmende.agent.synthetic.truth import AnyRecord
from allmende.proto.admission import AttemptStopOrdered, JobGranted, Placed, StopReason
from allmende.proto.agent import AttemptEnded
from allmende.proto.ids import make_id
from allmende.proto.message import Message
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.units import HOUR_MS, SECOND_MS, Ms
from allmende.proto.user import Payload

T0: Ms = 1_700_000_000_000
EPOCH = 7


def an_id(number: int) -> str:
    """A recognisable id."""
    return make_id(T0, number.to_bytes(10, "big"))


def attempt(number: int = 1) -> str:
    """The id of an attempt."""
    return an_id(1_000 + number)


def job(number: int = 1) -> str:
    """The id of a job."""
    return an_id(2_000 + number)


PLAN, CLAIM = an_id(9_001), an_id(9_002)


def grant(number: int = 1, *, placement: tuple[tuple[str, int], ...] = (("n1", 1),), gpus: int = 2, fence: int = 3) -> JobGranted:
    """A grant of attempt `number`: by default one replica with 2 GPUs on n1."""
    replicas = sum(count for _, count in placement)
    return JobGranted(
        cluster="c1",
        job=job(number),
        attempt=attempt(number),
        user="ada",
        budget="video",
        placement=tuple(Placed(node=node, replicas=count) for node, count in placement),
        gpus_per_replica=gpus,
        slice_ms=HOUR_MS,
        hold_gpu_ms=HOUR_MS * gpus * replicas,
        priority=0,
        kind="batch",
        resumable=True,
        max_runtime_ms=None,
        granted_at_ms=T0,
        grant_seq=number,
        fence=fence,
        tree_revision=1,
        usage_revision=1,
    )


def eviction(number: int = 1, *, grace_ms: Ms = 120 * SECOND_MS, plan: str = PLAN) -> EvictionOrdered:
    """An order to evict attempt `number`."""
    return EvictionOrdered(
        cluster="c1",
        attempt=attempt(number),
        job=job(number),
        plan=plan,
        claim=CLAIM,
        claimant_job=job(99),
        ordered_at_ms=T0,
        protected_until_ms=T0 - 1,
        grace_ms=grace_ms,
        rule="over_served",
        sentence="video at 1.4 gives way to robotics at 0.6",
        tree_revision=1,
        usage_revision=1,
    )


def stop(number: int = 1, *, grace_ms: Ms = 60 * SECOND_MS, reason: StopReason = "cancel", fence: int = 3) -> AttemptStopOrdered:
    """An order to stop attempt `number`."""
    return AttemptStopOrdered(cluster="c1", attempt=attempt(number), job=job(number), reason=reason, grace_ms=grace_ms, fence=fence)


PAYLOAD = Payload(command=Command(HOUR_MS).line())


def attempts(*nodes: str) -> Attempts:
    """A fold that knows some nodes of 8 GPUs (by default n1 and n2)."""
    made = Attempts("c1", EPOCH)
    for node in nodes or ("n1", "n2"):
        made.node_changed(NodeState(node, 8, 8), T0)
    return made


def run(made: Attempts, given: JobGranted, at_ms: Ms = T0) -> None:
    """Take a grant all the way to a running attempt."""
    made.granted(given, at_ms)
    started = made.payload(given.attempt, PAYLOAD)
    assert isinstance(started[0], Start)
    made.started(given.attempt, at_ms, at_ms)


def said(actions: list[Action]) -> list[Message]:
    """What is to be published."""
    return [action.body for action in actions if isinstance(action, Say)]


def signals(actions: list[Action]) -> list[str]:
    """Which signals are to be sent."""
    return [action.signal for action in actions if isinstance(action, Signal)]


def the_end(actions: list[Action]) -> AttemptEnded:
    """The one end that is said."""
    (end,) = [body for body in said(actions) if isinstance(body, AttemptEnded)]
    return end


def launch(number: int = 1, command: Command | None = None, nodes: tuple[str, ...] = ("n0001",), gpus: int = 1) -> Launch:
    """A launch of attempt `number`, one replica a node."""
    return Launch(
        attempt=attempt(number),
        job=job(number),
        user="ada",
        budget="video",
        payload=Payload(command=(command or Command(HOUR_MS)).line()),
        places=tuple(ReplicaPlace(replica, node, tuple(range(gpus))) for replica, node in enumerate(nodes)),
        gpus_per_replica=gpus,
        slice_ms=HOUR_MS,
    )


def cluster(log: list[AnyRecord], nodes: int = 2, seed: int = 1) -> Cluster:
    """A cluster of nodes with 8 GPUs that never fail by themselves."""
    states = tuple(NodeState(f"n{number:04d}", 8, 8) for number in range(1, nodes + 1))
    return Cluster("c1", states, seed, iter(()), T0, log.append)
