"""What admission's messages would tell the preemptor, handed over as values: a claim, and the cluster at one instant.

Never decides anything.
"""

from collections.abc import Callable

from allmende.admission.model.books import Books
from allmende.admission.model.values import Attempt, Claim
from allmende.admission.rules.standings import Standings
from allmende.preemptor import model as preemptor
from allmende.proto.units import Ms

# Who is not a batch of the bus has no fence: there is one writer, and it never changes.
FENCE = 1


def claim_of(claim: Claim) -> preemptor.Claim:
    """A claim as the preemptor gets it."""
    return preemptor.Claim(
        cluster=claim.cluster,
        claim=claim.claim,
        job=claim.job,
        budget=claim.budget,
        replicas=claim.replicas,
        gpus_per_replica=claim.gpus_per_replica,
        gpu_model=claim.gpu_model,
        slice_ms=claim.slice_ms,
        hold_gpu_ms=claim.hold_gpu_ms,
        priority=claim.priority,
        newest_grant_seq=claim.newest_grant_seq,
        fence=FENCE,
        tree_revision=claim.tree_revision,
        usage_revision=claim.usage_revision,
        avoid_nodes=claim.avoid,
        reserved_nodes=tuple(part.node for part in claim.reserved),
    )


def snapshot_of(
    books: Books, cluster: str, now_ms: Ms, usage_revision: int, saved_at_ms: Callable[[Attempt], Ms | None]
) -> preemptor.Snapshot:
    """The cluster as the preemptor knows it. `saved_at_ms`: the last save that an attempt's agent has reported, None: none.

    The books must have a tree.
    """
    tree = books.tree
    assert tree is not None
    promised: dict[str, int] = {}
    planned: list[tuple[str, int]] = []
    for claim in books.claims_on(cluster):
        for node, gpus in claim.earmarks().items():
            promised[node] = promised.get(node, 0) + gpus
        if claim.plan is not None:
            planned.append((claim.budget, claim.hold_gpu_ms))
    return preemptor.Snapshot(
        cluster=cluster,
        now_ms=now_ms,
        nodes=tuple(preemptor.Node(node.node, node.healthy, node.gpu_model, True) for node in books.nodes.values()),
        attempts=tuple(_attempt(books, attempt, saved_at_ms(attempt)) for attempt in books.attempts.values()),
        promised=promised,
        paths=tree.paths,
        standings=Standings(books, cluster).with_holds(planned).now,
        tree_revision=tree.revision,
        usage_revision=usage_revision,
    )


def _attempt(books: Books, attempt: Attempt, saved_ms: Ms | None) -> preemptor.Attempt:
    replicas = sum(part.replicas for part in attempt.placement)
    return preemptor.Attempt(
        attempt=attempt.attempt,
        job=attempt.job,
        budget=attempt.budget,
        held=tuple(attempt.held().items()),
        replicas=replicas,
        gpus_per_replica=attempt.gpus_per_replica,
        priority=attempt.priority,
        started_at_ms=attempt.started_at_ms,
        protected_until_ms=attempt.protected_until_ms,
        saved_at_ms=() if saved_ms is None else (saved_ms,) * replicas,
        leaving=attempt.plan is not None or attempt.stop is not None,
        idle=attempt.attempt in books.idle,
        evictions=books.jobs[attempt.job].evictions if attempt.job in books.jobs else 0,
    )
