"""The quarantine: what waits is listed with its reason, blocks nothing, and is released by the rules or refused."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest

from allmende.chassis.errors import Transient
from allmende.chassis.rpc import ask
from allmende.ledger import errors
from allmende.ledger.handlers.quarantine import ITEMS_MAX
from allmende.proto import subjects
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.ledger import FaultsQuery, UsageConfirmed
from allmende.proto.message import Message
from allmende.proto.quarantine import QuarantineItem, QuarantinePage, QuarantineQuery, Released, ReleaseItem
from allmende.proto.units import HOUR_MS, LARGEST_AMOUNT, LATEST_INSTANT_MS, MINUTE_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab

FAR_MS = 301_000
ONE = f"{id_of(1)}/0/1"


class Said(NamedTuple):
    """A message, and by how much its sender's clock was off."""

    body: Message
    off_ms: int = 0


class Row(NamedTuple):
    sentence: str
    said: Sequence[Said]
    """After the grant of 2 GPUs to attempt 1 two hours ago; a good counter of attempt 2 goes with each of them."""
    item: tuple[str, str]
    before_gpu_ms: int
    refused: str | None
    """The code of the refused release; None: it counts."""
    after_gpu_ms: int = 0


def half(seq: int = 1, held_ms: int = HOUR_MS, **other: int) -> Message:
    return tick(counter(1, held_ms, seq, gpus=2, **other))


ROWS = [
    Row("a wrong clock ahead", [Said(half(), FAR_MS)], (ONE, "clock_off"), 0, None, 2 * HOUR_MS),
    Row("a wrong clock behind", [Said(half(), -FAR_MS)], (ONE, "clock_off"), 0, None, 2 * HOUR_MS),
    Row(
        "more than can have passed counts once it has",
        [Said(half(held_ms=2 * HOUR_MS + MINUTE_MS))],
        (ONE, "ahead_of_clock"),
        2 * (2 * HOUR_MS + 5_000),
        None,
        2 * (2 * HOUR_MS + MINUTE_MS),
    ),
    Row(
        "more than will have passed does not",
        [Said(half(held_ms=4 * HOUR_MS))],
        (ONE, "ahead_of_clock"),
        2 * (2 * HOUR_MS + 5_000),
        "not_yet",
    ),
    Row(
        "an amount that is not that of the grant's GPUs counts as the time at those",
        [Said(half(used_gpu_ms=3 * HOUR_MS))],
        (ONE, "amount_mismatch"),
        0,
        None,
        2 * HOUR_MS,
    ),
    Row(
        "the smaller of two counters",
        [Said(half()), Said(half(2, MINUTE_MS))],
        (ONE, "counter_backwards"),
        2 * HOUR_MS,
        "contradicts_the_books",
    ),
    Row(
        "another beginning of one epoch",
        [Said(half()), Said(half(2, since_ms=START_MS + 1))],
        (ONE, "since_changed"),
        2 * HOUR_MS,
        "contradicts_the_books",
    ),
    Row(
        "a replica that was not granted",
        [Said(half(replica=1))],
        (f"{id_of(1)}/1/1", "unknown_replica"),
        0,
        "contradicts_the_books",
    ),
    Row(
        "another cluster's attempt",
        [Said(tick(counter(3, HOUR_MS, 1)))],
        (f"{id_of(3)}/0/1", "foreign_attempt"),
        0,
        "contradicts_the_books",
    ),
    Row(
        "an attempt that nobody granted",
        [Said(tick(counter(4, HOUR_MS, 1)))],
        (f"{id_of(4)}/0/1", "unknown_attempt"),
        0,
        "contradicts_the_books",
    ),
    Row(
        "the time before the grant",
        [Said(half(since_ms=START_MS - HOUR_MS))],
        (ONE, "before_grant"),
        2 * 5_000,
        "contradicts_the_books",
    ),
    Row(
        "the time after the end",
        [Said(ended(1, START_MS + MINUTE_MS, counter(1, HOUR_MS, 1, gpus=2)))],
        (ONE, "beyond_end"),
        2 * MINUTE_MS,
        "contradicts_the_books",
    ),
    Row(
        "time that two epochs claim",
        [Said(half(epoch=2, since_ms=START_MS + MINUTE_MS)), Said(half())],
        (ONE, "epochs_overlap"),
        2 * (HOUR_MS + MINUTE_MS),
        "contradicts_the_books",
    ),
    Row("a second grant", [Said(granted(1, gpus=8))], (id_of(1), "grant_changed"), 0, "contradicts_the_books"),
    Row(
        "a second start",
        [Said(started(1)), Said(started(1, START_MS + 1))],
        (id_of(1), "start_changed"),
        0,
        "contradicts_the_books",
    ),
    Row(
        "a second end",
        [Said(ended(1, START_MS + 9)), Said(ended(1, START_MS + 8))],
        (id_of(1), "end_changed"),
        0,
        "contradicts_the_books",
    ),
    Row(
        "an end by a wrong clock comes with its last counters",
        [Said(ended(1, START_MS + HOUR_MS, counter(1, HOUR_MS, 1, gpus=2)), FAR_MS)],
        (f"{id_of(1)}/ended", "clock_off"),
        0,
        None,
        2 * HOUR_MS,
    ),
    Row("a start by a wrong clock", [Said(started(1), -FAR_MS)], (f"{id_of(1)}/started", "clock_off"), 0, None, 0),
]


