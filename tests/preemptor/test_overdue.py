"""An eviction that nobody confirms has an end, over a real database. Decision 0026, BR-010."""

from typing import Any

import pytest
import pytest_asyncio

from allmende.proto.preemptor import ClaimAnswered, EvictionOrdered, EvictionOverdue
from allmende.proto.units import MINUTE_MS
from tests.preemptor.builders import id_of
from tests.preemptor.messages import START_MS, Ear, ended, freed, raised, withdrawn
from tests.preemptor.test_handler import FULL

# Two minutes of grace, one of allowance.
DUE_MS = START_MS + 3 * MINUTE_MS


@pytest_asyncio.fixture
async def ear(ear: Ear) -> Ear:
    """Two nodes are full, and everybody there is past his slice."""
    await ear.hear(*FULL)
    return ear


async def told(ear: Ear) -> EvictionOrdered:
    """A claim evicts attempt 1 from n1."""
    [order] = [it for it in await ear.hear(raised(newest=2)) if isinstance(it, EvictionOrdered)]
    assert order.attempt == id_of(1)
    return order


def overdue(said: list[Any]) -> list[EvictionOverdue]:
    return [it for it in said if isinstance(it, EvictionOverdue)]


async def test_br_010_who_is_not_gone_in_time_is_named_once(ear: Ear) -> None:
    order = await told(ear)
    assert ear.wake_at_ms == DUE_MS
    ear.clock.advance(3 * MINUTE_MS - 1)
    assert await ear.hear() == []
    ear.clock.advance(1)
    [alarm] = overdue(await ear.hear())
    assert (alarm.attempt, alarm.plan, alarm.due_at_ms, alarm.silent) == (id_of(1), order.plan, DUE_MS, False)
    assert [(each.node, each.gpus) for each in alarm.nodes] == [("n1", 8)]
    assert "still holds 8 GPUs" in alarm.sentence
    ear.clock.advance(MINUTE_MS)
    assert await ear.hear() == []
    assert ear.wake_at_ms is None


@pytest.mark.parametrize("how", ["ended", "all its GPUs are freed"])
async def test_who_leaves_in_time_raises_no_alarm(ear: Ear, how: str) -> None:
    order = await told(ear)
    await ear.hear(ended(1, plan=order.plan) if how == "ended" else freed(1, {"n1": 8}))
    ear.clock.advance(4 * MINUTE_MS)
    assert overdue(await ear.hear()) == []


async def test_the_alarm_says_that_the_agent_is_away(ear: Ear) -> None:
    await told(ear)
    # Liveness is the database's own clock, which no test can move.
    async with ear.db.transaction() as tx:
        await tx.connection.execute("UPDATE node SET heard_at = heard_at - interval '1 minute' WHERE node = 'n1'")
    ear.clock.advance(3 * MINUTE_MS)
    [alarm] = overdue(await ear.hear())
    assert (alarm.silent, "n1 give no sign of life" in alarm.sentence) == (True, True)


async def test_br_010_gpus_that_do_not_come_are_no_ones_room(ear: Ear) -> None:
    await told(ear)
    ear.clock.advance(3 * MINUTE_MS)
    await ear.hear(withdrawn())
    # Before, this claim was told that room was on its way on n1, for ever.
    [answer] = [it for it in await ear.hear(raised(2, newest=2)) if isinstance(it, ClaimAnswered)]
    assert (answer.code, [victim.attempt for victim in answer.victims]) == ("makes_room", [id_of(2)])
    [none_left] = [it for it in await ear.hear(raised(3, newest=2)) if isinstance(it, ClaimAnswered)]
    assert none_left.outcome == "infeasible"


async def test_who_leaves_after_all_gives_room_again(ear: Ear) -> None:
    order = await told(ear)
    ear.clock.advance(10 * MINUTE_MS)
    await ear.hear(withdrawn())
    await ear.hear(freed(1, {"n1": 8}), ended(1, plan=order.plan))
    [answer] = [it for it in await ear.hear(raised(2, newest=2)) if isinstance(it, ClaimAnswered)]
    assert (answer.code, [part.node for part in answer.placement]) == ("fits_now", ["n1"])


async def test_another_replica_names_nobody_a_second_time(ear: Ear) -> None:
    await told(ear)
    ear.clock.advance(3 * MINUTE_MS)
    other = Ear(ear.db, ear.clock, start=500_000)
    assert len(overdue(await other.hear())) == 1
    assert overdue(await ear.hear()) == []
