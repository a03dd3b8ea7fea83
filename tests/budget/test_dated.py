"""Dated changes over a real PostgreSQL and a real NATS server: by timer, once, with replicas, twice, restarted, renewed."""

import asyncio
from collections.abc import Mapping

import asyncpg
import pytest

from allmende.chassis.db import Database
from allmende.chassis.rpc import ask
from allmende.proto import subjects
from allmende.proto.budget import ChildShare, SetShares, TreePage, TreeQuery
from allmende.proto.dated import DatedPage, DatedQuery, DatedReply, DatedShares, PlanShares, WithdrawDated
from allmende.proto.envelope import Refusal
from allmende.proto.proposals import AcceptProposal, DeclineProposal, ProposalReply, Propose
from allmende.proto.units import HOUR_MS, parse_share
from tests.budget.builders import budget
from tests.budget.replicas import Replica, an_id, refused, replica
from tests.budget.test_service import asked, committed, load, pieces, serving, whole
from tests.servers import Lab

ROWS = (
    budget("lab", managers=("olga",)),
    budget("d", "lab", "35%", managers=("mia",)),
    budget("e", "lab", "40%", managers=("eve",), members=("bob",)),
)
WAIT_S = 20.0


@pytest.fixture
async def service(lab: Lab, db: Database) -> Replica:
    """A replica with the tree loaded as revision 1."""
    made = replica(db, lab.clock)
    assert committed(await load(made.trees, ROWS)) == ("committed", 1)
    return made


def wish(
    lab: Lab, begin: int | None, end: int | None, number: int = 1, expected: int = 1, d: str = "45%", e: str = "30%"
) -> PlanShares:
    """Shares below the lab, from and until so many hours from now."""
    now_ms = lab.clock.now_ms()
    return PlanShares(
        change=an_id(number),
        parent="lab",
        children=(ChildShare(budget="d", share_ppm=parse_share(d)), ChildShare(budget="e", share_ppm=parse_share(e))),
        effective_from_ms=None if begin is None else now_ms + begin * HOUR_MS,
        effective_until_ms=None if end is None else now_ms + end * HOUR_MS,
        expected_revision=expected,
        reason="the paper is due",
    )


def done(reply: DatedReply) -> DatedShares:
    """What was not refused."""
    assert reply.dated is not None, reply
    return reply.dated


async def state(service: Replica, number: int = 1) -> str:
    """How a change stands."""
    (found,) = (await service.dated.page("bob", DatedQuery(change=an_id(number)))).changes
    return found.state


