"""Proposals over a real PostgreSQL and a real NATS server: asked, answered, ended by a new tree; twice, at once, restarted."""

import asyncio

import asyncpg
import pytest
from msgspec.structs import replace

from allmende.chassis.db import Database
from allmende.chassis.rpc import ask
from allmende.proto import subjects
from allmende.proto.budget import ChildShare, CloseBudget, PutBudgets, TreeQuery
from allmende.proto.envelope import Refusal
from allmende.proto.proposals import (
    AcceptProposal,
    DeclineProposal,
    Proposal,
    ProposalReply,
    ProposalsPage,
    ProposalsQuery,
    Propose,
    WithdrawProposal,
)
from tests.budget.builders import budget
from tests.budget.replicas import Replica, an_id, refused, replica
from tests.budget.test_service import asked, committed, load, pieces, serving, shares, whole
from tests.servers import Lab

ROWS = (
    budget("lab", managers=("olga",)),
    budget("d", "lab", "35%", managers=("mia",)),
    budget("e", "lab", "40%", managers=("eve",)),
    budget("x", "d", "20%", managers=("xi",), members=("bob",)),
    budget("y", "d", "70%", members=("yan",)),
)


@pytest.fixture
async def service(lab: Lab, db: Database) -> Replica:
    """A replica with the tree loaded as revision 1."""
    made = replica(db, lab.clock)
    assert committed(await load(made.trees, ROWS)) == ("committed", 1)
    return made


def wish(number: int = 1, name: str = "x", share: int = 260_000, text: str = "a larger set") -> Propose:
    """A proposal for a budget."""
    return Propose(proposal=an_id(number), budget=name, share_ppm=share, text=text)


def done(reply: ProposalReply) -> Proposal:
    """The proposal of an answer that is no refusal."""
    assert reply.proposal is not None, reply
    return reply.proposal


async def listed(service: Replica, caller: str = "ada", **query: object) -> list[str]:
    """The ids that a query finds, page by page."""
    found: list[str] = []
    before: int | None = None
    while True:
        page = await service.proposals.page(caller, ProposalsQuery(before=before, **query))  # type: ignore[arg-type]
        found += [each.proposed.proposal for each in page.proposals]
        before = page.next_before
        if before is None:
            return found


async def said(db: Database) -> list[str]:
    """The subjects of what waits in the outbox about proposals."""
    async with db.reading() as connection:
        rows = await connection.fetch("SELECT subject FROM outbox WHERE subject LIKE 'budget.budget_propos%' ORDER BY seq")
    return [row["subject"] for row in rows]


# -------------------------------------------------------------------------------- asked and answered


async def test_a_share_is_asked_for_and_given(service: Replica, db: Database) -> None:
    asked_for = done(await service.proposals.propose("xi", wish()))
    assert (asked_for.proposed.author, asked_for.decided) == ("xi", None)
    assert (await whole(service.trees))["x"].share_ppm == 200_000
    stale = AcceptProposal(proposal=an_id(), expected_revision=0)
    assert refused(await service.proposals.accept("mia", stale)) == ["stale_revision"]
    given = done(await service.proposals.accept("mia", replace(stale, expected_revision=1, reason="until May")))
    assert given.decided is not None
    assert (given.decided.ending, given.decided.by, given.decided.tree_revision) == ("accepted", "mia", 2)
    assert (await whole(service.trees))["x"].share_ppm == 260_000
    page = await service.trees.tree("ada", TreeQuery())
    assert (page.author, page.reason) == ("mia", f"until May (proposal {an_id()} of xi: a larger set)")
    assert await said(db) == ["budget.budget_proposed.v1.x", "budget.budget_proposal_decided.v1.x"]


async def test_a_refused_acceptance_changes_nothing_and_leaves_it_open(service: Replica, db: Database) -> None:
    await service.proposals.propose("xi", wish(share=310_000))
    accept = AcceptProposal(proposal=an_id(), expected_revision=1)
    assert refused(await service.proposals.accept("mia", accept)) == ["shares_exceed_parent"]
    assert refused(await service.proposals.accept("xi", accept)) == ["not_a_manager"]
    assert await listed(service, state="open") == [an_id()]
    assert (await service.trees.tree("ada", TreeQuery())).revision == 1
    with_less = replace(accept, siblings=(ChildShare(budget="y", share_ppm=690_000),))
    assert done(await service.proposals.accept("mia", with_less)).decided is not None
    now = await whole(service.trees)
    assert (now["x"].share_ppm, now["y"].share_ppm) == (310_000, 690_000)
    assert len(await said(db)) == 2


