"""Every scenario: same bytes for the same seed, a lawful tree, jobs that can run; and what each is about."""

import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest

from allmende.proto.tree_rules import validate
from allmende.proto.units import DAY_MS, PPM_WHOLE
from allmende.simulator.model import ORIGIN_MS, TreeChange
from allmende.simulator.scenarios import make, names
from tests.simulator.scenarios.builders import digests, played

NAMES = [name for name, _sentence in names()]
SLICE_CAP_MS = DAY_MS // 3


def shares(change: TreeChange) -> dict[str, Fraction]:
    """Each leaf's part of the whole, exactly."""
    budgets = {each.budget: each for each in change.budgets}
    parents = {each.parent for each in change.budgets}
    found = {}
    for leaf in budgets:
        if leaf not in parents:
            part, at = Fraction(1), leaf
            while (up := budgets[at].parent) is not None:
                part, at = part * Fraction(budgets[at].share_ppm or 0, PPM_WHOLE), up
            found[leaf] = part
    return found


def test_the_names_of_the_order_are_all_there() -> None:
    assert NAMES == [
        "ai2-lab",
        "ai2-lab-joint",
        "squatters",
        "gamers",
        "gamers-honest",
        "big-jobs",
        "budget-change",
        "new-project",
        "burst-after-quiet",
    ]
    assert all(sentence.endswith(".") for _name, sentence in names())


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_holds_together(name: str) -> None:
    run = played(name, days=2)
    scenario, window = run.scenario, run.scenario.window
    assert (window.begin_ms, window.to_ms - window.from_ms) == (ORIGIN_MS, 2 * DAY_MS)
    assert [change.at_ms for change in scenario.trees] == sorted(change.at_ms for change in scenario.trees)
    assert scenario.trees[0].at_ms == ORIGIN_MS
    for change in scenario.trees:
        assert validate(change.budgets) == ()
        assert sum(shares(change).values()) == 1
    assert Counter(job.job for job in run.jobs).most_common(1)[0][1] == 1
    # The first backlog is there at once.
    assert sum(job.gpus for job in run.jobs if job.submitted_at_ms == ORIGIN_MS) >= 2 * scenario.cluster.gpus
    for job in run.jobs:
        at = [change for change in scenario.trees if change.at_ms <= job.submitted_at_ms][-1]
        assert job.budget is None or job.user in next(each.members for each in at.budgets if each.budget == job.budget), job
        assert (job.budget is None) == (job.slice_ms == 0), job
        assert job.slice_ms <= SLICE_CAP_MS, job
        assert job.gpus <= scenario.cluster.gpus, job
        assert job.gpus_per_replica == 8 or job.replicas == 1, job
        assert job.priority in (0, 1, 2), job
        if job.resumable and job.slice_ms:
            assert (job.saves_every_ms or 0) <= job.slice_ms, "saves at least once in each slice"
        if not job.resumable and job.tag != "renewal":
            assert job.runtime_ms <= job.slice_ms, "what cannot resume declares a slice as long as it runs"


def test_same_seed_same_bytes_on_any_hash_seed() -> None:
    code = "from tests.simulator.scenarios.builders import digests; print(digests())"
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": each}, capture_output=True, text=True, check=True
        ).stdout
        for each in ("1", "2")
    ]
    assert said[0] == said[1]
    assert said[0].count("'") == 4 * len(NAMES)


def test_another_seed_is_another_lab() -> None:
    one, other = digests("squatters", "gamers"), digests("squatters", "gamers", seed=2)
    assert not set(one.values()) & set(other.values())


@pytest.mark.parametrize("name", ["ai2-lab", "gamers"])
def test_the_kth_job_of_a_stream_is_the_same_whoever_is_served(name: str) -> None:
    first = {job.job: job for job in played(name, serves="first").jobs}
    last = {job.job: job for job in played(name, serves="last").jobs}
    both = [each for each in first if each in last]
    assert len(both) > len(first) // 2
    for each in both:
        when = last[each].submitted_at_ms
        assert {**_fields(first[each]), "submitted_at_ms": when} == _fields(last[each])


def _fields(job: object) -> dict[str, object]:
    return {field: getattr(job, field) for field in job.__struct_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("sentence", "days", "load_ppm"), [("no day", 0, None), ("no load", 1, 0)])
def test_what_is_no_scenario_is_refused(sentence: str, days: int, load_ppm: int | None) -> None:
    with pytest.raises(ValueError, match=r"must|needs"):
        make("ai2-lab", seed=1, days=days, load_ppm=load_ppm)


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        make("ai3-lab", seed=1, days=1, load_ppm=None)


def test_budget_change_moves_35_percent_in_the_middle() -> None:
    scenario = make("budget-change", seed=1, days=10, load_ppm=None)
    before, after = ({each.budget: each.share_ppm for each in change.budgets} for change in scenario.trees)
    assert {each: (before[each], after[each]) for each in before if before[each] != after[each]} == {
        "language": (400_000, 50_000),
        "science": (160_000, 510_000),
    }
    assert scenario.trees[1].at_ms == scenario.window.from_ms + 5 * DAY_MS


