"""Public bug reports about accounting, as scenarios with the right outcome. Named by their number in bug_scenarios.jsonl.

Each test is about the kind of fault, not the one instance. Where our contract decides otherwise, tests/bug_scenarios.toml says so.
"""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.chassis.errors import Misconfigured
from allmende.chassis.fakes import ManualClock
from allmende.chassis.settings import load
from allmende.ledger import wire
from allmende.ledger.config import Settings
from allmende.ledger.handlers.heard import HeardVerification
from allmende.ledger.handlers.reports import Reports
from allmende.ledger.handlers.verify import Verification
from allmende.ledger.model import BUCKET_MS, Level, Life, Live, NodeStep, Run, Share
from allmende.ledger.rules.books import Steps, keep, uncounted
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.entitlement import entitlements
from allmende.ledger.rules.standings import Tree, hold_of, take, window_at
from allmende.ledger.store.reading import ReadingStore
from allmende.ledger.store.reports import ReportStore
from allmende.ledger.store.verify import VerifyStore
from allmende.proto import agent
from allmende.proto.corrections import Correct
from allmende.proto.reports import StatementQuery, UsageQuery, VerifyEventsQuery, VerifyQuery
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.ledger.paper import NOW_MS, Paper, end, grant, reading
from tests.servers import Lab

T = START_MS


def held_gpu_ms(paper: Paper, number: int = 1, gpus: int = 1) -> int:
    """What is counted of an attempt, posted or not."""
    spans = [span for (name, _), each in paper.intervals().items() if name == id_of(number) for span in each]
    return gpus * sum(to_ms - from_ms for from_ms, to_ms in spans)


def share(name: str, ppm: int, from_ms: int) -> Share:
    return Share(name, ("org", name), (ppm,), True, from_ms, None, 1)


def test_br_008_what_is_charged_is_the_time_held_not_the_span_from_start_to_end() -> None:
    paper = Paper()
    pause = (20 * MINUTE_MS, 50 * MINUTE_MS)
    paper.hear(
        grant(gpus=4),
        grant(2, gpus=4),
        reading(pause[0], 1, gpus=4, final=True),
        reading(20 * MINUTE_MS, 1, gpus=4, epoch=2, since_ms=T + pause[1], final=True),
        reading(30 * MINUTE_MS, 1, number=2, gpus=4, since_ms=T + pause[0], final=True),
        end(1, T + 70 * MINUTE_MS),
        end(2, T + pause[1]),
    )
    assert (held_gpu_ms(paper, 1, 4), held_gpu_ms(paper, 2, 4)) == (160 * MINUTE_MS, 120 * MINUTE_MS)
    assert sum(each.amount_gpu_ms for each in paper.postings) == 280 * MINUTE_MS, "4 GPUs for 70 minutes, each once"


@pytest.mark.parametrize("busy", [None, 0, 71, 10**9])
def test_br_009_what_a_device_measures_informs_and_never_bills(busy: int | None) -> None:
    it = agent.Counter(
        attempt=id_of(1),
        replica=0,
        epoch=1,
        seq=1,
        since_ms=T,
        held_ms=100,
        used_gpu_ms=100,
        busy_gpu_ms=busy,
        memory_active_gpu_ms=busy,
    )
    paper = Paper()
    paper.hear(grant(), *wire.readings("e", "c1", [it], NOW_MS, final=True), end(1, T + 100))
    assert held_gpu_ms(paper) == 100


def test_br_009_more_held_than_there_is_shows_as_less_than_nothing_idle() -> None:
    """One GPU is held whole by one attempt. Where agents say more, the books do not hide it by clipping."""
    paper = Paper()
    paper.hear(grant(), reading(HOUR_MS, 1, used_gpu_ms=3 * HOUR_MS), end(1, T + HOUR_MS))
    assert (held_gpu_ms(paper), [each.code for each in paper.faults]) == (0, ["amount_mismatch"])
    level = [Level(T, T + HOUR_MS, 1, 1)]
    (whole,) = keep(Steps(T, HOUR_MS, 1), level, {(0, "allocated"): HOUR_MS}, [])
    (tripled,) = keep(Steps(T, HOUR_MS, 1), level, {(0, "allocated"): 3 * HOUR_MS}, [])
    assert (whole.idle, tripled.idle) == (0, -2 * HOUR_MS)


