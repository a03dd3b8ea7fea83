"""Why a job waits: all its blockers in numbers, and the page of the queue in its order (contract §5 and §9).

Pure. Reads what the last pass saw; never decides anew.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.values import Decided, Job, Reason, Reserved, Terms
from allmende.admission.rules import closing
from allmende.admission.rules.cordons import closed_now
from allmende.admission.rules.line import AllocatedLine, Next, UnallocatedLine, in_order
from allmende.admission.rules.passing import First, Outlook, not_ready
from allmende.admission.rules.vetting import vet
from allmende.proto.standing import Standing
from allmende.proto.units import Ms, format_duration

Tier = Literal["guaranteed", "surplus", "unallocated", "unknown"]

# A job that may run anywhere would otherwise repeat itself for every cluster; a message holds 20 blockers.
CLUSTERS_SHOWN = 4


class Waiting(NamedTuple):
    """One waiting job in the order of the queue, with the standing that sorts it."""

    job: Job
    tier: Tier
    standing: Standing | None


def percent(standing: Standing) -> str:
    """A ratio for people, rounded down to a tenth of a percent."""
    if not standing.entitlement:
        return "no entitlement"
    tenths = standing.used * 1_000 // standing.entitlement
    return f"{tenths // 10}.{tenths % 10} %"


def blockers(job: Job, books: Books, outlooks: Mapping[str, Outlook], now_ms: Ms, terms: Terms) -> tuple[Reason, ...]:
    """Everything that keeps a waiting job from starting, and what would lift it. Empty: nothing does."""
    if job.state != "queued":
        return ()
    if job.held:
        return (Reason("held", "it is held: its owner or an operator must release it (`allmende release`)"),)
    if not job.accepted:
        return vet(job, books, now_ms, terms).unknown
    found = [Reason("not_ready", sentence) for sentence in not_ready(books)]
    may, leaf = books.partition(job)
    if not may and books.tree is not None:
        found.append(Reason("budget_not_valid", closing.not_charged(job.budget, books.tree)))
    if job.not_before_ms > now_ms:
        left = format_duration(job.not_before_ms - now_ms)
        found.append(Reason("backing_off", f"it was evicted while unallocated and may start again in {left}"))
    if job.avoid:
        sentence = f"{len(job.avoid)} nodes could not start it and are avoided for {format_duration(job.avoid_until_ms - now_ms)}"
        found.append(Reason("avoiding_nodes", sentence))
    if job.claim is not None and (claim := books.claims.get(job.claim)) is not None:
        how = f"plan {claim.plan} makes it" if claim.plan is not None else "the preemptor has not answered yet"
        found.append(Reason("claim_open", f"room was asked for on {claim.cluster}: {how}"))
    if job.reserved is not None:
        found.append(_promised(job.reserved, now_ms))
    clusters = [name for name in outlooks if not job.clusters or name in job.clusters]
    for cluster in sorted(clusters)[:CLUSTERS_SHOWN]:
        found.extend(_on_cluster(job, leaf, outlooks[cluster], books, now_ms, terms))
    return tuple(found[:20])


def _promised(reserved: Reserved, now_ms: Ms) -> Reason:
    nodes = len(reserved.placement)
    left_ms = reserved.by_ms - now_ms
    when = f"no later than in {format_duration(left_ms)}" if left_ms >= 0 else f"{format_duration(-left_ms)} late"
    leave_ms = reserved.order_ms - now_ms
    leave = "whoever was left there has been"
    if leave_ms > 0:
        leave = f"in {format_duration(leave_ms)} whoever is past his slice there is"
    whose = f"{nodes} node{'s of' if nodes > 1 else ' of'} {reserved.cluster} {'are' if nodes > 1 else 'is'} gathered for it"
    return Reason("reserved", f"{whose}, and it starts {when}: {leave} told to leave")


_OVER_BUDGET = {
    "queue": "it starts only on GPUs that nobody ahead can use, until its use falls below its entitlement",
    "unallocated": "it may start unallocated on GPUs that nobody else can use, if it is resumable",
    "refuse": "it waits until its use falls below its entitlement",
}


def _behind(job: Job, first: First, cluster: str, now_ms: Ms, start_ms: Ms) -> list[Reason]:
    if first.room_from_ms is None:
        sentence = f"job {first.job} found no room on {cluster}, and its policy lets no allocated job start behind it"
        return [Reason("backfill", sentence)]
    left_ms = max(0, first.room_from_ms - now_ms)
    if job.next_slice_ms <= left_ms - start_ms:
        return []
    start = f", and its start may take {format_duration(start_ms)}" if job.next_slice_ms < left_ms else ""
    sentence = (
        f"job {first.job} found no room on {cluster} and may have some in {format_duration(left_ms)}: only slices that end by then "
        f"start behind it, and this one is {format_duration(job.next_slice_ms)}{start}"
    )
    return [Reason("backfill", sentence)]


def _on_cluster(job: Job, leaf: str | None, outlook: Outlook, books: Books, now_ms: Ms, terms: Terms) -> list[Reason]:
    found: list[Reason] = []
    standings, policy = outlook.standings, outlook.limits.policy
    if policy.paused:
        found.append(Reason("paused", f"{outlook.cluster} is paused: nothing new starts there until an operator resumes it"))
    elif policy.mode == "observe":
        sentence = f"{outlook.cluster} is in mode observe: it is only said what would start; `why` shows it"
        found.append(Reason("observed", sentence))
    barred = outlook.limits.bar(leaf, job)
    if barred is not None:
        found.append(barred)
    elif leaf is not None and outlook.first is not None and job.job != outlook.first.job:
        found.extend(_behind(job, outlook.first, outlook.cluster, now_ms, terms.start_timeout_ms))
    if job.shape in outlook.missed:
        fit = outlook.missed[job.shape]
        sentence = (
            f"needs {job.replicas} x {job.gpus_per_replica} GPUs on {outlook.cluster}; what is free and not earmarked has room for "
            f"{fit} replica{'' if fit == 1 else 's'} of that size"
        )
        found.append(Reason("no_room", sentence))
        found.extend(_cordoned(outlook.cluster, books, now_ms))
    if leaf is None:
        return found
    if not standings.knows(leaf):
        sentence = f"the ledger has not said how budget {leaf} stands on {outlook.cluster}"
        return [*found, Reason("standing_unknown", sentence)]
    standing = standings.now[leaf]
    if not standing.guaranteed:
        sentence = (
            f"budget {leaf} stands at {percent(standing)} ({standing.used} of {standing.entitlement} GPU-ms): over budget, "
            f"{_OVER_BUDGET[policy.over_budget]}"
        )
        found.append(Reason("over_budget", sentence))
    key = standings.key(leaf)
    ahead = sorted(
        (standings.key(other), other)
        for other in books.waiting
        if other is not None and other != leaf and standings.knows(other) and standings.key(other) < key
    )
    if ahead:
        nearest = ", ".join(name for _key, name in reversed(ahead[-3:]))
        where = f"{leaf} ({percent(standing)}) on {outlook.cluster}"
        whose = "1 budget with waiting jobs stands" if len(ahead) == 1 else f"{len(ahead)} budgets with waiting jobs stand"
        sentence = f"{whose} before {where}: {nearest}"
        found.append(Reason("outranked", sentence))
    return found


def _cordoned(cluster: str, books: Books, now_ms: Ms) -> list[Reason]:
    closed = sorted(closed_now(books.cordons.get(cluster, {}), now_ms))
    if not closed:
        return []
    gpus = sum(node.healthy for name in closed if (node := books.nodes.get((cluster, name))) is not None)
    first = books.cordons[cluster][closed[0]]
    why = f"{first.node} is cordoned by {first.by} ({first.reason})"
    if len(closed) == 1:
        return [Reason("nodes_cordoned", f"1 node of {cluster} with {gpus} GPUs takes nothing new: {why}")]
    return [Reason("nodes_cordoned", f"{len(closed)} nodes of {cluster} with {gpus} GPUs take nothing new: {why}, and others")]


def queue(books: Books, outlooks: Mapping[str, Outlook], cluster: str | None) -> list[Waiting]:
    """All waiting jobs of a cluster (None: of the first that knows them) in the order in which they would start if there were room.

    Jobs about which nothing can be decided yet stand at the end, by submission.
    """
    found: dict[str, Waiting] = {}
    for outlook in (outlooks[name] for name in sorted(outlooks) if cluster is None or name == cluster):
        for turn in _order(books, outlook):
            job = books.jobs[turn.job]
            elsewhere = bool(job.clusters) and outlook.cluster not in job.clusters
            if not elsewhere and turn.job not in found:
                found[turn.job] = _waiting(job, turn.leaf, outlook)
    rest = sorted(
        (job for job in books.jobs.values() if job.state == "queued" and job.job not in found),
        key=lambda job: (job.submitted_at_ms, job.job),
    )
    unknown = [Waiting(job, "unknown", None) for job in rest if cluster is None or not job.clusters or cluster in job.clusters]
    return [*found.values(), *unknown]


Rule = Literal["tier", "ratio", "holds", "ancestors", "priority", "inside_leaf", "unallocated"]

_RULES: Mapping[Rule, str] = {
    "tier": "owed time comes before over budget, and both before unallocated",
    "ratio": "its budget has received a smaller part of what it is owed",
    "holds": "once the slices of those before both were counted, its budget stood lower",
    "ancestors": "both are over budget: compared at the children of their lowest common ancestor",
    "priority": "the same budget, and its priority is higher",
    "inside_leaf": "the same budget and priority: whose user has received less comes first, then who submitted first",
    "unallocated": "both unallocated: whose user holds fewer unallocated GPUs comes first, then who submitted first",
}


def rule(before: Waiting, job: Waiting) -> tuple[Rule, str]:
    """By which rule one job stands before another one in `queue`, with a sentence for people (contract §4)."""
    found = _rule(before, job)
    return found, _RULES[found]


def _rule(before: Waiting, job: Waiting) -> Rule:
    if before.tier != job.tier:
        return "tier"
    if before.standing is None or job.standing is None:
        return "unallocated"
    if before.job.budget == job.job.budget:
        return "priority" if before.job.priority > job.job.priority else "inside_leaf"
    if job.tier == "surplus":
        return "ancestors"
    return "ratio" if before.standing.ratio < job.standing.ratio else "holds"


def _order(books: Books, outlook: Outlook) -> list[Next]:
    standings = outlook.standings.with_holds(())

    def hold(turn: Next) -> None:
        job = books.jobs[turn.job]
        if turn.leaf is not None:
            standings.hold(turn.leaf, job.next_slice_ms * job.gpus)

    def no_hold(_turn: Next) -> None:
        return None

    allocated = list(in_order(AllocatedLine(books.waiting, standings), hold))
    return allocated + list(in_order(UnallocatedLine(books.waiting.get(None, {}), books.unallocated_gpus), no_hold))


def _waiting(job: Job, leaf: str | None, outlook: Outlook) -> Waiting:
    if leaf is None:
        return Waiting(job, "unallocated", None)
    standing = outlook.standings.now[leaf]
    return Waiting(job, "guaranteed" if standing.guaranteed else "surplus", standing)


def accepted(job: Job, judged: bool) -> Job:
    """The job as it waits; `judged` False: kept, until all that is needed to judge it is known."""
    return replace(job, accepted=judged)


def submitted(job: Job, now_ms: Ms, warnings: tuple[Reason, ...]) -> Decided:
    """What `why` says first of a job."""
    if job.slice_ms == 0 or job.budget is None:
        charged = "slice 0, charged to nobody" if job.slice_ms == 0 else "without a budget, charged to nobody"
        how = f"unallocated: {charged}"
    else:
        how = f"a slice of {format_duration(job.slice_ms)} charged to {job.budget}"
    warned = "".join(f"; {warning.sentence}" for warning in warnings)
    return Decided(
        job=job.job,
        at_ms=now_ms,
        kind="queued",
        sentence=f"asks for {job.replicas} x {job.gpus_per_replica} GPUs, {how}{warned}"[:1_000],
        numbers={"gpus": job.gpus, "slice_ms": job.slice_ms, "priority": job.priority},
    )
