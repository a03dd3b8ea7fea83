"""The agent of one cluster: takes orders from the bus, lets `Attempts` decide, and does what it says with a `Backend`.

The only part of the SDK with tasks. Decides nothing itself: what to do about a happening is in `attempts`.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from allmende.agent.sdk.attempts import Action, Attempts, Fetch, Keep, Say, Signal, Start, Wake, say_again
from allmende.agent.sdk.backend import Backend, CannotStart, Exit, Launch, NodeState, Running
from allmende.agent.sdk.journal import Journal
from allmende.agent.sdk.publisher import Publisher
from allmende.chassis import rpc
from allmende.chassis.clock import real_seconds
from allmende.chassis.errors import Transient
from allmende.chassis.log import get_logger
from allmende.chassis.ports import Bus, Clock, Delivery, Ids, Subscription
from allmende.proto.admission import AttemptStopOrdered, JobGranted
from allmende.proto.agent import AttemptStarted
from allmende.proto.envelope import Envelope, Refusal, decode
from allmende.proto.ledger import UsageConfirmed
from allmende.proto.lost import NodeDeclaredLost
from allmende.proto.message import Message, MessageRefused
from allmende.proto.payload import PayloadQuery
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.streams import consumer_of_agent
from allmende.proto.subjects import PAYLOAD, check
from allmende.proto.units import SECOND_MS, Ms

PULL_MOST = 256
PULL_WAIT_S = 5.0
PAUSE_S = 0.5
# The payload is one indexed row; admission answers in milliseconds, or is being started again.
FETCH_TIMEOUT_S = 2.0
# Admission answers one request after another; more questions at once would only time out behind each other.
FETCHES_AT_ONCE = 64

_log = get_logger(__name__)


class Pace(NamedTuple):
    """How often. `tick_ms` is clock time and never faster than `tick_real_ms`, so that a scaled run does not flood the bus."""

    tick_ms: Ms = 10 * SECOND_MS
    tick_real_ms: Ms = SECOND_MS
    resend_s: float = 10.0
    start_deadline_s: float = 60.0


class _Origin(NamedTuple):
    """The order that an attempt's messages answer."""

    id: str
    trace: str | None


