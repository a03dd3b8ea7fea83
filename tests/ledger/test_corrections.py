"""Corrections: double entry, append-only, once; they show in standings, usage and statements, and not in what was measured."""

from itertools import pairwise
from typing import NamedTuple

import asyncpg
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.chassis.errors import Transient
from allmende.chassis.rpc import ask
from allmende.ledger.handlers.corrections import CORRECTIONS_MAX
from allmende.ledger.handlers.reports import Reports
from allmende.ledger.handlers.verify import Verification
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.rules.corrections import spread
from allmende.ledger.store.reading import ReadingStore
from allmende.ledger.store.reports import ReportStore
from allmende.ledger.store.verify import VerifyStore
from allmende.proto import subjects
from allmende.proto.corrections import Correct, Correction, CorrectionsPage, CorrectionsQuery
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.reports import StatementPage, StatementQuery, UsageQuery, VerifyQuery
from allmende.proto.units import DAY_MS, HOUR_MS, LATEST_INSTANT_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab

END_MS = START_MS + HOUR_MS


async def desk_of(lab: Lab) -> Desk:
    """Of 8 GPUs in an hour: nlp had 4 for all of it, rl 1 for 6 minutes, nobody 2 for half of it. It is a day later."""
    desk = Desk(await lab.database("ledger"), clock_at(24), slice_cap_ms=0)
    await desk.hear(*tree(), node(), granted(1, gpus=4), granted(2, budget="rl"), granted(3, budget=None, gpus=2))
    await desk.hear(
        ended(1, END_MS, counter(1, HOUR_MS, 9, gpus=4)),
        ended(2, START_MS + HOUR_MS // 10, counter(2, HOUR_MS // 10, 9)),
        ended(3, START_MS + HOUR_MS // 2, counter(3, HOUR_MS // 2, 9, gpus=2)),
    )
    return desk


BEFORE = {"nlp": 4 * HOUR_MS, "rl": HOUR_MS // 10, None: HOUR_MS}


def asked(
    take_from: str,
    charge_to: str,
    amount_gpu_ms: int | None = HOUR_MS,
    *,
    number: int = 500,
    from_ms: int = START_MS,
    to_ms: int = END_MS,
    cluster: str = "c1",
    reason: str = "looked at it",
) -> Correct:
    return Correct(
        correction=id_of(number),
        cluster=cluster,
        take_from=take_from,
        charge_to=charge_to,
        from_ms=from_ms,
        to_ms=to_ms,
        amount_gpu_ms=amount_gpu_ms,
        reason=reason,
    )


async def usage(desk: Desk) -> dict[str | None, int]:
    query = UsageQuery(cluster="c1", from_ms=START_MS, to_ms=END_MS, step_ms=HOUR_MS)
    page = await Reports(desk.db, ReportStore(), desk.clock).usage("olga", query)
    return {row.budget: row.gpu_ms for row in page.rows}


async def statement(desk: Desk, budget: str = "nlp", from_ms: int = START_MS, to_ms: int = END_MS) -> StatementPage:
    query = StatementQuery(cluster="c1", budget=budget, from_ms=from_ms, to_ms=to_ms)
    return await Reports(desk.db, ReportStore(), desk.clock).statement("olga", query)


async def check_agreement(desk: Desk) -> None:
    """The books agree with the postings and corrections, and the measured ones still add up."""
    told = await Verification(desk.db, VerifyStore(), ReadingStore(), desk.clock).verify("olga", VerifyQuery(cluster="c1"))
    assert told.differences == ()
    (hour,) = await desk.books(START_MS, END_MS, HOUR_MS)
    assert (hour.allocated_gpu_ms, hour.unallocated_gpu_ms) == (BEFORE["nlp"] + BEFORE["rl"], BEFORE[None]), "as it was measured"


class Moved(NamedTuple):
    sentence: str
    request: Correct
    after: dict[str | None, int]


MOVED = [
    Moved("from budget to budget", asked("budget/nlp", "budget/rl"), {"nlp": -HOUR_MS, "rl": HOUR_MS}),
    Moved("to nobody", asked("budget/nlp", "unallocated"), {"nlp": -HOUR_MS, None: HOUR_MS}),
    Moved("from nobody", asked("unallocated", "budget/nlp"), {"nlp": HOUR_MS, None: -HOUR_MS}),
    Moved("it was never used", asked("budget/nlp", "capacity"), {"nlp": -HOUR_MS}),
    Moved("it was used and never charged", asked("capacity", "budget/rl"), {"rl": HOUR_MS}),
    Moved("to a budget that was never charged", asked("budget/nlp", "budget/vision"), {"nlp": -HOUR_MS, "vision": HOUR_MS}),
    Moved("all of it", asked("budget/nlp", "budget/rl", None), {"nlp": -4 * HOUR_MS, "rl": 4 * HOUR_MS}),
    Moved(
        "all of a part of the span",
        asked("budget/nlp", "capacity", None, from_ms=START_MS + BUCKET_MS, to_ms=START_MS + 3 * BUCKET_MS),
        {"nlp": -8 * BUCKET_MS},
    ),
    Moved("a single GPU-millisecond", asked("budget/nlp", "budget/rl", 1), {"nlp": -1, "rl": 1}),
    Moved(
        "all the capacity that nobody was charged for", asked("capacity", "budget/rl", None), {"rl": 3 * HOUR_MS - HOUR_MS // 10}
    ),
]


@pytest.mark.parametrize("row", MOVED, ids=lambda row: row.sentence)
async def test_what_a_correction_moves(lab: Lab, row: Moved) -> None:
    desk = await desk_of(lab)
    made = await desk.corrections.correct("olga", row.request)
    assert (made.author, made.reason, made.number) == ("olga", "looked at it", 1)
    expected = {name: BEFORE.get(name, 0) + row.after.get(name, 0) for name in BEFORE | row.after}
    assert await usage(desk) == {name: amount for name, amount in expected.items() if amount or name in BEFORE}
    standings = await desk.standings()
    for budget in ("nlp", "rl", "vision"):
        assert standings[budget].charged_gpu_ms == expected.get(budget, 0), budget
        page = await statement(desk, budget)
        assert (page.opening_gpu_ms, page.corrected_gpu_ms) == (0, row.after.get(budget, 0)), budget
        assert page.closing_gpu_ms == expected.get(budget, 0), budget
    assert standings["org"].charged_gpu_ms == sum(amount for name, amount in expected.items() if name)
    await check_agreement(desk)
    assert await desk.corrections.correct("olga", row.request) == made, "the same again is the same correction"
    assert await usage(desk) == {name: amount for name, amount in expected.items() if amount or name in BEFORE}


class No(NamedTuple):
    sentence: str
    request: Correct
    code: str


REFUSED = [
    No("an account to itself", asked("budget/nlp", "budget/nlp"), "same_account"),
    No("an edge that is none", asked("budget/nlp", "budget/rl", to_ms=END_MS - 1), "not_on_an_edge"),
    No("no time at all", asked("budget/nlp", "budget/rl", to_ms=START_MS), "empty_span"),
    No("more than a month", asked("budget/nlp", "budget/rl", from_ms=START_MS - 31 * DAY_MS), "span_too_long"),
    No("a time that has not come", asked("budget/nlp", "budget/rl", to_ms=END_MS + DAY_MS), "not_yet"),
    No("a cluster that is none", asked("budget/nlp", "budget/rl", cluster="mars"), "unknown_cluster"),
    No("a budget that is none", asked("budget/nlp", "budget/visoin"), "unknown_budget"),
    No("a budget that is none gives", asked("budget/visoin", "budget/rl"), "unknown_budget"),
    No("a budget with others below it", asked("budget/nlp", "budget/research"), "has_budgets_below"),
    No("more than there is", asked("budget/rl", "budget/nlp", HOUR_MS // 10 + 1), "more_than_there_is"),
    No("all of nothing", asked("budget/vision", "budget/nlp", None), "more_than_there_is"),
    No("more than the capacity", asked("capacity", "budget/nlp", 3 * HOUR_MS - HOUR_MS // 10 + 1), "more_than_there_is"),
    No(
        "a capacity that is not known",
        asked("capacity", "budget/nlp", 1, from_ms=START_MS - HOUR_MS, to_ms=START_MS),
        "more_than_there_is",
    ),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.sentence)
async def test_what_is_refused_changes_nothing(lab: Lab, row: No) -> None:
    desk = await desk_of(lab)
    with pytest.raises(Refusal) as refused:
        await desk.corrections.correct("olga", row.request)
    assert refused.value.problem.code == row.code, refused.value.problem
    assert await usage(desk) == BEFORE


async def test_an_id_is_one_correction_and_the_opposite_one_undoes_it(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.corrections.correct("olga", asked("budget/nlp", "budget/rl", 12_345))
    for other in (
        asked("budget/nlp", "budget/rl", 12_346),
        asked("budget/nlp", "budget/rl", None),
        asked("budget/rl", "budget/nlp", 12_345),
    ):
        with pytest.raises(Refusal) as refused:
            await desk.corrections.correct("olga", other)
        assert refused.value.problem.code == "correction_changed"
    await desk.corrections.correct("olga", asked("budget/rl", "budget/nlp", 12_345, number=501))
    assert await usage(desk) == BEFORE
    assert [(await statement(desk, name)).corrected_gpu_ms for name in ("nlp", "rl")] == [0, 0]
    await check_agreement(desk)


async def test_statements_of_neighbouring_spans_meet_and_name_the_corrections(lab: Lab) -> None:
    desk = await desk_of(lab)
    for number in range(2 * CORRECTIONS_MAX + 1):
        await desk.corrections.correct("olga", asked("budget/nlp", "budget/rl", 100_001 + number, number=500 + number))
    edges = [START_MS, START_MS + 1, START_MS + BUCKET_MS, START_MS + 7 * BUCKET_MS + 5, END_MS, END_MS + HOUR_MS]
    for from_ms, to_ms in pairwise(edges):
        page, after = await statement(desk, "nlp", from_ms, to_ms), await statement(desk, "nlp", to_ms, to_ms + 1)
        assert page.closing_gpu_ms == after.opening_gpu_ms
        assert page.closing_gpu_ms == page.opening_gpu_ms + sum(line.charged_gpu_ms for line in page.lines) + page.corrected_gpu_ms
        query = CorrectionsQuery(cluster="c1", budget="nlp", from_ms=from_ms, to_ms=to_ms)
        found: list[Correction] = []
        while True:
            told = await desk.corrections.corrections("ada", query)
            found += told.corrections
            if told.next_after is None:
                break
            query = replace(query, after=told.next_after)
        assert page.corrected_gpu_ms == -sum(each.within_gpu_ms for each in found)
    assert (await statement(desk)).closing_gpu_ms == (await usage(desk))["nlp"]


async def test_a_correction_leaves_the_window_with_the_time_that_it_is_about(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.corrections.correct("olga", asked("budget/nlp", "budget/rl", None))
    desk.clock.advance(7 * DAY_MS)
    assert {name: each.charged_gpu_ms for name, each in (await desk.standings()).items()} == dict.fromkeys(
        await desk.standings(), 0
    )


async def test_a_correction_is_in_the_next_round_of_standings(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.pass_second()
    await desk.corrections.correct("olga", asked("budget/nlp", "budget/rl", HOUR_MS))
    said = {body.budget: body.charged_gpu_ms for body in await desk.pass_second()}
    assert (said["nlp"], said["rl"]) == (3 * HOUR_MS, HOUR_MS + HOUR_MS // 10)


@pytest.mark.parametrize("table", ["correction", "correction_entry"])
@pytest.mark.parametrize(
    "verb",
    ["UPDATE {} SET amount_gpu_ms = 1", "DELETE FROM {}", "TRUNCATE {} CASCADE", "GRANT ALL ON {} TO ledger; DELETE FROM {}"],
)
async def test_corrections_are_for_ever(lab: Lab, table: str, verb: str) -> None:
    desk = await desk_of(lab)
    await desk.corrections.correct("olga", asked("budget/nlp", "budget/rl"))
    connection = await asyncpg.connect(lab.dsn("ledger"), server_settings={"search_path": "ledger"})
    try:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.RestrictViolationError)):
            await connection.execute(verb.format(table, table))
    finally:
        await connection.close()


ROOM = st.dictionaries(st.integers(0, 40).map(lambda number: number * BUCKET_MS), st.integers(1, 2**40), min_size=1, max_size=12)


@given(ROOM, st.data())
def test_entries_sum_to_the_amount_and_fit_their_buckets(room: dict[int, int], data: st.DataObject) -> None:
    amount = data.draw(st.integers(1, sum(room.values())))
    entries = spread(amount, room)
    assert sum(each.amount_gpu_ms for each in entries) == amount
    assert all(0 < each.amount_gpu_ms <= room[each.bucket_ms] for each in entries)


def test_the_longest_page_fits_one_message() -> None:
    longest = Correction(
        number=2**53,
        correction=id_of(1),
        cluster="c" * 63,
        take_from="budget/" + "n" * 63,
        charge_to="budget/" + "m" * 63,
        from_ms=LATEST_INSTANT_MS,
        to_ms=LATEST_INSTANT_MS,
        amount_gpu_ms=2**53,
        within_gpu_ms=2**53,
        author="a" * 63,
        reason="\x01" * 1_000,
        at_ms=LATEST_INSTANT_MS,
    )
    page = CorrectionsPage(corrections=(longest,) * CORRECTIONS_MAX, next_after=2**53)
    assert len(msgspec.json.encode(page)) <= MAX_MESSAGE_BYTES


async def test_only_an_operator_may_correct(lab: Lab) -> None:
    bus = await lab.bus("user", "ada")
    with pytest.raises((Refusal, Transient)) as refused:
        await ask(bus, subjects.CORRECT, "ada", asked("budget/nlp", "unallocated"))
    assert isinstance(refused.value, Refusal)
    assert refused.value.problem.code == "not_permitted"
