"""Who was idle while holding GPUs, and when a budget comes to 100 %: from a real database, and silent where nothing is known."""

import msgspec
import pytest
from msgspec.structs import replace

from allmende.ledger.handlers.figures import IDLE_MAX
from allmende.ledger.handlers.pace import ROWS_MAX
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.figures import IdlePage, IdleQuery, IdleRow, PacePage, PaceQuery, PaceRow
from allmende.proto.pace import Sample, pace
from allmende.proto.units import HOUR_MS, LARGEST_AMOUNT, LATEST_INSTANT_MS
from tests.ledger.asking import HOUR_0, AskingDesk
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import clock_at
from tests.servers import Lab


async def idle(desk: AskingDesk, begin: int, end: int, budget: str | None = None, offset: int = 0) -> IdlePage:
    query = IdleQuery(cluster="c1", budget=budget, from_ms=HOUR_0 + begin * HOUR_MS, to_ms=HOUR_0 + end * HOUR_MS, offset=offset)
    return await desk.figures.idle("olga", query)


async def test_who_was_idle_most_idle_first_and_whose_activity_is_not_known_is_not_listed(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(4))
    since = HOUR_0 + HOUR_MS
    budgets = {1: "nlp", 2: None, 3: "rl", 4: "nlp", 5: "nlp"}
    await desk.hear(*tree(), node(gpus=16, installed=16))
    await desk.hear(*(granted(number, gpus=2, budget=budget, at_ms=since) for number, budget in budgets.items()))
    # Busy and memory-active GPU-ms after one hour and after two; None: the agent does not know.
    told = {1: ((0, 0), (0, 0)), 2: ((5, 0), (5, 0)), 3: ((0, 7), (9, 7)), 4: ((9, 0), (99, 0)), 5: ((None, None), (None, None))}
    for hour in (1, 2):
        counters = [
            replace(
                counter(number, hour * HOUR_MS, hour, gpus=2, since_ms=since),
                busy_gpu_ms=told[number][hour - 1][0],
                memory_active_gpu_ms=told[number][hour - 1][1],
            )
            for number in told
        ]
        await desk.hear(tick(*counters))
    page = await idle(desk, 1, 3)
    assert [(int(row.attempt), row.idle_gpu_ms, row.user) for row in page.rows] == [
        (1, 4 * HOUR_MS, "bob"),
        (2, 2 * HOUR_MS, "bob"),
    ]
    assert (page.rows[0].watched_gpu_ms, page.rows[0].busy_gpu_ms, page.rows[0].gpus) == (4 * HOUR_MS, 0, 2)
    assert [int(row.attempt) for row in (await idle(desk, 1, 2)).rows] == [1], "memory traffic is activity too"
    assert [int(row.attempt) for row in (await idle(desk, 1, 3, budget="research")).rows] == [1]
    assert [int(row.attempt) for row in (await idle(desk, 1, 3, offset=1)).rows] == [2]


async def forecast(desk: AskingDesk, budget: str | None = None) -> dict[str, PaceRow]:
    page = await desk.forecast.pace("olga", PaceQuery(cluster="c1", budget=budget))
    return {row.budget: row for row in page.rows}


async def test_the_pace_is_the_notices_rule_on_the_standings_of_now_and_of_a_day_ago(lab: Lab) -> None:
    """nlp holds 3 of 10 GPUs, and is entitled to 2. Its slice was over long ago."""
    desk = AskingDesk(await lab.database("ledger"), clock_at(30))
    await desk.hear(*tree(at_ms=START_MS), node(gpus=10, installed=10), granted(1, gpus=3, slice_ms=0), started(1))
    await desk.hear(tick(counter(1, 30 * HOUR_MS, 1, gpus=3)))
    row = (await forecast(desk, "nlp"))["nlp"]
    now_ms, then_ms = START_MS + 30 * HOUR_MS, START_MS + 6 * HOUR_MS
    floor = 8 * 2 * HOUR_MS
    assert (row.used_gpu_ms, row.entitlement_gpu_ms) == (90 * HOUR_MS, 60 * HOUR_MS)
    assert (row.then_ms, row.then_used_gpu_ms, row.then_entitlement_gpu_ms) == (then_ms, 18 * HOUR_MS, floor)
    assert (row.reaches, row.at_ms) == ("at", now_ms), "it is above 100 % already"
    rl = (await forecast(desk))["rl"]
    assert (rl.used_gpu_ms, rl.reaches, rl.at_ms) == (0, "not_soon", None)


