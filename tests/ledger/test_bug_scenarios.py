"""Public bug reports of people who do this job, turned into scenarios: those that the ledger answers, named by their number.

`ELSEWHERE` lists the others of the same areas, each with where it is answered or the issue it waits for.
"""

import json

import pytest

from allmende.ledger.model import BUCKET_MS
from allmende.proto.ledger import UsageConfirmed, UsageStanding
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at, joined
from tests.ledger.gauges import TRACE
from tests.servers import Lab

SCENARIOS = TRACE.parent / "cases" / "bug_scenarios.jsonl"
AREAS = {"accounting", "late-duplicate-events", "restart"}
ELSEWHERE = {
    "BR-041": "the inbox loop retries for ever and quarantines only what fails alone: tests of the chassis",
    "BR-042": "leadership and victims: admission and preemptor; the ledger has no leader",
    "BR-044": "the chassis' own pull loop and its health by progress: tests of the chassis",
}
SECOND = 1_000
TEN = START_MS + 2 * HOUR_MS


async def desk_of(lab: Lab, hours: float = 4) -> Desk:
    desk = Desk(await lab.database("ledger"), clock_at(hours))
    await desk.hear(*tree(), node(gpus=16, installed=16))
    return desk


@pytest.mark.skipif(
    not SCENARIOS.is_file(), reason="the scenarios are not here: they belong in ../shared/cases beside the repository"
)
def test_every_scenario_of_these_areas_is_answered_or_listed() -> None:
    found = {row["id"] for row in map(json.loads, SCENARIOS.read_text().splitlines()) if row["area"] in AREAS}
    tested = {"BR-" + name.split("_")[2] for name in globals() if name.startswith("test_br_")}
    assert found - tested == set(ELSEWHERE)


async def test_br_007_a_kill_in_mid_start_leaves_no_hold_and_no_negative_count(lab: Lab) -> None:
    desk = await desk_of(lab)
    begun = TEN - 10 * MINUTE_MS
    await desk.hear(granted(1, replicas=8, at_ms=begun))
    finals = [counter(1, 600 * SECOND, 60, replica=replica, since_ms=begun) for replica in range(4)]
    said = await desk.hear(ended(1, TEN, *finals, outcome="stopped"), ended(1, TEN, *finals[:2], outcome="stopped"))
    assert [body.attempts for body in said if isinstance(body, UsageConfirmed)] == [(id_of(1),)]
    org = (await desk.standings())["org"]
    assert (org.charged_gpu_ms, org.held_gpu_ms) == (2_400 * SECOND, 0)
    assert all(row.idle_gpu_ms >= 0 for row in await desk.books(START_MS, TEN, BUCKET_MS))


async def test_br_008_time_suspended_is_not_charged_and_no_gpu_twice(lab: Lab) -> None:
    desk = await desk_of(lab)
    at = [TEN + minutes * MINUTE_MS for minutes in (0, 20, 50, 70)]
    first, second = 20 * MINUTE_MS, 20 * MINUTE_MS
    await desk.hear(granted(1, gpus=4, at_ms=at[0]), ended(1, at[1], counter(1, first, 9, gpus=4, since_ms=at[0])))
    await desk.hear(granted(2, gpus=4, at_ms=at[1], budget="vision"))
    await desk.hear(ended(2, at[2], counter(2, 30 * MINUTE_MS, 9, gpus=4, since_ms=at[1])))
    await desk.hear(granted(3, gpus=4, at_ms=at[2]), ended(3, at[3], counter(3, second, 9, gpus=4, since_ms=at[2])))
    found = await desk.standings()
    assert (found["nlp"].charged_gpu_ms, found["vision"].charged_gpu_ms) == (160 * MINUTE_MS, 120 * MINUTE_MS)
    (row,) = await desk.books(at[1], at[2], 30 * MINUTE_MS)
    assert row.allocated_gpu_ms == 4 * 30 * MINUTE_MS


async def test_br_009_what_a_device_says_of_itself_is_never_billed(lab: Lab) -> None:
    # The scenario shares one GPU among jobs. We differ: the contract grants whole GPUs. What remains: activity never bills.
    desk = await desk_of(lab)
    one = counter(1, HOUR_MS, 1)
    await desk.hear(
        granted(1), tick(type(one)(**{name: getattr(one, name) for name in one.__struct_fields__} | {"busy_gpu_ms": 7}))
    )
    assert (await desk.state()).posted_gpu_ms == HOUR_MS


