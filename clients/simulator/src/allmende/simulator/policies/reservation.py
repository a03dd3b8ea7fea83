"""The reservation of EASY backfill: when the first job that does not fit will, on which nodes, and what is left beside it.

Source: Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995), with named nodes instead of a count, because gangs need whole pieces
of nodes. Never starts anything.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from allmende.proto.placement import Room, place
from allmende.proto.units import Ms
from allmende.simulator.policies.room import Floor, Shape, gpus_by_node


class Release(NamedTuple):
    """These GPUs come free at the latest then."""

    at_ms: Ms
    gpus: Mapping[str, int]


class Reservation(Struct):
    """For the job of this number: at `at_ms` the nodes have `then` GPUs free (below 0: earmarked twice), and it takes `needs`."""

    number: int
    level: int
    shape: Shape
    at_ms: Ms
    then: dict[str, int]
    needs: dict[str, int] = {}
    stale: bool = True
    """Room came free since the nodes were chosen: others may now be the better choice."""


def earliest(
    now_ms: Ms, free: dict[str, int], releases: Iterable[Release], shape: Shape, floor: Floor
) -> tuple[Ms, dict[str, int]]:
    """When the gang fits, and what is free then of each node.

    Args:
        free: GPUs free now of each node; may be below 0 where a release follows. Taken over and changed.
        releases: in the order of time.

    Raises:
        ValueError: it does not even fit when all is released.
    """
    size = shape.gpus_per_replica
    usable = {node for node, model in floor.models.items() if shape.gpu_model in (None, model)}
    slots = sum(max(0, free[node]) // size for node in usable)
    at_ms = now_ms
    for release in releases:
        # What comes free at the same instant counts too: it gives others more room beside.
        if slots >= shape.replicas and release.at_ms > at_ms:
            break
        at_ms = max(at_ms, release.at_ms)
        for node, gpus in release.gpus.items():
            before = free[node]
            free[node] = before + gpus
            if node in usable:
                slots += max(0, before + gpus) // size - max(0, before) // size
    if slots < shape.replicas:
        raise ValueError(f"{shape} does not fit when all is released")
    return at_ms, free


def choose(reservation: Reservation, floor: Floor) -> dict[str, int]:
    """Choose the nodes, those with the least room open now first, and return what is left beside them of each node.

    So as much as possible of what is open now may be used by work that ends after the reservation begins.
    """
    shape, models, open_now = reservation.shape, floor.models, floor.open.gpus
    rooms = [
        Room(node, gpus, gpus, open_now[node])
        for node, gpus in reservation.then.items()
        if gpus >= shape.gpus_per_replica and shape.gpu_model in (None, models[node])
    ]
    placement = place(rooms, shape.replicas, shape.gpus_per_replica)
    assert placement is not None, "what fits at the instant of the reservation never shrinks but by failures"
    reservation.needs = gpus_by_node(placement, shape.gpus_per_replica)
    reservation.stale = False
    spare = {node: max(0, gpus) for node, gpus in reservation.then.items()}
    for node, gpus in reservation.needs.items():
        spare[node] -= gpus
    return spare
