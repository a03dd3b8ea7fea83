"""Declared lost by an operator: charged up to the node's last sign of life, whatever its agent says later. Record 0042."""

from itertools import permutations

import pytest

from allmende.proto.ledger import FaultsQuery, UsageConfirmed
from allmende.proto.lost import LostAttempt, NodeDeclaredLost
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab

LOST_MS = START_MS + HOUR_MS


def lost(*numbers: int) -> NodeDeclaredLost:
    """An operator took n1 for dead ten minutes after its last sign of life."""
    return NodeDeclaredLost(
        cluster="c1",
        node="n1",
        by="olga",
        reason="no power",
        declared_at_ms=LOST_MS + 10 * MINUTE_MS,
        last_seen_ms=LOST_MS,
        reported_at_ms=START_MS,
        reported_seq=1,
        installed_gpus=8,
        attempts=tuple(LostAttempt(attempt=id_of(each), job=id_of(each + 1_000), ended_at_ms=LOST_MS) for each in numbers),
    )


LATE = (
    # On its way when the node fell silent: it counts.
    tick(counter(1, HOUR_MS, 60, gpus=2)),
    # Counted by an agent that nobody heard.
    tick(counter(1, HOUR_MS + 30 * MINUTE_MS, 90, gpus=2)),
    ended(1, LOST_MS + HOUR_MS, counter(1, 2 * HOUR_MS, 120, gpus=2)),
)


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_late_counters_do_not_open_the_books_in_whatever_order_they_come(lab: Lab, order: tuple[int, ...]) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(0))
    await desk.hear(*tree(at_ms=START_MS), node(at_ms=START_MS), granted(1, gpus=2, at_ms=START_MS), started(1, START_MS))
    desk.clock.advance(HOUR_MS + 10 * MINUTE_MS)
    confirmed = [each for each in await desk.hear(lost(1)) if isinstance(each, UsageConfirmed)]
    assert [each.attempts for each in confirmed] == [(id_of(1),)]
    desk.clock.advance(HOUR_MS)
    for index in order:
        await desk.hear(LATE[index])
    assert sum(each.amount_gpu_ms for each in await desk.postings()) == 2 * HOUR_MS
    faults = (await desk.answers.faults("olga", FaultsQuery(cluster="c1"))).faults
    assert {each.code for each in faults} == {"beyond_end"}
    assert max(each.most_excess_gpu_ms for each in faults) == 2 * HOUR_MS


async def test_its_hold_is_given_back_and_its_node_is_no_capacity_until_it_is_reported(lab: Lab) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(0))
    await desk.hear(*tree(at_ms=START_MS), node(at_ms=START_MS), granted(1, gpus=2, slice_ms=8 * HOUR_MS, at_ms=START_MS))
    await desk.hear(started(1, START_MS))
    desk.clock.advance(HOUR_MS + 10 * MINUTE_MS)
    assert (await desk.standings())["nlp"].held_gpu_ms > 0
    await desk.hear(lost(1))
    desk.clock.advance(MINUTE_MS)
    await desk.hear()
    assert (await desk.standings())["nlp"].held_gpu_ms == 0
    await desk.hear(node(at_ms=LOST_MS + 11 * MINUTE_MS, seq=2))
    desk.clock.advance(4 * MINUTE_MS)
    steps = await desk.books(LOST_MS, LOST_MS + 15 * MINUTE_MS, 5 * MINUTE_MS)
    assert [each.available_gpu_ms for each in steps[:2]] == [0, 0]
    assert steps[2].available_gpu_ms == 8 * 4 * MINUTE_MS
