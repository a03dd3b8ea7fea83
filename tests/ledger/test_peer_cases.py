"""What other schedulers' own tests expect of usage over a window, put to our rules.

Each case runs here, or is listed in peer_differences.toml with the sentence why our contract differs or in which issue it belongs.
"""

import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from allmende.ledger.model import BUCKET_MS, Account, Level, Live, Posting, Share
from allmende.ledger.rules.standings import Charges, Tree, eras, take, window_at
from allmende.proto.budget import Budget
from allmende.proto.standing import Ratio
from allmende.proto.units import HOUR_MS, PPM_WHOLE
from tests.ledger.builders import START_MS
from tests.ledger.paper import Paper, end, grant, reading

FILE = Path(__file__).parents[2].parent / "shared" / "cases" / "peer_cases.jsonl"
KINDS = {"usage_window", "decay"}
DIFFERENCES: dict[str, str] = tomllib.loads((Path(__file__).parent / "peer_differences.toml").read_text(encoding="utf-8"))
T = START_MS


def cases() -> dict[str, dict[str, Any]]:
    """The cases that concern usage over a window, by id."""
    if not FILE.exists():
        return {}
    lines = (json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines())
    return {case["id"]: case for case in lines if case["kind"] in KINDS}


CASES = cases()
pytestmark = pytest.mark.skipif(not CASES, reason="the collected peer cases lie beside the checkout, and are not here")


def accounts(
    postings: Sequence[Posting], live: Sequence[Live], gpus: int, now_ms: int, length_ms: int, ppm: Mapping[str, int]
) -> dict[str, Account]:
    """The accounts of leaves below one root on a cluster that always had `gpus`, without the floor of a sliver of time."""
    root = Budget(budget="org")
    paths = {root.budget: ((root.budget,), ()), **{name: ((root.budget, name), (part,)) for name, part in ppm.items()}}
    tree = Tree(1, [Share(name, path, parts, True, 0, None, 1) for name, (path, parts) in paths.items()])
    window = window_at(now_ms, length_ms)
    (era,) = eras(tree.shares, window)
    charged: dict[str, int] = defaultdict(int)
    for posting in postings:
        if window.from_ms <= posting.from_ms < window.to_ms and posting.budget is not None:
            charged[posting.budget] += posting.amount_gpu_ms
    taken = take(tree, [Charges(era, charged)], live, [Level(0, now_ms, gpus, gpus)], window, slice_cap_ms=0)
    assert taken is not None
    return {account.budget: account for account in taken.accounts}


def run_fraction(case: Mapping[str, Any]) -> None:
    """What one run used, of all that was there: an attempt's counter, its postings, and the window that ends after it."""
    given = case["given"]
    (run,) = given["runs"]
    paper = Paper()
    held_ms = run["hours"] * HOUR_MS
    paper.hear(grant(gpus=run["gpus"]), reading(held_ms, 1, gpus=run["gpus"], final=True), end(1, T + held_ms))
    length_ms = given["window_h"] * HOUR_MS
    found = accounts(paper.postings, [], given["capacity_gpus"], T + length_ms, length_ms, {"nlp": PPM_WHOLE})["org"]
    assert float(Fraction(found.charged_gpu_ms, found.entitlement_gpu_ms)) == case["expect"]["consumed_fraction"]


def run_sliding(case: Mapping[str, Any]) -> None:
    """A tick is a bucket; what lies before the window is forgotten, for usage and for capacity alike."""
    given = case["given"]
    ticks = given["ticks_oldest_first"]
    postings = [
        Posting("c1", f"attempt-{at}", 0, 1, T + at * BUCKET_MS, T + (at + 1) * BUCKET_MS, gpus, name, "tick")
        for at, (name, gpus) in enumerate(ticks)
    ]
    now_ms = T + len(ticks) * BUCKET_MS
    names = dict.fromkeys((name for name, _gpus in ticks), PPM_WHOLE // 2)
    found = accounts(postings, [], given["capacity_per_tick"], now_ms, given["window_ticks"] * BUCKET_MS, names)
    parts = {name: float(Fraction(found[name].charged_gpu_ms, found["org"].entitlement_gpu_ms)) for name in names}
    assert parts == case["expect"]["consumed_fraction"]


def run_key(case: Mapping[str, Any]) -> None:
    """The number that sorts a queue: consumed plus penalty over weight is charged plus held over entitlement, exactly.

    A weight is the number of GPUs that a leaf is owed for a bucket; the penalty of what has only just been admitted is the hold of
    its slice.
    """
    given = case["given"]
    now_ms = T + BUCKET_MS
    consumed, penalty = given["consumed"].get("gpu", 0), given["pending_penalty"].get("gpu", 0)
    postings = [Posting("c1", "attempt", 0, 1, T, now_ms, consumed, "queue", "tick")] if consumed else []
    live = [Live("queue", penalty, 1, BUCKET_MS, 0, 0)] if penalty else []
    weight = given["queue_weight"]
    gpus, ppm = (weight, PPM_WHOLE) if weight else (1, 0)
    found = accounts(postings, live, gpus, now_ms, BUCKET_MS, {"queue": ppm})["queue"]
    ratio = Ratio(found.charged_gpu_ms + found.held_gpu_ms, found.entitlement_gpu_ms)
    if case["expect"]["usage"] == "inf":
        assert ratio == Ratio(0, 0)
        assert ratio > Ratio(10**30, 1), "last of all, never NaN"
    else:
        assert ratio == Ratio(case["expect"]["usage"], 1)


RUNS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "kai-usage-35-normalise": run_fraction,
    "kai-window-38-sliding": run_sliding,
    "kueue-usage-16": run_key,
    "kueue-usage-20": run_key,
    "kueue-usage-22": run_key,
}


@pytest.mark.parametrize("case", RUNS)
def test_a_peers_case(case: str) -> None:
    RUNS[case](CASES[case])


def test_every_case_runs_or_says_why_not() -> None:
    assert RUNS.keys() | DIFFERENCES.keys() == CASES.keys()
    assert not RUNS.keys() & DIFFERENCES.keys()
    assert all(sentence.endswith(".") for sentence in DIFFERENCES.values())
