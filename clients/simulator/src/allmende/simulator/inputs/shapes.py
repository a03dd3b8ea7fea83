"""Shapes that a history does not tell: a gang out of a number of GPUs, and a cluster out of jobs.

Pure. Never loses a GPU: replicas times GPUs of each is what the history says.
"""

from collections.abc import Iterable

from allmende.simulator.model import Cluster, NodeSpec

# What nearly every training server of the last ten years has.
NODE_GPUS = 8


def split_gpus(gpus: int, node_gpus: int = NODE_GPUS) -> tuple[int, int]:
    """A gang of that many GPUs as (replicas, GPUs of each): as few replicas as possible that fit a node and are equal.

    Within one node: a single replica. 16 on nodes of 8: 2 x 8. 12: 2 x 6. 13: 13 x 1.
    """
    if gpus <= node_gpus:
        return 1, gpus
    each = next(part for part in range(node_gpus, 0, -1) if gpus % part == 0)
    return gpus // each, each


def cluster_of(name: str, gpus: int, node_gpus: int = NODE_GPUS) -> Cluster:
    """A cluster of equal nodes; the last one is smaller where the GPUs do not come out even."""
    full, rest = divmod(gpus, node_gpus)
    sizes = [node_gpus] * full + ([rest] if rest else [])
    width = max(3, len(str(len(sizes))))
    return Cluster(name, tuple(NodeSpec(f"node-{number:0{width}d}", size) for number, size in enumerate(sizes, start=1)))


def peak(spans: Iterable[tuple[int, int, int]]) -> int:
    """The most GPUs in use at once, of (start, end, GPUs) with the end excluded."""
    changes: list[tuple[int, int]] = []
    for start, end, gpus in spans:
        changes.append((start, gpus))
        changes.append((end, -gpus))
    # At one instant what ends goes first: -gpus sorts before +gpus.
    changes.sort()
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def nodes_for(shapes: Iterable[tuple[int, int]], node_gpus: int) -> int:
    """How many nodes of that size every single gang of (replicas, GPUs of each) needs at least."""
    return max((-(-replicas // (node_gpus // each)) for replicas, each in shapes), default=1)
