"""The world: a virtual clock, and on it the agents, nodes and jobs that a policy commands.

Events of one instant are noted together before the policy decides, so the result does not depend on which came first. Never decides
who runs; never reads a real clock. Same scenario, policy and seed: same history, to the byte.
"""

import heapq
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from allmende.proto.placement import NodeReplicas
from allmende.proto.units import HOUR_MS, Ms
from allmende.simulator.model import (
    History,
    Job,
    Life,
    NodeChange,
    Promise,
    RoomSample,
    Run,
    RunEnd,
)
from allmende.simulator.ports import Close, Evict, Grant, Policy, Promised, Refuse, Renewed, Scenario, Stop
from allmende.simulator.world.rolls import Trouble, leaving_ms

Kind: TypeAlias = Literal["tree", "node", "start", "finish", "left", "sample"]

# A policy that still wants something after so many rounds at one instant goes round in circles.
ROUNDS_MAX = 10_000
SAMPLE_MS = HOUR_MS


class Stuck(RuntimeError):
    """The policy did not come to rest at one instant: a fault in a rule, never of the input."""


class _Attempt(Struct):
    """An attempt while it lives. `saved_before_ms`: work that earlier attempts had saved."""

    name: str
    life: Life
    leaf: str | None
    placement: tuple[NodeReplicas, ...]
    slice_ms: Ms
    granted_at_ms: Ms
    saved_before_ms: Ms
    started_at_ms: Ms | None = None
    protected_until_ms: Ms | None = None
    ordered_at_ms: Ms | None = None
    claimant: str | None = None
    leaves_as: RunEnd | None = None
    over: bool = False


class _Event(NamedTuple):
    at_ms: Ms
    number: int
    kind: Kind
    what: Any


