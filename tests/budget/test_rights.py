"""Who may change what: the managers of a budget divide what lies below it, and nobody draws more than he holds. Pure.

The property at the end tries any change of any tree by anybody, one after another, as two managers at once would send them.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from allmende.budget.model import Asking, Commit, Intent, Rejection, Tree
from allmende.budget.rules.rights import overreach
from allmende.budget.rules.trees import put_budgets, set_shares
from allmende.proto.budget import Budget
from allmende.proto.tree import effective_share, leaves, paths
from allmende.proto.tree_rules import validate
from allmende.proto.units import PPM_WHOLE
from tests.budget.builders import CLUSTERS, budget, clustered_trees, own, valid_trees

NOW_MS = 1_700_000_000_000
# mia manages the department d, eve its neighbour e; xi leads d's project x; ute manages u, which has no share of its own.
ROWS = (
    budget("lab", managers=("olga",)),
    budget("d", "lab", "35%", managers=("mia",)),
    budget("e", "lab", "40%", managers=("eve",)),
    budget("u", "lab", managers=("ute",)),
    budget("x", "d", "20%", managers=("xi",), members=("bob",)),
    budget("y", "d", "10%"),
    budget("z", "e", "50%"),
    budget("v", "u", "15%"),
)
BEFORE = Tree(3, {row.budget: row for row in ROWS})
OF = BEFORE.budgets


def put(
    who: str, *rows: Budget, used: Sequence[str] = (), operator: bool = False, expected: int = 3, reason: str = "why"
) -> list[str]:
    """The codes with which this is refused; none: it is committed."""
    verdict = put_budgets(
        BEFORE, Intent(who, reason, expected), rows, {*BEFORE.budgets, *used}, NOW_MS, Asking(who, operator=operator)
    )
    assert isinstance(verdict, Commit | Rejection)
    return [] if isinstance(verdict, Commit) else [fault.code for fault in verdict.faults]


def divide(who: str, parent: str, cluster: str | None = None, **shares: int | None) -> list[str]:
    """The codes with which these shares are refused."""
    verdict = set_shares(BEFORE, Intent(who, "why", 3), parent, list(shares.items()), NOW_MS, Asking(who, operator=False), cluster)
    assert isinstance(verdict, Commit | Rejection)
    return [] if isinstance(verdict, Commit) else [fault.code for fault in verdict.faults]


PUTS: dict[str, tuple[list[str], list[str]]] = {
    "a manager creates below his own": (put("mia", budget("n", "d", "70%")), []),
    "and below what lies below it": (put("mia", budget("n", "y"), budget("m", "n")), []),
    "the lead of the whole may do it too": (put("olga", budget("n", "d")), []),
    "an operator may, and manages nothing": (put("root", budget("n", "d"), operator=True), []),
    "not beside his own": (put("mia", budget("n", "e")), ["foreign_target"]),
    "not above it": (put("mia", budget("n", "lab")), ["foreign_target"]),
    "not a second root": (put("mia", budget("n")), ["foreign_target", "several_roots"]),
    "not below a new budget that hangs elsewhere": (put("mia", budget("n", "e"), budget("m", "n")), ["foreign_target"] * 2),
    "somebody without any budget": (put("bob", budget("n", "d")), ["foreign_target"]),
    "more than the department holds": (put("mia", budget("n", "d", "70.0001%")), ["shares_exceed_parent"]),
    "where a leaf has members, they go first": (put("mia", budget("n", "x")), ["members_on_inner_budget"]),
    "he appoints below": (put("mia", replace(OF["y"], managers=("kim",), members=("lea",))), []),
    "not himself above": (put("mia", replace(OF["lab"], managers=("olga", "mia"))), ["not_a_manager"]),
    "not others beside himself": (put("mia", replace(OF["d"], managers=("mia", "kim"))), ["not_a_manager"]),
    "not himself elsewhere": (put("mia", replace(OF["z"], managers=("mia",))), ["not_a_manager"]),
    "the lead of a leaf lets people in": (put("xi", replace(OF["x"], members=("bob", "lea"))), []),
    "and changes nothing else of it": (put("xi", replace(OF["x"], title="ours", members=("lea",))), ["not_a_manager"]),
    "nor of its sibling": (put("xi", replace(OF["y"], members=("lea",))), ["not_a_manager"]),
    "a move inside his own": (put("mia", replace(OF["y"], parent="x", share_ppm=0), replace(OF["x"], members=())), []),
    "a move out of his own": (put("mia", replace(OF["y"], parent="e")), ["foreign_target"]),
    "a move out of somebody else's": (put("mia", replace(OF["z"], parent="d")), ["not_a_manager"]),
    "a move of his own budget": (put("mia", replace(OF["d"], parent="e")), ["not_a_manager", "foreign_target"]),
    "a move below itself": (put("olga", replace(OF["d"], parent="y")), ["tree_loop"]),
    "the share of one alone": (put("mia", replace(OF["x"], share_ppm=1)), ["share_of_one"]),
    "a move with shares of single clusters, which were parts of another parent": (
        put("olga", replace(OF["y"], parent="e", cluster_shares=own(c1="5%"))),
        ["moved_cluster_shares"],
    ),
    "a new budget with a share of a cluster": (put("mia", budget("n", "d", "10%", cluster_shares=own(c1="20%"))), []),
    "a name that was used": (put("mia", budget("old", "d"), used=("old",)), ["name_was_used"]),
    "one budget twice": (put("mia", budget("n", "d"), budget("n", "d")), ["duplicate_budget"]),
    "without a share nothing is added": (put("ute", budget("n", "u", "1%")), ["more_than_held"]),
    "a budget without a share may be": (put("ute", budget("n", "u")), []),
    "a stale one is refused alone": (put("bob", budget("n", "e"), expected=2), ["stale_revision"]),
    "every fault at once": (
        put("bob", budget("n", "ghost", "10%"), replace(OF["y"], share_ppm=2), reason=""),
        ["reason_missing", "share_of_one", "foreign_target", "not_a_manager", "orphan"],
    ),
}

SHARES: dict[str, tuple[list[str], list[str]]] = {
    "a manager divides what he holds": (divide("mia", "d", x=900_000, y=100_000), []),
    "not more than that": (divide("mia", "d", x=900_000, y=100_001), ["shares_exceed_parent"]),
    "not his own share": (divide("mia", "lab", d=500_000, e=400_000, u=None), ["not_a_manager", "shares_exceed_parent"]),
    "not his neighbour's": (divide("mia", "e", z=0), ["not_a_manager"]),
    "a project's lead not his own": (divide("xi", "d", x=300_000, y=100_000), ["not_a_manager"]),
    "who holds through an unset budget divides it anew": (divide("ute", "u", v=140_000), []),
    "and draws no more": (divide("ute", "u", v=160_000), ["more_than_held"]),
    "those above him may": (divide("olga", "u", v=160_000), []),
    "a manager divides on one cluster too": (divide("mia", "d", "c1", x=1_000_000, y=0), []),
    "within the whole there": (divide("mia", "d", "c1", x=1_000_000, y=None), ["shares_exceed_parent"]),
    "not his own share there": (divide("mia", "lab", "c1", d=400_000, e=None, u=None), ["not_a_manager"]),
    "through an unset budget no more than is drawn on that cluster": (divide("ute", "u", "c1", v=150_001), ["more_than_held"]),
    "less he may": (divide("ute", "u", "c1", v=0), []),
    "a budget without a share has none on a cluster": (
        divide("olga", "lab", "c1", d=350_000, e=400_000, u=1),
        ["cluster_share_without_general"],
    ),
}


@pytest.mark.parametrize("sentence", PUTS)
def test_a_put_is_judged(sentence: str) -> None:
    found, expected = PUTS[sentence]
    assert found == expected


@pytest.mark.parametrize("sentence", SHARES)
def test_a_division_is_judged(sentence: str) -> None:
    found, expected = SHARES[sentence]
    assert found == expected


def test_br_057_a_submanager_passes_on_only_what_he_holds() -> None:
    assert put("mia", replace(OF["lab"], managers=("vic",))) == ["not_a_manager"]
    assert divide("mia", "lab", d=500_000, e=400_000, u=None)[0] == "not_a_manager"
    # Shares are parts of the parent here: more than D holds is more than the whole of it.
    assert divide("mia", "d", x=900_000, y=180_000) == ["shares_exceed_parent"]
    assert put("mia", replace(OF["e"], title="mine")) == ["not_a_manager"]
    assert put("mia", replace(OF["x"], managers=("vic",))) == []


def test_a_cluster_s_share_is_set_and_taken_back_beside_the_general_one() -> None:
    asking, tree = Asking("mia", operator=False), BEFORE
    for revision, share, expected in ((3, 250_000, own(c1="25%")), (4, 0, own(c1="0%")), (5, None, UNSET)):
        verdict = set_shares(tree, Intent("mia", "why", revision), "d", [("x", share), ("y", None)], NOW_MS, asking, "c1")
        assert isinstance(verdict, Commit)
        assert verdict.changed == {"x": replace(OF["x"], cluster_shares=expected)}
        tree = Tree(revision + 1, {**tree.budgets, "x": replace(OF["x"], cluster_shares=expected)})
    assert tree.budgets == OF


def test_shares_of_a_cluster_are_not_set_by_a_put() -> None:
    assert put("mia", replace(OF["x"], cluster_shares=own(c1="25%"))) == ["share_of_one"]


def test_a_refusal_names_those_who_may() -> None:
    (fault,) = overreach(OF, {**OF, "y": replace(OF["y"], title="new")}, Asking("bob", operator=False))
    assert fault.sentence == "'bob' manages nothing above 'y'; mia or an operator may change it"


# ------------------------------------------------------------------------------------------------------------- anything


def whole_of(budgets: Mapping[str, Budget], cluster: str | None = None) -> Fraction:
    """Effective shares of the leaves, and what every budget with a share leaves unshared, as one sum."""
    trails, ends = paths(budgets), leaves(budgets)
    total = Fraction(0)
    given: dict[str, Fraction] = {}
    worth: dict[str, Fraction] = {}
    for name, trail in trails.items():
        worth[name] = Fraction(1)
        for ppm in effective_share(trail, budgets, cluster)[0]:
            worth[name] *= Fraction(ppm, PPM_WHOLE)
    for name, row in budgets.items():
        if row.share_ppm is None and row.parent is not None:
            continue
        total += worth[name] if name in ends else 0
        above = next((each for each in reversed(trails[name][:-1]) if budgets[each].share_ppm is not None), trails[name][0])
        if row.parent is not None:
            given[above] = given.get(above, Fraction(0)) + worth[name]
    for name, row in budgets.items():
        if name not in ends and (row.share_ppm is not None or row.parent is None):
            total += worth[name] - given.get(name, Fraction(0))
    return total


@given(clustered_trees())
def test_on_every_cluster_effective_shares_and_what_is_unshared_are_one(rows: Sequence[Budget]) -> None:
    assert not validate(rows)
    for cluster in (None, *CLUSTERS, "elsewhere"):
        assert whole_of({row.budget: row for row in rows}, cluster) == 1


persons = st.sampled_from([*"abcdef"])


@given(valid_trees(), st.data())
def test_any_changes_by_anybody_leave_a_valid_tree_whose_shares_are_one(rows: Sequence[Budget], data: st.DataObject) -> None:
    tree = Tree(1, {row.budget: row for row in rows})
    assert whole_of(tree.budgets) == 1
    for _ in range(data.draw(st.integers(1, 6))):
        who = data.draw(persons)
        # Two who looked at the same revision: the second is one behind.
        expected = tree.revision - data.draw(st.sampled_from([0, 0, 0, 1]))
        name = data.draw(st.sampled_from([*sorted(tree.budgets), "new"]))
        row = Budget(
            budget=name,
            parent=data.draw(st.sampled_from([None, *sorted(tree.budgets)])),
            share_ppm=data.draw(st.sampled_from([None, 0, 1, 500_000, PPM_WHOLE])),
            managers=(data.draw(persons),),
        )
        asking = Asking(who, operator=data.draw(st.booleans()))
        verdict = put_budgets(tree, Intent(who, "why", expected), [row], tree.budgets, NOW_MS, asking)
        if isinstance(verdict, Commit):
            assert expected == tree.revision
            after = {key: each for key, each in {**tree.budgets, **verdict.changed}.items() if each is not None}
            assert not overreach(tree.budgets, after, asking)
            tree = Tree(verdict.revision.number, after)
        assert validate(tree.budgets.values()) == ()
        assert whole_of(tree.budgets) == 1
