"""Messages to values and back. Never decides and never reads a table."""

from collections.abc import Iterable, Sequence

from allmende.ledger.model import (
    Account,
    CounterKey,
    Ended,
    Fact,
    Fault,
    FaultRow,
    Grant,
    Granted,
    InUse,
    NodeStep,
    Posting,
    Protected,
    Reading,
    Round,
    Started,
)
from allmende.ledger.rules.activity import Activity
from allmende.ledger.rules.attempts import DECLARED_LOST
from allmende.ledger.rules.books import Books
from allmende.ledger.rules.demand import JobEnd, Said, Want, Word
from allmende.ledger.rules.tree import Revision
from allmende.proto import ledger
from allmende.proto.admission import AttemptProtected, JobChanged, JobEnded, JobGranted, JobQueued, JobRefused
from allmende.proto.agent import AttemptEnded, AttemptStarted, Counter, NodeReported
from allmende.proto.budget import RevisionComplete
from allmende.proto.demand import Asked
from allmende.proto.lost import NodeDeclaredLost
from allmende.proto.message import MessageRefused, Problem
from allmende.proto.subjects import publisher_of
from allmende.proto.units import Ms

# At most this many counters or attempts in one usage.confirmed.
CONFIRMED_MAX = 512
# No sentence of ours is half as long; a bound keeps a reply within one message.
SENTENCE_MAX = 1_000


def readings(
    event: str, cluster: str, counters: Iterable[Counter], sent_at_ms: Ms, *, off_ms: Ms = 0, final: bool = False
) -> list[Reading]:
    """The counters of a tick or an end. `off_ms`: how far the sender's clock was ahead of ours at sending."""
    return [
        Reading(
            event, cluster, c.attempt, c.replica, c.epoch, c.seq, c.since_ms, c.held_ms, c.used_gpu_ms, sent_at_ms, final, off_ms
        )
        for c in counters
    ]


def fact(event: str, body: JobGranted | AttemptStarted | AttemptProtected | AttemptEnded) -> Fact:
    """What a message says of an attempt's life."""
    match body:
        case JobGranted():
            replicas = sum(placed.replicas for placed in body.placement)
            grant = Grant(body.job, body.budget, body.gpus_per_replica, replicas, body.slice_ms, body.granted_at_ms, body.grant_seq)
            nodes = tuple((placed.node, placed.replicas) for placed in body.placement)
            return Granted(event, body.cluster, body.attempt, grant, body.user, nodes)
        case AttemptStarted():
            return Started(event, body.cluster, body.attempt, body.started_at_ms)
        case AttemptProtected():
            return Protected(event, body.cluster, body.attempt, body.started_at_ms, body.protected_until_ms)
        case AttemptEnded():
            return Ended(event, body.cluster, body.attempt, body.ended_at_ms, body.outcome)


def word(said: Said, body: JobQueued | JobGranted | JobChanged | JobEnded | JobRefused) -> Word:
    """What a message says of a job's demand. A refusal has no instant of its own but when it was said."""
    match body:
        case JobRefused():
            return Word(said, body.job, None, JobEnd(said[0], "refused", None))
        case JobEnded():
            end = JobEnd(body.ended_at_ms, body.outcome, body.first_started_at_ms)
            return Word(said, body.job, _want(body.asked), end)
        case JobQueued() | JobGranted() | JobChanged():
            return Word(said, body.job, _want(body.asked), None)


def activity(key: CounterKey, said: Counter) -> Activity:
    """What a counter that tells of its devices says of them."""
    assert said.busy_gpu_ms is not None, "asked only of counters that tell"
    return Activity(key, said.since_ms, said.held_ms, said.used_gpu_ms, said.busy_gpu_ms, said.memory_active_gpu_ms)


def _want(asked: Asked | None) -> Want | None:
    if asked is None:
        return None
    gpus = asked.replicas * asked.gpus_per_replica
    return Want(asked.budget, asked.submitted_at_ms, asked.clusters, gpus, asked.gpu_model, asked.slice_ms)


def step(body: NodeReported) -> NodeStep:
    """A node's report."""
    return NodeStep(body.cluster, body.node, body.at_ms, body.seq, body.installed_gpus, body.healthy_gpus, body.gpu_model)


