"""The outbox and its relay over a real PostgreSQL: in the order of the commits, never not at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from allmende.chassis.db import Database
from allmende.chassis.errors import Poison, Refused, Transient
from allmende.chassis.fakes import CountingIds, FakeBus, ManualClock
from allmende.chassis.health import Health
from allmende.chassis.outbox import Relay, draft, seal
from allmende.chassis.ports import Draft
from allmende.proto.agent import NodeReported
from allmende.proto.envelope import decode
from tests.chassis.scene import NOW_MS, Recorder, confirmed, open_store, report, rows, said, tell, until, working
from tests.servers import Lab


@pytest_asyncio.fixture
async def db(lab: Lab) -> AsyncIterator[Database]:
    db = await open_store(lab.dsn("ledger"))
    yield db
    await db.close()


class StubbornBus(FakeBus):
    """Fails as a test plans it, and remembers every attempt, also how many publish at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: list[Exception] = []
        self.tried: list[str] = []
        self.at_once = 0
        self.at_once_max = 0
        self.open = asyncio.Event()
        self.open.set()

    async def publish_many(self, messages: Sequence[tuple[str, str, bytes, str | None]]) -> Sequence[Exception | None]:
        """Fail the last message of the call as planned."""
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        self.tried += [message[1] for message in messages]
        await self.open.wait()
        try:
            if not self.plan:
                return await super().publish_many(messages)
            return [*await super().publish_many(messages[:-1]), self.plan.pop(0)]
        finally:
            self.at_once -= 1


def answers(first: int, last: int) -> list[Draft]:
    handle = Recorder(ManualClock(), CountingIds(10_000 + first))
    return [handle.confirm(report(seq)) for seq in range(first, last)]


async def write(db: Database, drafts: Sequence[Draft]) -> None:
    """Commit and die before anything is published."""
    async with db.transaction() as tx:
        await tx.say(drafts)


@asynccontextmanager
async def relaying(db: Database, bus: FakeBus) -> AsyncIterator[Relay]:
    relay = Relay(bus=bus, db=db, clock=ManualClock(), health=Health())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(relay.run())
        yield relay
        running.cancel()


async def commit(db: Database, relay: Relay, drafts: Sequence[Draft]) -> None:
    """As the worker does it."""
    relay.expect(drafts)
    await write(db, drafts)
    await relay.publish(drafts)


async def wait_said(bus: FakeBus, wanted: list[int]) -> None:
    async def fact() -> bool:
        return confirmed(bus) == wanted

    await until(fact, f"{wanted} said, in this order")


async def wait_empty(db: Database) -> None:
    async def fact() -> bool:
        return await rows(db, "SELECT count(*) FROM outbox") == [0]

    await until(fact, "an empty outbox")


def test_a_draft_travels_with_its_subject_its_cause_and_the_instant_of_transmission() -> None:
    made = draft(report(7), ids=CountingIds(), now_ms=NOW_MS, occurred_at_ms=NOW_MS - 5, cause=CountingIds(9).new(NOW_MS))
    opened = decode(seal(made, NOW_MS + 3))
    assert made.subject == "agent.node_reported.v1.c1.n1"
    assert (opened.occurred_at_ms, opened.sent_at_ms, opened.cause) == (NOW_MS - 5, NOW_MS + 3, made.cause)
    assert opened.body == report(7)


@pytest.mark.parametrize(
    ("sentence", "body"),
    [
        ("a field out of its bounds", report(-1)),
        ("a name that cannot be a token", report(1, "c.1")),
        ("nothing but a name's bound", report(1, "c" * 64)),
    ],
)
def test_what_nobody_could_read_is_not_said(sentence: str, body: NodeReported) -> None:
    with pytest.raises(Poison, match="cannot be said") as found:
        said(body)
    assert found.value.code == "unsayable", sentence


async def test_what_a_process_that_died_left_behind_is_said_at_the_next_start_in_order_and_before_anything_new(
    db: Database,
) -> None:
    bus = FakeBus()
    await write(db, answers(0, 700))
    async with relaying(db, bus) as relay:
        await commit(db, relay, answers(700, 705))
        await wait_said(bus, list(range(705)))
        await wait_empty(db)


