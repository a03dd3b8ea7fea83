"""What other schedulers' own tests expect of admission, and of the division of a cluster, put to our pass.

A division (`water_fill`) is what one pass grants on an empty cluster, where every claimant's demand waits as jobs of one GPU. A
weight is a leaf's entitlement over a week; a deserved amount is the entitlement for the length of one slice, so that whoever has it
stands at 1. Each case passes here, or is listed in peer_differences.toml with the sentence why our contract differs.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.values import Job
from allmende.proto.units import DAY_MS, HOUR_MS
from tests.admission.builders import attempt, granted_jobs, job, lab, node, run_pass, tree

FILE = Path(__file__).parents[2].parent / "shared" / "cases" / "peer_cases.jsonl"
KINDS = {"admission", "water_fill"}
DIFFERENCES: dict[str, str] = tomllib.loads((Path(__file__).parent / "peer_differences.toml").read_text(encoding="utf-8"))
SLICE_MS = HOUR_MS
WINDOW_MS = 7 * DAY_MS
# A victim of whom a case says nothing but that it may be claimed from: over its share by more than the margin.
VICTIM_RATIO = Fraction(12, 10)


def cases() -> dict[str, dict[str, Any]]:
    """The cases that concern admission, by id."""
    if not FILE.exists():
        return {}
    lines = (json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines())
    return {case["id"]: case for case in lines if case["kind"] in KINDS}


CASES = cases()
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the collected peer cases lie beside the checkout, and are not here")


def stand(books: Books, budget: str, used: Fraction, entitlement: Fraction) -> None:
    """Give a budget a standing, in GPU-ms."""
    known = books.counted["c1"][budget]
    books.counted["c1"][budget] = replace(known, used_gpu_ms=round(used), entitlement_gpu_ms=round(entitlement))


def book(jobs: list[Job], gpus: int, budgets: Mapping[str, tuple[Fraction, Fraction]], held: list[Job] | None = None) -> Books:
    """One node of `gpus`; leaves below one root, each with what it has used and what it is owed; `held` run past their slice."""
    running = [attempt(number, each, {"n001": 1}) for number, each in enumerate(held or [], start=1)]
    books = lab([*jobs, *(held or [])], [node(1, installed=gpus, healthy=gpus)], budgets=tree(*budgets), attempts=running)
    for name, (used, entitlement) in budgets.items():
        stand(books, name, used, entitlement)
    return books


# ------------------------------------------------------------------------------------------------------------------------ divisions


def divide(gpus: int, demands: Mapping[str, int], budgets: Mapping[str, tuple[Fraction, Fraction]]) -> dict[str, int]:
    """GPUs that one pass grants to each leaf."""
    queue = [
        job(1_000_000 * place + number, budget=name, slice_ms=SLICE_MS)
        for place, (name, demand) in enumerate(demands.items())
        for number in range(min(demand, gpus))
    ]
    leaf_of = {each.job: each.budget for each in queue}
    granted = Counter(leaf_of[name] for name in granted_jobs(run_pass(book(queue, gpus, budgets)).change))
    return {name: granted[name] for name in demands}


def by_weight(weights: Mapping[str, Fraction], gpus: int, used: Mapping[str, Fraction]) -> dict[str, tuple[Fraction, Fraction]]:
    """Entitlement over a week by weight. `used`: fractions of all GPU time of that week."""
    total, week = sum(weights.values(), Fraction(0)), gpus * WINDOW_MS
    return {name: (used.get(name, Fraction(0)) * week, week * weight / total) for name, weight in weights.items()}


def fraction(number: float) -> Fraction:
    """The fraction that a person who wrote the number meant."""
    return Fraction(str(number))


def in_fluid(case: Mapping[str, Any]) -> None:
    """A division of something that flows, with weights: ours gives whole GPUs, so it is met to less than one GPU.

    Demands in tenths are met with ten times the GPUs, which changes no part. What Armada calls `share_of_capacity` is an effective
    share, and stands in the tests of proto.
    """
    given, expect = case["given"], case["expect"]
    claimants = [*given["claimants"], *([{"name": "probe", **given["probe"]}] if "probe" in given else [])]
    tenths = case["peer"] == "textbook"
    gpus = given["capacity"] * (10 if tenths else 1)
    demands = {
        it["name"]: gpus if it["demand"] == "infinite" else int(fraction(it["demand"]) * (10 if tenths else 1)) for it in claimants
    }
    found = divide(gpus, demands, by_weight({it["name"]: fraction(it["weight"]) for it in claimants}, gpus, {}))
    if "allocation" in expect:
        assert found == {name: int(fraction(amount) * 10) for name, amount in expect["allocation"].items()}
    elif "probe_fraction" in expect:
        assert abs(found["probe"] - expect["probe_fraction"] * gpus) < 1
    else:
        assert found == {name: int(fraction(part) * gpus) for name, part in expect["allocation_fraction"].items()}


def in_rounds(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """KAI-Scheduler's division in its own words; None where it asks for a part of a GPU."""
    claimants = given["claimants"]
    if any(it["request"] != int(it["request"]) for it in claimants):
        return None
    gpus = given["capacity"] + sum(it.get("fair_share_start", 0) for it in claimants)
    if any(it["deserved"] for it in claimants):
        budgets = {it["name"]: (Fraction(0), fraction(it["deserved"]) * SLICE_MS) for it in claimants}
    elif any(it["weight"] for it in claimants):
        used = {it["name"]: fraction(it.get("usage", 0)) for it in claimants}
        budgets = by_weight({it["name"]: Fraction(it["weight"]) for it in claimants}, gpus, used)
    else:
        budgets = {it["name"]: (Fraction(0), Fraction(0)) for it in claimants}
    found = divide(gpus, {it["name"]: it["request"] for it in claimants}, budgets)
    return {"allocation": found, "remaining": gpus - sum(found.values())}


