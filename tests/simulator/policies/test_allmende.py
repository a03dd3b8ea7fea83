"""The services' own rules on the virtual clock are seen to decide, in labs small enough for pencil and paper."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st

from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE, SECOND_MS
from allmende.simulator.model import Cluster, History, Job, NodeSpec, Run
from allmende.simulator.policies.allmende import Allmende
from allmende.simulator.policies.settings import Settings
from tests.simulator.policies.builders import at, cluster, job, minutes, nodes, played, starts, tree
from tests.simulator.policies.test_older_worlds import held, labs
from tests.simulator.policies.test_older_worlds import jobs as many_jobs

# The contract's rules alone; and a short cap, so that half an hour of a small lab already counts as something.
BARE: Mapping[str, Any] = {
    "slice_cap_ms": 30 * MINUTE_MS,
    "reservations_max": 0,
    "quick_ppm": 0,
    "waste_ppm": 0,
    "patience": 0,
    "idle_after_ms": 0,
}
SHORT = 30 * MINUTE_MS
QUICKLY = 10 / 60
"""The notice of unallocated work, in minutes; an allocated attempt has 2."""


class Row(NamedTuple):
    """`expected`: the minutes at which each job starts. `evicted`: in order, (who is told to leave, when, for whom)."""

    number: int
    jobs: list[Job]
    expected: dict[str, list[float]]
    evicted: list[tuple[str, float, str | None]]
    settings: Mapping[str, Any] = BARE
    until: float = 100


def of(leaf: str | None, name: str, submitted: float, shape: str, length: float, slice_minutes: float = 30, **other: Any) -> Job:
    """A job charged to a leaf; of no leaf it is unallocated."""
    slice_ms = 0 if leaf is None else round(slice_minutes * MINUTE_MS)
    return job(name, submitted, shape, length, budget=leaf, slice_ms=slice_ms, **other)


ROWS: dict[str, Row] = {
    "the two leaves share: who is owed time gets a node of who has had more, but not inside his slice": Row(
        2,
        [of("vision", "a", 1, "1x8", 90), of("vision", "b", 1, "1x8", 90), of("speech", "late", 10, "1x8", 20)],
        {"a": [1, 53], "b": [1], "late": [33]},
        [("a", 31, "late")],
    ),
    "who stands no higher is left alone": Row(
        2, [of("vision", "a", 1, "1x8", 60), of("speech", "b", 1, "1x8", 60), of("speech", "c", 10, "1x8", 20)],
        {"a": [1], "b": [1], "c": [61]}, [],
    ),
    "unallocated work leaves at once, whoever has to be made room for": Row(
        2,
        [of(None, "free", 1, "1x8", 90), of("vision", "a", 1, "1x8", 60), of("vision", "b", 10, "1x8", 20)],
        {"a": [1], "free": [1, 10 + QUICKLY + 20], "b": [10 + QUICKLY]},
        [("free", 10, "b")],
    ),
    "and it does before any allocated attempt": Row(
        2,
        [of("vision", "a", 1, "1x8", 90, 5), of(None, "free", 1, "1x8", 90), of("speech", "late", 10, "1x8", 60)],
        {"a": [1], "free": [1, 70 + QUICKLY], "late": [10 + QUICKLY]},
        [("free", 10, "late")],
    ),
    "of two alike the one who has saved leaves": Row(
        2,
        [
            of("vision", "a", 1, "1x8", 90, save_every_ms=25 * MINUTE_MS),
            of("vision", "b", 1, "1x8", 90, save_every_ms=6 * MINUTE_MS),
            of("speech", "late", 10, "1x8", 20),
        ],
        {"a": [1], "b": [1, 53], "late": [33]},
        [("b", 31, "late")],
    ),
    "two who ask at once are given two different nodes": Row(
        2,
        [
            *(of(None, name, 1, "1x8", 90) for name in ("free", "game")),
            *(of(leaf, name, 10, "1x8", 30) for leaf, name in (("vision", "a"), ("speech", "b"))),
        ],
        {"free": [1, 40 + QUICKLY], "game": [1, 40 + QUICKLY], "a": [10 + QUICKLY], "b": [10 + QUICKLY]},
        [("free", 10, "b"), ("game", 10, "a")],
    ),
    "inside a leaf a higher priority displaces a lower one past its slice": Row(
        1,
        [of("vision", "low", 1, "1x8", 60, 20), of("vision", "high", 10, "1x8", 20, 20, priority=1)],
        {"low": [1, 43], "high": [23]},
        [("low", 21, "high")],
    ),
    "a gang has all of its nodes or none": Row(
        2,
        [of("vision", "a", 1, "1x8", 20), of("speech", "gang", 2, "2x8", 20), of("vision", "b", 3, "1x8", 10)],
        {"a": [1], "b": [3], "gang": [21]},
        [],
    ),
    "whoever is over budget still starts on what nobody else can use": Row(
        1, [of("vision", f"j{number}", 1, "1x8", 20, 20) for number in range(4)],
        {"j0": [1], "j1": [21], "j2": [41], "j3": [61]}, [],
    ),
    "a job that is there from the first instant starts a millisecond later": Row(
        1, [of("vision", "a", 0, "1x8", 20)], {"a": [1 / 60_000]}, [],
    ),
    "some nodes are kept for short slices": Row(
        2,
        [of("vision", "a", 1, "1x8", 60), of("vision", "b", 1, "1x8", 30, 30), of("speech", "quick", 5, "1x8", 3, 3)],
        {"a": [1], "b": [61], "quick": [5]},
        [],
        {**BARE, "quick_ppm": 500_000, "quick_slice_ms": 15 * MINUTE_MS},
        until=95,
    ),
    "and nobody is evicted there for a long one": Row(
        2,
        [of("vision", "a", 1, "1x8", 90), of(None, "free", 2, "1x8", 90), of("speech", "late", 10, "1x8", 20, 20)],
        {"a": [1, 53], "free": [2], "late": [33]},
        [("a", 31, "late")],
        {**BARE, "quick_ppm": 500_000, "quick_slice_ms": 15 * MINUTE_MS},
        until=90,
    ),
    "whoever has not saved lately is not displaced before his next save": Row(
        1,
        [
            of("vision", "a", 1, "1x8", 90, 30, save_every_ms=25 * MINUTE_MS),
            of("speech", "late", 10, "1x8", 20),
            # Passes are made when something happens.
            of(None, "tick", 40, "1x8", 1),
            of(None, "tock", 51, "1x8", 1),
        ],
        {"a": [1, 73], "late": [53], "tick": [], "tock": []},
        [("a", 51, "late")],
        {**BARE, "waste_ppm": 30_000},
    ),
    "an idle attempt past its slice protects nobody, though its leaf is owed time": Row(
        4,
        [
            of("vision", "parked", 1, "1x8", 300, 10, busy_ppm=0),
            *(of("speech", f"s{number}", 1, "1x8", 300) for number in range(3)),
            of("speech", "waits", 5, "1x8", 20),
            of(None, "tick", 40, "4x8", 1),
        ],
        {"parked": [1, 62], "s0": [1], "s1": [1], "s2": [1], "waits": [42], "tick": []},
        [("parked", 40, "waits")],
        {**BARE, "idle_after_ms": 35 * MINUTE_MS},
    ),
    "gathered nodes: each leaves after his last save in time, and whoever is left at the promised instant": Row(
        2,
        [
            of("speech", "saves", 1, "1x8", 300, 30, save_every_ms=7 * MINUTE_MS),
            of("speech", "other", 1, "1x8", 300, 60),
            of("vision", "gang", 5, "2x8", 30, 30),
        ],
        {"saves": [1, 93], "other": [1, 93], "gang": [63]},
        [("saves", 57, "gang"), ("other", 61, "gang")],
        {**BARE, "slice_cap_ms": HOUR_MS, "reservations_max": 1, "gang_ppm": 1_000_000},
    ),
}  # fmt: skip


def run(settings: Mapping[str, Any], where: Cluster, jobs: list[Job], **other: Any) -> History:
    return played(Allmende(Settings(**settings), where), where, jobs, **other)


def check(row: Row) -> None:
    history = run(row.settings, cluster(*nodes(row.number)), row.jobs, until=row.until)
    assert starts(history) == {name: [pytest.approx(minute) for minute in found] for name, found in row.expected.items()}
    told = sorted((each.ordered_at_ms, each.job, each.claimant) for each in history.runs if each.ordered_at_ms is not None)
    assert told == [(at(minute), name, claimant) for name, minute, claimant in row.evicted]
    keeps_slices(history)


@pytest.mark.parametrize("sentence", ROWS)
def test_the_services_rules_decide(sentence: str) -> None:
    check(ROWS[sentence])


REFUSED: dict[str, tuple[Job, str]] = {
    "a budget that does not exist": (of("nobodys", "j", 1, "1x8", 9), "unknown_budget"),
    "a gang that never fits": (of("vision", "j", 1, "3x8", 9), "never_fits"),
    "a slice above the cap": (of("vision", "j", 1, "1x8", 60, 31), "slice_above_cap"),
    "a user who may not charge the budget": (of("vision", "j", 1, "1x8", 9, user="eve"), "not_a_member"),
    "a slice that nobody is charged for": (job("j", 1, "1x8", 9, slice_ms=MINUTE_MS), "no_covering_budget"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refused_at_once(sentence: str) -> None:
    asked, code = REFUSED[sentence]
    life = run(BARE, cluster(*nodes(2)), [asked]).lives["j"]
    assert (life.refused, life.end, life.ended_at_ms, life.attempts) == (code, "refused", at(1), 0)


def test_one_that_cannot_resume_is_over_with_its_eviction() -> None:
    asked = [of("vision", "once", 1, "1x8", 90, 30, resumable=False), of("speech", "late", 10, "1x8", 80, 10)]
    history = run(BARE, cluster(*nodes(1)), asked, until=200)
    once = history.lives["once"]
    assert (once.end, once.ended_at_ms, once.attempts, once.evictions) == ("preempted", at(33), 1, 1)
    assert history.runs[0].lost_gpu_ms == 8 * 32 * MINUTE_MS


def test_one_past_its_maximum_runtime_has_its_notice_and_is_stopped() -> None:
    asked = [of("vision", "bounded", 1, "1x8", 90, 30, max_runtime_ms=40 * MINUTE_MS)]
    history = run(BARE, cluster(*nodes(1)), asked, until=200)
    bounded = history.lives["bounded"]
    assert (bounded.end, bounded.ended_at_ms, history.runs[0].end) == ("max_runtime", at(43), "stopped")


def test_a_share_cut_below_use_ends_no_slice() -> None:
    cut = tree({"vision": 1, "speech": 99}, at_minute=10)
    asked = [of("vision", "a", 1, "1x8", 90), of("speech", "late", 5, "1x8", 9)]
    where = cluster(*nodes(1))
    history = played(Allmende(Settings(**BARE), where), where, asked, tree({"vision": 50, "speech": 50}), cut, until=100)
    assert starts(history)["late"] == [33]
    keeps_slices(history)


def test_the_standings_are_what_the_record_of_runs_comes_to() -> None:
    asked = [
        of("vision", "a", 7, "1x8", 100, 30),
        of("vision", "b", 9, "1x4", 35, 30),
        of("speech", "c", 110, "2x4", 200, 30),
        of(None, "free", 1, "1x2", 500),
    ]
    where = cluster(*nodes(2))
    history = run(BARE, where, asked, until=301)
    assert [minutes(sample.at_ms) for sample in history.standings] == [60, 120, 180, 240, 300]
    for sample in history.standings:
        used: dict[str, int] = {"vision": 0, "speech": 0}
        for each in history.runs:
            if each.leaf is not None and each.started_at_ms is not None and each.granted_at_ms < sample.at_ms:
                ended = each.ended_at_ms <= sample.at_ms
                worked_ms = min(each.ended_at_ms, sample.at_ms) - each.started_at_ms
                # What is left of a granted slice counts as well, as long as the attempt lives.
                used[each.leaf] += each.gpus * (worked_ms if ended else max(worked_ms, each.slice_ms))
        owed = where.gpus * max(sample.at_ms - at(0), SHORT) // 2
        assert sample.standings == {
            "org": (sum(used.values()), 2 * owed),
            "speech": (used["speech"], owed),
            "vision": (used["vision"], owed),
        }


# ---------------------------------------------------------------------------------------------------------------------- what holds


def keeps_slices(history: History) -> None:
    """Nobody who is charged to a budget was told to leave inside his slice, and each slice is as long as was granted."""
    for each in history.runs:
        if each.leaf is not None and each.started_at_ms is not None:
            assert each.protected_until_ms == each.started_at_ms + each.slice_ms
            if each.ordered_at_ms is not None:
                assert each.ordered_at_ms >= each.protected_until_ms, each


def lost_right(each: Run) -> bool:
    return each.lost_gpu_ms == 0 or each.end in ("evicted", "node_lost")


POLICIES = st.fixed_dictionaries(
    {
        "slice_cap_ms": st.sampled_from([5 * MINUTE_MS, HOUR_MS]),
        "waste_ppm": st.sampled_from([0, 30_000, PPM_WHOLE]),
        "loss_first": st.booleans(),
        "margin_ppm": st.sampled_from([0, 100_000]),
        "patience": st.sampled_from([0, 1, 2]),
        "reservations_max": st.sampled_from([0, 1, 4]),
        "gang_ppm": st.sampled_from([250_000, 500_000]),
        "quick_ppm": st.sampled_from([0, 250_000, 500_000]),
        "idle_after_ms": st.sampled_from([0, MINUTE_MS]),
        "grace_ms": st.sampled_from([SECOND_MS, 2 * MINUTE_MS]),
    }
)


@given(labs(), many_jobs(), POLICIES, st.integers(0, 9))
@drawn(max_examples=35, deadline=None)
def test_under_every_policy_no_slice_is_broken_no_node_is_over_committed_and_no_work_is_lost_twice(
    where: Cluster, asked: list[Job], settings: Mapping[str, Any], seed: int
) -> None:
    asked = [msgspec.structs.replace(each, busy_ppm=0 if each.tag == "parked" else PPM_WHOLE) for each in asked]
    history = run(settings, where, asked, seed=seed, until=5_000)
    held(history)
    keeps_slices(history)
    cap_ms = settings["slice_cap_ms"]
    worked: dict[str, int] = {}
    for each in history.runs:
        mine = history.lives[each.job].job
        assert lost_right(each)
        if each.leaf is not None:
            assert min(mine.slice_ms, each.slice_ms) == mine.slice_ms or settings["idle_after_ms"], "never shorter than asked for"
            assert each.slice_ms <= cap_ms
        if each.started_at_ms is not None:
            worked[each.job] = worked.get(each.job, 0) + (each.ended_at_ms - each.started_at_ms) * each.gpus - each.lost_gpu_ms
    for name, life in history.lives.items():
        mine = life.job
        if life.end == "finished":
            assert worked[name] == mine.runtime_ms * mine.gpus
        if life.end == "preempted":
            assert not mine.resumable
        assert life.end is not None or mine.gpu_model is not None or where.failures is not None or not fits(where, mine), name


def fits(where: Cluster, mine: Job) -> bool:
    return sum(node.gpus // mine.gpus_per_replica for node in where.nodes) >= mine.replicas


def digest() -> str:
    """A busy little lab of all kinds, as one number."""
    specs = [NodeSpec(f"n{number}", 8) for number in range(4)]
    asked = [
        of(
            ("vision", "speech", None)[number % 3],
            f"j{number:02d}",
            1 + number * 7 % 40,
            ("1x8", "2x4", "2x8", "1x2")[number % 4],
            5 + number * 11 % 50,
            (5, 10, 15)[number % 3 - 1],
            user=("ada", "bob")[number % 2],
        )
        for number in range(40)
    ]
    history = run({"gang_ppm": 500_000, "slice_cap_ms": SHORT}, cluster(*specs), asked, until=900)
    assert len({each.end for each in history.runs}) > 1
    return hashlib.sha256(repr(msgspec.to_builtins(history)).encode()).hexdigest()


def test_the_same_lab_and_seed_give_the_same_history_on_any_hash_seed() -> None:
    code = "from tests.simulator.policies.test_allmende import digest; print(digest())"
    told = {digest()}
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
        told.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True).stdout.strip())
    assert len(told) == 1
