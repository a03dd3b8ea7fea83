"""What somebody who knows everything beforehand could do with the unallocated jobs of a run, beside its allocated work as it ran.

One question, two answers: how much of what was available can be held while no unallocated job is evicted more than so often? No
schedule is above `bound`; `planned` is a schedule. Whoever knows when he must leave saves just before, so neither loses any work.
Never judges a rule, and never reads how a run decided.
"""

import csv
import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from allmende.proto.units import MINUTE_MS, GpuMs, Ms
from tests.experiments.results import Offline

# What a planned attempt must last at least, so that evictions are not spent on moments.
LEAST_MS: Final = 10 * MINUTE_MS


class Shape(NamedTuple):
    """A gang of `replicas`, each with `gpus` on one node."""

    replicas: int
    gpus: int


class Job(NamedTuple):
    """An unallocated job: `work_ms` undisturbed."""

    job: str
    shape: Shape
    submitted_ms: Ms
    work_ms: Ms
    ended_ms: Ms | None


class Node(NamedTuple):
    """GPUs of a node that work and that no allocated attempt has, from each instant to the next; when it failed."""

    times: list[Ms]
    free: list[int]
    failed: frozenset[Ms]

    def until(self, at: int, gpus: int, end_ms: Ms) -> Ms:
        """How long after the instant number `at` so many GPUs stay free."""
        at += 1
        while at < len(self.times) and self.free[at] >= gpus:
            at += 1
        return self.times[at] if at < len(self.times) else end_ms


class Record(NamedTuple):
    """A run as its CSV files tell it. Amounts are those of the window."""

    from_ms: Ms
    to_ms: Ms
    available: GpuMs
    allocated: GpuMs
    unallocated: GpuMs
    lost: GpuMs
    """Unallocated work that was done in vain."""
    nodes: dict[str, Node]
    jobs: tuple[Job, ...]


def answers(record: Record, limits: Sequence[int | None]) -> tuple[Offline, ...]:
    """Both answers for each limit of evictions of one unallocated job; None: no limit."""
    found = []
    for limit in limits:
        held, evictions = planned(record, limit)
        part = bound(record, limit) / record.available
        found.append(Offline(limit, round(part, 6), round(held / record.available, 6), max(evictions.values(), default=0)))
    return tuple(found)


def useful(record: Record) -> GpuMs:
    """What the run itself held, without unallocated work that was lost and had to be done again."""
    return record.allocated + record.unallocated - record.lost


# ------------------------------------------------------------------------------------------------------------------------- reading


def read(folder: Path, from_ms: Ms, to_ms: Ms) -> Record:
    """The CSV files of a run (`--csv-dir`) whose window is given. Work that crosses an edge is cut there."""

    def inside(start_ms: Ms, end_ms: Ms) -> Ms:
        return max(0, min(end_ms, to_ms) - max(start_ms, from_ms))

    changes: dict[str, dict[Ms, int]] = defaultdict(lambda: defaultdict(int))
    failed: dict[str, set[Ms]] = defaultdict(set)
    healthy: dict[str, tuple[Ms, int]] = {}
    available = held = unallocated = lost = 0
    for row in _rows(folder / "nodes.csv"):
        node, at_ms, gpus = row["node"], int(row["at_ms"]), int(row["healthy"])
        since_ms, before = healthy.get(node, (at_ms, 0))
        available += before * inside(since_ms, at_ms)
        changes[node][at_ms] += gpus - before
        healthy[node] = (at_ms, gpus)
        if gpus < before:
            failed[node].add(at_ms)
    available += sum(gpus * inside(since_ms, to_ms) for since_ms, gpus in healthy.values())
    for row in _rows(folder / "attempts.csv"):
        ended_ms = int(row["ended_at_ms"])
        amount = int(row["gpus"]) * inside(int(row["started_at_ms"]), ended_ms) if row["started_at_ms"] else 0
        if not row["leaf"]:
            unallocated += amount
            lost += int(row["lost_gpu_ms"]) if from_ms <= ended_ms < to_ms else 0
            continue
        held += amount
        for part in row["placement"].split():
            node, replicas = part.split(":")
            gpus = int(replicas) * int(row["gpus_per_replica"])
            changes[node][int(row["granted_at_ms"])] -= gpus
            changes[node][ended_ms] += gpus
    nodes = {node: _node(steps, failed[node]) for node, steps in sorted(changes.items())}
    return Record(from_ms, to_ms, available, held, unallocated, lost, nodes, tuple(_jobs(folder)))


