"""Shares of one cluster at the command line: how they are set, taken back and refused there, and how the tree shows them."""

import sys
from collections.abc import Iterator, Mapping

import pytest
from rich.console import Console

from allmende.cli.commands.tree import WholeTree
from allmende.cli.commands.tree_drawing import drawn
from tests.budget.builders import budget, own
from tests.cli.terminal import Terminal, lab_with

FILE = """
[lab]
[lab.vision]
share = "35%"
[lab.vision.detection]
share = "50%"
[lab.tools]
share = "40%"
"""
HERE = "c1"
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with lab_with(tmp_path_factory.mktemp("cluster-shares"), FILE) as terminal:
        yield terminal


WHY = ("--reason", "vision has bought nodes")


@needs_linux
@pytest.mark.timeout(120)
def test_set_on_one_cluster_seen_there_and_taken_back(terminal: Terminal) -> None:
    said = terminal.type("budgets", "set", "lab", "vision=60%", "tools=unset", "--cluster", HERE, *WHY)
    assert said.out.splitlines() == [f"revision 2, on {HERE}", "vision: 35% -> 60%", "tools: 40% -> 40%"]
    shown = terminal.type("budgets").out
    assert f"vision, 35% of lab, 35% of everything, on {HERE} 60% of lab: 60% of it" in shown
    # Its parent's share there changes what it is worth, though it has none of its own.
    assert f"detection, 50% of vision, 17.5% of everything, on {HERE} 50% of vision: 30% of it, 115.2 GPU-hours a day" in shown
    assert "tools, 40% of lab, 40% of everything, 153.6 GPU-hours a day" in shown
    one = {each["budget"]: each for each in terminal.type("budgets", "--json").json["budgets"]}
    assert one["vision"]["cluster_shares"] == [{"cluster": HERE, "share_ppm": 600_000}]
    assert "cluster_shares" not in one["tools"]

    back = terminal.type("budgets", "set", "lab", "vision=unset", "tools=unset", "--cluster", HERE, *WHY)
    assert back.out.splitlines() == [f"revision 3, on {HERE}", "vision: 60% -> 35%", "tools: 40% -> 40%"]
    assert f"on {HERE}" not in terminal.type("budgets").out


@needs_linux
def test_what_is_refused_names_the_cluster(terminal: Terminal) -> None:
    before = terminal.type("budgets", "--json").json["revision"]
    too_much = terminal.type("budgets", "set", "lab", "vision=60%", "tools=41%", "--cluster", HERE, *WHY)
    assert (too_much.code, f"on cluster '{HERE}' sum to 101%" in too_much.err) == (1, True), too_much
    misspelt = terminal.type("budgets", "set", "lab", "vision=60%", "tools=0%", "--cluster", "labb", *WHY)
    assert (misspelt.code, f"there is no cluster labb; this lab has {HERE}" in misspelt.err) == (2, True), misspelt
    # Of a cluster that is gone, or was misspelt, everything may be taken back.
    gone = terminal.type("budgets", "set", "lab", "vision=unset", "tools=unset", "--cluster", "labb", *WHY)
    assert gone.code == 0, gone
    assert terminal.type("budgets", "--json").json["revision"] == before


TREE = (
    budget("lab"),
    budget("a", "lab", "50%", cluster_shares=own(c1="20%", c2="0%")),
    budget("b", "a", "50%"),
    budget("u", "lab"),
    budget("v", "u", "10%", cluster_shares=own(c2="30%")),
    budget("w", "u"),
)


@pytest.mark.parametrize(
    ("sentence", "gpus", "line"),
    [
        (
            "its own shares, and what they come to on the GPUs of each cluster",
            {"c1": 10, "c2": 100},
            "a, 50% of lab, 50% of everything, on c1 20% of lab: 20% of it, on c2 0% of lab: 0% of it, 48.0 GPU-hours a day",
        ),
        (
            "those of the budget above it reach it",
            {"c1": 10, "c3": 10},
            "b, 50% of a, 25% of everything, on c1 50% of a: 10% of it, on c2 50% of a: 0% of it, 84.0 GPU-hours a day, 0 members",
        ),
        (
            "through a budget without a share",
            {"c2": 10},
            "v, 10% of u, 10% of everything, on c2 30% of u: 30% of it, 72.0 GPU-hours a day",
        ),
        ("a budget without a share has none anywhere", {"c2": 10}, "u, no share set"),
        ("unknown GPUs are no amount", None, "v, 10% of u, 10% of everything, on c2 30% of u: 30% of it, 0 members"),
    ],
)
def test_the_tree_shows_shares_of_clusters(sentence: str, gpus: Mapping[str, int] | None, line: str) -> None:
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(drawn(WholeTree(revision=1, author="ada", reason="", budgets=TREE), gpus))
    lines = [each.lstrip(" │├└─").rstrip() for each in captured.get().splitlines()]
    assert any(each.startswith(line) for each in lines), (sentence, lines)
