"""Between the messages of proto and the values of admission, both ways. Never decides, and never sends."""

from hashlib import sha256

import msgspec

from allmende.admission.model.books import Books
from allmende.admission.model.facts import (
    Altered,
    Claimed,
    Closed,
    Decreed,
    Ended,
    Fact,
    Granted,
    Protected,
    Queued,
    Refused,
    StopOrdered,
    Withdrawn,
)
from allmende.admission.model.values import (
    Attempt,
    Claim,
    Cordon,
    Counted,
    Decided,
    Job,
    KnownBudget,
    KnownPolicy,
    KnownRevision,
    Node,
    Reason,
)
from allmende.admission.rules.explaining import Waiting, rule
from allmende.admission.rules.life import End, Order
from allmende.proto import admission, demand, policy
from allmende.proto.agent import AttemptEnded, NodeReported
from allmende.proto.budget import BudgetChanged, RevisionComplete
from allmende.proto.ledger import UsageStanding
from allmende.proto.message import Message, Problem
from allmende.proto.placement import NodeReplicas
from allmende.proto.preemptor import ClaimAnswered, EvictionOrdered, NodeCordoned, NodeReturned
from allmende.proto.units import Ms
from allmende.proto.user import JobSubmitted, Payload

_payloads = msgspec.json.Decoder(Payload)


# ------------------------------------------------------------------------------------------------------------------------------- in


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


def digest(said: JobSubmitted) -> str:
    """What tells one submission from another under the same id."""
    return sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


def payload(said: JobSubmitted) -> bytes:
    """What a job runs, as it is kept."""
    return msgspec.json.encode(said.payload)


def payload_of(kept: bytes) -> Payload:
    """What a job runs, read back."""
    return _payloads.decode(kept)


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


# ------------------------------------------------------------------------------------------------------------------------------ out


def message(fact: Fact, fence: int, now_ms: Ms, stop_grace_ms: Ms) -> Message:
    """The message that says a fact; `fence` is admission's term, of which agents and preemptor refuse an older one."""
    match fact:
        case Queued():
            return _queued(fact)
        case Refused(user, name, reason):
            return admission.JobRefused(user=user, job=name, problem=problem(reason))
        case Granted():
            return _granted(fact, fence)
        case Protected(attempt):
            return _protected(attempt)
        case StopOrdered(attempt, reason):
            return admission.AttemptStopOrdered(
                cluster=attempt.cluster,
                attempt=attempt.attempt,
                job=attempt.job,
                reason=reason,
                grace_ms=stop_grace_ms,
                fence=fence,
            )
        case Ended(ended, exit_code):
            return _ended(ended, exit_code, now_ms)
        case Claimed(claim):
            return _claimed(claim, fence)
        case Withdrawn(claim, reason):
            return admission.ClaimWithdrawn(cluster=claim.cluster, claim=claim.claim, job=claim.job, reason=reason)
        case Closed(cordon_, newest_grant_seq):
            return admission.NodeClosed(
                cluster=cordon_.cluster, node=cordon_.node, revision=cordon_.revision, newest_grant_seq=newest_grant_seq
            )
        case Altered(job_, author):
            return admission.JobChanged(
                user=job_.user,
                job=job_.job,
                held=job_.held,
                priority=job_.priority,
                slice_ms=job_.slice_ms,
                author=author,
                budget=job_.budget,
                asked=msgspec.convert(job_, demand.Asked, from_attributes=True),
            )
        case Decreed(known):
            return policy.PolicyChanged(
                cluster=known.cluster,
                revision=known.revision,
                from_ms=known.from_ms,
                author=known.author,
                reason=known.reason,
                policy=known.policy,
            )


def problem(reason: Reason) -> Problem:
    """A reason as it travels."""
    return Problem(code=reason.code, sentence=reason.sentence[:1_000])


def blockers(reasons: tuple[Reason, ...]) -> tuple[admission.Blocker, ...]:
    """Why a job waits, as it travels."""
    return tuple(admission.Blocker(code=reason.code, sentence=reason.sentence[:1_000]) for reason in reasons[:20])


