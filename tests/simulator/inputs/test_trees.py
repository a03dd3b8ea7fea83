"""Trees of budgets: out of a file, with the place of every fault; out of what people used; with the people who are in the jobs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.budget import Budget
from allmende.proto.tree_rules import validate
from allmende.proto.units import PPM_WHOLE
from allmende.simulator.inputs.budgets_file import read_budgets
from allmende.simulator.inputs.foreign_names import ForeignNames
from allmende.simulator.inputs.trees import parts_of_whole, tree_by_use, tree_of, with_members
from tests.simulator.inputs.builders import a_job, places, value, written

LAB = '[lab]\n[lab.vision]\nshare = "60%"\nmembers = ["ada"]\n[lab.text]\nshare = "40%"\n'


def test_a_budget_file_reads_as_the_budget_service_reads_it(tmp_path: Path) -> None:
    tree = value(read_budgets(written(tmp_path, LAB)))
    assert [(each.budget, each.share_ppm, each.members) for each in tree] == [
        ("lab", None, ()),
        ("vision", 600_000, ("ada",)),
        ("text", 400_000, ()),
    ]


@pytest.mark.parametrize(
    ("sentence", "content", "expected"),
    [
        ("nothing", "", [(1, 1, "", "empty_tree")]),
        ("no TOML", "[lab", [(1, 5, "", "malformed_toml")]),
        ("a number that nobody can read", "a = " + "9" * 5_000, [(1, 5_005, "", "malformed_toml")]),
        ("not UTF-8", b"[lab]\n\xff", [(2, 1, "", "not_utf8")]),
        ("an unknown key", LAB.replace("members", "member"), [(4, 1, "", "unknown_key")]),
        ("a bare share", LAB.replace('"40%"', "40"), [(6, 1, "", "invalid_share")]),
        ("more than all", LAB.replace('"40%"', '"41%"'), [(1, 2, "", "shares_exceed_parent")]),
        ("a name that is none", LAB.replace("text", "Text"), [(5, 2, "", "invalid_name")]),
        ("members above the leaves", LAB + "[lab.vision.a]\n", [(2, 2, "", "members_on_inner_budget")]),
    ],
)
def test_a_fault_of_a_budget_file_has_its_place(
    sentence: str, content: str | bytes, expected: list[tuple[int, int, str, str]], tmp_path: Path
) -> None:
    assert places(read_budgets(written(tmp_path, content))) == expected, sentence


def test_a_budget_file_that_is_not_there(tmp_path: Path) -> None:
    assert places(read_budgets(tmp_path / "none")) == [(0, 0, "", "cannot_read")]


def test_whoever_charges_a_leaf_becomes_its_member() -> None:
    tree = (Budget(budget="lab"), Budget(budget="vision", parent="lab", members=("kim",)), Budget(budget="text", parent="lab"))
    jobs = [
        a_job(user="zoe"),
        a_job(user="ada"),
        a_job(user="kim"),
        a_job(budget="lab"),
        a_job(budget="gone"),
        a_job(budget=None),
    ]
    grown, notes = with_members(tree, jobs)
    assert [each.members for each in grown] == [(), ("kim", "ada", "zoe"), ()]
    assert notes == (
        "2 memberships were added to 1 budgets: their jobs are in the list, their names were not in the tree",
        "2 jobs name what is no leaf of the tree, so they will be refused: gone, lab",
    )
    assert with_members(grown, jobs[:3]) == (grown, ())


def test_shares_by_use_are_parts_of_the_work() -> None:
    jobs = [a_job(budget="a", gpus=2), a_job(budget="b"), a_job(budget=None, gpus=100)]
    tree = tree_by_use("lab", "Lab", jobs)
    assert [(each.budget, each.parent, each.share_ppm) for each in tree] == [
        ("lab", None, None),
        ("a", "lab", 666_667),
        ("b", "lab", 333_333),
    ]


def test_an_inner_budget_has_the_sum_of_what_lies_in_it() -> None:
    tree = tree_of("lab", "", {"a": 1, "b": 2, "c": 1}, {"a": "x", "b": "x"})
    assert [(each.budget, each.share_ppm) for each in tree] == [
        ("lab", None),
        ("c", 250_000),
        ("x", 750_000),
        ("a", 333_333),
        ("b", 666_667),
    ]
    assert validate(tree) == ()


def test_a_root_makes_room_for_a_budget_of_its_name() -> None:
    assert [each.budget for each in tree_by_use("lab", "", [a_job(budget="lab")])] == ["lab-all", "lab"]


@given(st.lists(st.sampled_from([0, 1, 2, 10**18]) | st.integers(0, 10**18), max_size=20))
def test_parts_are_the_whole_and_none_is_a_part_away_from_exact(weights: list[int]) -> None:
    parts = parts_of_whole(weights)
    total = sum(weights)
    assert sum(parts) == (PPM_WHOLE if total else 0)
    for weight, part in zip(weights, parts, strict=True):
        assert abs(part * total - weight * PPM_WHOLE) < max(1, total)


def test_foreign_names_stay_where_they_can_and_never_meet() -> None:
    names = ForeignNames()
    given_names = [names.of(text) for text in ("ada", "Ada", "ada", "share", "Ångström, A.", "///", "a" * 90, "ada-2")]
    assert given_names == ["ada", "ada-2", "ada", "share-2", "ngstr-m-a", "unnamed", "a" * 56, "ada-2-2"]
    assert names.of("ada", "unit") == "ada-3"
    assert names.changed == 7


@given(st.lists(st.text(max_size=70), unique=True))
def test_no_two_foreign_names_become_one(texts: list[str]) -> None:
    names = ForeignNames()
    assert len({names.of(text) for text in texts}) == len(texts)
