"""Demand over a real database: words about jobs in any order leave the same, and the hours of a leaf are exact and honest."""

import random

import msgspec
import pytest
from msgspec.structs import replace

from allmende.ledger.handlers.figures import HOURS_A_PAGE, HOURS_MAX, ROWS_MAX
from allmende.proto.admission import JobChanged, JobRefused
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.figures import DemandMark, DemandPage, DemandQuery, DemandRow
from allmende.proto.message import Problem
from allmende.proto.units import HOUR_MS, LARGEST_AMOUNT, LATEST_INSTANT_MS, MINUTE_MS
from tests.ledger.asking import HOUR_0, AskingDesk, asked, grant, job_ended, queued
from tests.ledger.builders import counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import clock_at
from tests.servers import Lab

TWO_GPUS = asked(gpus=2, at_ms=HOUR_0 + 30 * MINUTE_MS)
GRANTED_MS = HOUR_0 + HOUR_MS + 15 * MINUTE_MS
ENDED_MS = HOUR_0 + 2 * HOUR_MS + 15 * MINUTE_MS
HELD_MS = ENDED_MS - GRANTED_MS
STORY = (
    *tree(at_ms=HOUR_0),
    node(gpus=10, installed=10, at_ms=HOUR_0),
    queued(1, TWO_GPUS),
    grant(1, TWO_GPUS, GRANTED_MS),
    started(1, GRANTED_MS),
    ended(1, ENDED_MS, counter(1, HELD_MS, 9, gpus=2, since_ms=GRANTED_MS)),
    job_ended(1, ENDED_MS, TWO_GPUS),
)


async def desk_of(lab: Lab, hours: float = 5) -> AskingDesk:
    return AskingDesk(await lab.database("ledger"), clock_at(hours))


def row(hour: int, entitled: int, demand: int, delivered: int, budget: str = "nlp") -> DemandRow:
    return DemandRow(
        from_ms=HOUR_0 + hour * HOUR_MS,
        budget=budget,
        entitled_gpu_ms=entitled,
        demand_gpu_ms=demand,
        owed_gpu_ms=min(entitled, demand),
        delivered_gpu_ms=delivered,
        unmet_gpu_ms=max(0, demand - delivered),
    )


# 10 GPUs x 40 % x 50 %.
ENTITLED = 2 * HOUR_MS
TRUTH = [
    row(0, ENTITLED, HOUR_MS, 0),
    row(1, ENTITLED, 2 * HOUR_MS, 2 * 45 * MINUTE_MS),
    row(2, ENTITLED, 2 * 15 * MINUTE_MS, 2 * 15 * MINUTE_MS),
]