def _queued(fact: Queued) -> admission.JobQueued:
    return admission.JobQueued(
        user=fact.job.user,
        job=fact.job.job,
        budget=fact.job.budget,
        submitted_at_ms=fact.job.submitted_at_ms,
        after_attempt=fact.after_attempt,
        warnings=tuple(problem(warning) for warning in fact.warnings),
        blockers=blockers(fact.blockers),
        asked=msgspec.convert(fact.job, demand.Asked, from_attributes=True),
    )


def _granted(fact: Granted, fence: int) -> admission.JobGranted:
    job, attempt = fact.job, fact.attempt
    return admission.JobGranted(
        cluster=attempt.cluster,
        job=attempt.job,
        attempt=attempt.attempt,
        user=attempt.user,
        budget=attempt.budget,
        placement=placed(attempt.placement),
        gpus_per_replica=attempt.gpus_per_replica,
        slice_ms=attempt.slice_ms,
        hold_gpu_ms=attempt.hold_gpu_ms,
        priority=attempt.priority,
        kind=job.kind,
        resumable=job.resumable,
        max_runtime_ms=attempt.max_runtime_ms,
        granted_at_ms=attempt.granted_at_ms,
        grant_seq=attempt.grant_seq,
        fence=fence,
        tree_revision=fact.tree_revision,
        usage_revision=fact.usage_revision,
        claim=attempt.claim,
        asked=msgspec.convert(job, demand.Asked, from_attributes=True),
    )


def _protected(attempt: Attempt) -> admission.AttemptProtected:
    assert attempt.started_at_ms is not None
    assert attempt.protected_until_ms is not None
    return admission.AttemptProtected(
        cluster=attempt.cluster,
        attempt=attempt.attempt,
        job=attempt.job,
        budget=attempt.budget,
        started_at_ms=attempt.started_at_ms,
        protected_until_ms=attempt.protected_until_ms,
    )


def _ended(job: Job, exit_code: int | None, now_ms: Ms) -> admission.JobEnded:
    assert job.outcome is not None
    return admission.JobEnded(
        user=job.user,
        job=job.job,
        budget=job.budget,
        outcome=job.outcome,
        exit_code=exit_code,
        attempts=job.attempts,
        submitted_at_ms=job.submitted_at_ms,
        first_started_at_ms=job.first_started_at_ms,
        ended_at_ms=now_ms if job.ended_at_ms is None else job.ended_at_ms,
        asked=msgspec.convert(job, demand.Asked, from_attributes=True),
    )


def _claimed(claim: Claim, fence: int) -> admission.ClaimRaised:
    return admission.ClaimRaised(
        cluster=claim.cluster,
        claim=claim.claim,
        job=claim.job,
        user=claim.user,
        budget=claim.budget,
        replicas=claim.replicas,
        gpus_per_replica=claim.gpus_per_replica,
        gpu_model=claim.gpu_model,
        slice_ms=claim.slice_ms,
        hold_gpu_ms=claim.hold_gpu_ms,
        priority=claim.priority,
        raised_at_ms=claim.raised_at_ms,
        newest_grant_seq=claim.newest_grant_seq,
        fence=fence,
        tree_revision=claim.tree_revision,
        usage_revision=claim.usage_revision,
        avoid_nodes=claim.avoid,
    )


# -------------------------------------------------------------------------------------------------------------------------- replies


def placed(placement: tuple[NodeReplicas, ...]) -> tuple[admission.Placed, ...]:
    """A placement as it travels."""
    return tuple(admission.Placed(node=part.node, replicas=part.replicas) for part in placement)


def attempt_summary(attempt: Attempt) -> admission.AttemptSummary:
    """One attempt in a list."""
    return admission.AttemptSummary(
        attempt=attempt.attempt,
        cluster=attempt.cluster,
        placement=placed(attempt.placement),
        granted_at_ms=attempt.granted_at_ms,
        started_at_ms=attempt.started_at_ms,
        protected_until_ms=attempt.protected_until_ms,
        ended_at_ms=attempt.ended_at_ms,
        outcome=attempt.outcome,
    )


def job_summary(job: Job, latest: Attempt | None) -> admission.JobSummary:
    """One job in a list."""
    return admission.JobSummary(
        job=job.job,
        name=job.name,
        user=job.user,
        budget=job.budget,
        state=job.state,
        outcome=job.outcome,
        gpus=job.gpus,
        replicas=job.replicas,
        slice_ms=job.slice_ms,
        priority=job.priority,
        submitted_at_ms=job.submitted_at_ms,
        attempts=job.attempts,
        latest=None if latest is None else attempt_summary(latest),
        held=job.held,
    )


