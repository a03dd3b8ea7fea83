"""Migrations: once each, all or nothing, never changed."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from allmende.chassis.db import Database
from allmende.chassis.errors import Misconfigured
from allmende.chassis.migrate import CHASSIS, Migration, apply, load_migrations
from tests.chassis.scene import rows
from tests.servers import Lab

FIRST = Migration("x", "001", "001_first.sql", post=False, sql="CREATE TABLE one (n int); INSERT INTO one VALUES (1);")
SECOND = Migration("x", "002", "002_second.sql", post=False, sql="ALTER TABLE one ADD COLUMN m int")
LATER = Migration("x", "003", "003_drop.post.sql", post=True, sql="ALTER TABLE one DROP COLUMN m")


@pytest_asyncio.fixture
async def db(lab: Lab) -> AsyncIterator[Database]:
    db = await Database.connect(lab.dsn("ledger"), "ledger")
    yield db
    await db.close()


async def test_each_is_applied_once_in_order_into_the_services_own_schema(db: Database) -> None:
    assert await apply(db, [FIRST]) == ["001_first.sql"]
    assert await apply(db, [FIRST, SECOND]) == ["002_second.sql"]
    assert await apply(db, [FIRST, SECOND]) == []
    assert await rows(db, "SELECT n FROM ledger.one") == [1]


async def test_one_that_was_changed_after_it_was_applied_is_refused(db: Database) -> None:
    await apply(db, [FIRST])
    with pytest.raises(Misconfigured, match="migration 001 was changed after it was applied"):
        await apply(db, [FIRST._replace(sql=FIRST.sql + " "), SECOND])
    assert await rows(db, "SELECT number FROM migration") == ["001"]


async def test_one_that_fails_undoes_all_of_its_run(db: Database) -> None:
    with pytest.raises(Misconfigured, match="does not exist"):
        await apply(db, [FIRST, SECOND._replace(sql="ALTER TABLE nowhere ADD COLUMN m int")])
    assert await rows(db, "SELECT to_regclass('one')") == [None]


async def test_the_post_migrations_wait_until_they_are_asked_for(db: Database) -> None:
    assert await apply(db, [FIRST, SECOND, LATER]) == ["001_first.sql", "002_second.sql"]
    assert await apply(db, [FIRST, SECOND, LATER], post=True) == ["003_drop.post.sql"]


async def test_replicas_that_start_together_apply_each_once(db: Database, lab: Lab) -> None:
    other = await Database.connect(lab.dsn("ledger"), "ledger")
    applied = await asyncio.gather(*(apply(which, [FIRST, SECOND]) for which in (db, other, db, other)))
    assert sorted(map(len, applied)) == [0, 0, 0, 2]
    await other.close()


def test_the_chassis_brings_its_own_and_a_package_without_any_has_none() -> None:
    assert [it.number for it in load_migrations(CHASSIS)] == ["001"]
    assert load_migrations("allmende.chassis.nothing_here") == []