async def test_demand_is_from_submission_to_the_end_and_delivered_what_was_charged(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(*STORY)
    assert await desk.demand(4) == TRUTH


@pytest.mark.parametrize("seed", range(6))
async def test_words_in_any_order_repeated_and_lost_leave_the_same_demand(lab: Lab, seed: int) -> None:
    chance = random.Random(seed)
    desk = await desk_of(lab)
    events = [desk.event(body) for body in STORY]
    lost = chance.sample([event for event in events if event.envelope.type == "job.queued"], k=seed % 2)
    mixed = [event for event in [*events, *chance.sample(events, 6)] if event not in lost]
    chance.shuffle(mixed)
    for at in range(0, len(mixed), 3):
        await desk.hear_events(mixed[at : at + 3])
    assert await desk.demand(4) == TRUTH


async def test_of_two_words_the_later_stands_whichever_comes_first(lab: Lab) -> None:
    desk = await desk_of(lab)
    small, none = asked(gpus=2), asked(gpus=2, slice_ms=0)
    changed = JobChanged(user="bob", job=id_of(1_001), held=False, priority=0, slice_ms=0, author="bob", asked=none)
    first, second = desk.event(queued(1, small)), desk.event(changed)
    await desk.hear(*tree(at_ms=HOUR_0), node(gpus=10, at_ms=HOUR_0))
    await desk.hear_events([second])
    await desk.hear_events([first])
    assert await desk.demand(1) == [], "its slice is 0 now, so it is unallocated and nobody's demand"


async def test_refused_jobs_and_unallocated_ones_are_nobodys_demand(lab: Lab) -> None:
    desk = await desk_of(lab)
    refusal = JobRefused(user="bob", job=id_of(1_001), problem=Problem(code="cannot_start", sentence="it cannot start"))
    await desk.hear(*tree(at_ms=HOUR_0), node(at_ms=HOUR_0), queued(1, asked()), refusal, queued(2, asked(budget=None, slice_ms=0)))
    pages: list[DemandPage] = []
    assert await desk.demand(3, pages=pages) == []
    assert pages[-1].jobs_not_known == 0


async def test_what_no_word_told_is_not_known_and_not_zero(lab: Lab) -> None:
    """A job of an older admission, granted before the first word that tells what a job asks for."""
    desk = await desk_of(lab)
    old = granted(2, gpus=2, at_ms=HOUR_0)
    await desk.hear(*tree(at_ms=HOUR_0), node(gpus=10, at_ms=HOUR_0), queued(2, None), old, started(2, HOUR_0))
    await desk.hear(tick(counter(2, HOUR_MS, 1, gpus=2, since_ms=HOUR_0)))
    pages: list[DemandPage] = []
    (only,) = await desk.demand(4, pages=pages)
    assert (only.demand_gpu_ms, only.owed_gpu_ms, only.unmet_gpu_ms, only.delivered_gpu_ms) == (None, None, None, 2 * HOUR_MS)
    assert pages[-1].jobs_not_known == 1
    # The first word that tells comes at 22:40, so demand is known from 23:00 on.
    await desk.hear(queued(3, asked(gpus=3, at_ms=HOUR_0 + 40 * MINUTE_MS)))
    rows = {(each.from_ms - HOUR_0) // HOUR_MS: each.demand_gpu_ms for each in await desk.demand(3)}
    assert rows == {0: None, 1: 3 * HOUR_MS, 2: 3 * HOUR_MS}


async def test_a_wait_is_of_the_cluster_that_ended_it_and_before_of_all_that_are_named(lab: Lab) -> None:
    desk = await desk_of(lab)
    want = asked(gpus=1, clusters=("c1", "c2"))
    await desk.hear(*tree(at_ms=HOUR_0), *(node(at_ms=HOUR_0, cluster=name) for name in ("c1", "c2", "c3")), queued(1, want))
    both = [len(await desk.demand(2, cluster=name)) for name in ("c1", "c2", "c3")]
    assert both == [2, 2, 0]
    await desk.hear(grant(1, want, HOUR_0 + HOUR_MS, cluster="c2"))
    assert [len(await desk.demand(2, cluster=name)) for name in ("c1", "c2", "c3")] == [0, 2, 0]


async def test_an_hour_without_capacity_has_no_entitlement_and_the_last_hour_ends_now(lab: Lab) -> None:
    desk = await desk_of(lab, hours=2)
    await desk.hear(*tree(at_ms=HOUR_0 - HOUR_MS), node(gpus=10, at_ms=HOUR_0 + HOUR_MS), queued(1, asked(gpus=1)))
    rows = await desk.demand(9)
    assert desk.clock.now_ms() == HOUR_0 + 130 * MINUTE_MS
    assert [each.entitled_gpu_ms for each in rows] == [None, ENTITLED, ENTITLED // 6]
    assert [each.demand_gpu_ms for each in rows] == [HOUR_MS, HOUR_MS, 10 * MINUTE_MS]


async def test_a_budget_shows_itself_and_what_is_below_it(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(*STORY, *(queued(number, asked(budget=budget)) for number, budget in ((2, "rl"), (3, "vision"))))
    for budget, expected in (("research", {"nlp", "rl"}), ("nlp", {"nlp"}), ("org", {"nlp", "rl", "vision"})):
        assert {each.budget for each in await desk.demand(3, budget=budget)} == expected


async def test_pages_lose_no_row(lab: Lab) -> None:
    desk = await desk_of(lab, hours=24 * 8)
    await desk.hear(*tree(at_ms=HOUR_0), node(gpus=10, at_ms=HOUR_0))
    await desk.hear(*(queued(number, asked(budget=budget)) for number, budget in ((1, "nlp"), (2, "rl"), (3, "vision"))))
    await desk.hear(*(queued(number, asked(budget=f"gone{number}")) for number in range(10, 15)))
    pages: list[DemandPage] = []
    rows = await desk.demand(3 * HOURS_A_PAGE + 1, pages=pages)
    assert len(rows) == 8 * (3 * HOURS_A_PAGE + 1)
    assert [(each.from_ms, each.budget) for each in rows] == sorted({(each.from_ms, each.budget) for each in rows})
    assert max(len(page.rows) for page in pages) == ROWS_MAX
    query = DemandQuery(cluster="c1", from_ms=HOUR_0, to_ms=HOUR_0 + 4 * HOUR_MS)
    at = DemandMark(from_ms=rows[9].from_ms, budget=rows[9].budget)
    assert list((await desk.figures.demand("olga", replace(query, after=at))).rows) == rows[10:32]


REFUSED = [
    ("a span that begins now", 9 * HOUR_MS, 10 * HOUR_MS, "c1", None, "empty_span"),
    ("a beginning that is no full hour", 1, HOUR_MS, "c1", None, "not_on_an_hour"),
    ("an end that is no full hour", 0, HOUR_MS + 1, "c1", None, "not_on_an_hour"),
    ("a cluster that never said anything", 0, HOUR_MS, "mars", None, "unknown_cluster"),
    ("a budget that never was", 0, HOUR_MS, "c1", "nobody", "unknown_budget"),
    ("too much at once", -(HOURS_MAX + 1) * HOUR_MS, HOUR_MS, "c1", None, "too_many_hours"),
]


async def test_what_has_no_answer_is_refused(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(*STORY)
    for sentence, from_ms, to_ms, cluster, budget, code in REFUSED:
        query = DemandQuery(cluster=cluster, budget=budget, from_ms=HOUR_0 + from_ms, to_ms=HOUR_0 + to_ms)
        with pytest.raises(Refusal) as refused:
            await desk.figures.demand("olga", query)
        assert refused.value.problem.code == code, sentence


def test_the_longest_page_fits_one_message() -> None:
    name, most = "n" * 63, LARGEST_AMOUNT
    longest = DemandRow(
        from_ms=LATEST_INSTANT_MS,
        budget=name,
        entitled_gpu_ms=most,
        demand_gpu_ms=most,
        owed_gpu_ms=most,
        delivered_gpu_ms=most,
        unmet_gpu_ms=most,
    )
    page = DemandPage(
        cluster=name,
        as_of_ms=LATEST_INSTANT_MS,
        to_ms=LATEST_INSTANT_MS,
        jobs_not_known=LARGEST_AMOUNT,
        rows=(longest,) * ROWS_MAX,
        next_after=DemandMark(from_ms=LATEST_INSTANT_MS, budget=name),
    )
    assert len(msgspec.json.encode(page)) < MAX_MESSAGE_BYTES - 1_024