async def test_it_is_declined_with_a_reason_or_withdrawn_and_stays_readable(service: Replica) -> None:
    await service.proposals.propose("xi", wish())
    assert refused(await service.proposals.decline("mia", DeclineProposal(proposal=an_id(), reason=""))) == ["reason_missing"]
    no = done(await service.proposals.decline("mia", DeclineProposal(proposal=an_id(), reason="not before May")))
    await service.proposals.propose("xi", wish(2))
    assert refused(await service.proposals.withdraw("mia", WithdrawProposal(proposal=an_id(2)))) == ["not_the_author"]
    back = done(await service.proposals.withdraw("xi", WithdrawProposal(proposal=an_id(2))))
    page = await service.proposals.page("zoe", ProposalsQuery())
    assert page.proposals == (back, no)
    assert no.decided is not None
    assert no.decided.reason == "not before May"
    assert (await service.trees.tree("ada", TreeQuery())).revision == 1


async def test_everything_may_come_twice(service: Replica, db: Database) -> None:
    for _ in range(2):
        assert done(await service.proposals.propose("xi", wish())).number == 1
    assert refused(await service.proposals.propose("bob", wish())) == ["id_taken"]
    assert refused(await service.proposals.propose("xi", wish(2))) == ["proposal_open"]
    for _ in range(2):
        # The answer was lost: the second one must not be told that its own revision made it stale.
        given = done(await service.proposals.accept("mia", AcceptProposal(proposal=an_id(), expected_revision=1)))
        assert given.decided is not None
        assert given.decided.tree_revision == 2
    assert refused(await service.proposals.decline("mia", DeclineProposal(proposal=an_id(), reason="no"))) == ["already_decided"]
    assert done(await service.proposals.propose("xi", wish())).decided == given.decided
    assert len(await said(db)) == 2
    assert refused(await service.proposals.withdraw("xi", WithdrawProposal(proposal=an_id(7)))) == ["unknown_proposal"]


async def test_texts_of_any_letters_are_kept(service: Replica) -> None:
    text = 'nul \x00 quote " backslash \\ ü 😀 line\n'
    assert done(await service.proposals.propose("xi", wish(text=text))).proposed.text == text
    accept = AcceptProposal(proposal=an_id(), expected_revision=1, reason="\x00 yes")
    given = done(await service.proposals.accept("mia", accept))
    assert given.proposed.text == text
    assert given.decided is not None
    assert given.decided.reason == "\x00 yes"


async def test_history_cannot_be_edited(service: Replica, db: Database) -> None:
    await service.proposals.propose("xi", wish())
    await service.proposals.withdraw("xi", WithdrawProposal(proposal=an_id()))
    for sql in ("UPDATE proposal SET author = 'bob'", "DELETE FROM proposal_end", "TRUNCATE proposal CASCADE"):
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            async with db.transaction() as tx:
                await tx.connection.execute(sql)


# -------------------------------------------------------------------------------- what is listed


async def test_lists_are_by_budget_author_state_and_for_me_to_decide(service: Replica) -> None:
    await service.proposals.propose("xi", wish(1))
    await service.proposals.propose("bob", wish(2))
    await service.proposals.propose("yan", wish(3, "y"))
    await service.proposals.propose("mia", wish(4, "d"))
    await service.proposals.withdraw("bob", WithdrawProposal(proposal=an_id(2)))
    assert await listed(service, limit=1) == [an_id(4), an_id(3), an_id(2), an_id(1)]
    assert await listed(service, budget="x") == [an_id(2), an_id(1)]
    assert await listed(service, author="mia") == [an_id(4)]
    assert await listed(service, state="withdrawn") == [an_id(2)]
    assert await listed(service, proposal=an_id(3)[-17:]) == [an_id(3)]
    assert len(await listed(service, proposal=an_id(3)[-4:])) == 4
    assert await listed(service, "mia", to_decide=True) == [an_id(3), an_id(1)]
    assert await listed(service, "mia", to_decide=True, budget="y") == [an_id(3)]
    assert await listed(service, "olga", to_decide=True) == [an_id(4), an_id(3), an_id(1)]
    assert await listed(service, "ada", to_decide=True) == [an_id(4), an_id(3), an_id(1)]
    assert await listed(service, "xi", to_decide=True) == []


async def test_a_page_fits_a_reply(service: Replica) -> None:
    people = tuple(f"{n:063d}" for n in range(400))
    await load(service.trees, tuple(replace(row, managers=people) if row.budget == "d" else row for row in ROWS), 2, 1)
    for number in range(1, 6):
        await service.proposals.propose("ada", wish(number, text="ü" * 1_000))
        await service.proposals.decline("ada", DeclineProposal(proposal=an_id(number), reason="no"))
    assert await listed(service) == [an_id(number) for number in (5, 4, 3, 2, 1)]


# -------------------------------------------------------------------------------- a tree that changes under it


