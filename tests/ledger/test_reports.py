"""Statements and usage over a real database: sums that are exact, of any span, and that agree with the postings."""

from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from allmende.ledger.handlers.reports import CUTS_MAX, LINES_MAX, PARTS_MAX, ROWS_MAX, Reports
from allmende.ledger.store.reports import ReportStore
from allmende.proto.admission import Placed
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.reports import (
    StatementLine,
    StatementPage,
    StatementQuery,
    UsageByMark,
    UsageByPage,
    UsageByQuery,
    UsageByRow,
    UsageMark,
    UsagePage,
    UsageQuery,
    UsageRow,
    UsageSide,
)
from allmende.proto.units import HOUR_MS, LARGEST_AMOUNT, LATEST_INSTANT_MS, MINUTE_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab

EDGE_MS = 5 * MINUTE_MS
END_MS = START_MS + 2 * HOUR_MS
# What was held, by attempt: budget, GPUs, intervals after START_MS.
# Attempt 2 has a gap between two epochs; 3 runs, 200 s beyond an edge.
TRUTH = {
    1: ("nlp", 4, ((0, 1_234_567),)),
    2: ("nlp", 1, ((0, 400_000), (900_000, 1_500_000))),
    3: ("nlp", 2, ((0, 2_000_000),)),
    4: (None, 1, ((0, 700_000),)),
    5: ("rl", 1, ((0, 300_000),)),
}


async def story(lab: Lab) -> tuple[Desk, Reports]:
    desk = Desk(await lab.database("ledger"), clock_at(2))
    await desk.hear(*tree(), node(gpus=16, installed=16))
    for number, (budget, gpus, _) in TRUTH.items():
        await desk.hear(granted(number, gpus=gpus, budget=budget), started(number))
    again = counter(2, 600_000, 1, epoch=2, since_ms=START_MS + 900_000)
    await desk.hear(tick(counter(2, 400_000, 4), counter(3, 2_000_000, 9, gpus=2)))
    await desk.hear(ended(1, START_MS + 1_234_567, counter(1, 1_234_567, 9, gpus=4)))
    await desk.hear(ended(2, START_MS + 1_500_000, again, outcome="failed"))
    await desk.hear(ended(4, START_MS + 700_000, counter(4, 700_000, 2)))
    await desk.hear(ended(5, START_MS + 300_000, counter(5, 300_000, 2)))
    return desk, Reports(desk.db, ReportStore(), desk.clock)


def truth(number: int, from_ms: int, to_ms: int) -> int:
    """GPU-ms that an attempt held in a span after START_MS."""
    _, gpus, intervals = TRUTH[number]
    return gpus * sum(max(0, min(end, to_ms) - max(begin, from_ms)) for begin, end in intervals)


async def statement(reports: Reports, from_ms: int, to_ms: int, budget: str = "nlp", cluster: str = "c1") -> StatementPage:
    query = StatementQuery(cluster=cluster, budget=budget, from_ms=START_MS + from_ms, to_ms=START_MS + to_ms)
    return await reports.statement("olga", query)


async def usage(reports: Reports, from_ms: int, to_ms: int, step_ms: int, after: UsageMark | None = None) -> UsagePage:
    query = UsageQuery(cluster="c1", from_ms=START_MS + from_ms, to_ms=START_MS + to_ms, step_ms=step_ms, after=after)
    return await reports.usage("olga", query)


async def test_a_statement_of_any_span_is_what_was_held_in_it_to_the_millisecond(lab: Lab) -> None:
    _, reports = await story(lab)
    edges = (-1, 0, 1, 299_999, 300_000, 400_000, 900_001, 1_234_567, 1_500_000, 1_900_000, 2_000_000, 7_200_000)
    for from_ms, to_ms in [(a, b) for a in edges for b in edges if a < b]:
        page = await statement(reports, from_ms, to_ms)
        lines = {int(line.attempt): line.charged_gpu_ms for line in page.lines}
        expected = {number: truth(number, from_ms, to_ms) for number in (1, 2, 3)}
        assert {number: amount for number, amount in expected.items() if amount} == {n: a for n, a in lines.items() if a}
        assert page.opening_gpu_ms == sum(truth(number, 0, from_ms) for number in (1, 2, 3)), (from_ms, to_ms)
        assert page.closing_gpu_ms == page.opening_gpu_ms + sum(lines.values())


async def test_the_closing_of_one_span_opens_the_next(lab: Lab) -> None:
    _, reports = await story(lab)
    pages = [await statement(reports, begin, begin + 123_457) for begin in range(0, 2_200_000, 123_457)]
    assert all(before.closing_gpu_ms == after.opening_gpu_ms for before, after in pairwise(pages))


