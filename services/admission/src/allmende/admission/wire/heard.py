"""From the messages that admission hears to its own values. Never decides, and never sends."""

from hashlib import sha256

import msgspec
from msgspec import UNSET

from allmende.admission.model.arrays import Unfolding
from allmende.admission.model.values import (
    Claim,
    Cordon,
    Counted,
    Job,
    KnownBudget,
    KnownRevision,
    Node,
    Reason,
)
from allmende.admission.rules.life import End, Order
from allmende.proto.agent import AttemptEnded, NodeReported
from allmende.proto.budget import BudgetChanged, RevisionComplete
from allmende.proto.ids import following
from allmende.proto.ledger import UsageStanding
from allmende.proto.placement import NodeReplicas
from allmende.proto.preemptor import ClaimAnswered, EvictionOrdered, NodeCordoned, NodeReturned
from allmende.proto.units import Ms
from allmende.proto.user import ARRAY_VARIABLES, InArray, JobSubmitted, Payload

_payloads = msgspec.json.Decoder(Payload)


def job(said: JobSubmitted, occurred_at_ms: Ms, received_at_ms: Ms) -> Job:
    """A new job. It was submitted when its submitter said so, but never after we heard of it."""
    return Job(
        job=said.job,
        user=said.user,
        name=said.name,
        budget=said.budget,
        clusters=tuple(sorted(set(said.clusters))),
        replicas=said.replicas,
        gpus_per_replica=said.gpus_per_replica,
        gpu_model=said.gpu_model,
        slice_ms=said.slice_ms,
        stated_runtime_ms=said.stated_runtime_ms,
        max_runtime_ms=said.max_runtime_ms,
        resumable=said.resumable,
        priority=said.priority,
        kind=said.kind,
        may_run_unallocated=said.may_run_unallocated,
        submitted_at_ms=min(occurred_at_ms, received_at_ms),
        next_slice_ms=said.slice_ms,
        digest=digest(said),
    )


def names(said: JobSubmitted) -> list[str]:
    """The ids of all jobs that a submission makes."""
    return [said.job] if said.array is UNSET else [following(said.job, step) for step in range(said.array)]


def unfolding(said: JobSubmitted, occurred_at_ms: Ms, received_at_ms: Ms) -> Unfolding:
    """The array of a submission that asks for one; none of its jobs is made yet."""
    assert said.array is not UNSET
    one = job(said, occurred_at_ms, received_at_ms)
    return Unfolding(first=said.job, size=said.array, made=0, received_at_ms=received_at_ms, template=one)


def digest(said: JobSubmitted) -> str:
    """What tells one submission from another under the same id."""
    return sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


def payload(said: JobSubmitted) -> bytes:
    """What a job runs, as it is kept."""
    return msgspec.json.encode(said.payload)


def payload_of(kept: bytes, array: InArray | None = None) -> Payload:
    """What a job runs, read back; of an array's job with its place in the environment."""
    payload = _payloads.decode(kept)
    if array is None:
        return payload
    place = dict(zip(ARRAY_VARIABLES, (array.first, str(array.index), str(array.size)), strict=True))
    return msgspec.structs.replace(payload, environment={**payload.environment, **place})


def node(said: NodeReported, had: Node | None, received_at_ms: Ms) -> Node:
    """A node as reported."""
    return Node(
        cluster=said.cluster,
        node=said.node,
        gpu_model=said.gpu_model,
        installed=said.installed_gpus,
        healthy=min(said.healthy_gpus, said.installed_gpus),
        at_ms=said.at_ms,
        seq=said.seq,
        first_seen_ms=received_at_ms if had is None else had.first_seen_ms,
        last_seen_ms=received_at_ms,
    )


def cordon(said: NodeCordoned | NodeReturned) -> Cordon:
    """The word about a node as far as it concerns admission."""
    from_ms = said.from_ms if isinstance(said, NodeCordoned) else None
    return Cordon(cluster=said.cluster, node=said.node, revision=said.revision, from_ms=from_ms, by=said.by, reason=said.reason)


def end(said: AttemptEnded) -> End:
    """An attempt's end, without its counters."""
    return End(said.outcome, said.ended_at_ms, said.exit_code, said.plan, said.checkpoint_at_ms, said.detail)


def order(said: EvictionOrdered) -> Order:
    """An order to evict, with the amounts that were compared where ratios decided it."""
    numbers: dict[str, int] = {}
    if said.compared is not None:
        amounts = {field: getattr(said.compared, field) for field in _COMPARED}
        numbers = {field: amount for field, amount in amounts.items() if amount is not None}
    return Order(
        plan=said.plan,
        claimant_job=said.claimant_job,
        at_ms=said.ordered_at_ms,
        grace_ms=said.grace_ms,
        sentence=said.sentence,
        numbers=numbers,
        tree_revision=said.tree_revision,
        usage_revision=said.usage_revision,
    )


_COMPARED = (
    "claimant_used_gpu_ms",
    "claimant_entitlement_gpu_ms",
    "victim_used_gpu_ms",
    "victim_entitlement_gpu_ms",
    "margin_ppm",
)


def counted(said: UsageStanding) -> Counted:
    """A budget's standing."""
    return Counted(
        cluster=said.cluster,
        budget=said.budget,
        usage_revision=said.usage_revision,
        tree_revision=said.tree_revision,
        counted_grants=said.counted_grants,
        used_gpu_ms=said.charged_gpu_ms + said.held_gpu_ms,
        entitlement_gpu_ms=said.entitlement_gpu_ms,
    )


def known_budget(said: BudgetChanged, at_ms: Ms) -> KnownBudget:
    """A budget's definition from a revision on. `at_ms`: when the bus had it."""
    gone_at_ms = at_ms if said.definition is None else None
    return KnownBudget(
        budget=said.budget, revision=said.revision, definition=said.definition, jobs_to=said.jobs_to, gone_at_ms=gone_at_ms
    )


def known_revision(said: RevisionComplete) -> KnownRevision:
    """A revision that is complete."""
    return KnownRevision(revision=said.revision, budgets=said.budgets, digest=said.digest)


def answer(said: ClaimAnswered, claim: Claim) -> Claim | Reason:
    """The claim with its plan, or why there is none."""
    if said.outcome == "infeasible" or said.plan is None:
        return Reason(said.code, said.sentence)
    return msgspec.structs.replace(
        claim,
        plan=said.plan,
        placement=tuple(NodeReplicas(part.node, part.replicas) for part in said.placement),
        victims=tuple(victim.attempt for victim in said.victims),
        tree_revision=said.tree_revision,
        usage_revision=said.usage_revision,
    )
