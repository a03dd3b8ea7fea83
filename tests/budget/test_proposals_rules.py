"""What may be proposed, who decides and what an answer does. Pure; every refusal by its code."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.budget.model import Asking, Commit, Intent, Rejection, Tree, Unchanged
from allmende.budget.rules import proposals
from allmende.budget.rules.rights import may_divide
from allmende.budget.rules.trees import commit, put_budgets
from allmende.proto.budget import Budget
from allmende.proto.ids import make_id
from allmende.proto.proposals import Proposal, ProposalDecided, Propose, ShareProposed
from allmende.proto.tree_rules import validate
from allmende.proto.units import PPM_WHOLE
from tests.budget.builders import budget, valid_trees

NOW_MS = 1_700_000_000_000
# mia manages the department d, eve its neighbour e; xi leads d's project x, in which bob works. u has no share of its own.
ROWS = (
    budget("lab", managers=("olga",)),
    budget("d", "lab", "35%", managers=("mia",)),
    budget("e", "lab", "40%", managers=("eve",)),
    budget("u", "lab", managers=("ute",)),
    budget("x", "d", "20%", managers=("xi",), members=("bob",)),
    budget("y", "d", "70%"),
    budget("v", "u", "15%", managers=("vic",)),
)
BEFORE = Tree(3, {row.budget: row for row in ROWS})
ID = make_id(NOW_MS, bytes(10))


def ask(
    who: str, name: str = "x", share: int = 260_000, text: str = "6 % more", open_one: str | None = None, operator: bool = False
) -> ShareProposed | Rejection:
    """Propose a share."""
    asked = Propose(proposal=ID, budget=name, share_ppm=share, text=text)
    return proposals.propose(BEFORE, asked, open_one, (), NOW_MS, Asking(who, operator=operator))


def codes(answer: object) -> list[str]:
    """The codes of a refusal; none: it is done."""
    return [fault.code for fault in answer.faults] if isinstance(answer, Rejection) else []


ASKED: dict[str, tuple[list[str], list[str]]] = {
    "a manager asks for his own budget": (codes(ask("xi")), []),
    "a member asks for the budget that he charges": (codes(ask("bob")), []),
    "a manager above may too": (codes(ask("mia")), []),
    "and an operator": (codes(ask("root", operator=True)), []),
    "a manager below asks for his own, not for the one above": (codes(ask("xi", "d")), ["not_concerned"]),
    "a neighbour does not": (codes(ask("eve")), ["not_concerned"]),
    "a share may be given back": (codes(ask("xi", share=0)), []),
    "also where there was none": (codes(ask("ute", "u", share=1)), []),
    "what the siblings leave is for whoever decides": (codes(ask("xi", share=PPM_WHOLE)), []),
    "not what it has": (codes(ask("xi", share=200_000)), ["same_share"]),
    "not without a text": (codes(ask("xi", text=" \n")), ["text_missing"]),
    "not a second one": (codes(ask("xi", open_one=ID)), ["proposal_open"]),
    "not for the whole": (codes(ask("olga", "lab")), ["no_parent"]),
    "not for a budget that is not there": (codes(ask("xi", "ghost")), ["unknown_budget"]),
    "every fault at once": (
        codes(ask("eve", share=200_000, text="", open_one=ID)),
        ["not_concerned", "text_missing", "same_share", "proposal_open"],
    ),
}


@pytest.mark.parametrize("sentence", ASKED)
def test_what_is_asked_is_judged(sentence: str) -> None:
    found, expected = ASKED[sentence]
    assert found == expected


def test_a_proposal_says_what_was_and_who_may_decide() -> None:
    asked = ask("xi")
    assert isinstance(asked, ShareProposed)
    assert (asked.parent, asked.share_before_ppm, asked.tree_revision, asked.managers) == ("d", 200_000, 3, ("mia",))
    below_unmanaged = ask("ute", "u", share=1)
    assert isinstance(below_unmanaged, ShareProposed)
    assert (below_unmanaged.share_before_ppm, below_unmanaged.managers) == (None, ("olga",))


def test_a_refusal_names_those_who_may() -> None:
    refused = ask("eve")
    assert isinstance(refused, Rejection)
    assert refused.faults[0].sentence == "'eve' may not ask for 'x': its managers and members may (xi, bob or an operator)"


# ------------------------------------------------------------------------------------------------------------------- answers


def proposed(name: str = "x", share: int = 260_000, author: str = "xi") -> ShareProposed:
    """A proposal that waits."""
    row = BEFORE.budgets[name]
    return ShareProposed(
        proposal=ID,
        budget=name,
        parent=row.parent or "",
        author=author,
        share_ppm=share,
        share_before_ppm=row.share_ppm,
        text="because of it",
        proposed_at_ms=NOW_MS,
        tree_revision=2,
        managers=("mia",),
    )


def accept(
    who: str,
    asked: ShareProposed | None = None,
    expected: int = 3,
    operator: bool = False,
    reason: str = "",
    **siblings: int | None,
) -> proposals.Given | Rejection:
    """Accept a proposal."""
    intent = Intent(who, reason, expected)
    asking = Asking(who, operator=operator)
    return proposals.accept(BEFORE, asked or proposed(), intent, list(siblings.items()), (), NOW_MS + 1, asking)


def decline(who: str, reason: str = "not now") -> ProposalDecided | Rejection:
    """Decline it."""
    return proposals.decline(BEFORE, proposed(), reason, NOW_MS + 1, Asking(who, operator=False))


def withdraw(who: str, operator: bool = False) -> ProposalDecided | Rejection:
    """Take it back."""
    return proposals.withdraw(BEFORE, proposed(), "", NOW_MS + 1, Asking(who, operator=operator))


ANSWERS: dict[str, tuple[list[str], list[str]]] = {
    "the manager of the parent accepts": (codes(accept("mia")), []),
    "whoever manages above may": (codes(accept("olga")), []),
    "and an operator": (codes(accept("root", operator=True)), []),
    "the author does not, whatever he asks for": (codes(accept("xi")), ["not_a_manager"]),
    "nor what he has already": (codes(accept("xi", proposed(share=200_000))), ["not_a_manager"]),
    "with another share for a sibling": (codes(accept("mia", proposed(share=400_000), y=600_000)), []),
    "the asked share may be repeated": (codes(accept("mia", x=260_000)), []),
    "and is no other one": (codes(accept("mia", x=250_000)), ["other_share"]),
    "nor unset": (codes(accept("mia", x=None)), ["other_share"]),
    "the siblings leave no room": (codes(accept("mia", proposed(share=300_001))), ["shares_exceed_parent"]),
    "all that they leave is room": (codes(accept("mia", proposed(share=300_000))), []),
    "a neighbour's child is none of them": (codes(accept("mia", e=1)), ["foreign_child"]),
    "a tree that has changed": (codes(accept("mia", expected=2)), ["stale_revision"]),
    "who holds through an unset budget draws no more": (codes(accept("ute", proposed("v", 150_001))), ["more_than_held"]),
    "and may give less": (codes(accept("ute", proposed("v", 149_999))), []),
    "the manager of the parent declines": (codes(decline("mia")), []),
    "with a reason": (codes(decline("mia", " ")), ["reason_missing"]),
    "a neighbour does not decline": (codes(decline("eve", "")), ["not_a_manager", "reason_missing"]),
    "the author withdraws": (codes(withdraw("xi")), []),
    "nobody does it for him": (codes(withdraw("mia")), ["not_the_author"]),
    "not even an operator": (codes(withdraw("root", operator=True)), ["not_the_author"]),
}


@pytest.mark.parametrize("sentence", ANSWERS)
def test_an_answer_is_judged(sentence: str) -> None:
    found, expected = ANSWERS[sentence]
    assert found == expected


def test_a_child_named_twice_is_told() -> None:
    given_twice = proposals.accept(
        BEFORE, proposed(), Intent("mia", "", 3), [("y", 1), ("y", 2)], (), NOW_MS, Asking("mia", operator=False)
    )
    assert codes(given_twice) == ["duplicate_child"]


def test_an_acceptance_is_a_revision_by_whoever_decided_that_names_the_proposal() -> None:
    done = accept("mia", reason="until the paper is out")
    assert isinstance(done, proposals.Given)
    assert isinstance(done.written.verdict, Commit)
    assert dict(done.written.verdict.changed) == {"x": replace(BEFORE.budgets["x"], share_ppm=260_000)}
    revision = done.written.verdict.revision
    assert (revision.number, revision.author) == (4, "mia")
    assert revision.reason == f"until the paper is out (proposal {ID} of xi: because of it)"
    assert (done.decided.ending, done.decided.by, done.decided.tree_revision) == ("accepted", "mia", 4)
    assert done.decided.reason == "until the paper is out"


def test_long_texts_fit_the_reason_of_a_revision() -> None:
    done = accept("mia", replace(proposed(), text="x" * 1_000), reason="y" * 1_000)
    assert isinstance(done, proposals.Given)
    assert isinstance(done.written.verdict, Commit)
    assert len(done.written.verdict.revision.reason) == 1_000


def test_a_share_that_was_set_by_hand_meanwhile_is_accepted_without_a_revision() -> None:
    done = accept("mia", proposed(share=200_000))
    assert isinstance(done, proposals.Given)
    assert done.written.verdict == Unchanged(3)
    assert (done.decided.ending, done.decided.tree_revision) == ("accepted", 3)


# ------------------------------------------------------------------------------------------------------------- twice, and too late


def test_the_same_request_again_finds_what_it_has_done() -> None:
    known = Proposal(number=1, proposed=proposed())
    again = Propose(proposal=ID, budget="x", share_ppm=260_000, text="because of it")
    assert proposals.repeated(3, known, again, "xi") == known
    for other, person in ((again, "bob"), (replace(again, budget="y"), "xi"), (replace(again, share_ppm=1), "xi")):
        assert codes(proposals.repeated(3, known, other, person)) == ["id_taken"]
    assert codes(proposals.repeated(3, known, replace(again, text="other"), "xi")) == ["id_taken"]


def test_the_second_answer_is_told_the_first() -> None:
    assert proposals.ended(3, Proposal(number=1, proposed=proposed()), "accepted", "mia") is None
    first = decline("mia", "no room before May")
    assert isinstance(first, ProposalDecided)
    known = Proposal(number=1, proposed=proposed(), decided=first)
    assert proposals.ended(3, known, "declined", "mia") == known
    for ending, who in (("accepted", "mia"), ("declined", "olga"), ("withdrawn", "xi")):
        refused = proposals.ended(3, known, ending, who)  # type: ignore[arg-type]
        assert isinstance(refused, Rejection)
        assert refused.faults[0].sentence == "this proposal was declined by 'mia' before: no room before May"


# ------------------------------------------------------------------------------------------------------------- a tree that changes


def endings(rows: Sequence[Budget]) -> list[str]:
    """Why the proposal for x ends with this tree; nothing: it stays open."""
    made = commit(BEFORE, Intent("olga", "a new year", 3), {row.budget: row for row in rows}, NOW_MS + 5)
    assert isinstance(made, Commit)
    found = proposals.overtaken([proposed()], made)
    assert all((each.ending, each.by, each.tree_revision) == ("closed", "olga", 4) for each in found)
    return [each.reason for each in found]


def changed(**rows: Budget | None) -> list[Budget]:
    """The tree with some budgets replaced, None: gone."""
    return [row for row in {**BEFORE.budgets, **rows}.values() if row is not None]


def test_a_proposal_ends_with_its_budget_and_where_others_decide() -> None:
    x = BEFORE.budgets["x"]
    assert endings(changed(x=None)) == ["budget 'x' is gone in revision 4"]
    assert endings(changed(x=replace(x, parent="e"))) == [
        "budget 'x' hangs on 'e' from revision 4 on, where others decide: ask them"
    ]
    assert endings(changed(x=replace(x, parent="y"))) != []
    assert endings([replace(x, parent=None, share_ppm=None)]) == [
        "budget 'x' is the root from revision 4 on, where others decide: ask them"
    ]


def test_other_changes_leave_it_open() -> None:
    x, d = BEFORE.budgets["x"], BEFORE.budgets["d"]
    assert endings(changed(x=replace(x, share_ppm=1))) == []
    assert endings(changed(x=replace(x, members=(), title="ours"))) == []
    assert endings(changed(d=replace(d, share_ppm=1, managers=("kim",)))) == []
    assert endings(changed(d=replace(d, parent="e", share_ppm=1))) == []
    assert endings(changed(v=None)) == []


# ------------------------------------------------------------------------------------------------------------------- anything

persons = st.sampled_from([*"abcdef"])


@given(valid_trees(), st.data())
def test_no_answer_leaves_an_invalid_tree_or_changes_another_parent(rows: Sequence[Budget], data: st.DataObject) -> None:
    tree = Tree(1, {row.budget: row for row in rows})
    children = [row for row in rows if row.parent is not None]
    if not children:
        return
    row = data.draw(st.sampled_from(children))
    left = PPM_WHOLE - sum(each.share_ppm or 0 for each in children if each.parent == row.parent and each is not row)
    share = data.draw(st.sampled_from([0, max(0, left - 1), max(0, left), min(PPM_WHOLE, max(0, left + 1)), PPM_WHOLE]))
    asked = replace(proposed(), budget=row.budget, parent=row.parent or "", share_ppm=share)
    asking = Asking(data.draw(persons), operator=data.draw(st.booleans()))
    names = st.sampled_from(sorted(tree.budgets))
    siblings = data.draw(st.lists(st.tuples(names, st.sampled_from([None, 0, 1, PPM_WHOLE])), max_size=2))
    answer = proposals.accept(tree, asked, Intent(asking.name, "", 1), siblings, (), NOW_MS, asking)
    if isinstance(answer, Rejection):
        return
    assert may_divide(tree.budgets, asked.parent, asking)
    after = dict(tree.budgets)
    if isinstance(answer.written.verdict, Commit):
        for name, each in answer.written.verdict.changed.items():
            assert each is not None
            assert each == replace(tree.budgets[name], share_ppm=each.share_ppm)
            assert each.parent == asked.parent
            after[name] = each
    assert validate(after.values()) == ()
    assert after[asked.budget].share_ppm == share


def test_a_new_child_between_reading_and_accepting_is_a_stale_revision_not_a_lost_child() -> None:
    made = put_budgets(
        BEFORE, Intent("mia", "new", 3), [budget("n", "d", "10%")], BEFORE.budgets, NOW_MS, Asking("mia", operator=False)
    )
    assert isinstance(made, Commit)
    now = Tree(4, {**BEFORE.budgets, "n": budget("n", "d", "10%")})
    mia = Asking("mia", operator=False)
    assert codes(proposals.accept(now, proposed(), Intent("mia", "", 3), [], (), NOW_MS, mia)) == ["stale_revision"]
    assert codes(proposals.accept(now, proposed(), Intent("mia", "", 4), [], (), NOW_MS, mia)) == ["shares_exceed_parent"]
    assert codes(proposals.accept(now, proposed(), Intent("mia", "", 4), [("y", 640_000)], (), NOW_MS, mia)) == []
