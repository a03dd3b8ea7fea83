"""The budget service over a real PostgreSQL and a real NATS server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from allmende.budget.app import load_first_tree, run
from allmende.budget.config import Settings
from allmende.budget.handlers.telling import Telling
from allmende.budget.handlers.trees import Handlers
from allmende.budget.store.notices import NoticeStore
from allmende.chassis.boot import Chassis
from allmende.chassis.db import Database
from allmende.chassis.entropy import RandomIds
from allmende.chassis.errors import Misconfigured, Transient
from allmende.chassis.health import Health
from allmende.chassis.ports import Bus
from allmende.chassis.rpc import ask
from allmende.chassis.worker import Outcome, Worker
from allmende.proto import subjects
from allmende.proto.budget import (
    MAX_BUDGETS,
    Budget,
    ChildShare,
    ClusterShare,
    PutBudgets,
    RevisionComplete,
    SetShares,
    TreePage,
    TreeQuery,
    UploadPiece,
    WriteReply,
)
from allmende.proto.envelope import Refusal, decode
from allmende.proto.ids import make_id
from allmende.proto.message import Message
from allmende.proto.tree_file import split, write_tree
from tests.budget.builders import budget, tree
from tests.budget.reader import Reader
from tests.budget.replicas import OPERATORS, refused, replica
from tests.servers import Lab

T = TypeVar("T")
TREE = tree("lab", "a < lab 40%", "b < lab 60%", "x < a 50%", "y < a")
WAIT_S = 20.0


def upload(number: int) -> str:
    """The id of an upload."""
    return make_id(number, bytes(10))


def pieces(
    rows: tuple[Budget, ...], number: int = 1, expected: int = 0, size: int | None = None, reason: str = "agreed in May"
) -> list[UploadPiece]:
    """A tree in pieces of `size` budgets (None: as few as fit)."""
    parts = list(split(rows)) if size is None else [rows[at : at + size] for at in range(0, len(rows), size)]
    return [
        UploadPiece(
            upload=upload(number),
            piece=at,
            last=at == len(parts) - 1,
            expected_revision=expected,
            reason=reason,
            budgets=tuple(part),
        )
        for at, part in enumerate(parts)
    ]


def shares(parent: str, expected: int, reason: str = "agreed in June", **ppm: int | None) -> SetShares:
    """New shares for the children of a budget."""
    children = tuple(ChildShare(budget=name, share_ppm=share) for name, share in ppm.items())
    return SetShares(parent=parent, children=children, expected_revision=expected, reason=reason)


async def load(handlers: Handlers, rows: tuple[Budget, ...] = TREE, number: int = 1, expected: int = 0) -> WriteReply:
    """Load a tree as operator grace; returns the last answer."""
    replies = [await handlers.load_tree("grace", piece) for piece in pieces(rows, number, expected)]
    return replies[-1]


def committed(reply: WriteReply) -> tuple[str, int]:
    """Status and revision of a write that was not refused."""
    assert reply.committed is not None, reply
    return reply.committed.status, reply.committed.revision


async def whole(handlers: Handlers, revision: int | None = None) -> dict[str, Budget]:
    """A revision, piece by piece."""
    found: list[Budget] = []
    after: str | None = None
    while True:
        page = await handlers.tree("ada", TreeQuery(revision=revision, after=after))
        found += page.budgets
        revision, after = page.revision, page.next_after
        if after is None:
            return {row.budget: row for row in found}


# ------------------------------------------------------------------------------------------------------ what the store keeps


async def test_without_a_tree_the_answer_says_so(handlers: Handlers) -> None:
    with pytest.raises(Refusal) as caught:
        await handlers.tree("ada", TreeQuery())
    assert caught.value.problem.code == "no_tree"


async def test_every_revision_stays_as_it_was(handlers: Handlers) -> None:
    assert committed(await load(handlers)) == ("committed", 1)
    assert committed(await handlers.set_shares("ada", shares("lab", 1, a=0, b=None))) == ("committed", 2)
    smaller = tree("lab", "a < lab 70%", "new < lab 30%")
    assert committed(await load(handlers, smaller, 2, expected=2)) == ("committed", 3)
    assert await whole(handlers, 1) == {row.budget: row for row in TREE}
    second = await whole(handlers, 2)
    assert (second["a"].share_ppm, second["b"].share_ppm) == (0, None)
    assert await whole(handlers) == await whole(handlers, 3) == {row.budget: row for row in smaller}
    page = await handlers.tree("ada", TreeQuery(revision=2))
    assert (page.author, page.reason) == ("ada", "agreed in June")
    with pytest.raises(Refusal) as caught:
        await handlers.tree("ada", TreeQuery(revision=4))
    assert caught.value.problem.code == "unknown_revision"


async def test_history_cannot_be_edited_even_by_the_service_itself(handlers: Handlers, db: Database) -> None:
    await load(handlers)
    for sql in (
        "UPDATE revision SET reason = 'better'",
        "DELETE FROM definition",
        "TRUNCATE definition",
        "UPDATE definition SET definition = NULL WHERE false",
    ):
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            async with db.transaction() as tx:
                await tx.connection.execute(sql)
    assert await whole(handlers) == {row.budget: row for row in TREE}


async def test_what_holds_already_makes_no_revision(handlers: Handlers, db: Database) -> None:
    await load(handlers)
    said = await _outbox(db)
    assert committed(await load(handlers, TREE, 2, expected=1)) == ("unchanged", 1)
    assert committed(await handlers.set_shares("ada", shares("a", 1, x=500_000, y=None))) == ("unchanged", 1)
    assert await _outbox(db) == said


async def test_a_refused_write_changes_nothing_and_names_every_fault(handlers: Handlers, db: Database) -> None:
    await load(handlers)
    said = await _outbox(db)
    assert refused(await handlers.set_shares("ada", shares("lab", 1, a=400_000, b=600_001))) == ["shares_exceed_parent"]
    assert refused(await handlers.set_shares("ada", shares("lab", 1, a=1, x=1))) == ["missing_child", "foreign_child"]
    looped = tree("lab", "a < lab 70%", "b < lab 70%", "c < d", "d < c", "e < ghost")
    assert refused(await load(handlers, looped, 2, expected=1)) == ["orphan", "tree_loop", "shares_exceed_parent"]
    assert await _outbox(db) == said
    assert await whole(handlers) == {row.budget: row for row in TREE}


async def test_br_049_a_stale_write_is_refused_and_names_the_revision_in_force(handlers: Handlers) -> None:
    await load(handlers)
    await handlers.set_shares("ada", shares("lab", 1, a=1, b=2))
    reply = await handlers.set_shares("kim", shares("lab", 1, a=3, b=4))
    assert refused(reply) == ["stale_revision"]
    assert reply.rejected is not None
    assert reply.rejected.revision == 2
    assert (await whole(handlers))["a"].share_ppm == 1


async def test_the_author_is_the_caller_and_nobody_else(handlers: Handlers) -> None:
    await load(handlers)
    assert (await handlers.tree("ada", TreeQuery())).author == "grace"


# --------------------------------------------------------------------------------------------------------------- uploads


async def test_pieces_commit_when_they_are_whole_and_not_before(handlers: Handlers) -> None:
    first, second, third = pieces(TREE, size=2)
    assert committed(await handlers.load_tree("grace", third)) == ("pieced", 0)
    assert committed(await handlers.load_tree("grace", first)) == ("pieced", 0)
    assert committed(await handlers.load_tree("grace", first)) == ("pieced", 0)
    # A piece of somebody else with the same upload id is not a piece of this one.
    assert committed(await handlers.load_tree("mallory", second)) == ("pieced", 0)
    assert committed(await handlers.load_tree("grace", second)) == ("committed", 1)
    assert await whole(handlers) == {row.budget: row for row in TREE}


async def test_a_repeated_last_piece_finds_what_it_has_done(handlers: Handlers) -> None:
    # Its answer was lost: whoever sends it again must not be told that his own revision made it stale.
    parts = pieces(TREE, size=2)
    for part in parts:
        await handlers.load_tree("grace", part)
    for part in parts:
        assert committed(await handlers.load_tree("grace", part)) == ("committed", 1)


async def test_titles_of_any_text_are_kept_to_the_letter(handlers: Handlers) -> None:
    rows = (Budget(budget="lab", title='nul \x00 quote " backslash \\ ü 😀 line\n'),)
    await load(handlers, rows)
    assert await whole(handlers) == {"lab": rows[0]}


async def test_a_large_tree_is_written_and_read_in_pieces(handlers: Handlers) -> None:
    rows = tree("lab", *(f"b{number} < lab" for number in range(3_000)))
    await load(handlers, rows)
    assert await whole(handlers) == {row.budget: row for row in rows}


# ------------------------------------------------------------------------------------------------------- a tree from a file


async def test_a_file_becomes_the_first_tree_and_is_not_looked_at_again(handlers: Handlers, tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(write_tree(TREE))
    await load_first_tree(handlers, str(file))
    assert await whole(handlers) == {row.budget: row for row in TREE}
    assert (await handlers.tree("ada", TreeQuery())).author == "budget-file"
    file.write_text("[other]\n")
    await load_first_tree(handlers, str(file))
    file.unlink()
    await load_first_tree(handlers, str(file))
    assert (await handlers.tree("ada", TreeQuery())).revision == 1


@pytest.mark.parametrize(
    ("text", "words"), [("[lab]\nboss = 1\n[lab.a]\nshare = 1\n", "boss.*share = 1 is ambiguous"), (None, "cannot be read")]
)
async def test_a_file_that_is_needed_and_wrong_ends_the_start(
    handlers: Handlers, tmp_path: Path, text: str | None, words: str
) -> None:
    file = tmp_path / "budgets.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Misconfigured, match=words):
        await load_first_tree(handlers, str(file))


# --------------------------------------------------------------------------------------------------------------- replicas


async def test_of_two_replicas_with_the_same_expected_revision_one_wins(lab: Lab, db: Database) -> None:
    other = await lab.database("budget")
    ours = replica(db, lab.clock).trees
    theirs = replica(other, lab.clock).trees
    await load(ours)
    for revision in range(1, 21):
        replies = await asyncio.gather(
            ours.set_shares("ada", shares("lab", revision, a=revision, b=0)),
            theirs.set_shares("kim", shares("lab", revision, a=0, b=revision)),
        )
        winners = [reply for reply in replies if reply.committed is not None]
        assert [committed(reply) for reply in winners] == [("committed", revision + 1)]
        assert [refused(reply) for reply in replies if reply.rejected is not None] == [["stale_revision"]]
        won = (await whole(ours))["a"].share_ppm
        assert won == (revision if replies[0].committed else 0)
    async with db.reading() as connection:
        assert await connection.fetchval("SELECT array_agg(number ORDER BY number) FROM revision") == list(range(1, 22))


# ----------------------------------------------------------------------------------------------------------- over the bus


@asynccontextmanager
async def serving(lab: Lab, **more: Any) -> AsyncIterator[None]:
    """The whole service in this process, until the block ends."""
    bus, db = await lab.bus("budget"), await lab.database("budget")
    settings = Settings(nats_url="unused", database_url="unused", operators=OPERATORS, **more)
    chassis = Chassis(settings, bus, db, lab.clock, RandomIds(), Health(), "test")
    task = asyncio.get_running_loop().create_task(run(chassis, settings))
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def asked(bus: Bus, row: subjects.Request, caller: str, request: Any) -> Any:
    """Ask until the service is there."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await ask(bus, row, caller, request)
            except Transient:
                await asyncio.sleep(0.05)


