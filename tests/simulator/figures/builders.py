"""Histories for tests: by hand, piece by piece, in hours; and long ones by a seeded generator that follows no policy."""

from collections.abc import Iterable
from random import Random
from typing import Any

from allmende.proto.budget import Budget
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Ms
from allmende.simulator.model import (
    ORIGIN_MS,
    Cluster,
    History,
    Job,
    Life,
    NodeChange,
    NodeSpec,
    Promise,
    RoomSample,
    Run,
    StandingSample,
    TreeChange,
    Window,
)

T0 = ORIGIN_MS


def at(hours: float) -> Ms:
    """An instant, in hours from the beginning of the window."""
    return T0 + round(hours * HOUR_MS)


def tree(shares: dict[str, int | None], at_hours: float = -24) -> TreeChange:
    """An unset root with one leaf for each name; shares in percent."""
    ppm = {name: None if share is None else share * 10_000 for name, share in shares.items()}
    budgets = (Budget(budget="org"), *(Budget(budget=name, parent="org", share_ppm=share) for name, share in ppm.items()))
    return TreeChange(at(at_hours), budgets)


def job(name: str, leaf: str | None = "a", gpus: int = 8, submitted: float = 0, **other: Any) -> Job:
    """A job of one replica a GPU; a slice of an hour where it has a leaf, else 0."""
    told = {
        "user": "ada",
        "budget": leaf,
        "replicas": gpus,
        "gpus_per_replica": 1,
        "runtime_ms": HOUR_MS,
        "slice_ms": HOUR_MS if leaf else 0,
    }
    return Job(job=name, submitted_at_ms=at(submitted), **(told | other))


def life(made: Job, leaf: str | None = "", start: float | None = None, until: float | None = None, **other: Any) -> Life:
    """A life; `leaf` "" is the job's own budget, None unallocated."""
    told = {
        "leaf": made.budget if leaf == "" else leaf,
        "first_started_at_ms": None if start is None else at(start),
        "ended_at_ms": None if until is None else at(until),
        "end": None if until is None else "finished",
        "attempts": int(start is not None),
    }
    return Life(job=made, submitted_at_ms=made.submitted_at_ms, **(told | other))


def run(name: str, start: float | None, until: float, leaf: str | None = "a", gpus: int = 8, node: str = "n1", **other: Any) -> Run:
    """An attempt of job `name` on one node, granted when it started, protected for an hour."""
    started_ms = None if start is None else at(start)
    told = {
        "attempt": f"{name}-{start}",
        "placement": (NodeReplicas(node, gpus),),
        "gpus_per_replica": 1,
        "slice_ms": HOUR_MS if leaf else 0,
        "granted_at_ms": at(until) if started_ms is None else started_ms,
        "protected_until_ms": None if started_ms is None else started_ms + (HOUR_MS if leaf else 0),
        "ordered_at_ms": None,
        "claimant": None,
        "end": "finished",
    }
    return Run(job=name, leaf=leaf, started_at_ms=started_ms, ended_at_ms=at(until), **(told | other))


def history(
    lives: Iterable[Life] = (),
    runs: Iterable[Run] = (),
    shares: dict[str, int | None] | None = None,
    gpus: int = 8,
    hours: float = 4,
    **other: Any,
) -> History:
    """One node `n1`, healthy from a day before the window of `hours` on; leaf `a` with all."""
    told = {
        "policy": "by-hand",
        "cluster": Cluster("c1", (NodeSpec("n1", gpus),)),
        "window": Window(at(-24), at(0), at(hours)),
        "trees": [tree({"a": 100} if shares is None else shares)],
        "nodes": [NodeChange(at(-24), "n1", gpus)],
        "standings": [],
        "rooms": [],
        "promises": [],
        "reached_ms": at(hours),
    }
    return History(lives={each.job.job: each for each in lives}, runs=list(runs), **(told | other))


# --------------------------------------------------------------------------------------------------------------------- generated

TEAMS = (
    ("language", 18), ("vision", 14), ("<script>alert(1)</script>", 12), ("speech", 10), ("robotics", 9), ("climate", 7),
    ("safety", 6), ("retrieval", 5), ("audio & video", 5), ("agents", 4), ("infra", 3), ("code", 3), ("bio", 2), ("new-project", 2),
    ("quiet", 0),
)  # fmt: skip
SIZES = ((1, 30), (2, 15), (4, 15), (8, 20), (16, 8), (32, 6), (64, 4), (128, 1), (256, 1))


