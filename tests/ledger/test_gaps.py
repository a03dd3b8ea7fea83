"""Gaps: explicit while open, and how each closed; what is missing follows the counters, to the GPU-millisecond."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from allmende.ledger.handlers.gaps import GAPS_MAX
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.gaps import Gap, GapMark, GapsPage, GapsQuery
from allmende.proto.message import Message
from allmende.proto.units import LARGEST_AMOUNT, LATEST_INSTANT_MS, MINUTE_MS, SECOND_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import SILENCE_MS, Desk
from tests.ledger.desk import clock_at as clock_after
from tests.servers import Lab

M = MINUTE_MS


class Row(NamedTuple):
    sentence: str
    batches: Sequence[Sequence[Message]]
    """After the grant and start of attempt 1 with 2 GPUs; it is an hour later."""
    gaps: Sequence[tuple[int, int | None, str | None, int]]
    """From and to in minutes after the start, how it closed, and the missing GPU-minutes."""


def said(minutes: float, seq: int, epoch: int = 1, since: int = 0) -> Message:
    return tick(counter(1, int(minutes * M), seq, gpus=2, epoch=epoch, since_ms=START_MS + since * M))


def end(minutes: int, *counters: float) -> Message:
    return ended(1, START_MS + minutes * M, *(counter(1, int(each * M), 99, gpus=2) for each in counters))


ROWS = [
    Row("an attempt that was never heard of has an open gap from its start", [], [(0, None, None, 120)]),
    Row("a counter that fell silent has one from there", [[said(10, 1)]], [(0, 10, "counter", 0), (10, None, None, 100)]),
    Row("half a minute is none", [[said(0.5, 1)], [said(59.5, 2)], [end(60, 60)]], [(0.5, 59.5, "counter", 0)]),
    Row(
        "a counter that comes back closes it exactly",
        [[said(10, 1)], [said(40, 2)], [end(40, 40)]],
        [(0, 10, "counter", 0), (10, 40, "counter", 0)],
    ),
    Row(
        "what waited in the bus was no silence",
        [[said(0.5, 1)], [said(each / 2, each) for each in range(2, 81)], [end(40, 40)]],
        [],
    ),
    Row(
        "a new counter closes it with a loss",
        [[said(0.5, 1)], [said(0.5, 1, epoch=2, since=20)], [end(20, 0.5)]],
        [(0.5, 20, "end", 39)],
    ),
    Row(
        "and the loss is found again when the old counter comes late",
        [[said(0.5, 1)], [said(0.5, 1, epoch=2, since=20)], [said(20, 2)], [said(40, 9, epoch=2, since=20)]],
        [(0.5, 20, "counter", 0), (20.5, 60, "counter", 0)],
    ),
    Row(
        "an agent's restart",
        [[said(0.5, 1)], [said(0.25, 1, epoch=2, since=20), said(0.5, 2, epoch=2, since=20)], [said(40, 3, epoch=2, since=20)]],
        [(0.5, 20, "epoch", 39), (20.5, 60, "counter", 0)],
    ),
    Row("an end closes it with a loss", [[said(0.5, 1)], [end(30)]], [(0.5, 30, "end", 59)]),
    Row("an attempt that ended unheard of", [[end(30)]], [(0, 30, "end", 60)]),
]


async def desk_of(lab: Lab) -> Desk:
    desk = Desk(await lab.database("ledger"), clock_after(1))
    await desk.hear(*tree(), node(), granted(1, gpus=2), started(1))
    return desk


async def listed(desk: Desk, *, open_only: bool = False, from_ms: int = START_MS, to_ms: int | None = None) -> list[Gap]:
    query = GapsQuery(cluster="c1", from_ms=from_ms, to_ms=to_ms or desk.clock.now_ms() + 1, open_only=open_only)
    found: list[Gap] = []
    while True:
        page = await desk.gaps.gaps("ada", query)
        found += page.gaps
        if page.next_after is None:
            return found
        query = replace(query, after=page.next_after)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
async def test_gaps(lab: Lab, row: Row) -> None:
    desk = await desk_of(lab)
    if row.batches:
        await desk.hear(tick(counter(1, 1, 0, gpus=2)))
    for batch in row.batches:
        await desk.hear(*batch)
    found = [
        ((it.from_ms - START_MS) / M, None if it.to_ms is None else (it.to_ms - START_MS) / M, it.closed_by, it.missing_gpu_ms / M)
        for it in await listed(desk)
    ]
    first_ms = 1 / M
    expected = [(first_ms if from_ == 0 and row.batches else from_, to, how, missing) for from_, to, how, missing in row.gaps]
    assert [(round(a, 3), b, how, round(missing, 3)) for a, b, how, missing in found] == [
        (round(a, 3), b, how, missing) for a, b, how, missing in expected
    ]
    assert await listed(desk, open_only=True) == [each for each in await listed(desk) if each.to_ms is None]


async def test_what_is_missing_is_what_the_books_do_not_have(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(said(7, 1), said(5, 1, epoch=2, since=20))
    await desk.hear(end(50, 7))
    (hour,) = await desk.books(START_MS, START_MS + 60 * M, 60 * M)
    assert sum(each.missing_gpu_ms for each in await listed(desk)) == hour.unknown_gpu_ms == (50 - 7 - 5) * 2 * M


async def test_every_replica_has_its_own_and_pages_follow_each_other(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(granted(2, replicas=GAPS_MAX + 5), started(2), granted(3))
    found = await listed(desk)
    assert [(each.attempt, each.replica) for each in found] == [
        (id_of(1), 0),
        *((id_of(2), replica) for replica in range(GAPS_MAX + 5)),
    ], "an attempt that has not started has none"
    assert await listed(desk, from_ms=START_MS - M, to_ms=START_MS) == []
    with pytest.raises(Refusal) as refused:
        await listed(desk, to_ms=START_MS)
    assert refused.value.problem.code == "empty_span"


async def test_silence_is_real_time(lab: Lab) -> None:
    desk = await desk_of(lab)
    page = await desk.gaps.gaps("ada", GapsQuery(cluster="c1", from_ms=0, to_ms=1))
    assert (page.silence_ms, page.as_of_ms) == (SILENCE_MS, desk.clock.now_ms())
    assert SILENCE_MS == 30 * SECOND_MS


def test_the_longest_page_fits_one_message() -> None:
    late = LATEST_INSTANT_MS
    gap = Gap(
        attempt=id_of(1),
        replica=4_095,
        gpus=10**6,
        budget="b" * 63,
        from_ms=late,
        to_ms=late,
        closed_by="counter",
        missing_gpu_ms=LARGEST_AMOUNT,
    )
    mark = GapMark(from_ms=late, attempt=id_of(1), replica=4_095)
    page = GapsPage(cluster="c" * 63, as_of_ms=late, silence_ms=late, gaps=(gap,) * GAPS_MAX, next_after=mark)
    assert len(msgspec.json.encode(page)) <= MAX_MESSAGE_BYTES
