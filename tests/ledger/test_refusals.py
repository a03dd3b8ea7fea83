"""What is not counted is kept, shown and told to its publisher, and nothing else is disturbed; postings are for ever."""

from typing import Any

import asyncpg
import msgspec
import pytest

from allmende.ledger import wire
from allmende.ledger.handlers.answers import FAULTS_MAX
from allmende.ledger.model import BUCKET_MS, FaultRow
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.ledger import FaultsPage, FaultsQuery, UsageConfirmed
from allmende.proto.message import MessageRefused
from allmende.proto.units import HOUR_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, tick, tree
from tests.ledger.desk import Desk, clock_at, joined, refusals
from tests.servers import Lab


async def desk_of(lab: Lab, hours: float = 2) -> Desk:
    desk = Desk(await lab.database("ledger"), clock_at(hours))
    await desk.hear(*tree(), node())
    return desk


async def test_one_bad_counter_of_a_tick_is_refused_and_the_others_count(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(granted(1), granted(2), granted(3, cluster="c2"), tick(counter(1, 600_000, 5)))
    said = await desk.hear(tick(counter(1, 300_000, 6), counter(2, 600_000, 1), counter(3, 600_000, 1)))
    (word,) = [body for body in said if isinstance(body, MessageRefused)]
    assert (word.service, word.publisher, word.problem.code) == ("ledger", "c1", "counter_backwards")
    assert "1 more fault" in word.problem.sentence
    books = joined(await desk.postings())
    assert {key: held.amount_gpu_ms for key, held in books.items()} == {(id_of(1), 0): 600_000, (id_of(2), 0): 600_000}
    assert await desk.faults() == {(f"{id_of(1)}/0/1", "counter_backwards"): 1, (f"{id_of(3)}/0/1", "foreign_attempt"): 1}
    assert (await desk.state()).quarantined == 2


async def test_another_cluster_cannot_take_an_attempts_place_before_its_grant(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(node(cluster="c2"), tick(counter(1, HOUR_MS, 9), cluster="c2"))
    await desk.hear(granted(1), tick(counter(1, 600_000, 1)))
    assert (await desk.state()).posted_gpu_ms == 600_000
    assert (await desk.state("c2")).posted_gpu_ms == 0
    assert (await desk.state("c2")).unattributed_counters == 1, "shown, never posted"


async def test_a_claim_on_the_future_is_cut_and_shown(lab: Lab) -> None:
    desk = await desk_of(lab, hours=1)
    said = await desk.hear(granted(1), tick(counter(1, 3 * HOUR_MS, 1)))
    assert refusals(said) == ["ahead_of_clock"]
    assert (await desk.state()).posted_gpu_ms == HOUR_MS
    async with desk.db.reading() as connection:
        assert await connection.fetchval("SELECT excess_gpu_ms FROM fault") == 2 * HOUR_MS - 5_000


async def test_a_report_of_the_future_is_refused(lab: Lab) -> None:
    desk = await desk_of(lab, hours=1)
    said = await desk.hear(node(gpus=1, at_ms=START_MS + 2 * HOUR_MS, seq=2))
    assert refusals(said) == ["report_ahead_of_clock"]
    assert (await desk.standings())["org"].available_gpus == 8


async def test_a_fault_that_repeats_is_one_row_that_counts(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(granted(1), tick(counter(1, 600_000, 5)))
    for seq in (6, 7):
        assert refusals(await desk.hear(tick(counter(1, 1, seq)))) == ["counter_backwards"]
    assert await desk.faults() == {(f"{id_of(1)}/0/1", "counter_backwards"): 2}


async def test_contradicting_grants_and_ends_are_refused_and_the_first_stands(lab: Lab) -> None:
    desk = await desk_of(lab)
    said = await desk.hear(granted(1), ended(1, START_MS + 10, counter(1, 10, 1)))
    assert refusals(said) == []
    said = await desk.hear(granted(1, budget="vision"), ended(1, START_MS + 9))
    assert refusals(said) == ["grant_changed", "end_changed"]
    assert {posting.budget for posting in await desk.postings()} == {"nlp"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE posting SET gpus = gpus",
        "DELETE FROM posting",
        "TRUNCATE posting",
        "GRANT UPDATE ON posting TO ledger; UPDATE posting SET gpus = gpus",
    ],
)
async def test_the_ledgers_role_cannot_change_postings_even_after_a_grant_to_itself(lab: Lab, statement: str) -> None:
    desk = await desk_of(lab)
    await desk.hear(granted(1), tick(counter(1, 600_000, 1)))
    connection = await asyncpg.connect(lab.dsn("ledger"), server_settings={"search_path": "ledger"})
    try:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.RestrictViolationError)):
            await connection.execute(statement)
    finally:
        await connection.close()
    assert (await desk.state()).posted_gpu_ms == 600_000


@pytest.mark.parametrize(
    "change",
    [
        {"amount_gpu_ms": 1},
        {"from_ms": START_MS, "to_ms": START_MS},
        {"to_ms": START_MS + BUCKET_MS + 1, "amount_gpu_ms": BUCKET_MS + 1},
        {"debit_account": "capacity/c2"},
        {"credit_account": "gift"},
        {"attempt": id_of(77)},
    ],
    ids=lambda change: ",".join(change),
)
async def test_the_tables_refuse_a_posting_that_makes_no_sense(lab: Lab, change: dict[str, Any]) -> None:
    desk = await desk_of(lab)
    await desk.hear(granted(1))
    row: dict[str, Any] = {
        "cluster": "c1",
        "attempt": id_of(1),
        "replica": 0,
        "epoch": 1,
        "from_ms": START_MS,
        "to_ms": START_MS + BUCKET_MS,
        "gpus": 1,
        "debit_account": "capacity/c1",
        "credit_account": "budget/nlp",
        "amount_gpu_ms": BUCKET_MS,
        "event": id_of(5),
    }
    names, places = ", ".join(row), ", ".join(f"${place}" for place in range(1, len(row) + 1))
    connection = await asyncpg.connect(lab.dsn("ledger"), server_settings={"search_path": "ledger"})
    try:
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await connection.execute(f"INSERT INTO posting ({names}) VALUES ({places})", *(row | change).values())
        await connection.execute(f"INSERT INTO posting ({names}) VALUES ({places})", *row.values())
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute(f"INSERT INTO posting ({names}) VALUES ({places})", *row.values())
    finally:
        await connection.close()


