"""What other schedulers' own tests expect of usage over a window, put to our rules.

Each case runs here, or is listed in peer_differences.toml with the sentence why our contract differs or in which issue it belongs.
"""

import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allmende.ledger.model import BUCKET_MS, Account, Level, Live, Posting, Share
from allmende.ledger.rules.aging import WEIGHT_BITS, WEIGHT_ONE, aging, weights
from allmende.ledger.rules.standings import Charges, Tree, eras, take, window_at
from allmende.proto.budget import Budget
from allmende.proto.standing import Ratio
from allmende.proto.units import HOUR_MS, PPM_WHOLE, SECOND_MS
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


# Long look-backs take seconds to make.
table_of = cache(aging)
CASES = cases()
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the collected peer cases lie beside the checkout, and are not here")


def accounts(
    postings: Sequence[Posting],
    live: Sequence[Live],
    gpus: int,
    now_ms: int,
    length_ms: int,
    ppm: Mapping[str, int],
    half_life_ms: int | None = None,
) -> dict[str, Account]:
    """The accounts of leaves below one root on a cluster that always had `gpus`, without the floor of a sliver of time."""
    table = None if half_life_ms is None else table_of(half_life_ms, length_ms)
    root = Budget(budget="org")
    paths = {root.budget: ((root.budget,), ()), **{name: ((root.budget, name), (part,)) for name, part in ppm.items()}}
    tree = Tree(1, [Share(name, path, parts, True, 0, None, 1) for name, (path, parts) in paths.items()])
    window = window_at(now_ms, length_ms)
    (era,) = eras(tree.shares, window)
    charged: dict[str, int] = defaultdict(int)
    for posting in postings:
        if window.from_ms <= posting.from_ms < window.to_ms and posting.budget is not None:
            age = (now_ms - now_ms % BUCKET_MS - posting.from_ms) // BUCKET_MS
            charged[posting.budget] += posting.amount_gpu_ms * (1 if table is None else table.weights[age])
    if table is not None:
        charged = defaultdict(int, {name: amount >> WEIGHT_BITS for name, amount in charged.items()})
    taken = take(tree, [Charges(era, charged)], live, [Level(0, now_ms, gpus, gpus)], window, 0, table)
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