def generated(seed: int, days: int = 3, nodes: int = 16, jobs_a_day: int | None = None, cut_ms: Ms | None = None) -> History:
    """A history that hangs together: no node is over-committed, gangs are whole, evictions come after slices. `cut_ms`: Ctrl-C."""
    return _Maker(Random(f"{seed}/history"), days, nodes).make(3 * nodes if jobs_a_day is None else jobs_a_day, cut_ms)


class _Maker:
    """First come, first served with a random mind: enough to look at, nothing to judge a policy by."""

    def __init__(self, random: Random, days: int, nodes: int) -> None:
        self.random, self.nodes = random, [NodeSpec(f"n{number:03}", 8, "H100") for number in range(nodes)]
        self.from_ms, self.to_ms = T0 - DAY_MS, T0 + days * DAY_MS
        self.free_from = {node.node: [self.from_ms] * 8 for node in self.nodes}
        self.lives: dict[str, Life] = {}
        self.runs: list[Run] = []
        self.changes = [NodeChange(self.from_ms, node.node, 8) for node in self.nodes]
        self.promises: list[Promise] = []

    def make(self, jobs_a_day: int, cut_ms: Ms | None) -> History:
        reached_ms = self.to_ms if cut_ms is None else cut_ms
        count = jobs_a_day * (self.to_ms - self.from_ms) // DAY_MS
        for number, submitted_ms in enumerate(sorted(self.random.randrange(self.from_ms, self.to_ms) for _each in range(count))):
            if submitted_ms < reached_ms:
                self._live(f"j{number:06}", submitted_ms, reached_ms)
        self._fail()
        self.runs.sort(key=lambda each: (each.ended_at_ms, each.attempt))
        shares = {name: share for name, share in TEAMS if name != "new-project"}
        return History(
            policy="generated",
            cluster=Cluster("lab", tuple(self.nodes)),
            window=Window(self.from_ms, T0, self.to_ms),
            trees=[tree(shares), tree(dict(TEAMS), at_hours=20.5)],
            lives=self.lives,
            runs=self.runs,
            nodes=sorted(self.changes),
            standings=self._standings(reached_ms),
            rooms=self._rooms(reached_ms),
            promises=self.promises,
            reached_ms=reached_ms,
            events=2 * len(self.runs) + len(self.lives),
            looks=len(self.runs),
        )

    def _live(self, name: str, submitted_ms: Ms, reached_ms: Ms) -> None:
        random = self.random
        teams, weights = zip(*((team, share + 1) for team, share in TEAMS), strict=True)
        leaf = None if random.random() < 0.2 else random.choices(teams, weights)[0]
        gpus = min(random.choices(*zip(*SIZES, strict=True))[0], len(self.nodes) * 4)
        debug = gpus <= 8 and random.random() < 0.3
        slice_ms = 0 if leaf is None else random.choice((5, 15) if debug else (60, 120, 480)) * MINUTE_MS
        runtime_ms = max(MINUTE_MS, int(random.lognormvariate(0, 1) * (20 * MINUTE_MS if debug else 4 * HOUR_MS)))
        made = Job(
            job=name,
            submitted_at_ms=submitted_ms,
            user=f"user{random.randrange(40)}",
            budget=leaf,
            replicas=max(1, gpus // 8),
            gpus_per_replica=min(8, gpus),
            runtime_ms=runtime_ms,
            slice_ms=slice_ms,
            busy_ppm=random.randrange(600_000, 1_000_001),
            tag="debug" if debug else "",
        )
        self.lives[name] = made_life = Life(job=made, submitted_at_ms=submitted_ms, leaf=None)
        self._work(made_life, leaf, reached_ms)

    def _work(self, lived: Life, leaf: str | None, reached_ms: Ms) -> None:
        made, ready_ms, left_ms = lived.job, lived.submitted_at_ms, lived.job.runtime_ms
        while True:
            placement, start_ms = self._place(made, ready_ms + SECOND_MS)
            if start_ms >= reached_ms:
                return
            if made.gpus >= 64 and not lived.attempts:
                late_ms = self.random.choice((-HOUR_MS, 0, 0, HOUR_MS))
                self.promises.append(Promise(ready_ms, made.job, start_ms + late_ms, self.random.random() < 0.1))
            evicted = left_ms > made.slice_ms and self.random.random() < 0.25
            end_ms = start_ms + (made.slice_ms + self.random.randrange(left_ms - made.slice_ms) if evicted else left_ms)
            lived.leaf, lived.attempts = leaf, lived.attempts + 1
            lived.first_started_at_ms = lived.first_started_at_ms or start_ms
            end = "still_running" if end_ms >= reached_ms else "evicted" if evicted else "finished"
            self._hold(placement, min(end_ms + 20 * SECOND_MS, reached_ms))
            self._record(lived, placement, start_ms, min(end_ms, reached_ms), end)
            if end != "evicted":
                if end == "finished":
                    lived.ended_at_ms, lived.end = end_ms, "finished"
                return
            lived.evictions += 1
            ready_ms, left_ms = end_ms + 20 * SECOND_MS, left_ms - (end_ms - start_ms) // 2

    def _place(self, made: Job, ready_ms: Ms) -> tuple[list[tuple[str, list[int]]], Ms]:
        """The nodes that are free first, for each replica one, and when the last of them is free."""
        rows = []
        for node, lanes in self.free_from.items():
            order = sorted(range(8), key=lambda lane: lanes[lane])[: made.gpus_per_replica]
            rows.append((max(lanes[lane] for lane in order), node, order))
        chosen = sorted(rows)[: made.replicas]
        return [(node, order) for _free, node, order in chosen], max(ready_ms, chosen[-1][0])

    def _hold(self, placement: list[tuple[str, list[int]]], until_ms: Ms) -> None:
        for node, lanes in placement:
            for lane in lanes:
                self.free_from[node][lane] = until_ms

    def _record(self, lived: Life, placement: list[tuple[str, list[int]]], start_ms: Ms, end_ms: Ms, end: Any) -> None:
        evicted = end == "evicted"
        until_ms = min(self.to_ms, end_ms + (self.random.randrange(20) * SECOND_MS if evicted else 0))
        self.runs.append(
            Run(
                attempt=f"{lived.job.job}.{lived.attempts}",
                job=lived.job.job,
                leaf=lived.leaf,
                placement=tuple(NodeReplicas(node, 1) for node, _lanes in sorted(placement)),
                gpus_per_replica=lived.job.gpus_per_replica,
                slice_ms=lived.job.slice_ms,
                granted_at_ms=start_ms - SECOND_MS,
                started_at_ms=start_ms,
                protected_until_ms=start_ms + lived.job.slice_ms,
                ordered_at_ms=end_ms if evicted else None,
                claimant="j000000" if evicted else None,
                ended_at_ms=until_ms,
                end=end,
                lost_gpu_ms=(end_ms - start_ms) // 4 * lived.job.gpus if evicted else 0,
            )
        )

    def _fail(self) -> None:
        for node in self.nodes[:2]:
            down_ms = self.to_ms - self.random.randrange(2, 6) * HOUR_MS
            # Only where nothing ran any more: the picture must hang together.
            if all(lane <= down_ms for lane in self.free_from[node.node]):
                self.changes.append(NodeChange(down_ms, node.node, 0))

    def _standings(self, reached_ms: Ms) -> list[StandingSample]:
        ratios = {name: 0.8 + 0.4 * self.random.random() for name, _share in TEAMS}
        samples = []
        for at_ms in range(self.from_ms + HOUR_MS, reached_ms, HOUR_MS):
            for name in ratios:
                ratios[name] = max(0.0, ratios[name] + self.random.uniform(-0.04, 0.04))
            standings = {name: (int(share * ratios[name] * 10**9), share * 10**9) for name, share in TEAMS}
            samples.append(StandingSample(at_ms, {"org": (10**11, 10**11), **standings}))
        return samples

    def _rooms(self, reached_ms: Ms) -> list[RoomSample]:
        most = 8 * len(self.nodes)
        found = []
        for at_ms in range(self.from_ms + HOUR_MS, reached_ms, HOUR_MS):
            free = self.random.randrange(most // 8)
            found.append(RoomSample(at_ms, free, free // 16 * 8, self.random.randrange(90), self.random.randrange(most * 2)))
        return found
