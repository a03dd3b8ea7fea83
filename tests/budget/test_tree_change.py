"""A write judged by what it changes is judged as if the whole tree were looked at."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from allmende.proto.budget import MAX_BUDGETS, MAX_DEPTH, Budget, ClusterShare
from allmende.proto.tree import share_on
from allmende.proto.tree_rules import validate, validate_change
from allmende.proto.units import PPM_WHOLE
from tests.budget.builders import CLUSTERS, clustered_trees, names, tree, valid_trees

Tree = Mapping[str, Budget]
CHAIN = tree("c1", *(f"c{level} < c{level - 1}" for level in range(2, MAX_DEPTH + 1)), "side < c1", "below < side")


def check(before: Tree, after: Tree) -> tuple[str, ...]:
    """The two verdicts are one, in every fault; returns its codes."""
    assert validate(before.values()) == ()
    verdict = validate_change(before, after)
    assert verdict == validate(after.values())
    return tuple(fault.code for fault in verdict)


def known(rows: tuple[Budget, ...]) -> dict[str, Budget]:
    return {row.budget: row for row in rows}


def _room(rows: Tree, row: Budget, cluster: str | None) -> int:
    """What the siblings leave, if none of them is unset: a share of one part more is one too much."""
    taken = sum(share_on(each, cluster) or 0 for each in rows.values() if each.parent == row.parent and each is not row)
    return min(max(PPM_WHOLE - taken, 0), PPM_WHOLE - 1)


def _with_own(row: Budget, cluster: str, ppm: int | None) -> Budget:
    own = {each.cluster: each for each in row.cluster_shares or () if each.cluster != cluster}
    if ppm is not None:
        own[cluster] = ClusterShare(cluster=cluster, share_ppm=ppm)
    return replace(row, cluster_shares=tuple(own.values()) or UNSET)


@st.composite
def edits(draw: st.DrawFn, before: tuple[Budget, ...]) -> dict[str, Budget]:
    """The tree after one to four edits, each around the edge of what is allowed; it need not be valid."""
    after = known(before)
    for _ in range(draw(st.integers(1, 4))):
        some = st.sampled_from(sorted(after)) if after else names
        name = draw(some)
        row = after.get(name, Budget(budget=name))
        match draw(st.sampled_from(["share", "own", "move", "gone", "new", "people", "text"])):
            case "share":
                edge = _room(after, row, None)
                after[name] = replace(row, share_ppm=draw(st.sampled_from([None, 0, edge, edge + 1])))
            case "own":
                cluster = draw(st.sampled_from([*CLUSTERS, "c3"]))
                edge = _room(after, row, cluster)
                after[name] = _with_own(row, cluster, draw(st.sampled_from([None, 0, edge, edge + 1])))
            case "move":
                after[name] = replace(row, parent=draw(st.one_of(some, st.sampled_from([None, "ghost"]))))
            case "gone":
                after.pop(name, None)
            case "new":
                fresh = draw(names)
                after[fresh] = Budget(budget=fresh, parent=name, share_ppm=draw(st.sampled_from([None, 0, PPM_WHOLE])))
            case "people":
                after[name] = replace(row, members=draw(st.sampled_from([(), ("ann",), ("ann", "ann")])))
            case _:
                after[name] = replace(row, title=draw(st.sampled_from(["", "fine", "x" * 201])))
    return after


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[str, Budget], dict[str, Budget]]:
    """A valid tree and the same after some edits."""
    before = draw(st.one_of(valid_trees(), clustered_trees(), st.just(CHAIN)))
    return known(before), draw(edits(before))


@settings(max_examples=400)
@given(changes())
@example((known(tree("lab")), {}))
def test_any_change_of_any_tree_is_judged_as_the_whole_tree_is(change: tuple[dict[str, Budget], dict[str, Budget]]) -> None:
    check(*change)


LAB = tree("lab", "a < lab 60%", "b < lab 40%", "x < a", "y < x 70%", "z < a 30%", "leaf < b")


CASES: dict[str, tuple[tuple[Budget, ...], tuple[str, ...]]] = {
    "nothing changes": ((), ()),
    "a share within what is left": (tree("z < a 29%"), ()),
    "a share beyond it": (tree("z < a 31%"), ("shares_exceed_parent",)),
    "a budget that becomes unset hands its children on": (tree("a < lab"), ("shares_exceed_parent",)),
    "an unset budget that moves takes what is shared below it along": (tree("x < b", "leaf < b 31%"), ("shares_exceed_parent",)),
    "a budget that comes between two others takes the lower ones out of the sum": (tree("x < a 70%"), ()),
    "a child of a budget that has members": (
        (replace(LAB[6], members=("ann",)), *tree("new < leaf")),
        ("members_on_inner_budget",),
    ),
    "a parent that is not there": (tree("leaf < ghost"), ("orphan",)),
    "a circle": (tree("a < x"), ("tree_loop",)),
    "a second root": (tree("b"), ("several_roots",)),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_change_is_judged(sentence: str) -> None:
    rows, codes = CASES[sentence]
    assert check(known(LAB), {**known(LAB), **known(rows)}) == codes


def test_a_child_of_a_budget_whose_members_were_there_before() -> None:
    before = known((*LAB[:6], replace(LAB[6], members=("ann",))))
    assert check(before, {**before, **known(tree("new < leaf"))}) == ("members_on_inner_budget",)


def test_a_budget_goes_and_leaves_its_children() -> None:
    assert check(known(LAB), {name: row for name, row in known(LAB).items() if name != "x"}) == ("orphan",)


def test_a_subtree_that_moves_too_deep() -> None:
    assert check(known(CHAIN), {**known(CHAIN), **known(tree(f"side < c{MAX_DEPTH - 1}"))}) == ("too_deep",)


def test_one_budget_more_than_a_tree_may_have() -> None:
    full = known(tree("lab", *(f"b{number} < lab" for number in range(MAX_BUDGETS - 1))))
    assert check(full, {**full, **known(tree("more < lab"))}) == ("too_many_budgets",)


def test_a_first_tree_is_judged_in_full() -> None:
    assert [fault.code for fault in validate_change({}, known(tree("a < b")))] == ["no_root", "orphan"]