async def test_a_proposal_whose_budget_is_moved_or_gone_is_closed_with_the_reason(service: Replica, db: Database) -> None:
    await service.proposals.propose("xi", wish(1))
    await service.proposals.propose("yan", wish(2, "y"))
    moved = PutBudgets(budgets=(replace(ROWS[3], parent="e", share_ppm=1),), expected_revision=1, reason="it fits there")
    assert committed(await service.trees.put_budgets("olga", moved)) == ("committed", 2)
    assert await listed(service, state="open") == [an_id(2)]
    closed = CloseBudget(budget="y", jobs_to="x", expected_revision=2, reason="done")
    assert committed(await service.trees.close_budget("grace", closed)) == ("committed", 3)
    page = await service.proposals.page("xi", ProposalsQuery(state="closed"))
    assert [each.decided.reason for each in page.proposals if each.decided] == [
        "budget 'y' is gone in revision 3",
        "budget 'x' hangs on 'e' from revision 2 on, where others decide: ask them",
    ]
    assert [each.decided.by for each in page.proposals if each.decided] == ["grace", "olga"]
    accept = AcceptProposal(proposal=an_id(1), expected_revision=3)
    assert refused(await service.proposals.accept("olga", accept)) == ["already_decided"]
    assert len(await said(db)) == 4


async def test_a_share_that_changes_leaves_it_open(service: Replica) -> None:
    await service.proposals.propose("xi", wish())
    assert committed(await service.trees.set_shares("mia", shares("d", 1, x=100_000, y=700_000))) == ("committed", 2)
    given = done(await service.proposals.accept("mia", AcceptProposal(proposal=an_id(), expected_revision=2)))
    assert given.decided is not None
    assert (await whole(service.trees))["x"].share_ppm == 260_000


# -------------------------------------------------------------------------------- at once, and over the bus


async def test_of_two_replicas_that_decide_at_once_one_wins(lab: Lab, service: Replica) -> None:
    other = replica(await lab.database("budget"), lab.clock)
    for number in range(1, 9):
        await service.proposals.propose("xi", wish(number, share=200_000 + number))
        revision = (await service.trees.tree("ada", TreeQuery())).revision
        accepted, declined = await asyncio.gather(
            service.proposals.accept("mia", AcceptProposal(proposal=an_id(number), expected_revision=revision)),
            other.proposals.decline("olga", DeclineProposal(proposal=an_id(number), reason="no")),
        )
        (winner,) = [reply.proposal for reply in (accepted, declined) if reply.proposal is not None]
        (loser,) = [reply for reply in (accepted, declined) if reply.rejected is not None]
        assert refused(loser) == ["already_decided"]
        (kept,) = (await service.proposals.page("xi", ProposalsQuery(proposal=an_id(number)))).proposals
        assert kept == winner
        share = (await whole(service.trees))["x"].share_ppm
        assert (share == 200_000 + number) == (accepted.proposal is not None)


async def test_two_by_one_author_at_once_are_one(lab: Lab, service: Replica) -> None:
    other = replica(await lab.database("budget"), lab.clock)
    replies = await asyncio.gather(service.proposals.propose("xi", wish(1)), other.proposals.propose("xi", wish(2)))
    assert [refused(reply) for reply in replies if reply.rejected] == [["proposal_open"]]


async def test_over_the_bus_asked_before_and_given_after_a_restart(lab: Lab) -> None:
    grace, xi, mia = await lab.bus("operator", "grace"), await lab.bus("user", "xi"), await lab.bus("user", "mia")
    async with serving(lab):
        assert committed(await asked(grace, subjects.LOAD_TREE, "grace", pieces(ROWS)[0])) == ("committed", 1)
        done(await asked(xi, subjects.PROPOSE, "xi", wish()))
        for bus, caller in ((xi, "mia"), (mia, "olga")):
            with pytest.raises(Refusal) as caught:
                await ask(bus, subjects.ACCEPT_PROPOSAL, caller, AcceptProposal(proposal=an_id(), expected_revision=1))
            assert caught.value.problem.code == "not_permitted"
    async with serving(lab), serving(lab):
        page: ProposalsPage = await asked(mia, subjects.PROPOSALS, "mia", ProposalsQuery(to_decide=True))
        assert [each.proposed.proposal for each in page.proposals] == [an_id()]
        accept = AcceptProposal(proposal=an_id(), expected_revision=1)
        replies = await asyncio.gather(*(asked(mia, subjects.ACCEPT_PROPOSAL, "mia", accept) for _ in range(4)))
        assert [done(reply).decided for reply in replies] == [done(replies[0]).decided] * 4
        assert (await asked(mia, subjects.TREE, "mia", TreeQuery())).revision == 2
