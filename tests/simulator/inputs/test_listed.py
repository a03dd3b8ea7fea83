"""A list of jobs becomes a scenario whose clock begins with its first job; shapes that a history does not tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.budget import Budget
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, Ms
from allmende.simulator.inputs.listed import Listed, scenario_from
from allmende.simulator.inputs.shapes import cluster_of, nodes_for, peak, split_gpus
from allmende.simulator.model import ORIGIN_MS, Job, Window
from tests.simulator.inputs.builders import a_job, places, value

TREE = (Budget(budget="lab"), Budget(budget="vision", parent="lab", share_ppm=1_000_000))
T0: Ms = 1_500_000_000_000


def test_jobs_come_at_their_instants_and_ties_in_the_order_of_the_list() -> None:
    workload = Listed([a_job("late", 50), a_job("b", 10), a_job("a", 10)], 1_000)
    seen: list[tuple[Ms, list[str]]] = []
    while (due := workload.due_ms()) is not None:
        jobs = workload.submit(due)
        assert {job.submitted_at_ms for job in jobs} == {due}
        seen.append((due, [job.job for job in jobs]))
    assert seen == [(1_010, ["b", "a"]), (1_050, ["late"])]
    workload.ended(a_job(), 2_000)
    assert (workload.due_ms(), list(workload.submit(9_999))) == (None, [])


def test_the_first_job_falls_on_the_origin() -> None:
    scenario = value(scenario_from("x", cluster_of("c", 8), [a_job("b", T0 + 2 * DAY_MS), a_job("a", T0)], TREE))
    assert scenario.workload.due_ms() == ORIGIN_MS
    assert scenario.trees[0].at_ms == ORIGIN_MS
    assert scenario.trees[0].budgets[1].members == ("ada",)
    assert scenario.window == Window(ORIGIN_MS, ORIGIN_MS, ORIGIN_MS + 2 * DAY_MS)
    assert scenario.notes[-1].endswith("measured until the last submission")


def test_memberships_are_left_alone_on_request() -> None:
    scenario = value(scenario_from("x", cluster_of("c", 8), [a_job()], TREE, add_members=False, notes=("said",)))
    assert scenario.trees[0].budgets == TREE
    assert scenario.notes[0] == "said"


@pytest.mark.parametrize(
    ("sentence", "warm_up", "drain", "window"),
    [
        ("nothing is added to a history", 0, None, (0, 2 * DAY_MS)),
        ("the warm-up is not measured", DAY_MS, None, (DAY_MS, 2 * DAY_MS)),
        ("the drain is", DAY_MS, HOUR_MS, (DAY_MS, 2 * DAY_MS + HOUR_MS)),
    ],
)
def test_what_is_measured(sentence: str, warm_up: Ms, drain: Ms | None, window: tuple[Ms, Ms]) -> None:
    jobs = [a_job("a", T0), a_job("b", T0 + 2 * DAY_MS)]
    got = value(scenario_from("x", cluster_of("c", 8), jobs, TREE, warm_up_ms=warm_up, drain_ms=drain)).window
    assert (got.from_ms - ORIGIN_MS, got.to_ms - ORIGIN_MS) == window, sentence


def test_a_list_of_one_instant_is_measured_until_its_work_could_be_done() -> None:
    jobs = [a_job(str(number), T0, gpus=8, runtime_ms=HOUR_MS) for number in range(3)]
    window = value(scenario_from("x", cluster_of("c", 8), jobs, TREE)).window
    assert window.to_ms - window.from_ms == 4 * HOUR_MS


@pytest.mark.parametrize(
    ("sentence", "jobs", "warm_up", "expected"),
    [
        ("no jobs", [], 0, (0, 0, "", "no_jobs")),
        ("seconds and milliseconds mixed", [a_job("a", 0), a_job("b", T0)], 0, (0, 0, "submitted_at_s", "span_too_long")),
        ("a long warm-up", [a_job("a", 0), a_job("b", DAY_MS)], DAY_MS, (0, 0, "", "warm_up_too_long")),
    ],
)
def test_what_cannot_be_run(sentence: str, jobs: list[Job], warm_up: Ms, expected: tuple[int, int, str, str]) -> None:
    read = scenario_from("x", cluster_of("c", 8), jobs, TREE, warm_up_ms=warm_up)
    assert places(read) == [expected], sentence


@pytest.mark.parametrize(
    ("gpus", "node", "shape"),
    [(1, 8, (1, 1)), (8, 8, (1, 8)), (12, 8, (2, 6)), (13, 8, (13, 1)), (16, 8, (2, 8)), (128, 4, (32, 4))],
)
def test_a_gang_is_as_few_equal_replicas_as_fit(gpus: int, node: int, shape: tuple[int, int]) -> None:
    assert split_gpus(gpus, node) == shape


def test_a_cluster_of_500_has_a_smaller_last_node() -> None:
    sizes = [node.gpus for node in cluster_of("c", 500).nodes]
    assert (len(sizes), sizes[0], sizes[-1], sum(sizes)) == (63, 8, 4, 500)


spans = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 3)).map(lambda t: (t[0], t[0] + t[1], t[2])), max_size=8
)


@given(spans)
def test_the_peak_is_the_most_of_any_instant(held: list[tuple[int, int, int]]) -> None:
    assert peak(held) == max(sum(gpus for start, end, gpus in held if start <= at < end) for at in range(12))


def test_room_for_every_single_gang() -> None:
    assert nodes_for([(3, 5), (2, 1), (4, 4)], 8) == 3
    assert peak([(0, MINUTE_MS, 2), (MINUTE_MS, 2 * MINUTE_MS, 2)]) == 2
