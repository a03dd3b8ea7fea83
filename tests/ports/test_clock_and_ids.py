"""One suite for the clocks and one for the sources of ids: what the fakes answer, the real ones answer."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from allmende.chassis.clock import RealClock, ScaledClock
from allmende.chassis.entropy import RandomIds
from allmende.chassis.fakes import CountingIds, ManualClock
from allmende.chassis.ports import Clock, Ids
from allmende.proto.ids import is_id
from allmende.proto.units import DAY_MS

PATIENCE_S = 20.0


class Side(NamedTuple):
    """A clock, and what lets its time pass: real ones need nothing."""

    clock: Clock
    let_pass: Callable[[int], None]


def sides() -> dict[str, Side]:
    manual = ManualClock()
    return {
        "real": Side(RealClock(), lambda _ms: None),
        "scaled": Side(ScaledClock(RealClock().now_ms(), 5 * DAY_MS, 360), lambda _ms: None),
        "manual": Side(manual, manual.advance),
    }


@pytest.fixture(params=sorted(sides()))
def side(request: pytest.FixtureRequest) -> Side:
    return sides()[request.param]


def test_a_clock_shows_whole_milliseconds_and_never_goes_back(side: Side) -> None:
    seen = [side.clock.now_ms() for _ in range(100)]
    assert all(isinstance(each, int) for each in seen)
    assert seen == sorted(seen)
    assert side.clock.rate >= 1


async def test_an_instant_that_has_passed_is_not_waited_for(side: Side) -> None:
    await asyncio.wait_for(side.clock.sleep_until(side.clock.now_ms()), PATIENCE_S)
    await asyncio.wait_for(side.clock.sleep_until(0), PATIENCE_S)


async def test_who_sleeps_wakes_at_the_instant_and_not_before(side: Side) -> None:
    soon_ms = side.clock.now_ms() + 20
    later_ms = soon_ms + DAY_MS
    async with asyncio.TaskGroup() as group:
        sleeper = group.create_task(side.clock.sleep_until(soon_ms))
        other = group.create_task(side.clock.sleep_until(later_ms + 365 * DAY_MS))
        await asyncio.sleep(0)
        assert not sleeper.done() or side.clock.now_ms() >= soon_ms
        side.let_pass(20)
        await asyncio.wait_for(sleeper, PATIENCE_S)
        assert side.clock.now_ms() >= soon_ms
        assert not other.done()
        other.cancel()


@pytest.mark.parametrize("ids", [RandomIds(), CountingIds()])
def test_ids_are_ids_are_new_and_sort_by_their_instant(ids: Ids) -> None:
    made = [ids.new(at_ms) for at_ms in (1, 1, 2, 1_700_000_000_000)]
    assert all(is_id(each) for each in made)
    assert len(set(made)) == len(made)
    assert max(made[:2]) < made[2] < made[3]
