"""Gang placement: node by node, all or nothing. Admission grants by it, the preemptor proves by it that a claimant will fit.

Pure. Packs: whole-node replicas on empty nodes, partial ones on the fullest node that fits; among equals it aligns slice ends,
so that large holes open at once (contract §5).
"""

from collections.abc import Iterable
from typing import NamedTuple

from allmende.proto.units import Ms


class Room(NamedTuple):
    """One node that may take replicas: healthy, not silent, of a model. `free` excludes what is earmarked for others.

    `slice_ends_ms` is the latest `protected_until` on the node, 0 when nothing there is protected.
    """

    node: str
    free: int
    total: int
    slice_ends_ms: Ms = 0


class NodeReplicas(NamedTuple):
    """Replicas of one gang on one node."""

    node: str
    replicas: int


def place(rooms: Iterable[Room], replicas: int, gpus_per_replica: int, slice_ends_ms: Ms = 0) -> tuple[NodeReplicas, ...] | None:
    """Place `replicas` x `gpus_per_replica`, one replica on one node, several allowed on the same node.

    Returns:
        nodes with their number of replicas, in the order in which replicas are numbered; None if the gang does not fit whole.

    The order of preference among nodes that fit: fewest free GPUs, then slice end nearest to `slice_ends_ms`, then name, so the
    result does not depend on the order of `rooms`. Cost: O(nodes log nodes).
    """
    fitting = [room for room in rooms if room.free >= gpus_per_replica]
    if sum(room.free // gpus_per_replica for room in fitting) < replicas:
        return None
    fitting.sort(key=lambda room: (room.free, abs(room.slice_ends_ms - slice_ends_ms), room.node))
    placed: list[NodeReplicas] = []
    missing = replicas
    for room in fitting:
        count = min(missing, room.free // gpus_per_replica)
        placed.append(NodeReplicas(room.node, count))
        missing -= count
        if not missing:
            break
    return tuple(placed)


def fits(rooms: Iterable[Room], replicas: int, gpus_per_replica: int) -> bool:
    """True when `place` would find a place."""
    return sum(room.free // gpus_per_replica for room in rooms) >= replicas
