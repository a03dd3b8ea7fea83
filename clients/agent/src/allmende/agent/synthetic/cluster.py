"""The simulated nodes and processes of one cluster: a heap of due instants, moved forward by whoever holds the clock. Pure.

Never knows the bus or what is reported. Everything that happens is recorded in `log` at the instant when it happens, and handed
out by `happened`.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from allmende.agent.sdk.backend import CannotStart, Cause, Exit, How, Launch, NodeState, Vitals
from allmende.agent.synthetic.behaviour import (
    KILLED,
    TERMINATED,
    Life,
    Progress,
    leaving_ms,
    life,
    progress,
    saved,
    saved_on_leaving,
)
from allmende.agent.synthetic.command import Command, Unrunnable, parse
from allmende.agent.synthetic.failures import Failure
from allmende.agent.synthetic.truth import AnyRecord, Closed, Ended, NodeWas, Opened, Signalled, Started
from allmende.proto.units import Ms

By = Literal["itself", "TERM", "KILL", "node", "power_off"]
# The first ten letters of an id are its instant, which depends on the machine's speed; the rest is chance, seeded in a demo.
_CHANCE_OF_ID = slice(10, None)


class NodeChange(NamedTuple):
    """A node's new state, and since when."""

    state: NodeState
    at_ms: Ms


class _Process:
    __slots__ = ("command", "course", "launch", "leaves_at_ms", "number", "signalled_at_ms")

    def __init__(self, launch: Launch, command: Command, course: Life, number: int) -> None:
        self.launch = launch
        self.command = command
        self.course = course
        self.number = number
        self.signalled_at_ms: Ms | None = None
        self.leaves_at_ms: Ms | None = None


def nodes_of(gpus: int, gpus_per_node: int) -> tuple[NodeState, ...]:
    """Nodes for so many GPUs; the last one has what is left over (500 GPUs: 62 nodes of 8 and one of 4).

    Raises:
        ValueError: there would be no node.
    """
    if gpus < 1 or gpus_per_node < 1:
        raise ValueError(f"a cluster of {gpus} GPUs in nodes of {gpus_per_node} has no node")
    whole, rest = divmod(gpus, gpus_per_node)
    sizes = [gpus_per_node] * whole + ([rest] if rest else [])
    return tuple(NodeState(f"n{number:04d}", size, size) for number, size in enumerate(sizes, start=1))


