"""Transactions over a real PostgreSQL: what is kept, what is not, and which failure leaves as what."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from allmende.chassis.db import Database, load_queries, parse_queries, retrying
from allmende.chassis.errors import Misconfigured, Transient, Unknown
from tests.chassis.proxy import Proxy
from tests.chassis.scene import open_store, rows
from tests.servers import Lab


@pytest_asyncio.fixture
async def db(lab: Lab) -> AsyncIterator[Database]:
    db = await open_store(lab.dsn("ledger"))
    yield db
    await db.close()


async def test_a_block_that_ends_is_committed_and_one_that_raises_is_not(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.connection.execute("INSERT INTO seen (seq) VALUES (1)")
    with pytest.raises(KeyError):
        await _write_and_fail(db)
    assert await rows(db, "SELECT seq FROM seen") == [1]


async def _write_and_fail(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.connection.execute("INSERT INTO seen (seq) VALUES (2)")
        raise KeyError("of the caller's own")


async def test_a_cancelled_block_is_not_committed_and_its_connection_is_clean_for_the_next(lab: Lab, db: Database) -> None:
    only = await Database.connect(lab.dsn("ledger"), "ledger", size=1)
    written = asyncio.Event()

    async def write() -> None:
        async with only.transaction() as tx:
            await tx.connection.execute("INSERT INTO seen (seq) VALUES (1)")
            written.set()
            await tx.connection.execute("SELECT pg_sleep(60)")

    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write())
        await written.wait()
        writing.cancel()
    assert await rows(only, "SELECT seq FROM seen") == []
    await only.close()


async def test_reading_sees_one_snapshot_and_cannot_write(db: Database) -> None:
    async with db.reading() as connection:
        assert await connection.fetchval("SELECT count(*) FROM seen") == 0
        async with db.transaction() as tx:
            await tx.connection.execute("INSERT INTO seen (seq) VALUES (1)")
        assert await connection.fetchval("SELECT count(*) FROM seen") == 0
    with pytest.raises(Transient, match="read-only"):
        async with db.reading() as connection:
            await connection.execute("INSERT INTO seen (seq) VALUES (2)")


async def test_a_session_is_in_utc_in_its_own_schema_and_bounded(db: Database) -> None:
    names = ("TimeZone", "search_path", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    async with db.reading() as connection:
        found = [await connection.fetchval("SELECT current_setting($1)", name) for name in names]
    assert found == ["UTC", '"ledger"', "5s", "25s", "30s"]


@pytest.mark.parametrize(
    ("sentence", "state", "kind"),
    [
        ("a serialisation failure passes", "40001", Transient),
        ("a deadlock passes", "40P01", Transient),
        ("too many connections pass", "53300", Transient),
        ("a lock time-out passes", "55P03", Transient),
        ("a shutdown passes", "57P01", Transient),
        ("a missing table is a wrong set-up", "42P01", Misconfigured),
        ("a missing privilege is a wrong set-up", "42501", Misconfigured),
        ("a broken constraint is the message's fault", "23514", asyncpg.CheckViolationError),
        ("a number out of range is the message's fault", "22003", asyncpg.NumericValueOutOfRangeError),
    ],
)
async def test_the_drivers_failures_leave_as_ours(db: Database, sentence: str, state: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as found:
        async with db.transaction() as tx:
            await tx.connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'planned' USING ERRCODE = '{state}'; END $$")
    assert not isinstance(found.value, Unknown), sentence


async def test_an_argument_of_the_wrong_type_is_not_taken_for_a_lost_connection(db: Database) -> None:
    with pytest.raises(asyncpg.DataError, match="int"):
        async with db.transaction() as tx:
            await tx.connection.execute("INSERT INTO seen (seq) VALUES ($1)", "many")


async def test_a_commit_whose_answer_is_lost_is_unknown_and_one_that_was_refused_is_not(lab: Lab, db: Database) -> None:
    async with Proxy(lab.dsn("ledger")) as proxy:
        through = await Database.connect(proxy.url, "ledger")
        proxy.lose_next_commit()
        with pytest.raises(Unknown):
            async with through.transaction() as tx:
                await tx.connection.execute("INSERT INTO seen (seq) VALUES (1)")
        assert await rows(through, "SELECT seq FROM seen") == [1], "it had happened"
        await through.close()
    async with db.transaction() as tx:
        await tx.connection.execute("ALTER TABLE seen ADD UNIQUE (seq) DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(asyncpg.UniqueViolationError):
        async with db.transaction() as tx:
            await tx.connection.execute("INSERT INTO seen (seq) VALUES (1)")


async def test_a_lock_keeps_others_of_the_same_name_out_until_the_end(db: Database) -> None:
    order: list[str] = []
    inside = asyncio.Event()

    async def first() -> None:
        async with db.transaction() as tx:
            await tx.lock("tree")
            inside.set()
            await tx.connection.execute("SELECT pg_sleep(0.1)")
            order.append("first")

    async def second() -> None:
        await inside.wait()
        async with db.transaction() as tx:
            await tx.lock("another")
            order.append("other name")
            await tx.lock("tree")
            order.append("second")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first())
        tasks.create_task(second())
    assert order == ["other name", "first", "second"]


async def test_work_is_done_again_on_a_fresh_connection_and_not_for_ever(db: Database) -> None:
    pids: list[int] = []

    async def work() -> int:
        async with db.transaction() as tx:
            pids.append(await tx.connection.fetchval("SELECT pg_backend_pid()"))
            if len(pids) == 1:
                async with db.transaction() as other:
                    await other.connection.execute("SELECT pg_terminate_backend($1, 5000)", pids[0])
            return int(await tx.connection.fetchval("SELECT 7"))

    assert await retrying(work) == 7
    assert len(set(pids)) == 2

    async def never() -> None:
        pids.append(0)
        raise ConnectionResetError("again")

    pids.clear()
    with pytest.raises(Transient, match="again"):
        await retrying(never)
    assert len(pids) == 6


@pytest.mark.parametrize(
    ("sentence", "change", "kind"),
    [
        ("a wrong password never gets right", lambda url: url.replace("ledger:", "ledger:x"), Misconfigured),
        ("a database that is not there", lambda url: url.replace("/lab_", "/lub_"), Misconfigured),
        ("no URL at all", lambda _: "http://nowhere", Misconfigured),
        ("a server that is not there may come", lambda _: "postgresql://a:b@127.0.0.1:1/c", Transient),
    ],
)
async def test_a_database_that_cannot_be_opened(lab: Lab, sentence: str, change: object, kind: type[Exception]) -> None:
    assert callable(change)
    with pytest.raises(kind):
        await Database.connect(change(lab.dsn("ledger")), "ledger")
    assert sentence


def test_named_queries_are_cut_at_their_names() -> None:
    text = "-- What the store asks.\n\n-- name: one\nSELECT 1;\n\n-- name: two_rows\n-- why\nSELECT 2\nUNION ALL SELECT 2;\n"
    assert parse_queries(text, "x.sql") == {"one": "SELECT 1;", "two_rows": "-- why\nSELECT 2\nUNION ALL SELECT 2;"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-- name: a\nSELECT 1\n-- name: a\nSELECT 2", "query a is there twice"),
        ("-- name: a\n\n-- name: b\nSELECT 2", "query a is empty"),
        ("SELECT 1\n-- name: a\nSELECT 2", "before the first"),
    ],
)
def test_a_file_of_queries_that_could_be_misread_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_queries(text, "x.sql")


def test_the_queries_of_a_service_are_found_beside_its_store() -> None:
    assert load_queries("allmende.preemptor")
