"""What an agent does with orders and with what happens on its cluster: a fold over both. Pure.

Every method takes one happening and returns what is to be done about it, as values. Never reads a clock, never touches the bus or
a process, never starts an attempt twice: neither a repeated grant nor one that comes after the attempt's end does anything.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from allmende.agent.sdk.backend import Cause, Exit, Launch, NodeState, Running, Vitals
from allmende.agent.sdk.counters import COUNTERS_A_MESSAGE, counters_of, tick_messages
from allmende.agent.sdk.devices import Devices
from allmende.agent.sdk.opened import Opened
from allmende.proto.admission import AttemptStopOrdered, JobGranted
from allmende.proto.agent import (
    AttemptEnded,
    AttemptStarted,
    Counter,
    FreedGpus,
    GpuFreed,
    NodeReported,
    Outcome,
    UsageTick,
)
from allmende.proto.lost import NodeDeclaredLost
from allmende.proto.message import Message
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.units import Ms
from allmende.proto.user import Payload

# A grant is delivered again minutes later at most. 200,000 ends are more than an hour at 40 a second, and 26 bytes each.
ENDS_REMEMBERED = 200_000


class Ending(NamedTuple):
    """An end that the ledger has not confirmed: said again until it has. `ticks` carry the finals that did not fit into `body`."""

    body: AttemptEnded
    ticks: tuple[UsageTick, ...] = ()


class Say(NamedTuple):
    """Publish this."""

    body: Message
    occurred_at_ms: Ms
    replaces: str | None = None
    """A tick says this of its node: an older one that still waits for the bus need not be sent, because counters are cumulative."""


class Keep(NamedTuple):
    """Keep this end until it is confirmed, before anything of it is said."""

    ending: Ending


class Fetch(NamedTuple):
    """Ask admission for the payload of this attempt."""

    attempt: str


class Start(NamedTuple):
    """Start this."""

    launch: Launch


class Signal(NamedTuple):
    """Send SIGTERM or SIGKILL to the attempt."""

    attempt: str
    signal: Literal["TERM", "KILL"]
    cause: Cause


class Wake(NamedTuple):
    """Call `due` at this instant of the clock."""

    at_ms: Ms


Action: TypeAlias = Say | Keep | Fetch | Start | Signal | Wake


def lost_with_agent(cluster: str, attempt: str, job: str, ended_at_ms: Ms, detail: str) -> Ending:
    """The end of an attempt of an earlier agent that runs no longer.

    No counters: nobody observed it since that agent's last tick, and what nobody observed is not charged.
    """
    return Ending(
        AttemptEnded(
            cluster=cluster,
            attempt=attempt,
            job=job,
            ended_at_ms=ended_at_ms,
            outcome="node_lost",
            detail=detail[:1_000],
        )
    )


def say_again(ending: Ending) -> list[Action]:
    """Say an end that was kept. Its newest copy takes the place of one that still waits for the bus."""
    body = ending.body
    ticks = [Say(tick, tick.at_ms, f"end/{body.attempt}/{number}") for number, tick in enumerate(ending.ticks)]
    return [*ticks, Say(body, body.ended_at_ms, f"end/{body.attempt}")]


class Attempts:
    """All attempts of one cluster. `epoch` must be higher than that of any agent that counted for the cluster before."""

    def __init__(self, cluster: str, epoch: int) -> None:
        self._cluster = cluster
        self._epoch = epoch
        self._fence = 0
        # Numbers of node reports go on where an earlier agent's ended, as epochs do.
        self._node_seq = epoch
        self._devices = Devices()
        self._open: dict[str, Opened] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._unconfirmed: dict[str, Ending] = {}
        # Nodes that were declared lost, with what is still to be killed: nothing is said of such a node until that is done.
        self._fences: dict[str, frozenset[str]] = {}

    @property
    def open(self) -> tuple[str, ...]:
        """Attempts that were granted and have not ended."""
        return tuple(self._open)

    def is_starting(self, attempt: str) -> bool:
        """True from its grant until it runs, or is said never to have started."""
        at = self._open.get(attempt)
        return at is not None and at.phase != "running"

    def is_fenced(self, node: str) -> bool:
        """True from the word that the node is lost until everything that was declared lost with it is dead."""
        return node in self._fences

    @property
    def unconfirmed(self) -> tuple[Ending, ...]:
        """Ends that the ledger has not confirmed yet, oldest first."""
        return tuple(self._unconfirmed.values())

    # ------------------------------------------------------------------------------------------------------------------ nodes

    def node_changed(self, state: NodeState, at_ms: Ms) -> list[Action]:
        """A node is new or changed since `at_ms`. What was about to start on a node that is down never starts."""
        if not self._devices.report(state):
            return []
        actions: list[Action] = [] if self.is_fenced(state.node) else [self._report(state, at_ms)]
        if not state.healthy_gpus:
            for attempt in [each for each in self._open.values() if each.phase == "fetching"]:
                if any(place.node == state.node for place in attempt.places):
                    actions += self._never_started(attempt, at_ms, f"node {state.node} went down before the start")
        return actions

    def _report(self, state: NodeState, at_ms: Ms) -> Say:
        self._node_seq += 1
        body = NodeReported(
            cluster=self._cluster,
            node=state.node,
            at_ms=at_ms,
            seq=self._node_seq,
            installed_gpus=state.installed_gpus,
            healthy_gpus=state.healthy_gpus,
            gpu_model=state.gpu_model,
            reason=state.reason,
            cordon=state.cordon,
        )
        return Say(body, at_ms)

    # ----------------------------------------------------------------------------------------------------------------- orders

    def granted(self, grant: JobGranted, now_ms: Ms) -> list[Action]:
        """A grant. Answered by a start, or by `never_started` with the reason; a repeated one by nothing."""
        if grant.attempt in self._open or grant.attempt in self._ended:
            return []
        if grant.fence < self._fence:
            detail = f"the grant is of term {grant.fence}; this agent has heard of term {self._fence}"
            return self._refuse(grant.attempt, grant.job, now_ms, detail)
        self._fence = grant.fence
        places = self._devices.take(grant.placement, grant.gpus_per_replica)
        if isinstance(places, str):
            return self._refuse(grant.attempt, grant.job, now_ms, places)
        self._open[grant.attempt] = Opened(grant, places, self._epoch)
        return [Fetch(grant.attempt)]

    def payload(self, attempt: str, payload: Payload) -> list[Action]:
        """The payload of a grant arrived. Nothing, when the attempt was stopped meanwhile."""
        at = self._open.get(attempt)
        if at is None or at.phase != "fetching":
            return []
        at.phase = "starting"
        grant = at.grant
        launch = Launch(
            attempt=attempt,
            job=grant.job,
            user=grant.user,
            budget=grant.budget,
            payload=payload,
            places=at.places,
            gpus_per_replica=grant.gpus_per_replica,
            slice_ms=grant.slice_ms,
            epoch=at.epoch,
        )
        return [Start(launch)]

    def cannot_start(self, attempt: str, now_ms: Ms, detail: str) -> list[Action]:
        """The payload did not come in time, or the backend could not start it."""
        at = self._open.get(attempt)
        return [] if at is None or at.phase == "running" else self._never_started(at, now_ms, detail)

    def evicted(self, order: EvictionOrdered, now_ms: Ms) -> list[Action]:
        """An eviction: SIGTERM now, SIGKILL after the grace. Carried out without deciding again."""
        return self._ordered_to_end(order.attempt, order.job, Cause("eviction", order.plan, order.grace_ms), now_ms)

    def stopped(self, order: AttemptStopOrdered, now_ms: Ms) -> list[Action]:
        """A stop by the owner or a limit, like an eviction.

        A stop of an older term is obeyed: only a valid term can have committed it, and ending an attempt twice harms nobody.
        """
        return self._ordered_to_end(order.attempt, order.job, Cause("stop", order.reason, order.grace_ms), now_ms)

    def declared_lost(self, word: NodeDeclaredLost, now_ms: Ms) -> list[Action]:
        """An operator took the node for dead: SIGKILL to all that was declared lost, and the node is reported anew after that.

        What this agent does not run is said to have ended, because its GPUs are free on the agent's word alone.
        """
        actions: list[Action] = []
        self._fences[word.node] = self._fences.get(word.node, frozenset()) | {each.attempt for each in word.attempts}
        for each in word.attempts:
            at = self._open.get(each.attempt)
            if at is not None:
                actions += self._kill_lost(at, now_ms)
            elif each.attempt not in self._ended:
                detail = f"declared lost with node {word.node}; this agent runs no such attempt"
                actions += self._end_without_counters(each.attempt, each.job, now_ms, "node_lost", detail)
        return actions + self._report_anew(now_ms)

    def _kill_lost(self, at: Opened, now_ms: Ms) -> list[Action]:
        at.fenced = True
        if at.phase == "fetching":
            self._forget(at)
            detail = "declared lost before it started"
            return self._end_without_counters(at.grant.attempt, at.grant.job, now_ms, "node_lost", detail)
        at.cause = at.cause or Cause("stop", "declared_lost")
        at.grace_ms = 0
        return [Signal(at.grant.attempt, "KILL", at.cause)] if at.phase == "running" else []

    def _report_anew(self, at_ms: Ms) -> list[Action]:
        """The nodes on which nothing is left to kill, as they are now: only that makes them capacity again."""
        done = [node for node, names in self._fences.items() if not names & self._open.keys()]
        for node in done:
            del self._fences[node]
        return [self._report(state, at_ms) for state in self._devices.nodes if state.node in done]

    def _ordered_to_end(self, attempt: str, job: str, cause: Cause, now_ms: Ms) -> list[Action]:
        if attempt in self._ended:
            return []
        at = self._open.get(attempt)
        if at is None:
            # Whoever waits for the end must hear of it; and should the grant come after its stop, it must not start any more.
            plan = cause.name if cause.kind == "eviction" else None
            return self._refuse(attempt, job, now_ms, f"ordered to end ({cause.name}); this agent runs no such attempt", plan)
        if cause.kind == "eviction":
            at.plan = at.plan or cause.name
        if at.phase == "fetching":
            return self._never_started(at, now_ms, f"ordered to end before it started ({cause.name})")
        first = at.cause is None
        at.cause = at.cause or cause
        at.grace_ms = min(at.grace_ms, cause.grace_ms) if not first else cause.grace_ms
        return self._terminate(at, now_ms, first) if at.phase == "running" else []

    def _terminate(self, at: Opened, now_ms: Ms, first: bool) -> list[Action]:
        assert at.cause is not None
        kill_at_ms = now_ms + at.grace_ms
        if at.kill_at_ms is not None and at.kill_at_ms <= kill_at_ms:
            return []
        at.kill_at_ms = kill_at_ms
        signals: list[Action] = [Signal(at.grant.attempt, "TERM", at.cause)] if first else []
        return [*signals, Wake(kill_at_ms)]

    def due(self, now_ms: Ms) -> list[Action]:
        """SIGKILL for those whose grace has passed."""
        actions: list[Action] = []
        for attempt, at in self._open.items():
            if at.kill_at_ms is not None and at.kill_at_ms <= now_ms and at.cause is not None:
                at.kill_at_ms = None
                actions.append(Signal(attempt, "KILL", at.cause))
        return actions

    # ------------------------------------------------------------------------------------------------------------ happenings

    def started(self, attempt: str, started_at_ms: Ms, now_ms: Ms) -> list[Action]:
        """The backend has started every replica. An order that came meanwhile is carried out at once."""
        at = self._open[attempt]
        at.phase = "running"
        at.started_at_ms = started_at_ms
        body = AttemptStarted(cluster=self._cluster, attempt=attempt, job=at.grant.job, started_at_ms=started_at_ms)
        actions: list[Action] = [Say(body, started_at_ms)]
        if at.exit is not None:
            return actions + self._end(at, at.exit)
        return actions + (self._terminate(at, now_ms, first=True) if at.cause is not None else [])

    def exited(self, left: Exit) -> list[Action]:
        """An attempt left. Before its start was reported (a very short job), the end waits for the start."""
        at = self._open.get(left.attempt)
        if at is None:
            return []
        if at.phase != "running":
            at.exit = left
            return []
        return self._end(at, left)

    def adopted(self, running: Running, now_ms: Ms, fenced: bool = False) -> list[Action]:
        """An attempt that an earlier agent started runs on: its counters go on, and an order that it was given still stands.

        `attempt.started` is said again: that agent may have been killed before it did. `fenced`: it was declared lost, and nothing
        is said of it before it is dead.
        """
        launch = running.launch
        if launch.attempt in self._open or launch.attempt in self._ended:
            return []
        at = self._open[launch.attempt] = Opened(launch, launch.places, launch.epoch)
        self._devices.hold(launch.places)
        at.phase = "running"
        at.started_at_ms = running.started_at_ms
        # At most one tick a millisecond: the numbers go on above all that were given.
        at.seq = at.held_ms = max(0, running.held_ms)
        body = AttemptStarted(cluster=self._cluster, attempt=launch.attempt, job=launch.job, started_at_ms=running.started_at_ms)
        actions: list[Action] = [] if fenced else [Say(body, running.started_at_ms)]
        if running.cause is not None:
            at.cause, at.grace_ms = running.cause, running.cause.grace_ms
            at.plan = running.cause.name if running.cause.kind == "eviction" else None
            actions += self._terminate(at, now_ms, first=False)
        return actions

    def lost(self, attempt: str, job: str, now_ms: Ms, detail: str) -> list[Action]:
        """An attempt that an earlier agent of the cluster started, and that runs no longer.

        No counters: nobody observed it since that agent's last tick, and what nobody observed is not charged.
        """
        if attempt in self._open or attempt in self._ended:
            return []
        return self._end_without_counters(attempt, job, now_ms, "node_lost", detail)

    def left_behind(self, endings: Iterable[Ending]) -> list[Action]:
        """Ends that an earlier agent of the cluster kept, and that were not confirmed to it: said at once, as it would have."""
        actions: list[Action] = []
        for ending in endings:
            self._remember(ending.body.attempt)
            self._unconfirmed[ending.body.attempt] = ending
            actions += say_again(ending)
        return actions

    def confirmed(self, attempts: Iterable[str]) -> None:
        """The ledger has the ends of these attempts in its books: they need not be said again."""
        for attempt in attempts:
            self._unconfirmed.pop(attempt, None)

    def tick(self, at_ms: Ms, vitals: Mapping[str, Vitals]) -> list[Action]:
        """The counters of everything that runs, node by node, at one instant. Every node says at least that it lives."""
        nodes: dict[str, list[Counter]] = defaultdict(list)
        for attempt, at in self._open.items():
            if at.phase == "running" and attempt in vitals and not at.fenced:
                measured_ms = vitals[attempt].held_ms
                held_ms = at_ms - at.started_at_ms if measured_ms is None else measured_ms
                if held_ms < 0:
                    continue
                at.held_ms = max(at.held_ms, held_ms)
                for place, counter in zip(at.places, self._count(at, vitals[attempt]), strict=True):
                    nodes[place.node].append(counter)
        actions: list[Action] = []
        for state in self._devices.nodes:
            if not self.is_fenced(state.node) and (state.healthy_gpus or state.node in nodes):
                messages = tuple(tick_messages(self._cluster, state.node, at_ms, nodes.get(state.node, ())))
                actions += [Say(tick, at_ms, f"{state.node}/{number}") for number, tick in enumerate(messages)]
        return actions

    # ------------------------------------------------------------------------------------------------------------------- ends

    def _count(self, at: Opened, vitals: Vitals) -> tuple[Counter, ...]:
        at.seq += 1
        at.busy_gpu_ms = vitals.busy_gpu_ms
        return counters_of(
            at.grant.attempt,
            at.places,
            epoch=at.epoch,
            seq=at.seq,
            since_ms=at.started_at_ms,
            held_ms=at.held_ms,
            gpus_per_replica=at.grant.gpus_per_replica,
            vitals=vitals,
        )

    def _end(self, at: Opened, left: Exit) -> list[Action]:
        # Never below what a tick has counted: a backend that notices an end late has held the GPUs until then.
        held_ms = left.ended_at_ms - at.started_at_ms if left.held_ms is None else left.held_ms
        at.held_ms = max(at.held_ms, held_ms)
        ended_at_ms = at.started_at_ms + at.held_ms
        finals = self._count(at, Vitals(left.checkpoint_at_ms, at.busy_gpu_ms))
        body = AttemptEnded(
            cluster=self._cluster,
            attempt=at.grant.attempt,
            job=at.grant.job,
            ended_at_ms=ended_at_ms,
            outcome=_outcome(at, left),
            exit_code=left.exit_code,
            plan=at.plan,
            checkpoint_at_ms=left.checkpoint_at_ms,
            counters=finals[:COUNTERS_A_MESSAGE],
            detail=left.detail,
        )
        overflow: dict[str, list[Counter]] = defaultdict(list)
        for place, counter in zip(at.places[COUNTERS_A_MESSAGE:], finals[COUNTERS_A_MESSAGE:], strict=True):
            overflow[place.node].append(counter)
        ticks = tuple(
            tick for node, counters in overflow.items() for tick in tick_messages(self._cluster, node, ended_at_ms, counters)
        )
        freed: dict[str, int] = defaultdict(int)
        for place in at.places:
            freed[place.node] += len(place.devices)
        gpus = GpuFreed(
            cluster=self._cluster,
            attempt=at.grant.attempt,
            freed_at_ms=ended_at_ms,
            plan=at.plan,
            nodes=tuple(FreedGpus(node=node, gpus=count) for node, count in freed.items()),
        )
        self._forget(at)
        ending = self._unconfirmed[body.attempt] = Ending(body, ticks)
        ends = [Say(tick, ended_at_ms) for tick in ticks]
        return [Keep(ending), *ends, Say(body, ended_at_ms), Say(gpus, ended_at_ms), *self._report_anew(ended_at_ms)]

    def _never_started(self, at: Opened, now_ms: Ms, detail: str) -> list[Action]:
        self._forget(at)
        return [*self._refuse(at.grant.attempt, at.grant.job, now_ms, detail, at.plan), *self._report_anew(now_ms)]

    def _forget(self, at: Opened) -> None:
        del self._open[at.grant.attempt]
        self._devices.give_back(at.places)
        self._remember(at.grant.attempt)

    def _refuse(self, attempt: str, job: str, now_ms: Ms, detail: str, plan: str | None = None) -> list[Action]:
        return self._end_without_counters(attempt, job, now_ms, "never_started", detail, plan)

    def _end_without_counters(
        self, attempt: str, job: str, now_ms: Ms, outcome: Outcome, detail: str, plan: str | None = None
    ) -> list[Action]:
        body = AttemptEnded(
            cluster=self._cluster,
            attempt=attempt,
            job=job,
            ended_at_ms=now_ms,
            outcome=outcome,
            plan=plan,
            detail=detail[:1_000],
        )
        self._remember(attempt)
        ending = self._unconfirmed[attempt] = Ending(body)
        return [Keep(ending), Say(body, now_ms)]

    def _remember(self, attempt: str) -> None:
        self._ended[attempt] = None
        if len(self._ended) > ENDS_REMEMBERED:
            self._ended.popitem(last=False)


def _outcome(at: Opened, left: Exit) -> Outcome:
    """What an exit means. Only what our signal ended was evicted or stopped: a job that finishes within its grace has finished."""
    if left.how != "signalled":
        return left.how
    if at.fenced:
        return "node_lost"
    if at.cause is None:
        # Someone else's signal, such as the node's out-of-memory killer: the job's own failure as far as anyone can tell.
        return "failed"
    return "evicted" if at.cause.kind == "eviction" else "stopped"
