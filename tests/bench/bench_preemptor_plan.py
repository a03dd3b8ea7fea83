"""How long the preemptor takes to plan: one claim on a full cluster, from a snapshot in memory to the victims.

1,000 attempts fill about 250 nodes of 8 GPUs, 10,000 about 2,500. Sizes are as in public traces: four nodes in five hold parts, the
others whole ones, and one in fifty begins a gang over up to 16 nodes. Half of the attempts are past their slices.
"""

import random
from time import process_time

from allmende.preemptor.model import Attempt, Node, Snapshot
from allmende.preemptor.rules.judge import judge
from allmende.proto.units import HOUR_MS
from tests.preemptor.builders import POLICY, attempt, claim, node, snapshot

LEAVES = 15
REPEATS = 3


def bench() -> dict[str, float]:
    """Milliseconds of CPU for one claim: one GPU, one whole node, a gang of 32 whole nodes; the slowest of three seeds."""
    figures: dict[str, float] = {}
    for attempts in (1_000, 10_000):
        clusters = [_cluster(attempts, random.Random(seed)) for seed in range(REPEATS)]
        for name, replicas, gpus in (("one_gpu", 1, 1), ("half_nodes", 64, 4), ("one_node", 1, 8), ("32_nodes", 32, 8)):
            figures[f"{name}_{attempts}_attempts_cpu_ms"] = max(_measure(cluster, replicas, gpus) for cluster in clusters)
    # 8,192 GPUs and 3,000 attempts on them; a claim of a quarter.
    large = [_large(random.Random(seed)) for seed in range(REPEATS)]
    assert all(judge(cluster, claim("leaf-0", 256, 8), POLICY).code == "makes_room" for cluster in large)
    figures["2048_of_8192_gpus_3000_attempts_cpu_ms"] = max(_measure(cluster, 256, 8) for cluster in large)
    return figures


def _large(chance: random.Random) -> Snapshot:
    """1,024 full nodes: 2,680 attempts of one GPU, 320 of whole nodes; nine in ten are past their slices."""
    names = [f"n{i:05d}" for i in range(1_024)]
    attempts: list[Attempt] = []
    for name in names[:335]:
        attempts += [_attempt(len(attempts) + i, {name: 1}, chance, past=0.9) for i in range(8)]
    # 320 attempts on 689 nodes: most have one or two, some up to 16.
    sizes = [1] * 320
    for _ in range(689 - 320):
        sizes[min(chance.randrange(320), chance.randrange(320), chance.randrange(320))] += 1
    at = 335
    for size in sizes:
        attempts.append(_attempt(len(attempts), dict.fromkeys(names[at : at + size], 8), chance, past=0.9))
        at += size
    ratios = {f"leaf-{i}": 20 if i == 0 else chance.randrange(60, 200) for i in range(LEAVES)}
    return snapshot([node(name) for name in names], attempts, ratios)


def _measure(seen: Snapshot, replicas: int, gpus: int) -> float:
    start = process_time()
    judge(seen, claim("leaf-0", replicas, gpus), POLICY)
    return round((process_time() - start) * 1_000, 1)


def _cluster(count: int, chance: random.Random) -> Snapshot:
    nodes: list[Node] = []
    attempts: list[Attempt] = []
    while len(attempts) < count:
        kind = chance.random()
        whole = chance.choice([2, 4, 8, 16]) if kind < 0.02 else 1 if kind < 0.2 else 0
        names = [f"n{len(nodes) + i:05d}" for i in range(max(1, whole))]
        nodes.extend(node(name) for name in names)
        if whole:
            attempts.append(_attempt(len(attempts), dict.fromkeys(names, 8), chance))
            continue
        room = 8
        while room:
            size = min(room, chance.choice([1, 1, 1, 1, 2, 4]))
            attempts.append(_attempt(len(attempts), {names[0]: size}, chance))
            room -= size
    ratios = {f"leaf-{i}": 20 if i == 0 else chance.randrange(60, 200) for i in range(LEAVES)}
    return snapshot(nodes, attempts, ratios)


def _attempt(number: int, held: dict[str, int], chance: random.Random, *, past: float = 0.5) -> Attempt:
    leaf = chance.randrange(LEAVES + 1)
    return attempt(
        f"a{number:05d}",
        None if leaf == LEAVES else f"leaf-{leaf}",
        held,
        protected_for_ms=-HOUR_MS if chance.random() < past else HOUR_MS,
        started_ago_ms=chance.randrange(HOUR_MS, 8 * HOUR_MS),
        saved_ago_ms=chance.randrange(HOUR_MS),
    )