async def test_the_standing_of_then_is_what_was_said_then(lab: Lab) -> None:
    """A hold that was there then and a job that has ended since are in it; what began later is not."""
    desk = AskingDesk(await lab.database("ledger"), clock_at(3))
    await desk.hear(*tree(at_ms=START_MS), node(gpus=10, installed=10), granted(1, slice_ms=8 * HOUR_MS), granted(2, gpus=2))
    await desk.hear(started(1), started(2), tick(counter(1, 3 * HOUR_MS, 1)), tick(counter(2, 3 * HOUR_MS, 1, gpus=2)))
    then = (await desk.standings())["nlp"]
    desk.clock.advance(24 * HOUR_MS)
    end = START_MS + 4 * HOUR_MS
    await desk.hear(ended(2, end, counter(2, 4 * HOUR_MS, 2, gpus=2)), tick(counter(1, 27 * HOUR_MS, 2)))
    await desk.hear(granted(3, gpus=5, at_ms=end), started(3, end))
    row = (await forecast(desk))["nlp"]
    assert row.then_ms == START_MS + 3 * HOUR_MS
    assert (row.then_used_gpu_ms, row.then_entitlement_gpu_ms) == (
        then.charged_gpu_ms + then.held_gpu_ms,
        then.entitlement_gpu_ms,
    )
    now = (await desk.standings())["nlp"]
    assert (row.used_gpu_ms, row.entitlement_gpu_ms) == (now.charged_gpu_ms + now.held_gpu_ms, now.entitlement_gpu_ms)
    expected = pace(
        [Sample(row.then_ms, row.then_used_gpu_ms, row.then_entitlement_gpu_ms)],  # type: ignore[arg-type]
        Sample(desk.clock.now_ms(), row.used_gpu_ms, row.entitlement_gpu_ms),
    )
    assert (row.reaches, row.at_ms) == (("at", expected) if isinstance(expected, int) else (expected, None))


async def test_young_books_tell_no_pace(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(5))
    await desk.hear(*tree(at_ms=START_MS), node(gpus=10, installed=10), granted(1), started(1), tick(counter(1, 5 * HOUR_MS, 1)))
    assert {row.reaches for row in (await forecast(desk)).values()} == {"unknown"}
    for cluster, budget, code in (("mars", None, "unknown_cluster"), ("c1", "nobody", "unknown_budget")):
        with pytest.raises(Refusal) as refused:
            await desk.forecast.pace("olga", PaceQuery(cluster=cluster, budget=budget))
        assert refused.value.problem.code == code


def test_the_longest_pages_fit_one_message() -> None:
    most, name, instant = LARGEST_AMOUNT, "n" * 63, LATEST_INSTANT_MS
    idle_row = IdleRow(
        attempt=id_of(1),
        job=id_of(2),
        user=name,
        budget=name,
        gpus=1_000_000,
        granted_at_ms=instant,
        ended_at_ms=instant,
        watched_gpu_ms=most,
        busy_gpu_ms=most,
        idle_gpu_ms=most,
    )
    pace_row = PaceRow(
        budget=name,
        used_gpu_ms=most,
        entitlement_gpu_ms=most,
        then_ms=instant,
        then_used_gpu_ms=most,
        then_entitlement_gpu_ms=most,
        reaches="not_soon",
        at_ms=instant,
    )
    pages = (
        IdlePage(cluster=name, as_of_ms=instant, to_ms=instant, rows=(idle_row,) * IDLE_MAX, more=True),
        PacePage(cluster=name, as_of_ms=instant, rows=(pace_row,) * ROWS_MAX, next_after=name),
    )
    for page in pages:
        assert len(msgspec.json.encode(page)) < MAX_MESSAGE_BYTES - 1_024
