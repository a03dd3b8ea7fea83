"""Cases out of the tests and pages of other schedulers, where they concern shares and order.

A case either runs here or stands in peer_differences.toml with the sentence why our contract differs, or both, when only a part of
it is ours to answer. It is never bent until it fits.
"""

import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from allmende.proto.budget import Budget
from allmende.proto.order import leaf_key
from allmende.proto.standing import Standing
from allmende.proto.tree import effective_share, paths
from allmende.proto.tree_rules import validate
from allmende.proto.units import PPM_WHOLE

ROOT = Path(__file__).parents[2]
FILE = ROOT.parent / "shared" / "cases" / "peer_cases.jsonl"
KINDS = {"fair_tree", "hier_share"}
DIFFERENCES: Mapping[str, Mapping[str, str]] = tomllib.loads(
    (Path(__file__).parent / "peer_differences.toml").read_text(encoding="utf-8")
)

pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the collected peer cases lie beside the checkout, and are not here")


def cases() -> dict[str, Any]:
    """The cases that concern shares and order, by id."""
    if not FILE.exists():
        return {}
    every = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    return {case["id"]: case for case in every if case["kind"] in KINDS}


CASES = cases()


class Node(NamedTuple):
    """A node of a peer's tree: its names from the root, its part of its parent, the usage of all that lies below it."""

    path: tuple[str, ...]
    part: Fraction
    usage: int
    leaf: bool


def walk(tree: Mapping[str, Any], above: tuple[str, ...] = (), part: Fraction = Fraction(1)) -> Iterator[Node]:
    """Slurm's form of a tree: shares are weights among siblings."""
    children = tree.get("children", ())
    path = (*above, tree["name"])
    below = [node for child in children for node in walk(child, path, _part(child, children))]
    usage = tree.get("usage", 0) + sum(node.usage for node in below if node.leaf)
    yield Node(path, part, usage, leaf=not children)
    yield from below


def _part(child: Mapping[str, Any], siblings: Any) -> Fraction:
    total = sum(each["shares"] for each in siblings if each["shares"] != "parent")
    return Fraction(child["shares"], total) if child["shares"] != "parent" and total else Fraction(0)