async def test_everything_that_is_not_counted_is_listed_by_pages(lab: Lab) -> None:
    """Also what is in one message with what counts, and none of it is posted."""
    desk = Desk(await lab.database("ledger"), clock_at(1))
    wrong = range(1, 46)
    await desk.hear(*(granted(number) for number in wrong))
    await desk.hear(tick(counter(50, 1_000, 1), *(counter(number, 600_000, 1, used_gpu_ms=1) for number in wrong)), granted(50))
    first = await desk.answers.faults("olga", FaultsQuery(cluster="c1"))
    assert (len(first.faults), first.more) == (40, True)
    last = first.faults[-1]
    rest = await desk.answers.faults("olga", FaultsQuery(cluster="c1", after_what=last.what, after_code=last.code))
    assert not rest.more
    found = [*first.faults, *rest.faults]
    assert [each.what for each in found] == [f"{id_of(number)}/0/1" for number in wrong]
    assert {(each.code, each.times, each.excess_gpu_ms) for each in found} == {("amount_mismatch", 1, 1)}
    assert (await desk.state()).posted_gpu_ms == 0
    assert (await desk.state()).unattributed_counters == 0
    with pytest.raises(Refusal, match="nothing was ever heard"):
        await desk.answers.faults("olga", FaultsQuery(cluster="c2"))


async def test_a_page_of_the_longest_faults_fits_one_message() -> None:
    worst = FaultRow("x" * 100, "y" * 40, "z" * 5_000, 2**62, 2**62, 2**62, 2**52, 2**52, id_of(1))
    page = FaultsPage(faults=(wire.fault(worst),) * FAULTS_MAX, more=True)
    assert len(msgspec.json.encode(page)) < MAX_MESSAGE_BYTES


async def test_nothing_of_a_clock_that_runs_over_five_minutes_off_is_believed(lab: Lab) -> None:
    """Five minutes to the millisecond are believed; what was set aside counts as soon as it is said with a right clock."""
    desk = await desk_of(lab)
    now_ms = desk.clock.now_ms()
    await desk.hear(granted(1), granted(2))
    said = await desk.hear(tick(counter(1, 600_000, 1)), sent_at_ms=now_ms + 300_001)
    said += await desk.hear(tick(counter(2, 600_000, 1)), sent_at_ms=now_ms + 300_000)
    said += await desk.hear(tick(counter(1, 600_000, 1)), sent_at_ms=now_ms - 300_001)
    said += await desk.hear(tick(counter(2, 600_000, 1)), sent_at_ms=now_ms - 300_000)
    assert refusals(said) == ["clock_off", "clock_off"]
    assert {key[0] for key in joined(await desk.postings())} == {id_of(2)}
    (fault,) = (await desk.answers.faults("olga", FaultsQuery(cluster="c1"))).faults
    assert (fault.code, fault.excess_gpu_ms) == ("clock_off", 600_000)
    assert refusals(await desk.hear(tick(counter(1, 600_000, 1)))) == []
    assert {key[0] for key in joined(await desk.postings())} == {id_of(1), id_of(2)}


async def test_how_long_a_message_waited_in_the_bus_says_nothing_of_its_senders_clock(lab: Lab) -> None:
    desk = await desk_of(lab)
    now_ms = desk.clock.now_ms()
    await desk.hear(granted(1))
    waited = desk.event(tick(counter(1, 600_000, 1)), now_ms - HOUR_MS)._replace(waited_ms=HOUR_MS)
    assert refusals(await desk.hear_events([waited])) == []
    assert (await desk.state()).posted_gpu_ms == 600_000
    # An hour ago its clock was a quarter of an hour ahead, however right that is by now.
    ahead = desk.event(tick(counter(1, 700_000, 2)), now_ms - HOUR_MS // 4)._replace(waited_ms=HOUR_MS)
    assert refusals(await desk.hear_events([ahead])) == ["clock_off"]


async def test_a_report_by_a_clock_that_is_not_believed_changes_no_capacity(lab: Lab) -> None:
    desk = await desk_of(lab)
    for off_ms in (300_001, -300_001):
        said = await desk.hear(node(gpus=1, seq=2), sent_at_ms=desk.clock.now_ms() + off_ms)
        assert refusals(said) == ["clock_off"]
    assert (await desk.standings())["org"].available_gpus == 8


async def test_an_end_by_a_clock_that_is_not_believed_is_not_confirmed(lab: Lab) -> None:
    """Not even when nothing else is known of the attempt: the agent would forget its only counters."""
    desk = await desk_of(lab)
    end = ended(1, START_MS + 600_000, counter(1, 600_000, 1))
    said = await desk.hear(end, sent_at_ms=desk.clock.now_ms() + HOUR_MS)
    said += await desk.hear(granted(1))
    assert not [body for body in said if isinstance(body, UsageConfirmed)]
    assert (await desk.state()).open_attempts == 1
    said = await desk.hear(end)
    assert [body.attempts for body in said if isinstance(body, UsageConfirmed)] == [(id_of(1),)]
    assert (await desk.state()).posted_gpu_ms == 600_000