class World:
    """One run of one scenario under one policy."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int) -> None:
        self.scenario, self.policy, self._seed = scenario, policy, seed
        window = scenario.window
        self.now_ms: Ms = window.begin_ms
        self.history = History(
            policy=policy.name,
            cluster=scenario.cluster,
            window=window,
            trees=[],
            lives={},
            runs=[],
            nodes=[],
            standings=[],
            rooms=[],
            promises=[],
            reached_ms=window.begin_ms,
        )
        self._events: list[_Event] = []
        self._number = 0
        self._attempts: dict[str, _Attempt] = {}
        self._on_node: dict[str, dict[str, None]] = {node.node: {} for node in scenario.cluster.nodes}
        self._free: dict[str, int] = {node.node: node.gpus for node in scenario.cluster.nodes}
        self._specs = {node.node: node for node in scenario.cluster.nodes}
        self._up = dict.fromkeys(self._specs, True)
        self._saved: dict[str, Ms] = {}
        self._troubles: dict[str, Trouble] = {}
        self._begin()

    # ------------------------------------------------------------------------------------------------------------------- running

    def run(self, progress: Callable[[Ms], None] | None = None) -> History:
        """Run to the end of the window. After an exception (Ctrl-C) `history` holds what happened so far, closed by `close`."""
        until_ms = self.scenario.window.to_ms
        while (at_ms := self._next_ms()) is not None and at_ms < until_ms:
            self.step(at_ms)
            if progress is not None:
                progress(at_ms)
        self.now_ms = until_ms
        return self.close()

    def step(self, at_ms: Ms) -> None:
        """Everything that happens at one instant."""
        assert at_ms >= self.now_ms, "the clock never goes back"
        self.now_ms = at_ms
        for _round in range(ROUNDS_MAX):
            self._happen()
            self._submit()
            if not self._decide() and not self._due():
                return
        raise Stuck(f"{self.policy.name} did not come to rest at {at_ms} ms after {ROUNDS_MAX} rounds")

    def close(self) -> History:
        """End the record: attempts that still live are written as `still_running`."""
        self.history.reached_ms = self.now_ms
        for attempt in self._attempts.values():
            if not attempt.over:
                self._record(attempt, "still_running", 0)
        return self.history

    def _begin(self) -> None:
        for change in self.scenario.trees:
            self._at(change.at_ms, "tree", change)
        failures = self.scenario.cluster.failures
        for spec in self.scenario.cluster.nodes:
            self._at(self.now_ms, "node", (spec.node, True))
            if failures is not None:
                trouble = self._troubles[spec.node] = Trouble(self._seed, spec.node, failures)
                self._at(self.now_ms + trouble.up_ms(), "node", (spec.node, False))
        self._at(self.now_ms, "sample", None)

    def _at(self, at_ms: Ms, kind: Kind, what: object) -> None:
        self._number += 1
        heapq.heappush(self._events, _Event(at_ms, self._number, kind, what))

    def _next_ms(self) -> Ms | None:
        times = [at_ms for at_ms in (self.scenario.workload.due_ms(), self.policy.due_ms()) if at_ms is not None]
        if self._events:
            times.append(self._events[0].at_ms)
        # A timer that is overdue rings now.
        return max(self.now_ms, min(times)) if times else None

    def _due(self) -> bool:
        at_ms = self.scenario.workload.due_ms()
        return bool(self._events and self._events[0].at_ms <= self.now_ms) or (at_ms is not None and at_ms <= self.now_ms)

    def _happen(self) -> None:
        while self._events and self._events[0].at_ms <= self.now_ms:
            event = heapq.heappop(self._events)
            match event.kind:
                case "start":
                    self._start(event.what)
                case "finish":
                    self._finish(event.what)
                case "left":
                    self._left(event.what)
                case "node":
                    self._node(*event.what)
                case "tree":
                    self.history.trees.append(event.what)
                    self.policy.tree(event.what)
                case "sample":
                    self._sample()

    def _submit(self) -> None:
        due_ms = self.scenario.workload.due_ms()
        if due_ms is None or due_ms > self.now_ms:
            return
        for job in self.scenario.workload.submit(self.now_ms):
            assert job.job not in self.history.lives, f"job {job.job} was submitted twice"
            self.history.lives[job.job] = Life(job=job, submitted_at_ms=self.now_ms, leaf=None)
            self.history.events += 1
            self.policy.submitted(job, self.now_ms)

    # ------------------------------------------------------------------------------------------------------------------ deciding

    def _decide(self) -> bool:
        actions = self.policy.decide(self.now_ms)
        self.history.looks += 1
        for action in actions:
            match action:
                case Grant():
                    self._grant(action)
                case Evict():
                    self._evict(action)
                case Stop():
                    self._stop(action)
                case Refuse():
                    self.history.lives[action.job].refused = action.code
                    self._end_job(self.history.lives[action.job], "refused")
                case Close():
                    self._end_job(self.history.lives[action.job], action.end)
                case Promised():
                    self.history.promises.append(Promise(self.now_ms, action.job, action.by_ms, action.moved_by_failure))
                case Renewed():
                    self._attempts[action.attempt].protected_until_ms = action.protected_until_ms
        return bool(actions)

    def _grant(self, grant: Grant) -> None:
        life = self.history.lives[grant.job]
        life.leaf, life.attempts = grant.leaf, life.attempts + 1
        gpus = life.job.gpus_per_replica
        for part in grant.placement:
            self._free[part.node] -= part.replicas * gpus
            assert self._free[part.node] >= 0, f"{self.policy.name} granted more on {part.node} than is free"
            assert self._up[part.node], f"{self.policy.name} granted on {part.node}, which is down"
            self._on_node[part.node][grant.attempt] = None
        assert sum(part.replicas for part in grant.placement) == life.job.replicas, "whole gangs or none"
        attempt = _Attempt(
            name=grant.attempt,
            life=life,
            leaf=grant.leaf,
            placement=grant.placement,
            slice_ms=grant.slice_ms,
            granted_at_ms=self.now_ms,
            saved_before_ms=self._saved.get(grant.job, 0),
        )
        self._attempts[grant.attempt] = attempt
        self._at(self.now_ms + self.scenario.cluster.start_ms, "start", attempt)

    def _evict(self, evict: Evict) -> None:
        attempt = self._attempts[evict.attempt]
        if attempt.over or attempt.ordered_at_ms is not None:
            return
        attempt.ordered_at_ms, attempt.claimant = self.now_ms, evict.claimant
        self._leave(attempt, "evicted", evict.grace_ms)

    def _stop(self, stop: Stop) -> None:
        attempt = self._attempts[stop.attempt]
        if not attempt.over and attempt.leaves_as is None:
            self._leave(attempt, "stopped", stop.grace_ms)

    def _leave(self, attempt: _Attempt, end: RunEnd, grace_ms: Ms) -> None:
        attempt.leaves_as = end
        takes_ms = leaving_ms(self._seed, attempt.life.job.job, attempt.life.attempts, self.scenario.cluster.leaving, grace_ms)
        self._at(self.now_ms + takes_ms, "left", attempt)

    # ----------------------------------------------------------------------------------------------------------------- happening

    def _start(self, attempt: _Attempt) -> None:
        if attempt.over:
            return
        life = attempt.life
        attempt.started_at_ms = self.now_ms
        attempt.protected_until_ms = self.policy.started(attempt.name, self.now_ms)
        if life.first_started_at_ms is None:
            life.first_started_at_ms = self.now_ms
        self.history.events += 1
        every_ms = life.job.saves_every_ms
        if every_ms is not None:
            self.policy.saves(attempt.name, every_ms, self.now_ms)
        self._at(self.now_ms + life.job.runtime_ms - attempt.saved_before_ms, "finish", attempt)

    def _finish(self, attempt: _Attempt) -> None:
        if not attempt.over:
            self._end(attempt, "failed" if attempt.life.job.fails else "finished")

    def _left(self, attempt: _Attempt) -> None:
        if not attempt.over:
            assert attempt.leaves_as is not None
            self._end(attempt, attempt.leaves_as)

    def _node(self, name: str, up: bool) -> None:
        spec = self._specs[name]
        self._up[name] = up
        healthy = spec.gpus if up else 0
        self.history.nodes.append(NodeChange(self.now_ms, name, healthy))
        self.policy.node(name, spec.gpus, healthy, spec.gpu_model, self.now_ms)
        if not up:
            for attempt in list(self._on_node[name]):
                self._end(self._attempts[attempt], "node_lost")
        trouble = self._troubles.get(name)
        if trouble is not None and not up:
            self._at(self.now_ms + trouble.down_ms(), "node", (name, True))
        elif trouble is not None and self.now_ms > self.scenario.window.begin_ms:
            self._at(self.now_ms + trouble.up_ms(), "node", (name, False))

    def saved_at_ms(self, attempt: _Attempt) -> Ms | None:
        """The attempt's last save up to now; None: it has saved nothing new."""
        every_ms = attempt.life.job.saves_every_ms
        if every_ms is None or attempt.started_at_ms is None:
            return None
        saves = (self.now_ms - attempt.started_at_ms) // every_ms
        return attempt.started_at_ms + saves * every_ms if saves else None

    def _end(self, attempt: _Attempt, end: RunEnd) -> None:
        life = attempt.life
        attempt.over = True
        gpus = life.job.gpus_per_replica
        for part in attempt.placement:
            self._free[part.node] += part.replicas * gpus
            del self._on_node[part.node][attempt.name]
        saved_at_ms = self.saved_at_ms(attempt)
        lost_ms = 0
        if end in ("evicted", "node_lost") and attempt.started_at_ms is not None:
            kept_ms = 0 if saved_at_ms is None else saved_at_ms - attempt.started_at_ms
            self._saved[life.job.job] = attempt.saved_before_ms + kept_ms
            lost_ms = self.now_ms - attempt.started_at_ms - kept_ms
        life.evictions += end == "evicted"
        self.history.events += 1
        self._record(attempt, end, lost_ms * life.job.gpus)
        del self._attempts[attempt.name]
        if end in ("finished", "failed"):
            self._end_job(life, end)
        self.policy.ended(attempt.name, end, self.now_ms, saved_at_ms)

    def _record(self, attempt: _Attempt, end: RunEnd, lost_gpu_ms: int) -> None:
        self.history.runs.append(
            Run(
                attempt=attempt.name,
                job=attempt.life.job.job,
                leaf=attempt.leaf,
                placement=attempt.placement,
                gpus_per_replica=attempt.life.job.gpus_per_replica,
                slice_ms=attempt.slice_ms,
                granted_at_ms=attempt.granted_at_ms,
                started_at_ms=attempt.started_at_ms,
                protected_until_ms=attempt.protected_until_ms,
                ordered_at_ms=attempt.ordered_at_ms,
                claimant=attempt.claimant,
                ended_at_ms=self.now_ms,
                end=end,
                lost_gpu_ms=lost_gpu_ms,
            )
        )

    def _end_job(self, life: Life, end: str) -> None:
        if life.end is not None:
            return
        life.ended_at_ms, life.end = self.now_ms, end  # type: ignore[assignment]
        self._saved.pop(life.job.job, None)
        self.scenario.workload.ended(life.job, self.now_ms)

    def _sample(self) -> None:
        if self.now_ms > self.scenario.window.begin_ms:
            sample = self.policy.standings(self.now_ms)
            if sample.standings:
                self.history.standings.append(sample)
            free = sum(free for node, free in self._free.items() if self._up[node])
            whole = sum(free for node, free in self._free.items() if self._up[node] and free == self._specs[node].gpus)
            self.history.rooms.append(RoomSample(self.now_ms, free, whole, *self.policy.waiting()))
        self._at(self.now_ms + SAMPLE_MS, "sample", None)


def outstanding(history: History) -> list[Job]:
    """The jobs that were not over when the run ended."""
    return [life.job for life in history.lives.values() if life.end is None]