async def desk_of(lab: Lab) -> Desk:
    desk = Desk(await lab.database("ledger"), clock_at(2))
    await desk.hear(*tree(), node(), granted(1, gpus=2), granted(2), granted(3, cluster="c2"))
    return desk


async def charged(desk: Desk) -> int:
    return int((await desk.standings())["nlp"].charged_gpu_ms)


async def items(desk: Desk, cluster: str = "c1", **asked: bool | str) -> list[QuarantineItem]:
    found: list[QuarantineItem] = []
    query = QuarantineQuery(cluster=cluster)
    for name, value in asked.items():
        query = msgspec.structs.replace(query, **{name: value})
    while True:
        page = await desk.quarantine.quarantine("olga", query)
        found += page.items
        if not page.more:
            return found
        query = msgspec.structs.replace(query, after_what=found[-1].what, after_code=found[-1].code)


def asked(item: tuple[str, str], number: int = 500, cluster: str = "c1", reason: str = "looked at the node") -> ReleaseItem:
    return ReleaseItem(release=id_of(number), cluster=cluster, what=item[0], code=item[1], reason=reason)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
async def test_what_waits_and_its_release(lab: Lab, row: Row) -> None:
    desk = await desk_of(lab)
    for number, (body, off_ms) in enumerate(row.said, start=1):
        good = tick(counter(2, number * MINUTE_MS, number))
        bad = desk.event(body, desk.clock.now_ms() + off_ms)
        await desk.hear_events([bad, desk.event(good)])
    good_ms = len(row.said) * MINUTE_MS
    assert await charged(desk) == row.before_gpu_ms + good_ms, "the rest of the batch is booked"
    waiting = [(each.what, each.code) for each in await items(desk)]
    assert row.item in waiting
    desk.clock.advance(MINUTE_MS)
    if row.refused:
        with pytest.raises(Refusal) as refused:
            await desk.quarantine.release("olga", asked(row.item))
        assert refused.value.problem.code == row.refused, refused.value.problem
        assert [(each.what, each.code) for each in await items(desk)] == waiting, "a refused release changes nothing"
        assert await charged(desk) == row.before_gpu_ms + good_ms
        return
    done = await desk.quarantine.release("olga", asked(row.item))
    assert (done.author, done.reason, done.counted_gpu_ms) == ("olga", "looked at the node", row.after_gpu_ms - row.before_gpu_ms)
    assert await charged(desk) == row.after_gpu_ms + good_ms
    assert row.item not in [(each.what, each.code) for each in await items(desk)]
    waiting = [each for each in await items(desk) if each.code != "unknown_attempt"]
    assert (await desk.state()).quarantined == len(waiting)
    assert len((await desk.answers.faults("ada", FaultsQuery(cluster="c1"))).faults) == len(waiting)
    (shown,) = [each for each in await items(desk, also_released=True) if (each.what, each.code) == row.item]
    assert shown.released == done
    assert await desk.quarantine.release("olga", asked(row.item)) == done, "the same release again is answered as the first time"
    assert await charged(desk) == row.after_gpu_ms + good_ms
    with pytest.raises(Refusal) as again:
        await desk.quarantine.release("olga", asked(row.item, 501))
    assert again.value.problem.code == "nothing_held"


def test_every_reason_is_in_the_table() -> None:
    codes = {value for name, value in vars(errors).items() if name.isupper()}
    assert codes - {row.item[1] for row in ROWS} == {errors.REPORT_AHEAD_OF_CLOCK}, "which is of a node: below"


