"""Device activity: whatever is lost, repeated or late, the last reading is what counts; what nobody told is not zero."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.ledger.rules.activity import Activity, Known, is_believed, parts
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.ledger.asking import HOUR_0, AskingDesk
from tests.ledger.builders import START_MS, counter, ended, granted, node, started, tick, tree
from tests.ledger.desk import clock_at
from tests.servers import Lab

KEY = ("c1", "a", 0, 1)
EDGES = st.integers(-2, 2).flatmap(lambda near: st.integers(0, 3).map(lambda hour: max(0, hour * HOUR_MS + near)))


@given(EDGES, st.lists(st.tuples(EDGES, st.integers(0, 8 * HOUR_MS)), min_size=1, max_size=6))
def test_an_advance_is_cut_at_hours_and_adds_up_exactly(since: int, advances: list[tuple[int, int]]) -> None:
    known = Known(2, since, 10**9, 0, 0, None)
    sums: dict[int, list[int]] = {}
    for length, busy in advances:
        held = known.read_ms + length
        said = Activity(KEY, since, held, 2 * held, known.busy_gpu_ms + min(busy, 2 * length), known.busy_gpu_ms)
        for part in parts(said, known):
            assert 0 <= part.busy_gpu_ms <= part.watched_gpu_ms <= 2 * HOUR_MS
            sums.setdefault(part.hour_ms, [0, 0])
            sums[part.hour_ms][0] += part.watched_gpu_ms
            sums[part.hour_ms][1] += part.busy_gpu_ms
        known = known._replace(read_ms=held, busy_gpu_ms=said.busy_gpu_ms, memory_gpu_ms=said.memory_gpu_ms)
    end = since + known.read_ms
    for hour_ms, (watched, _) in sums.items():
        assert hour_ms % HOUR_MS == 0
        assert watched == 2 * max(0, min(end, hour_ms + HOUR_MS) - max(since, hour_ms))
    assert sum(watched for watched, _ in sums.values()) == 2 * known.read_ms
    assert sum(busy for _, busy in sums.values()) == (known.busy_gpu_ms if known.read_ms else 0)


KNOWN = Known(gpus=2, since_ms=100, held_ms=1_000, read_ms=400, busy_gpu_ms=300, memory_gpu_ms=50)
SAID = Activity(KEY, 100, 900, 1_800, 700, 60)
BELIEVED = [
    ("a later reading", {}, True),
    ("as busy as it was held", {"busy_gpu_ms": 1_800}, True),
    ("memory traffic that is not known any more", {"memory_gpu_ms": None}, True),
    ("busier than it was held", {"busy_gpu_ms": 1_801}, False),
    ("more memory traffic than it was held", {"memory_gpu_ms": 1_801}, False),
    ("less than before", {"busy_gpu_ms": 299}, False),
    ("less memory traffic than before", {"memory_gpu_ms": 49}, False),
    ("an earlier reading", {"held_ms": 399, "used_gpu_ms": 798, "busy_gpu_ms": 300}, False),
    ("the same reading", {"held_ms": 400, "used_gpu_ms": 800, "busy_gpu_ms": 300}, False),
    ("further than the books believe", {"held_ms": 1_001, "used_gpu_ms": 2_002}, False),
    ("another number of GPUs", {"used_gpu_ms": 1_799}, False),
    ("another beginning", {"since_ms": 101}, False),
]


@pytest.mark.parametrize(("sentence", "change", "expected"), BELIEVED, ids=[row[0] for row in BELIEVED])
def test_what_is_believed(sentence: str, change: dict[str, Any], expected: bool) -> None:
    assert is_believed(SAID._replace(**change), KNOWN) is expected


def watched(number: int, held_ms: int, seq: int, busy_gpu_ms: int | None, *, gpus: int = 2, memory: int | None = None) -> Any:
    said = counter(number, held_ms, seq, gpus=gpus)
    return replace(said, busy_gpu_ms=busy_gpu_ms, memory_active_gpu_ms=memory)


async def hours_of(desk: AskingDesk) -> dict[tuple[int, int], tuple[int, int]]:
    async with desk.db.reading() as connection:
        rows = await connection.fetch("SELECT attempt, hour_ms, watched_gpu_ms, busy_gpu_ms FROM activity_hour")
    return {(int(row[0]), (row[1] - HOUR_0) // HOUR_MS): (row[2], row[3]) for row in rows}


async def totals(desk: AskingDesk) -> dict[int, tuple[int, int]]:
    sums: dict[int, tuple[int, int]] = {}
    for (number, _), (seen, busy) in (await hours_of(desk)).items():
        before = sums.get(number, (0, 0))
        sums[number] = (before[0] + seen, before[1] + busy)
    return sums


async def test_busy_time_is_kept_by_hour_and_what_is_not_told_is_no_row(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(3))
    await desk.hear(*tree(), node(), granted(1, gpus=2), granted(2, gpus=1), started(1), started(2))
    # START_MS is ten past 22:00. Busy for the first 50 minutes and not at all in the next hour.
    for minute in range(1, 50):
        await desk.hear(
            tick(watched(1, minute * MINUTE_MS, minute, 2 * minute * MINUTE_MS), counter(2, minute * MINUTE_MS, minute))
        )
    for minute in range(50, 110):
        await desk.hear(tick(watched(1, minute * MINUTE_MS, minute, 2 * 50 * MINUTE_MS), counter(2, minute * MINUTE_MS, minute)))
    await desk.hear(ended(1, START_MS + 110 * MINUTE_MS, watched(1, 110 * MINUTE_MS, 200, 2 * 50 * MINUTE_MS)))
    assert await hours_of(desk) == {
        (1, 0): (2 * 50 * MINUTE_MS, 2 * 50 * MINUTE_MS),
        (1, 1): (2 * HOUR_MS, 0),
    }


@pytest.mark.parametrize("seed", range(5))
async def test_readings_in_any_order_repeated_and_lost_add_up_to_the_last_one(lab: Lab, seed: int) -> None:
    chance = random.Random(seed)
    db = await lab.database("ledger")
    desks = [AskingDesk(db, clock_at(3), start) for start in (1, 2)]
    messages = [tick(watched(1, minute * MINUTE_MS, minute, minute * MINUTE_MS)) for minute in range(1, 100)]
    messages = chance.sample(messages, 60)
    end = ended(1, START_MS + 100 * MINUTE_MS, watched(1, 100 * MINUTE_MS, 100, 99 * MINUTE_MS))
    story = [*messages, *chance.sample(messages, 20), started(1), granted(1, gpus=2)]
    chance.shuffle(story)
    await desks[0].hear(*tree(), node())
    for message in story:
        await chance.choice(desks).hear(message)
    # The end comes last, and once more: an agent says it until it is confirmed.
    for _ in range(2):
        await desks[1].hear(end)
    await desks[0].hear(chance.choice(messages))
    assert await totals(desks[0]) == {1: (2 * 100 * MINUTE_MS, 99 * MINUTE_MS)}


async def test_what_claims_more_than_was_held_stays_unknown_until_a_true_reading(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(3))
    await desk.hear(*tree(), node(), granted(1, gpus=2), started(1))
    await desk.hear(tick(watched(1, 7 * MINUTE_MS, 1, 15 * MINUTE_MS)))
    assert await totals(desk) == {}
    await desk.hear(tick(watched(1, 20 * MINUTE_MS, 2, 15 * MINUTE_MS)))
    assert await totals(desk) == {1: (40 * MINUTE_MS, 15 * MINUTE_MS)}
