"""The inbox loop over a real PostgreSQL: nothing twice, nothing lost, no bad message in the way. The bus is the one in memory."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from allmende.chassis.db import Database, Transaction
from allmende.chassis.errors import Misconfigured, Poison, StaleTerm, Transient
from allmende.chassis.fakes import CountingIds, FakeBus, ManualClock
from allmende.chassis.fakes.bus import FakeServer
from allmende.chassis.health import Health
from allmende.chassis.inbox import prune
from allmende.chassis.outbox import seal
from allmende.chassis.term import Term
from allmende.chassis.worker import Outcome
from allmende.proto.envelope import decode
from allmende.proto.message import MessageRefused
from allmende.proto.streams import consumers_of
from allmende.proto.user import JobSubmitted, Payload
from tests.chassis.proxy import Proxy
from tests.chassis.scene import (
    NOW_MS,
    WITHIN_S,
    Recorder,
    SlowAcks,
    confirmed,
    open_store,
    report,
    rows,
    said,
    tell,
    until,
    working,
)
from tests.servers import Lab


@pytest_asyncio.fixture
async def db(lab: Lab) -> AsyncIterator[Database]:
    db = await open_store(lab.dsn("ledger"))
    yield db
    await db.close()


async def handled(db: Database) -> list[object]:
    return await rows(db, "SELECT seq FROM seen ORDER BY place")


async def wait_handled(db: Database, wanted: list[int]) -> None:
    async def fact() -> bool:
        return sorted(await handled(db), key=str) == sorted(wanted, key=str)

    await until(fact, f"{wanted} handled")


async def wait_said(bus: FakeBus, wanted: list[int]) -> None:
    async def fact() -> bool:
        return confirmed(bus) == wanted

    await until(fact, f"{wanted} confirmed, in this order")


async def wait_empty(db: Database, table: str) -> None:
    async def fact() -> bool:
        return await rows(db, f"SELECT count(*) FROM {table}") == [0]

    await until(fact, f"nothing left in {table}")


async def test_what_is_pulled_is_handled_said_acknowledged_and_forgotten_by_the_outbox(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    await tell(bus, *(said(report(seq)) for seq in range(5)))
    async with working(db, bus, handle):
        await wait_said(bus, [0, 1, 2, 3, 4])
        await wait_empty(db, "outbox")
        await until(lambda: _lag(bus, 0), "all acknowledged")
    assert await handled(db) == [0, 1, 2, 3, 4]
    assert handle.calls[0] == [], "the handler is called once at the start, for its timers"


async def _lag(bus: FakeBus, wanted: int) -> bool:
    return await bus.subscribe("USAGE", "ledger").lag() == wanted


async def test_batches_grow_with_what_waits_and_never_beyond_their_bound(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    await tell(bus, *(said(report(seq)) for seq in range(100)))
    async with working(db, bus, handle, batch=16):
        await wait_said(bus, list(range(100)))
    sizes = [len(call) for call in handle.calls if call]
    assert max(sizes) == 16
    assert len(sizes) < 20, "100 waiting messages need about seven transactions"


async def test_a_message_that_comes_again_is_handled_once(db: Database) -> None:
    """BR-035 and BR-036: what counts is the stored identity, not the broker's window, and a batch is judged one by one."""
    bus, handle = FakeBus(), Recorder(ManualClock())
    first, second = said(report(1)), said(report(2))
    await tell(bus, first, second, first)
    await tell(bus, first, second, copy="-again")
    async with working(db, bus, handle):
        await wait_handled(db, [1, 2])
        await until(lambda: _lag(bus, 0), "copies are acknowledged too")
        await tell(bus, first, copy="-later")
        await until(lambda: _lag(bus, 0), "a late copy is acknowledged too")
    assert await handled(db) == [1, 2]
    assert confirmed(bus) == [1, 2]


