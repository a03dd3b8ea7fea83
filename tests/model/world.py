"""One world of the protocol: a state that can be compared, and the steps that lead on from it.

The steps are the services' own handlers, `Desk` and `Hearing` of admission, `Preemptor`, and the agent SDK's `Attempts`, on rows in
memory. Admission is opened anew from its rows at every step: so each commit is also the last thing that a killed one has done.
"""

import io
import pickle
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec.structs import replace

from allmende.admission.handlers.desk import Desk
from allmende.admission.handlers.events import Hearing
from allmende.agent.sdk.attempts import Action, Attempts, Ending, Fetch, Keep, Say, Signal, Start, Wake, say_again
from allmende.agent.sdk.backend import Cause, Exit, Launch, NodeState, Running
from allmende.chassis.health import Health
from allmende.chassis.ports import Draft, Event
from allmende.chassis.worker import Outcome
from allmende.preemptor.handlers.batch import Preemptor
from allmende.preemptor.handlers.drains import Drains
from allmende.preemptor.model import Policy
from allmende.proto import admission, agent
from allmende.proto import preemptor as wire
from allmende.proto.envelope import Envelope
from allmende.proto.ids import make_id
from allmende.proto.message import Message
from allmende.proto.subjects import BY_MESSAGE
from allmende.proto.units import HOUR_MS, Ms
from allmende.proto.user import Payload
from tests.admission.builders import CLUSTER, NOW, TERMS
from tests.model.rows import AdmissionRows, Admitted, Heard, Lab, PreemptorRows

T = TypeVar("T")
Who = Literal["admission", "preemptor", "agent"]
# Who hears what of what is part of the protocol; the rest (owners, the ledger) is not played.
EARS: dict[type[Message], tuple[Who, ...]] = {
    admission.JobGranted: ("agent", "preemptor"),
    admission.AttemptProtected: ("preemptor",),
    admission.AttemptStopOrdered: ("agent",),
    admission.ClaimRaised: ("preemptor",),
    admission.ClaimWithdrawn: ("preemptor",),
    wire.ClaimAnswered: ("admission",),
    wire.EvictionOrdered: ("agent", "admission"),
    wire.EvictionOverdue: ("admission",),
    wire.SliceExpired: ("admission",),
    agent.AttemptStarted: ("admission",),
    agent.AttemptEnded: ("admission", "preemptor"),
    agent.GpuFreed: ("admission", "preemptor"),
}
TYPES = {message.TYPE: message for message in BY_MESSAGE}
# Faults that the exploration must find: GPUs that count as free once the order is said; an admission that loses the attempts with
# its term; an agent that does not take over what runs; one that says each end once; promises that outlive their claims.
Plant = Literal["none", "free_on_order", "forgets_attempts", "forgets_running", "says_once", "keeps_promises"]


class Letter(NamedTuple):
    """A message on its way to one reader."""

    to: Who
    type: str
    body: bytes

    def opened(self) -> Message:
        """What it says."""
        return _opened(self.type, self.body)

    def __str__(self) -> str:
        return f"{self.type} to {self.to}"


@lru_cache(maxsize=100_000)
def _opened(type_: str, body: bytes) -> Message:
    found: Message = msgspec.json.decode(body, type=TYPES[type_])
    return found


class Truth(NamedTuple):
    """What has really happened to an attempt. `over`: its agent has said that it runs no more, or never will."""

    job: str
    placement: tuple[tuple[str, int], ...]
    over: bool = False


class State(NamedTuple):
    """All that the next steps depend on. `faults`, `waits` and `delays` are what may still happen."""

    now_ms: Ms
    admitted: Admitted
    heard: Heard
    agent: bytes
    letters: tuple[Letter, ...]
    truths: tuple[tuple[str, Truth], ...]
    running: tuple[str, ...]
    """Attempts whose processes run."""
    wakes: tuple[tuple[Who, Ms], ...]
    term: int
    faults: int
    waits: int
    delays: int = 0
    """How often something may still happen out of its usual order; -1: always, everything in every order."""
    late: tuple[Letter, ...] = ()
    """Messages that were held back, and second copies: they come at any time."""
    wrong: str = ""
    """The sentence that a step has broken."""


