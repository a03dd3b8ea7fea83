"""The answer to a claim: a plan, or the reason why there is none. One call, one value; nothing is decided again later.

Never plans a victim inside its slice: `assert_lawful` holds every plan against that before anything is committed.
"""

from collections.abc import Iterable

from allmende.preemptor.errors import InvariantBroken
from allmende.preemptor.model import Claim, Decision, Infeasible, Node, Planned, Policy, Snapshot, Victim
from allmende.preemptor.rules import displace, rooms, sentences
from allmende.preemptor.rules.displace import Displaceable, Sorted
from allmende.preemptor.rules.search import Candidate, Wanted, after, cheapest_victims, cost_of, give_back, on_nodes
from allmende.proto.order import Comparison, spared
from allmende.proto.placement import place
from allmende.proto.standing import Ratio, with_holds
from allmende.proto.units import Ms

# What one `ClaimAnswered` can name. A gang that needs more evictions than this waits for slices to end by themselves.
MAX_VICTIMS = 300
# A placement that names more nodes would not fit a message: `ClaimAnswered.placement` has this bound.
MAX_NODES = 1_024


def judge(snapshot: Snapshot, claim: Claim, policy: Policy) -> Decision:
    """Answer one claim on one snapshot (contract §7).

    Raises:
        KeyError: the claimant's budget has no path or standing; the caller waits until it has.
    """
    nodes = rooms.usable(snapshot, claim)
    free = rooms.free_by_node(snapshot, nodes)
    groups = displace.sort_attempts(snapshot, claim, nodes, policy)
    candidates = _candidates(snapshot, groups, policy)
    wanted = Wanted(claim.replicas, claim.gpus_per_replica)
    if claim.reserved_nodes:
        found = _whoever_is_left(free, candidates, wanted)
    else:
        found = cheapest_victims(free, candidates, wanted, policy.search_steps)
    if found is None:
        return _nearest_miss(snapshot, claim, policy, nodes, free, groups)
    if not claim.reserved_nodes and (dear := _too_dear(snapshot, claim, policy, groups, found)) is not None:
        return dear
    if len(found) > MAX_VICTIMS:
        return Infeasible("too_many_victims", f"{len(found)} attempts would have to leave; a plan evicts at most {MAX_VICTIMS}")
    return _plan(snapshot, claim, policy, nodes, free, groups, found)


def _whoever_is_left(free: dict[str, int], candidates: list[Candidate], wanted: Wanted) -> tuple[Candidate, ...] | None:
    """On gathered nodes there is nothing to choose: all who are needed go, and whoever is not needed stays."""
    if rooms.capacity(after(free, candidates), wanted.gpus_per_replica) < wanted.replicas:
        return None
    return give_back(free, [on_nodes(candidate, free) for candidate in candidates], wanted)


def _too_dear(snapshot: Snapshot, claim: Claim, policy: Policy, groups: Sorted, found: tuple[Candidate, ...]) -> Infeasible | None:
    """Each victim may be worth its loss and all together not: then the claim waits until some of them have saved."""
    gone = {candidate.attempt for candidate in found}
    victims = [
        each
        for each in groups.displaceable
        if each.attempt.attempt in gone and each.rule not in (displace.UNALLOCATED, displace.IDLE)
    ]
    losses = [(each.attempt.lost_gpu_ms(snapshot.now_ms), each.attempt.courtesy_gpu_ms) for each in victims]
    lost = sum(loss for loss, courtesy in losses if loss <= courtesy)
    if not spared(lost, lost, claim.hold_gpu_ms, policy.waste_ppm):
        return None
    return Infeasible("costs_too_much", sentences.too_dear(claim, lost, policy.waste_ppm))


def _candidates(snapshot: Snapshot, groups: Sorted, policy: Policy) -> list[Candidate]:
    ranks = displace.most_over_served_first(snapshot, groups.displaceable)
    result = []
    for attempt, _, _ in groups.displaceable:
        rank = None if attempt.budget is None else ranks[attempt.budget]
        lost = attempt.lost_gpu_ms(snapshot.now_ms) + attempt.evictions * policy.bother_ms * attempt.gpus
        cost = cost_of(attempt.gpus, rank, lost, len(ranks), loss_first=policy.loss_first)
        result.append(Candidate(attempt.attempt, attempt.held, cost))
    return result


def _plan(
    snapshot: Snapshot,
    claim: Claim,
    policy: Policy,
    nodes: dict[str, Node],
    free: dict[str, int],
    groups: Sorted,
    found: tuple[Candidate, ...],
) -> Decision:
    gone = {candidate.attempt for candidate in found}
    victims = tuple(_victim(each, claim, policy, snapshot.now_ms) for each in groups.displaceable if each.attempt.attempt in gone)
    for victim in victims:
        for node, gpus in victim.attempt.held:
            if node in free:
                free[node] += gpus
    slice_ends_ms = snapshot.now_ms + claim.slice_ms
    now_free = rooms.free_now(snapshot, nodes)
    # What is free already comes before room that is only on its way.
    placement = place(rooms.rooms(snapshot, nodes, now_free, gone), claim.replicas, claim.gpus_per_replica, slice_ends_ms)
    coming = placement is None
    if victims or placement is None:
        placement = place(rooms.rooms(snapshot, nodes, free, gone), claim.replicas, claim.gpus_per_replica, slice_ends_ms)
    if placement is None:
        raise InvariantBroken(f"claim {claim.claim} does not fit after its own plan")
    if len(placement) > MAX_NODES:
        return Infeasible(
            "too_many_nodes", f"the job would spread over {len(placement)} nodes; a placement names at most {MAX_NODES}"
        )
    code = "makes_room" if victims else "room_is_coming" if coming else "fits_now"
    return Planned(code, sentences.why_planned(victims, coming), victims, placement)


