"""Messages into rows, and decisions into messages. Pure; never decides, never reads a clock.

One batch of events becomes one `Heard`: each fact once, however often it came, so that a batch is a handful of statements.
"""

from collections.abc import Iterable, Sequence

import msgspec

from allmende.preemptor.model import (
    Attempt,
    Claim,
    ClaimRow,
    Closed,
    Cordon,
    Decision,
    Departure,
    Drain,
    Expired,
    GrantRow,
    Heard,
    Mode,
    NodeRow,
    OrderedOut,
    Planned,
    Policy,
    ProtectionRow,
    Snapshot,
    StandingRow,
    Stuck,
    Victim,
    Word,
)
from allmende.preemptor.rules import draining
from allmende.proto import admission, agent, budget, ledger, lost, policy, preemptor
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Envelope
from allmende.proto.message import Message
from allmende.proto.order import Comparison
from allmende.proto.units import Ms, format_duration

_encode = msgspec.json.Encoder(order="deterministic").encode
_budgets = msgspec.json.Decoder(budget.Budget)

# Room for the envelope around a body.
ENVELOPE_BYTES = 2_048


def hear(messages: Iterable[tuple[Envelope[Message], int]]) -> Heard:
    """Sort the messages of a batch, each with its number in its stream."""
    heard = Heard()
    for envelope, stream_seq in messages:
        body = envelope.body
        heard.clusters.update([cluster] if isinstance(cluster := getattr(body, "cluster", None), str) else [])
        match body:
            case agent.UsageTick():
                _tick(heard, body, envelope.sent_at_ms)
            case agent.NodeReported():
                _node(heard, body, envelope.sent_at_ms)
            case agent.GpuFreed():
                for freed in body.nodes:
                    key = (body.cluster, body.attempt, freed.node)
                    heard.freed[key] = max(heard.freed.get(key, 0), freed.gpus)
            case agent.AttemptEnded():
                heard.ended.add((body.cluster, body.attempt))
            case admission.JobGranted():
                _grant(heard, body)
            case admission.AttemptProtected():
                row = ProtectionRow(body.cluster, body.attempt, body.job, body.budget, body.started_at_ms, body.protected_until_ms)
                heard.protected.setdefault((body.cluster, body.attempt), row)
            case policy.PolicyChanged():
                mode = Mode(body.revision, body.policy.mode == "enforce")
                heard.modes[body.cluster] = max(mode, heard.modes.get(body.cluster, mode))
            case admission.NodeClosed():
                closed = Closed(body.revision, body.newest_grant_seq)
                heard.closed[body.cluster, body.node] = max(closed, heard.closed.get((body.cluster, body.node), closed))
            case lost.NodeDeclaredLost():
                last = (body.reported_at_ms, body.reported_seq)
                heard.lost_nodes[body.cluster, body.node] = max(last, heard.lost_nodes.get((body.cluster, body.node), last))
                heard.lost |= {(body.cluster, each.attempt) for each in body.attempts}
            case admission.ClaimRaised():
                _claim(heard, body, stream_seq, envelope.id)
            case admission.ClaimWithdrawn():
                heard.ended_claims.add((body.cluster, body.claim))
            case ledger.UsageStanding():
                _standing(heard, body)
            case budget.BudgetChanged():
                definition = None if body.definition is None else _encode(body.definition).decode()
                heard.changes.setdefault((body.budget, body.revision), definition)
            case budget.RevisionComplete():
                heard.revisions.setdefault(body.revision, (body.budgets, body.digest))
    return heard


def _tick(heard: Heard, body: agent.UsageTick, sent_at_ms: Ms) -> None:
    node = (body.cluster, body.node)
    heard.signs[node] = max(heard.signs.get(node, 0), sent_at_ms)
    for counter in body.counters:
        if counter.checkpoint_at_ms is not None:
            key = (body.cluster, counter.attempt, counter.replica)
            heard.checkpoints[key] = max(heard.checkpoints.get(key, 0), counter.checkpoint_at_ms)


