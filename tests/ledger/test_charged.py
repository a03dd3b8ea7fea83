"""Charges of old buckets are summed once: standings are those of a ledger that has just started, whatever was booked, and when."""

import random
from typing import Any

import pytest

from allmende.chassis.db import Connection
from allmende.ledger.handlers.charged import Charged
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.rules.aging import Weights
from allmende.ledger.rules.standings import Era
from allmende.ledger.store.reading import ReadingStore
from allmende.proto.budget import Budget
from allmende.proto.units import DAY_MS, HOUR_MS, Ms
from tests.ledger.builders import START_MS, TREE, counter, granted, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab


class Watched(ReadingStore):
    """Remembers which spans were summed."""

    def __init__(self) -> None:
        self.spans: list[tuple[Ms, Ms]] = []

    async def charged(
        self, connection: Connection, cluster: str, from_ms: Ms, to_ms: Ms, weights: Weights | None
    ) -> dict[str, int]:
        self.spans.append((from_ms, to_ms))
        return await super().charged(connection, cluster, from_ms, to_ms, weights)


async def desk_with_usage(lab: Lab, half_life_ms: Ms | None = None) -> Desk:
    """Two attempts that have run for some buckets."""
    desk = Desk(await lab.database("ledger"), clock_at(1), half_life_ms=half_life_ms)
    await desk.hear(*tree(), node(), granted(1), granted(2, budget="vision"), started(1), started(2))
    await desk.hear(tick(counter(1, 10 * BUCKET_MS, 1), counter(2, 11 * BUCKET_MS, 1)))
    return desk


async def test_old_buckets_are_summed_once_until_an_edge_passes_or_something_late_is_booked(lab: Lab) -> None:
    desk = await desk_with_usage(lab)
    watched = Watched()
    charged, now_ms = Charged(watched), desk.clock.now_ms()
    edge_ms = now_ms - now_ms % BUCKET_MS
    era = Era(START_MS - DAY_MS, edge_ms + BUCKET_MS, {})

    async def summed(at_ms: Ms, advance: bool = True) -> list[tuple[Ms, Ms]]:
        watched.spans = []
        async with desk.db.transaction() as tx:
            if advance:
                await charged.advance(tx, "c1", at_ms)
            await charged.of(tx.connection, "c1", [era], at_ms, None)
        return watched.spans

    old_ms = edge_ms - BUCKET_MS
    assert await summed(now_ms) == [(era.from_ms, old_ms), (old_ms, era.to_ms)]
    assert await summed(now_ms) == [(old_ms, era.to_ms)]
    assert await summed(now_ms, advance=False) == [(old_ms, era.to_ms)], "an answer reads what a round has summed"
    await desk.hear(granted(3, seq=3), started(3), tick(counter(3, BUCKET_MS, 1)))
    assert await summed(now_ms) == [(era.from_ms, old_ms), (old_ms, era.to_ms)], "booked into an old bucket"
    assert await summed(now_ms + BUCKET_MS) == [(era.from_ms, edge_ms), (edge_ms, era.to_ms)], "an edge has passed"


async def test_sums_of_a_transaction_that_was_rolled_back_are_void(lab: Lab) -> None:
    desk = await desk_with_usage(lab)
    charged, now_ms = Charged(ReadingStore()), desk.clock.now_ms()
    era = Era(START_MS - DAY_MS, now_ms + BUCKET_MS, {})

    async def broken() -> None:
        async with desk.db.transaction() as tx:
            await tx.connection.execute("UPDATE usage_bucket SET gpu_ms = gpu_ms + 1")
            await charged.advance(tx, "c1", now_ms)
            await charged.of(tx.connection, "c1", [era], now_ms, None)
            raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError, match="rolled back"):
        await broken()
    async with desk.db.transaction() as tx:
        await charged.advance(tx, "c1", now_ms)
        (found,) = await charged.of(tx.connection, "c1", [era], now_ms, None)
        fresh = await ReadingStore().charged(tx.connection, "c1", era.from_ms, era.to_ms, None)
    assert found.by_budget == fresh


MOVED = tuple(
    Budget(budget="nlp", parent="vision", share_ppm=500_000) if row.budget == "nlp" else row for row in TREE if row.budget != "rl"
)


@pytest.mark.parametrize("half_life_ms", [None, 12 * HOUR_MS])
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_booked_two_replicas_say_what_a_fresh_one_says(lab: Lab, seed: int, half_life_ms: Ms | None) -> None:
    chance = random.Random(seed)
    first = await desk_with_usage(lab, half_life_ms)
    second = Desk(first.db, first.clock, start=2, half_life_ms=half_life_ms)
    held = {1: 10 * BUCKET_MS, 2: 11 * BUCKET_MS}
    moved = False
    for step in range(12):
        desk = chance.choice([first, second])
        first.clock.advance(chance.choice([1_000, BUCKET_MS // 2, BUCKET_MS, 5 * BUCKET_MS, HOUR_MS]))
        bodies: list[Any] = []
        for number in chance.sample(sorted(held), chance.randint(0, len(held))):
            # Some are far behind the clock: what they say is booked into old buckets.
            room_ms = first.clock.now_ms() - START_MS - held[number]
            held[number] += chance.choice([0, room_ms // 3, room_ms])
            bodies.append(tick(counter(number, held[number], step + 2)))
        if not moved and chance.random() < 0.2:
            bodies, moved = [*bodies, *tree(MOVED, 2, first.clock.now_ms())], True
        await desk.hear(*bodies)
        fresh = Desk(first.db, first.clock, start=3, half_life_ms=half_life_ms)
        expected = await fresh.standings()
        assert await first.standings() == expected
        assert await second.standings() == expected