class Cluster:
    """One cluster from the moment it is switched on. All instants are clock milliseconds; calls must not go back in time."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[NodeState],
        seed: int,
        failing: Iterator[Failure],
        opened_at_ms: Ms,
        log: Callable[[AnyRecord], None],
    ) -> None:
        self._seed = seed
        self._log = log
        self._names = tuple(state.node for state in nodes)
        self._nodes = {state.node: state for state in nodes}
        self._running: dict[str, _Process] = {}
        self._on_node: dict[str, set[str]] = {name: set() for name in self._names}
        # The jobs' storage: it outlives attempts and nodes.
        self._storage: dict[str, Progress] = {}
        self._starts: dict[str, int] = {}
        self._due: list[tuple[Ms, int, str, str]] = []
        self._order = 0
        self._failing = failing
        self._down_ms: dict[str, Ms] = {}
        self._happened: list[Exit | NodeChange] = []
        log(Opened(at_ms=opened_at_ms, cluster=name, seed=seed))
        for state in nodes:
            self._log_node(opened_at_ms, state)
        self._plan_failure()

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        """All nodes as they are now."""
        return tuple(self._nodes.values())

    @property
    def next_due_ms(self) -> Ms | None:
        """When something happens next by itself."""
        return self._due[0][0] if self._due else None

    def happened(self) -> list[Exit | NodeChange]:
        """What happened since the last call, in order."""
        taken, self._happened = self._happened, []
        return taken

    def vitals(self, at_ms: Ms) -> dict[str, Vitals]:
        """What runs at an instant that has been reached. GPUs of a synthetic job are busy from its productive time on."""
        found: dict[str, Vitals] = {}
        for attempt, process in self._running.items():
            state = saved(process.command, process.course, at_ms)
            busy_ms = progress(process.course, at_ms) - process.course.resumed.saved_ms
            found[attempt] = Vitals(state.saved_at_ms, busy_ms * process.launch.gpus_per_replica)
        return found

    def advance(self, now_ms: Ms) -> None:
        """Let everything happen that is due by now, each at its own instant."""
        while self._due and self._due[0][0] <= now_ms:
            at_ms, _, kind, name = heapq.heappop(self._due)
            if kind == "fail":
                self._fail(name, at_ms)
            elif kind == "return":
                self._return(name, at_ms)
            else:
                self._maybe_leave(name, at_ms)

    # -------------------------------------------------------------------------------------------------------------- processes

    def start(self, launch: Launch, at_ms: Ms) -> None:
        """Start an attempt. A command that cannot run ends at the same instant, with a shell's exit code.

        Raises:
            CannotStart: a node of it is down.
        """
        self.advance(at_ms)
        down = [place.node for place in launch.places if not self._nodes[place.node].healthy_gpus]
        if down:
            raise CannotStart(f"node {down[0]} is down")
        command = parse(launch.payload.command)
        sentence = ""
        if isinstance(command, Unrunnable):
            sentence = command.sentence
            course = Life(at_ms, at_ms, Progress(), at_ms, "failed", command.exit_code)
            command = Command(0)
        else:
            course = life(command, self._storage.get(launch.job, Progress()), at_ms)
        number = self._starts[launch.job] = self._starts.get(launch.job, 0) + 1
        process = self._running[launch.attempt] = _Process(launch, command, course, number)
        for place in launch.places:
            self._on_node[place.node].add(launch.attempt)
        self._log(
            Started(
                at_ms=at_ms,
                attempt=launch.attempt,
                job=launch.job,
                budget=launch.budget,
                slice_ms=launch.slice_ms,
                gpus_per_replica=launch.gpus_per_replica,
                nodes=tuple(place.node for place in launch.places),
            )
        )
        if sentence:
            self._end(process, at_ms, "itself", "failed", course.exit_code, sentence)
        else:
            self._plan(course.ends_at_ms, "leave", launch.attempt)

    def terminate(self, attempt: str, cause: Cause, at_ms: Ms) -> None:
        """SIGTERM. The process leaves when it likes, or never."""
        self.advance(at_ms)
        process = self._running.get(attempt)
        if process is None:
            return
        self._log(Signalled(at_ms=at_ms, attempt=attempt, signal="TERM", cause=cause.kind, name=cause.name))
        if process.signalled_at_ms is None:
            process.signalled_at_ms = at_ms
            takes_ms = leaving_ms(process.command, self._seed, process.launch.job[_CHANCE_OF_ID], process.number)
            if takes_ms is not None:
                process.leaves_at_ms = at_ms + takes_ms
                self._plan(process.leaves_at_ms, "leave", attempt)

    def kill(self, attempt: str, cause: Cause, at_ms: Ms) -> None:
        """SIGKILL: the process is gone at once."""
        self.advance(at_ms)
        process = self._running.get(attempt)
        if process is None:
            return
        self._log(Signalled(at_ms=at_ms, attempt=attempt, signal="KILL", cause=cause.kind, name=cause.name))
        self._end(process, at_ms, "KILL", "signalled", KILLED)

    def power_off(self, at_ms: Ms) -> None:
        """Every node goes down, and all that runs with it."""
        self.advance(at_ms)
        for name in self._names:
            self._down(name, at_ms, "power_off", "the cluster was switched off")
        self._due.clear()

    def close(self, at_ms: Ms, unconfirmed: int) -> None:
        """The last line of the log. `at_ms` is the instant of `power_off`."""
        self._log(Closed(at_ms=at_ms, unconfirmed=unconfirmed))

    def _maybe_leave(self, attempt: str, at_ms: Ms) -> None:
        process = self._running.get(attempt)
        if process is None:
            return
        if process.course.ends_at_ms == at_ms:
            self._end(process, at_ms, "itself", process.course.how, process.course.exit_code)
        elif process.leaves_at_ms == at_ms:
            self._end(process, at_ms, "TERM", "signalled", TERMINATED)

    def _end(self, process: _Process, at_ms: Ms, by: By, how: How, exit_code: int | None, detail: str = "") -> None:
        launch, course = process.launch, process.course
        del self._running[launch.attempt]
        for place in launch.places:
            self._on_node[place.node].discard(launch.attempt)
        if by == "TERM" and process.signalled_at_ms is not None:
            state = saved_on_leaving(process.command, course, process.signalled_at_ms, at_ms)
        else:
            state = saved(process.command, course, at_ms)
        if by == "itself":
            self._storage.pop(launch.job, None)
            self._starts.pop(launch.job, None)
        else:
            self._storage[launch.job] = state
        self._log(
            Ended(
                at_ms=at_ms,
                attempt=launch.attempt,
                job=launch.job,
                by=by,
                exit_code=exit_code,
                progress_ms=progress(course, at_ms),
                saved_ms=state.saved_ms,
            )
        )
        self._happened.append(Exit(launch.attempt, at_ms, how, exit_code, state.saved_at_ms, detail))

    # ------------------------------------------------------------------------------------------------------------------ nodes

    def _fail(self, node: str, at_ms: Ms) -> None:
        if self._nodes[node].healthy_gpus:
            self._down(node, at_ms, "node", "the node does not answer")
            self._plan(at_ms + self._down_ms[node], "return", node)
        self._plan_failure()

    def _down(self, node: str, at_ms: Ms, by: By, reason: str) -> None:
        state = self._nodes[node] = self._nodes[node]._replace(healthy_gpus=0, reason=reason)
        self._log_node(at_ms, state)
        self._happened.append(NodeChange(state, at_ms))
        # Sorted: a set of strings has another order in every process. A gang ends whole, whichever of its nodes is lost.
        for attempt in sorted(self._on_node[node]):
            self._end(self._running[attempt], at_ms, by, "node_lost", None, f"node {node}: {reason}")

    def _return(self, node: str, at_ms: Ms) -> None:
        back = self._nodes[node]
        state = self._nodes[node] = back._replace(healthy_gpus=back.installed_gpus, reason="")
        self._log_node(at_ms, state)
        self._happened.append(NodeChange(state, at_ms))

    def _plan_failure(self) -> None:
        failure = next(self._failing, None)
        if failure is not None:
            node = self._names[failure.node]
            self._down_ms[node] = failure.down_ms
            self._plan(failure.at_ms, "fail", node)

    def _plan(self, at_ms: Ms, kind: str, name: str) -> None:
        self._order += 1
        heapq.heappush(self._due, (at_ms, self._order, kind, name))

    def _log_node(self, at_ms: Ms, state: NodeState) -> None:
        self._log(
            NodeWas(
                at_ms=at_ms,
                node=state.node,
                installed_gpus=state.installed_gpus,
                healthy_gpus=state.healthy_gpus,
                reason=state.reason,
            )
        )