def _node(heard: Heard, body: agent.NodeReported, sent_at_ms: Ms) -> None:
    key = (body.cluster, body.node)
    row = NodeRow(body.cluster, body.node, body.at_ms, body.seq, body.healthy_gpus, body.gpu_model, body.cordon, sent_at_ms)
    before = heard.nodes.get(key)
    if before is None or (before.at_ms, before.seq) < (row.at_ms, row.seq):
        heard.nodes[key] = row
    heard.signs[key] = max(heard.signs.get(key, 0), sent_at_ms)


def _grant(heard: Heard, body: admission.JobGranted) -> None:
    key = (body.cluster, body.attempt)
    if key not in heard.grants:
        replicas = sum(placed.replicas for placed in body.placement)
        heard.grants[key] = GrantRow(
            body.cluster,
            body.attempt,
            body.job,
            body.budget,
            replicas,
            body.gpus_per_replica,
            body.priority,
            body.hold_gpu_ms,
            body.grant_seq,
        )
        for placed in body.placement:
            held = (*key, placed.node)
            heard.held[held] = heard.held.get(held, 0) + placed.replicas * body.gpus_per_replica
    heard.fences[body.cluster] = max(heard.fences.get(body.cluster, 0), body.fence)
    if body.claim is not None:
        # The claimant holds its GPUs itself from now on.
        heard.ended_claims.add((body.cluster, body.claim))


def _claim(heard: Heard, body: admission.ClaimRaised, stream_seq: int, message: str) -> None:
    claim = Claim(
        cluster=body.cluster,
        claim=body.claim,
        job=body.job,
        budget=body.budget,
        replicas=body.replicas,
        gpus_per_replica=body.gpus_per_replica,
        gpu_model=body.gpu_model,
        slice_ms=body.slice_ms,
        hold_gpu_ms=body.hold_gpu_ms,
        priority=body.priority,
        newest_grant_seq=body.newest_grant_seq,
        fence=body.fence,
        tree_revision=body.tree_revision,
        usage_revision=body.usage_revision,
        avoid_nodes=body.avoid_nodes,
        reserved_nodes=body.reserved_nodes,
    )
    heard.claims.setdefault((body.cluster, body.claim), ClaimRow(claim, stream_seq, message))
    heard.fences[body.cluster] = max(heard.fences.get(body.cluster, 0), body.fence)


def _standing(heard: Heard, body: ledger.UsageStanding) -> None:
    key = (body.cluster, body.budget)
    used = body.charged_gpu_ms + body.held_gpu_ms
    row = StandingRow(body.cluster, body.budget, used, body.entitlement_gpu_ms, body.usage_revision, body.counted_grants)
    if key not in heard.standings or heard.standings[key].usage_revision < row.usage_revision:
        heard.standings[key] = row


def budgets_of(definitions: Iterable[str]) -> dict[str, budget.Budget]:
    """Stored definitions as budgets by name."""
    return {it.budget: it for it in (_budgets.decode(text) for text in definitions)}


def answered(snapshot: Snapshot, claim: Claim, decision: Decision, plan: str | None) -> preemptor.ClaimAnswered:
    """The one answer to a claim."""
    planned = decision if isinstance(decision, Planned) else None
    return preemptor.ClaimAnswered(
        cluster=claim.cluster,
        claim=claim.claim,
        job=claim.job,
        outcome="planned" if planned else "infeasible",
        code=decision.code,
        sentence=decision.sentence,
        plan=plan,
        victims=tuple(_victim(victim.attempt, victim.lost_gpu_ms) for victim in planned.victims) if planned else (),
        placement=tuple(admission.Placed(node=it.node, replicas=it.replicas) for it in planned.placement) if planned else (),
        tree_revision=snapshot.tree_revision,
        usage_revision=snapshot.usage_revision,
    )


def _victim(attempt: Attempt, lost_gpu_ms: int) -> preemptor.Victim:
    return preemptor.Victim(
        attempt=attempt.attempt, job=attempt.job, budget=attempt.budget, gpus=attempt.gpus, lost_gpu_ms=lost_gpu_ms
    )


