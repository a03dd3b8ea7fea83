"""Closing a budget: who may, and where its jobs go. The rule, and the service over a real PostgreSQL and NATS."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from allmende.budget.handlers.trees import Handlers
from allmende.budget.model import Asking, Commit, Intent, Rejection, Tree
from allmende.budget.rules.trees import close_budget, load_tree, put_budgets
from allmende.chassis.db import Database
from allmende.proto import subjects
from allmende.proto.budget import Budget, BudgetChanged, ChildShare, CloseBudget, PutBudgets, RevisionsQuery, TreeQuery
from allmende.proto.dated import PlanShares
from allmende.proto.ids import make_id
from allmende.proto.message import Problem
from allmende.proto.units import HOUR_MS
from tests.budget.builders import budget, tree
from tests.budget.replicas import refused, replica
from tests.budget.test_service import asked, committed, heard, load, pieces, serving, whole
from tests.servers import Lab

NOW_MS = 1_700_000_000_000
# mia manages the department d, eve its neighbour e; xi leads d's project x. e has one child, f none.
ROWS = (
    budget("lab", managers=("olga",)),
    budget("d", "lab", "35%", managers=("mia",)),
    budget("e", "lab", "40%", managers=("eve",)),
    budget("f", "lab", members=("flo",)),
    budget("x", "d", "20%", managers=("xi",), members=("bob",)),
    budget("y", "d", "10%", members=("bob", "lea")),
    budget("z", "e", "50%", members=("zoe",)),
)
BEFORE = Tree(3, {row.budget: row for row in ROWS})


def close(who: str, name: str, jobs_to: str | None, *, expected: int = 3, reason: str = "it is over") -> Commit | Rejection:
    """What becomes of a request to close; `root` is an operator."""
    verdict = close_budget(BEFORE, Intent(who, reason, expected), name, jobs_to, NOW_MS, Asking(who, operator=who == "root"))
    assert isinstance(verdict, Commit | Rejection)
    return verdict


CLOSINGS: dict[str, tuple[Commit | Rejection, list[str]]] = {
    "whoever manages above closes, and the jobs go to a neighbour": (close("mia", "x", "y"), []),
    "the lead of the whole may send them anywhere": (close("olga", "x", "z"), []),
    "an operator may too, and manages nothing": (close("root", "x", "f"), []),
    "to the parent, whose last child it was": (close("eve", "z", "e"), []),
    "not to the parent while it has other children": (close("mia", "x", "d"), ["jobs_to_no_leaf"]),
    "without a word of its jobs it stays, whether it has any or not": (close("mia", "x", None), ["jobs_to_missing"]),
    "they cannot stay where they are": (close("mia", "x", "x"), ["jobs_to_no_leaf"]),
    "nor go to a budget that is not there": (close("mia", "x", "moon"), ["jobs_to_no_leaf"]),
    "nor to another team's account": (close("mia", "x", "z"), ["foreign_place"]),
    "the lead of the leaf does not close it himself": (close("xi", "x", "y"), ["not_a_manager", "foreign_place"]),
    "nor does a member": (close("bob", "y", "x"), ["not_a_manager", "foreign_place"]),
    "nor the manager beside": (close("eve", "x", "z"), ["not_a_manager"]),
    "an inner budget is closed leaf by leaf": (close("olga", "d", "f"), ["has_children"]),
    "the root is never closed": (close("root", "lab", "f"), ["has_children"]),
    "there is none of that name": (close("olga", "moon", "f"), ["unknown_budget"]),
    "the reason is asked for": (close("mia", "x", "y", reason=" "), ["reason_missing"]),
    "a stale revision is refused alone": (close("bob", "moon", None, expected=2), ["stale_revision"]),
    "every fault at once": (close("xi", "x", None, reason=""), ["reason_missing", "not_a_manager", "jobs_to_missing"]),
}


@pytest.mark.parametrize("sentence", CLOSINGS)
def test_closing_a_budget(sentence: str) -> None:
    verdict, codes = CLOSINGS[sentence]
    if isinstance(verdict, Rejection):
        assert [fault.code for fault in verdict.faults] == codes
        return
    assert codes == []
    ((name, row),) = verdict.changed.items()
    assert row is None
    assert list(verdict.jobs_to) == [name]
    assert verdict.revision.budgets == len(ROWS) - 1


def test_a_refusal_says_what_would_be_right() -> None:
    said = {
        fault.code: fault.sentence
        for name, jobs_to in (("x", None), ("x", "z"), ("d", None))
        for fault in _faults(close("mia", name, jobs_to))
    }
    assert "`allmende budgets close x --jobs-to BUDGET`" in said["jobs_to_missing"]
    assert "ask eve or an operator" in said["foreign_place"]
    assert "close or move x, y first" in said["has_children"]


def _faults(verdict: Commit | Rejection) -> Sequence[Problem]:
    assert isinstance(verdict, Rejection)
    return verdict.faults


ALONE = Tree(3, {"lab": budget("lab", members=("flo",))})


def test_the_last_budget_is_never_closed() -> None:
    verdict = close_budget(ALONE, Intent("root", "why", 3), "lab", "lab", NOW_MS, Asking("root", operator=True))
    assert isinstance(verdict, Rejection)
    assert "jobs_to_no_leaf" in [fault.code for fault in verdict.faults]


def without(*names: str) -> list[Budget]:
    """The tree as a file that leaves budgets out."""
    return [row for row in ROWS if row.budget not in names]


FILES: dict[str, tuple[list[Budget], list[str]]] = {
    "a file that leaves out a leaf with members is refused": (without("x"), ["jobs_to_missing"]),
    "and names each of them": (without("d", "x", "y"), ["jobs_to_missing", "jobs_to_missing"]),
    "an inner budget may go when its children hang elsewhere": ([*without("e", "z"), budget("z", "lab", "20%")], []),
    "a leaf may get children when its members are gone": ([*without("f"), budget("f", "lab"), budget("g", "f")], []),
}


@pytest.mark.parametrize("sentence", FILES)
def test_a_whole_file(sentence: str) -> None:
    rows, codes = FILES[sentence]
    verdict = load_tree(BEFORE, Intent("root", "why", 3), rows, NOW_MS)
    found = [fault.code for fault in verdict.faults] if isinstance(verdict, Rejection) else []
    assert found == codes


def test_an_empty_leaf_is_left_out_of_a_file_and_its_jobs_go_nowhere() -> None:
    empty = Tree(3, {**BEFORE.budgets, "f": budget("f", "lab")})
    verdict = load_tree(empty, Intent("root", "why", 3), without("f"), NOW_MS)
    assert isinstance(verdict, Commit)
    assert (verdict.changed, verdict.jobs_to) == ({"f": None}, {})


def test_a_leaf_gets_children_only_when_its_members_go_first() -> None:
    child = budget("n", "x", members=("bob",))
    asking = Asking("mia", operator=False)
    verdict = put_budgets(BEFORE, Intent("mia", "why", 3), [child], set(BEFORE.budgets), NOW_MS, asking)
    assert isinstance(verdict, Rejection)
    assert [fault.code for fault in verdict.faults] == ["members_on_inner_budget"]


# --------------------------------------------------------------------------------------------------------------------- the service

TREE = tree("lab", "a < lab 40%", "b < lab 60%", "x < a 50%", "y < a")


def closing(name: str, jobs_to: str | None, expected: int) -> CloseBudget:
    """A request to close."""
    return CloseBudget(budget=name, jobs_to=jobs_to, expected_revision=expected, reason="it is over")


async def test_what_was_closed_is_kept_with_where_its_jobs_went(handlers: Handlers, db: Database) -> None:
    await load(handlers, TREE)
    assert refused(await handlers.close_budget("ada", closing("x", None, 1))) == ["jobs_to_missing"]
    assert committed(await handlers.close_budget("ada", closing("x", "y", 1))) == ("committed", 2)
    assert sorted(await whole(handlers)) == ["a", "b", "lab", "y"]
    assert sorted(await whole(handlers, 1)) == sorted(row.budget for row in TREE)
    past = await handlers.revisions("bob", RevisionsQuery())
    assert [(row.revision, row.changed, row.jobs_to) for row in past.revisions] == [(2, 1, "y"), (1, 5, None)]
    # The name is not given again, and who comes late is told what he has not seen.
    again = PutBudgets(budgets=(budget("x", "a"),), expected_revision=2, reason="a fresh start")
    assert refused(await handlers.put_budgets("ada", again)) == ["name_was_used"]
    late = await handlers.close_budget("ada", closing("y", "b", 1))
    assert refused(late) == ["stale_revision"]
    assert late.rejected is not None
    assert [each.budget for each in late.rejected.changed] == ["x"]


@pytest.mark.parametrize("hour", [1, 3], ids=["that is planned", "that runs"])
async def test_a_dated_change_passes_over_a_child_that_was_closed(lab: Lab, db: Database, hour: int) -> None:
    """Its siblings get what was planned for them, and have their old shares back; nothing brings the closed one back."""
    service = replica(db, lab.clock)
    await load(service.trees, tree("lab", "a < lab 40%", "b < lab 30%"))
    planned = PlanShares(
        change=make_id(1, bytes(10)),
        parent="lab",
        children=(ChildShare(budget="a", share_ppm=550_000), ChildShare(budget="b", share_ppm=450_000)),
        effective_from_ms=lab.clock.now_ms() + 2 * HOUR_MS,
        effective_until_ms=lab.clock.now_ms() + 5 * HOUR_MS,
        expected_revision=1,
        reason="the paper is due",
    )
    assert (await service.dated.plan("ada", planned)).dated is not None
    shares: list[dict[str, int | None]] = []
    for at in range(6):
        await service.look()
        if at == hour:
            now = (await service.trees.tree("ada", TreeQuery())).revision
            assert committed(await service.trees.close_budget("ada", closing("b", "a", now)))[0] == "committed"
        found = await whole(service.trees)
        shares.append({name: found[name].share_ppm for name in sorted(found) if name != "lab"})
        lab.clock.advance(HOUR_MS)
    old, new = {"a": 400_000, "b": 300_000}, {"a": 550_000, "b": 450_000}
    as_planned = [old, old, new, new, new, old]
    assert shares == [each if at < hour else {"a": each["a"]} for at, each in enumerate(as_planned)]


async def test_over_the_bus_a_manager_closes_and_everybody_hears_where_the_jobs_go(lab: Lab) -> None:
    rows = tuple(replace(row, managers=("mia",)) if row.budget == "a" else row for row in TREE)
    async with serving(lab):
        grace, mia, bob = await lab.bus("operator", "grace"), await lab.bus("user", "mia"), await lab.bus("user", "bob")
        assert committed(await asked(grace, subjects.LOAD_TREE, "grace", pieces(rows)[0])) == ("committed", 1)
        assert refused(await asked(bob, subjects.CLOSE_BUDGET, "bob", closing("x", "y", 1))) == ["not_a_manager", "foreign_place"]
        assert refused(await asked(mia, subjects.CLOSE_BUDGET, "mia", closing("x", "b", 1))) == ["foreign_place"]
        assert committed(await asked(mia, subjects.CLOSE_BUDGET, "mia", closing("x", "y", 1))) == ("committed", 2)
        assert committed(await asked(mia, subjects.CLOSE_BUDGET, "mia", closing("y", "a", 2))) == ("committed", 3)
        bodies, reader = await heard(await lab.bus("ledger"), until=3)
        assert (await asked(mia, subjects.TREE, "mia", TreeQuery())).author == "mia"
    said = {body.budget: body.jobs_to for body in bodies if isinstance(body, BudgetChanged) and body.definition is None}
    assert said == {"x": "y", "y": "a"}
    assert sorted(reader.tree) == ["a", "b", "lab"]
