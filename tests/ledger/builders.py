"""Builders for the messages that the ledger hears. Defaults suit most tests: one GPU, one replica, cluster c1, budget nlp."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from allmende.chassis.ports import Draft
from allmende.proto import admission, agent, budget
from allmende.proto.message import Message
from allmende.proto.subjects import BY_MESSAGE
from allmende.proto.tree import digest
from allmende.proto.units import HOUR_MS

# A bucket's edge: 2023-11-14T22:10:00Z.
START_MS = 1_699_999_800_000
TREE = (
    budget.Budget(budget="org"),
    budget.Budget(budget="vision", parent="org", share_ppm=600_000),
    budget.Budget(budget="research", parent="org", share_ppm=400_000),
    budget.Budget(budget="nlp", parent="research", share_ppm=500_000),
    budget.Budget(budget="rl", parent="research", share_ppm=500_000),
)
_TYPES = {message.TYPE: message for message in BY_MESSAGE}


def id_of(number: int) -> str:
    """An id whose order is that of the numbers."""
    return f"{number:026d}"


def tree(budgets: Sequence[budget.Budget] = TREE, revision: int = 1, at_ms: int = START_MS) -> list[Message]:
    """All messages of one revision that says every budget anew."""
    changes = [budget.BudgetChanged(budget=each.budget, revision=revision, definition=each) for each in budgets]
    return [*changes, complete(budgets, revision, at_ms)]


def complete(budgets: Sequence[budget.Budget], revision: int, at_ms: int = START_MS) -> budget.RevisionComplete:
    """The word that a revision is whole."""
    return budget.RevisionComplete(
        revision=revision, effective_from_ms=at_ms, budgets=len(budgets), digest=digest(budgets), author="ann"
    )


def node(
    name: str = "n1", gpus: int = 8, *, installed: int = 8, at_ms: int = START_MS, cluster: str = "c1", seq: int = 1
) -> agent.NodeReported:
    """What a node has."""
    return agent.NodeReported(cluster=cluster, node=name, at_ms=at_ms, seq=seq, installed_gpus=installed, healthy_gpus=gpus)


def granted(
    number: int,
    *,
    gpus: int = 1,
    replicas: int = 1,
    budget: str | None = "nlp",
    slice_ms: int = HOUR_MS,
    at_ms: int = START_MS,
    cluster: str = "c1",
    seq: int | None = None,
) -> admission.JobGranted:
    """Attempt `number` of job `number + 1000`, all on node n1."""
    return admission.JobGranted(
        cluster=cluster,
        job=id_of(number + 1_000),
        attempt=id_of(number),
        user="bob",
        budget=budget,
        placement=(admission.Placed(node="n1", replicas=replicas),),
        gpus_per_replica=gpus,
        slice_ms=slice_ms if budget else 0,
        hold_gpu_ms=slice_ms * gpus * replicas if budget else 0,
        priority=0,
        kind="batch",
        resumable=True,
        max_runtime_ms=None,
        granted_at_ms=at_ms,
        grant_seq=number if seq is None else seq,
        fence=1,
        tree_revision=1,
        usage_revision=1,
    )


def started(number: int, at_ms: int = START_MS, *, cluster: str = "c1") -> agent.AttemptStarted:
    """All replicas run."""
    return agent.AttemptStarted(cluster=cluster, attempt=id_of(number), job=id_of(number + 1_000), started_at_ms=at_ms)


def counter(
    number: int,
    held_ms: int,
    seq: int,
    *,
    gpus: int = 1,
    replica: int = 0,
    epoch: int = 1,
    since_ms: int = START_MS,
    used_gpu_ms: int | None = None,
    busy_gpu_ms: int | None = None,
    checkpoint_at_ms: int | None = None,
) -> agent.Counter:
    """The counter of one replica."""
    return agent.Counter(
        attempt=id_of(number),
        replica=replica,
        epoch=epoch,
        seq=seq,
        since_ms=since_ms,
        held_ms=held_ms,
        used_gpu_ms=held_ms * gpus if used_gpu_ms is None else used_gpu_ms,
        busy_gpu_ms=busy_gpu_ms,
        checkpoint_at_ms=checkpoint_at_ms,
    )


def tick(*counters: agent.Counter, cluster: str = "c1", name: str = "n1", at_ms: int = START_MS) -> agent.UsageTick:
    """A tick of a node."""
    return agent.UsageTick(cluster=cluster, node=name, at_ms=at_ms, counters=counters)


def ended(
    number: int, at_ms: int, *counters: agent.Counter, outcome: agent.Outcome = "finished", cluster: str = "c1"
) -> agent.AttemptEnded:
    """No replica runs any more."""
    return agent.AttemptEnded(
        cluster=cluster, attempt=id_of(number), job=id_of(number + 1_000), ended_at_ms=at_ms, outcome=outcome, counters=counters
    )


def read(drafts: Iterable[Draft]) -> list[Any]:
    """The bodies of drafts."""
    return [msgspec.json.decode(draft.body, type=_TYPES[draft.type]) for draft in drafts]