async def shares(service: Replica) -> Mapping[str, int]:
    """The shares below the lab, in percent."""
    found = await whole(service.trees)
    return {name: (found[name].share_ppm or 0) // 10_000 for name in ("d", "e")}


async def all_due(service: Replica) -> None:
    """Let the timer do all that has passed."""
    for _ in range(10):
        await service.look()


OLD, NEW = {"d": 35, "e": 40}, {"d": 45, "e": 30}


async def test_planned_it_begins_and_ends_at_its_instants(lab: Lab, service: Replica) -> None:
    planned = done(await service.dated.plan("olga", wish(lab, 2, 5)))
    assert (planned.state, planned.number, planned.steps) == ("planned", 1, ())
    lab.clock.advance(2 * HOUR_MS - 1)
    assert await service.look() == lab.clock.now_ms() + 1
    assert await shares(service) == OLD
    lab.clock.advance(1)
    await service.look()
    assert await shares(service) == NEW
    assert await state(service) == "running"
    lab.clock.advance(3 * HOUR_MS)
    await service.look()
    assert await shares(service) == OLD
    (ended,) = (await service.dated.page("bob", DatedQuery())).changes
    assert [(step.step, step.by, step.tree_revision) for step in ended.steps] == [("begun", "olga", 2), ("ended", "olga", 3)]
    # Each revision is a row of the history, and the tree as of every instant is a query.
    then = await service.trees.tree("bob", TreeQuery(at_ms=lab.clock.now_ms() - HOUR_MS))
    assert (then.revision, then.author, then.reason) == (2, "olga", f"the paper is due (dated change {an_id()} begins)")


async def test_it_may_be_asked_twice_and_the_id_is_one_change(lab: Lab, service: Replica) -> None:
    request = wish(lab, 2, 5)
    for _ in range(2):
        assert done(await service.dated.plan("olga", request)).number == 1
    assert refused(await service.dated.plan("ada", request)) == ["id_taken"]
    assert refused(await service.dated.plan("olga", wish(lab, 2, 6))) == ["id_taken"]
    assert refused(await service.dated.plan("olga", wish(lab, None, 5))) == ["id_taken"], "at once is another beginning"
    at_once = wish(lab, None, 1, 2)
    for _ in range(2):
        assert done(await service.dated.plan("olga", at_once)).state == "running"
    lab.clock.advance(1)
    assert done(await service.dated.plan("olga", at_once)).state == "running", "a repeat a moment later"
    assert (await service.trees.tree("ada", TreeQuery())).revision == 2


async def test_it_is_taken_back_once_and_by_whoever_may(lab: Lab, service: Replica) -> None:
    assert refused(await service.dated.withdraw("olga", WithdrawDated(change=an_id(), reason="no"))) == ["unknown_change"]
    await service.dated.plan("olga", wish(lab, 2, 5))
    assert refused(await service.dated.withdraw("mia", WithdrawDated(change=an_id(), reason="no"))) == ["not_a_manager"]
    for _ in range(2):
        assert done(await service.dated.withdraw("olga", WithdrawDated(change=an_id(), reason="no"))).state == "withdrawn"
    assert refused(await service.dated.withdraw("ada", WithdrawDated(change=an_id(), reason="no"))) == ["already_over"]
    lab.clock.advance(9 * HOUR_MS)
    await all_due(service)
    assert await shares(service) == OLD


async def test_what_runs_is_ended_early_and_what_has_begun_for_good_is_over(lab: Lab, service: Replica) -> None:
    await service.dated.plan("olga", wish(lab, None, 5))
    assert await shares(service) == NEW
    for _ in range(2):
        assert done(await service.dated.withdraw("olga", WithdrawDated(change=an_id(), reason="the paper is out"))).state == "done"
    assert await shares(service) == OLD
    last = await service.trees.tree("bob", TreeQuery())
    assert (last.revision, last.author, last.reason) == (3, "olga", f"the paper is out (dated change {an_id()} called off)")
    await service.dated.plan("olga", wish(lab, 1, None, 2, expected=3))
    lab.clock.advance(HOUR_MS)
    await service.look()
    assert refused(await service.dated.withdraw("olga", WithdrawDated(change=an_id(2), reason="no"))) == ["already_over"]


async def test_ordinary_writes_are_judged_by_what_is_planned(lab: Lab, service: Replica) -> None:
    await service.dated.plan("olga", wish(lab, None, 5))
    children = (ChildShare(budget="d", share_ppm=1), ChildShare(budget="e", share_ppm=1))
    write = SetShares(parent="lab", children=children, expected_revision=2, reason="now")
    assert refused(await service.trees.set_shares("olga", write)) == ["dated_running"]
    assert refused(await load(service.trees, ROWS, 2, expected=2)) == ["dated_running"]
    assert await shares(service) == NEW


async def test_a_service_that_was_down_makes_up_what_has_passed(lab: Lab, service: Replica) -> None:
    await service.dated.plan("olga", wish(lab, 1, 2))
    await service.dated.plan("olga", wish(lab, 3, None, 2, d="50%"))
    lab.clock.advance(10 * HOUR_MS)
    again = replica(await lab.database("budget"), lab.clock)
    await all_due(again)
    assert await shares(again) == {"d": 50, "e": 30}
    assert (await again.trees.tree("ada", TreeQuery())).revision == 4
    assert [await state(again, number) for number in (1, 2)] == ["done", "done"]


async def test_history_of_dated_changes_cannot_be_rewritten(lab: Lab, service: Replica, db: Database) -> None:
    await service.dated.plan("olga", wish(lab, None, 2))
    for statement in ("UPDATE dated SET until_ms = 0", "DELETE FROM dated_step"):
        with pytest.raises(asyncpg.PostgresError, match="append-only"):
            async with db.transaction() as tx:
                await tx.connection.execute(statement)


async def test_pages_and_filters(lab: Lab, service: Replica) -> None:
    for number in range(1, 8):
        await service.dated.plan("olga", wish(lab, 10 * number, 10 * number + 5, number))
    await service.dated.withdraw("olga", WithdrawDated(change=an_id(3), reason="no"))
    first = await service.dated.page("bob", DatedQuery(limit=4))
    rest = await service.dated.page("bob", DatedQuery(limit=4, before=first.next_before))
    assert [each.number for each in (*first.changes, *rest.changes)] == [7, 6, 5, 4, 3, 2, 1]
    assert rest.next_before is None
    assert len((await service.dated.page("bob", DatedQuery(open_only=True))).changes) == 6
    assert (await service.dated.page("bob", DatedQuery(parent="d"))).changes == ()


# ------------------------------------------------------------------------------------------------ replicas and the bus


async def test_of_two_replicas_one_begins_it(lab: Lab, service: Replica) -> None:
    other = replica(await lab.database("budget"), lab.clock)
    for number in range(1, 9):
        await service.dated.plan("olga", wish(lab, 1, 2, number, expected=2 * number - 1))
        for _ in range(2):
            lab.clock.advance(HOUR_MS)
            await asyncio.gather(service.look(), other.look(), service.look(), other.look())
    assert (await service.trees.tree("ada", TreeQuery())).revision == 17
    assert await shares(service) == OLD


async def test_over_the_bus_by_timer_across_a_restart_with_two_replicas(lab: Lab) -> None:
    grace, olga, mia = await lab.bus("operator", "grace"), await lab.bus("user", "olga"), await lab.bus("user", "mia")
    async with serving(lab):
        assert committed(await asked(grace, subjects.LOAD_TREE, "grace", pieces(ROWS)[0])) == ("committed", 1)
        done(await asked(olga, subjects.PLAN_SHARES, "olga", wish(lab, 1, 3)))
        with pytest.raises(Refusal) as caught:
            await ask(mia, subjects.PLAN_SHARES, "olga", wish(lab, 1, 3))
        assert caught.value.problem.code == "not_permitted"
        lab.clock.advance(HOUR_MS)
        await _until(lab, 2)
    async with serving(lab), serving(lab):
        assert [each.state for each in (await asked(mia, subjects.DATED, "mia", DatedQuery())).changes] == ["running"]
        lab.clock.advance(2 * HOUR_MS)
        await _until(lab, 3)
        lab.clock.advance(2 * HOUR_MS)
        page: DatedPage = await asked(mia, subjects.DATED, "mia", DatedQuery())
        assert [step.step for step in page.changes[0].steps] == ["begun", "ended"]
        assert (await asked(mia, subjects.TREE, "mia", TreeQuery())).revision == 3


async def test_what_one_replica_has_planned_the_other_begins(lab: Lab, service: Replica) -> None:
    async with serving(lab):
        await asked(await lab.bus("user", "mia"), subjects.TREE, "mia", TreeQuery())
        # Planned behind its back: nobody has told its timer.
        done(await service.dated.plan("olga", wish(lab, 1, 3)))
        lab.clock.advance(HOUR_MS)
        await _until(lab, 2)


async def _until(lab: Lab, revision: int) -> None:
    bus = await lab.bus("user", "mia")
    async with asyncio.timeout(WAIT_S):
        while True:
            page: TreePage = await asked(bus, subjects.TREE, "mia", TreeQuery())
            if page.revision >= revision:
                assert page.revision == revision
                return
            await asyncio.sleep(0.05)


# ---------------------------------------------------------------------------------------------------- asked for, and renewed


def ask_for(
    lab: Lab, begin: int | None, end: int | None, number: int = 11, share: str = "45%", renews: int | None = None
) -> Propose:
    """Ask for a share of d, from and until so many hours from now."""
    now_ms = lab.clock.now_ms()
    return Propose(
        proposal=an_id(number),
        budget="d",
        share_ppm=parse_share(share),
        text="10 % more for two weeks",
        effective_from_ms=None if begin is None else now_ms + begin * HOUR_MS,
        effective_until_ms=None if end is None else now_ms + end * HOUR_MS,
        renews=None if renews is None else an_id(renews),
    )


async def accept(service: Replica, number: int = 11, expected: int = 1, **siblings: str) -> ProposalReply:
    """Give what was asked."""
    rows = tuple(ChildShare(budget=name, share_ppm=parse_share(share)) for name, share in siblings.items())
    request = AcceptProposal(proposal=an_id(number), siblings=rows, expected_revision=expected)
    return await service.proposals.accept("olga", request)


async def test_a_share_for_two_weeks_is_asked_given_and_over(lab: Lab, service: Replica) -> None:
    asked_for = await service.proposals.propose("mia", ask_for(lab, 1, 3))
    assert asked_for.proposal is not None
    assert (await accept(service, e="30%")).rejected is None
    # What is given is a dated change under the proposal's id.
    assert await state(service, 11) == "planned"
    lab.clock.advance(HOUR_MS)
    await service.look()
    assert await shares(service) == NEW
    lab.clock.advance(2 * HOUR_MS)
    await service.look()
    assert await shares(service) == OLD


async def test_a_proposal_whose_id_a_planned_change_has_is_not_given_and_stays_open(lab: Lab, service: Replica) -> None:
    await service.proposals.propose("mia", ask_for(lab, 1, 3))
    await service.dated.plan("olga", wish(lab, 5, 6, 11))
    assert refused(await accept(service, e="30%")) == ["id_taken"]
    assert refused(await accept(service, e="30%")) == ["id_taken"]


async def test_what_is_accepted_after_its_beginning_begins_at_once(lab: Lab, service: Replica) -> None:
    await service.proposals.propose("mia", ask_for(lab, 1, 3))
    await service.proposals.propose("ada", ask_for(lab, 1, None, 12, "46%"))
    lab.clock.advance(2 * HOUR_MS)
    assert (await accept(service, e="30%")).rejected is None
    assert await shares(service) == NEW
    assert refused(await accept(service, 12, expected=2, e="29%")) == ["dated_running"]
    lab.clock.advance(2 * HOUR_MS)
    await service.look()
    assert (await accept(service, 12, expected=3, e="29%")).rejected is None
    assert await shares(service) == {"d": 46, "e": 29}


async def test_siblings_that_are_not_named_stand_as_they_will_then(lab: Lab, service: Replica) -> None:
    await service.dated.plan("olga", wish(lab, 1, None, d="30%", e="20%"))
    await service.proposals.propose("mia", ask_for(lab, 2, 3, share="80%"))
    assert (await accept(service)).rejected is None
    lab.clock.advance(2 * HOUR_MS)
    await all_due(service)
    assert await shares(service) == {"d": 80, "e": 20}


@pytest.mark.parametrize("given", [True, False])
async def test_a_share_whose_renewal_is_pending_stays_in_force_until_decided(lab: Lab, service: Replica, given: bool) -> None:
    await service.dated.plan("olga", wish(lab, None, 2))
    assert (await service.proposals.propose("mia", ask_for(lab, None, 6, renews=1))).rejected is None
    lab.clock.advance(4 * HOUR_MS)
    await all_due(service)
    assert await shares(service) == NEW
    (held,) = (await service.dated.page("bob", DatedQuery())).changes
    assert (held.state, held.renewal) == ("running", an_id(11))
    if given:
        assert (await accept(service, expected=2)).rejected is None
        await all_due(service)
        assert await shares(service) == NEW
        lab.clock.advance(2 * HOUR_MS)
    else:
        declined = await service.proposals.decline("olga", DeclineProposal(proposal=an_id(11), reason="others wait"))
        assert declined.rejected is None
    await all_due(service)
    assert await shares(service) == OLD
    (ended,) = (await service.dated.page("bob", DatedQuery())).changes
    expected = ["begun", "extended", "ended"] if given else ["begun", "ended"]
    assert ([step.step for step in ended.steps], ended.state, ended.renewal) == (expected, "done", None)


async def test_a_declined_renewal_ends_by_the_running_service_alone(lab: Lab) -> None:
    grace, olga, mia = await lab.bus("operator", "grace"), await lab.bus("user", "olga"), await lab.bus("user", "mia")
    async with serving(lab):
        await asked(grace, subjects.LOAD_TREE, "grace", pieces(ROWS)[0])
        done(await asked(olga, subjects.PLAN_SHARES, "olga", wish(lab, None, 2)))
        await asked(mia, subjects.PROPOSE, "mia", ask_for(lab, None, 6, renews=1))
        lab.clock.advance(4 * HOUR_MS)
        decline = DeclineProposal(proposal=an_id(11), reason="others wait")
        await asked(olga, subjects.DECLINE_PROPOSAL, "olga", decline)
        await _until(lab, 3)


async def test_what_cannot_be_renewed(lab: Lab, service: Replica) -> None:
    await service.dated.plan("olga", wish(lab, None, 2))
    await service.dated.plan("olga", wish(lab, 5, None, 2, expected=2))
    cases = {
        "another's change": (ask_for(lab, None, 3, renews=9), ["not_renewable"]),
        "one for good": (ask_for(lab, None, 9, renews=2), ["not_renewable"]),
        "without a later end": (ask_for(lab, None, 2, renews=1), ["renewal_dates"]),
        "with a beginning": (ask_for(lab, 1, 3, renews=1), ["renewal_dates"]),
        "another share": (ask_for(lab, None, 3, share="46%", renews=1), ["other_share"]),
        "into what is planned": (ask_for(lab, None, 6, renews=1), ["dated_overlap"]),
        "dates that have passed": (ask_for(lab, -1, -2), ["from_in_past", "until_before_from"]),
    }
    for sentence, (request, codes) in cases.items():
        assert refused(await service.proposals.propose("mia", request)) == codes, sentence
    assert (await service.proposals.propose("mia", ask_for(lab, None, 3, renews=1))).rejected is None
    assert refused(await service.proposals.propose("ada", ask_for(lab, None, 4, 12, renews=1))) == ["renewal_open"]
    assert refused(await accept(service, expected=2, e="1%")) == ["siblings_renewed"]
    lab.clock.advance(4 * HOUR_MS)
    assert refused(await accept(service, expected=2)) == ["until_before_from"]
    lab.clock.advance(HOUR_MS)
    await all_due(service)
    assert await state(service) == "done"
    assert refused(await accept(service, expected=3)) == ["not_renewable"]