def run_sliding_decay(case: Mapping[str, Any]) -> None:
    """Usage and capacity age alike: the fractions of all who used everything still sum to 1."""
    given = case["given"]
    ticks = given["ticks_oldest_first"]
    # GPUs by the thousand, so that the one floor a leaf is below what is compared.
    postings = [_bucket(T + at * BUCKET_MS, name, gpus * 1_000) for at, (name, gpus) in enumerate(ticks)]
    names = dict.fromkeys((name for name, _gpus in ticks), PPM_WHOLE // 2)
    now_ms, length_ms = T + len(ticks) * BUCKET_MS, given["window_ticks"] * BUCKET_MS
    half_life_ms = given["half_life_ticks"] * BUCKET_MS
    found = accounts(postings, [], given["capacity_per_tick"] * 1_000, now_ms, length_ms, names, half_life_ms)
    for name, part in case["expect"]["consumed_fraction"].items():
        assert near(Fraction(found[name].charged_gpu_ms, found["org"].entitlement_gpu_ms), Fraction(part))


def _bucket(from_ms: int, budget: str, gpus: int) -> Posting:
    return Posting("c1", f"attempt-{from_ms}", 0, 1, from_ms, from_ms + BUCKET_MS, gpus, budget, "tick")


def near(found: Fraction, wanted: Fraction) -> bool:
    """Within 2^-30 of what is wanted."""
    return abs(found - wanted) <= abs(wanted) / 2**30


def decayed(amounts_by_age: Mapping[int, int], half_life_ms: int) -> Fraction:
    """What amounts still count, by their ages in buckets: as a leaf's charge, with GPUs by the million."""
    oldest = max(amounts_by_age)
    now_ms = T + oldest * BUCKET_MS
    postings = [_bucket(now_ms - age * BUCKET_MS, "leaf", gpus * 10**6) for age, gpus in amounts_by_age.items()]
    found = accounts(postings, [], 1, now_ms + 1, oldest * BUCKET_MS, {"leaf": PPM_WHOLE}, half_life_ms)["leaf"]
    return Fraction(found.charged_gpu_ms, 10**6 * BUCKET_MS)


def run_sum(case: Mapping[str, Any]) -> None:
    """Events of different ages, each by its weight."""
    half_life_ms = case["given"]["half_life_s"] * SECOND_MS
    ages = {event["age_s"] * SECOND_MS // BUCKET_MS: event["gpu_s"] for event in case["given"]["events"]}
    table = weights(half_life_ms, max(ages) + 1)
    for age, wanted in zip(ages, case["expect"]["weights"], strict=True):
        assert near(Fraction(table[age], WEIGHT_ONE), Fraction(wanted))
    assert near(decayed(ages, half_life_ms), Fraction(case["expect"]["decayed"]))


def run_idle_user(case: Mapping[str, Any]) -> None:
    """Whoever uses nothing more has half after each half-life."""
    given = case["given"]
    half_life_ms = given["half_life_s"] * SECOND_MS
    for at_s, wanted in zip(given["at_s"], case["expect"]["value"], strict=True):
        assert near(decayed({at_s * SECOND_MS // BUCKET_MS: given["start"]}, half_life_ms), Fraction(wanted))


def run_idle_periods(case: Mapping[str, Any]) -> None:
    """A week of idle periods of five minutes halves what was used; one takes the stated factor."""
    given, expect = case["given"], case["expect"]
    half_life_ms = given["half_life_s"] * SECOND_MS
    assert given["period_s"] * SECOND_MS == BUCKET_MS
    assert near(decayed({given["idle_periods"]: int(given["usage"])}, half_life_ms), Fraction(expect["decayed_usage"]))
    assert round(weights(half_life_ms, 2)[1] / WEIGHT_ONE, 7) == expect["per_period_factor"]


# After so many half-lives no weight of 32 bits is left: a look-back as long as that is one without an end.
ENDLESS = 33
ONE = 10**6


def converged(spells: Sequence[tuple[int, int]], half_life: int) -> Fraction:
    """Charged over entitlement of a leaf that is owed one GPU: its usage, averaged over an endless past.

    `spells`: newest first, (buckets, GPUs). A million are the "one": the floor of a leaf is below what is compared.
    """
    length = ENDLESS * half_life
    now_ms = T + length * BUCKET_MS
    postings, at = [], length
    for buckets, gpus in spells:
        postings += [_bucket(T + (at - number) * BUCKET_MS, "leaf", gpus) for number in range(1, min(buckets, at) + 1)]
        at -= min(buckets, at)
    found = accounts(postings, [], ONE, now_ms, length * BUCKET_MS, {"leaf": PPM_WHOLE}, half_life * BUCKET_MS)["leaf"]
    return Fraction(found.charged_gpu_ms, found.entitlement_gpu_ms)


def run_constant(case: Mapping[str, Any]) -> None:
    """Constant usage after none: an exponential average approaches it and never passes it."""
    given = case["given"]
    half_life, usage = given["half_life_s"] * SECOND_MS // BUCKET_MS, given["constant_usage"]
    found = converged([(given["samples"], usage * ONE)], half_life)
    assert near(found, Fraction(case["expect"]["decayed"]))
    assert found < usage


def run_small(case: Mapping[str, Any]) -> None:
    """The first samples of a constant usage are small, and none of them is lost."""
    given, expect = case["given"], case["expect"]
    half_life = given["half_life_s"] * SECOND_MS // BUCKET_MS
    found = [converged([(samples, ONE)], half_life) for samples in given["samples"]]
    assert found == sorted(set(found)), "strictly increasing"
    for samples, value, published in zip(given["samples"], found, expect["values"], strict=True):
        assert near(value, 1 - Fraction(Decimal(2) ** (Decimal(-samples) / half_life)))
        assert abs(value - Fraction(published)) < Fraction(2, 10**8), "the published figures are sums of rounded ones"


def run_cut(case: Mapping[str, Any]) -> None:
    """However time is cut into steps, the average at its end is the same. Before it lay a usage that averages to the start."""
    given = case["given"]
    half_life = given["half_life_s"] * SECOND_MS // BUCKET_MS
    before = (ENDLESS * half_life, int(given["start"] * ONE))
    found = set()
    for steps in (given["steps_s_a"], given["steps_s_b"]):
        spells = [(step * SECOND_MS // BUCKET_MS, given["usage"] * ONE) for step in steps]
        found.add(converged([*spells, before], half_life))
    (value,) = found
    assert near(value, Fraction(case["expect"]["value"]))


RUNS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "condor-decay-01": run_idle_user,
    "condor-decay-03": run_cut,
    "kai-decay-37": run_sum,
    "kai-usage-35-normalise": run_fraction,
    "kai-window-38-sliding": run_sliding,
    "kai-window-39-sliding-decay": run_sliding_decay,
    "kueue-decay-12": run_constant,
    "kueue-decay-13": run_constant,
    "kueue-decay-14-submilli": run_small,
    "kueue-usage-16": run_key,
    "kueue-usage-20": run_key,
    "kueue-usage-22": run_key,
    "slurm-decay-01": run_idle_periods,
}


@pytest.mark.parametrize("case", RUNS)
def test_a_peers_case(case: str) -> None:
    RUNS[case](CASES[case])


def test_every_case_runs_or_says_why_not() -> None:
    assert RUNS.keys() | DIFFERENCES.keys() == CASES.keys()
    assert not RUNS.keys() & DIFFERENCES.keys()
    assert all(sentence.endswith(".") for sentence in DIFFERENCES.values())