async def heard(bus: Bus, until: int) -> tuple[list[Message], Reader]:
    """Everything of the tree as the ledger hears it, up to the end of a revision."""
    subscription = bus.subscribe("TREE", "ledger")
    reader, bodies = Reader(), []
    async with asyncio.timeout(WAIT_S):
        while reader.revision < until:
            deliveries = await subscription.pull(100, 1.0)
            for delivery in deliveries:
                envelope = decode(delivery.data)
                subjects.check(delivery.subject, envelope)
                bodies.append(envelope.body)
                reader.hear(envelope.body)
            await subscription.ack(deliveries)
    return bodies, reader


async def test_a_tree_is_loaded_changed_and_heard(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(write_tree(TREE))
    async with serving(lab, tree_file=str(file)):
        grace, ledger = await lab.bus("operator", "grace"), await lab.bus("ledger")
        page: TreePage = await asked(grace, subjects.TREE, "grace", TreeQuery())
        assert {row.budget: row for row in page.budgets} == {row.budget: row for row in TREE}
        reply = await asked(grace, subjects.SET_SHARES, "grace", shares("lab", 1, a=100_000, b=900_000))
        assert committed(reply) == ("committed", 2)
        bodies, reader = await heard(ledger, until=2)
    # Five budgets and their end, then the two that differ and theirs.
    assert [type(body) is RevisionComplete for body in bodies] == [False] * 5 + [True] + [False] * 2 + [True]
    assert reader.tree is not None
    assert reader.tree["b"].share_ppm == 900_000
    complete = bodies[-1]
    assert isinstance(complete, RevisionComplete)
    assert (complete.author, complete.reason) == ("grace", "agreed in June")


async def test_shares_of_one_cluster_are_set_heard_and_taken_back(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(write_tree(TREE))
    async with serving(lab, tree_file=str(file)):
        grace, ledger = await lab.bus("operator", "grace"), await lab.bus("ledger")
        there = replace(shares("lab", 1, a=100_000, b=None), cluster="c2")
        assert committed(await asked(grace, subjects.SET_SHARES, "grace", there)) == ("committed", 2)
        too_much = replace(shares("lab", 2, a=100_000, b=900_001), cluster="c2")
        refusal: WriteReply = await asked(grace, subjects.SET_SHARES, "grace", too_much)
        assert refusal.rejected is not None
        assert [fault.code for fault in refusal.rejected.faults] == ["shares_exceed_parent"]
        assert "on cluster 'c2'" in refusal.rejected.faults[0].sentence
        back = replace(shares("lab", 2, a=None, b=None), cluster="c2")
        assert committed(await asked(grace, subjects.SET_SHARES, "grace", back)) == ("committed", 3)
        page: TreePage = await asked(grace, subjects.TREE, "grace", TreeQuery(revision=2))
        _bodies, reader = await heard(ledger, until=3)
    told = {row.budget: (row.share_ppm, row.cluster_shares) for row in page.budgets if row.parent == "lab"}
    general = {row.budget: row.share_ppm for row in TREE}
    assert told["a"] == (general["a"], (ClusterShare(cluster="c2", share_ppm=100_000),))
    assert told["b"] == (general["b"], UNSET)
    assert reader.tree == {row.budget: row for row in TREE}, "the general shares hold again"


async def test_the_largest_first_tree_is_said_whole(lab: Lab, tmp_path: Path) -> None:
    # More than the relay takes ahead of what it has said: it is written before anybody publishes.
    rows = tree("lab", *(f"b{number:05d} < lab" for number in range(MAX_BUDGETS - 1)))
    file = tmp_path / "budgets.toml"
    file.write_text(write_tree(rows))
    async with serving(lab, tree_file=str(file)):
        _, reader = await heard(await lab.bus("ledger"), until=1)
    assert reader.tree == {row.budget: row for row in rows}


async def test_what_was_committed_and_not_said_is_said_by_the_next_start(lab: Lab, db: Database, handlers: Handlers) -> None:
    await load(handlers)
    await handlers.set_shares("ada", shares("lab", 1, a=0, b=0))
    assert len(await _outbox(db)) == 9
    async with serving(lab):
        bodies, reader = await heard(await lab.bus("ledger"), until=2)
        await _until_said(db)
    assert len(bodies) == 9
    assert reader.tree == await whole(handlers)


async def test_two_replicas_answer_side_by_side(lab: Lab) -> None:
    async with serving(lab), serving(lab):
        grace = await lab.bus("operator", "grace")
        assert committed(await asked(grace, subjects.LOAD_TREE, "grace", pieces(TREE)[0])) == ("committed", 1)
        for revision in range(1, 6):
            replies = await asyncio.gather(
                *(asked(grace, subjects.SET_SHARES, "grace", shares("lab", revision, a=number, b=revision)) for number in (1, 2, 3))
            )
            assert sum(reply.committed is not None for reply in replies) == 1
        _, reader = await heard(await lab.bus("ledger"), until=6)
    assert reader.revision == 6


async def test_only_operators_load_a_tree_and_nobody_takes_anothers_name(lab: Lab) -> None:
    async with serving(lab):
        grace = await lab.bus("operator", "grace")
        assert committed(await asked(grace, subjects.LOAD_TREE, "grace", pieces(TREE)[0])) == ("committed", 1)
        ada = await lab.bus("user", "ada")
        assert (await asked(ada, subjects.TREE, "ada", TreeQuery())).revision == 1
        for bus, row, caller, request in (
            (ada, subjects.LOAD_TREE, "ada", pieces(TREE, 2, 1)[0]),
            (ada, subjects.SET_SHARES, "grace", shares("lab", 1, a=0, b=0)),
            (ada, subjects.TREE, "grace", TreeQuery()),
            (grace, subjects.SET_SHARES, "ada", shares("lab", 1, a=0, b=0)),
        ):
            with pytest.raises(Refusal) as caught:
                await ask(bus, row, caller, request)
            assert caught.value.problem.code == "not_permitted"
        assert (await asked(grace, subjects.TREE, "grace", TreeQuery())).revision == 1


async def test_a_manager_changes_what_lies_below_his_budget_over_the_bus(lab: Lab) -> None:
    rows = tuple(replace(row, managers=("mia",)) if row.budget == "a" else row for row in TREE)
    async with serving(lab):
        grace, mia = await lab.bus("operator", "grace"), await lab.bus("user", "mia")
        assert committed(await asked(grace, subjects.LOAD_TREE, "grace", pieces(rows)[0])) == ("committed", 1)
        assert committed(await asked(mia, subjects.SET_SHARES, "mia", shares("a", 1, x=1, y=2))) == ("committed", 2)
        new = PutBudgets(budgets=(budget("n", "a", members=("bob",)),), expected_revision=2, reason="a new project")
        assert committed(await asked(mia, subjects.PUT_BUDGETS, "mia", new)) == ("committed", 3)
        beside = await asked(mia, subjects.SET_SHARES, "mia", shares("lab", 3, a=1, b=2))
        assert refused(beside) == ["not_a_manager", "not_a_manager"]
        page: TreePage = await asked(mia, subjects.TREE, "mia", TreeQuery())
        assert (page.revision, page.author) == (3, "mia")


async def test_a_name_that_is_gone_is_given_to_no_other_budget(handlers: Handlers) -> None:
    await load(handlers)
    smaller = tree("lab", "a < lab 70%")
    assert committed(await load(handlers, smaller, 2, expected=1)) == ("committed", 2)
    again = PutBudgets(budgets=(budget("b", "lab"),), expected_revision=2, reason="a fresh start")
    assert refused(await handlers.put_budgets("ada", again)) == ["name_was_used"]
    assert await whole(handlers) == {row.budget: row for row in smaller}


async def test_a_worker_that_hears_nothing_says_nothing(lab: Lab, db: Database) -> None:
    telling = Telling(NoticeStore(), lab.clock, RandomIds(), deliver=False)
    async with db.transaction() as tx:
        assert await telling(tx, []) == Outcome()
    worker = Worker(
        service="budget",
        bus=await lab.bus("budget"),
        db=db,
        clock=lab.clock,
        ids=RandomIds(),
        health=Health(),
        handle=telling,
        consumers=(),
    )
    written = replica(db, lab.clock, writer=worker).trees
    assert committed(await load(written)) == ("committed", 1)


async def _outbox(db: Database) -> list[str]:
    async with db.reading() as connection:
        return [row["subject"] for row in await connection.fetch("SELECT subject FROM outbox ORDER BY seq")]


async def _until_said(db: Database) -> None:
    for _ in range(int(WAIT_S / 0.05)):
        if not await _outbox(db):
            return
        await asyncio.sleep(0.05)
    assert await _outbox(db) == []
