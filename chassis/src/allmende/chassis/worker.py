"""The inbox loop: several consumers merged, handled in batches, one transaction a batch, then said.

pull -> gates -> quarantine -> inbox -> handle -> outbox -> commit -> acknowledge -> publish. A batch is whatever waits, so it grows
by itself under load and adds no delay when idle. Handles nothing twice, loses nothing, and lets no bad message stop the others.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from allmende.chassis import inbox, trace
from allmende.chassis.db import Database, Transaction, backoff_s
from allmende.chassis.errors import Refused, Transient, Unknown, action_for
from allmende.chassis.health import Health
from allmende.chassis.inbox import Bad
from allmende.chassis.log import get_logger
from allmende.chassis.outbox import Relay
from allmende.chassis.ports import Bus, Clock, Delivery, Draft, Event, Ids, Subscription
from allmende.proto.streams import Consumer
from allmende.proto.units import Ms

T = TypeVar("T")

# A pull that finds nothing ends after this, so that a consumer that went away is noticed.
PULL_WAIT_S = 5.0
# How often the server is asked how much waits.
LAG_EVERY_S = 5.0
# A command waits for its caller, who gives up after 5 s; three tries on fresh connections fit.
COMMAND_TRIES = 3
FLUSH_S = 1.5

_log = get_logger(__name__)
_handled = trace.meter.create_counter("allmende_messages_handled", description="messages handled, duplicates not counted")
_refused = trace.meter.create_counter("allmende_messages_refused", description="messages put into quarantine")


class Outcome(NamedTuple):
    """What a handler decided to say, in order, and the clock instant of its next call without messages (None: only for messages).

    An instant that has passed means at once, so a handler never returns the one it has just dealt with.
    """

    drafts: Sequence[Draft] = ()
    wake_at_ms: Ms | None = None


class Handler(Protocol):
    """Load, decide, write. May be called again with the same events after a roll-back, and with none when its timer is due."""

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Handle fresh events in one transaction."""


class _Arrival(NamedTuple):
    subscription: Subscription
    delivery: Delivery
    received_at_ms: Ms


