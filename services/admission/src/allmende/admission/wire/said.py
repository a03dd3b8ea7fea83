"""From what admission has decided to the messages that say it. Never decides, and never sends."""

import msgspec

from allmende.admission.model.facts import (
    Altered,
    Claimed,
    Closed,
    DeclaredLost,
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
    Job,
    Reason,
)
from allmende.proto import admission, demand, lost, policy
from allmende.proto.message import Message, Problem
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import Ms


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
        case DeclaredLost():
            return _declared_lost(fact)
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


def placed(placement: tuple[NodeReplicas, ...]) -> tuple[admission.Placed, ...]:
    """A placement as it travels."""
    return tuple(admission.Placed(node=part.node, replicas=part.replicas) for part in placement)


def _declared_lost(fact: DeclaredLost) -> lost.NodeDeclaredLost:
    node = fact.node
    return lost.NodeDeclaredLost(
        cluster=node.cluster,
        node=node.node,
        by=fact.by,
        reason=fact.reason,
        declared_at_ms=fact.at_ms,
        last_seen_ms=fact.last_seen_ms,
        reported_at_ms=node.at_ms,
        reported_seq=node.seq,
        installed_gpus=node.installed,
        gpu_model=node.gpu_model,
        attempts=lost_attempts(fact),
    )


def lost_attempts(fact: DeclaredLost) -> tuple[lost.LostAttempt, ...]:
    """The attempts that ended with a node, as they travel."""
    return tuple(
        lost.LostAttempt(attempt=each.attempt, job=each.job, ended_at_ms=each.ended_at_ms or fact.last_seen_ms)
        for each in fact.attempts
    )


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
        reserved_nodes=tuple(part.node for part in claim.reserved),
    )