def _node(steps: dict[Ms, int], failed: set[Ms]) -> Node:
    times = sorted(steps)
    free: list[int] = []
    for at_ms in times:
        free.append((free[-1] if free else 0) + steps[at_ms])
    return Node(times, free, frozenset(failed))


def _jobs(folder: Path) -> Iterator[Job]:
    for row in _rows(folder / "jobs.csv"):
        if row["slice_ms"] == "0":
            shape = Shape(int(row["replicas"]), int(row["gpus_per_replica"]))
            ended_ms = int(row["ended_at_ms"]) if row["ended_at_ms"] else None
            yield Job(row["job"], shape, int(row["submitted_at_ms"]), int(row["runtime_ms"]), ended_ms)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


# ----------------------------------------------------------------------------------------------------------------------- the bound


def bound(record: Record, limit: int | None) -> GpuMs:
    """More than this no schedule can hold in the window.

    A job that is evicted `limit` times has one attempt more. So it holds at most its work, and at most the longest so many of all
    times in which its gang would fit, as if it were alone and a gang could move between nodes for nothing; times that end with a
    failing node or with the window cost no eviction. All jobs together hold at most what no allocated attempt has.
    """
    holes = {shape: list(_holes(record, shape)) for shape in sorted({job.shape for job in record.jobs})}
    together = 0
    for job in record.jobs:
        if job.ended_ms is not None and job.ended_ms <= record.from_ms:
            continue
        first_ms = max(record.from_ms, job.submitted_ms)
        times = [(until_ms - max(since_ms, first_ms), free) for since_ms, until_ms, free in holes[job.shape] if until_ms > first_ms]
        paid = sorted((length for length, free in times if not free), reverse=True)
        longest = sum(paid if limit is None else paid[: limit + 1]) + sum(length for length, free in times if free)
        together += job.shape.replicas * job.shape.gpus * min(job.work_ms, longest)
    return record.allocated + min(together, _room(record))


def _holes(record: Record, shape: Shape) -> Iterator[tuple[Ms, Ms, bool]]:
    """(from, to, free): when the gang would fit, and whether leaving at the end would be no eviction. One replica: node by node."""
    if shape.replicas == 1:
        for node in record.nodes.values():
            yield from _fits(record, [node], shape)
    else:
        yield from _fits(record, list(record.nodes.values()), shape)


def _fits(record: Record, nodes: Sequence[Node], shape: Shape) -> Iterator[tuple[Ms, Ms, bool]]:
    steps = sorted((at_ms, number, at) for number, node in enumerate(nodes) for at, at_ms in enumerate(node.times))
    fit = [0] * len(nodes)
    whole, since_ms = 0, None
    for place, (at_ms, number, at) in enumerate(steps):
        now = max(0, nodes[number].free[at]) // shape.gpus
        whole, fit[number] = whole + now - fit[number], now
        if place + 1 < len(steps) and steps[place + 1][0] == at_ms:
            continue
        if whole >= shape.replicas and since_ms is None:
            since_ms = at_ms
        elif whole < shape.replicas and since_ms is not None:
            yield since_ms, min(at_ms, record.to_ms), at_ms >= record.to_ms or any(at_ms in node.failed for node in nodes)
            since_ms = None
    if since_ms is not None:
        yield since_ms, record.to_ms, True


def _room(record: Record) -> GpuMs:
    """What no allocated attempt has in the window."""
    room = 0
    for node in record.nodes.values():
        for at, since_ms in enumerate(node.times):
            until_ms = node.times[at + 1] if at + 1 < len(node.times) else record.to_ms
            room += max(0, node.free[at]) * max(0, min(until_ms, record.to_ms) - max(since_ms, record.from_ms))
    return room


# --------------------------------------------------------------------------------------------------------------------- the schedule


def planned(record: Record, limit: int | None) -> tuple[GpuMs, dict[str, int]]:
    """A schedule: what it holds in the window, and how often each job is evicted.

    At each instant the largest waiting job first, on the nodes that stay free longest. It starts where it will finish, where it may
    stay to the end of the window, or for ten minutes at least and for half of what each attempt that is left to it must do.
    """
    plan = _Plan(record, limit)
    plan.play()
    return record.allocated + plan.held, plan.evictions