def test_a_new_project_has_a_share_and_jobs_from_the_middle_on_only() -> None:
    run = played("new-project", days=4)
    at_ms = run.scenario.window.from_ms + 2 * DAY_MS
    before, after = (shares(change) for change in run.scenario.trees)
    assert run.scenario.trees[1].at_ms == at_ms
    assert "world-models" not in before
    assert after["world-models"] == Fraction(8, 100)
    for leaf in before:
        expected = before[leaf] * (Fraction(3, 4) if leaf in _MULTIMODAL else 1)
        assert abs(after[leaf] - expected) < Fraction(1, PPM_WHOLE), leaf
    assert min(job.submitted_at_ms for job in run.jobs if job.user.startswith("world-models")) >= at_ms


_MULTIMODAL = ("vision-language", "video", "speech", "documents")


def test_a_burst_comes_after_a_quiet_week() -> None:
    run = played("burst-after-quiet", days=4)
    at_ms = run.scenario.window.from_ms + DAY_MS
    ours = [job for job in run.jobs if job.user.startswith("posttraining")]
    assert {job.budget for job in ours} == {"posttraining", None}
    assert any(job.submitted_at_ms < at_ms - 7 * DAY_MS for job in ours)
    assert not any(at_ms - 7 * DAY_MS <= job.submitted_at_ms < at_ms for job in ours)
    burst = [job for job in ours if "-burst-" in job.job]
    assert {job.submitted_at_ms for job in burst} == {at_ms}
    # 11 % of 1,024 GPUs, three times; the last job may go beyond.
    assert 336 <= sum(job.gpus for job in burst) < 336 + 64


@pytest.mark.parametrize(
    ("name", "trick", "twin", "tag"),
    [
        ("squatters", "parked-a", "honest-a", "parked"),
        ("squatters", "parked-b", "honest-b", "parked"),
        ("gamers", "gamer-tiny", "honest-tiny", "tiny"),
        ("gamers", "gamer-slices", "honest-slices", "huge-slice"),
        ("gamers", "gamer-renewals", "honest-renewals", "renewal"),
        ("gamers", "gamer-splitting", "honest-splitting", "split"),
    ],
)
def test_twins_differ_only_in_what_their_jobs_look_like(name: str, trick: str, twin: str, tag: str) -> None:
    run = played(name)
    (tree,) = run.scenario.trees
    assert shares(tree)[trick] == shares(tree)[twin]
    for leaf, said in ((trick, tag), (twin, "honest")):
        assert {job.tag for job in run.jobs if job.budget == leaf} == {said}
    first = [sum(job.gpus for job in run.jobs if job.budget == leaf and job.submitted_at_ms == ORIGIN_MS) for leaf in (trick, twin)]
    # As many GPUs within one job's size.
    assert abs(first[0] - first[1]) <= 64


def test_where_nobody_games_twins_are_equal_but_for_chance() -> None:
    run, gamed = played("gamers-honest"), played("gamers")
    assert shares(run.scenario.trees[0]) == shares(gamed.scenario.trees[0])
    assert {job.tag for job in run.jobs} == {"honest"}
    for leaf in ("gamer-splitting", "honest-splitting"):
        assert {job.gpus for job in run.jobs if job.budget == leaf} == {32}


@pytest.mark.parametrize(
    ("sentence", "tag", "law"),
    [
        (
            "a parked job computes nothing, for days, with the longest slice",
            "parked",
            lambda job: not job.busy_ppm and job.priority == 2,
        ),
        ("a tiny job has one GPU", "tiny", lambda job: job.gpus == 1 and job.slice_ms == 900_000),
        ("huge slices are the cap", "huge-slice", lambda job: job.slice_ms == SLICE_CAP_MS <= job.runtime_ms),
        (
            "renewals are sessions that outlive their slice",
            "renewal",
            lambda job: job.kind == "session" and job.runtime_ms >= 2 * DAY_MS,
        ),
        ("pieces of a gang", "split", lambda job: job.gpus == 4),
        ("honest work keeps its devices busy", "honest", lambda job: job.busy_ppm == PPM_WHOLE),
    ],
)
def test_tricks(sentence: str, tag: str, law: object) -> None:
    jobs = [job for name in ("squatters", "gamers") for job in played(name, days=1).jobs if job.tag == tag]
    assert jobs
    assert all(law(job) for job in jobs), sentence  # type: ignore[operator]


def test_big_jobs_are_gangs_beside_small_ones() -> None:
    jobs = played("big-jobs", days=7).jobs
    assert {job.gpus for job in jobs if (job.budget or "").startswith("giant")} == {64, 128, 256, 512}
    assert max(job.gpus for job in jobs if (job.budget or "").startswith("crowd")) == 8