async def test_br_010_what_ended_books_nothing(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(granted(1, gpus=8), started(1), granted(2, gpus=8), started(2))
    await desk.hear(ended(1, START_MS + HOUR_MS // 2, counter(1, HOUR_MS // 2, 9, gpus=8), outcome="evicted"))
    assert (await desk.standings())["nlp"].held_gpu_ms == 8 * HOUR_MS, "only the attempt that lives"


async def test_br_028_a_second_run_has_a_hold_of_its_own(lab: Lab) -> None:
    desk = await desk_of(lab)
    finals = [counter(1, HOUR_MS // 2, 9, replica=replica) for replica in range(3)]
    await desk.hear(granted(1, replicas=3), ended(1, START_MS + HOUR_MS // 2, *finals))
    await desk.hear(granted(2, replicas=3, at_ms=START_MS + HOUR_MS))
    assert (await desk.standings())["nlp"].held_gpu_ms == 3 * HOUR_MS


async def test_br_035_one_known_id_in_a_batch_does_not_bounce_the_others(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(*(granted(number, gpus=8) for number in range(1, 101)))
    events = [desk.event(tick(counter(number, 60 * SECOND, 1, gpus=8))) for number in range(1, 101)]
    await desk.hear_events(events[:5])
    await desk.hear_events(events)
    changed = desk.event(tick(counter(1, 60 * SECOND, 1, gpus=4)))
    await desk.hear_events(
        [changed._replace(envelope=type(changed.envelope)(**_fields(changed.envelope, id=events[0].envelope.id)))]
    )
    assert (await desk.standings())["org"].charged_gpu_ms == 48_000 * SECOND


def _fields(value: object, **others: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__struct_fields__} | others  # type: ignore[attr-defined]


async def test_br_036_a_tick_counts_once_however_often_and_late_it_comes(lab: Lab) -> None:
    desk = await desk_of(lab)
    event = desk.event(tick(counter(1, 60 * SECOND, 1, gpus=8)))
    await desk.hear(granted(1, gpus=8))
    for _ in range(4):
        await desk.hear_events([event])
    desk.clock.advance(26 * HOUR_MS)
    await desk.hear_events([event])
    await desk.hear(tick(counter(1, 60 * SECOND, 1, gpus=8)), sent_at_ms=START_MS + HOUR_MS)
    assert (await desk.standings())["org"].charged_gpu_ms == 480 * SECOND


async def test_br_037_a_late_tick_counts_in_its_own_bucket_and_a_recount_agrees(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(granted(1, gpus=2), granted(2, gpus=2), tick(counter(1, 2 * HOUR_MS, 1, gpus=2)))
    await desk.pass_second()
    before = (await desk.standings())["nlp"].charged_gpu_ms
    await desk.hear(tick(counter(2, HOUR_MS, 1, gpus=2)))
    assert (await desk.standings())["nlp"].charged_gpu_ms == before + 2 * HOUR_MS
    async with desk.db.reading() as connection:
        stored = await connection.fetch("SELECT bucket_ms, gpu_ms FROM usage_bucket ORDER BY 1")
        recount = await connection.fetch(
            "SELECT from_ms / 300000 * 300000 AS bucket_ms, sum(amount_gpu_ms)::bigint AS gpu_ms FROM posting GROUP BY 1 ORDER BY 1"
        )
    assert [tuple(row) for row in stored] == [tuple(row) for row in recount]


async def test_br_038_a_tick_across_an_edge_is_split_there(lab: Lab) -> None:
    desk = await desk_of(lab)
    begun = START_MS + BUCKET_MS - MINUTE_MS
    end = ended(1, begun + 2 * MINUTE_MS, counter(1, 2 * MINUTE_MS, 1, since_ms=begun))
    await desk.hear(granted(1, at_ms=begun), end)
    assert [(row.from_ms, row.to_ms) for row in await desk.postings()] == [
        (begun, START_MS + BUCKET_MS),
        (START_MS + BUCKET_MS, begun + 2 * MINUTE_MS),
    ]


async def test_br_039_an_early_tick_is_parked_until_its_own_grant(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(granted(1, budget="vision"), ended(1, START_MS + MINUTE_MS, counter(1, MINUTE_MS, 1)))
    today = START_MS + HOUR_MS
    await desk.hear(tick(counter(2, MINUTE_MS, 1, gpus=8, since_ms=today)))
    assert (await desk.state()).unattributed_counters == 1
    await desk.hear(granted(2, gpus=8, at_ms=today, seq=2))
    found = await desk.standings()
    assert (found["nlp"].charged_gpu_ms, found["vision"].charged_gpu_ms) == (8 * MINUTE_MS, MINUTE_MS)


async def test_br_043_an_agent_that_restarts_is_charged_for_what_it_can_prove(lab: Lab) -> None:
    desk = await desk_of(lab)
    three = START_MS + HOUR_MS
    held = HOUR_MS // 2
    since = three - held
    for number in (1, 2, 3):
        await desk.hear(granted(number, gpus=8, at_ms=since), started(number, since))
        await desk.hear(tick(counter(number, held, 1, gpus=8, since_ms=since)))
    # Adopted, and the counter went on; ended by the operating system's record; never heard of again.
    await desk.hear(tick(counter(1, held + 120 * SECOND, 2, gpus=8, since_ms=since)))
    end = ended(2, three + 60 * SECOND, counter(2, held + 60 * SECOND, 2, gpus=8, since_ms=since), outcome="failed")
    await desk.hear(end)
    (row,) = await desk.books(three, three + 5 * MINUTE_MS, 5 * MINUTE_MS)
    assert row.allocated_gpu_ms == (960 + 480) * SECOND
    assert row.unknown_gpu_ms == 8 * (180 + 300) * SECOND, "occupied, not idle, and not charged"
    held_by = {key[0]: each.amount_gpu_ms for key, each in joined(await desk.postings()).items()}
    assert held_by[id_of(3)] == 8 * held
    assert (await desk.state()).oldest_gap_ms == 3 * HOUR_MS


async def test_br_045_unknown_capacity_says_nothing_and_disturbs_no_other_cluster(lab: Lab) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(4))
    await desk.hear(*tree(), granted(1, cluster="c2"), node(cluster="c1"))
    said = await desk.pass_second()
    assert {body.cluster for body in said if isinstance(body, UsageStanding)} == {"c1"}
    assert "c2" in desk.health.why_not_ready()["standings"]
    await desk.hear(node(cluster="c2"))
    said = await desk.pass_second()
    assert {body.cluster for body in said if isinstance(body, UsageStanding)} >= {"c2"}
    assert "standings" not in desk.health.why_not_ready()
