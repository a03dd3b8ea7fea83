"""A node that was declared lost, as the preemptor sees it, over a real database. Decision 0042."""

from itertools import permutations

import pytest
import pytest_asyncio

from allmende.proto.lost import LostAttempt, NodeDeclaredLost
from allmende.proto.preemptor import ClaimAnswered, SliceExpired
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.preemptor.builders import id_of
from tests.preemptor.messages import START_MS, Ear, ended, granted, node, protected, raised
from tests.preemptor.test_handler import FULL


@pytest_asyncio.fixture
async def ear(ear: Ear) -> Ear:
    """Two nodes are full, and everybody there is past his slice."""
    await ear.hear(*FULL)
    return ear


def lost(*numbers: int, name: str = "n1") -> NodeDeclaredLost:
    """An operator took a node for dead, and these attempts with it."""
    return NodeDeclaredLost(
        cluster="c1",
        node=name,
        by="olga",
        reason="no power",
        declared_at_ms=START_MS + MINUTE_MS,
        last_seen_ms=START_MS,
        reported_at_ms=START_MS,
        reported_seq=1,
        installed_gpus=8,
        attempts=tuple(LostAttempt(attempt=id_of(each), job=id_of(each + 1_000), ended_at_ms=START_MS) for each in numbers),
    )


async def answer(ear: Ear, number: int = 1, newest: int = 2) -> ClaimAnswered:
    """The answer to a claim for a whole node."""
    [found] = [it for it in await ear.hear(raised(number, newest=newest)) if isinstance(it, ClaimAnswered)]
    return found


async def test_a_lost_attempt_is_nobodys_victim_and_its_node_nobodys_room(ear: Ear) -> None:
    await ear.hear(lost(1))
    planned = await answer(ear)
    assert ([each.attempt for each in planned.victims], [each.node for each in planned.placement]) == ([id_of(2)], ["n2"])
    assert (await answer(ear, 2)).outcome == "infeasible"


BACK = node("n1", seq=2, at_ms=START_MS + 2 * MINUTE_MS)


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_reported_and_ended_it_is_room_again_in_whatever_order_that_is_heard(ear: Ear, order: tuple[int, ...]) -> None:
    words = (lost(1), BACK, ended(1))
    for index in order:
        await ear.hear(words[index])
    planned = await answer(ear)
    assert (planned.code, [each.node for each in planned.placement]) == ("fits_now", ["n1"])


async def test_an_older_report_does_not_bring_the_node_back(ear: Ear) -> None:
    await ear.hear(lost(1), ended(1))
    await ear.hear(node("n1"))
    assert [each.node for each in (await answer(ear)).placement] == ["n2"]


async def test_no_slice_of_it_expires(ear: Ear) -> None:
    await ear.hear(granted(3, {"n1": 1}), protected(3, START_MS + HOUR_MS))
    await ear.hear(lost(1, 3))
    ear.clock.advance(2 * HOUR_MS)
    assert [each for each in await ear.hear() if isinstance(each, SliceExpired)] == []


async def test_a_grant_that_is_heard_after_its_loss_is_lost_all_the_same(ear: Ear) -> None:
    await ear.hear(ended(1))
    await ear.hear(lost(3))
    await ear.hear(granted(3, {"n1": 8}), BACK)
    planned = await answer(ear, newest=3)
    assert [each.attempt for each in planned.victims] == [id_of(2)]
