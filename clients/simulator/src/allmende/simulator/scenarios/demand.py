"""The source of a scenario's jobs: open streams in working time, and pools that are kept full as jobs end (the closed loop).

The k-th job of a team's stream is the same under every policy; when it comes may differ. Never knows what
runs, only what ended.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from allmende.proto.units import MINUTE_MS, PPM_WHOLE, Ms
from allmende.simulator.model import Job, Window
from allmende.simulator.scenarios.draws import next_arrival, stream
from allmende.simulator.scenarios.kinds import Asked, Recipe
from allmende.simulator.scenarios.people import Season, Team

# How often the loop looks at what ended: people and scripts need about a minute to submit the next job.
LOOK_MS = MINUTE_MS


class Pool(NamedTuple):
    """GPUs of running and waiting jobs that are kept at `target_gpus`: whatever is missing is filled with jobs of `stream`.

    `recipes` may differ by leaf; "" is everybody else's.
    """

    stream: str
    target_gpus: int
    recipes: Mapping[str, Recipe]


class Flow(NamedTuple):
    """An open stream of a team's jobs that count in pool number `pool`."""

    stream: str
    recipe: Recipe
    pool: int
    per_working_day: Callable[[Team], float]
    outstanding_max: Callable[[Team], int] | None = None
    """GPUs of this stream that a team has running or waiting at most; what would exceed it is not submitted. None: no bound."""
    gangs: bool = False
    """So large that one fills a team's part of the pool: counts for at most half of that part, so that a waiting gang does not keep
    its team from all else; is announced until the pool has drained for it; and all together fill at most half of the pool."""


class Burst(NamedTuple):
    """So many GPUs of jobs that a team submits at one instant, beside all else."""

    at_ms: Ms
    leaf: str
    gpus: int
    recipe: Recipe


class _Held(NamedTuple):
    pool: int
    team: int
    gpus: int
    big: bool = False
    flow: int | None = None


class _Due(NamedTuple):
    at_ms: Ms
    number: int
    team: int
    flow: int
    """-1: a look at the pools; -2: a burst, whose number is `team`."""


class Lab(Struct):
    """Who demands what."""

    seed: int
    teams: Sequence[Team]
    seasons: Mapping[str, Season]
    pools: Sequence[Pool]
    flows: Sequence[Flow]
    window: Window
    gpus_max: Callable[[Team], int]
    bursts: Sequence[Burst] = ()