def ordered(snapshot: Snapshot, claim: Claim, victim: Victim, plan: str) -> preemptor.EvictionOrdered:
    """The order to evict one victim, at the snapshot's instant."""
    attempt = victim.attempt
    return preemptor.EvictionOrdered(
        cluster=claim.cluster,
        attempt=attempt.attempt,
        job=attempt.job,
        plan=plan,
        claim=claim.claim,
        claimant_job=claim.job,
        ordered_at_ms=snapshot.now_ms,
        protected_until_ms=None if attempt.budget is None else attempt.protected_until_ms,
        grace_ms=victim.grace_ms,
        rule=victim.rule,
        sentence=victim.sentence,
        compared=None if victim.compared is None else _compared(victim.compared),
        tree_revision=snapshot.tree_revision,
        usage_revision=snapshot.usage_revision,
    )


def _compared(it: Comparison) -> preemptor.Compared:
    return preemptor.Compared(
        claimant_budget=it.claimant_budget,
        victim_budget=it.victim_budget,
        claimant_used_gpu_ms=it.claimant_after.used,
        claimant_entitlement_gpu_ms=it.claimant_after.entitlement,
        victim_used_gpu_ms=it.victim_before.used,
        victim_entitlement_gpu_ms=it.victim_before.entitlement,
        margin_ppm=it.margin_ppm,
    )


def expired(slice_: Expired) -> preemptor.SliceExpired:
    """The word that a slice has passed."""
    return preemptor.SliceExpired(
        cluster=slice_.cluster, attempt=slice_.attempt, job=slice_.job, budget=slice_.budget, expired_at_ms=slice_.due_at_ms
    )


def cordon_of(caller: str, request: preemptor.CordonNodes, now_ms: Ms) -> Cordon:
    """An operator's wish as a value."""
    return Cordon(
        by=caller,
        reason=request.reason,
        drain=request.drain,
        from_ms=now_ms if request.from_ms is None else request.from_ms,
        until_ms=request.until_ms,
        deadline_ms=request.deadline_ms,
    )


def node_word(cluster: str, drain: Drain, word: Word, now_ms: Ms) -> Message:
    """What is said of a node, as its next revision."""
    terms, revision = word.terms, drain.revision + 1
    if word.kind == draining.RETURNED:
        return preemptor.NodeReturned(
            cluster=cluster, node=drain.node, revision=revision, by=terms.by, reason=terms.reason, returned_at_ms=now_ms
        )
    if word.kind == draining.DRAINED:
        return preemptor.NodeDrained(
            cluster=cluster,
            node=drain.node,
            revision=revision,
            by=terms.by,
            reason=terms.reason,
            cordoned_at_ms=terms.from_ms,
            drained_at_ms=now_ms,
        )
    return preemptor.NodeCordoned(
        cluster=cluster,
        node=drain.node,
        revision=revision,
        by=terms.by,
        reason=terms.reason,
        drain=terms.drain,
        from_ms=terms.from_ms,
        until_ms=terms.until_ms,
        deadline_ms=terms.deadline_ms,
    )


def ordered_out(cluster: str, it: OrderedOut, plan: str, now_ms: Ms, revisions: tuple[int, int]) -> preemptor.EvictionOrdered:
    """The order to leave a drained node. `revisions`: of tree and usage, as far as they were heard."""
    return preemptor.EvictionOrdered(
        cluster=cluster,
        attempt=it.attempt.attempt,
        job=it.attempt.job,
        plan=plan,
        ordered_at_ms=now_ms,
        protected_until_ms=None if it.attempt.budget is None else it.attempt.protected_until_ms,
        grace_ms=it.grace_ms,
        rule=draining.DRAIN,
        sentence=it.sentence,
        tree_revision=revisions[0],
        usage_revision=revisions[1],
    )


# Of one node; the others are counted. A node with so many takes 6 KiB at most, so that one always fits.
OCCUPANTS_SHOWN = 16
# A reply has at most 64 KiB; the rest is for the frame around the nodes.
PAGE_BYTES = 56 * 1024


