"""What admission answers, out of its own values. Never decides, and never sends."""

from allmende.admission.model.books import Books
from allmende.admission.model.values import (
    Attempt,
    Decided,
    Job,
    KnownPolicy,
    Node,
    Reason,
)
from allmende.admission.rules.explaining import Waiting, rule
from allmende.admission.wire.said import blockers, placed
from allmende.proto import admission, policy
from allmende.proto.units import Ms


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
        array=job.array,
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
        starts_by_ms=None if job.reserved is None else job.reserved.by_ms,
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
        lost_at_ms=node.lost_at_ms,
        lost_reason=node.lost_reason,
    )