async def test_a_report_is_released_once_its_time_has_come(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(node(gpus=5, at_ms=desk.clock.now_ms() + HOUR_MS, seq=2))
    item = ("n1", "report_ahead_of_clock")
    with pytest.raises(Refusal) as refused:
        await desk.quarantine.release("olga", asked(item))
    assert refused.value.problem.code == "not_yet"
    desk.clock.advance(HOUR_MS)
    await desk.quarantine.release("olga", asked(item))
    desk.clock.advance(1)
    assert (await desk.standings())["org"].available_gpus == 5


async def test_a_released_end_is_confirmed_to_the_agent(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(ended(1, START_MS + 9, counter(1, 9, 1, gpus=2)), sent_at_ms=desk.clock.now_ms() + FAR_MS)
    await desk.quarantine.release("olga", asked((f"{id_of(1)}/ended", "clock_off")))
    assert [body.attempts for body in desk.said if isinstance(body, UsageConfirmed)] == [(id_of(1),)]
    assert (await desk.state()).posted_gpu_ms == 18


async def test_the_greatest_claim_waits_whatever_comes_after_it(lab: Lab) -> None:
    desk = await desk_of(lab)
    for seq, held_ms in ((1, MINUTE_MS), (3, HOUR_MS), (2, 2 * MINUTE_MS)):
        await desk.hear(half(seq, held_ms), sent_at_ms=desk.clock.now_ms() + FAR_MS)
    (waiting,) = await items(desk)
    assert (waiting.times, waiting.most_excess_gpu_ms) == (3, 2 * HOUR_MS)
    assert (await desk.quarantine.release("olga", asked((ONE, "clock_off")))).counted_gpu_ms == 2 * HOUR_MS


async def test_what_is_said_again_after_a_release_waits_again(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(half(1, MINUTE_MS), sent_at_ms=desk.clock.now_ms() + FAR_MS)
    await desk.quarantine.release("olga", asked((ONE, "clock_off")))
    await desk.hear(half(2, 2 * MINUTE_MS), sent_at_ms=desk.clock.now_ms() + FAR_MS)
    assert [each.times for each in await items(desk)] == [2]
    assert await charged(desk) == 2 * MINUTE_MS
    assert (await desk.quarantine.release("olga", asked((ONE, "clock_off"), 501))).counted_gpu_ms == 2 * MINUTE_MS


async def test_what_is_counted_by_now_is_released_as_nothing_more(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(half(), sent_at_ms=desk.clock.now_ms() + FAR_MS)
    await desk.hear(half(9, HOUR_MS + MINUTE_MS))
    assert (await desk.quarantine.release("olga", asked((ONE, "clock_off")))).counted_gpu_ms == 0
    assert await charged(desk) == 2 * (HOUR_MS + MINUTE_MS)


async def test_a_release_never_counts_beyond_the_end(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(half(), sent_at_ms=desk.clock.now_ms() + FAR_MS)
    await desk.hear(ended(1, START_MS + MINUTE_MS))
    assert (await desk.quarantine.release("olga", asked((ONE, "clock_off")))).counted_gpu_ms == 2 * MINUTE_MS
    assert [each.code for each in await items(desk)] == ["beyond_end"], "what was cut waits for its own reason"


async def test_the_list_is_paged_and_filtered_by_reason(lab: Lab) -> None:
    desk = await desk_of(lab)
    many = range(10, 10 + 2 * ITEMS_MAX + 1)
    await desk.hear(*(tick(counter(number, MINUTE_MS, 1)) for number in many), half(used_gpu_ms=1))
    assert [each.what for each in await items(desk, code="unknown_attempt")] == [f"{id_of(number)}/0/1" for number in many]
    assert [each.code for each in await items(desk, code="amount_mismatch")] == ["amount_mismatch"]
    assert len(await items(desk)) == len(many) + 1
    assert await items(desk, cluster="c2") == []


async def test_one_id_is_one_release(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(half(), tick(counter(2, MINUTE_MS, 1)), sent_at_ms=desk.clock.now_ms() + FAR_MS)
    await desk.quarantine.release("olga", asked((ONE, "clock_off")))
    with pytest.raises(Refusal) as refused:
        await desk.quarantine.release("olga", asked((f"{id_of(2)}/0/1", "clock_off")))
    assert refused.value.problem.code == "release_changed"


def test_the_longest_page_fits_one_message() -> None:
    what, text, most = "w" * 200, "\x01" * 1_000, LARGEST_AMOUNT
    released = Released(
        release=id_of(1),
        cluster="c" * 63,
        what=what,
        code="c" * 63,
        counted_gpu_ms=most,
        author="a" * 63,
        reason=text,
        at_ms=LATEST_INSTANT_MS,
    )
    item = QuarantineItem(
        what=what,
        code="c" * 63,
        sentence="s" * 1_000,
        excess_gpu_ms=most,
        most_excess_gpu_ms=most,
        times=2**53,
        first_at_ms=LATEST_INSTANT_MS,
        last_at_ms=LATEST_INSTANT_MS,
        last_message=id_of(1),
        released=released,
    )
    assert len(msgspec.json.encode(QuarantinePage(items=(item,) * ITEMS_MAX, more=True))) <= MAX_MESSAGE_BYTES


async def test_only_an_operator_may_release(lab: Lab) -> None:
    bus = await lab.bus("user", "ada")
    with pytest.raises((Refusal, Transient)) as refused:
        await ask(bus, subjects.RELEASE, "ada", asked((ONE, "clock_off")))
    assert isinstance(refused.value, Refusal)
    assert refused.value.problem.code == "not_permitted"