def run_rounds(case: Mapping[str, Any]) -> None:
    """Deserved amounts first, then the rest in parts."""
    found = in_rounds(case["given"])
    assert found is not None
    assert {name: found[name] for name in case["expect"]} == case["expect"]


def run_inverse(case: Mapping[str, Any]) -> None:
    """Parts in inverse proportion to a priority."""
    given = case["given"]
    weights = {name: Fraction(1, priority) for name, priority in given["inverse_priority"].items()}
    found = divide(given["capacity"], dict.fromkeys(weights, given["capacity"]), by_weight(weights, given["capacity"], {}))
    assert found == case["expect"]["allocation"]


# ------------------------------------------------------------------------------------------------------------------------ admission


def starts(case: Mapping[str, Any]) -> bool:
    """Does a job start beside what its leaf holds, where GPUs are free?"""
    given = case["given"]
    size = given["request"]
    budgets = {
        name: (Fraction(it["allocated_nonpreemptible"] * SLICE_MS), Fraction(it["deserved"] * SLICE_MS))
        for name, it in given["queues"].items()
    }
    wish = job(1, budget=given["queue"], gpus_per_replica=size, slice_ms=SLICE_MS)
    if given["preemptible"]:
        wish = job(1, budget=None, gpus_per_replica=size, slice_ms=0)
    return bool(granted_jobs(run_pass(book([wish], size, budgets)).change))


def run_starts(case: Mapping[str, Any]) -> None:
    """Work that may be interrupted from the first second is our unallocated work."""
    assert starts(case) == case["expect"]["admit"]


def run_claim(case: Mapping[str, Any]) -> None:
    """May a leaf ask for room that another holds past its slice? `deserved` is the entitlement."""
    given = case["given"]
    mine, size = given["queue"], given["request"]
    victim = job(9, budget="victim", gpus_per_replica=size, state="running")
    owed = Fraction(100 * SLICE_MS)
    budgets = {
        "claimant": (Fraction(mine["allocated"] * SLICE_MS), Fraction(mine["deserved"] * SLICE_MS)),
        "victim": (owed * VICTIM_RATIO, owed),
    }
    wish = job(1, budget="claimant", gpus_per_replica=size, slice_ms=SLICE_MS)
    claims = run_pass(book([wish], size, budgets, [victim])).change.claims
    assert [each.job for each in claims] == ([wish.job] if case["expect"]["can_claim"] else [])


def run_history(case: Mapping[str, Any]) -> None:
    """Who has had less of its weight starts, whoever came first; weight 0 comes last."""
    given = case["given"]
    unit = 1_000 * SLICE_MS
    budgets = {
        name: (Fraction(it["historical_usage"] * SLICE_MS), Fraction(it["weight"] * unit)) for name, it in given["queues"].items()
    }
    waiting = given["workloads_in_submit_order"]
    jobs = [job(number, budget=it["queue"], gpus_per_replica=it["size"]) for number, it in enumerate(waiting, start=1)]
    queue = {each.job: it["name"] for each, it in zip(jobs, waiting, strict=True)}
    granted = [queue[name] for name in granted_jobs(run_pass(book(jobs, given["capacity"], budgets)).change)]
    assert granted == case["expect"]["admitted"]
    assert sorted(set(queue.values()) - set(granted)) == case["expect"]["pending"]


RUNS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "kai-admit-80": run_starts,
    **dict.fromkeys(("kai-admit-89", "kai-admit-90", "kai-admit-91", "kai-admit-92"), run_claim),
    **dict.fromkeys(("kueue-afs-24", "kueue-afs-25", "kueue-afs-27"), run_history),
    **dict.fromkeys([f"armada-{number:02}" for number in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14)], in_fluid),
    **dict.fromkeys(("textbook-01-keshav", "textbook-02-keshav-weighted", "textbook-04-spare", "textbook-05-35-percent"), in_fluid),
    "condor-ratio-04": run_inverse,
    **dict.fromkeys(
        (
            "kai-div-01",
            "kai-div-10-plenty",
            "kai-div-11-exact",
            # The last GPU goes to the lower id with us; the older queue there has it.
            "kai-div-15-oldest-wins",
            "kai-div-19-remainder-with-priority",
            "kai-div-20-reclaim-zero-quota",
            "kai-div-21-idle-given-on",
            "kai-div-25-even",
            "kai-div-26-6-2-1",
            "kai-div-28-last-unit-by-name",
            "kai-usage-32-floor",
            "kai-usage-33-k10-neg",
        ),
        run_rounds,
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_peers_case(case: str) -> None:
    RUNS[case](CASES[case])


@pytest.mark.parametrize("case", DIFFERENCES)
def test_a_listed_difference_is_one(case: str) -> None:
    assert DIFFERENCES[case].endswith(".")
    given, expect = CASES[case]["given"], CASES[case]["expect"]
    if CASES[case]["peer"] == "KAI-Scheduler" and CASES[case]["kind"] == "water_fill":
        found = in_rounds(given)
        assert found is None or any(found[name] != expect[name] for name in expect), "the same after all: take it off the list"
    elif "deserved" in str(given) and "queues" in given:
        assert starts(CASES[case]) != expect["admit"], "the same after all: take it off the list"


def test_every_case_runs_or_says_why_not() -> None:
    assert RUNS.keys() | DIFFERENCES.keys() == CASES.keys()
    assert not RUNS.keys() & DIFFERENCES.keys()
