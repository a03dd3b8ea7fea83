"""The working week, and the seasons of teams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.units import DAY_MS, HOUR_MS
from allmende.simulator.model import ORIGIN_MS, Window
from allmende.simulator.scenarios.draws import WORKING_DAY, WORKING_DAYS_A_WEEK, after, picked, spread_ms, stream
from allmende.simulator.scenarios.people import Season, drawn_season

A_WEEK = round(WORKING_DAYS_A_WEEK * WORKING_DAY)


@pytest.mark.parametrize(
    ("sentence", "at_h", "working", "expected_h"),
    [
        ("a working day from Monday to Tuesday", 0, WORKING_DAY, 24),
        ("from noon to noon", 12, WORKING_DAY, 36),
        ("five working days to Saturday", 0, 5 * WORKING_DAY, 120),
        ("the weekend is 52 % of a working day, twice", 120, 104 * WORKING_DAY // 100, 168),
        ("a week to the next", 30, A_WEEK, 198),
        ("ten weeks", 30, 10 * A_WEEK, 30 + 1_680),
    ],
)
def test_working_time(sentence: str, at_h: int, working: int, expected_h: int) -> None:
    assert after(ORIGIN_MS + at_h * HOUR_MS, working) == ORIGIN_MS + expected_h * HOUR_MS, sentence


@given(st.integers(0, 60 * DAY_MS), st.integers(0, 3 * A_WEEK), st.integers(0, A_WEEK))
def test_more_working_time_ends_no_earlier(at_ms: int, working: int, more: int) -> None:
    assert ORIGIN_MS + at_ms < after(ORIGIN_MS + at_ms, working) <= after(ORIGIN_MS + at_ms, working + more)


def test_a_pick_is_as_likely_as_its_weight() -> None:
    chance = stream(1, "picks")
    drawn = [picked(chance, (("a", 1), ("b", 0), ("c", 3))) for _turn in range(4_000)]
    assert "b" not in drawn
    assert 900 < drawn.count("a") < 1_100


def test_a_length_has_its_median_its_tail_and_its_bounds() -> None:
    chance = stream(1, "lengths")
    drawn = sorted(spread_ms(chance, 60_000, 600_000, least_ms=5_000, most_ms=900_000) for _turn in range(4_000))
    assert 54_000 < drawn[2_000] < 66_000
    assert 500_000 < drawn[3_800] < 720_000
    assert (drawn[0], drawn[-1]) == (5_000, 900_000)


@pytest.mark.parametrize(
    ("sentence", "at_ms", "active"),
    [
        ("before", 9, True),
        ("at its beginning", 10, False),
        ("at its end", 20, True),
        ("in the second", 35, False),
        ("after", 40, True),
    ],
)
def test_a_team_is_quiet_in_half_open_spans(sentence: str, at_ms: int, active: bool) -> None:
    assert Season(((10, 20), (30, 40))).active(at_ms) is active, sentence


def test_teams_are_quiet_for_days_a_quarter_of_the_time() -> None:
    window = Window(ORIGIN_MS, ORIGIN_MS, ORIGIN_MS + 365 * DAY_MS)
    spans = [span for which in range(40) for span in drawn_season(7, f"team-{which}", window).quiet]
    assert all(2 * DAY_MS <= end_ms - start_ms < 7 * DAY_MS for start_ms, end_ms in spans)
    assert 0.2 < sum(end_ms - start_ms for start_ms, end_ms in spans) / (40 * 365 * DAY_MS) < 0.28
