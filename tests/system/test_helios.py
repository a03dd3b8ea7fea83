"""The ledger alone, as a process over the real bus, fed a month of a real cluster: 16 budgets, 856 GPUs, a row a minute.

The totals were computed independently (expected_totals.json). Everything that is held against them is computed from postings.
"""

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from allmende.chassis.embedded import PostgresServer
from allmende.chassis.errors import Misconfigured
from allmende.proto import subjects
from allmende.proto.ledger import CapacityQuery, Posting
from allmende.proto.reports import StatementQuery, UsageQuery
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from tests.ledger.gauges import (
    CLUSTER,
    ORIGIN_MS,
    TRACE,
    Gauges,
    attempts_of,
    make_gauges,
    minutes_of,
    opening,
    parcel,
    read_helios,
)
from tests.ledger.theatre import Theatre, scaled, theatre
from tests.servers import Lab

WINDOW = 512
# A folder that is no disk, where the machine has one.
MEMORY = next((folder for folder in ("/dev/shm",) if Path(folder).is_dir()), None)
needs_trace = pytest.mark.skipif(
    not (TRACE / "helios_earth_vc_ticks").is_dir(),
    reason="the Helios trace is not here: it belongs in ../shared/traces beside the repository",
)


@pytest_asyncio.fixture
async def month(postgres: PostgresServer) -> AsyncIterator[Lab]:
    """A lab whose streams lie in memory where the machine has such a folder: the server syncs each message, and 100,000 of them
    measure the disk, not the ledger."""
    with tempfile.TemporaryDirectory(dir=MEMORY, ignore_cleanup_errors=True) as folder:
        lab = Lab(Path(folder), postgres)
        try:
            # What a killed ledger had taken comes again after this, not only after a minute.
            await lab.open(ack_wait_ms=5 * SECOND_MS)
        except Misconfigured as error:
            pytest.skip(f"no NATS server here: {error}")
        try:
            yield lab
        finally:
            await lab.close()


def amount_of(gauges: Gauges) -> int:
    """GPU-ms of the whole trace."""
    return sum(map(sum, gauges.running.values())) * MINUTE_MS


def in_minutes(postings: Sequence[Posting], gauges: Gauges) -> dict[str, list[int]]:
    """GPU-ms by budget and minute."""
    found = {name: [0] * gauges.minutes for name in gauges.running}
    for posting in postings:
        assert posting.amount_gpu_ms == posting.gpus * (posting.to_ms - posting.from_ms)
        row = found[str(posting.budget)]
        at_ms = posting.from_ms
        while at_ms < posting.to_ms:
            minute = (at_ms - ORIGIN_MS) // MINUTE_MS
            edge_ms = min(ORIGIN_MS + (minute + 1) * MINUTE_MS, posting.to_ms)
            row[minute] += posting.gpus * (edge_ms - at_ms)
            at_ms = edge_ms
    return found


def check_minutes(postings: Sequence[Posting], gauges: Gauges) -> None:
    """Running GPUs of every budget, and what is left of the capacity, in every single minute."""
    found = in_minutes(postings, gauges)
    for name, row in gauges.running.items():
        assert found[name] == [gpus * MINUTE_MS for gpus in row], name
    left = [gauges.capacity * MINUTE_MS - sum(column) for column in zip(*found.values(), strict=True)]
    assert left == [gpus * MINUTE_MS for gpus in gauges.idle]


async def check_books(play: Theatre, gauges: Gauges, step_ms: int) -> None:
    """The ledger's own books: nothing is starting or unknown, and allocated + idle is all there is."""
    at_ms: int | None = ORIGIN_MS
    idle = 0
    while at_ms is not None:
        query = CapacityQuery(cluster=CLUSTER, from_ms=at_ms, to_ms=gauges.end_ms, step_ms=step_ms)
        page = await play.ask(subjects.BOOKS, query)
        for row in page.buckets:
            assert (row.starting_gpu_ms, row.unknown_gpu_ms, row.unallocated_gpu_ms) == (0, 0, 0), row
            assert row.allocated_gpu_ms + row.idle_gpu_ms == row.available_gpu_ms == gauges.capacity * step_ms, row
            idle += row.idle_gpu_ms
        at_ms = page.next_from_ms
    assert idle == sum(gauges.idle) * MINUTE_MS


async def check_reports(play: Theatre, gauges: Gauges) -> None:
    """What people are told: the month's usage by budget; every budget's statement opens at nothing and closes at its usage."""
    span_ms = gauges.end_ms - ORIGIN_MS
    query = UsageQuery(cluster=CLUSTER, from_ms=ORIGIN_MS, to_ms=gauges.end_ms, step_ms=span_ms)
    page = await play.ask(subjects.USAGE, query)
    assert {row.budget: row.gpu_ms for row in page.rows} == {
        name: sum(row) * MINUTE_MS for name, row in gauges.running.items() if any(row)
    }
    for name, row in gauges.running.items():
        asked = StatementQuery(cluster=CLUSTER, budget=name, from_ms=ORIGIN_MS, to_ms=gauges.end_ms)
        told = await play.ask(subjects.STATEMENT, asked)
        assert (told.opening_gpu_ms, told.closing_gpu_ms, told.held_gpu_ms) == (0, sum(row) * MINUTE_MS, 0), name


