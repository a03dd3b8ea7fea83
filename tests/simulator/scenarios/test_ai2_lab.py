"""`ai2-lab`: the numbers of the order, the bands of docs/scenarios.md, and the demand that is kept."""

from collections import Counter
from fractions import Fraction
from functools import cache

import pytest

from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS
from allmende.simulator.model import Job
from allmende.simulator.scenarios.people import drawn_season
from tests.simulator.scenarios.builders import Played, gpu_hours, played
from tests.simulator.scenarios.test_scenarios import shares


@cache
def the_lab(name: str = "ai2-lab", load_ppm: int | None = None) -> Played:
    """A week of warm-up and two of measuring."""
    return played(name, days=14, load_ppm=load_ppm)


def test_the_lab_is_as_ordered() -> None:
    scenario = the_lab().scenario
    assert (len(scenario.cluster.nodes), scenario.cluster.gpus) == (128, 1_024)
    (tree,) = scenario.trees
    parts = shares(tree)
    assert (len(parts), sum(parts.values())) == (15, 1)
    assert [min(parts.values()), max(parts.values())] == [Fraction(2, 100), Fraction(18, 100)]
    assert sum(each.parent == "lab" for each in tree.budgets) == 4
    assert len({member for each in tree.budgets for member in each.members}) == 150
    leaving = scenario.cluster.leaving
    assert (leaving.median_ms, leaving.p95_ms, leaving.ignore_ppm) == (3_000, 20_000, 20_000)
    assert scenario.cluster.failures is not None


@pytest.mark.parametrize(
    ("sentence", "tag", "low", "high"),
    [
        ("training", "training", 3_000, 5_500),
        ("slice 0", "free", 800, 3_000),
        ("debug jobs", "debug", 1_000, 12_000),
        ("gangs", "gang", 15, 80),
        ("sessions", "session", 200, 500),
    ],
)
def test_so_many_of_each_kind_in_three_weeks(sentence: str, tag: str, low: int, high: int) -> None:
    assert low <= Counter(job.tag for job in the_lab().jobs)[tag] <= high, sentence


@pytest.mark.parametrize(
    ("gpus", "low", "high"), [(1, 36, 46), (2, 7, 13), (4, 7, 13), (8, 20, 28), (16, 5, 12), (32, 4, 8), (64, 1, 4)]
)
def test_sizes_of_training_in_percent_of_jobs(gpus: int, low: int, high: int) -> None:
    sizes = Counter(job.gpus for job in the_lab().jobs if job.tag == "training")
    assert low <= 100 * sizes[gpus] / sizes.total() <= high


@pytest.mark.parametrize(
    ("sentence", "tag", "gpus", "median", "p95"),
    [
        ("one GPU", "training", (1, 2), (0.7, 1.5), (6, 21)),
        ("a node", "training", (8,), (3, 6), (30, 66)),
        ("gangs", "gang", (128, 256, 512), (5, 16), (14, 72)),
        ("debug", "debug", (1, 2, 4, 8), (0.05, 0.09), (0.15, 0.4)),
        ("sessions", "session", (1, 2, 4, 8), (2.5, 3.5), (6.5, 8)),
    ],
)
def test_runtimes_in_hours(
    sentence: str, tag: str, gpus: tuple[int, ...], median: tuple[float, float], p95: tuple[float, float]
) -> None:
    lengths = sorted(job.runtime_ms / HOUR_MS for job in the_lab().jobs if job.tag == tag and job.gpus in gpus)
    assert median[0] <= lengths[len(lengths) // 2] <= median[1], sentence
    assert p95[0] <= lengths[len(lengths) * 95 // 100] <= p95[1], sentence


@pytest.mark.parametrize("name", ["ai2-lab", "ai2-lab-joint"])
def test_about_a_fifth_of_submitted_gpu_hours_has_slice_0(name: str) -> None:
    jobs = the_lab(name).jobs
    assert 0.15 <= gpu_hours([job for job in jobs if job.slice_ms == 0]) / gpu_hours(jobs) <= 0.26


def _is_small(job: Job) -> bool:
    return job.gpus <= 8 and job.slice_ms <= 15 * MINUTE_MS


def test_debug_jobs_are_small_and_short_and_only_they_are() -> None:
    jobs = [job for job in the_lab().jobs if job.slice_ms]
    assert all(_is_small(job) == (job.tag == "debug") for job in jobs)
    by_day = Counter((job.submitted_at_ms // DAY_MS + 3) % 7 for job in jobs if job.tag == "debug")
    assert sum(by_day[day] for day in range(5)) / 5 > 1.3 * sum(by_day[day] for day in (5, 6)) / 2, "weekends are quieter"


def test_a_job_is_a_plausible_part_of_its_teams_week() -> None:
    run = the_lab()
    parts = shares(run.scenario.trees[0])
    for job in run.jobs:
        if job.budget is not None:
            week = parts[job.budget] * run.scenario.cluster.gpus * 7 * DAY_MS
            assert job.gpus * job.slice_ms * 100 <= 15 * week, job
    assert {job.gpus for job in run.jobs if job.tag == "gang"} == {128, 256, 512}


@pytest.mark.parametrize(
    ("name", "load_ppm", "targets"),
    [
        ("ai2-lab", None, (2.0, 0.5)),
        ("ai2-lab-joint", None, (2.5,)),
        ("ai2-lab", 1_500_000, (1.2, 0.3)),
    ],
)
def test_demand_is_kept(name: str, load_ppm: int | None, targets: tuple[float, ...]) -> None:
    run = the_lab(name, load_ppm)
    for pool, target in enumerate(targets):
        parts = sorted(outstanding[pool] / run.scenario.cluster.gpus for _at_ms, outstanding in run.outstanding)
        few, half, many = (parts[len(parts) * percent // 100] for percent in (5, 50, 95))
        assert 0.9 * target <= few
        assert 0.97 * target <= half <= 1.03 * target
        assert many <= 1.1 * target


def test_the_demand_follows_shares_and_quiet_teams_leave_theirs_to_others() -> None:
    run = the_lab()
    window = run.scenario.window
    quiet = 0
    for leaf, part in shares(run.scenario.trees[0]).items():
        season = drawn_season(1, leaf, window)
        ours = [job for job in run.jobs if job.user.startswith(f"{leaf}-")]
        assert all(season.active(job.submitted_at_ms) or job.tag == "gang" for job in ours), leaf
        quiet += any(span[0] < window.to_ms and span[1] > window.from_ms for span in season.quiet)
        first = sum(job.gpus for job in ours if job.submitted_at_ms == window.begin_ms and job.budget == leaf)
        if season.active(window.begin_ms):
            assert 2 * float(part) * 1_024 - 8 <= first <= 2 * float(part) * 1_024 * 2.2 + 32, leaf
        else:
            assert first == 0
    assert 3 <= quiet <= 15
