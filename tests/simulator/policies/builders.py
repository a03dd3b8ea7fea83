"""Small labs for tests of policies, in minutes: jobs, clusters of equal nodes, and a run of them to the end."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from allmende.proto.budget import Budget
from allmende.proto.units import MINUTE_MS, PPM_WHOLE, Ms
from allmende.simulator.inputs.listed import Listed
from allmende.simulator.model import ORIGIN_MS, Cluster, Failures, History, Job, Leaving, NodeSpec, TreeChange, Window
from allmende.simulator.ports import Policy, Scenario
from allmende.simulator.world.engine import World
from allmende.simulator.world.rolls import Trouble

STUBBORN = Leaving(ignore_ppm=PPM_WHOLE)
"""Whoever is told to go takes the whole notice: the arithmetic of a test is exact."""


RARE = Failures(1_000 * MINUTE_MS, 30 * MINUTE_MS, 31 * MINUTE_MS)
"""Of four nodes in a test of some hours at most one fails, and is repaired after half an hour."""


def at(minute: float) -> Ms:
    """An instant."""
    return ORIGIN_MS + round(minute * MINUTE_MS)


def nodes(number: int, gpus: int = 8, model: str | None = None, first: int = 0) -> tuple[NodeSpec, ...]:
    """Equal nodes."""
    return tuple(NodeSpec(f"n{first + each:02d}", gpus, model) for each in range(number))


def cluster(*specs: NodeSpec, failures: Failures | None = None, leaving: Leaving = STUBBORN) -> Cluster:
    """A cluster on which jobs start the moment they are granted."""
    return Cluster("lab", specs, failures, leaving, start_ms=0)


class Once(NamedTuple):
    """One node fails once, all others never (within a test), under this seed."""

    seed: int
    fails: float
    back: float


def trouble(node: str) -> Once:
    """The node fails between minutes 15 and 20."""
    for seed in count(1):
        streams = {f"n0{number}": Trouble(seed, f"n0{number}", RARE) for number in range(4)}
        up_ms = {name: stream.up_ms() for name, stream in streams.items()}
        if 15 * MINUTE_MS < up_ms.pop(node) < 20 * MINUTE_MS and min(up_ms.values()) > 500 * MINUTE_MS:
            fails_ms = Trouble(seed, node, RARE).up_ms()
            return Once(seed, fails_ms / MINUTE_MS, (fails_ms + streams[node].down_ms()) / MINUTE_MS)
    raise AssertionError


def job(name: str, submitted: float, shape: str, minutes: float, **other: Any) -> Job:
    """A job of shape `2x8` (replicas x GPUs) that works so many minutes, slice 0."""
    replicas, gpus = shape.split("x")
    told: dict[str, Any] = {"user": "ada", "budget": None, "slice_ms": 0}
    return Job(
        job=name,
        submitted_at_ms=at(submitted),
        replicas=int(replicas),
        gpus_per_replica=int(gpus),
        runtime_ms=round(minutes * MINUTE_MS),
        **(told | other),
    )


def tree(shares: Mapping[str, int | None], at_minute: float = 0) -> TreeChange:
    """Leaves below one root; shares in percent. Ada and Bob are members of all."""
    ppm = {name: None if share is None else share * 10_000 for name, share in shares.items()}
    leaves = (Budget(budget=name, parent="org", share_ppm=share, members=("ada", "bob")) for name, share in ppm.items())
    budgets = (Budget(budget="org"), *leaves)
    return TreeChange(at(at_minute), budgets)


def scenario(where: Cluster, jobs: Sequence[Job], *trees: TreeChange, until: float = 100_000) -> Scenario:
    """What is run; by default for longer than anything in a test lasts."""
    known = trees or (tree({"vision": 50, "speech": 50}),)
    return Scenario("test", where, known, Listed(jobs), Window(ORIGIN_MS, ORIGIN_MS, at(until)))


def played(
    policy: Policy, where: Cluster, jobs: Sequence[Job], *trees: TreeChange, seed: int = 1, until: float = 100_000
) -> History:
    """The history of a run."""
    return World(scenario(where, jobs, *trees, until=until), policy, seed).run()


def minutes(at_ms: Ms) -> float:
    """An instant in minutes since the beginning."""
    return (at_ms - ORIGIN_MS) / MINUTE_MS


def starts(history: History) -> dict[str, list[float]]:
    """The minutes at which each job started, attempt by attempt."""
    found: dict[str, list[float]] = {name: [] for name in history.lives}
    for run in sorted(history.runs, key=lambda run: run.granted_at_ms):
        if run.started_at_ms is not None:
            found[run.job].append(minutes(run.started_at_ms))
    return found