def check_totals(postings: Sequence[Posting]) -> None:
    """To the last GPU-second what somebody else has summed up."""
    expected = json.loads((TRACE / "expected_totals.json").read_text())["helios_earth_vc_ticks"]
    assert expected["minutes"] == 44_640
    totals: dict[str, int] = {}
    for posting in postings:
        totals[str(posting.budget)] = totals.get(str(posting.budget), 0) + posting.amount_gpu_ms
    assert totals == {name.lower(): int(row["running_gpu_minutes"]) * MINUTE_MS for name, row in expected["by_vc"].items()}


async def play_in_order(lab: Lab, gauges: Gauges, seconds: int) -> list[Posting]:
    """The trace at the pace of the clock, which runs through it in about this many real seconds."""
    rate = gauges.minutes * 60 // seconds
    async with theatre(lab, scaled(ORIGIN_MS, rate)) as play:
        play.start()
        number, waiting = 1, [parcel(body, index, ORIGIN_MS) for index, body in enumerate(opening(gauges), start=900_000_000)]
        for end_ms, said in minutes_of(gauges):
            if end_ms > play.clock.now_ms() or len(waiting) >= WINDOW:
                await play.publish(waiting)
                waiting = []
                await play.clock.sleep_until(end_ms)
            now_ms = play.clock.now_ms()
            waiting += [parcel(body, number + index, now_ms) for index, body in enumerate(said)]
            number += len(said)
        await play.publish(waiting)
        state = await play.until_settled(amount_of(gauges), wait_s=240)
        assert (state.unattributed_counters, state.quarantined, state.oldest_gap_ms) == (0, 0, None), state
        postings = await play.postings()
        await check_books(play, gauges, DAY_MS)
        await check_reports(play, gauges)
        return postings


async def play_shuffled(lab: Lab, gauges: Gauges, seed: int) -> list[Posting]:
    """Everything at once in no order, a third of it twice: half of the repeats are copies, half say the same under a new id."""
    chance = random.Random(seed)
    async with theatre(lab, scaled(gauges.end_ms, 1)) as play:
        bodies = [*opening(gauges), *(body for _, said in minutes_of(gauges) for body in said)]
        parcels = [parcel(body, number, gauges.end_ms) for number, body in enumerate(bodies, start=1)]
        for number in chance.sample(range(len(bodies)), len(bodies) // 3):
            again = number + 1 if chance.random() < 0.5 else number + 500_000_000
            parcels.append(parcel(bodies[number], again, gauges.end_ms, copy="-again"))
        chance.shuffle(parcels)
        play.start()
        for start in range(0, len(parcels), 8 * WINDOW):
            await play.publish(parcels[start : start + 8 * WINDOW])
        state = await play.until_settled(amount_of(gauges), wait_s=240)
        assert (state.unattributed_counters, state.quarantined) == (0, 0), state
        postings = await play.postings()
        await check_books(play, gauges, DAY_MS)
        await check_reports(play, gauges)
        return postings


@needs_trace
@pytest.mark.trace
@pytest.mark.timeout(400)  # 108,342 messages of a month: about a minute on two idle cores
async def test_a_month_of_helios_in_order_meets_the_totals_and_every_minute(month: Lab) -> None:
    gauges = read_helios()
    assert (gauges.capacity, gauges.minutes) == (856, 44_640)
    # 424,772.6 GPU-hours, which the source rounds to 424,773, of 636,864.
    assert ((amount_of(gauges) + HOUR_MS // 2) // HOUR_MS, gauges.capacity * gauges.minutes // 60) == (424_773, 636_864)
    postings = await play_in_order(month, gauges, seconds=40)
    check_totals(postings)
    check_minutes(postings, gauges)


@needs_trace
@pytest.mark.trace
@pytest.mark.timeout(400)  # 144,456 messages: about a minute on two idle cores
async def test_a_month_of_helios_shuffled_and_a_third_repeated_gives_the_same_books(month: Lab) -> None:
    gauges = read_helios()
    postings = await play_shuffled(month, gauges, seed=20200501)
    check_totals(postings)
    check_minutes(postings, gauges)


async def test_a_made_day_in_order(lab: Lab) -> None:
    gauges = make_gauges(seed=1)
    check_minutes(await play_in_order(lab, gauges, seconds=4), gauges)


async def test_a_made_day_shuffled_and_a_third_repeated(lab: Lab) -> None:
    gauges = make_gauges(seed=2)
    check_minutes(await play_shuffled(lab, gauges, seed=2), gauges)


async def test_a_ledger_killed_in_mid_stream_and_two_at_once_give_the_same_books(month: Lab) -> None:
    gauges = make_gauges(seed=3, minutes=2_880)
    async with theatre(month, scaled(gauges.end_ms, 1)) as play:
        bodies = [*opening(gauges), *(body for _, said in minutes_of(gauges) for body in said)]
        await play.publish(parcel(body, number, gauges.end_ms) for number, body in enumerate(bodies, start=1))
        victim, other = play.start(), play.start()
        while not (await play.state()).posted_gpu_ms:  # noqa: ASYNC110 the fact is in another process
            await asyncio.sleep(0.01)
        for process in (victim, other):
            process.kill()
        async with (await month.database("ledger")).reading() as connection:
            posted = await connection.fetchval("SELECT sum(amount_gpu_ms) FROM posting")
        assert 0 < posted < amount_of(gauges), "killed in mid-stream"
        play.start()
        play.start()
        await play.until_settled(amount_of(gauges), wait_s=50)
        check_minutes(await play.postings(), gauges)
        assert len(attempts_of(gauges)) > 100
