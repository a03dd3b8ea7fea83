"""Who may be displaced by a claim: contract §7, attempt by attempt. Never asks whether that would help.

An attempt inside its slice is never a candidate; nor is one that is leaving already, or one with a replica on a node that is
silent (its agent could not say that the GPUs are free, so they would be lost to everybody).
"""

from collections.abc import Mapping
from typing import NamedTuple

from allmende.preemptor.model import Attempt, Claim, Node, Policy, Snapshot
from allmende.proto.order import Comparison, LeafKey, leaf_key, may_displace, spared

UNALLOCATED = "unallocated"
LOWER_PRIORITY = "lower_priority"
OVER_SERVED_LEAF = "over_served_leaf"
OVER_SERVED_FAMILY = "over_served_family"
RESERVED = "reserved"
IDLE = "idle"
CLOSED = "budget_closed"


class Displaceable(NamedTuple):
    """An attempt that this claim may lawfully evict. `compared` is set when ratios decided."""

    attempt: Attempt
    rule: str
    compared: Comparison | None


class Sorted(NamedTuple):
    """Every attempt that holds GPUs the claimant could use, by what the contract says about it.

    `spared`: interruptible, but the comparison (None inside one leaf, or where a standing is unknown) forbids it. `unsaved`: the
    law allows it, but too much work would be lost for what the claimant gains.
    """

    displaceable: tuple[Displaceable, ...]
    spared: tuple[tuple[Attempt, Comparison | None], ...]
    unsaved: tuple[Attempt, ...]
    protected: tuple[Attempt, ...]


def sort_attempts(snapshot: Snapshot, claim: Claim, nodes: Mapping[str, Node], policy: Policy) -> Sorted:
    """Sort the attempts that hold GPUs on `nodes`. Order of the result: by attempt id, whatever the order of the snapshot."""
    silent = {node.node for node in snapshot.nodes if not node.heard}
    compared: dict[str, Comparison | None] = {}
    displaceable: list[Displaceable] = []
    kept: list[tuple[Attempt, Comparison | None]] = []
    unsaved: list[Attempt] = []
    protected: list[Attempt] = []
    for attempt in sorted(snapshot.attempts, key=lambda each: each.attempt):
        if attempt.leaving:
            continue
        names = {node for node, gpus in attempt.held if gpus}
        if names.isdisjoint(nodes) or not names.isdisjoint(silent):
            continue
        if not attempt.interruptible(snapshot.now_ms):
            protected.append(attempt)
        elif attempt.budget is None:
            displaceable.append(Displaceable(attempt, UNALLOCATED, None))
        elif claim.reserved_nodes:
            displaceable.append(Displaceable(attempt, RESERVED, None))
        elif attempt.idle:
            displaceable.append(Displaceable(attempt, IDLE, None))
        else:
            rule, comparison = _law(snapshot, claim, attempt, policy, compared)
            if rule is None:
                kept.append((attempt, comparison))
            elif spared(attempt.lost_gpu_ms(snapshot.now_ms), attempt.courtesy_gpu_ms, claim.hold_gpu_ms, policy.waste_ppm):
                unsaved.append(attempt)
            else:
                displaceable.append(Displaceable(attempt, rule, comparison))
    return Sorted(tuple(displaceable), tuple(kept), tuple(unsaved), tuple(protected))


def _law(
    snapshot: Snapshot, claim: Claim, attempt: Attempt, policy: Policy, compared: dict[str, Comparison | None]
) -> tuple[str | None, Comparison | None]:
    """The rule by which an allocated attempt may be displaced (None: by none), and the comparison where ratios decide."""
    assert attempt.budget is not None
    if attempt.budget == claim.budget:
        return (LOWER_PRIORITY if attempt.priority < claim.priority else None), None
    if attempt.budget not in snapshot.paths:
        # It was in the tree when it was granted, and the tree is not older than that: it was closed, and nothing is owed to it.
        return CLOSED, None
    if attempt.budget not in compared:
        compared[attempt.budget] = _compare(snapshot, claim, attempt.budget, policy)
    comparison = compared[attempt.budget]
    allowed = comparison is not None and comparison.allowed
    return (_rule(snapshot, claim) if allowed else None), comparison


def _rule(snapshot: Snapshot, claim: Claim) -> str:
    return OVER_SERVED_LEAF if snapshot.standings[claim.budget].guaranteed else OVER_SERVED_FAMILY


def _compare(snapshot: Snapshot, claim: Claim, victim_budget: str, policy: Policy) -> Comparison | None:
    """None: the victim's budget has no standing yet. Unknown is not a reason to evict."""
    ours, theirs = snapshot.paths[claim.budget], snapshot.paths[victim_budget]
    if any(budget not in snapshot.standings for budget in theirs):
        return None
    return may_displace(ours, claim.hold_gpu_ms, theirs, snapshot.standings, policy.margin_ppm)


def most_over_served_first(snapshot: Snapshot, displaceable: tuple[Displaceable, ...]) -> dict[str, int]:
    """The leaves of the allocated candidates, ranked: 0 is the most over-served.

    The order is admission's order of leaves backwards: whoever would be served last gives up first. With two different orders,
    eviction and admission would chase each other. A budget that was closed is served no more, so it comes before all.
    """
    keys: dict[str, LeafKey] = {}
    closed: set[str] = set()
    unknown: set[str] = set()
    for candidate in displaceable:
        budget = candidate.attempt.budget
        if budget is None or budget in keys:
            continue
        path = snapshot.paths.get(budget)
        if path is None:
            closed.add(budget)
        elif any(step not in snapshot.standings for step in path):
            unknown.add(budget)
        else:
            keys[budget] = leaf_key(path, snapshot.standings)
    # The idle, and who is left on gathered nodes, may be of a leaf without a standing: unknown is not over-served, so it is last.
    ranked = [*sorted(closed), *sorted(keys, key=keys.__getitem__, reverse=True), *sorted(unknown)]
    return {budget: rank for rank, budget in enumerate(ranked)}
