"""Builders for tests of the loop: a store with one table, a handler that writes what it sees, a worker that runs for a while."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from allmende.chassis.db import Database, Transaction
from allmende.chassis.fakes import CountingIds, FakeBus, ManualClock
from allmende.chassis.health import Health
from allmende.chassis.migrate import CHASSIS, apply, load_migrations
from allmende.chassis.outbox import draft, seal
from allmende.chassis.ports import Bus, Delivery, Draft, Event, Subscription
from allmende.chassis.worker import Outcome, Worker
from allmende.proto.agent import NodeReported
from allmende.proto.envelope import decode
from allmende.proto.ledger import UsageConfirmed
from allmende.proto.message import Message
from allmende.proto.streams import Consumer, consumers_of

WITHIN_S = 15.0
USAGE = tuple(consumer for consumer in consumers_of("ledger") if consumer.stream == "USAGE")
NOW_MS = 1_700_000_000_000
_agent_ids = CountingIds(1_000_000)


def report(seq: int, cluster: str = "c1", healthy: int = 8) -> NodeReported:
    """What an agent says of its node; `seq` tells reports apart."""
    return NodeReported(cluster=cluster, node="n1", at_ms=NOW_MS, seq=seq, installed_gpus=8, healthy_gpus=healthy)


def said(body: Message) -> Draft:
    """A message as its publisher has it ready."""
    return draft(body, ids=_agent_ids, now_ms=NOW_MS)


async def tell(bus: Bus, *drafts: Draft, copy: str = "") -> None:
    """Publish as an agent does. `copy`: past the server's own guard against duplicates, as after its window."""
    for it in drafts:
        await bus.publish(it.subject, it.id + copy, seal(it, NOW_MS))


async def until(fact: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a fact, with a bound."""
    try:
        async with asyncio.timeout(WITHIN_S):
            while not await fact():  # noqa: ASYNC110 a fact of the database announces itself to nobody
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise AssertionError(f"not within {WITHIN_S:g} s: {what}") from error


async def open_store(url: str, schema: str = "ledger") -> Database:
    """A database with the chassis' tables and one of our own, in a service's schema."""
    db = await Database.connect(url, schema, application_name="test")
    await apply(db, load_migrations(CHASSIS))
    async with db.transaction() as tx:
        await tx.connection.execute("CREATE TABLE IF NOT EXISTS seen (place serial PRIMARY KEY, seq int NOT NULL)")
    return db


async def rows(db: Database, query: str) -> list[object]:
    """The first column of a query."""
    async with db.reading() as connection:
        return [row[0] for row in await connection.fetch(query)]


class Recorder:
    """A handler that writes the `seq` of each report, says one message a report, and fails as a test plans it."""

    def __init__(self, clock: ManualClock, ids: CountingIds | None = None) -> None:
        self.clock, self.ids = clock, ids or CountingIds()
        self.calls: list[list[int]] = []
        self.failures = 0
        self.wake_at_ms: int | None = None
        self.before: Callable[[Transaction, list[int]], Awaitable[None]] | None = None
        """Runs in the transaction, after the writes; may raise."""

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        bodies = [event.body for event in events if isinstance(event.body, NodeReported)]
        self.calls.append([body.seq for body in bodies])
        for body in bodies:
            await tx.connection.execute("INSERT INTO seen (seq) VALUES ($1)", body.seq)
        if self.before is not None:
            await self.before(tx, [body.seq for body in bodies])
        drafts = [self.confirm(body) for body in bodies]
        wake_at_ms, self.wake_at_ms = self.wake_at_ms, None
        return Outcome(drafts, wake_at_ms)

    def confirm(self, body: NodeReported) -> Draft:
        """The answer to one report: it carries its number, so that order can be seen."""
        attempt = CountingIds(body.seq).new(NOW_MS)
        return draft(UsageConfirmed(cluster=body.cluster, attempts=(attempt,)), ids=self.ids, now_ms=self.clock.now_ms())

    async def failed(self) -> None:
        """The worker's `on_failure`."""
        self.failures += 1


@asynccontextmanager
async def working(
    db: Database,
    bus: Bus,
    handle: Recorder,
    *,
    consumers: Sequence[Consumer] = USAGE,
    batch: int = 256,
    health: Health | None = None,
) -> AsyncIterator[Worker]:
    """A worker that runs until the end of the block."""
    worker = Worker(
        service="ledger",
        bus=bus,
        db=db,
        clock=handle.clock,
        ids=handle.ids,
        health=health or Health(),
        handle=handle,
        consumers=consumers,
        batch=batch,
        on_failure=handle.failed,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        try:
            yield worker
        finally:
            running.cancel()


def confirmed(bus: FakeBus) -> list[int]:
    """The numbers of the reports that were confirmed, in the order of publication."""
    stored = [it for it in bus.server.stored("DECISIONS") if it.subject.startswith("ledger.usage_confirmed")]
    return [_number(it.data) for it in stored]


_NUMBERS = {CountingIds(seq).new(NOW_MS): seq for seq in range(2_000)}


def _number(data: bytes) -> int:
    body = decode(data).body
    assert isinstance(body, UsageConfirmed)
    return _NUMBERS[body.attempts[0]]


class SlowAcks:
    """A bus whose acknowledgements are lost: what was handled comes again."""

    def __init__(self, bus: FakeBus) -> None:
        self._bus = bus

    def __getattr__(self, name: str) -> object:
        return getattr(self._bus, name)

    def subscribe(self, stream: str, durable: str) -> Subscription:
        """A subscription that never acknowledges."""
        return _NoAck(self._bus.subscribe(stream, durable))


class _NoAck:
    def __init__(self, inner: Subscription) -> None:
        self._inner = inner

    async def pull(self, most: int, wait_s: float) -> Sequence[Delivery]:
        return await self._inner.pull(most, wait_s)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        return None

    async def lag(self) -> int:
        return await self._inner.lag()