def past_attempt(attempt: Attempt) -> admission.PastAttempt:
    """One attempt as it was."""
    return admission.PastAttempt(
        attempt=attempt.attempt,
        cluster=attempt.cluster,
        budget=attempt.budget,
        placement=placed(attempt.placement),
        slice_ms=attempt.slice_ms,
        granted_at_ms=attempt.granted_at_ms,
        started_at_ms=attempt.started_at_ms,
        protected_until_ms=attempt.protected_until_ms,
        ended_at_ms=attempt.ended_at_ms,
        outcome=attempt.outcome,
    )


def past_job(job: Job) -> admission.PastJob:
    """One job as it was, its attempts still to be added."""
    return admission.PastJob(
        job=job.job,
        user=job.user,
        budget=job.budget,
        clusters=job.clusters,
        replicas=job.replicas,
        gpus_per_replica=job.gpus_per_replica,
        gpu_model=job.gpu_model,
        slice_ms=job.slice_ms,
        stated_runtime_ms=job.stated_runtime_ms,
        max_runtime_ms=job.max_runtime_ms,
        resumable=job.resumable,
        priority=job.priority,
        kind=job.kind,
        may_run_unallocated=job.may_run_unallocated,
        submitted_at_ms=job.submitted_at_ms,
        ended_at_ms=job.ended_at_ms,
        outcome=job.outcome,
        attempts=(),
    )


def queue_entry(position: int, waiting: Waiting, reasons: tuple[Reason, ...]) -> admission.QueueEntry:
    """One line of the queue."""
    job, standing = waiting.job, waiting.standing
    return admission.QueueEntry(
        position=position,
        job=job.job,
        name=job.name,
        user=job.user,
        budget=job.budget,
        gpus=job.gpus,
        replicas=job.replicas,
        slice_ms=job.next_slice_ms,
        priority=job.priority,
        submitted_at_ms=job.submitted_at_ms,
        tier=waiting.tier,
        used_gpu_ms=None if standing is None else standing.used,
        entitlement_gpu_ms=None if standing is None else standing.entitlement,
        blockers=blockers(reasons),
        claim=job.claim,
    )


def ahead(position: int, before: Waiting, job: Waiting) -> admission.Ahead:
    """One who stands before a job."""
    rule_, sentence = rule(before, job)
    return admission.Ahead(
        position=position,
        job=before.job.job,
        budget=before.job.budget,
        used_gpu_ms=None if before.standing is None else before.standing.used,
        entitlement_gpu_ms=None if before.standing is None else before.standing.entitlement,
        rule=rule_,
        sentence=sentence,
    )


def decision(decided: Decided) -> admission.Decision:
    """One stored decision."""
    return admission.Decision(
        at_ms=decided.at_ms,
        kind=decided.kind,
        sentence=decided.sentence[:1_000],
        tree_revision=decided.tree_revision,
        usage_revision=decided.usage_revision,
        numbers=dict(decided.numbers),
        ahead=decided.ahead,
    )


def past_policy(known: KnownPolicy, until_ms: Ms | None) -> policy.PastPolicy:
    """One policy and when it held."""
    return policy.PastPolicy(
        revision=known.revision,
        from_ms=known.from_ms,
        until_ms=until_ms,
        author=known.author,
        reason=known.reason,
        policy=known.policy,
    )


def node_view(node: Node, books: Books, earmarked: int, now_ms: Ms, silent_after_ms: Ms) -> admission.NodeView:
    """One node in a list; `earmarked`: GPUs that belong to claims."""
    here = books.on_node.get(node.key, {})
    seen_ms = books.last_seen_ms(node)
    closed = books.cordons.get(node.cluster, {}).get(node.node)
    return admission.NodeView(
        cluster=node.cluster,
        node=node.node,
        gpu_model=node.gpu_model,
        installed_gpus=node.installed,
        healthy_gpus=node.healthy,
        held_gpus=sum(here.values()),
        earmarked_gpus=earmarked,
        attempts=len(here),
        silent_since_ms=seen_ms if seen_ms + silent_after_ms < now_ms else None,
        cordoned_from_ms=None if closed is None else closed.from_ms,
        cordon_reason="" if closed is None or closed.from_ms is None else closed.reason,
    )