def without_parent_shares(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree without accounts whose children use Slurm's word "parent"; the account itself stays, as one leaf."""
    children = tree.get("children", ())
    if any(each["shares"] == "parent" for each in children):
        usage = sum(node.usage for node in walk(tree) if node.leaf)
        return {"name": tree["name"], "shares": tree["shares"], "usage": usage}
    return {**tree, "children": [without_parent_shares(each) for each in children]} if children else dict(tree)


def standings(nodes: list[Node], capacity: int) -> dict[str, Standing]:
    """Exact standings: everybody's entitlement is its effective share of the capacity, in a unit that leaves no fraction."""
    effective: dict[tuple[str, ...], Fraction] = {}
    for node in nodes:
        effective[node.path] = effective.get(node.path[:-1], Fraction(1)) * node.part
    unit = math.lcm(*(share.denominator for share in effective.values()))
    return {node.path[-1]: Standing(node.usage * unit, int(effective[node.path] * capacity * unit)) for node in nodes}


def level_fs(node: Node, known: Mapping[str, Standing]) -> float:
    """Slurm's level fairshare, out of our standings: the parent's ratio over the node's own."""
    ours, above = known[node.path[-1]], known[node.path[-2]]
    if not ours.entitlement:
        return 0.0
    if not ours.used:
        return math.inf
    return float(Fraction(above.used, above.entitlement) / Fraction(ours.used, ours.entitlement))


def run_fair_tree(case: Mapping[str, Any]) -> None:
    """Level values of all nodes, and the order of those leaves that are in the surplus tier."""
    nodes = list(walk(without_parent_shares(case["given"]["tree"])))
    # A capacity of 1 puts everybody who used anything into the surplus tier, where our order is Fair Tree's.
    known = standings(nodes, capacity=1)
    by_name = {node.path[-1]: node for node in nodes}
    checked = 0
    for name, expected in case["expect"]["level_fs"].items():
        if name in by_name and len(by_name[name].path) > 1:
            assert level_fs(by_name[name], known) == pytest.approx(float(expected), abs=1e-6), name
            checked += 1
    assert checked
    ranks = {name: rank for name, rank in case["expect"].get("fairshare", {}).items() if name in by_name and by_name[name].usage}
    keys = {name: leaf_key(by_name[name].path, known) for name in ranks}
    assert all(key[0] == 1 for key in keys.values())
    for ours in ranks:
        for theirs in ranks:
            # Where two siblings tie, Slurm merges their users and ours takes the larger shortfall: peer_differences.toml.
            if ranks[ours] > ranks[theirs] and not _tied(by_name[ours].path, by_name[theirs].path, known):
                assert keys[ours] < keys[theirs], (ours, theirs)


def _tied(first: tuple[str, ...], second: tuple[str, ...], known: Mapping[str, Standing]) -> bool:
    ours, theirs = next((a, b) for a, b in zip(first, second, strict=False) if a != b)
    return known[ours].ratio == known[theirs].ratio


def run_sshare(case: Mapping[str, Any]) -> None:
    """A real listing: 23 users with equal shares, three of them active."""
    given, expect = case["given"], case["expect"]
    users = [*given["users"].items(), *((f"idle{number}", 0) for number in range(23 - len(given["users"])))]
    account = {"name": "account", "shares": 1, "children": [{"name": name, "shares": 1, "usage": usage} for name, usage in users]}
    nodes = list(walk(account))
    known = standings(nodes, capacity=1)
    by_name = {node.path[-1]: node for node in nodes}
    for name, expected in expect["level_fs"].items():
        # "Raw usage is printed as whole numbers, so recomputing agrees to 2e-5 only."
        assert level_fs(by_name[name], known) == pytest.approx(float(expected), abs=2e-5)
    assert sorted(expect["order"], key=lambda name: leaf_key(by_name[name].path, known)) == expect["order"]


def shares_of(nodes: list[Node]) -> dict[str, Fraction]:
    """Effective shares by our own tree, in whole ppm of the parent; the tree must be valid."""
    rows = []
    for node in nodes:
        path = ["-".join(node.path[: depth + 1]).lower() for depth in range(len(node.path))]
        share = int(node.part * PPM_WHOLE) if len(path) > 1 else None
        rows.append(Budget(budget=path[-1], parent=path[-2] if len(path) > 1 else None, share_ppm=share))
    assert validate(rows) == ()
    known = {row.budget: row for row in rows}
    result = {}
    for node, row in zip(nodes, rows, strict=True):
        factors, _ = effective_share(paths(known)[row.budget], known, None)
        result[node.path[-1]] = math.prod((Fraction(factor, PPM_WHOLE) for factor in factors), start=Fraction(1))
    return result


def run_norm_shares(case: Mapping[str, Any]) -> None:
    """The product of the parts on the path, as in every tree of shares."""
    found = shares_of(list(walk(case["given"]["tree"])))
    for name, expected in case["expect"]["norm_shares"].items():
        assert float(found[name]) == pytest.approx(expected, abs=3e-6), name


def run_departments(case: Mapping[str, Any]) -> None:
    """Departments with percentages, and projects with percentages of those."""
    children = [
        {
            "name": department,
            "shares": it["weight"],
            "children": [{"name": f"{department}/{name}", "shares": weight} for name, weight in it["children"].items()],
        }
        for department, it in case["given"]["tree"].items()
    ]
    found = shares_of_named(children)
    for name, expected in case["expect"]["effective_share"].items():
        assert float(found[name]) == pytest.approx(expected, abs=1e-9)


def shares_of_named(children: list[dict[str, Any]]) -> dict[str, Fraction]:
    """Effective shares below a root that has these children; names may have a slash."""
    nodes = list(walk({"name": "root", "shares": 1, "children": children}))
    plain = [node._replace(path=tuple(step.replace("/", "-").replace(".", "-") for step in node.path)) for node in nodes]
    found = shares_of(plain)
    return {node.path[-1]: found[clean.path[-1]] for node, clean in zip(nodes, plain, strict=True)}


def run_pbs(case: Mapping[str, Any]) -> None:
    """Groups with shares, users with shares of those."""
    children = [
        {"name": group, "shares": it["shares"], "children": [{"name": n, "shares": u["shares"]} for n, u in it["users"].items()]}
        for group, it in case["given"]["groups"].items()
    ]
    found = shares_of_named(children)
    for name, expected in case["expect"]["share"].items():
        assert float(found[name]) == pytest.approx(expected, abs=1e-9)


def run_condor_quota(case: Mapping[str, Any]) -> None:
    """A subgroup's fraction is of its parent. Thirds are not whole ppm: to a hundredth of a machine."""
    fractions = {name: Fraction(share).limit_denominator(1_000) for name, share in case["given"]["dynamic_quota"].items()}
    tops = [name for name in fractions if "." not in name]
    children: list[dict[str, Any]] = [
        {
            "name": top,
            "shares": fractions[top],
            "children": [{"name": each, "shares": fractions[each]} for each in fractions if each.startswith(f"{top}.")],
        }
        for top in tops
    ]
    found = shares_of_named(children)
    for name, machines in case["expect"]["quota"].items():
        assert float(found[name]) * case["given"]["pool"] == pytest.approx(machines, abs=1e-2)


def run_refused_sum(case: Mapping[str, Any]) -> None:
    """What the peer scales down we refuse, and say by how much it is too much."""
    rows = [Budget(budget="pool")]
    for name, share in case["given"]["dynamic_quota"].items():
        rows.append(Budget(budget=name, parent="pool", share_ppm=round(share * PPM_WHOLE)))
    (fault,) = validate(rows)
    assert fault.code == "shares_exceed_parent"
    assert "120%" in fault.sentence


def run_unfairness(case: Mapping[str, Any]) -> None:
    """The peer's unfairness is the sum of our shortfalls, where they are positive, over the capacity."""
    given = case["given"]
    total = Fraction(0)
    for name, share in given["fair_share"].items():
        shortfall = Standing(given["allocated"].get(name, 0), int(Fraction(share) * given["capacity"])).shortfall
        total += Fraction(max(0, shortfall), given["capacity"])
    assert float(total) == case["expect"]["unfairness"]


def run_volcano(case: Mapping[str, Any]) -> None:
    """Usage over weight decides, in either tier."""
    for capacity in (1, 100):
        entitled = {name: Standing(it["cpu"], it["weight"] * capacity) for name, it in case["given"].items()}
        assert min(entitled, key=lambda name: leaf_key(("root", name), entitled)) == case["expect"]["less_served_first"]


RUNS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "slurm-ft-01-full-tree": run_fair_tree,
    "slurm-ft-02-aA": run_fair_tree,
    "slurm-ft-03-aB": run_fair_tree,
    "slurm-ft-04-zero-shares": run_fair_tree,
    "slurm-ft-06-idle": run_fair_tree,
    "slurm-ft-08-first-common-ancestor": run_fair_tree,
    "slurm-ft-09-over-under-served": run_fair_tree,
    "slurm-ft-10-real-sshare-epfl": run_sshare,
    "slurm-classic-01": run_norm_shares,
    "slurm-classic-02": run_norm_shares,
    "hier-01-four-departments": run_departments,
    "pbs-fs-01": run_pbs,
    "condor-quota-07": run_condor_quota,
    "condor-quota-08": run_refused_sum,
    "armada-18": run_unfairness,
    "armada-19": run_unfairness,
    "volcano-08-order": run_volcano,
}


@pytest.mark.parametrize("case", RUNS)
def test_a_peers_case(case: str) -> None:
    RUNS[case](CASES[case])


def test_every_case_runs_or_says_why_not() -> None:
    assert set(RUNS) | set(DIFFERENCES) == set(CASES)
    for name, difference in DIFFERENCES.items():
        assert difference["why"].endswith("."), name
        assert ("runs" in difference) == (name in RUNS), name