def drain_page(
    cluster: str, drains: Sequence[Drain], attempts: Sequence[Attempt], policy: Policy, now_ms: Ms
) -> preemptor.DrainPage:
    """Where nodes stand, as many as fit a reply. Those that nobody wants cordoned are left out."""
    nodes: list[preemptor.NodeDrain] = []
    left = PAGE_BYTES
    for drain in drains:
        terms = draining.terms_of(drain, now_ms)
        if terms is None:
            continue
        here = [each for each in attempts if any(name == drain.node and gpus for name, gpus in each.held)]
        node = _node_drain(drain, terms, here, policy, now_ms)
        left -= len(_encode(node)) + 1
        if left < 0:
            return preemptor.DrainPage(cluster=cluster, as_of_ms=now_ms, nodes=tuple(nodes), next_after=nodes[-1].node)
        nodes.append(node)
    return preemptor.DrainPage(cluster=cluster, as_of_ms=now_ms, nodes=tuple(nodes))


def _node_drain(drain: Drain, terms: Cordon, here: Sequence[Attempt], policy: Policy, now_ms: Ms) -> preemptor.NodeDrain:
    occupants = [_occupant(drain.node, each, terms, policy, now_ms) for each in here]
    last = [each.leaves_by_ms for each in occupants]
    known = [each for each in last if each is not None]
    empty_by_ms = max(known, default=max(now_ms, terms.from_ms)) if terms.drain and len(known) == len(last) else None
    return preemptor.NodeDrain(
        node=drain.node,
        state=draining.state_of(drain, terms, now_ms),
        by=terms.by,
        reason=terms.reason,
        drain=terms.drain,
        from_ms=terms.from_ms,
        until_ms=terms.until_ms,
        deadline_ms=terms.deadline_ms,
        agent_reason=None if drain.agent is None else drain.agent.reason,
        empty_by_ms=empty_by_ms,
        occupants=tuple(occupants[:OCCUPANTS_SHOWN]),
        more_occupants=max(0, len(occupants) - OCCUPANTS_SHOWN),
    )


def _occupant(node: str, attempt: Attempt, terms: Cordon, policy: Policy, now_ms: Ms) -> preemptor.Occupant:
    leaves_by_ms = draining.leaves_by_ms(attempt, terms, policy, now_ms) if terms.drain else None
    late = terms.deadline_ms is not None and (leaves_by_ms is None or leaves_by_ms > terms.deadline_ms)
    return preemptor.Occupant(
        attempt=attempt.attempt,
        job=attempt.job,
        budget=attempt.budget,
        gpus=sum(gpus for name, gpus in attempt.held if name == node),
        state=draining.stage_of(attempt, now_ms),
        leaves_by_ms=leaves_by_ms,
        late=late,
    )


def departure(order: preemptor.EvictionOrdered, allowance_ms: Ms) -> Departure:
    """By when the agent should have said that the attempt is gone."""
    due_at_ms = order.ordered_at_ms + order.grace_ms + allowance_ms
    return Departure(order.cluster, order.attempt, order.job, order.plan, due_at_ms)


def overdue(stuck: Stuck, now_ms: Ms) -> preemptor.EvictionOverdue:
    """The word that somebody should be gone and is not."""
    late = stuck.departure
    gpus = sum(each for _, each in stuck.held)
    silent = f"; {', '.join(stuck.silent[:8])} give no sign of life" if stuck.silent else ""
    ago = format_duration(now_ms - late.due_at_ms)
    sentence = f"told to leave by plan {late.plan} and due {ago} ago, it still holds {gpus} GPUs{silent}"
    return preemptor.EvictionOverdue(
        cluster=late.cluster,
        attempt=late.attempt,
        job=late.job,
        plan=late.plan,
        due_at_ms=late.due_at_ms,
        silent=bool(stuck.silent),
        nodes=tuple(preemptor.HeldGpus(node=node, gpus=each) for node, each in stuck.held[:1_024]),
        sentence=sentence[:1_000],
    )


def fits(body: Message) -> bool:
    """True when the body fits a message with its envelope."""
    return len(_encode(body)) <= MAX_MESSAGE_BYTES - ENVELOPE_BYTES


def texts(bodies: Sequence[Message]) -> list[str]:
    """Bodies as they are kept with a plan."""
    return [_encode(body).decode() for body in bodies]