class _Plan:
    """A schedule under way."""

    def __init__(self, record: Record, limit: int | None) -> None:
        self.held: GpuMs = 0
        self.evictions = {job.job: 0 for job in record.jobs}
        self._record, self._limit = record, limit
        self._jobs = {job.job: job for job in record.jobs}
        self._left = {job.job: job.work_ms for job in record.jobs}
        self._waiting: set[str] = set()
        self._running: dict[str, tuple[Ms, list[str]]] = {}
        self._on: dict[str, dict[str, int]] = {node: {} for node in record.nodes}
        self._at = dict.fromkeys(record.nodes, -1)
        self._changes: dict[Ms, list[str]] = defaultdict(list)
        for name, node in record.nodes.items():
            for at_ms in node.times:
                self._changes[at_ms].append(name)
        self._instants = [*self._changes, *(job.submitted_ms for job in record.jobs)]
        heapq.heapify(self._instants)

    def play(self) -> None:
        """From the first instant to the end of the window."""
        submitted = sorted(self._record.jobs, key=lambda job: (job.submitted_ms, job.job), reverse=True)
        while self._instants and (now_ms := heapq.heappop(self._instants)) < self._record.to_ms:
            while self._instants and self._instants[0] == now_ms:
                heapq.heappop(self._instants)
            while submitted and submitted[-1].submitted_ms <= now_ms:
                self._waiting.add(submitted.pop().job)
            for name in [name for name, (since_ms, _nodes) in self._running.items() if since_ms + self._left[name] <= now_ms]:
                self._leave(name, now_ms)
            for node in self._changes.get(now_ms, ()):
                self._at[node] += 1
                self._make_room(node, now_ms)
            if self._waiting:
                self._fill(now_ms)
        for name in list(self._running):
            self._leave(name, self._record.to_ms)

    def _leave(self, name: str, now_ms: Ms) -> None:
        since_ms, nodes = self._running.pop(name)
        shape = self._jobs[name].shape
        self.held += shape.replicas * shape.gpus * max(0, now_ms - max(since_ms, self._record.from_ms))
        self._left[name] -= now_ms - since_ms
        for node in nodes:
            del self._on[node][name]
        if self._left[name] > 0:
            self._waiting.add(name)

    def _make_room(self, node: str, now_ms: Ms) -> None:
        """Who holds more than is free leaves: one who is enough by himself, the least evicted, the smallest."""
        here = self._on[node]
        while (over := -self._room(node)) > 0 and here:
            name = min(here, key=lambda each: (here[each] < over, self.evictions[each], here[each], each))
            self._leave(name, now_ms)
            self.evictions[name] += now_ms not in self._record.nodes[node].failed

    def _room(self, node: str) -> int:
        at = self._at[node]
        return (self._record.nodes[node].free[at] if at >= 0 else 0) - sum(self._on[node].values())

    def _fill(self, now_ms: Ms) -> None:
        room = {node: free for node in self._record.nodes if (free := self._room(node)) > 0}
        for name in sorted(self._waiting, key=self._turn):
            shape = self._jobs[name].shape
            offers = sorted(self._offers(room, shape), reverse=True)[: shape.replicas]
            if len(offers) < shape.replicas or not self._worth(name, now_ms, offers[-1][0]):
                continue
            nodes = [node for _until_ms, node in offers]
            self._waiting.remove(name)
            self._running[name] = (now_ms, nodes)
            for node in nodes:
                self._on[node][name] = shape.gpus
                room[node] -= shape.gpus
            heapq.heappush(self._instants, now_ms + self._left[name])

    def _turn(self, name: str) -> tuple[int, int, str]:
        shape = self._jobs[name].shape
        return -shape.replicas * shape.gpus, self.evictions[name], name

    def _offers(self, room: dict[str, int], shape: Shape) -> Iterator[tuple[Ms, str]]:
        """Until when each node would have room for a replica, at most one a node."""
        for node, free in room.items():
            if free >= shape.gpus:
                needed = sum(self._on[node].values()) + shape.gpus
                yield self._record.nodes[node].until(self._at[node], needed, self._record.to_ms), node

    def _worth(self, name: str, now_ms: Ms, until_ms: Ms) -> bool:
        left_ms, lasts_ms = self._left[name], until_ms - now_ms
        if lasts_ms >= left_ms or until_ms >= self._record.to_ms:
            return True
        if self._limit is None:
            return lasts_ms >= LEAST_MS
        more = self._limit - self.evictions[name]
        return more > 0 and lasts_ms >= max(LEAST_MS, left_ms // (2 * (more + 1)))