class Worker:
    """One service's loop. At most one transaction of it runs at a time, commands included, so a handler may keep a model in memory.

    `batch`: most events in one transaction; `linger_s`: real seconds to wait for more after the first one arrived;
    `on_failure`: called after every transaction that was rolled back or may have been: a model in memory is dropped there.
    """

    def __init__(
        self,
        *,
        service: str,
        bus: Bus,
        db: Database,
        clock: Clock,
        ids: Ids,
        health: Health,
        handle: Handler,
        consumers: Sequence[Consumer],
        batch: int = 256,
        linger_s: float = 0.0,
        on_failure: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._service, self._bus, self._db, self._clock, self._ids, self._health = service, bus, db, clock, ids, health
        self._handle, self._consumers, self._batch, self._linger_s = handle, consumers, batch, linger_s
        self._on_failure = on_failure
        self._relay = Relay(bus=bus, db=db, clock=clock, health=health)
        self._chance = random.Random()
        # One transaction at a time.
        self._turn = asyncio.Lock()
        self._arrived: deque[_Arrival] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._stir = asyncio.Event()
        # True: call the handler even without events. So at the start, for its timers.
        self._nudged = True
        self._wake_at_ms: Ms | None = None
        self._alarm: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._subscriptions: list[Subscription] = []
        self._to_ack: list[_Arrival] = []
        self._ack_stir = asyncio.Event()
        self._broken: asyncio.Future[None] | None = None
        health.ready("inbox", False, "what was stored is being loaded")

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            StaleTerm, Misconfigured, AssertionError, ...: whatever `action_for` says ends the process, in an ExceptionGroup.
        """
        self._broken = asyncio.get_running_loop().create_future()
        self._subscriptions = [self._bus.subscribe(consumer.stream, consumer.durable) for consumer in self._consumers]
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._relay.run())
                tasks.create_task(self._acknowledge())
                tasks.create_task(self._measure())
                tasks.create_task(self._prune())
                tasks.create_task(self._until_broken(self._broken))
                for subscription in self._subscriptions:
                    tasks.create_task(self._pull(subscription))
                tasks.create_task(self._loop())
        finally:
            self._tasks = None
            await self._flush()

    def nudge(self) -> None:
        """Call the handler soon, with no events if none wait."""
        self._nudged = True
        self._stir.set()

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """Do a command between batches, in a transaction of its own; its messages go out like a handler's. Never from a handler.

        The earlier of its `wake_at_ms` and the handler's holds; None leaves the handler's.

        Raises:
            Unknown: the answer to COMMIT was lost; whoever asked must look before asking again.
            Transient: it failed three times.
        """
        for attempt in range(1, COMMAND_TRIES + 1):
            try:
                async with self._turn:
                    result, wake_at_ms = await self._command(work)
                if wake_at_ms is not None and (self._wake_at_ms is None or wake_at_ms < self._wake_at_ms):
                    self._set_alarm(wake_at_ms)
                return result
            except Unknown:
                raise
            except Transient:
                if attempt == COMMAND_TRIES:
                    raise
                await asyncio.sleep(backoff_s(attempt, self._chance))
            except Exception as error:
                if action_for(error) == "stop" and self._broken and not self._broken.done():
                    self._broken.set_exception(error)
                raise
        raise AssertionError("the last attempt returns or raises")

    async def _command(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> tuple[T, Ms | None]:
        drafts: list[Draft] = []
        try:
            async with self._db.transaction() as tx:
                result, outcome = await work(tx)
                await tx.say(outcome.drafts)
                drafts = tx.said
                self._relay.expect(drafts)
        except BaseException:
            await self._after_failure(drafts)
            raise
        await self._relay.publish(drafts)
        return result, outcome.wake_at_ms

    async def _loop(self) -> None:
        while True:
            while self._arrived or self._due():
                if self._arrived and self._linger_s and len(self._arrived) < self._batch:
                    await asyncio.sleep(self._linger_s)
                arrivals = [self._arrived.popleft() for _ in range(min(self._batch, len(self._arrived)))]
                if len(self._arrived) < self._batch:
                    self._room.set()
                await self._settle_batch(arrivals)
            self._stir.clear()
            if not self._arrived and not self._due():
                await self._stir.wait()

    def _due(self) -> bool:
        return self._nudged or (self._wake_at_ms is not None and self._clock.now_ms() >= self._wake_at_ms)

    async def _settle_batch(self, arrivals: Sequence[_Arrival]) -> None:
        events: list[Event] = []
        refused: list[Bad] = []
        deliveries: dict[int, Delivery] = {}
        for arrival in arrivals:
            it = inbox.admit(arrival.delivery, arrival.received_at_ms, self._clock.rate)
            if isinstance(it, Event):
                events.append(it)
                deliveries[id(it)] = arrival.delivery
            else:
                refused.append(it)
        with trace.span_of("batch", [event.envelope.trace for event in events]):
            await self._settle(events, refused, deliveries)
        self._health.progress("inbox")
        self._to_ack.extend(arrivals)
        self._ack_stir.set()

    async def _settle(self, events: Sequence[Event], refused: list[Bad], deliveries: dict[int, Delivery]) -> None:
        """See a batch through, whatever it takes. Passing failures are tried again for ever: nothing may be skipped."""
        failures = 0
        while True:
            try:
                async with self._turn:
                    await self._attempt(events, refused)
                self._health.ready("inbox", True)
                return
            except Exception as error:
                action = action_for(error)
                if action == "stop" or (action == "quarantine" and not events):
                    # Failing with no message at hand, the handler itself is broken, and no quarantine helps.
                    raise
                # After a failure the handler is called in any case: a commit that nobody heard of lost its timer.
                self._nudged = True
                failures += 1
                if action == "quarantine":
                    events = await self._isolate(error, events, refused, deliveries)
                    continue
                self._health.ready("inbox", False, f"messages cannot be handled: {error}")
                _log.warning("a batch failed and is tried again", events=len(events), failures=failures, why=str(error))
            await asyncio.sleep(backoff_s(failures, self._chance))

    async def _isolate(
        self, error: Exception, events: Sequence[Event], refused: list[Bad], deliveries: dict[int, Delivery]
    ) -> Sequence[Event]:
        """Find the message that the handler cannot bear. Returns the events that the caller still has to settle."""
        if len(events) == 1:
            event = events[0]
            _log.error("a message cannot be handled", subject=event.subject, id=event.envelope.id, exc_info=error)
            refused.append(inbox.bad(deliveries[id(event)], event.envelope.id, inbox.problem_of(error)))
            return []
        _log.warning("a batch failed; its messages are handled one by one", events=len(events), why=repr(error))
        for event in events:
            await self._settle([event], [], deliveries)
        return []

    async def _attempt(self, events: Sequence[Event], refused: Sequence[Bad]) -> None:
        drafts: list[Draft] = []
        outcome: Outcome | None = None
        nudged = self._nudged
        try:
            async with self._db.transaction() as tx:
                await tx.say(await inbox.quarantine(tx, self._service, refused, self._ids, self._clock.now_ms()))
                fresh = await inbox.fresh(tx, events)
                if fresh or self._due():
                    # Cleared first: who nudges while the handler runs wants another call.
                    self._nudged = False
                    outcome = await self._handle(tx, fresh)
                    await tx.say(outcome.drafts)
                drafts = tx.said
                self._relay.expect(drafts)
        except BaseException:
            self._nudged = self._nudged or nudged
            await self._after_failure(drafts)
            raise
        if outcome is not None:
            self._set_alarm(outcome.wake_at_ms)
        _handled.add(len(fresh))
        _refused.add(len(refused))
        await self._relay.publish(drafts)

    async def _after_failure(self, drafts: Sequence[Draft]) -> None:
        self._relay.forget(drafts)
        if self._on_failure is not None:
            await self._on_failure()

    def _set_alarm(self, wake_at_ms: Ms | None) -> None:
        if wake_at_ms == self._wake_at_ms:
            return
        self._wake_at_ms = wake_at_ms
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if wake_at_ms is not None and self._tasks is not None:
            self._alarm = self._tasks.create_task(self._ring(wake_at_ms))

    async def _ring(self, at_ms: Ms) -> None:
        await self._clock.sleep_until(at_ms)
        self._stir.set()

    async def _pull(self, subscription: Subscription) -> None:
        failures = 0
        while True:
            await self._room.wait()
            try:
                deliveries = await subscription.pull(self._batch, PULL_WAIT_S)
            except Transient as error:
                failures += 1
                self._health.ready("bus", False, f"no messages come: {error}")
                await asyncio.sleep(backoff_s(failures, self._chance))
                continue
            failures = 0
            self._health.ready("bus", True)
            now_ms = self._clock.now_ms()
            self._arrived.extend(_Arrival(subscription, delivery, now_ms) for delivery in deliveries)
            if len(self._arrived) >= self._batch:
                self._room.clear()
            if deliveries:
                self._stir.set()

    async def _acknowledge(self) -> None:
        """Apart from the loop, so that the next batch need not wait; what is lost here comes again, and the inbox knows it."""
        while True:
            await self._ack_stir.wait()
            self._ack_stir.clear()
            await self._acknowledge_now()

    async def _acknowledge_now(self) -> None:
        handled, self._to_ack = self._to_ack, []
        for subscription in self._subscriptions:
            deliveries = [arrival.delivery for arrival in handled if arrival.subscription is subscription]
            if deliveries:
                await subscription.ack(deliveries)

    async def _measure(self) -> None:
        while self._subscriptions:
            try:
                self._health.progress("inbox", sum([await subscription.lag() for subscription in self._subscriptions]))
            except (Transient, Refused) as error:
                _log.warning("how much waits is not known", why=str(error))
            await asyncio.sleep(LAG_EVERY_S)

    async def _prune(self) -> None:
        while True:
            try:
                await inbox.prune_for_ever(self._db)
            except Transient as error:
                _log.warning("old inbox rows could not be pruned", why=str(error))
                await asyncio.sleep(inbox.PRUNE_EVERY_S)

    async def _until_broken(self, broken: asyncio.Future[None]) -> None:
        """A command that met a broken invariant told its caller; here it ends the process."""
        await broken

    async def _flush(self) -> None:
        """A clean end says and acknowledges what was committed; what does not get out in time is in the table."""
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._relay.flush()
                await self._acknowledge_now()
        except (Transient, TimeoutError) as error:
            _log.warning("some messages wait for the next start", why=str(error))