async def test_what_was_handled_and_never_acknowledged_is_not_handled_by_the_next_process(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    await tell(bus, said(report(1)))
    async with working(db, SlowAcks(bus), handle):  # type: ignore[arg-type]  # it hands everything else through
        await wait_said(bus, [1])
    again = Recorder(ManualClock(), CountingIds(500))
    async with working(db, bus, again):
        await until(lambda: _lag(bus, 0), "acknowledged by the second process")
    assert await handled(db) == [1]


async def test_nobody_swallows_anothers_message_by_using_its_id_first(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    honest = said(report(1, "c1"))
    forged = said(report(2, "c2"))._replace(id=honest.id)
    await tell(bus, forged)
    await tell(bus, honest, copy="-by-c1")
    async with working(db, bus, handle):
        await wait_handled(db, [1, 2])


async def test_a_person_who_is_called_like_a_cluster_swallows_none_of_its_messages(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    honest = said(report(1, "c1"))
    job = JobSubmitted(user="c1", job=CountingIds(7).new(NOW_MS), slice_ms=0, payload=Payload(command=("true",)))
    await tell(bus, said(job)._replace(id=honest.id))
    async with working(db, bus, handle, consumers=consumers_of("admission")):
        await until(lambda: _handled_once(db), "the person's own message is in the inbox")
        await tell(bus, honest, copy="-by-c1")
        await wait_handled(db, [1])


async def _handled_once(db: Database) -> bool:
    return await rows(db, "SELECT count(*) FROM inbox") == [1]


BAD = [
    ("not JSON at all", b"{", "malformed_json"),
    ("a type nobody knows", seal(said(report(1))._replace(type="node.exploded"), NOW_MS), "unknown_message"),
    ("a wrong type in the body", seal(said(report(1)), NOW_MS).replace(b'"seq":1', b'"seq":"1"'), "wrong_type"),
    ("another cluster than the subject's", seal(said(report(1, "c2")), NOW_MS), "cluster_mismatch"),
    ("brackets without end", b'{"deep":' + b"[" * 60_000, "nested_too_deep"),
    ("a NUL in a name", seal(said(report(1)), NOW_MS).replace(b"node.reported", b"node\\u0000reported"), "unknown_message"),
]


@pytest.mark.parametrize(("sentence", "data", "code"), BAD, ids=[row[0] for row in BAD])
async def test_a_message_that_cannot_be_believed_is_kept_refused_and_stops_nobody(
    db: Database, sentence: str, data: bytes, code: str
) -> None:
    """BR-041, the other half: a malformed message delays nobody behind it."""
    bus, handle = FakeBus(), Recorder(ManualClock())
    await tell(bus, said(report(1)))
    await bus.publish("agent.node_reported.v1.c1.n1", "bad", data)
    await tell(bus, said(report(2)))
    async with working(db, bus, handle):
        await wait_said(bus, [1, 2])
        await until(lambda: _lag(bus, 0), "the bad one is acknowledged too")
    assert await rows(db, "SELECT data FROM quarantine") == [data], sentence
    assert _refusals(bus) == [("c1", code)]


def _refusals(bus: FakeBus) -> list[tuple[str, str]]:
    bodies = [decode(it.data).body for it in bus.server.stored("REFUSALS")]
    return [(body.publisher, body.problem.code) for body in bodies if isinstance(body, MessageRefused)]


@pytest.mark.parametrize(
    ("error", "code"), [(Poison("goes_backwards", "seq 3 goes back"), "goes_backwards"), (KeyError("x"), "poison")]
)
async def test_one_message_that_the_handler_cannot_bear_is_set_aside_and_the_others_of_its_batch_are_handled(
    db: Database, error: Exception, code: str
) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())

    async def fail(_: Transaction, seqs: list[int]) -> None:
        if 3 in seqs:
            raise error

    handle.before = fail
    await tell(bus, *(said(report(seq)) for seq in range(7)))
    async with working(db, bus, handle):
        await wait_said(bus, [0, 1, 2, 4, 5, 6])
        await until(lambda: _lag(bus, 0), "acknowledged")
    assert await handled(db) == [0, 1, 2, 4, 5, 6]
    assert await rows(db, "SELECT code FROM quarantine") == [code]
    assert _refusals(bus) == [("c1", code)]
    assert handle.failures >= 2, "the batch, and the message alone"


async def test_a_handler_that_fails_without_messages_too_ends_the_process_instead_of_emptying_the_stream(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())

    async def fail(_: Transaction, seqs: list[int]) -> None:
        if len(handle.calls) > 1:
            raise KeyError("a column that was forgotten")

    handle.before = fail
    await tell(bus, said(report(1)))
    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        async with working(db, bus, handle):
            await asyncio.sleep(WITHIN_S)
    assert await rows(db, "SELECT count(*) FROM quarantine") == [0]
    assert await _lag(bus, 1), "it comes again"


@pytest.mark.parametrize("error", [StaleTerm("taken over"), AssertionError("books do not balance"), Misconfigured("no")])
async def test_a_broken_invariant_a_lost_term_and_a_wrong_set_up_end_the_worker_with_nothing_written(
    db: Database, error: Exception
) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())

    async def fail(_: Transaction, seqs: list[int]) -> None:
        if seqs:
            raise error

    handle.before = fail
    await tell(bus, said(report(1)))
    with pytest.RaisesGroup(type(error), flatten_subgroups=True):
        async with working(db, bus, handle):
            await asyncio.sleep(WITHIN_S)
    assert await handled(db) == []
    assert await rows(db, "SELECT count(*) FROM quarantine") == [0]


async def test_a_passing_failure_is_tried_again_until_it_passes(db: Database) -> None:
    """BR-041: an outage uses up no delivery limit; only what is wrong in itself is set aside."""
    bus, handle, health = FakeBus(), Recorder(ManualClock()), Health()
    left = [1, 2, 3]

    async def fail(_: Transaction, seqs: list[int]) -> None:
        if seqs and left:
            left.pop()
            raise Transient("another service is away")

    handle.before = fail
    await tell(bus, said(report(1)))
    async with working(db, bus, handle, health=health):
        await wait_said(bus, [1])
    assert await handled(db) == [1]
    assert handle.failures == 3
    assert health.why_not_ready() == {}


async def test_a_backend_killed_before_the_commit_costs_nothing(db: Database, lab: Lab) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    killed: list[int] = []

    async def kill(tx: Transaction, seqs: list[int]) -> None:
        if seqs and not killed:
            pid = await tx.connection.fetchval("SELECT pg_backend_pid()")
            killed.append(pid)
            async with db.transaction() as other:
                await other.connection.execute("SELECT pg_terminate_backend($1, 5000)", pid)

    handle.before = kill
    await tell(bus, said(report(1)), said(report(2)))
    async with working(db, bus, handle):
        await wait_said(bus, [1, 2])
    assert killed
    assert await handled(db) == [1, 2]


async def test_a_commit_whose_answer_was_lost_is_not_handled_again_and_its_messages_go_out_once(lab: Lab, db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    async with Proxy(lab.dsn("ledger")) as proxy:
        through = await Database.connect(proxy.url, "ledger")

        async def cut(_: Transaction, seqs: list[int]) -> None:
            if seqs:
                proxy.lose_next_commit()
            handle.wake_at_ms = NOW_MS + 60_000

        handle.before = cut
        await tell(bus, said(report(1)), said(report(2)))
        async with working(through, bus, handle):
            await wait_said(bus, [1, 2])
            await wait_empty(db, "outbox")
            assert proxy.commits_lost >= 1
            calls = len(handle.calls)
            handle.clock.advance(60_000)
            await until(lambda: _more_calls(handle, calls), "the timer of the commit that nobody heard of is not lost")
        await through.close()
    assert await handled(db) == [1, 2]
    assert handle.failures >= 1, "a model in memory was dropped"


async def _more_calls(handle: Recorder, than: int) -> bool:
    return len(handle.calls) > than


async def test_two_workers_on_one_database_handle_each_message_once(db: Database, lab: Lab) -> None:
    # Each has a copy of everything, as when acknowledgements are late.
    first, second = FakeBus(FakeServer()), FakeBus(FakeServer())
    drafts = [said(report(seq)) for seq in range(200)]
    await tell(first, *drafts)
    await tell(second, *reversed(drafts))
    other = await Database.connect(lab.dsn("ledger"), "ledger")
    async with (
        working(db, first, Recorder(ManualClock()), batch=16),
        working(other, second, Recorder(ManualClock(), CountingIds(5_000)), batch=16),
    ):
        await until(lambda: _lag(first, 0), "all acknowledged by the first")
        await until(lambda: _lag(second, 0), "all acknowledged by the second")
        await wait_empty(db, "outbox")
    await other.close()
    assert sorted(await handled(db), key=str) == sorted(range(200), key=str)
    assert sorted(confirmed(first) + confirmed(second)) == list(range(200))


async def test_a_timer_calls_the_handler_at_its_instant_and_not_before(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    handle.wake_at_ms = handle.clock.now_ms() + 5_000
    async with working(db, bus, handle) as worker:
        await until(lambda: _more_calls(handle, 0), "called at the start")
        handle.clock.advance(4_999)
        await tell(bus, said(report(1)))
        handle.wake_at_ms = NOW_MS + 10_000
        await wait_handled(db, [1])
        assert handle.calls == [[], [1]]
        handle.clock.advance(5_000)
        # The message's outcome set the timer anew, so the first instant passes in silence.
        await worker.exclusively(_nothing)
        assert handle.calls == [[], [1]]
        handle.clock.advance(1)
        await until(lambda: _more_calls(handle, 2), "called by the timer")
        assert handle.calls == [[], [1], []]
        worker.nudge()
        await until(lambda: _more_calls(handle, 3), "called by the nudge")


async def _nothing(_: Transaction) -> tuple[None, Outcome]:
    return None, Outcome()


async def test_a_command_runs_between_batches_says_its_messages_and_may_bring_the_timer_forward(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    inside: list[str] = []

    async def slowly(tx: Transaction, _: list[int]) -> None:
        inside.append("in")
        await tx.connection.execute("SELECT pg_sleep(0.005)")
        inside.append("out")

    async def command(tx: Transaction) -> tuple[str, Outcome]:
        assert inside.count("in") == inside.count("out"), "in the middle of a batch"
        await tx.connection.execute("INSERT INTO seen (seq) VALUES (1000)")
        return "done", Outcome([handle.confirm(report(1000))], handle.clock.now_ms() + 1_000)

    handle.before = slowly
    await tell(bus, *(said(report(seq)) for seq in range(40)))
    async with working(db, bus, handle, batch=4) as worker:
        await until(lambda: _more_calls(handle, 1), "the batches have begun")
        assert await worker.exclusively(command) == "done"
        await until(lambda: _said(bus, 1000), "the command's message is out")
        await wait_handled(db, [*range(40), 1000])
    assert sorted(confirmed(bus)) == [*range(40), 1000]


async def _said(bus: FakeBus, number: int) -> bool:
    return number in confirmed(bus)


async def test_a_command_that_fails_changes_nothing_and_one_that_breaks_an_invariant_ends_the_worker(db: Database) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())

    async def refuse(tx: Transaction) -> tuple[None, Outcome]:
        await tx.connection.execute("INSERT INTO seen (seq) VALUES (1)")
        raise Poison("no", "not like this")

    async def break_it(_: Transaction) -> tuple[None, Outcome]:
        raise AssertionError("the books do not balance")

    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        async with working(db, bus, handle) as worker:
            with pytest.raises(Poison):
                await worker.exclusively(refuse)
            assert await handled(db) == []
            assert handle.failures == 1
            with pytest.raises(AssertionError):
                await worker.exclusively(break_it)
            await asyncio.sleep(WITHIN_S)


async def test_the_writer_whose_term_was_taken_over_stops_with_nothing_written(db: Database, lab: Lab) -> None:
    bus, handle = FakeBus(), Recorder(ManualClock())
    old, new = Term(db, "writer", holder="old", lease_s=0.0), Term(db, "writer", holder="new")
    assert await old.acquire() == 1

    async def check(tx: Transaction, _: list[int]) -> None:
        await old.check(tx)

    handle.before = check
    with pytest.RaisesGroup(StaleTerm, flatten_subgroups=True):
        async with working(db, bus, handle):
            await tell(bus, said(report(1)))
            await wait_said(bus, [1])
            assert await new.acquire() == 2
            await tell(bus, said(report(2)))
            await asyncio.sleep(WITHIN_S)
    assert await handled(db) == [1]


async def test_old_inbox_rows_are_pruned_in_small_steps_and_young_ones_stay(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.connection.execute(
            "INSERT INTO inbox SELECT 'c1', 'old' || i, clock_timestamp() - interval '31 days' FROM generate_series(1, 25) AS i"
        )
        await tx.connection.execute("INSERT INTO inbox VALUES ('c1', 'young')")
    assert [await prune(db, most=10) for _ in range(3)] == [True, True, False]
    assert await rows(db, "SELECT id FROM inbox") == ["young"]


def test_a_refusal_reads_as_json() -> None:
    assert msgspec.json.decode(seal(said(report(1)), NOW_MS))["sent_at_ms"] == NOW_MS
