"""What the services say to an agent in the suite: grants, evictions, stops, confirmations, as values. Pure."""

from typing import Literal, NamedTuple

from allmende.agent.conformance.stage import CLUSTER
from allmende.proto.admission import AttemptStopOrdered, JobGranted, Placed
from allmende.proto.ledger import UsageConfirmed
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.units import HOUR_MS, Ms

# Of admission's term: an agent takes no grant of an earlier one than it has heard of.
FENCE = 7

Script = Literal["quick", "long", "failing", "stubborn"]


class Scripts(NamedTuple):
    """Command lines that the agent under test can run: ends by itself with 0; runs for minutes; fails; ignores SIGTERM."""

    quick: tuple[str, ...]
    long: tuple[str, ...]
    failing: tuple[str, ...]
    stubborn: tuple[str, ...]


def grant(attempt: str, user: str, node: str, gpus: int, seq: int, now_ms: Ms, fence: int = FENCE) -> JobGranted:
    """One replica on one node. The job is called as its attempt."""
    return JobGranted(
        cluster=CLUSTER,
        job=attempt,
        attempt=attempt,
        user=user,
        budget="conformance",
        placement=(Placed(node=node, replicas=1),),
        gpus_per_replica=gpus,
        slice_ms=HOUR_MS,
        hold_gpu_ms=HOUR_MS * gpus,
        priority=0,
        kind="batch",
        resumable=True,
        max_runtime_ms=None,
        granted_at_ms=now_ms,
        grant_seq=seq,
        fence=fence,
        tree_revision=1,
        usage_revision=1,
    )


def eviction(attempt: str, plan: str, claim: str, grace_ms: Ms, now_ms: Ms) -> EvictionOrdered:
    """An eviction for the claim of a job that is called as the plan."""
    return EvictionOrdered(
        cluster=CLUSTER,
        attempt=attempt,
        job=attempt,
        plan=plan,
        claim=claim,
        claimant_job=plan,
        ordered_at_ms=now_ms,
        protected_until_ms=max(0, now_ms - 1),
        grace_ms=grace_ms,
        rule="over_served",
        sentence="conformance gives way",
        tree_revision=1,
        usage_revision=1,
    )


def stop(attempt: str, grace_ms: Ms) -> AttemptStopOrdered:
    """A stop by the owner."""
    return AttemptStopOrdered(cluster=CLUSTER, attempt=attempt, job=attempt, reason="cancel", grace_ms=grace_ms, fence=FENCE)


def confirmed(*attempts: str) -> UsageConfirmed:
    """The ledger has these ends in its books."""
    return UsageConfirmed(cluster=CLUSTER, attempts=attempts)
