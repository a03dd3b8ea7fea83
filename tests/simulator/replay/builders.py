"""Pasts for tests, in minutes from the beginning of what was asked about; ids and names are the lab's own kind."""

from collections.abc import Sequence
from random import Random
from typing import Any

from allmende.proto.admission import NodeView, PastAttempt, PastJob, Placed
from allmende.proto.budget import Budget
from allmende.proto.history import LabHistory, PastTree
from allmende.proto.ids import make_id
from allmende.proto.ledger import BucketBooks
from allmende.proto.units import MINUTE_MS, Ms

T0: Ms = 1_780_000_000_000
LENGTH = 100
"""Minutes that most pasts are asked about."""

Ran = tuple[float | None, float | None, str | None]
"""One attempt: when it started (None: never), when it ended (None: not yet), how."""


def at(minute: float) -> Ms:
    """An instant."""
    return T0 + round(minute * MINUTE_MS)


def an_id(number: int) -> str:
    """Ids in the order of their numbers."""
    return make_id(T0, number.to_bytes(10, "big"))


def attempt(number: int, ran: Ran, slice_ms: Ms = 10 * MINUTE_MS, gpus: int = 8, **other: Any) -> PastAttempt:
    """An attempt on node `n1`, granted a second before it started; one that never started, a minute before its end."""
    start, until, outcome = ran
    granted_ms = at(start) - 1_000 if start is not None else at(until - 1 if until is not None else 0)
    told: dict[str, Any] = {
        "cluster": "c1",
        "budget": "vision",
        "placement": (Placed(node="n1", replicas=1),),
        "started_at_ms": None if start is None else at(start),
        "protected_until_ms": None if start is None else at(start) + slice_ms,
        "ended_at_ms": None if until is None else at(until),
    }
    return PastAttempt(attempt=an_id(number), slice_ms=slice_ms, granted_at_ms=granted_ms, outcome=outcome, **(told | other))


def past_job(number: int, *ran: Ran, submitted: float = 0, until: float | None = None, **other: Any) -> PastJob:
    """Ada's job of 8 GPUs with a slice of ten minutes, charged to `vision`; `until`: when it ended, as finished by default."""
    told: dict[str, Any] = {
        "user": "ada",
        "budget": "vision",
        "clusters": (),
        "replicas": 1,
        "gpus_per_replica": 8,
        "gpu_model": None,
        "slice_ms": 10 * MINUTE_MS,
        "stated_runtime_ms": None,
        "max_runtime_ms": None,
        "resumable": True,
        "priority": 0,
        "kind": "batch",
        "may_run_unallocated": False,
        "ended_at_ms": None if until is None else at(until),
        "outcome": None if until is None else "finished",
    } | other
    attempts = tuple(attempt(100 * number + place, each, told["slice_ms"], budget=told["budget"]) for place, each in enumerate(ran))
    return PastJob(job=an_id(number), submitted_at_ms=at(submitted), **({"attempts": attempts} | told))


def tree(**shares: int) -> tuple[Budget, ...]:
    """Leaves below one root; shares in percent. Ada and Bob are members of all."""
    leaves = (Budget(budget=name, parent="lab", share_ppm=share * 10_000, members=("ada", "bob")) for name, share in shares.items())
    return (Budget(budget="lab"), *leaves)


def node(name: str = "n1", gpus: int = 8) -> NodeView:
    """A node as it is now."""
    return NodeView(
        cluster="c1",
        node=name,
        gpu_model=None,
        installed_gpus=gpus,
        healthy_gpus=gpus,
        held_gpus=0,
        earmarked_gpus=0,
        attempts=0,
        silent_since_ms=None,
    )


def books(available: Sequence[int], step: float, begin: float = 0) -> tuple[BucketBooks, ...]:
    """Books of so many available GPUs in each step of so many minutes."""
    length_ms = round(step * MINUTE_MS)
    return tuple(
        BucketBooks(
            from_ms=at(begin) + place * length_ms,
            installed_gpu_ms=gpus * length_ms,
            available_gpu_ms=gpus * length_ms,
            allocated_gpu_ms=0,
            unallocated_gpu_ms=0,
            starting_gpu_ms=0,
            unknown_gpu_ms=0,
            idle_gpu_ms=gpus * length_ms,
        )
        for place, gpus in enumerate(available)
    )


def past(*jobs: PastJob, begin: float = 0, length: float = LENGTH, **other: Any) -> LabHistory:
    """A lab with one node of 8 GPUs, half of it `vision`'s and half `tools`'."""
    told: dict[str, Any] = {
        "trees": (PastTree(revision=1, from_ms=at(begin - 1), budgets=tree(vision=50, tools=50)),),
        "nodes": (node(),),
        "step_ms": 10 * MINUTE_MS,
        "books": books([8] * round((length - begin) / 10), 10, begin),
    }
    return LabHistory(cluster="c1", begin_ms=at(begin), from_ms=at(0), to_ms=at(length), jobs=jobs, **(told | other))


def busy(seed: int, jobs: int = 40) -> LabHistory:
    """A past in which two teams wanted three nodes all along: some finished, some were evicted, some still run or wait."""
    random = Random(f"{seed}/busy")
    made: list[PastJob] = []
    for number in range(1, jobs + 1):
        submitted, leaf = random.randrange(0, 80), random.choice(("vision", "tools", None))
        start = submitted + random.randrange(30)
        until = start + random.randrange(1, 60)
        told: dict[str, Any] = {"budget": leaf, "slice_ms": random.randrange(1, 20) * MINUTE_MS if leaf else 0}
        if until < LENGTH:
            outcome = random.choice(("finished", "failed", "evicted"))
            over = {} if outcome == "evicted" else {"until": until, "outcome": outcome}
            made.append(past_job(number, (start, until, outcome), submitted=submitted, **(told | over)))
        else:
            made.append(past_job(number, *([(start, None, None)] if start < LENGTH else []), submitted=submitted, **told))
    nodes = tuple(node(f"n{number}") for number in range(1, 4))
    return past(*made, nodes=nodes, books=books([24] * 10, 10))