class Step(NamedTuple):
    """What happened, and where that leads."""

    what: str
    state: State


class Machine:
    """The agent of the cluster and what outlives it: its journal, its jobs and the grants that it has not answered."""

    def __init__(self, nodes: Sequence[NodeState], epoch: int) -> None:
        self.attempts = Attempts(CLUSTER, epoch)
        self.epoch = epoch
        self.journal: dict[str, Ending] = {}
        self.unanswered: dict[str, Letter] = {}
        self.to_start: list[str] = []
        self.told: dict[str, Cause] = {}
        self.running: dict[str, Launch] = {}
        for node in nodes:
            self.attempts.node_changed(node, NOW)


class _Clock:
    rate = 1

    def __init__(self, now_ms: Ms) -> None:
        self.at_ms = now_ms

    def now_ms(self) -> Ms:
        return self.at_ms


class _Ids:
    def __init__(self, mark: bytes, number: int) -> None:
        self._mark, self.number = mark, number

    def new(self, _now_ms: Ms) -> str:
        self.number += 1
        return make_id(NOW, self._mark + self.number.to_bytes(9, "big"))


class _Term:
    def __init__(self, fence: int) -> None:
        self.fence: int | None = fence

    async def check(self, _tx: object) -> None:
        return


class _Tx:
    connection = None

    async def lock(self, _name: str) -> None:
        return


def run(work: Coroutine[Any, Any, T]) -> T:
    """A handler without a loop: on rows in memory nothing ever waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("a handler waited for something outside of the model")


def packed(machine: Machine) -> bytes:
    """The same bytes for the same contents, whichever objects are shared."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=5)
    pickler.fast = True
    pickler.dump(machine)
    return out.getvalue()


