"""Waits by class, percentiles by nearest rank, and the large jobs that never started."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.proto.impact import nearest_rank
from allmende.proto.units import HOUR_MS, MINUTE_MS
from allmende.simulator import figures
from allmende.simulator.model import History, Promise, StandingSample
from tests.simulator.figures.builders import at, history, job, life

HOUR_S = 3_600.0


def check(lives: list[Any], name: str, expected: tuple[float | None, float | None, float | None, int, int], **told: Any) -> None:
    """p50, p90, longest, number of jobs, and how many never started, in a window of four hours."""
    found = figures.measure(history(lives, **told)).waits_s[name]
    assert (found.p50, found.p90, found.max, found.jobs, found.never_started) == expected


def many(waits_h: list[float], **told: Any) -> list[Any]:
    return [life(job(f"j{number}", **told), "a", wait) for number, wait in enumerate(waits_h)]


WAITS: dict[str, tuple[list[Any], str, tuple[float | None, float | None, float | None, int, int]]] = {
    "no jobs, no percentiles": ([], "all", (None, None, None, 0, 0)),
    "one job is every percentile": (many([1]), "all", (HOUR_S, HOUR_S, HOUR_S, 1, 0)),
    "of two, half within the first": (many([1, 2]), "all", (HOUR_S, 2 * HOUR_S, 2 * HOUR_S, 2, 0)),
    "of ten, the ninth is p90": (many([each / 4 for each in range(10)]), "all", (HOUR_S, 2 * HOUR_S, 2.25 * HOUR_S, 10, 0)),
    "of eleven, the tenth is p90": (
        many([each / 4 for each in range(11)]),
        "all",
        (1.25 * HOUR_S, 2.25 * HOUR_S, 2.5 * HOUR_S, 11, 0),
    ),
    "a job that still waits counts with its wait so far": ([life(job("j", submitted=1))], "all", (3 * HOUR_S,) * 3 + (1, 1)),
    "a withdrawn one counts until then": (
        [life(job("j"), "a", None, 2, end="cancelled")],
        "all",
        (2 * HOUR_S,) * 3 + (1, 0),
    ),
    "a refused one does not count": ([life(job("j"), "a", None, 2, end="refused")], "all", (None, None, None, 0, 0)),
    "unallocated work does not count": ([life(job("j", None), None, 1)], "all", (None, None, None, 0, 0)),
    "nor does a job of slice 0 that names a budget": ([life(job("j", slice_ms=0))], "all", (None, None, None, 0, 0)),
    "a job of the warm-up does not count": ([life(job("j", submitted=-1), "a", 1)], "all", (None, None, None, 0, 0)),
    "a start after the window is no start": ([life(job("j"), "a", 5)], "all", (4 * HOUR_S,) * 3 + (1, 1)),
    "8 GPUs and 15 min are debug": (many([1], gpus=8, slice_ms=15 * MINUTE_MS), "debug", (HOUR_S,) * 3 + (1, 0)),
    "9 GPUs are not": (many([1], gpus=9, slice_ms=15 * MINUTE_MS), "debug", (None, None, None, 0, 0)),
    "a millisecond more of slice is not": (many([1], slice_ms=15 * MINUTE_MS + 1), "debug", (None, None, None, 0, 0)),
    "8 GPUs are of the smallest class": (many([1], gpus=8), "gpus_1_8", (HOUR_S,) * 3 + (1, 0)),
    "9 of the next": (many([1], gpus=9), "gpus_9_63", (HOUR_S,) * 3 + (1, 0)),
    "63 still": (many([1], gpus=63), "gpus_9_63", (HOUR_S,) * 3 + (1, 0)),
    "64 of the next": (many([1], gpus=64), "gpus_64_255", (HOUR_S,) * 3 + (1, 0)),
    "255 still": (many([1], gpus=255), "gpus_64_255", (HOUR_S,) * 3 + (1, 0)),
    "256 of the largest": (many([1], gpus=256), "gpus_256", (HOUR_S,) * 3 + (1, 0)),
    "64 and more are the demo's large": (many([1, 2], gpus=256), "large", (HOUR_S, 2 * HOUR_S, 2 * HOUR_S, 2, 0)),
}


@pytest.mark.parametrize("sentence", WAITS)
def test_waits(sentence: str) -> None:
    check(*WAITS[sentence])


def test_a_team_has_waits_of_its_own() -> None:
    lives = [life(job("j"), "a", 1), life(job("k", "b"), "b", 2)]
    found = {team.budget: team.waits_s.max for team in figures.measure(history(lives, shares={"a": 50, "b": 50})).teams}
    assert found == {"a": HOUR_S, "b": 2 * HOUR_S}


def large(**told: Any) -> History:
    return history([life(job("j", gpus=256, submitted=-8))], **told)


def standing(used: int, entitled: int) -> dict[str, Any]:
    return {"standings": [StandingSample(at(3), {"a": (used * HOUR_MS, entitled * HOUR_MS)})]}


REASONS: dict[str, tuple[History, str, float | None]] = {
    "a promise that is over is overdue, whatever the budget": (
        large(promises=[Promise(at(0), "j", at(3))], **standing(9, 4)), "promise overdue", 2.25,
    ),
    "one that is not is a promise": (large(promises=[Promise(at(0), "j", at(4))]), "promised", None),
    "the last word counts": (large(promises=[Promise(at(0), "j", at(3)), Promise(at(1), "j", at(5), True)]), "promised", None),
    "without a promise, a leaf at 1 is over budget": (large(**standing(4, 4)), "over budget", 1.0),
    "a leaf below it only waits": (large(**standing(3, 4)), "waiting", 0.75),
    "so does one of which nobody knows": (large(), "waiting", None),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REASONS)
def test_large_jobs_that_never_started_say_why(sentence: str) -> None:
    told, why, ratio = REASONS[sentence]
    (found,) = figures.measure(told).large_never_started
    assert (found.job, found.budget, found.gpus, found.waited_s, found.why, found.ratio) == ("j", "a", 256, 12 * HOUR_S, why, ratio)


def test_large_jobs_that_started_or_are_smaller_are_not_listed() -> None:
    lives = [life(job("j", gpus=256), "a", 1), life(job("k", gpus=255)), life(job("l", gpus=256), "a", None, 1, end="cancelled")]
    assert figures.measure(history(lives)).large_never_started == ()


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.integers(1, 100))
def test_nearest_rank_is_the_smallest_value_that_covers_the_percentage(values: list[int], percent: int) -> None:
    values.sort()
    found = nearest_rank(values, percent)
    covered = [value for value in values if sum(each <= value for each in values) * 100 >= percent * len(values)]
    assert found == min(covered)
