"""Every figure of contract §10 on histories that fit on a napkin: 8 or 16 GPUs, a few hours."""

from typing import Any

import pytest
from msgspec.structs import replace

from allmende.proto.budget import Budget, ClusterShare
from allmende.proto.units import HOUR_MS
from allmende.simulator import figures
from allmende.simulator.figures import Figures
from allmende.simulator.model import Cluster, History, NodeChange, NodeSpec, RoomSample, TreeChange
from tests.simulator.figures.builders import at, history, job, life, run, tree


def measured(given: History) -> Figures:
    return figures.measure(given)


def check(given: History, expected: dict[str, Any]) -> None:
    """Each expected figure, by its path: `occupancy`, `teams.a.owed_gpu_hours`, `waits_s.debug.p90`."""
    found = measured(given)
    assert {path: _at(found, path) for path in expected} == expected


def _at(found: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(found, dict):
            found = found[step]
        elif isinstance(found, tuple):
            found = next(each for each in found if step in (getattr(each, "budget", None), getattr(each, "tag", None)))
        else:
            found = getattr(found, step)
    return found


def one(leaf: str | None = "a", gpus: int = 8, start: float = 0, end: float = 4, **told: Any) -> History:
    """One job that runs from `start` to `end` of a window of four hours on 8 GPUs."""
    made = job("j", leaf, gpus, start, **told)
    return history([life(made, leaf, start, end)], [run("j", start, end, leaf, gpus)])


def evicted(leaf: str | None = "a", ended: float = 2, **told: Any) -> History:
    """`j` leaves after `ended` hours with 4 GPU-hours lost, in a window of four hours on 8 GPUs."""
    start = min(0, ended - 2)
    made = life(job("j", leaf), leaf, start, evictions=1)
    loss = {"end": "evicted", "lost_gpu_ms": 4 * HOUR_MS, "ordered_at_ms": at(ended)} | told
    return history([made], [run("j", start, ended, leaf, **loss)])


OCCUPANCY: dict[str, tuple[History, dict[str, Any]]] = {
    "all GPUs held all the time": (one(), {"occupancy": 1.0, "availability": 1.0, "utilisation": 1.0, "unallocated_share": 0.0}),
    "half of the GPUs held half of the time": (one(gpus=4, end=2), {"occupancy": 0.25, "delivered_gpu_hours": 8.0}),
    "unallocated work occupies and is not delivered": (
        one(leaf=None, gpus=4),
        {"occupancy": 0.5, "unallocated_share": 1.0, "delivered_gpu_hours": 0.0, "unallocated_gpu_hours": 16.0},
    ),
    "starting is not occupied": (
        history([life(job("j"), "a", 2, 4)], [run("j", 2, 4, granted_at_ms=at(1))]),
        {"occupancy": 0.5, "starting_gpu_hours": 8.0},
    ),
    "an attempt that never started was only starting": (
        history([life(job("j"))], [run("j", None, 3, granted_at_ms=at(1), end="never_started")]),
        {"occupancy": 0.0, "starting_gpu_hours": 16.0},
    ),
    "the time of leaving is occupied": (evicted(ended=2.5, ordered_at_ms=at(2)), {"delivered_gpu_hours": 20.0}),
    "a parked job occupies and is not busy": (one(busy_ppm=0), {"occupancy": 1.0, "utilisation": 0.0}),
    "a lazy job is busy for its part": (one(busy_ppm=250_000), {"utilisation": 0.25, "teams.a.busy_gpu_hours": 8.0}),
    "what lies before and after the window does not count": (
        one(start=-3, end=9),
        {"occupancy": 1.0, "delivered_gpu_hours": 32.0, "teams.a.demand_gpu_hours": 32.0, "jobs_submitted": 0, "jobs_started": 0},
    ),
    "a window that was cut short is measured as far as it went": (
        history([life(job("j"), "a", 0)], [run("j", 0, 2, end="still_running")], reached_ms=at(2)),
        {"occupancy": 1.0, "delivered_gpu_hours": 16.0, "measured_to_ms": at(2), "partial": True, "teams.a.owed_gpu_hours": 16.0},
    ),
    "a run that was cut short in its warm-up has no figures": (
        history([life(job("j", submitted=-2), "a", -2)], [run("j", -2, -1, end="still_running")], reached_ms=at(-1)),
        {"occupancy": None, "availability": None, "delivered_owed_weekly": None, "worst_team": None, "partial": True},
    ),
    "a node that is down is not available, and still installed": (
        history(nodes=[NodeChange(at(-24), "n1", 8), NodeChange(at(1), "n1", 0), NodeChange(at(3), "n1", 8)]),
        {"availability": 0.5, "teams.a.entitled_gpu_hours": 16.0},
    ),
    "a node is not available before its first report": (history(nodes=[NodeChange(at(3), "n1", 8)]), {"availability": 0.25}),
    "two nodes, one of them half healthy": (
        history(
            cluster=Cluster("c1", (NodeSpec("n1", 8), NodeSpec("n2", 8))),
            nodes=[NodeChange(at(-24), "n1", 8), NodeChange(at(-24), "n2", 4)],
        ),
        {"availability": 0.75, "gpus": 16},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", OCCUPANCY)
def test_occupancy(sentence: str) -> None:
    check(*OCCUPANCY[sentence])


# Leaf a has 50 %, so 4 GPUs an hour, b 25 %, so 2; the rest is nobody's.
HALF = {"a": 50, "b": 25}
WEEK = 7 * 24


def two(runs: list[Any], lives: list[Any], **told: Any) -> History:
    return history(lives, runs, HALF, **told)


IMPACT: dict[str, tuple[History, dict[str, Any]]] = {
    "a team that wants more than its share is owed its share": (
        two([run("j", 0, 4, gpus=4)], [life(job("j", gpus=8), "a", 0, 4)]),
        {"teams.a.owed_gpu_hours": 16.0, "teams.a.demand_gpu_hours": 32.0, "delivered_owed_plain": 1.0, "demand": 1.0},
    ),
    "a team that wants less is owed what it wants": (
        two([run("j", 0, 4, gpus=1)], [life(job("j", gpus=1), "a", 0, 4)]),
        {"teams.a.owed_gpu_hours": 4.0, "delivered_owed_plain": 1.0},
    ),
    "waiting is demand": (
        two([run("j", 2, 4, gpus=4)], [life(job("j", gpus=4), "a", 2, 4)]),
        {"teams.a.owed_gpu_hours": 16.0, "delivered_owed_plain": 0.5, "delivered_owed_weekly": 0.5, "worst_team": 0.5},
    ),
    "a job that waits and never had a grant asks for its own budget": (
        two([], [life(job("j", "b", gpus=2))]),
        {"teams.b.demand_gpu_hours": 8.0, "teams.b.delivered_owed_weekly": 0.0, "worst_team_name": "b"},
    ),
    "a refused job wants nothing": (
        two([], [life(job("j"), "a", None, 0, end="refused", ended_at_ms=at(1))]),
        {"teams.a.demand_gpu_hours": 0.0, "teams.a.delivered_owed_plain": None, "outcomes": {"refused": 1}},
    ),
    "a job of slice 0 wants nothing of its budget": (two([], [life(job("j", "a", slice_ms=0))]), {"teams.a.demand_gpu_hours": 0.0}),
    "a job that was let in unallocated wants nothing of its budget": (
        two([run("j", 0, 1, None)], [life(job("j"), None, 0, 1)]),
        {"teams.a.demand_gpu_hours": 0.0, "unallocated_gpu_hours": 8.0},
    ),
    "repaying an hour later counts plain and weekly, not strict": (
        # Owed 4 in each of two hours; 0 in the first, 8 in the second.
        two([run("j", 1, 2)], [life(job("j"), "a", 1, 2)]),
        {"delivered_owed_plain": 1.0, "delivered_owed_strict": 0.5, "delivered_owed_weekly": 1.0},
    ),
    "one team's plenty does not hide another's want": (
        # a gets 8 of its 4 an hour, b nothing of its 2.
        two([run("j", 0, 4)], [life(job("j"), "a", 0, 4), life(job("k", "b"))]),
        {
            "delivered_owed_plain": round(32 / 24, 6), "delivered_owed_strict": round(16 / 24, 6),
            "delivered_owed_weekly": round(16 / 24, 6), "teams.a.delivered_owed_weekly": 1.0, "teams.a.delivered_owed_plain": 2.0,
            "teams.b.delivered_owed_weekly": 0.0, "worst_team": 0.0, "worst_team_name": "b", "teams_at_95": 1, "teams_owed": 2,
        },
    ),
    "plenty in the first week does not pay for the second": (
        # Week 1: 8 GPUs of 4 owed. Week 2: one day of want only, nothing given.
        two(
            [run("j", 0, WEEK)],
            [life(job("j"), "a", 0, WEEK), life(job("k", submitted=WEEK, gpus=4))],
            hours=WEEK + 24,
        ),
        {"delivered_owed_plain": 1.75, "delivered_owed_weekly": 0.875, "teams_at_95": 0},
    ),
    "a team at exactly 95 % is served": (
        # Owed 2 an hour for 20 hours; 19 of them given.
        two([run("j", 1, 20, "b", 2)], [life(job("j", "b", 2), "b", 1, 20)], hours=20),
        {"worst_team": 0.95, "teams_at_95": 1, "teams_without_owed": ("a",)},
    ),
    "an unset leaf is owed nothing and may still get": (
        history([life(job("j", "u"), "u", 0, 4)], [run("j", 0, 4, "u")], {"a": 50, "u": None}),
        {
            "teams.u.owed_gpu_hours": 0.0, "teams.u.delivered_owed_weekly": None, "teams.u.effective_share_ppm": None,
            "teams.u.delivered_gpu_hours": 32.0, "teams_without_owed": ("a", "u"), "delivered_owed_weekly": None,
        },
    ),
    "a share of zero is owed nothing": (
        history([life(job("j", "z"), "z", 0, 4)], [], {"a": 50, "z": 0}),
        {"teams.z.owed_gpu_hours": 0.0, "teams.z.effective_share_ppm": 0, "teams.z.demand_gpu_hours": 32.0},
    ),
    "a tree that changes within an hour is integrated exactly": (
        # 50 % for a quarter of an hour, then 10 %: 8 x (0.125 + 0.075), then 0.8.
        history([life(job("j"))], [], hours=2, trees=[tree({"a": 50}), tree({"a": 10}, at_hours=0.25)]),
        {"teams.a.entitled_gpu_hours": 2.4, "teams.a.owed_gpu_hours": 2.4, "teams.a.effective_share_ppm": 100_000},
    ),
    "a new leaf is entitled from when it came": (
        history([life(job("j", "b"))], [], trees=[tree({"a": 50}), tree({"a": 50, "b": 50}, at_hours=3)]),
        {"teams.b.entitled_gpu_hours": 4.0, "teams.b.owed_gpu_hours": 4.0},
    ),
    "a leaf that is gone is entitled until it went": (
        history([life(job("j", "b"))], [], trees=[tree({"a": 50, "b": 50}), tree({"a": 50}, at_hours=3)]),
        {"teams.b.entitled_gpu_hours": 12.0, "teams.b.effective_share_ppm": None},
    ),
    "an entitlement is rounded down once an hour": (
        # 33.3333 % of 1 GPU for each of two hours, the second a millisecond short: 1,199,998.8 and 1,199,998.47 GPU-ms.
        history(
            [life(job("j"))],
            [],
            gpus=1,
            trees=[TreeChange(at(-24), (Budget(budget="org"), Budget(budget="a", parent="org", share_ppm=333_333)))],
            reached_ms=at(2) - 1,
        ),
        {"hourly.teams.a.entitled": (1_199_998, 1_199_998)},
    ),
    "without a tree nothing is owed": (
        history([life(job("j"), "a", 0, 4)], [run("j", 0, 4)], trees=[]),
        {"delivered_owed_plain": None, "teams_owed": 0, "teams.a.delivered_gpu_hours": 32.0, "occupancy": 1.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", IMPACT)
def test_impact(sentence: str) -> None:
    check(*IMPACT[sentence])


LOSSES: dict[str, tuple[History, dict[str, Any]]] = {
    "an eviction loses what was not saved": (
        evicted(),
        {
            "evictions": 1, "evictions_allocated": 1, "lost_gpu_hours": 4.0, "lost_fraction": 0.25, "lost_fraction_allocated": 0.25,
            "lost_fraction_unallocated": None, "goodput_gpu_hours": 12.0, "goodput": 0.75, "slice_violations": 0,
            "evictions_per_1000_gpu_hours": 62.5, "evictions_most": 1, "teams.a.lost_gpu_hours": 4.0, "teams.a.evictions": 1,
        },
    ),
    "an unallocated loss is measured against what was delivered, and costs no goodput": (
        history(
            [life(job("j", None), None, 0), life(job("k"), "a", 2, 4)],
            [run("j", 0, 2, None, end="evicted", lost_gpu_ms=4 * HOUR_MS, ordered_at_ms=at(2)), run("k", 2, 4)],
        ),
        {
            "lost_fraction": 0.25, "lost_fraction_allocated": 0.0, "lost_fraction_unallocated": 0.25, "goodput": 1.0,
            "evictions": 1, "evictions_allocated": 0, "evictions_per_1000_gpu_hours_allocated": 0.0, "evictions_most_allocated": 0,
        },
    ),
    "work lost to a failing node is no eviction, and no goodput": (
        evicted(end="node_lost", ordered_at_ms=None),
        {"evictions": 0, "lost_fraction": 0.0, "lost_to_failures_fraction": 0.25, "goodput": 0.75},
    ),
    "an eviction that ended before the window does not count": (evicted(ended=-0.1), {"evictions": 0, "lost_gpu_hours": 0.0}),
    "an eviction in the last millisecond counts": (evicted(ended=4 - 1 / HOUR_MS), {"evictions": 1}),
    "an eviction at the end of the window does not count": (evicted(ended=4), {"evictions": 0}),
    "leaving at the very end of the slice is no violation": (evicted(ordered_at_ms=at(1)), {"slice_violations": 0}),
    "leaving a millisecond earlier is one": (evicted(ordered_at_ms=at(1) - 1), {"slice_violations": 1}),
    "an order inside the slice is a violation even if the job finished first": (
        evicted(ordered_at_ms=at(0.5), end="finished"), {"slice_violations": 1, "evictions": 0},
    ),
    "an order while it starts is one": (
        history([life(job("j"))], [run("j", None, 1, granted_at_ms=at(0.5), ordered_at_ms=at(0.5), end="evicted")]),
        {"slice_violations": 1, "evictions": 1},
    ),
    "unallocated work has no slice to violate": (evicted(None, ordered_at_ms=at(0)), {"slice_violations": 0}),
    "the most evicted job counts its whole life": (
        history(
            [life(job("j"), "a", -3)],
            [run("j", start, start + 1, end="evicted", ordered_at_ms=at(start + 1)) for start in (-3, -2, 0)],
        ),
        {"evictions": 1, "evictions_most": 3, "evictions_most_allocated": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", LOSSES)
def test_losses(sentence: str) -> None:
    check(*LOSSES[sentence])


def test_rooms() -> None:
    rooms = [RoomSample(at(-1), 8, 8, 9, 99), RoomSample(at(1), 6, 0, 3, 24), RoomSample(at(2), 2, 2, 1, 8)]
    check(
        history(rooms=rooms),
        {
            "fragmentation.samples": 2,
            "fragmentation.free_gpus_mean": 4.0,
            "fragmentation.free_on_empty_nodes_mean": 1.0,
            "fragmentation.broken_share": 0.75,
            "fragmentation.waiting_jobs_mean": 2.0,
            "fragmentation.waiting_gpus_max": 24,
        },
    )


def test_tags_say_what_a_kind_of_job_got() -> None:
    parked = job("j", gpus=4, tag="parked", busy_ppm=0)
    twin = job("k", gpus=4, tag="twin")
    given = history([life(parked, "a", 0, 4), life(twin, "a", 0, 4)], [run("j", 0, 4, gpus=4), run("k", 0, 4, gpus=4)])
    check(
        given,
        {
            "tags.parked.held_gpu_hours": 16.0,
            "tags.parked.busy_gpu_hours": 0.0,
            "tags.twin.busy_gpu_hours": 16.0,
            "tags.twin.jobs": 1,
        },
    )


def test_outcomes_count_the_jobs_that_ended_in_the_window() -> None:
    lives = [
        life(job("before", submitted=-3), "a", -3, -1),
        life(job("in", submitted=-3), "a", -3, 1),
        life(job("failed"), "a", 0, 1, end="failed"),
        life(job("open"), "a", 0),
    ]
    check(
        history(lives),
        {
            "outcomes": {"failed": 1, "finished": 1, "open": 1},
            "jobs_finished": 1,
            "jobs_submitted": 2,
            "jobs_started": 2,
        },
    )


def test_what_the_run_cost_is_divided_by_its_events() -> None:
    assert figures.cost(2.0, 100.5, 4_000) == figures.Cost(runtime_s=2.0, peak_mib=100.5, events=4_000, ms_per_event=0.5)
    assert figures.cost(2.0, 100.5, 0).ms_per_event is None


def test_each_cluster_is_measured_by_its_own_shares() -> None:
    plain = tree({"a": 50, "b": 25})
    own = (ClusterShare(cluster="c2", share_ppm=125_000),)
    trees = [
        TreeChange(plain.at_ms, tuple(replace(each, cluster_shares=own) if each.budget == "a" else each for each in plain.budgets))
    ]
    check(history(trees=trees), {"teams.a.effective_share_ppm": 500_000, "teams.a.entitled_gpu_hours": 16.0})
    check(
        history(trees=trees, cluster=Cluster("c2", (NodeSpec("n1", 8),))),
        {"teams.a.effective_share_ppm": 125_000, "teams.a.entitled_gpu_hours": 4.0, "teams.b.entitled_gpu_hours": 8.0},
    )