def _victim(candidate: Displaceable, claim: Claim, policy: Policy, now_ms: Ms) -> Victim:
    attempt = candidate.attempt
    grace_ms = policy.unallocated_grace_ms if attempt.budget is None else policy.grace_ms
    sentence = sentences.why_evicted(candidate, claim)
    return Victim(attempt, candidate.rule, sentence, candidate.compared, attempt.lost_gpu_ms(now_ms), grace_ms)


def _nearest_miss(
    snapshot: Snapshot, claim: Claim, policy: Policy, nodes: dict[str, Node], free: dict[str, int], groups: Sorted
) -> Infeasible:
    """Loosen one rule after the other; the first that would have let the job in is the reason."""
    size = claim.gpus_per_replica
    room = dict(free)
    fit = _capacity_without(room, size, (each.attempt.held for each in groups.displaceable))
    lawful = sentences.fits_at_most(claim, fit)
    fit = _capacity_without(room, size, (attempt.held for attempt, _ in groups.spared))
    if fit >= claim.replicas:
        attempt, comparison = min(groups.spared, key=lambda pair: (_miss(pair[1]), pair[0].attempt))
        code = "ratio_within_margin" if comparison is not None else "priority_not_higher"
        if attempt.budget != claim.budget and comparison is None:
            code = "standing_unknown"
        if comparison is not None and not _tier_allows(snapshot, claim, attempt.budget):
            code = "claimant_over_budget"
        return Infeasible(code, f"{lawful}; {sentences.spared_attempt(claim, attempt, comparison)}")
    fit = _capacity_without(room, size, (attempt.held for attempt in groups.unsaved))
    if fit >= claim.replicas:
        return Infeasible("unsaved_work", f"{lawful}; {sentences.unsaved(len(groups.unsaved), policy.waste_ppm)}")
    fit = _capacity_without(room, size, (attempt.held for attempt in groups.protected))
    if fit >= claim.replicas:
        code = "slices_running" if groups.displaceable or groups.spared else "nothing_interruptible"
        return Infeasible(code, f"{lawful}; {sentences.count(len(groups.protected), 'attempt')} there inside the slice")
    if not nodes:
        model = f" with {claim.gpu_model} GPUs" if claim.gpu_model else ""
        return Infeasible("does_not_fit", f"no node{model} is up and heard of")
    kept = f", {sum(snapshot.promised.values())} GPUs are promised to other claims" if snapshot.promised else ""
    return Infeasible("does_not_fit", f"{sentences.fits_at_most(claim, fit)} even if everybody left{kept}")


def _capacity_without(room: dict[str, int], gpus_per_replica: int, leaving: Iterable[tuple[tuple[str, int], ...]]) -> int:
    for held in leaving:
        for node, gpus in held:
            if node in room:
                room[node] += gpus
    return rooms.capacity(room, gpus_per_replica)


def _miss(comparison: Comparison | None) -> tuple[int, Ratio]:
    """Smaller is nearer: among comparisons the one with the highest ratio of the victim."""
    if comparison is None:
        return (1, Ratio(0, 1))
    # `1 / ratio`, so that the highest comes first; an unused victim is the farthest.
    return (0, Ratio(comparison.victim_before.entitlement, comparison.victim_before.used))


def _tier_allows(snapshot: Snapshot, claim: Claim, victim_budget: str | None) -> bool:
    standings = snapshot.standings
    if standings[claim.budget].guaranteed:
        return True
    return victim_budget is not None and victim_budget in standings and not standings[victim_budget].guaranteed


def carried_on(snapshot: Snapshot, claim: Claim, planned: Planned) -> Snapshot:
    """The snapshot for the next claim at the same instant: victims leaving, room promised, the claimant's hold counted.

    The victims' standings stay: within one revision an eviction never makes its victim look poorer.
    """
    gone = {victim.attempt.attempt for victim in planned.victims}
    promised = dict(snapshot.promised)
    for node, replicas in planned.placement:
        promised[node] = promised.get(node, 0) + replicas * claim.gpus_per_replica
    return snapshot._replace(
        attempts=tuple(each._replace(leaving=True) if each.attempt in gone else each for each in snapshot.attempts),
        promised=promised,
        standings=with_holds(snapshot.standings, [(snapshot.paths[claim.budget], claim.hold_gpu_ms)]),
    )


def assert_lawful(planned: Planned, ordered_at_ms: Ms, now_ms: Ms) -> None:
    """Nobody is evicted inside a slice: not by the instant on the order, and not by the preemptor's own clock.

    Raises:
        InvariantBroken: a victim is protected; the process must end before anything is committed.
    """
    for victim in planned.victims:
        attempt = victim.attempt
        if not (attempt.interruptible(ordered_at_ms) and attempt.interruptible(now_ms)):
            raise InvariantBroken(
                f"attempt {attempt.attempt} is protected until {attempt.protected_until_ms}:"
                f" ordered at {ordered_at_ms}, now {now_ms}"
            )
