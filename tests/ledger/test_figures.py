"""The figures of contract §10 from a real database: exact, and honest about what is not known."""

import msgspec
import pytest
from msgspec.structs import replace

from allmende.ledger.handlers.figures import TEAMS_MAX
from allmende.proto.envelope import MAX_MESSAGE_BYTES
from allmende.proto.figures import FiguresPage, FiguresQuery, TeamFigures
from allmende.proto.impact import impact, total
from allmende.proto.units import DAY_MS, HOUR_MS, LARGEST_AMOUNT, LATEST_INSTANT_MS
from tests.ledger.asking import HOUR_0, AskingDesk, asked, grant, job_ended, queued
from tests.ledger.builders import counter, ended, node, started, tick, tree
from tests.ledger.desk import clock_at
from tests.servers import Lab


async def figures(desk: AskingDesk, hours: int, **query: str | None) -> FiguresPage:
    asked_for = FiguresQuery(**{"cluster": "c1", "from_ms": HOUR_0, "to_ms": HOUR_0 + hours * HOUR_MS} | query)  # type: ignore[arg-type]
    return await desk.figures.measure("olga", asked_for)


async def story(lab: Lab, hours: float = 5) -> AskingDesk:
    """Of 12 GPUs 10 are healthy. nlp (20 %) wants 4 for 2 h and gets 3 in the second hour; vision (60 %) wants 2 and gets 2.

    One GPU runs unallocated for an hour. Of nlp's devices half are busy, of vision's nothing is known.
    """
    desk = AskingDesk(await lab.database("ledger"), clock_at(hours))
    await desk.hear(*tree(at_ms=HOUR_0), node(gpus=10, installed=12, at_ms=HOUR_0))
    three, one, two = asked(gpus=3), asked(gpus=1), asked(gpus=2, budget="vision")
    free = asked(budget=None, slice_ms=0)
    late, end = HOUR_0 + HOUR_MS, HOUR_0 + 2 * HOUR_MS
    await desk.hear(*(queued(number, want) for number, want in ((1, three), (2, one), (3, two), (4, free))))
    await desk.hear(grant(1, three, late), grant(3, two, HOUR_0), grant(4, free, HOUR_0))
    await desk.hear(started(1, late), started(3, HOUR_0), started(4, HOUR_0))
    final = replace(counter(1, HOUR_MS, 9, gpus=3, since_ms=late), busy_gpu_ms=3 * HOUR_MS // 2)
    await desk.hear(ended(1, end, final), job_ended(1, end, three))
    await desk.hear(ended(3, end, counter(3, 2 * HOUR_MS, 9, gpus=2, since_ms=HOUR_0)), job_ended(3, end, two))
    await desk.hear(ended(4, late, counter(4, HOUR_MS, 9, since_ms=HOUR_0)), job_ended(4, late, free))
    await desk.hear(job_ended(2, end, one, "cancelled"))
    return desk


async def test_the_four_figures_of_a_story(lab: Lab) -> None:
    desk = await story(lab)
    page = await figures(desk, 2)
    assert (page.installed_gpu_ms, page.available_gpu_ms) == (24 * HOUR_MS, 20 * HOUR_MS)
    assert (page.allocated_gpu_ms, page.unallocated_gpu_ms) == (7 * HOUR_MS, HOUR_MS)
    assert (page.watched_gpu_ms, page.busy_gpu_ms) == (3 * HOUR_MS, 3 * HOUR_MS // 2)
    # nlp is entitled to 2 an hour, wants 4, is owed 2 + 2 and gets 0 + 3; vision is owed and gets 2 + 2.
    assert (page.owed_gpu_ms, page.delivered_gpu_ms) == (8 * HOUR_MS, 7 * HOUR_MS)
    assert (page.weekly_gpu_ms, page.strict_gpu_ms) == (7 * HOUR_MS, 6 * HOUR_MS)
    assert (page.hours_of_unknown_capacity, page.hours_of_unknown_owed, page.jobs_not_known) == (0, 0, 0)
    assert (page.teams_owed, page.teams_at_95) == (2, 1)
    teams = {team.budget: team for team in page.teams}
    assert set(teams) == {"nlp", "rl", "vision"}
    assert teams["nlp"] == TeamFigures(
        budget="nlp",
        entitled_gpu_ms=4 * HOUR_MS,
        demand_gpu_ms=8 * HOUR_MS,
        owed_gpu_ms=4 * HOUR_MS,
        delivered_gpu_ms=3 * HOUR_MS,
        weekly_gpu_ms=3 * HOUR_MS,
        strict_gpu_ms=2 * HOUR_MS,
        watched_gpu_ms=3 * HOUR_MS,
        busy_gpu_ms=3 * HOUR_MS // 2,
    )


async def test_a_budgets_figures_are_those_of_what_is_below_it(lab: Lab) -> None:
    desk = await story(lab)
    page = await figures(desk, 2, budget="research")
    assert [team.budget for team in page.teams] == ["nlp", "rl"]
    assert (page.owed_gpu_ms, page.delivered_gpu_ms, page.watched_gpu_ms) == (4 * HOUR_MS, 3 * HOUR_MS, 3 * HOUR_MS)
    assert page.available_gpu_ms == 20 * HOUR_MS, "the cluster's figures stay the cluster's"
    vision = await figures(desk, 2, budget="vision")
    assert (vision.watched_gpu_ms, vision.busy_gpu_ms) == (0, 0), "nothing is known of its devices: no utilisation, not 0 %"
    whole = await figures(desk, 2)
    assert whole.watched_gpu_ms < whole.allocated_gpu_ms + whole.unallocated_gpu_ms


async def test_hours_of_unknown_capacity_are_in_no_figure_and_counted(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(5))
    want = asked(gpus=1)
    await desk.hear(*tree(at_ms=HOUR_0), node(gpus=10, installed=10, at_ms=HOUR_0 + HOUR_MS))
    await desk.hear(queued(1, want), grant(1, want, HOUR_0), started(1, HOUR_0))
    await desk.hear(tick(counter(1, 2 * HOUR_MS, 1, since_ms=HOUR_0)))
    page = await figures(desk, 2)
    assert (page.hours, page.hours_of_unknown_capacity, page.hours_of_unknown_owed) == (2, 1, 1)
    assert (page.available_gpu_ms, page.allocated_gpu_ms) == (10 * HOUR_MS, HOUR_MS)
    assert (page.owed_gpu_ms, page.delivered_gpu_ms) == (HOUR_MS, HOUR_MS)


async def test_where_demand_is_not_known_nothing_is_owed_and_the_cluster_still_has_its_figures(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(5))
    old = replace(grant(1, asked(), HOUR_0), asked=None)
    await desk.hear(*tree(at_ms=HOUR_0), node(gpus=10, installed=10, at_ms=HOUR_0), queued(1, None), old, started(1, HOUR_0))
    await desk.hear(tick(counter(1, 2 * HOUR_MS, 1, since_ms=HOUR_0)))
    page = await figures(desk, 2)
    assert (page.hours_of_unknown_owed, page.jobs_not_known, page.owed_gpu_ms, page.delivered_gpu_ms) == (2, 1, 0, 0)
    assert (page.available_gpu_ms, page.allocated_gpu_ms) == (20 * HOUR_MS, 2 * HOUR_MS)


WEEKS = [
    ("late delivery counts within its week, and not beyond", [(2, 0), (0, 2)], (2, 2, 0, 2)),
    ("more than was owed repays nobody else", [(1, 5)], (1, 5, 1, 1)),
    ("what comes in the next week is too late", [(2, 0), *[(0, 0)] * 167, (0, 2)], (2, 2, 0, 0)),
    ("a short last week is one of its own", [*[(0, 0)] * 168, (3, 1)], (3, 1, 1, 1)),
]


@pytest.mark.parametrize(("sentence", "hours", "expected"), WEEKS, ids=[row[0] for row in WEEKS])
def test_impact(sentence: str, hours: list[tuple[int, int]], expected: tuple[int, int, int, int]) -> None:
    assert impact([owed for owed, _ in hours], [given for _, given in hours]) == expected


def test_caps_stay_those_of_each_team() -> None:
    assert total([impact([2], [0]), impact([2], [4])]) == (4, 4, 2, 2)


async def test_teams_come_in_pages_and_the_sums_are_of_all(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(3))
    await desk.hear(*tree(at_ms=HOUR_0), node(gpus=10, installed=10, at_ms=HOUR_0))
    for at in range(0, TEAMS_MAX + 5, 40):
        await desk.hear(*(queued(n, asked(budget=f"t{n:04}")) for n in range(at, min(at + 40, TEAMS_MAX + 5))))
    first = await figures(desk, 1)
    second = await figures(desk, 1, after=first.next_after)
    assert (len(first.teams), second.next_after) == (TEAMS_MAX, None)
    assert len({team.budget for team in (*first.teams, *second.teams)}) == TEAMS_MAX + 5 + 3
    assert first.owed_gpu_ms == second.owed_gpu_ms


async def test_figures_cost_the_same_for_a_job_that_waits_a_month(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(24 * 31))
    await desk.hear(*tree(at_ms=HOUR_0), node(gpus=10, installed=10, at_ms=HOUR_0), queued(1, asked(gpus=1)))
    page = await figures(desk, 24 * 30)
    assert page.owed_gpu_ms == 30 * DAY_MS
    assert page.hours == 24 * 30


def test_the_longest_page_fits_one_message() -> None:
    most, name = LARGEST_AMOUNT, "n" * 63
    amounts = {field: most for field in TeamFigures.__struct_fields__ if field.endswith("_gpu_ms")}
    team = TeamFigures(budget=name, **amounts)
    sums = {field: most for field in FiguresPage.__struct_fields__ if field.endswith("_gpu_ms")}
    counts = dict.fromkeys(("hours", "hours_of_unknown_capacity", "hours_of_unknown_owed", "jobs_not_known", "teams_owed"), most)
    instants = dict.fromkeys(("as_of_ms", "from_ms", "to_ms"), LATEST_INSTANT_MS)
    page = FiguresPage(
        cluster=name, budget=name, teams_at_95=most, teams=(team,) * TEAMS_MAX, next_after=name, **sums, **counts, **instants
    )
    assert len(msgspec.json.encode(page)) < MAX_MESSAGE_BYTES - 1_024
