"""What a write does: commits, refusals that name every fault, pieces put together. Pure."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.budget.model import Asking, ChildShares, Commit, Intent, Piece, Rejection, Tree, Unchanged, Verdict
from allmende.budget.rules.trees import assemble, load_tree, set_shares
from allmende.budget.wire import FAULT_BYTES, messages, page, reply
from allmende.proto.budget import Budget, BudgetChanged, RevisionComplete
from allmende.proto.message import Problem
from allmende.proto.tree import digest
from tests.budget.builders import budget, tree, valid_trees

NOW_MS = 1_700_000_000_000
ANYBODY = Asking("ada", operator=True)
BEFORE = Tree(3, {row.budget: row for row in tree("lab", "a < lab 40%", "b < lab 60%", "x < a 50%", "y < a")})


def intent(expected: int = 3, reason: str = "agreed in May") -> Intent:
    """A write by ada."""
    return Intent("ada", reason, expected)


def codes(verdict: Verdict) -> list[str]:
    """The codes of a refusal."""
    assert isinstance(verdict, Rejection), verdict
    assert verdict.revision == 3
    return [fault.code for fault in verdict.faults]


SHARES: dict[str, tuple[Intent, str, ChildShares, list[str]]] = {
    "a stale revision is refused alone": (intent(2), "nobody", [], ["stale_revision"]),
    "a revision that does not exist yet is stale as well": (intent(4), "lab", [("a", 0), ("b", 0)], ["stale_revision"]),
    "a reason of blanks is none": (intent(reason=" \n"), "lab", [("a", 0), ("b", 0)], ["reason_missing"]),
    "a NUL is in no reason": (intent(reason="more\0"), "lab", [("a", 0), ("b", 0)], ["reason_unreadable"]),
    "an unknown parent": (intent(), "c", [], ["unknown_budget"]),
    "a leaf has no children": (intent(), "b", [], ["no_children"]),
    "a child that is left out is not left as it was": (intent(), "lab", [("a", 100)], ["missing_child"]),
    "a grandchild is not a child": (intent(), "lab", [("a", 1), ("b", 1), ("x", 1)], ["foreign_child"]),
    "one child twice": (intent(), "lab", [("a", 1), ("b", 1), ("b", 2)], ["duplicate_child"]),
    "one part per million too much": (intent(), "lab", [("a", 400_000), ("b", 600_001)], ["shares_exceed_parent"]),
    "unset makes the grandchildren count": (intent(), "lab", [("a", None), ("b", 500_001)], ["shares_exceed_parent"]),
    "every fault at once": (
        intent(reason=""),
        "lab",
        [("a", 999_999), ("x", 1), ("a", 1_000_001)],
        ["reason_missing", "missing_child", "foreign_child", "duplicate_child", "share_out_of_range", "shares_exceed_parent"],
    ),
}


@pytest.mark.parametrize("sentence", SHARES)
def test_setting_shares_is_refused(sentence: str) -> None:
    who, parent, children, expected = SHARES[sentence]
    assert codes(set_shares(BEFORE, who, parent, children, NOW_MS, ANYBODY)) == expected


def test_br_049_a_stale_write_names_the_revision_in_force() -> None:
    verdict = set_shares(BEFORE, intent(2), "lab", [("a", 0), ("b", 0)], NOW_MS, ANYBODY)
    assert isinstance(verdict, Rejection)
    assert "revision 3 is in force, you expected 2" in verdict.faults[0].sentence


def test_setting_shares_says_only_what_differs() -> None:
    verdict = set_shares(BEFORE, intent(), "lab", [("a", 400_000), ("b", None)], NOW_MS, ANYBODY)
    assert isinstance(verdict, Commit)
    assert verdict.changed == {"b": budget("b", "lab")}
    assert verdict.revision[:5] == (4, NOW_MS, "ada", "agreed in May", 5)
    after = {**BEFORE.budgets, **verdict.changed}
    assert verdict.revision.digest == digest(row for row in after.values() if row is not None)


def test_what_holds_already_makes_no_revision() -> None:
    assert set_shares(BEFORE, intent(), "lab", [("b", 600_000), ("a", 400_000)], NOW_MS, ANYBODY) == Unchanged(3)
    assert load_tree(BEFORE, intent(), list(BEFORE.budgets.values()), NOW_MS) == Unchanged(3)


def test_setting_to_zero_and_unsetting_are_different_changes() -> None:
    zero = set_shares(BEFORE, intent(), "a", [("x", 0), ("y", None)], NOW_MS, ANYBODY)
    unset = set_shares(BEFORE, intent(), "a", [("x", None), ("y", None)], NOW_MS, ANYBODY)
    assert isinstance(zero, Commit)
    assert isinstance(unset, Commit)
    assert zero.revision.digest != unset.revision.digest


def test_loading_names_the_faults_of_the_tree_even_when_it_is_stale() -> None:
    rows = tree("lab", "a < lab 60%", "b < lab 60%", "c < d", "d < c")
    assert codes(load_tree(BEFORE, intent(2, ""), rows, NOW_MS)) == [
        "stale_revision",
        "reason_missing",
        "tree_loop",
        "shares_exceed_parent",
    ]


@given(valid_trees(), valid_trees())
def test_what_a_revision_says_turns_the_tree_before_into_the_tree_after(before: Sequence[Budget], after: Sequence[Budget]) -> None:
    known = {row.budget: row for row in before}
    # A leaf with members is closed, not left out.
    known = {name: msgspec.structs.replace(row, members=()) for name, row in known.items()}
    verdict = load_tree(Tree(3, known), intent(), after, NOW_MS)
    if isinstance(verdict, Unchanged):
        assert digest(known.values()) == digest(after)
        return
    assert isinstance(verdict, Commit)
    *changes, complete = messages(verdict)
    assert isinstance(complete, RevisionComplete)
    for change in changes:
        assert isinstance(change, BudgetChanged)
        assert known.get(change.budget) != change.definition
        if change.definition is None:
            del known[change.budget]
        else:
            known[change.budget] = change.definition
    assert known == {row.budget: row for row in after}
    assert (complete.budgets, complete.digest) == (len(known), digest(known.values()))


@given(st.lists(valid_trees(4), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_pieces_come_in_any_order_and_more_than_once(parts: list[tuple[Budget, ...]], chance: random.Random) -> None:
    pieces = [Piece(number, number == len(parts) - 1, part) for number, part in enumerate(parts)]
    arrived: list[Piece] = []
    for piece in chance.sample(pieces, len(pieces)):
        assert assemble(arrived) is None
        arrived += [piece, piece]
    assert assemble(arrived) == [row for part in parts for row in part]


def test_a_thousand_faults_fit_a_reply() -> None:
    faults = [Problem(code="orphan", sentence=f"{number}: " + "x" * 200) for number in range(1_000)]
    rejected = reply(Rejection(3, faults)).rejected
    assert rejected is not None
    assert rejected.faults[-1].code == "more_faults"
    assert f"{1_000 - len(rejected.faults) + 1} faults more" in rejected.faults[-1].sentence
    assert len(msgspec.json.encode(rejected)) < FAULT_BYTES + 1_024


def test_a_page_holds_what_fits_and_says_where_to_go_on() -> None:
    commit = load_tree(Tree(0, {}), intent(0), tree("lab"), NOW_MS)
    assert isinstance(commit, Commit)
    rows = [budget(f"b{number:03d}", "lab", members=tuple(f"{n:063d}" for n in range(100))) for number in range(20)]
    first = page(commit.revision, rows, more=False)
    assert first.next_after == first.budgets[-1].budget
    assert 1 < len(first.budgets) < 20
    assert page(commit.revision, rows[:2], more=False).next_after is None
    assert page(commit.revision, rows[:2], more=True).next_after == "b001"