class Demand:
    """A `ports.Workload` of a lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._held: dict[str, _Held] = {}
        self._kept = [[0] * len(lab.teams) for _pool in lab.pools]
        self._big = [[0] * len(lab.teams) for _pool in lab.pools]
        self._by_flow = [[0] * len(lab.teams) for _flow in lab.flows]
        self._announced: list[tuple[int, int, int]] = []
        self._submitted: dict[tuple[str, str], int] = {}
        self._due: list[_Due] = []
        self._number = 0
        self._look_ms: Ms | None = None
        self._begin()

    # ---------------------------------------------------------------------------------------------------------------- as a workload

    def due_ms(self) -> Ms | None:
        """When it wants to submit next."""
        return self._due[0].at_ms if self._due else None

    def submit(self, now_ms: Ms) -> Sequence[Job]:
        """The jobs that are submitted now."""
        jobs: list[Job] = []
        look = False
        while self._due and self._due[0].at_ms <= now_ms:
            due = heapq.heappop(self._due)
            if due.flow == -1:
                look = True
            elif due.flow == -2:
                jobs.extend(self._burst(self._lab.bursts[due.team], now_ms))
            else:
                jobs.extend(self._arrive(due, now_ms))
        if look:
            self._look_ms = None
            jobs.extend(self._make_good(now_ms))
            for pool in range(len(self._lab.pools)):
                jobs.extend(self._fill(pool, now_ms))
        return jobs

    def ended(self, job: Job, now_ms: Ms) -> None:
        """One of its jobs is over: look soon what is missing."""
        held = self._held.pop(job.job)
        self._count(held, -held.gpus)
        if held.flow is not None:
            self._by_flow[held.flow][held.team] -= held.gpus
        self._look_soon(now_ms)

    @property
    def pools(self) -> int:
        """How many pools there are."""
        return len(self._lab.pools)

    def outstanding(self, pool: int) -> int:
        """GPUs of the pool's jobs that run or wait."""
        return sum(self._kept[pool]) + sum(self._big[pool])

    # ----------------------------------------------------------------------------------------------------------------------- within

    def _begin(self) -> None:
        lab = self._lab
        self._push(lab.window.begin_ms, 0, -1)
        for place, team in enumerate(lab.teams):
            for at_ms in lab.seasons[team.leaf].changes():
                if lab.window.begin_ms < at_ms < lab.window.to_ms:
                    self._push(at_ms, place, -1)
            for flow in range(len(lab.flows)):
                if lab.flows[flow].per_working_day(team) > 0:
                    self._push_arrival(place, flow, lab.window.begin_ms, 0)
        for place, burst in enumerate(lab.bursts):
            self._push(burst.at_ms, place, -2)

    def _look_soon(self, now_ms: Ms) -> None:
        at_ms = (now_ms // LOOK_MS + 1) * LOOK_MS
        if self._look_ms is None or at_ms < self._look_ms:
            self._look_ms = at_ms
            self._push(at_ms, 0, -1)

    def _push(self, at_ms: Ms, team: int, flow: int) -> None:
        self._number += 1
        heapq.heappush(self._due, _Due(at_ms, self._number, team, flow))

    def _push_arrival(self, place: int, flow: int, after_ms: Ms, turn: int) -> None:
        team, each = self._lab.teams[place], self._lab.flows[flow]
        chance = stream(self._lab.seed, team.leaf, each.stream, "gap", turn)
        at_ms = next_arrival(chance, after_ms, each.per_working_day(team))
        if at_ms < self._lab.window.to_ms:
            self._number += 1
            heapq.heappush(self._due, _Due(at_ms, self._number, place, flow))

    def _arrive(self, due: _Due, now_ms: Ms) -> Sequence[Job]:
        team, flow = self._lab.teams[due.team], self._lab.flows[due.flow]
        gaps = (team.leaf, f"{flow.stream}/gap")
        self._submitted[gaps] = turn = self._submitted.get(gaps, 0) + 1
        self._push_arrival(due.team, due.flow, due.at_ms, turn)
        if not self._lab.seasons[team.leaf].active(now_ms):
            return ()
        job = self._made(team, flow.stream, flow.recipe, now_ms)
        mine = self._by_flow[due.flow]
        if flow.outstanding_max is not None and mine[due.team] + job.gpus > flow.outstanding_max(team):
            return ()
        if not flow.gangs:
            mine[due.team] += job.gpus
            self._take(job, team, flow.stream, _Held(flow.pool, due.team, job.gpus, flow=due.flow))
            return (job,)
        if 2 * (sum(mine) + job.gpus) <= self._lab.pools[flow.pool].target_gpus and not self._is_announced(due):
            mine[due.team] += job.gpus
            self._announced.append((due.flow, due.team, job.gpus))
            self._look_soon(now_ms)
        return ()

    def _is_announced(self, due: _Due) -> bool:
        return any((flow, team) == (due.flow, due.team) for flow, team, _gpus in self._announced)

    def _make_good(self, now_ms: Ms) -> list[Job]:
        """Submit the announced gangs, first come first, for whose larger half their pool has room."""
        jobs, announced, self._announced = [], self._announced, []
        for at, place, gpus in announced:
            flow, team = self._lab.flows[at], self._lab.teams[place]
            if self.outstanding(flow.pool) + gpus // 2 > self._lab.pools[flow.pool].target_gpus:
                self._announced.append((at, place, gpus))
                continue
            job = self._made(team, flow.stream, flow.recipe, now_ms)
            self._take(job, team, flow.stream, _Held(flow.pool, place, gpus, big=True, flow=at))
            jobs.append(job)
        return jobs

    def _fill(self, pool: int, now_ms: Ms) -> list[Job]:
        lab, spec, jobs = self._lab, self._lab.pools[pool], []
        here = [place for place, team in enumerate(lab.teams) if team.weight_ppm and lab.seasons[team.leaf].active(now_ms)]
        whole = sum(lab.teams[place].weight_ppm for place in here)
        coming = sum(gpus for flow, _place, gpus in self._announced if lab.flows[flow].pool == pool)
        missing = spec.target_gpus - self.outstanding(pool) - coming
        while here and missing > 0:
            # Whoever has least for its weight; ties to the first.
            place = min(here, key=lambda each: self._counted(pool, each, whole) * PPM_WHOLE // lab.teams[each].weight_ppm)
            team = lab.teams[place]
            recipe = spec.recipes.get(team.leaf) or spec.recipes[""]
            job = self._made(team, spec.stream, recipe, now_ms)
            self._take(job, team, spec.stream, _Held(pool, place, job.gpus))
            missing -= job.gpus
            jobs.append(job)
        return jobs

    def _counted(self, pool: int, place: int, whole: int) -> int:
        part = self._lab.pools[pool].target_gpus * self._lab.teams[place].weight_ppm // whole
        return self._kept[pool][place] + min(self._big[pool][place], part // 2)

    def _burst(self, burst: Burst, now_ms: Ms) -> list[Job]:
        place = next(place for place, team in enumerate(self._lab.teams) if team.leaf == burst.leaf)
        team, jobs, left = self._lab.teams[place], [], burst.gpus
        while left > 0:
            job = self._made(team, "burst", burst.recipe, now_ms)
            self._take(job, team, "burst", _Held(0, place, job.gpus, big=True))
            left -= job.gpus
            jobs.append(job)
        return jobs

    def _made(self, team: Team, name: str, recipe: Recipe, now_ms: Ms) -> Job:
        turn = self._submitted.get((team.leaf, name), 0)
        asked = Asked(f"{team.leaf}-{name}-{turn}", now_ms, team.leaf, team.users, self._lab.gpus_max(team), turn)
        return recipe(stream(self._lab.seed, team.leaf, name, turn), asked)

    def _take(self, job: Job, team: Team, name: str, held: _Held) -> None:
        self._submitted[team.leaf, name] = self._submitted.get((team.leaf, name), 0) + 1
        self._held[job.job] = held
        self._count(held, held.gpus)

    def _count(self, held: _Held, gpus: int) -> None:
        (self._big if held.big else self._kept)[held.pool][held.team] += gpus