async def test_holds_stand_beside_the_sums_and_end_with_the_attempt(lab: Lab) -> None:
    _, reports = await story(lab)
    page = await statement(reports, 0, 7_200_000)
    held = {int(line.attempt): (line.gpus, line.held_gpu_ms, line.outcome) for line in page.lines}
    left = 2 * (HOUR_MS - 2_000_000)
    assert held == {1: (4, 0, "finished"), 2: (1, 0, "failed"), 3: (2, left, None)}
    assert page.held_gpu_ms == left


async def test_an_attempt_without_a_counter_is_charged_nothing_in_any_span(lab: Lab) -> None:
    """BR-052. Granted, started and not ticked yet, and never started: nothing is known of them to have been held."""
    desk, reports = await story(lab)
    spans = ((-600_000, 0), (0, 1), (0, 7_200_000), (7_199_999, 7_200_000))
    before = [await statement(reports, *span) for span in spans]
    await desk.hear(
        granted(6), granted(7, gpus=8), started(7), granted(8, gpus=8), ended(8, START_MS + 60_000, outcome="never_started")
    )
    for span, said in zip(spans, before, strict=True):
        page = await statement(reports, *span)
        assert {line.charged_gpu_ms for line in page.lines if int(line.attempt) > 5} <= {0}, span
        assert (page.opening_gpu_ms, page.closing_gpu_ms) == (said.opening_gpu_ms, said.closing_gpu_ms), span
        assert page.closing_gpu_ms == page.opening_gpu_ms + sum(line.charged_gpu_ms for line in page.lines)


async def test_statements_and_usage_agree_with_postings_and_standings(lab: Lab) -> None:
    desk, reports = await story(lab)
    page = await statement(reports, 0, 7_200_000)
    rest = 2 * 200_000
    assert page.closing_gpu_ms == sum(each.amount_gpu_ms for each in await desk.postings() if each.budget == "nlp") + rest
    assert page.closing_gpu_ms == (await desk.standings())["nlp"].charged_gpu_ms
    whole = await usage(reports, 0, 7_200_000, 7_200_000)
    assert {row.budget: row.gpu_ms for row in whole.rows} == {None: 700_000, "nlp": page.closing_gpu_ms, "rl": 300_000}