def dead_step(body: NodeDeclaredLost) -> NodeStep:
    """A node that was declared lost has no healthy GPU from its last sign of life on, even where that was its last report."""
    return NodeStep(body.cluster, body.node, body.last_seen_ms, body.reported_seq + 1, body.installed_gpus, 0, body.gpu_model)


def declared_ends(event: str, body: NodeDeclaredLost) -> list[Ended]:
    """The ends of the attempts that were declared lost with a node."""
    return [Ended(event, body.cluster, each.attempt, each.ended_at_ms, DECLARED_LOST) for each in body.attempts]


def revision(body: RevisionComplete) -> Revision:
    """A revision as announced."""
    return Revision(body.revision, body.effective_from_ms, body.budgets, body.digest)


def refused(subject: str, stream: str, stream_seq: int, message: str, faults: Sequence[Fault]) -> MessageRefused:
    """The word to the publisher: the first fault's code; the sentence tells how many there are. The rest of the message counts."""
    first = faults[0]
    more = f" (and {len(faults) - 1} more faults in this message)" if len(faults) > 1 else ""
    return MessageRefused(
        service="ledger",
        publisher=publisher_of(subject),
        subject=subject,
        stream=stream,
        stream_seq=stream_seq,
        message=message,
        problem=Problem(code=first.code, sentence=(first.sentence + more)[:SENTENCE_MAX]),
    )


def confirmations(confirmed: Iterable[tuple[str, str]]) -> list[ledger.UsageConfirmed]:
    """One message a cluster, or several where there are very many. Attempts come as (cluster, attempt)."""
    by_cluster: dict[str, list[str]] = {}
    for cluster, attempt in confirmed:
        by_cluster.setdefault(cluster, []).append(attempt)
    return [
        ledger.UsageConfirmed(cluster=cluster, attempts=tuple(attempts[start : start + CONFIRMED_MAX]))
        for cluster, attempts in by_cluster.items()
        for start in range(0, len(attempts), CONFIRMED_MAX)
    ]


def standing(cluster: str, taken: Round, account: Account, usage_revision: int, counted_grants: int) -> ledger.UsageStanding:
    """One budget's line of a round."""
    return ledger.UsageStanding(
        cluster=cluster,
        budget=account.budget,
        as_of_ms=taken.as_of_ms,
        usage_revision=usage_revision,
        tree_revision=taken.tree_revision,
        counted_grants=counted_grants,
        charged_gpu_ms=account.charged_gpu_ms,
        held_gpu_ms=account.held_gpu_ms,
        entitlement_gpu_ms=account.entitlement_gpu_ms,
        available_gpus=taken.available_gpus,
    )


def budget_usage(row: InUse, as_of_ms: Ms) -> ledger.BudgetUsage:
    """What viewers hear of one budget's use."""
    return ledger.BudgetUsage(as_of_ms=as_of_ms, **row._asdict())


def posting(number: int, row: Posting) -> ledger.Posting:
    """A posting for people and audits."""
    return ledger.Posting(
        number=number,
        attempt=row.attempt,
        replica=row.replica,
        epoch=row.epoch,
        from_ms=row.from_ms,
        to_ms=row.to_ms,
        gpus=row.gpus,
        budget=row.budget,
        amount_gpu_ms=row.amount_gpu_ms,
    )


def fault(row: FaultRow) -> ledger.FaultView:
    """A fault for people."""
    return ledger.FaultView(
        what=row.what,
        code=row.code,
        sentence=row.sentence[:SENTENCE_MAX],
        excess_gpu_ms=row.excess_gpu_ms,
        most_excess_gpu_ms=row.most_excess_gpu_ms,
        times=row.times,
        first_at_ms=row.first_at_ms,
        last_at_ms=row.last_at_ms,
        last_message=row.last_event,
    )


def books(row: Books) -> ledger.BucketBooks:
    """One step of the books."""
    return ledger.BucketBooks(
        from_ms=row.from_ms,
        installed_gpu_ms=row.installed,
        available_gpu_ms=row.available,
        allocated_gpu_ms=row.allocated,
        unallocated_gpu_ms=row.unallocated,
        starting_gpu_ms=row.starting,
        unknown_gpu_ms=row.unknown,
        idle_gpu_ms=row.idle,
    )
