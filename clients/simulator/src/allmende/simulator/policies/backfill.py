"""One queue with EASY backfill, and levels of priority where there is more than one: what `fifo` and `priority` have in common.

The first job that does not fit gets a reservation; others start before it where they do not delay it. Estimates are perfect: the
policy is told how long each job will work, which no real cluster knows, so that the comparison favours these worlds and not ours.
Reads no budget but to say what a job is charged to; knows no fairness.
"""

import heapq
from collections.abc import Sequence
from itertools import count

from allmende.proto.budget import Budget
from allmende.proto.placement import NodeReplicas, place
from allmende.proto.tree import covers_slices, leaves
from allmende.proto.units import Ms
from allmende.simulator.model import Cluster, Job, RunEnd, StandingSample, TreeChange
from allmende.simulator.policies.displacing import Candidate, Displacement, displace
from allmende.simulator.policies.holding import Hold, Holds
from allmende.simulator.policies.picking import Picker
from allmende.simulator.policies.queue import Kind, Queue, Waiting
from allmende.simulator.policies.room import Floor, Rooms, gpus_by_node, shape_of
from allmende.simulator.ports import Action, Close, Evict, Grant, Promised, Refuse, Stop


class Backfill:
    """The queue, the attempts and the room of one cluster. Implements `ports.Policy` but for its name."""

    promises = False
    """True where a reservation is a promise: nobody can come before it."""

    def __init__(self, cluster: Cluster, levels: int, depth: int, grace_ms: Ms) -> None:
        self.cluster = cluster
        self.budgets: dict[str, Budget] = {}
        self.leaves: frozenset[str] = frozenset()
        self._grace_ms = grace_ms
        self._floor = Floor(cluster.nodes, levels)
        self._queue = Queue()
        self._holds = Holds(self._floor)
        self._picker = Picker(self._floor, self._queue, self._holds, self.limit_of, depth, grace_ms)
        self._numbers, self._attempts = count(), count(1)
        self._timers: list[tuple[Ms, str]] = []
        self._actions: list[Action] = []
        self._waiting_jobs = self._waiting_gpus = 0
        self._wanted = False

    # --------------------------------------------------------------------------------------------------- what a policy says of jobs

    def kind_of(self, job: Job) -> Kind:
        """How the job is treated under the tree in force: here all alike."""
        return Kind(0, None)

    def limit_of(self, team: str) -> int:
        """GPUs that the team's protected work may hold at once: here there is no such work."""
        return 0

    # ------------------------------------------------------------------------------------------------------- what is taken note of

    def tree(self, change: TreeChange) -> None:
        """A tree of budgets is in force from now on."""
        self.budgets = {each.budget: each for each in change.budgets}
        self.leaves = leaves(self.budgets)
        for waiting in self._queue.all():
            kind = self.kind_of(waiting.job)
            if kind != waiting.kind:
                self._queue.take(waiting)
                waiting.kind = kind
                self._queue.put(waiting)
        self._holds.reservation = None
        self._wanted = True

    def node(self, node: str, gpus: int, healthy: int, gpu_model: str | None, now_ms: Ms) -> None:
        """A node reports."""
        self._floor.set_healthy(node, healthy)
        for claim in self._holds.claims_on(node):
            # What it waits for may never come: it goes back to its place and asks again.
            self._holds.end(claim, now_ms)
            self._line_up(claim.waiting)
        self._holds.reservation = None
        self._wanted = True

    def submitted(self, job: Job, now_ms: Ms) -> None:
        """A job came in: refuse it, or let it wait."""
        if not self._floor.installed.fits(shape_of(job)):
            model = f" of model {job.gpu_model}" if job.gpu_model else ""
            sentence = f"{job.replicas} x {job.gpus_per_replica} GPUs{model} never fit, even when the cluster is empty"
            self._actions.append(Refuse(job.job, "never_fits", sentence))
            return
        self._wait(Waiting(next(self._numbers), job, self.kind_of(job)))

    def started(self, attempt: str, now_ms: Ms) -> Ms:
        """All replicas run. Protected is what the job asked for: these worlds keep no such promise, and figures shall show it."""
        hold = self._holds.attempts[attempt]
        hold.started_at_ms = now_ms
        job = hold.waiting.job
        if not hold.leaving:
            self._holds.ends_at(hold, now_ms + hold.waiting.length_ms - self.cluster.start_ms)
            if job.max_runtime_ms is not None and job.max_runtime_ms < job.runtime_ms - hold.waiting.saved_ms:
                heapq.heappush(self._timers, (now_ms + job.max_runtime_ms, attempt))
        return now_ms + hold.slice_ms

    def saves(self, attempt: str, every_ms: Ms, now_ms: Ms) -> None:
        """Nothing: these worlds do not look at saves."""

    def ended(self, attempt: str, end: RunEnd, now_ms: Ms, saved_at_ms: Ms | None) -> None:
        """No replica runs any more."""
        hold = self._holds.attempts[attempt]
        self._holds.end(hold, now_ms)
        self._wanted = True
        waiting = hold.waiting
        if end in ("finished", "failed"):
            return
        if end == "stopped":
            self._actions.append(Close(waiting.job.job, "max_runtime"))
        elif end == "evicted" and not waiting.job.resumable:
            self._actions.append(Close(waiting.job.job, "preempted"))
        else:
            if saved_at_ms is not None and hold.started_at_ms is not None:
                waiting.saved_ms += saved_at_ms - hold.started_at_ms
            self._wait(waiting)

    # -------------------------------------------------------------------------------------------------------------------- deciding

    def due_ms(self) -> Ms | None:
        """The earliest maximum runtime."""
        return self._timers[0][0] if self._timers else None

    def decide(self, now_ms: Ms) -> Sequence[Action]:
        """Who is over time, then a pass over the queue if anything changed."""
        while self._timers and self._timers[0][0] <= now_ms:
            _at_ms, attempt = heapq.heappop(self._timers)
            hold = self._holds.attempts.get(attempt)
            if hold is not None and not hold.leaving:
                self._holds.leaves(hold, now_ms + self._grace_ms)
                self._actions.append(Stop(attempt, self._grace_ms))
        if self._wanted:
            self._wanted = False
            self._pass(now_ms)
        actions, self._actions = self._actions, []
        return actions

    def _pass(self, now_ms: Ms) -> None:
        for claim in list(self._holds.claims.values()):
            assert claim.claim is not None
            if all(self._floor.free(node) >= gpus for node, gpus in claim.gpus.items()):
                self._holds.end(claim, now_ms)
                self._grant(claim.waiting, claim.claim, now_ms)
        while (pick := self._picker.pick(now_ms)) is not None:
            self._promise(now_ms)
            waiting = self._queue.job(pick.number)
            if pick.claims:
                self._claim(waiting, pick.rooms, now_ms)
                continue
            rooms = pick.rooms.of(waiting.shape, self._picker.put_off())
            placement = place(rooms, waiting.job.replicas, waiting.job.gpus_per_replica)
            assert placement is not None, "what was picked fits"
            self._queue.take(waiting)
            self._grant(waiting, placement, now_ms)
        self._promise(now_ms)

    def _grant(self, waiting: Waiting, placement: tuple[NodeReplicas, ...], now_ms: Ms) -> None:
        job = waiting.job
        if waiting.promised_ms is not None and waiting.promised_ms < now_ms:
            # A node failed after the word was given, and it never came to the head of the queue again to be given another.
            self._actions.append(Promised(job.job, now_ms, True))
        waiting.promised_ms = None
        leaf = self._leaf(job)
        hold = Hold(
            name=f"{next(self._attempts):09d}",
            waiting=waiting,
            kind=waiting.kind,
            gpus=gpus_by_node(placement, job.gpus_per_replica),
            granted_at_ms=now_ms,
            ends_ms=now_ms + waiting.length_ms,
            slice_ms=job.slice_ms if leaf is not None else 0,
        )
        self._holds.begin(hold)
        self._waiting_jobs -= 1
        self._waiting_gpus -= job.gpus
        self._actions.append(Grant(hold.name, job.job, leaf, placement, hold.slice_ms))

    def _leaf(self, job: Job) -> str | None:
        """What the job is charged to, by Allmende's own rule; None: unallocated."""
        if job.slice_ms == 0 or job.budget is None or job.budget not in self.leaves:
            return None
        return job.budget if covers_slices(self.budgets[job.budget]) else None

    def _claim(self, waiting: Waiting, rooms: Rooms, now_ms: Ms) -> None:
        """Send victims away and keep the room for the job until they are gone."""
        plan = self._displacement(waiting, rooms)
        self._queue.take(waiting)
        until_ms = now_ms + self._grace_ms
        for victim in plan.victims:
            self._holds.leaves(self._holds.attempts[victim], until_ms)
            self._actions.append(Evict(victim, self._grace_ms, waiting.job.job))
        claim = Hold(
            name=f"for {waiting.job.job}",
            waiting=waiting,
            kind=waiting.kind,
            gpus=gpus_by_node(plan.placement, waiting.job.gpus_per_replica),
            granted_at_ms=now_ms,
            ends_ms=until_ms + waiting.length_ms,
            claim=plan.placement,
        )
        self._holds.begin(claim)

    def _displacement(self, waiting: Waiting, rooms: Rooms) -> Displacement:
        candidates = [
            Candidate(hold.name, hold.kind.level, hold.granted_at_ms, hold.gpus)
            for hold in self._holds.attempts.values()
            if hold.yields_to(waiting.kind.level)
        ]
        model = waiting.job.gpu_model
        most = {node: gpus for node, gpus in rooms.gpus.items() if model in (None, self._floor.models[node])}
        plan = displace(waiting.shape, self._floor.left_behind(), most, candidates)
        assert plan is not None, "what was picked fits once all that yields is gone"
        return plan

    def _promise(self, now_ms: Ms) -> None:
        """Say the reservation's instant, where it is new."""
        reservation = self._holds.reservation
        if not self.promises or reservation is None:
            return
        waiting = self._queue.job(reservation.number)
        said_ms = waiting.promised_ms
        if said_ms != reservation.at_ms:
            waiting.promised_ms = reservation.at_ms
            later = said_ms is not None and said_ms < reservation.at_ms
            self._actions.append(Promised(waiting.job.job, reservation.at_ms, later))

    def _wait(self, waiting: Waiting) -> None:
        self._waiting_jobs += 1
        self._waiting_gpus += waiting.job.gpus
        self._line_up(waiting)

    def _line_up(self, waiting: Waiting) -> None:
        job = waiting.job
        work_ms = max(0, job.runtime_ms - waiting.saved_ms)
        if job.max_runtime_ms is not None and job.max_runtime_ms < work_ms:
            # It is told to stop then, and may take its whole notice.
            work_ms = job.max_runtime_ms + self._grace_ms
        waiting.length_ms = self.cluster.start_ms + work_ms
        waiting.kind = self.kind_of(job)
        self._queue.put(waiting)
        self._wanted = True

    # --------------------------------------------------------------------------------------------------------------------- reading

    def standings(self, now_ms: Ms) -> StandingSample:
        """Empty: these worlds know no standing."""
        return StandingSample(now_ms, {})

    def waiting(self) -> tuple[int, int]:
        """Jobs and GPUs that wait, for victims to leave or in the queue."""
        return self._waiting_jobs, self._waiting_gpus