class World:
    """The fixed part of a world, and its steps."""

    def __init__(self, lab: Lab, plant: Plant = "none") -> None:
        self.lab, self.plant = lab, plant
        self.nodes = tuple(NodeState(node.node, node.healthy, node.healthy) for node in lab.nodes)
        self.terms = replace(TERMS, silent_after_ms=1_000_000 * HOUR_MS)
        self.reached: set[str] = set()

    def begin(self, admitted: Admitted, faults: int, waits: int) -> State:
        """Jobs wait, and nothing has happened."""
        machine = packed(Machine(self.nodes, 1))
        return State(NOW, admitted, Heard(), machine, (), (), (), (("admission", NOW),), 1, faults, waits)

    # ------------------------------------------------------------------------------------------------------------------- steps

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        usual = list(self.fair(state))
        yield from usual if state.delays < 0 else usual[:1]
        for letter in dict.fromkeys(state.late):
            yield Step(f"at last: {letter}", self._deliver(_without(state, letter), letter))
        if state.delays > 0:
            left = state._replace(delays=state.delays - 1)
            yield from list(self.fair(left))[1:]
            for letter in dict.fromkeys(state.letters):
                yield Step(f"held back: {letter}", _without(left, letter)._replace(late=tuple(sorted((*state.late, letter)))))
        if state.faults:
            yield from self._mishaps(state._replace(faults=state.faults - 1))
        if state.waits and (later := self.later(state)) is not None:
            yield Step("time passes", later)

    def fair(self, state: State) -> Iterator[Step]:
        """What happens sooner or later without any fault, in any order."""
        for letter in dict.fromkeys(state.letters):
            yield Step(str(letter), self._deliver(_without(state, letter), letter))
        for who, at_ms in state.wakes:
            if at_ms <= state.now_ms:
                yield Step(f"{who} wakes", self._wake(state, who))
        machine: Machine = pickle.loads(state.agent)
        for attempt in machine.to_start:
            yield Step(
                f"starts {attempt[-4:]}", self._on_machine(state, partial(self._start, attempt=attempt, now_ms=state.now_ms))
            )
        for attempt in machine.told:
            yield Step(
                f"leaves {attempt[-4:]}", self._on_machine(state, partial(_exit, attempt=attempt, how="signalled", state=state))
            )
        live = dict(state.admitted.attempts)
        known = dict(state.heard.attempts)
        for ending in machine.attempts.unconfirmed:
            name = ending.body.attempt
            if self.plant == "says_once":
                break
            unheard = name in live or (name in known and not known[name].ended)
            if unheard and not any(each.type == ending.body.TYPE and each.opened() == ending.body for each in state.letters):
                work = partial(_says_again, ending=ending)
                yield Step(f"says again {name[-4:]}", self._on_machine(state, work))

    def _mishaps(self, state: State) -> Iterator[Step]:
        machine: Machine = pickle.loads(state.agent)
        for letter in dict.fromkeys((*state.letters, *state.late)):
            yield Step(f"lost: {letter}", _without(state, letter))
            twice = self._deliver(_without(state, letter), letter)
            yield Step(f"twice: {letter}", twice._replace(late=tuple(sorted((*twice.late, letter)))))
        yield Step("agent killed", self._agent_killed(state))
        if state.admitted.attempts:
            wakes = self._wakes(state, "admission", state.now_ms)
            yield Step("admission's next term", state._replace(term=state.term + 1, wakes=wakes))
        for attempt in machine.to_start:
            work = partial(_refuses, attempt=attempt, state=state)
            yield Step(f"cannot start {attempt[-4:]}", self._on_machine(state, work))
        for attempt in state.running:
            yield Step(
                f"finishes {attempt[-4:]}", self._on_machine(state, partial(_exit, attempt=attempt, how="finished", state=state))
            )

    def later(self, state: State) -> State | None:
        """The next timer of anybody: whatever is on its way by then is late."""
        due = min((at_ms for _who, at_ms in state.wakes if at_ms > state.now_ms), default=None)
        return None if due is None else state._replace(now_ms=due, waits=state.waits - 1)

    # --------------------------------------------------------------------------------------------------------------- deliveries

    def _deliver(self, state: State, letter: Letter) -> State:
        if letter.to == "admission":
            return self._admission(state, (letter,))
        if letter.to == "preemptor":
            return self._preemptor(state, (letter,))
        return self._on_machine(state, lambda machine: self._obey(machine, letter, state.now_ms))

    def _wake(self, state: State, who: Who) -> State:
        state = state._replace(wakes=tuple(each for each in state.wakes if each[0] != who))
        if who == "admission":
            return self._admission(state, ())
        if who == "preemptor":
            return self._preemptor(state, ())
        return self._on_machine(state, lambda machine: machine.attempts.due(state.now_ms))

    def _admission(self, state: State, letters: Sequence[Letter]) -> State:
        # Opened long before: its patience with what happened while nobody was there is over.
        clock = _Clock(state.now_ms - self.terms.start_timeout_ms)
        rows = AdmissionRows(self.lab, state.admitted)
        # By what is committed and not by a count of steps: ways that lead to the same facts lead to the same ids.
        ids = _Ids(b"a", 1_000 * sum(each.version for each in rows.jobs.values()))
        if self.plant == "forgets_attempts" and state.term > 1:
            rows.attempts = {name: each for name, each in rows.attempts.items() if each.state == "starting"}
        desk = Desk(cast(Any, rows), _Term(state.term), cast(Any, clock), ids, Health(), self.terms)
        run(desk.open(cast(Any, _Tx())))
        clock.at_ms = state.now_ms
        outcome = run(Hearing(desk, cast(Any, rows), cast(Any, clock), ids)(cast(Any, _Tx()), _events(letters, state.now_ms)))
        state = state._replace(admitted=rows.committed())
        return self._say(state, "admission", outcome)

    def _preemptor(self, state: State, letters: Sequence[Letter]) -> State:
        policy = Policy()
        rows = PreemptorRows(self.lab, state.heard, ends_claims=self.plant != "keeps_promises")
        ids = _Ids(b"p", 1_000 * sum(each.state != "waiting" for each in rows.claims.values()))
        handler = Preemptor(
            clock=cast(Any, _Clock(state.now_ms)),
            ids=ids,
            health=Health(),
            rows=lambda _tx: cast(Any, rows),
            policy=policy,
            silent_after_ms=self.terms.silent_after_ms,
            drains=Drains(ids, policy),
        )
        outcome = run(handler(cast(Any, _Tx()), _events(letters, state.now_ms)))
        state = state._replace(heard=rows.committed())
        return self._say(state, "preemptor", outcome)

    def _say(self, state: State, who: Who, outcome: Outcome) -> State:
        letters = list(state.letters)
        for made in outcome.drafts:
            letters += self._letters(made)
            body = _opened(made.type, made.body)
            if isinstance(body, admission.JobGranted):
                state = self._issued(state, body)
            elif isinstance(body, wire.EvictionOrdered):
                state = self._lawful(state, body)
            if isinstance(body, wire.ClaimAnswered):
                self.reached.add(f"a claim was answered: {body.code}")
        state = state._replace(wakes=self._wakes(state, who, outcome.wake_at_ms))
        return state._replace(letters=tuple(sorted(letters)))

    def _letters(self, made: Draft) -> list[Letter]:
        found = [Letter(to, made.type, made.body) for to in EARS.get(TYPES[made.type], ())]
        if self.plant == "free_on_order" and made.type == wire.EvictionOrdered.TYPE:
            order = cast(wire.EvictionOrdered, _opened(made.type, made.body))
            nodes = tuple(agent.FreedGpus(node=node.node, gpus=node.healthy) for node in self.lab.nodes)
            early = agent.GpuFreed(cluster=CLUSTER, attempt=order.attempt, freed_at_ms=order.ordered_at_ms, nodes=nodes)
            found.append(Letter("admission", early.TYPE, msgspec.json.encode(early)))
        return found

    def _wakes(self, state: State, who: Who, at_ms: Ms | None) -> tuple[tuple[Who, Ms], ...]:
        others = tuple(each for each in state.wakes if each[0] != who)
        return others if at_ms is None else tuple(sorted((*others, (who, at_ms))))

    def _issued(self, state: State, grant: admission.JobGranted) -> State:
        placement = tuple(sorted((part.node, part.replicas * grant.gpus_per_replica) for part in grant.placement))
        if grant.claim is not None:
            self.reached.add("a claimant was granted")
        return state._replace(truths=tuple(sorted((*state.truths, (grant.attempt, Truth(grant.job, placement))))))

    def _lawful(self, state: State, order: wire.EvictionOrdered) -> State:
        self.reached.add("an eviction was ordered")
        attempt = dict(state.admitted.attempts).get(order.attempt)
        if attempt is not None and attempt.budget is not None and not (attempt.protected_until_ms or 2**62) <= state.now_ms:
            return state._replace(wrong="no protected victim")
        if attempt is None:
            self.reached.add("an eviction was ordered of one that has ended")
        return state

    # -------------------------------------------------------------------------------------------------------------------- agent

    def _on_machine(self, state: State, work: Callable[[Machine], Sequence[Action]]) -> State:
        machine: Machine = pickle.loads(state.agent)
        return self._acted(state, machine, work(machine))

    def _acted(self, state: State, machine: Machine, actions: Sequence[Action]) -> State:
        letters, truths, wake_ms = list(state.letters), dict(state.truths), dict(state.wakes).get("agent")
        for action in actions:
            match action:
                case Say(body=body):
                    if isinstance(body, agent.AttemptStarted):
                        machine.unanswered.pop(body.attempt, None)
                    if isinstance(body, agent.AttemptEnded) and body.attempt in truths:
                        truths[body.attempt] = truths[body.attempt]._replace(over=True)
                    if isinstance(body, agent.AttemptEnded) and "of term" in body.detail:
                        self.reached.add("a grant of an older term was refused")
                    letters += [Letter(to, body.TYPE, msgspec.json.encode(body)) for to in EARS.get(type(body), ())]
                case Keep(ending=ending):
                    machine.journal[ending.body.attempt] = ending
                    machine.unanswered.pop(ending.body.attempt, None)
                    if ending.body.attempt in machine.to_start:
                        machine.to_start.remove(ending.body.attempt)
                case Fetch(attempt=name):
                    machine.to_start.append(name)
                case Signal(attempt=name, cause=cause):
                    if name in machine.running:
                        machine.told.setdefault(name, cause)
                case Wake(at_ms=at_ms):
                    wake_ms = at_ms if wake_ms is None or wake_ms <= state.now_ms else min(wake_ms, at_ms)
                case Start():
                    raise AssertionError("a start follows a payload, and that is given in one step")
        machine.to_start.sort()
        machine.told = dict(sorted(machine.told.items()))
        return state._replace(
            agent=packed(machine),
            letters=tuple(sorted(letters)),
            truths=tuple(sorted(truths.items())),
            running=tuple(sorted(machine.running)),
            wakes=self._wakes(state, "agent", wake_ms),
        )

    def _obey(self, machine: Machine, letter: Letter, now_ms: Ms) -> Sequence[Action]:
        body = letter.opened()
        if isinstance(body, wire.EvictionOrdered):
            return machine.attempts.evicted(body, now_ms)
        if isinstance(body, admission.AttemptStopOrdered):
            self.reached.add("a start that took too long was stopped")
            return machine.attempts.stopped(body, now_ms)
        assert isinstance(body, admission.JobGranted)
        actions = machine.attempts.granted(body, now_ms)
        if machine.attempts.is_starting(body.attempt):
            machine.unanswered[body.attempt] = letter
        return actions

    def _start(self, machine: Machine, attempt: str, now_ms: Ms) -> Sequence[Action]:
        machine.to_start.remove(attempt)
        launches = machine.attempts.payload(attempt, Payload(command=("train",)))
        for each in launches:
            machine.running[attempt] = each.launch  # type: ignore[union-attr]
        return machine.attempts.started(attempt, now_ms, now_ms) if launches else []

    def _agent_killed(self, state: State) -> State:
        before: Machine = pickle.loads(state.agent)
        after = Machine(self.nodes, before.epoch + 1)
        after.journal = before.journal
        after.running, after.told = before.running, before.told
        self.reached.add("an agent was killed while attempts ran" if after.running else "an agent was killed")
        actions = list(after.attempts.left_behind(after.journal.values()))
        adopted = {} if self.plant == "forgets_running" else after.running
        for name, launch in adopted.items():
            actions += after.attempts.adopted(Running(launch, state.now_ms, 0, after.told.get(name)), state.now_ms)
        # What was not answered is delivered again.
        letters = tuple(sorted((*state.letters, *before.unanswered.values())))
        return self._acted(state._replace(letters=letters), after, actions)


