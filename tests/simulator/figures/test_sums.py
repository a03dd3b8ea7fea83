"""Sums by hour against direct integrals, and long random histories against a naive reading of the contract."""

from collections import defaultdict
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.proto.units import DAY_MS, HOUR_MS, PPM_WHOLE
from allmende.simulator import figures
from allmende.simulator.figures.span import HourSums, Span
from tests.simulator.figures.builders import TEAMS, at, generated

EDGES = st.builds(lambda hour, off: hour * HOUR_MS + off, st.integers(-2, 7), st.integers(-1, 1))
ANYWHERE = st.one_of(EDGES, st.integers(-2 * HOUR_MS, 7 * HOUR_MS))


@settings(deadline=None)
@given(ANYWHERE, ANYWHERE, st.lists(st.tuples(st.integers(1, 9), ANYWHERE, ANYWHERE), max_size=8))
def test_hours_add_up_to_the_direct_integral(one: int, other: int, intervals: list[tuple[int, int, int]]) -> None:
    span = Span(min(one, other), max(one, other))
    sums = HourSums(span)
    added = sum(sums.add(gpus, from_ms, to_ms) for gpus, from_ms, to_ms in intervals)
    hours = sums.by_hour()
    assert added == sum(hours) == sum(gpus * span.overlap_ms(from_ms, to_ms) for gpus, from_ms, to_ms in intervals)
    for number, amount in enumerate(hours):
        hour = Span(span.from_ms + number * HOUR_MS, min(span.to_ms, span.from_ms + (number + 1) * HOUR_MS))
        assert amount == sum(gpus * hour.overlap_ms(from_ms, to_ms) for gpus, from_ms, to_ms in intervals)


@pytest.mark.parametrize("cut_hours", [None, 0, 20.75, 40.001])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_history_agrees_with_a_naive_reading(seed: int, cut_hours: float | None) -> None:
    told = generated(seed, days=2, cut_ms=None if cut_hours is None else at(cut_hours))
    found = figures.measure(told)
    hours = [Span(from_ms, min(from_ms + HOUR_MS, found.measured_to_ms)) for from_ms in range(at(0), found.measured_to_ms, HOUR_MS)]
    by_team = {team.budget: team for team in found.hourly.teams}
    for team, share in TEAMS:
        want = tuple(
            sum(
                life.job.gpus * hour.overlap_ms(life.submitted_at_ms, life.ended_at_ms or at(999))
                for life in told.lives.values()
                if (life.leaf if life.attempts else life.job.budget) == team
            )
            for hour in hours
        )
        may = tuple(_entitled(told.cluster.gpus, team, share, hour) for hour in hours)
        got = tuple(
            sum(run.gpus * hour.overlap_ms(run.started_at_ms or 0, run.ended_at_ms) for run in told.runs if run.leaf == team)
            for hour in hours
        )
        if team in by_team:
            assert (by_team[team].demand, by_team[team].delivered) == (want, got)
        if team in by_team and not any(change.healthy == 0 for change in told.nodes):
            assert by_team[team].entitled == may
            assert by_team[team].owed == tuple(map(min, may, want))


def _entitled(gpus: int, team: str, share: int, hour: Span) -> int:
    # `new-project` comes with the second tree, in the middle of an hour; the others keep their share.
    from_ms = max(hour.from_ms, at(20.5)) if team == "new-project" else hour.from_ms
    exact = Fraction(gpus * max(0, hour.to_ms - from_ms)) * Fraction(share * 10_000, PPM_WHOLE)
    return exact.numerator // exact.denominator


def test_every_hour_adds_up() -> None:
    found = figures.measure(generated(3))
    totals: dict[str, int] = defaultdict(int)
    for team in found.hourly.teams:
        totals["delivered"] += sum(team.delivered)
        assert all(past <= held for past, held in zip(team.past_slice, team.delivered, strict=True))
    hourly = found.hourly
    for number, available in enumerate(hourly.available):
        held = sum(team.delivered[number] for team in hourly.teams) + hourly.unallocated[number] + hourly.starting[number]
        assert held <= available
    assert found.delivered_gpu_hours == round(totals["delivered"] / HOUR_MS, 6)
    assert sum(hourly.evictions) == found.evictions
    assert len(hourly.available) == (hourly.to_ms - hourly.from_ms) // HOUR_MS == 3 * DAY_MS // HOUR_MS


def test_the_same_history_gives_the_same_figures() -> None:
    encoder = msgspec.json.Encoder()
    assert encoder.encode(figures.measure(generated(4))) == encoder.encode(figures.measure(generated(4)))