async def test_the_worker_says_what_the_process_before_it_left_behind(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    await write(db, answers(0, 3))
    await tell(bus, said(report(3)))
    async with working(db, bus, handle):
        await until(lambda: _all_said(bus, 4), "all four")
    assert sorted(confirmed(bus)) == [0, 1, 2, 3]


async def _all_said(bus: FakeBus, count: int) -> bool:
    return len(confirmed(bus)) == count


async def test_an_outage_of_the_bus_delays_what_was_decided_and_changes_no_order(db: Database) -> None:
    bus = StubbornBus()
    async with relaying(db, bus) as relay:
        await commit(db, relay, answers(0, 3))
        await wait_said(bus, [0, 1, 2])
        bus.plan = [Transient("no connection"), Transient("no connection"), Transient("no connection")]
        for first in range(3, 13):
            await commit(db, relay, answers(first, first + 1))
        await wait_said(bus, list(range(13)))
        await wait_empty(db)
    assert bus.at_once_max == 1, "one task publishes"


async def test_a_message_that_the_server_will_never_take_is_kept_with_its_problem_and_tried_again_at_the_next_start(
    db: Database,
) -> None:
    bus = StubbornBus()
    bus.plan = [Refused("not_permitted", "these credentials may not")]
    async with relaying(db, bus) as relay:
        await commit(db, relay, answers(0, 1))
        await until(lambda: _problem(db), "the problem is written beside it")
        await commit(db, relay, answers(1, 3))
        await wait_said(bus, [1, 2])
    assert await rows(db, "SELECT problem FROM outbox") == ["not_permitted: these credentials may not"]
    async with relaying(db, bus):
        await wait_said(bus, [1, 2, 0])
        await wait_empty(db)


async def _problem(db: Database) -> bool:
    return await rows(db, "SELECT count(problem) FROM outbox") == [1]


async def test_a_roll_back_says_nothing_and_a_commit_that_nobody_heard_of_is_found_in_the_table(db: Database) -> None:
    bus = FakeBus()
    async with relaying(db, bus) as relay:
        relay.expect(answers(0, 1))
        relay.forget(answers(0, 1))
        heard_nothing = answers(1, 2)
        relay.expect(heard_nothing)
        await write(db, heard_nothing)
        relay.forget(heard_nothing)
        await wait_said(bus, [1])
        await wait_empty(db)


async def test_rows_that_another_replica_is_publishing_are_left_to_it_while_they_are_young(db: Database, lab: Lab) -> None:
    mine, theirs = StubbornBus(), StubbornBus()
    other = await Database.connect(lab.dsn("ledger"), "ledger")
    async with relaying(db, mine) as relay, relaying(other, theirs) as their_relay:
        await commit(other, their_relay, answers(0, 1))
        await wait_said(theirs, [0])
        await wait_empty(db)
        theirs.open.clear()
        await commit(other, their_relay, answers(1, 3))
        await commit(db, relay, answers(3, 5))
        await wait_said(mine, [3, 4])
        theirs.open.set()
        await wait_said(theirs, [0, 1, 2])
        await wait_empty(db)
    await other.close()
    assert len(mine.tried) == 2


async def test_publishing_does_not_hold_up_the_next_batch(db: Database) -> None:
    bus, handle = StubbornBus(), Recorder(ManualClock())
    bus.open.clear()
    async with working(db, bus, handle):
        await tell(bus, said(report(1)))
        await until(lambda: _handled(db, 1), "the first is handled")
        await tell(bus, said(report(2)))
        await until(lambda: _handled(db, 2), "the second is handled while the first is not yet said")
        assert confirmed(bus) == []
        bus.open.set()
        await wait_said(bus, [1, 2])


async def _handled(db: Database, count: int) -> bool:
    return await rows(db, "SELECT count(*) FROM seen") == [count]


async def test_a_clean_end_says_what_was_committed(db: Database) -> None:
    bus, handle = StubbornBus(), Recorder(ManualClock())
    await tell(bus, said(report(1)))
    bus.open.clear()
    async with working(db, bus, handle):
        await until(lambda: _handled(db, 1), "handled")
        # Ends while the server has not yet answered.
        bus.open.set()
    assert confirmed(bus) == [1]
    assert await rows(db, "SELECT count(*) FROM outbox") == [0]


async def test_over_the_real_bus_a_decision_arrives_once_and_in_order(lab: Lab, db: Database) -> None:
    agent, ledger = await lab.bus("agent"), await lab.bus("ledger")
    handle = Recorder(lab.clock)
    await tell(agent, *(said(report(seq)) for seq in range(300)))
    orders = agent.subscribe("DECISIONS", "agent-c1")
    found: list[str] = []
    async with working(db, ledger, handle, batch=32):
        async with asyncio.timeout(20):
            while len(found) < 300:
                deliveries = await orders.pull(64, 1.0)
                await orders.ack(deliveries)
                found += [decode(it.data).id for it in deliveries]
        await wait_empty(db)
    assert len(set(found)) == 300
    assert found == sorted(found), "ids were counted in the order of handling"
