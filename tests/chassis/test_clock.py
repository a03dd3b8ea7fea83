"""Clocks, ids and back-off: integers, never backwards, the same for every process of a run."""

import asyncio
import random
import time

import pytest

from allmende.chassis.clock import RealClock, ScaledClock, parse_clock, real_delay_s, real_seconds
from allmende.chassis.db import backoff_s
from allmende.chassis.entropy import RandomIds
from allmende.chassis.errors import Misconfigured
from allmende.chassis.fakes import CountingIds, ManualClock
from allmende.proto.ids import is_id

REAL_MS = 1_764_633_600_000
ORIGIN_MS = 1_507_161_600_000


def at(monkeypatch: pytest.MonkeyPatch, real_ms: int, real_ns: int = 0) -> None:
    """Set the system's clock, as an operator or NTP would."""
    monkeypatch.setattr(time, "time_ns", lambda: real_ms * 1_000_000 + real_ns)


@pytest.mark.parametrize(
    ("sentence", "passed_real_ns", "shown_ms"),
    [
        ("it shows its origin at its real origin", 0, ORIGIN_MS),
        ("a real second is 360 seconds", 1_000_000_000, ORIGIN_MS + 360_000),
        ("a real half millisecond counts too", 500_000, ORIGIN_MS + 180),
        ("fractions are cut, never rounded up", 2_777, ORIGIN_MS),
        ("a real year is exact to the millisecond", 31_536_000_001_000_000, ORIGIN_MS + 31_536_000_001 * 360),
        ("before its real origin it runs too", -1_000_000_000, ORIGIN_MS - 360_000),
    ],
)
def test_a_scaled_clock(monkeypatch: pytest.MonkeyPatch, sentence: str, passed_real_ns: int, shown_ms: int) -> None:
    at(monkeypatch, REAL_MS, passed_real_ns)
    assert parse_clock(f"{REAL_MS}:{ORIGIN_MS}:360").now_ms() == shown_ms, sentence


def test_a_system_clock_that_is_set_back_stops_ours_until_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScaledClock(REAL_MS, ORIGIN_MS, 10)
    at(monkeypatch, REAL_MS + 100)
    assert clock.now_ms() == ORIGIN_MS + 1_000
    at(monkeypatch, REAL_MS - 5_000)
    assert clock.now_ms() == ORIGIN_MS + 1_000
    at(monkeypatch, REAL_MS + 101)
    assert clock.now_ms() == ORIGIN_MS + 1_010


def test_the_real_delay_is_the_clocks_divided_by_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, REAL_MS)
    clock = ScaledClock(REAL_MS, ORIGIN_MS, 360)
    assert real_delay_s(clock, ORIGIN_MS + 36_000) == pytest.approx(0.1)
    assert real_delay_s(clock, ORIGIN_MS - 1) == 0


async def test_sleeping_ends_when_the_instant_is_reached_and_at_once_when_it_has_passed() -> None:
    clock = RealClock()
    wanted_ms = clock.now_ms() + 20
    await clock.sleep_until(wanted_ms)
    assert clock.now_ms() >= wanted_ms
    async with asyncio.timeout(0.5):
        await clock.sleep_until(0)


@pytest.mark.parametrize(
    "text", ["", "Real", "1:2", "1:2:3:4", "1:2:0", "1:2:-3", "1:2:1.5", " 1:2:3", "1:2:100001", f"1:{10**14}:1", "\u0661:2:3"]
)
def test_a_clock_that_cannot_be_read_is_told_with_an_example(text: str) -> None:
    with pytest.raises(Misconfigured, match="clock"):
        parse_clock(text)


def test_real_seconds_never_go_back() -> None:
    first = real_seconds()
    assert real_seconds() >= first


async def test_the_manual_clock_wakes_whoever_sleeps_until_then_and_nobody_else() -> None:
    clock = ManualClock(1_000)
    async with asyncio.TaskGroup() as tasks:
        near, far = tasks.create_task(clock.sleep_until(1_010)), tasks.create_task(clock.sleep_until(1_020))
        await asyncio.sleep(0)
        clock.advance(10)
        await near
        assert not far.done()
        clock.set(1_500)
        await far
    with pytest.raises(ValueError, match="backwards"):
        clock.set(1_499)


def test_random_ids_are_ids_and_differ_and_counted_ones_repeat() -> None:
    ids = RandomIds()
    made = {ids.new(REAL_MS) for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(is_id(it) for it in made)
    assert [CountingIds().new(REAL_MS) for _ in range(2)] == [CountingIds().new(REAL_MS)] * 2


def test_back_off_doubles_is_bounded_and_differs_between_rivals() -> None:
    chance = random.Random(1)
    delays = [backoff_s(attempt, chance) for attempt in range(1, 12)]
    assert 0.025 <= delays[0] <= 0.05
    assert 1.0 <= delays[-1] <= 2.0
    assert backoff_s(3, random.Random(1)) != backoff_s(3, random.Random(2))
