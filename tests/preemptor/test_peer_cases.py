"""What other schedulers' own tests expect of the choice of victims, put to our rules.

A case is translated into standings: `nominal` or `deserved` is the entitlement, what is allocated is used, the request is the hold,
and every job is past its slice on a node of its own. Each case passes here, or is listed in peer_differences.toml with the sentence
why our contract differs.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from allmende.preemptor.model import Planned
from allmende.preemptor.rules.judge import judge
from allmende.proto.standing import Standing
from tests.preemptor.builders import POLICY, attempt, claim, node, snapshot

FILE = Path(__file__).parents[2].parent / "shared" / "cases" / "peer_cases.jsonl"
DIFFERENCES: dict[str, str] = tomllib.loads((Path(__file__).parent / "peer_differences.toml").read_text(encoding="utf-8"))
# Halves of a GPU become whole ones, and no amount is so small that rounding shows.
SCALE = 2
GPU_TIME = 1_000_000


def cases() -> dict[str, dict[str, Any]]:
    if not FILE.exists():
        return {}
    lines = (json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines())
    return {case["id"]: case for case in lines if case["kind"] == "victim_choice"}


CASES = cases()
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the collected peer cases lie beside the checkout, and are not here")


def amount(value: float) -> int:
    return round(value * GPU_TIME)


def answer(case: dict[str, Any]) -> Any:
    """What our rules say, in the words of the case; None where the case asks for something that we do not have."""
    given = case["given"]
    match case["peer"], given:
        case _, {"admitted": _}:
            return {"victims": _victims(given)}
        case _, {"victim_queue": dict() as victim}:
            return {"reclaimable": _pair(given.get("claimant"), victim)}
        case _, {"queues": dict() as queues, "claimant": dict() as wanted, "victims": list() as victims}:
            return {"reclaimable": _tree(queues, wanted, victims)}
        case _:
            return None


def _victims(given: dict[str, Any]) -> list[str]:
    parents = {it["name"]: it["parent"] for it in (*given["queues"], *given.get("cohorts", ())) if it["parent"]}
    used = {it["name"]: sum(job["size"] for job in given["admitted"] if job["queue"] == it["name"]) for it in given["queues"]}
    nominal = {it["name"]: it["nominal"] for it in given["queues"]}
    for cohort in given.get("cohorts", ()):
        nominal[cohort["name"]] = cohort["nominal"]
    standings = _rolled_up(used, nominal, parents)
    nodes, attempts = [], []
    for job in given["admitted"]:
        size = round(job["size"] * SCALE)
        nodes.append(node(f"on-{job['name']}", size))
        attempts.append(attempt(job["name"], job["queue"], {f"on-{job['name']}": size}, priority=job["priority"]))
    incoming = given["incoming"]
    total = sum(it["nominal"] for it in (*given["queues"], *given.get("cohorts", ())))
    if (idle := round((total - sum(used.values())) * SCALE)) > 0:
        nodes.append(node("idle", idle))
    wish = claim(
        incoming["queue"], round(incoming["size"] * SCALE), 1, hold=amount(incoming["size"]), priority=incoming["priority"]
    )
    decision = judge(snapshot(nodes, attempts, standings, parents=_below_org(parents)), wish, POLICY)
    return sorted(it.attempt.attempt for it in decision.victims) if isinstance(decision, Planned) else []


def _below_org(parents: Mapping[str, str]) -> dict[str, str]:
    return {child: parent for child, parent in parents.items() if parent}


def _rolled_up(used: Mapping[str, float], own: Mapping[str, float], parents: Mapping[str, str]) -> dict[str, Standing]:
    """Standings of queues and their parents: a parent's are the sums of what lies below and of its own."""
    sums = {name: [used.get(name, 0.0), share] for name, share in own.items()}
    for name in own:
        at = parents.get(name)
        while at is not None:
            entry = sums.setdefault(at, [0.0, own.get(at, 0.0)])
            entry[0] += used.get(name, 0.0)
            entry[1] += own[name]
            at = parents.get(at)
    return {name: Standing(amount(taken), amount(share)) for name, (taken, share) in sums.items()}


def _pair(claimant: dict[str, Any] | None, victim: dict[str, Any]) -> bool:
    # A case that names only the victim's queue has a claimant that holds nothing and asks for one of a large share.
    mine = claimant or {"deserved": 100, "allocated": 0, "request": 1}
    owed = max(victim["deserved"], victim.get("fair_share", 0))
    standings = {
        "claimant": Standing(amount(mine["allocated"]), amount(mine["deserved"])),
        "victim": Standing(amount(victim["allocated"]), amount(owed)),
    }
    size = mine["request"]
    seen = snapshot([node("n1", size)], [attempt("v", "victim", {"n1": size})], standings)
    return isinstance(judge(seen, claim("claimant", size, 1, hold=amount(size)), POLICY), Planned)


def _tree(queues: dict[str, Any], wanted: dict[str, Any], victims: list[dict[str, Any]]) -> bool:
    standings = {name: Standing(amount(it["allocated"]), amount(it["deserved"])) for name, it in queues.items()}
    parents = {name: it["parent"] for name, it in queues.items() if it["parent"]}
    size = round(sum(it["amount"] for it in victims) * SCALE)
    held = [attempt(f"v{i}", it["queue"], {f"n{i}": round(it["amount"] * SCALE)}) for i, it in enumerate(victims)]
    nodes = [node(f"n{i}", round(it["amount"] * SCALE)) for i, it in enumerate(victims)]
    seen = snapshot(nodes, held, standings, parents=parents)
    return isinstance(judge(seen, claim(wanted["queue"], size, 1, hold=amount(wanted["request"])), POLICY), Planned)


@pytest.mark.parametrize("name", [name for name in CASES if name not in DIFFERENCES])
def test_peers_expect_the_same(name: str) -> None:
    assert answer(CASES[name]) == CASES[name]["expect"]


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_listed_difference_is_one(name: str) -> None:
    assert name in CASES, "no such case"
    assert answer(CASES[name]) != CASES[name]["expect"], "the same after all: take it off the list"
    assert DIFFERENCES[name].endswith(".")
