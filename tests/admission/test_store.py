"""Rows against real PostgreSQL: what was written is what is loaded, and nobody writes over somebody else."""

import random

import pytest
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change
from allmende.admission.model.values import KnownBudget, KnownRevision
from allmende.admission.ports import JobFilter
from allmende.admission.rules import life, trees
from allmende.admission.rules.passing import may_pass
from allmende.admission.store import AdmissionStore
from allmende.chassis.db import Database
from allmende.chassis.errors import StaleTerm
from allmende.proto.tree import digest
from allmende.proto.units import SECOND_MS
from tests.admission.builders import CLUSTER, NOW, an_id, counted, counting, job, node, run_pass
from tests.admission.test_pass_properties import BUDGETS, LEAVES, act
from tests.servers import Lab

STORE = AdmissionStore()


async def save(db: Database, books: Books) -> None:
    """Write what has changed."""
    async with db.transaction() as tx:
        await STORE.write(tx, books.drain())


async def loaded(db: Database) -> Books:
    """Load everything anew."""
    async with db.transaction() as tx:
        return await STORE.load(tx)


def content(books: Books) -> tuple[object, ...]:
    """Everything that matters, derived things included."""
    return (
        books.jobs,
        books.attempts,
        books.claims,
        books.nodes,
        books.clusters,
        books.counted,
        books.known,
        books.newest,
        books.tree,
        {key: dict(here) for key, here in books.on_node.items()},
        dict(books.unallocated_gpus),
        books.waiting,
    )


def furnished() -> Books:
    """Four nodes, a tree and standings, all still to be written."""
    books = Books()
    for budget in BUDGETS.values():
        trees.heard_budget(books, KnownBudget(budget=budget.budget, revision=1, definition=budget))
    trees.heard_revision(books, KnownRevision(revision=1, budgets=len(BUDGETS), digest=digest(BUDGETS.values())))
    tree = trees.switch(books)
    assert tree is not None
    books.put_tree(tree)
    books.apply(Change(nodes=tuple(node(number) for number in range(1, 5))))
    for name in BUDGETS:
        books.put_counted(counted(name, 90 if name in LEAVES else 0))
    return books


async def test_books_in_memory_equal_books_loaded_anew_after_a_long_history(lab: Lab) -> None:
    db = await lab.database("admission")
    books, chance, new_id, now_ms = furnished(), random.Random(5), counting(), NOW
    claims = 0
    for number in range(1, 201):
        now_ms += chance.randrange(20) * SECOND_MS
        act(books, chance, number, now_ms)
        for each in books.nodes.values():
            books.seen[each.key] = now_ms
        if may_pass(books, CLUSTER, now_ms):
            change = run_pass(books, now_ms, new_id=new_id).change
            claims += len(change.claims)
            books.apply(change)
        await save(db, books)
        if number % 20 == 0:
            assert content(await loaded(db)) == content(books)
    assert claims, "a history without claims shows little"


async def test_two_deciders_on_the_same_rows_cannot_both_win(lab: Lab) -> None:
    """BR-011: both have read the same last free place; the second write finds the job's row changed and is undone whole."""
    db = await lab.database("admission")
    books = furnished()
    books.apply(Change(jobs=(job(1, budget="p1", gpus_per_replica=8), job(2, budget="q1", gpus_per_replica=8))))
    await save(db, books)
    first, second = await loaded(db), await loaded(db)
    first.apply(run_pass(first, new_id=counting()).change)
    second.apply(run_pass(second, new_id=counting(2_000_000)).change)
    await save(db, first)
    with pytest.raises(StaleTerm):
        await save(db, second)
    assert content(await loaded(db)) == content(first)


async def test_what_people_write_into_names_is_kept_as_they_wrote_it(lab: Lab) -> None:
    db = await lab.database("admission")
    books = furnished()
    odd = job(1, budget="p1", name="\x00 'quoted' \u2603 \\u0000")
    books.apply(Change(jobs=(odd,)))
    books.put_payload(odd.job, b'{"command":["a"]}')
    await save(db, books)
    assert (await loaded(db)).jobs[odd.job].name == odd.name
    async with db.reading() as connection:
        assert await STORE.payload_of_job(connection, odd.job) == b'{"command":["a"]}'
        assert await STORE.payload_of_job(connection, an_id(9)) is None


async def test_jobs_are_found_by_the_end_of_their_id_and_paged_newest_first(lab: Lab) -> None:
    db = await lab.database("admission")
    books = furnished()
    names = ["01j0000000000000000000abcd", "01j0000000000000000001abcd", "01j0000000000000000000zzzz"]
    books.apply(Change(jobs=tuple(replace(job(n, budget="p1"), job=name) for n, name in enumerate(names))))
    books.apply(life.cancel(books, books.jobs[names[2]], NOW))
    await save(db, books)
    wanted = JobFilter(None, None, (), None, 2)
    async with db.reading() as connection:
        assert len(await STORE.jobs_by_suffix(connection, "abcd")) == 2
        assert [each.job for each in await STORE.jobs_by_suffix(connection, "1abcd")] == [names[1]]
        assert await STORE.jobs_by_suffix(connection, "yyyy") == []
        page = await STORE.page_of_jobs(connection, wanted)
        assert [each.job for each, _latest in page] == [names[1], names[2]]
        rest = await STORE.page_of_jobs(connection, wanted._replace(before=names[2]))
        assert [each.job for each, _latest in rest] == [names[0]]
        ended = await STORE.page_of_jobs(connection, wanted._replace(states=("ended",)))
        assert [each.job for each, _latest in ended] == [names[2]]
        others = await STORE.page_of_jobs(connection, wanted._replace(user="u2"))
        assert others == []


async def test_jobs_that_ended_long_ago_are_forgotten_with_their_story(lab: Lab) -> None:
    db = await lab.database("admission")
    books = furnished()
    books.apply(Change(jobs=(job(1, budget="p1"), job(2, budget="p1"))))
    await save(db, books)
    books.apply(life.cancel(books, books.jobs[an_id(1)], NOW))
    await save(db, books)
    async with db.transaction() as tx:
        assert await STORE.forget_ended(tx, NOW, 10) == 0
        assert await STORE.forget_ended(tx, NOW + 1, 10) == 1
        assert await STORE.decisions_of_job(tx.connection, an_id(1), 10) == []
    assert set((await loaded(db)).jobs) == {an_id(2)}
