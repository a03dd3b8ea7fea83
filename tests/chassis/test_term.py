"""The single writer: one at a time, and whoever was overtaken cannot write, whatever it believes."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from allmende.chassis.db import Database
from allmende.chassis.errors import StaleTerm
from allmende.chassis.term import Term
from tests.chassis.scene import open_store, rows
from tests.servers import Lab


@pytest_asyncio.fixture
async def db(lab: Lab) -> AsyncIterator[Database]:
    db = await open_store(lab.dsn("ledger"))
    yield db
    await db.close()


async def write(db: Database, term: Term, seq: int) -> None:
    async with db.transaction() as tx:
        await term.check(tx)
        await tx.connection.execute("INSERT INTO seen (seq) VALUES ($1)", seq)


async def test_while_one_holds_it_nobody_else_gets_it_and_after_the_release_at_once(db: Database) -> None:
    first, second = Term(db, "c1", holder="first"), Term(db, "c1", holder="second")
    assert await first.acquire() == 1
    assert await second.try_acquire() is None
    assert await Term(db, "c2").try_acquire() == 1, "another name is another term"
    await first.release()
    assert await second.acquire() == 2
    assert await rows(db, "SELECT holder FROM term WHERE name = 'c1'") == ["second"]


async def test_a_writer_whose_lease_lapsed_may_write_until_somebody_takes_over_and_never_after(db: Database) -> None:
    """BR-011: two deciders never both fill the last place, because only one of them can commit."""
    old, new = Term(db, "c1", lease_s=0.0), Term(db, "c1")
    await old.acquire()
    await write(db, old, 1)
    assert await new.acquire() == 2
    with pytest.raises(StaleTerm):
        await write(db, old, 2)
    await write(db, new, 3)
    await old.release()
    assert await Term(db, "c1").try_acquire() is None, "the release of the old one does not touch the new one's lease"
    assert await rows(db, "SELECT seq FROM seen ORDER BY place") == [1, 3]


async def test_a_take_over_waits_for_the_transaction_that_is_being_written(db: Database) -> None:
    old, new = Term(db, "c1", lease_s=0.0), Term(db, "c1")
    await old.acquire()
    order: list[str] = []
    inside = asyncio.Event()

    async def write_slowly() -> None:
        async with db.transaction() as tx:
            await old.check(tx)
            inside.set()
            await tx.connection.execute("SELECT pg_sleep(0.1)")
            order.append("written")

    async def take_over() -> None:
        await inside.wait()
        await new.acquire()
        order.append("taken over")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_slowly())
        tasks.create_task(take_over())
    assert order == ["written", "taken over"]


async def test_renewing_keeps_the_term_beyond_its_lease_and_tells_when_it_was_lost(db: Database) -> None:
    term, other = Term(db, "c1", lease_s=0.3), Term(db, "c1")
    await term.acquire()
    started = (await rows(db, "SELECT expires_at FROM term"))[0]
    with pytest.RaisesGroup(StaleTerm):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(term.run())
            async with asyncio.timeout(10):
                while (await rows(db, "SELECT expires_at FROM term"))[0] == started:
                    assert await other.try_acquire() is None
            async with db.transaction() as tx:
                await tx.connection.execute("UPDATE term SET fence = fence + 1")


async def test_nobody_writes_without_having_taken_the_term(db: Database) -> None:
    with pytest.raises(StaleTerm):
        await write(db, Term(db, "c1"), 1)