def _without(state: State, letter: Letter) -> State:
    if letter in state.letters:
        letters = list(state.letters)
        letters.remove(letter)
        return state._replace(letters=tuple(letters))
    late = list(state.late)
    late.remove(letter)
    return state._replace(late=tuple(late))


def _exit(machine: Machine, attempt: str, how: Literal["signalled", "finished"], state: State) -> Sequence[Action]:
    machine.running.pop(attempt, None)
    machine.told.pop(attempt, None)
    return machine.attempts.exited(Exit(attempt, state.now_ms, how))


def _says_again(_machine: Machine, ending: Ending) -> Sequence[Action]:
    return say_again(ending)


def _refuses(machine: Machine, attempt: str, state: State) -> Sequence[Action]:
    machine.to_start.remove(attempt)
    return machine.attempts.cannot_start(attempt, state.now_ms, "no room on its disk")


def _events(letters: Sequence[Letter], now_ms: Ms) -> list[Event]:
    found = []
    for letter in letters:
        body = letter.opened()
        name = make_id(NOW, b"m" + bytes(9))
        envelope = Envelope(id=name, type=body.TYPE, version=body.VERSION, occurred_at_ms=now_ms, sent_at_ms=now_ms, body=body)
        found.append(Event(envelope, "", "ANY", 1, now_ms))
    return found