async def test_usage_by_step_is_what_was_held_in_each_step(lab: Lab) -> None:
    _, reports = await story(lab)
    page = await usage(reports, -600_000, 1_950_000 // EDGE_MS * EDGE_MS + EDGE_MS, 2 * EDGE_MS)
    expected = []
    for begin in range(-600_000, 2_100_000, 2 * EDGE_MS):
        end = min(begin + 2 * EDGE_MS, 2_100_000)
        for budget, numbers in ((None, (4,)), ("nlp", (1, 2, 3)), ("rl", (5,))):
            amount = sum(truth(number, begin, end) for number in numbers)
            if amount:
                expected.append(UsageRow(from_ms=START_MS + begin, budget=budget, gpu_ms=amount))
    assert list(page.rows) == expected


async def test_pages_are_cut_between_rows_and_lose_none(lab: Lab) -> None:
    desk, reports = await story(lab)
    numbers = range(100, 100 + LINES_MAX + 1)
    grants = [granted(number, budget="vision", seq=number) for number in numbers]
    await desk.hear(*grants, *(ended(n, START_MS + 1_000, counter(n, 1_000, 1)) for n in numbers))
    first = await statement(reports, 0, HOUR_MS, "vision")
    assert (len(first.lines), first.next_after) == (LINES_MAX, id_of(numbers[LINES_MAX - 1]))
    query = StatementQuery(cluster="c1", budget="vision", from_ms=START_MS, to_ms=END_MS, after=first.next_after)
    second = await reports.statement("olga", query)
    assert [line.attempt for line in second.lines] == [id_of(numbers[-1])]
    assert second.next_after is None
    assert first.closing_gpu_ms == second.closing_gpu_ms == len(numbers) * 1_000
    rows = (await usage(reports, 0, 7_200_000, EDGE_MS)).rows
    for at, row in enumerate(rows):
        mark = UsageMark(from_ms=row.from_ms, budget=row.budget)
        assert (await usage(reports, 0, 7_200_000, EDGE_MS, mark)).rows == rows[at + 1 :]


PLACES = {
    # User, budget, and replicas on each node. Of the nodes a has h100, b has a100 and later b200, and c never said what it has.
    11: ("ann", "nlp", (("a", 2), ("b", 1))),
    12: ("bob", "nlp", (("b", 1),)),
    13: ("ann", None, (("c", 1),)),
}
REPLICA_MS = {(11, 0): 700_000, (11, 1): 650_001, (11, 2): 300_000, (12, 0): 900_000, (13, 0): 299_999}
MODELS = {"a": "h100", "b": "a100", "c": None}


async def gangs(lab: Lab) -> tuple[Desk, Reports]:
    """Attempts of two GPUs a replica on nodes of several models, one of them unallocated; 12 still runs."""
    desk = Desk(await lab.database("ledger"), clock_at(2))
    nodes = [replace(node(name, installed=16, gpus=16), gpu_model=model) for name, model in MODELS.items()]
    newer = replace(node("b", installed=16, gpus=16, at_ms=START_MS + HOUR_MS, seq=2), gpu_model="b200")
    await desk.hear(*tree(), *nodes, newer)
    for number, (user, budget, nodes_of) in PLACES.items():
        placement = tuple(Placed(node=name, replicas=replicas) for name, replicas in nodes_of)
        said = granted(number, gpus=2, budget=budget)
        await desk.hear(replace(said, user=user, placement=placement), started(number))
    await desk.hear(tick(counter(12, 900_000, 1, gpus=2)))
    finals = [counter(11, REPLICA_MS[11, replica], 1, gpus=2, replica=replica) for replica in range(3)]
    await desk.hear(ended(11, START_MS + 700_000, *finals))
    await desk.hear(ended(13, START_MS + 299_999, counter(13, 299_999, 1, gpus=2)))
    return desk, Reports(desk.db, ReportStore(), desk.clock)


async def usage_by(
    reports: Reports, by: UsageSide, step_ms: int, to_ms: int = 7_200_000, after: UsageByMark | None = None
) -> UsageByPage:
    query = UsageByQuery(cluster="c1", by=by, from_ms=START_MS, to_ms=START_MS + to_ms, step_ms=step_ms, after=after)
    return await reports.usage_by("olga", query)


def side(by: UsageSide, number: int, replica: int) -> str | None:
    user, _, nodes_of = PLACES[number]
    nodes = [name for name, replicas in nodes_of for _ in range(replicas)]
    return user if by == "user" else MODELS[nodes[replica]]


@pytest.mark.parametrize("by", ["user", "gpu_model"])
async def test_usage_by_user_and_by_model_is_what_each_replica_held_in_each_step(lab: Lab, by: UsageSide) -> None:
    _, reports = await gangs(lab)
    cells: dict[tuple[int, str], list[int]] = {}
    for (number, replica), held_ms in REPLICA_MS.items():
        for begin in range(0, held_ms, EDGE_MS):
            cell = cells.setdefault((begin, side(by, number, replica) or ""), [0, 0])
            cell[PLACES[number][1] is None] += 2 * (min(begin + EDGE_MS, held_ms) - begin)
    expected = [
        UsageByRow(from_ms=START_MS + begin, name=name or None, allocated_gpu_ms=amounts[0], unallocated_gpu_ms=amounts[1])
        for (begin, name), amounts in sorted(cells.items())
    ]
    assert list((await usage_by(reports, by, EDGE_MS)).rows) == expected
    for at, row in enumerate(expected):
        mark = UsageByMark(from_ms=row.from_ms, name=row.name)
        assert list((await usage_by(reports, by, EDGE_MS, after=mark)).rows) == expected[at + 1 :]


async def test_usage_by_user_and_by_model_adds_up_to_that_of_budgets(lab: Lab) -> None:
    _, reports = await gangs(lab)
    for to_ms in (300_000, 600_000, 7_200_000):
        whole = {row.budget: row.gpu_ms for row in (await usage(reports, 0, to_ms, to_ms)).rows}
        for by in ("user", "gpu_model"):
            rows = (await usage_by(reports, by, to_ms, to_ms)).rows
            sums = sum(row.allocated_gpu_ms for row in rows), sum(row.unallocated_gpu_ms for row in rows)
            assert sums == (whole["nlp"], whole[None]), (by, to_ms)


async def test_a_second_grant_changes_neither_user_nor_node(lab: Lab) -> None:
    desk, reports = await gangs(lab)
    before = [(await usage_by(reports, by, 7_200_000)).rows for by in ("user", "gpu_model")]
    again = replace(granted(12, gpus=2), user="eve", placement=(Placed(node="a", replicas=1),))
    await desk.hear(again, replace(again, gpus_per_replica=1))
    assert [(await usage_by(reports, by, 7_200_000)).rows for by in ("user", "gpu_model")] == before


async def test_attempts_of_before_the_table_are_of_nobody_known_and_nothing_is_lost(lab: Lab) -> None:
    desk, reports = await gangs(lab)
    async with desk.db.transaction() as tx:
        await tx.connection.execute("DELETE FROM placed")
    for by in ("user", "gpu_model"):
        (row,) = (await usage_by(reports, by, 7_200_000)).rows
        allocated = sum(2 * held for (number, _), held in REPLICA_MS.items() if number != 13)
        assert (row.name, row.allocated_gpu_ms, row.unallocated_gpu_ms) == (None, allocated, 2 * 299_999)


async def test_too_many_steps_are_refused(lab: Lab) -> None:
    _, reports = await gangs(lab)
    await usage_by(reports, "user", EDGE_MS, CUTS_MAX * EDGE_MS)
    for to_ms, code in (((CUTS_MAX + 1) * EDGE_MS, "too_many_steps"), (EDGE_MS + 1, "not_on_an_edge"), (0, "empty_span")):
        with pytest.raises(Refusal) as refused:
            await usage_by(reports, "user", EDGE_MS, to_ms)
        assert refused.value.problem.code == code
    with pytest.raises(Refusal, match=r"to_ms may be \d{4}-\d\d-\d\dT\d\d:\d\dZ, not \d{4}-\d\d-\d\dT\d\d:\d\d:00\.001Z"):
        await usage_by(reports, "user", EDGE_MS, EDGE_MS + 1)
    with pytest.raises(Refusal, match="step_ms may be 300000 ms, not 300001 ms"):
        await usage_by(reports, "user", EDGE_MS + 1, EDGE_MS)


STATEMENTS = [
    ("a span that ends before it begins", 5, 5, "nlp", "c1", "empty_span"),
    ("a cluster that never said anything", 0, 5, "nlp", "mars", "unknown_cluster"),
    ("a budget that never was", 0, 5, "nobody", "c1", "unknown_budget"),
    ("a budget with others below it", 0, 5, "research", "c1", "has_budgets_below"),
]


async def test_what_has_no_answer_is_refused_and_nothing_is_shown_as_zero(lab: Lab) -> None:
    _, reports = await story(lab)
    for sentence, from_ms, to_ms, budget, cluster, code in STATEMENTS:
        with pytest.raises(Refusal) as refused:
            await statement(reports, from_ms, to_ms, budget, cluster)
        assert refused.value.problem.code == code, sentence
    for from_ms, to_ms, step_ms in ((1, EDGE_MS, EDGE_MS), (0, EDGE_MS + 1, EDGE_MS), (0, EDGE_MS, 7)):
        with pytest.raises(Refusal) as refused:
            await usage(reports, from_ms, to_ms, step_ms)
        assert refused.value.problem.code == "not_on_an_edge"
    quiet = await statement(reports, 0, 5, "vision")
    assert (quiet.closing_gpu_ms, quiet.lines) == (0, ()), "a leaf that was never charged has a statement: nothing was charged"


def test_the_longest_pages_fit_one_message() -> None:
    name, most = "n" * 63, LARGEST_AMOUNT
    line = StatementLine(
        attempt=id_of(1),
        job=id_of(2),
        gpus=1_000_000,
        granted_at_ms=LATEST_INSTANT_MS,
        ended_at_ms=LATEST_INSTANT_MS,
        outcome="never_started",
        charged_gpu_ms=most,
        held_gpu_ms=most,
    )
    statement_page = StatementPage(
        cluster=name,
        budget=name,
        as_of_ms=LATEST_INSTANT_MS,
        opening_gpu_ms=most,
        closing_gpu_ms=most,
        held_gpu_ms=most,
        lines=(line,) * LINES_MAX,
        next_after=id_of(1),
    )
    row = UsageRow(from_ms=LATEST_INSTANT_MS, budget=name, gpu_ms=most)
    mark = UsageMark(from_ms=LATEST_INSTANT_MS, budget=name)
    usage_page = UsagePage(cluster=name, as_of_ms=LATEST_INSTANT_MS, rows=(row,) * ROWS_MAX, next_after=mark)
    part = UsageByRow(from_ms=LATEST_INSTANT_MS, name=name, allocated_gpu_ms=most, unallocated_gpu_ms=most)
    place = UsageByMark(from_ms=LATEST_INSTANT_MS, name=name)
    by_page = UsageByPage(cluster=name, by="gpu_model", as_of_ms=LATEST_INSTANT_MS, rows=(part,) * PARTS_MAX, next_after=place)
    for page in (statement_page, usage_page, by_page):
        assert len(msgspec.json.encode(page)) < MAX_MESSAGE_BYTES - 1_024