def test_br_028_a_new_attempt_owes_its_whole_slice_whatever_the_last_one_gave_back() -> None:
    """Counters and ends belong to an attempt: a last word about the first does not touch the second."""
    paper = Paper()
    paper.hear(grant(1, gpus=16, replicas=3), reading(HOUR_MS, 5, gpus=16, final=True), reading(HOUR_MS, 5, gpus=16, replica=1))
    paper.hear(end(1, T + HOUR_MS, "node_lost"), grant(2, gpus=16, replicas=3, at_ms=T + HOUR_MS))
    paper.hear(reading(2 * HOUR_MS, 9, gpus=16, final=True))
    assert held_gpu_ms(paper, 1, 16) == 32 * HOUR_MS, "nothing after its end"
    assert held_gpu_ms(paper, 2, 16) == 0
    assert hold_of(Live("nlp", 16, 3, HOUR_MS, 0, 0)) == 48 * HOUR_MS


def test_br_030_when_a_gpu_drops_out_every_share_shrinks_alike_and_nobody_fails() -> None:
    steps = [NodeStep("c1", "n1", T, 1, 32, 32), NodeStep("c1", "n1", T + HOUR_MS, 2, 32, 31)]
    shares = [Share("org", ("org",), (), True, T, None, 1), share("a", 700_000, T), share("b", 300_000, T)]
    window = window_at(T + 2 * HOUR_MS, 2 * HOUR_MS)
    taken = take(Tree(1, shares), [], [], levels(steps, *window), window, slice_cap_ms=0)
    assert taken is not None
    assert {each.budget: each.entitlement_gpu_ms for each in taken.accounts} == {
        "org": 63 * HOUR_MS,
        "a": 63 * HOUR_MS * 7 // 10,
        "b": 63 * HOUR_MS * 3 // 10,
    }
    assert taken.available_gpus == 31


