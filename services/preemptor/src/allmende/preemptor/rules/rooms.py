"""How much room a claimant has on each node, now and once GPUs that are leaving have left. Never decides who leaves.

Room to come = healthy - held by attempts that stay - promised to open claims. GPUs of leaving attempts therefore count for the
claim they leave for (its promise covers them) and, as far as nobody was promised them, for the next claim: evicting others while
those GPUs are on their way would be an eviction for nothing. Those of an overdue attempt are on their way to nobody.
"""

from collections.abc import Container, Mapping

from allmende.preemptor.model import Claim, Node, Snapshot
from allmende.proto.placement import Room


def usable(snapshot: Snapshot, claim: Claim) -> dict[str, Node]:
    """Nodes that may take the claimant: heard of lately, not cordoned, with healthy GPUs, of the model it asks for, not avoided by
    it; of a reservation that has come due, its own."""
    reserved = frozenset(claim.reserved_nodes)
    return {
        node.node: node
        for node in snapshot.nodes
        if node.heard
        and not node.cordoned
        and node.healthy > 0
        and claim.gpu_model in (None, node.model)
        and node.node not in claim.avoid_nodes
        and (not reserved or node.node in reserved)
    }


def free_by_node(snapshot: Snapshot, nodes: Mapping[str, Node]) -> dict[str, int]:
    """GPUs by node once everything that is leaving has left, without what other claims were promised.

    May be negative: GPUs failed below what is held. An eviction there must first make up for them.
    """
    free = {name: node.healthy - snapshot.promised.get(name, 0) for name, node in nodes.items()}
    for attempt in snapshot.attempts:
        if not attempt.leaving or attempt.overdue:
            for node, gpus in attempt.held:
                if node in free:
                    free[node] -= gpus
    return free


def free_now(snapshot: Snapshot, nodes: Mapping[str, Node]) -> dict[str, int]:
    """GPUs by node that nobody holds, not even on the way out, and that nobody was promised beyond what is leaving there."""
    leaving = dict.fromkeys(nodes, 0)
    for attempt in snapshot.attempts:
        if attempt.leaving and not attempt.overdue:
            for node, gpus in attempt.held:
                if node in leaving:
                    leaving[node] += gpus
    promised = {name: snapshot.promised.get(name, 0) for name in nodes}
    free = free_by_node(snapshot, nodes)
    return {name: free[name] + promised[name] - leaving[name] - max(0, promised[name] - leaving[name]) for name in nodes}


def capacity(free: Mapping[str, int], gpus_per_replica: int) -> int:
    """How many replicas fit."""
    return sum(gpus // gpus_per_replica for gpus in free.values() if gpus > 0)


def rooms(snapshot: Snapshot, nodes: Mapping[str, Node], free: Mapping[str, int], gone: Container[str]) -> list[Room]:
    """The nodes as `placement` wants them, once the attempts in `gone` have left; `free` counts their GPUs already."""
    ends = dict.fromkeys(nodes, 0)
    for attempt in snapshot.attempts:
        if attempt.budget is None or attempt.leaving or attempt.attempt in gone:
            continue
        for node, _ in attempt.held:
            if node in ends:
                ends[node] = max(ends[node], attempt.protected_until_ms or 0)
    return [Room(name, max(0, free[name]), node.healthy, ends[name]) for name, node in nodes.items()]