class Agent:
    """One agent. `run` lives until cancelled; `settle` waits for the ledger before a clean end.

    `journal` keeps the ends for the next agent of the cluster, should this one be killed. Without one they die with it, and so do
    the GPUs for those who wait.
    """

    def __init__(
        self,
        *,
        cluster: str,
        bus: Bus,
        clock: Clock,
        ids: Ids,
        backend: Backend,
        pace: Pace | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._cluster = cluster
        self._bus, self._clock, self._backend = bus, clock, backend
        self._pace = pace or Pace()
        # A later agent of the cluster has a later instant: its counters are of a new epoch.
        self._attempts = Attempts(cluster, epoch=clock.now_ms())
        self._publisher = Publisher(bus=bus, clock=clock, ids=ids)
        self._origins: dict[str, _Origin] = {}
        self._fetches = asyncio.Semaphore(FETCHES_AT_ONCE)
        self._confirmed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._orders: Subscription | None = None
        # Grants that are not answered yet, by attempt. Acknowledged only then: killed before, the next agent gets them again.
        self._unanswered: dict[str, Delivery] = {}
        self._fencing: dict[str, Delivery] = {}
        self._adopted: list[Running] = []
        self._journal = journal
        if journal is not None:
            self._do(self._attempts.left_behind(journal.unconfirmed))

    @property
    def unconfirmed(self) -> int:
        """Ends that are not yet in the ledger's books, as far as this agent has heard."""
        return len(self._attempts.unconfirmed)

    @property
    def spooled(self) -> int:
        """Messages that wait for the bus."""
        return self._publisher.spooled

    def adopt(self, running: Running) -> None:
        """Before `run`: an attempt of an earlier agent runs on. Nothing, where its end is in the journal."""
        self._adopted.append(running)

    async def run(self) -> None:
        """Report what runs and the nodes, then take orders until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            # What was declared lost while nobody was here is killed before anything is said of it, or of its node.
            early = await self._missed() if self._adopted else []
            words = [each for each in early if isinstance(_body_of(each), NodeDeclaredLost)]
            fenced = {each.attempt for word in words for each in _body_of(word).attempts}  # type: ignore[union-attr]
            # Before the backend may say that one of them has ended.
            for running in self._adopted:
                self._do(self._attempts.adopted(running, self._clock.now_ms(), running.launch.attempt in fenced))
            group.create_task(self._backend.run(self))
            self._take(words)
            group.create_task(self._publisher.run())
            for state in await self._backend.nodes():
                self.node_changed(state, self._clock.now_ms())
            self._take([each for each in early if each not in words])
            group.create_task(self._take_orders())
            group.create_task(self._tick())
            group.create_task(self._resend())

    async def settle(self, wait_s: float) -> bool:
        """Wait, for at most so many real seconds, until all ends are said and confirmed; False when some are not."""
        try:
            async with asyncio.timeout(wait_s):
                while self._attempts.open or self._attempts.unconfirmed or self._publisher.spooled:
                    self._confirmed.clear()
                    # Bounded: opens and publications do not set the event.
                    try:
                        async with asyncio.timeout(0.1):
                            await self._confirmed.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            return False
        return True

    # -------------------------------------------------------------------------------------------- what the backend tells us

    def exited(self, left: Exit) -> None:
        """An attempt ended (see `backend.Notices`)."""
        self._do(self._attempts.exited(left), left.attempt)

    def lost(self, attempt: str, job: str, detail: str) -> None:
        """An attempt of an earlier agent runs no longer: for a backend that finds this out at its start."""
        self._do(self._attempts.lost(attempt, job, self._clock.now_ms(), detail))

    def node_changed(self, node: NodeState, at_ms: Ms) -> None:
        """A node changed (see `backend.Notices`)."""
        self._do(self._attempts.node_changed(node, at_ms))

    # ----------------------------------------------------------------------------------------------------------------- orders

    def _listening(self) -> Subscription:
        if self._orders is None:
            consumer = consumer_of_agent(self._cluster)
            self._orders = self._bus.subscribe(consumer.stream, consumer.durable)
        return self._orders

    async def _missed(self) -> list[Delivery]:
        """All orders that wait, as far as the bus is there to give them."""
        found: list[Delivery] = []
        while True:
            try:
                come = await self._listening().pull(PULL_MOST, PAUSE_S)
            except Transient as error:
                _log.warning("orders that waited cannot be read yet", why=str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            if not come:
                return found
            found += come

    async def _take_orders(self) -> None:
        while True:
            try:
                deliveries = await self._listening().pull(PULL_MOST, PULL_WAIT_S)
            except Transient as error:
                _log.warning("no orders come", why=str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            self._take(deliveries)

    def _take(self, deliveries: Iterable[Delivery]) -> None:
        done = [delivery for delivery in deliveries if self._hear(delivery)]
        if done:
            self._spawn(self._listening().ack(done))

    def _hear(self, delivery: Delivery) -> bool:
        """Obey an order; False for one that is acknowledged later: a grant when it is answered, a fence when all is dead."""
        try:
            envelope = decode(delivery.data)
            check(delivery.subject, envelope)
        except Refusal as refusal:
            # Only services can publish there. What they say and we cannot read is theirs to mend, and must not stop the rest.
            _log.error("an order cannot be read", subject=delivery.subject, code=refusal.problem.code, why=str(refusal))
            return True
        self._obey(envelope)
        if isinstance(envelope.body, JobGranted) and self._attempts.is_starting(envelope.body.attempt):
            self._unanswered[envelope.body.attempt] = delivery
            return False
        if isinstance(envelope.body, NodeDeclaredLost) and self._attempts.is_fenced(envelope.body.node):
            self._fencing[envelope.body.node] = delivery
            return False
        return True

    def _answered(self, attempt: str) -> None:
        delivery = self._unanswered.pop(attempt, None)
        if delivery is not None and self._orders is not None and self._group is not None:
            self._spawn(self._orders.ack([delivery]))
        for node in [node for node in self._fencing if not self._attempts.is_fenced(node)]:
            self._spawn(self._listening().ack([self._fencing.pop(node)]))

    def _obey(self, envelope: Envelope[Message]) -> None:
        now_ms = self._clock.now_ms()
        body = envelope.body
        match body:
            case JobGranted():
                self._origins.setdefault(body.attempt, _Origin(envelope.id, envelope.trace))
                self._do(self._attempts.granted(body, now_ms), body.attempt)
            case EvictionOrdered():
                self._origins[body.attempt] = _Origin(envelope.id, envelope.trace)
                self._do(self._attempts.evicted(body, now_ms), body.attempt)
            case AttemptStopOrdered():
                self._origins[body.attempt] = _Origin(envelope.id, envelope.trace)
                self._do(self._attempts.stopped(body, now_ms), body.attempt)
            case NodeDeclaredLost():
                self._do(self._attempts.declared_lost(body, now_ms))
            case UsageConfirmed():
                self._attempts.confirmed(body.attempts)
                if self._journal is not None:
                    self._journal.confirmed(body.attempts)
                for attempt in body.attempts:
                    self._origins.pop(attempt, None)
                self._confirmed.set()
            case MessageRefused():
                _log.error("a message of ours was refused", subject=body.subject, code=body.problem.code, why=body.problem.sentence)
            case _:
                _log.info("an order of an unknown kind was left alone", type=envelope.type)

    # -------------------------------------------------------------------------------------------------------------- carry out

    def _do(self, actions: Iterable[Action], attempt: str | None = None) -> None:
        origin = self._origins.get(attempt) if attempt else None
        for action in actions:
            match action:
                case Keep():
                    if self._journal is not None:
                        self._journal.keep(action.ending)
                    self._answered(action.ending.body.attempt)
                case Say():
                    if isinstance(action.body, AttemptStarted):
                        self._answered(action.body.attempt)
                    self._publisher.say(
                        action.body,
                        action.occurred_at_ms,
                        cause=origin.id if origin else None,
                        trace=origin.trace if origin else None,
                        replaces=action.replaces,
                    )
                case Fetch():
                    self._spawn(self._fetch(action.attempt))
                case Start():
                    self._spawn(self._start(action.launch))
                case Signal():
                    self._spawn(self._signal(action))
                case Wake():
                    self._spawn(self._wake(action.at_ms))

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        assert self._group is not None, "orders are carried out only while the agent runs"
        self._group.create_task(work)

    async def _fetch(self, attempt: str) -> None:
        deadline_s = real_seconds() + self._pace.start_deadline_s
        detail = f"no payload came within {self._pace.start_deadline_s:g} s"
        while real_seconds() < deadline_s and attempt in self._attempts.open:
            try:
                async with self._fetches:
                    query = PayloadQuery(attempt=attempt)
                    reply = await rpc.ask(self._bus, PAYLOAD, self._cluster, query, timeout_s=FETCH_TIMEOUT_S)
                self._do(self._attempts.payload(attempt, reply.payload), attempt)
                return
            except Transient as error:
                detail = f"no payload came within {self._pace.start_deadline_s:g} s: {error}"
                await asyncio.sleep(PAUSE_S)
            except Refusal as refusal:
                detail = f"admission does not hand out the payload: {refusal}"
                break
        self._do(self._attempts.cannot_start(attempt, self._clock.now_ms(), detail), attempt)

    async def _start(self, launch: Launch) -> None:
        try:
            started_at_ms = await self._backend.start(launch)
        except CannotStart as error:
            self._do(self._attempts.cannot_start(launch.attempt, self._clock.now_ms(), str(error)), launch.attempt)
        except Exception as error:  # noqa: BLE001 one attempt that trips over its author's mistake must not take down all others
            _log.error("the backend failed to start an attempt", attempt=launch.attempt, exc_info=error)
            detail = f"the agent failed to start it: {error!r}"
            self._do(self._attempts.cannot_start(launch.attempt, self._clock.now_ms(), detail), launch.attempt)
        else:
            self._do(self._attempts.started(launch.attempt, started_at_ms, self._clock.now_ms()), launch.attempt)

    async def _signal(self, action: Signal) -> None:
        send = self._backend.terminate if action.signal == "TERM" else self._backend.kill
        await send(action.attempt, action.cause)

    async def _wake(self, at_ms: Ms) -> None:
        await self._clock.sleep_until(at_ms)
        self._do(self._attempts.due(self._clock.now_ms()))

    # ------------------------------------------------------------------------------------------------------------- regularly

    async def _tick(self) -> None:
        every_ms = max(self._pace.tick_ms, self._pace.tick_real_ms * self._clock.rate)
        while True:
            at_ms = self._clock.now_ms()
            vitals = await self._backend.observe(at_ms)
            self._do(self._attempts.tick(at_ms, vitals))
            await self._clock.sleep_until(at_ms + every_ms)

    async def _resend(self) -> None:
        """An acknowledged message can still be lost with a server's disk: ends are said again until the ledger has them."""
        before: set[str] = set()
        while True:
            await asyncio.sleep(self._pace.resend_s)
            endings = self._attempts.unconfirmed
            for ending in endings:
                if ending.body.attempt in before:
                    self._do(say_again(ending), ending.body.attempt)
            before = {ending.body.attempt for ending in endings}


def _body_of(delivery: Delivery) -> Message | None:
    try:
        return decode(delivery.data).body
    except Refusal:
        return None
