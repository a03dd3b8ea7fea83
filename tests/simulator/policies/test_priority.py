"""Under levels of priority the higher displaces the lower at once, unless that one opted out; and opting out has a limit."""

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from allmende.proto.budget import ClusterShare
from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE
from allmende.simulator.model import Cluster, Job, NodeSpec
from allmende.simulator.policies.offered import POLICIES
from allmende.simulator.policies.priority import Priority, Settings
from allmende.simulator.policies.queue import Kind
from allmende.simulator.ports import Close, Evict, Grant
from tests.simulator.policies.builders import at, cluster, job, nodes, played, starts, tree

LOW, NORMAL, HIGH = 0, 1, 2
VISION = {"budget": "vision"}
"""Half of the cluster: of two nodes, 8 GPUs may be protected."""
FIXED = VISION | {"resumable": False}


def priority(where: Cluster, **knobs: Any) -> Priority:
    return Priority(Settings(**knobs), where)


class Case(NamedTuple):
    sentence: str
    nodes: tuple[NodeSpec, ...]
    jobs: list[Job]
    expected: dict[str, list[float]]


CASES = [
    Case(
        "high displaces low at once and starts when the notice of 2 minutes is over; low starts again where it saved last",
        nodes(2),
        [job("low", 0, "2x8", 60, save_every_ms=3 * MINUTE_MS), job("high", 5, "2x8", 10, priority=HIGH), job("late", 6, "2x8", 5)],
        {"low": [0, 17], "high": [7], "late": [71]},
    ),
    Case(
        "normal displaces low",
        nodes(1),
        [job("low", 0, "1x8", 60), job("normal", 5, "1x8", 10, priority=NORMAL)],
        {"low": [0, 17], "normal": [7]},
    ),
    Case(
        "high displaces normal",
        nodes(1),
        [job("normal", 0, "1x8", 60, priority=NORMAL), job("high", 5, "1x8", 10, priority=HIGH)],
        {"normal": [0, 17], "high": [7]},
    ),
    Case(
        "nobody displaces an equal, and there is nothing above high",
        nodes(1),
        [job("a", 0, "1x8", 60, priority=HIGH), job("b", 5, "1x8", 10, priority=7)],
        {"a": [0], "b": [60]},
    ),
    Case(
        "nor does low displace high: it waits behind those that come later",
        nodes(1),
        [job("a", 0, "1x8", 10, priority=HIGH), job("low", 1, "1x8", 5), job("b", 2, "1x8", 10, priority=HIGH)],
        {"a": [0], "low": [20], "b": [10]},
    ),
    Case(
        "inside a level who came first starts first",
        nodes(1),
        [job("a", 0, "1x8", 10, priority=3), job("b", 1, "1x8", 10, priority=HIGH), job("c", 2, "1x8", 10, priority=9)],
        {"a": [0], "b": [10], "c": [20]},
    ),
    Case(
        "the lowest level goes first, though it is older",
        nodes(2),
        [job("low", 0, "1x8", 60), job("normal", 1, "1x8", 60, priority=NORMAL), job("high", 5, "1x8", 50, priority=HIGH)],
        {"low": [0, 57], "normal": [1], "high": [7]},
    ),
    Case(
        "in one level who began last goes first",
        nodes(2),
        [job("old", 0, "1x8", 60), job("new", 1, "1x8", 60), job("high", 5, "1x8", 50, priority=HIGH)],
        {"old": [0], "new": [1, 57], "high": [7]},
    ),
    Case(
        "but rather one that is older than two",
        nodes(2),
        [job("one", 0, "1x8", 60), job("a", 1, "1x4", 60), job("b", 1, "1x4", 60), job("high", 5, "1x8", 50, priority=HIGH)],
        {"one": [0, 57], "a": [1], "b": [1], "high": [7]},
    ),
    Case(
        "nobody is sent away where enough are leaving already",
        nodes(2),
        [job("low", 0, "2x8", 60), job("x", 5, "1x8", 10, priority=HIGH), job("y", 6, "1x8", 10, priority=HIGH)],
        {"low": [0, 17], "x": [7], "y": [7]},
    ),
    Case(
        "the room that victims leave is for whom they left, and the rest is free for all",
        nodes(2),
        [
            job("low", 0, "2x8", 60),
            job("high", 5, "1x8", 10, priority=HIGH),
            job("small", 6, "1x8", 10),
            job("smaller", 6, "1x8", 9),
        ],
        {"low": [0, 17], "high": [7], "small": [7], "smaller": [77]},
    ),
    Case(
        "what can't resume is protected",
        nodes(1),
        [job("fixed", 0, "1x8", 60, **FIXED), job("high", 5, "1x8", 10, priority=HIGH)],
        {"fixed": [0], "high": [60]},
    ),
    Case(
        "so are sessions",
        nodes(1),
        [job("session", 0, "1x8", 60, kind="session", **VISION), job("high", 5, "1x8", 10, priority=HIGH)],
        {"session": [0], "high": [60]},
    ),
    Case(
        "and what is parked",
        nodes(1),
        [job("parked", 0, "1x8", 60, tag="parked", busy_ppm=0, **VISION), job("high", 5, "1x8", 10, priority=HIGH)],
        {"parked": [0], "high": [60]},
    ),
    Case(
        "a team protects no more at once than its share: the next waits beside free GPUs, and keeps nobody else waiting",
        nodes(2),
        [
            job("a", 0, "1x5", 30, **FIXED),
            job("b", 1, "1x4", 30, **FIXED),
            job("c", 2, "1x3", 5, **FIXED),
            job("other", 3, "1x4", 30, budget="speech", resumable=False),
            job("plain", 4, "1x4", 50, **VISION),
        ],
        {"a": [0], "b": [30], "c": [2], "other": [3], "plain": [4]},
    ),
    Case(
        "what is larger than the limit runs unprotected",
        nodes(2),
        [job("session", 0, "2x8", 60, kind="session", **VISION), job("high", 5, "1x8", 10, priority=HIGH)],
        {"session": [0, 17], "high": [7]},
    ),
    Case(
        "all who have no team share the allowance of one node",
        nodes(3),
        [
            job("a", 0, "1x6", 30, resumable=False),
            job("b", 1, "1x6", 30, resumable=False, budget="nobody"),
            job("c", 2, "1x2", 30, resumable=False, budget="org"),
        ],
        {"a": [0], "b": [30], "c": [2]},
    ),
    Case(
        "low may use what is reserved for high: it is displaced when high can start",
        nodes(2),
        [job("fixed", 0, "1x8", 10, **FIXED), job("high", 1, "2x8", 10, priority=HIGH), job("low", 2, "1x8", 100)],
        {"fixed": [0], "high": [12], "low": [2, 22]},
    ),
    Case(
        "what high can't displace must not delay it",
        nodes(2),
        [
            job("fixed", 0, "1x8", 10, **FIXED),
            job("high", 1, "2x8", 10, priority=HIGH),
            job("long", 2, "1x8", 9, budget="speech", resumable=False),
            job("short", 3, "1x8", 7, budget="speech", resumable=False),
        ],
        {"fixed": [0], "high": [10], "long": [20], "short": [3]},
    ),
    Case(
        "nor may one of its own level displace others onto what it needs, unless it is done in time with their notice",
        nodes(2),
        [
            job("fixed", 0, "1x8", 20, **FIXED),
            job("low", 0, "1x8", 100),
            job("high", 1, "2x8", 10, priority=HIGH),
            job("long", 2, "1x8", 17, priority=HIGH),
            job("short", 3, "1x8", 15, priority=HIGH),
        ],
        # low is displaced at 3 for short, which works from 5 to 20; then high has its turn, then long.
        {"fixed": [0], "low": [0, 30], "high": [20], "long": [30], "short": [5]},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_starts(case: Case) -> None:
    where = cluster(*case.nodes)
    history = played(priority(where), where, case.jobs)
    assert starts(history) == case.expected
    assert all(life.end == "finished" for life in history.lives.values())


def test_who_is_displaced_and_cannot_resume_ends_as_preempted() -> None:
    where = cluster(*nodes(2))
    jobs = [job("large", 0, "2x8", 60, **FIXED), job("high", 5, "1x8", 10, priority=HIGH)]
    history = played(priority(where), where, jobs)
    assert {name: life.end for name, life in history.lives.items()} == {"large": "preempted", "high": "finished"}
    (run,) = [run for run in history.runs if run.job == "large"]
    assert (run.end, run.ordered_at_ms, run.claimant, run.ended_at_ms) == ("evicted", at(5), "high", at(7))


def test_slices_are_not_kept_and_figures_can_see_it() -> None:
    where = cluster(*nodes(1))
    jobs = [job("low", 0, "1x8", 60, slice_ms=HOUR_MS, **VISION), job("high", 5, "1x8", 10, priority=HIGH)]
    run = played(priority(where), where, jobs).runs[0]
    assert (run.leaf, run.protected_until_ms, run.ordered_at_ms) == ("vision", at(60), at(5))


@pytest.mark.parametrize(
    ("sentence", "knobs", "shares", "team", "limit"),
    [
        ("half of 40 GPUs, rounded up to nodes of 8", {}, {"vision": 50}, "vision", 24),
        ("a share that makes whole nodes is not rounded", {}, {"vision": 40}, "vision", 16),
        ("everything", {}, {"vision": 100}, "vision", 40),
        ("a tenth is less than a node, and is one", {}, {"vision": 10}, "vision", 8),
        ("a share of zero is one too", {}, {"vision": 0}, "vision", 8),
        ("an unset leaf", {}, {"vision": None}, "vision", 8),
        ("a team that is not there", {}, {"vision": 50}, "speech", 8),
        ("with a factor of 1.5 half are three quarters, rounded up", {"limit_factor_ppm": 1_500_000}, {"vision": 50}, "vision", 32),
        ("twice everything", {"limit_factor_ppm": 2 * PPM_WHOLE}, {"vision": 100}, "vision", 80),
    ],
)
def test_limits(sentence: str, knobs: dict[str, int], shares: dict[str, int | None], team: str, limit: int) -> None:
    policy = priority(cluster(*nodes(5)), **knobs)
    policy.tree(tree(shares))
    assert policy.limit_of(team) == limit, sentence


def test_kinds() -> None:
    policy = priority(cluster(*nodes(2)), levels=2)
    policy.tree(tree({"vision": 50}))
    rows = [
        ("a level below the lowest is the lowest", job("j", 0, "1x1", 1, priority=-5), Kind(0, None)),
        ("one above the highest is the highest", job("j", 0, "1x1", 1, priority=5), Kind(1, None)),
        ("protected within the limit", job("j", 0, "1x8", 1, **FIXED), Kind(0, "vision")),
        ("not protected beyond", job("j", 0, "9x1", 1, **FIXED), Kind(0, None)),
    ]
    for sentence, one, kind in rows:
        assert policy.kind_of(one) == kind, sentence


def test_a_new_tree_changes_limits_of_those_who_wait() -> None:
    where = cluster(*nodes(4))
    jobs = [job("a", 0, "2x8", 30, **FIXED), job("b", 1, "1x8", 5, **FIXED), job("c", 1, "2x8", 10, kind="session", **VISION)]
    smaller = tree({"vision": 25}, at_minute=10)
    assert starts(played(priority(where), where, jobs, tree({"vision": 50}))) == {"a": [0], "b": [30], "c": [35]}
    # From then on c is larger than the limit and runs unprotected; a keeps what it has, and b waits for that.
    assert starts(played(priority(where), where, jobs, tree({"vision": 50}), smaller)) == {"a": [0], "b": [30], "c": [10]}


def test_when_a_node_fails_under_a_claim_the_job_asks_again() -> None:
    where = cluster(*nodes(2))
    policy = priority(where)
    policy.tree(tree({"vision": 50}))
    for spec in where.nodes:
        policy.node(spec.node, 8, 8, None, at(0))
    policy.submitted(job("a", 0, "1x8", 60), at(0))
    policy.submitted(job("b", 0, "1x8", 60), at(0))
    first, second = (each for each in policy.decide(at(0)) if isinstance(each, Grant))
    policy.submitted(job("high", 1, "1x8", 60, priority=HIGH), at(1))
    (order,) = policy.decide(at(1))
    assert order == Evict(second.attempt, 2 * MINUTE_MS, "high")
    policy.node(second.placement[0].node, 8, 0, None, at(2))
    policy.ended(second.attempt, "node_lost", at(2), None)
    assert policy.waiting() == (2, 16)
    assert list(policy.decide(at(2))) == [Evict(first.attempt, 2 * MINUTE_MS, "high")]
    assert list(policy.decide(at(2))) == []
    policy.ended(first.attempt, "finished", at(3), None)
    (grant,) = policy.decide(at(3))
    assert isinstance(grant, Grant)
    assert grant.job == "high"
    assert policy.waiting() == (1, 8)


def test_who_is_over_time_is_not_displaced_as_well_and_the_reverse() -> None:
    where = cluster(*nodes(1))
    policy = priority(where)
    policy.tree(tree({"vision": 50}))
    policy.node("n00", 8, 8, None, at(0))
    policy.submitted(job("a", 0, "1x8", 60, max_runtime_ms=10 * MINUTE_MS), at(0))
    (grant,) = policy.decide(at(0))
    assert isinstance(grant, Grant)
    policy.started(grant.attempt, at(0))
    policy.submitted(job("high", 9, "1x8", 60, priority=HIGH), at(9))
    assert list(policy.decide(at(9))) == [Evict(grant.attempt, 2 * MINUTE_MS, "high")]
    assert list(policy.decide(at(10))) == []
    policy.ended(grant.attempt, "stopped", at(11), None)
    close, start = policy.decide(at(11))
    assert close == Close("a", "max_runtime")
    assert isinstance(start, Grant)


def test_every_policy_is_offered_by_its_name() -> None:
    where = cluster(*nodes(1))
    for name, offer in POLICIES.items():
        assert offer.make(offer.settings(), where).name == name


def test_limits_are_those_of_the_cluster() -> None:
    plain = tree({"vision": 50})
    own = (ClusterShare(cluster="lab", share_ppm=400_000), ClusterShare(cluster="other", share_ppm=1_000_000))
    budgets = tuple(replace(each, cluster_shares=own) if each.budget == "vision" else each for each in plain.budgets)
    limits = {}
    for name in ("lab", "other", "third"):
        policy = priority(cluster(*nodes(5))._replace(cluster=name))
        policy.tree(plain._replace(budgets=budgets))
        limits[name] = policy.limit_of("vision")
    assert limits == {"lab": 16, "other": 40, "third": 24}