def test_br_032_both_edges_of_a_fault_count_to_the_millisecond() -> None:
    """A GPU that came back counts from then on, without a restart; how often it must be seen healthy is the agent's (issue 8)."""
    reports = [(0, 88), (10 * HOUR_MS, 87), (10 * HOUR_MS + 40 * MINUTE_MS, 88)]
    steps = [NodeStep("c1", "n1", T + at_ms, seq, 88, gpus) for seq, (at_ms, gpus) in enumerate(reports, start=1)]
    random.Random(1).shuffle(steps)
    hour = (T + 10 * HOUR_MS, T + 11 * HOUR_MS)
    seen = levels(steps, *hour)
    assert sum(level.available * (level.to_ms - level.from_ms) for level in seen) == 88 * HOUR_MS - 40 * MINUTE_MS
    assert entitlements({"v": [share("v", 350_000, T)]}, seen, *hour) == {"v": (88 * HOUR_MS - 40 * MINUTE_MS) * 35 // 100}


async def test_br_035_a_batch_that_is_sent_again_counts_what_is_new_in_it(lab: Lab) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(1))
    minute = MINUTE_MS
    await desk.hear(*tree(), node(), *(granted(number, gpus=8, slice_ms=0, at_ms=T) for number in range(1, 101)))
    batch = [desk.event(tick(counter(number, minute, 2, gpus=8))) for number in range(1, 101)]
    await desk.hear_events(batch[:5])
    await desk.hear_events(batch)
    await desk.hear_events(batch)
    charged = (await desk.standings())["org"].charged_gpu_ms
    assert charged == 100 * 480 * SECOND_MS
    said = await desk.hear(tick(counter(1, minute // 2, 2, gpus=8)), tick(counter(2, 2 * minute, 3, gpus=8)))
    assert len(said) == 1, "the same reading with another amount is no retry: it is refused and shown, and the other counts"
    assert (await desk.faults()).keys() == {(f"{id_of(1)}/0/1", "counter_backwards")}
    assert (await desk.standings())["org"].charged_gpu_ms == charged + 480 * SECOND_MS


def test_br_036_however_late_a_copy_comes_and_under_whatever_name_it_counts_once() -> None:
    paper = Paper()
    paper.hear(grant(gpus=8))
    for seconds in (60, 120, 180, 240, 26 * 3_600):
        copy = reading(MINUTE_MS, 1, gpus=8, sent_at_ms=T + seconds * SECOND_MS)
        paper.hear(replace(copy, event=f"copy-{seconds}"))
    paper.hear(end(1, T + MINUTE_MS), reading(MINUTE_MS, 1, gpus=8, final=True))
    assert sum(each.amount_gpu_ms for each in paper.postings) == 480 * SECOND_MS
    assert paper.faults == []


async def test_br_037_usage_dated_before_the_last_standing_counts_in_the_next_one(lab: Lab) -> None:
    """Sums by bucket are no snapshots that a late word could miss: they and a full recount agree."""
    desk = Desk(await lab.database("ledger"), clock_at(72))
    await desk.hear(*tree(), node(), granted(1, slice_ms=0), ended(1, T + 5 * HOUR_MS, counter(1, 5 * HOUR_MS, 9)))
    await desk.pass_second()
    assert (await desk.standings())["nlp"].charged_gpu_ms == 5 * HOUR_MS
    late = ended(2, T + 3 * HOUR_MS, counter(2, 2 * HOUR_MS, 9, since_ms=T + HOUR_MS))
    await desk.hear(granted(2, slice_ms=0, at_ms=T + HOUR_MS), late)
    assert (await desk.standings())["nlp"].charged_gpu_ms == 7 * HOUR_MS
    assert sum(each.amount_gpu_ms for each in await desk.postings()) == 7 * HOUR_MS


async def test_br_037_a_reset_dated_back_and_a_late_tick_after_it_both_count(lab: Lab) -> None:
    """Before the 8th 400 GPU-h, then 100, then 60; all before the 8th is taken off, and 5 GPU-h of the 9th come late."""
    day = [T + number * DAY_MS for number in range(14)]
    desk = Desk(await lab.database("ledger"), ManualClock(day[12]), seal_words=1)
    await desk.hear(*tree(at_ms=day[0]), node(gpus=16, installed=16, at_ms=day[0]))
    for number, (gpus, from_ms, hours) in enumerate(((10, day[0], 40), (5, day[7], 20), (4, day[9], 15)), start=1):
        last = counter(number, hours * HOUR_MS, 9, gpus=gpus, since_ms=from_ms)
        await desk.hear(granted(number, gpus=gpus, slice_ms=0, at_ms=from_ms), ended(number, from_ms + hours * HOUR_MS, last))
    reports = Reports(desk.db, ReportStore(), desk.clock)

    async def consumed() -> int:
        query = StatementQuery(cluster="c1", budget="nlp", from_ms=day[12], to_ms=day[13])
        return (await reports.statement("olga", query)).opening_gpu_ms // HOUR_MS

    await desk.pass_second()
    assert await consumed() == 560
    reset = Correct(
        correction=id_of(90),
        cluster="c1",
        take_from="budget/nlp",
        charge_to="capacity",
        from_ms=day[0],
        to_ms=day[7],
        reason="a new grant from the 8th on",
    )
    await desk.corrections.correct("olga", reset)
    assert await consumed() == 160
    late = counter(4, 5 * HOUR_MS, 9, since_ms=day[8])
    await desk.hear(granted(4, slice_ms=0, at_ms=day[8]), ended(4, day[8] + 5 * HOUR_MS, late))
    assert await consumed() == 165
    window = UsageQuery(cluster="c1", from_ms=day[5], to_ms=day[12], step_ms=DAY_MS)
    rows = (await reports.usage("olga", window)).rows
    assert (await desk.standings())["nlp"].charged_gpu_ms == sum(row.gpu_ms for row in rows)
    told = await Verification(desk.db, VerifyStore(), ReadingStore(), desk.clock).verify("olga", VerifyQuery(cluster="c1"))
    assert told.found == 0
    after: int | None = None
    while True:
        anew = await HeardVerification(desk.db, desk.heard, desk.clock).verify("olga", VerifyEventsQuery(cluster="c1", after=after))
        assert anew.found == 0, "from every seal, dated before or after, a full recount gives the same"
        if anew.next_after is None:
            break
        after = anew.next_after


def test_br_038_equal_usage_is_equal_whenever_the_budget_was_opened_and_an_edge_cuts_exactly() -> None:
    """Windows slide in UTC, so no calendar and no change of clocks has a say (contract §3)."""
    paper = Paper()
    edge_ms = T + BUCKET_MS
    for number, budget in ((1, "old"), (2, "young")):
        opened = grant(number, budget=budget, at_ms=edge_ms - MINUTE_MS)
        paper.hear(opened, reading(2 * MINUTE_MS, 1, number=number, since_ms=edge_ms - MINUTE_MS), end(number, edge_ms + MINUTE_MS))
    for budget in ("old", "young"):
        assert sorted((it.from_ms, it.to_ms) for it in paper.postings if it.budget == budget) == [
            (edge_ms - MINUTE_MS, edge_ms),
            (edge_ms, edge_ms + MINUTE_MS),
        ]
    window = window_at(T + 31 * DAY_MS + 1, 31 * DAY_MS)
    history = {"old": [share("old", 300_000, T - 90 * DAY_MS)], "young": [share("young", 300_000, window.from_ms)]}
    owed = entitlements(history, [Level(T - 90 * DAY_MS, window.to_ms, 88, 88)], *window)
    assert owed["old"] == owed["young"] > 0


def test_br_039_a_number_that_can_come_again_is_nobodys_key() -> None:
    """Usage names our own attempt, waits for its grant, and can name nothing else."""
    paper = Paper()
    paper.hear(grant(1, gpus=8, budget="old"), reading(HOUR_MS, 7, gpus=8, final=True), end(1, T + HOUR_MS))
    before = list(paper.postings)
    early = reading(MINUTE_MS, 1, number=2, gpus=8, since_ms=T + 2 * HOUR_MS)
    paper.hear(early)
    assert (paper.postings, held_gpu_ms(paper, 2)) == (before, 0)
    paper.hear(grant(2, gpus=8, budget="new", at_ms=T + 2 * HOUR_MS))
    assert held_gpu_ms(paper, 2, 8) == 8 * MINUTE_MS
    assert paper.postings == before
    bare = msgspec.json.encode(counter(1, MINUTE_MS, 1)).replace(id_of(1).encode(), b"12345")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(bare, type=agent.Counter)


def test_br_043_an_agents_silence_is_charged_once_the_counter_is_back_and_not_before() -> None:
    adopted, died, silent = Paper(), Paper(), Paper()
    for paper in (adopted, died, silent):
        paper.hear(grant(gpus=8), reading(HOUR_MS, 60, gpus=8))
    adopted.hear(reading(HOUR_MS + 3 * MINUTE_MS, 61, gpus=8))
    assert adopted.intervals() == {(id_of(1), 0): [(T, T + HOUR_MS + 3 * MINUTE_MS)]}
    died.hear(end(1, T + HOUR_MS + MINUTE_MS), reading(HOUR_MS + MINUTE_MS, 61, gpus=8, final=True))
    assert died.intervals() == {(id_of(1), 0): [(T, T + HOUR_MS + MINUTE_MS)]}
    assert silent.intervals() == {(id_of(1), 0): [(T, T + HOUR_MS)]}, "charged to the last proof of life"
    counted = tuple(silent.intervals()[id_of(1), 0])
    (gap,) = [each for each in uncounted([Life(T, T, None, (Run(8, counted),))], T + 2 * HOUR_MS) if each.from_ms < each.to_ms]
    assert gap == ("unknown", T + HOUR_MS, T + 2 * HOUR_MS, 8), "neither charged nor idle"


INSTANTS = st.integers(-2, 8).map(lambda minutes: T + minutes * MINUTE_MS)


@given(INSTANTS, INSTANTS, st.none() | INSTANTS, st.none() | INSTANTS, INSTANTS)
def test_br_052_no_report_is_below_zero_whenever_a_job_started(
    granted_ms: int, counted_ms: int, started_ms: int | None, ended_ms: int | None, now_ms: int
) -> None:
    run = Run(8, ((counted_ms, counted_ms + MINUTE_MS),))
    pieces = uncounted(
        [Life(granted_ms, started_ms, ended_ms, (run,)), Life(granted_ms, started_ms, ended_ms, (Run(8, ()),))], now_ms
    )
    for row in keep(Steps(T, MINUTE_MS, 5), [Level(T, now_ms, 16, 16)], {}, pieces):
        assert min(row.starting, row.unknown, row.allocated, row.available) >= 0
    assert hold_of(Live("nlp", 8, 1, MINUTE_MS, max(0, now_ms - T), 0)) >= 0
    owed = entitlements({"nlp": [share("nlp", 10**6, granted_ms)]}, [Level(T, T + HOUR_MS, 8, 8)], T, now_ms)
    assert owed["nlp"] >= 0


def test_br_059_a_setting_left_out_has_its_documented_default_and_zero_is_refused_by_name() -> None:
    bus = {"ALLMENDE_NATS_URL": "nats://bus:4222", "ALLMENDE_DATABASE_URL": "postgresql://ledger@db/allmende"}
    settings, origin = load("ledger", Settings, bus, None)
    assert (settings.window_ms, origin["window_ms"]) == (7 * DAY_MS, "default")
    for text in ("0", "-1", "none", "7d"):
        with pytest.raises(Misconfigured, match="ALLMENDE_LEDGER_WINDOW_MS"):
            load("ledger", Settings, {**bus, "ALLMENDE_LEDGER_WINDOW_MS": text}, None)
    assert load("ledger", Settings, {**bus, "ALLMENDE_LEDGER_WINDOW_MS": ""}, None)[0] == settings


@pytest.mark.parametrize("window_ms", [HOUR_MS, 7 * DAY_MS, 366 * DAY_MS])
def test_br_059_under_every_window_that_may_be_set_usage_is_seen(window_ms: int) -> None:
    now_ms = T + 400 * DAY_MS
    window = window_at(now_ms, window_ms)
    assert window.to_ms - window.from_ms >= window_ms
    owed = entitlements({"g": [share("g", 1, 0)]}, [Level(0, now_ms, 8, 8)], *window)
    assert owed["g"] > 0
