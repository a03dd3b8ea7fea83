"""A server for the tests of scenarios: it has GPUs but no nodes, and serves in order. Never one of the simulator's policies."""

import hashlib
import heapq
from collections import deque
from typing import Literal, NamedTuple

import msgspec

from allmende.proto.units import Ms
from allmende.simulator.model import Job
from allmende.simulator.ports import Scenario
from allmende.simulator.scenarios import make, names
from allmende.simulator.scenarios.demand import Demand


class Played(NamedTuple):
    """What a run submitted; `outstanding`: (instant, GPUs of each pool) after each instant at which something came."""

    scenario: Scenario
    jobs: list[Job]
    outstanding: list[tuple[Ms, list[int]]]


def played(
    name: str, *, seed: int = 1, days: int = 3, load_ppm: int | None = None, serves: Literal["first", "last"] = "first"
) -> Played:
    """The scenario served until its end: the first that came, or the last, or else nobody."""
    scenario = make(name, seed=seed, days=days, load_ppm=load_ppm)
    demand = scenario.workload
    assert isinstance(demand, Demand)
    waiting: deque[Job] = deque()
    running: list[tuple[Ms, str, Job]] = []
    free, now_ms = scenario.cluster.gpus, scenario.window.begin_ms
    jobs: list[Job] = []
    outstanding: list[tuple[Ms, list[int]]] = []
    while now_ms < scenario.window.to_ms:
        while running and running[0][0] <= now_ms:
            _at_ms, _name, job = heapq.heappop(running)
            free += job.gpus
            demand.ended(job, now_ms)
        due_ms = demand.due_ms()
        if due_ms is not None and due_ms <= now_ms:
            new = demand.submit(now_ms)
            assert all(job.submitted_at_ms == now_ms for job in new)
            jobs.extend(new)
            waiting.extend(new)
            outstanding.append((now_ms, [demand.outstanding(pool) for pool in range(demand.pools)]))
        while waiting and waiting[0 if serves == "first" else -1].gpus <= free:
            job = waiting.popleft() if serves == "first" else waiting.pop()
            free -= job.gpus
            heapq.heappush(running, (now_ms + job.runtime_ms, job.job, job))
        times = [at_ms for at_ms in (demand.due_ms(), running[0][0] if running else None) if at_ms is not None]
        now_ms = min(times, default=scenario.window.to_ms)
    return Played(scenario, jobs, outstanding)


def digests(*only: str, seed: int = 1) -> dict[str, str]:
    """A fingerprint of everything that each scenario (default: all) says and submits in one measured day."""
    found = {}
    for name in only or [name for name, _sentence in names()]:
        said = repr(_all_of(played(name, seed=seed, days=1)))
        found[name] = hashlib.sha256(said.encode()).hexdigest()
    return found


def _all_of(run: Played) -> list[object]:
    scenario = run.scenario
    return [scenario.cluster, scenario.trees, scenario.window, scenario.notes, msgspec.to_builtins(run.jobs), run.outstanding]


def gpu_hours(jobs: list[Job]) -> float:
    """Their work."""
    return sum(job.gpus * job.runtime_ms for job in jobs) / 3_600_000
