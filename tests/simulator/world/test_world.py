"""What becomes of jobs, attempts and nodes on the virtual clock, as a person with pencil and paper would say."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from allmende.simulator.model import ORIGIN_MS, Cluster, History, Job
from allmende.simulator.policies.fifo import Fifo
from allmende.simulator.policies.fifo import Settings as FifoSettings
from allmende.simulator.policies.priority import Priority
from allmende.simulator.policies.priority import Settings as PrioritySettings
from allmende.simulator.ports import Action, Close, Promised, Refuse, Renewed, Stop
from allmende.simulator.world.engine import ROUNDS_MAX, Stuck, World, outstanding
from tests.simulator.policies.builders import RARE, at, cluster, job, minutes, nodes, played, scenario, tree, trouble
from tests.simulator.policies.test_older_worlds import held, labs
from tests.simulator.policies.test_older_worlds import jobs as many_jobs
from tests.simulator.world.script import Script, evict, grant


class Row(NamedTuple):
    """Job `j` (1x8, an hour of work, saves each 10 minutes) and a script. `runs`: (attempt, started, ended, how, GPU-minutes lost);
    `ends`: when the job was over, and how; None: it was not."""

    says: Mapping[float, Sequence[Action]]
    runs: list[tuple[str, float | None, float, str, float]]
    ends: tuple[float, str] | None
    told: Mapping[str, Any] = {}
    until: float = 600


SAVES = {"save_every_ms": 10 * MINUTE_MS}

ROWS: dict[str, Row] = {
    "it works from its start until its work is done": Row({1: [grant("a")]}, [("a", 1, 61, "finished", 0)], (61, "finished")),
    "one that fails has failed": Row({1: [grant("a")]}, [("a", 1, 61, "failed", 0)], (61, "failed"), {"fails": True}),
    "an evicted one loses what it has not saved, and does only that again": Row(
        {1: [grant("a")], 26: [evict("a")], 40: [grant("b")]},
        [("a", 1, 28, "evicted", 8 * 7), ("b", 40, 80, "finished", 0)],
        (80, "finished"),
    ),
    "one that leaves as it saves loses nothing": Row(
        {1: [grant("a")], 19: [evict("a")], 30: [grant("b")]},
        [("a", 1, 21, "evicted", 0), ("b", 30, 70, "finished", 0)],
        (70, "finished"),
    ),
    "a millisecond before the save it loses all since the last": Row(
        {1: [grant("a")], 18 + 59_999 / 60_000: [evict("a")], 30: [grant("b")]},
        [("a", 1, 20 + 59_999 / 60_000, "evicted", 8 * (9 + 59_999 / 60_000)), ("b", 30, 80, "finished", 0)],
        (80, "finished"),
    ),
    "what two attempts have saved adds up": Row(
        {1: [grant("a")], 20: [evict("a")], 30: [grant("b")], 53: [evict("b")], 60: [grant("c")]},
        [("a", 1, 22, "evicted", 8), ("b", 30, 55, "evicted", 8 * 5), ("c", 60, 80, "finished", 0)],
        (80, "finished"),
    ),
    "an attempt counts its saves from its own start": Row(
        {1: [grant("a")], 14: [evict("a")], 20: [grant("b")], 26: [evict("b")], 40: [grant("c")]},
        [("a", 1, 16, "evicted", 8 * 5), ("b", 20, 28, "evicted", 8 * 8), ("c", 40, 90, "finished", 0)],
        (90, "finished"),
    ),
    "one that cannot resume saves nothing, and is over when its policy says so": Row(
        {1: [grant("a")], 26: [evict("a")], 28: [Close("j", "preempted")]},
        [("a", 1, 28, "evicted", 8 * 27)],
        (28, "preempted"),
        {"resumable": False},
    ),
    "who is done within his notice has finished": Row(
        {1: [grant("a")], 60: [evict("a")]}, [("a", 1, 61, "finished", 0)], (61, "finished")
    ),
    "who is done at the end of it, too": Row({1: [grant("a")], 59: [evict("a")]}, [("a", 1, 61, "finished", 0)], (61, "finished")),
    "one that is evicted before it starts never worked": Row(
        {1: [grant("a")], 1 + 1 / 120: [evict("a", 1 / 240)], 10: [grant("b")]},
        [("a", None, 1 + 1 / 80, "evicted", 0), ("b", 10 + 1 / 60, 70 + 1 / 60, "finished", 0)],
        (70 + 1 / 60, "finished"),
        {"start_ms": SECOND_MS},
    ),
    "work counts from the start, not from the grant": Row(
        {1: [grant("a")]}, [("a", 1 + 1 / 60, 61 + 1 / 60, "finished", 0)], (61 + 1 / 60, "finished"), {"start_ms": SECOND_MS}
    ),
    "a second order changes nothing": Row(
        {1: [grant("a")], 26: [evict("a")], 26.5: [evict("a", 0.5, "other")], 40: [grant("b")]},
        [("a", 1, 28, "evicted", 8 * 7), ("b", 40, 80, "finished", 0)],
        (80, "finished"),
    ),
    "one that is told to stop has its notice, and lost nothing that counts": Row(
        {1: [grant("a")], 26: [Stop("a", 2 * MINUTE_MS)], 28: [Close("j", "max_runtime")]},
        [("a", 1, 28, "stopped", 0)],
        (28, "max_runtime"),
    ),
    "one that waits when the window ends is not over": Row({}, [], None, until=60),
    "one that runs then is still running": Row({1: [grant("a")]}, [("a", 1, 60, "still_running", 0)], None, until=60),
    "what falls on the window's end does not happen": Row({1: [grant("a")]}, [("a", 1, 61, "still_running", 0)], None, until=61),
    "a refused job is over at once": Row({0: [Refuse("j", "never_fits", "")]}, [], (0, "refused")),
}  # fmt: skip


def world(policy: Script, asked: Sequence[Job], where: Cluster, until: float = 600, seed: int = 1) -> World:
    return World(scenario(where, asked, until=until), policy, seed)


def check(row: Row) -> None:
    told = dict(row.told)
    where = cluster(*nodes(1))._replace(start_ms=told.pop("start_ms", 0))
    history = world(Script(row.says), [job("j", 0, "1x8", 60, **(SAVES | told))], where, row.until).run()
    found = [
        (
            run.attempt,
            None if run.started_at_ms is None else minutes(run.started_at_ms),
            minutes(run.ended_at_ms),
            run.end,
            run.lost_gpu_ms / MINUTE_MS,
        )
        for run in history.runs
    ]
    assert [(name, start, how) for name, start, _end, how, _lost in found] == [
        (name, start, how) for name, start, _, how, _ in row.runs
    ]
    assert [(end, lost) for *_, end, _how, lost in found] == [pytest.approx((end, lost)) for *_, end, _how, lost in row.runs]
    life = history.lives["j"]
    assert (life.ended_at_ms, life.end) == ((None, None) if row.ends is None else (at(row.ends[0]), row.ends[1]))
    assert life.attempts == len(row.runs)
    assert life.evictions == sum(how == "evicted" for *_all, how, _lost in row.runs)
    started = [start for _name, start, *_rest in row.runs if start is not None]
    assert life.first_started_at_ms == (at(started[0]) if started else None)
    assert outstanding(history) == ([] if row.ends else [life.job])


@pytest.mark.parametrize("sentence", ROWS)
def test_what_becomes_of_a_job(sentence: str) -> None:
    check(ROWS[sentence])


def test_the_record_has_who_asked_for_the_eviction_and_when_and_how_long_it_was_protected() -> None:
    says: dict[float, list[Action]] = {1: [grant("a", slice_minutes=5)], 8: [evict("a", 2, "big")]}
    (run,) = world(Script(says, protects=5), [job("j", 0, "1x8", 60)], cluster(*nodes(1))).run().runs
    assert (run.granted_at_ms, run.protected_until_ms, run.slice_ms) == (at(1), at(6), 5 * MINUTE_MS)
    assert (run.ordered_at_ms, run.claimant, run.gpus) == (at(8), "big", 8)


def test_protection_may_be_renewed_and_promises_and_refusals_are_kept() -> None:
    says: dict[float, list[Action]] = {
        1: [grant("a"), Promised("k", at(9), True), Refuse("k", "never_fits", "it never fits")],
        2: [Renewed("a", at(30))],
    }
    history = world(Script(says, protects=5), [job("j", 0, "1x8", 10), job("k", 0, "1x8", 10)], cluster(*nodes(1))).run()
    assert history.runs[0].protected_until_ms == at(30)
    (promise,) = history.promises
    assert promise == (at(1), "k", at(9), True)
    assert (history.lives["k"].refused, history.lives["k"].end) == ("never_fits", "refused")


def test_each_hour_the_free_room_is_counted_and_how_much_of_it_is_on_whole_nodes() -> None:
    script = Script({1: [grant("a", where={"n00": 1}), grant("b", "k", {"n01": 1})]})
    asked = [job("j", 0, "1x3", 100), job("k", 0, "1x8", 500)]
    rooms = world(script, asked, cluster(*nodes(3)), until=200).run().rooms
    assert [(minutes(sample.at_ms), sample.free, sample.free_on_empty_nodes) for sample in rooms] == [
        (60, 13, 8),
        (120, 16, 16),
        (180, 16, 16),
    ]


# ----------------------------------------------------------------------------------------------------------------- at one instant


def test_everything_of_one_instant_is_noted_before_the_policy_decides() -> None:
    script = Script({1: [grant("a"), grant("b", "k", {"n01": 1})]})
    asked = [job("j", 0, "1x8", 9), job("k", 0, "1x8", 9), job("late", 10, "1x8", 9), job("later", 10, "1x8", 9)]
    world(script, asked, cluster(*nodes(2)), until=11).run()
    then = [words for minute, *words in script.heard if minute == 10]
    assert then[:4] == [
        ["ended", "a", "finished", None],
        ["ended", "b", "finished", None],
        ["submitted", "late"],
        ["submitted", "later"],
    ]
    assert then[4:] == [["decide"]], "and once is enough where it wants nothing"


def test_the_policy_is_asked_until_it_wants_nothing() -> None:
    script = Script({1: [grant("a")]})
    world(script, [job("j", 1, "1x8", 9)], cluster(*nodes(1)), until=5).run()
    # Starts take no time here: the start is noted at the same instant, and the policy asked again.
    assert [words for minute, *words in script.heard if minute == 1] == [
        ["submitted", "j"], ["decide"], ["started", "a"], ["saves", "a", 60], ["decide"],
    ]  # fmt: skip


def test_a_policy_learns_of_nodes_and_tree_before_anything_else_and_of_a_new_tree_at_its_instant() -> None:
    script = Script({})
    plan = scenario(cluster(*nodes(2)), [job("j", 0, "1x8", 1)], tree({"x": 50}), tree({"x": 50, "y": 50}, 7), until=10)
    World(plan, script, 1).run()
    assert script.heard[:5] == [(0, "tree", 2), (0, "node", "n00", 8), (0, "node", "n01", 8), (0, "submitted", "j"), (0, "decide")]
    assert (7, "tree", 3) in script.heard


class Restless(Script):
    """Never has enough."""

    def decide(self, now_ms: int) -> Sequence[Action]:
        return [Promised("j", now_ms, False)]


def test_a_policy_that_goes_round_in_circles_is_found() -> None:
    with pytest.raises(Stuck, match=f"after {ROUNDS_MAX} rounds"):
        world(Restless({}), [job("j", 0, "1x8", 1)], cluster(*nodes(1))).run()


class Overdue(Script):
    """Its timer lies in the past."""

    rung = 0

    def due_ms(self) -> int | None:
        return at(3) - 1 if self.heard and self.heard[-1][0] == 5 and self.rung < 3 else super().due_ms()

    def decide(self, now_ms: int) -> Sequence[Action]:
        self.rung += minutes(now_ms) == 5
        return super().decide(now_ms)


def test_a_timer_that_is_overdue_rings_now_and_the_clock_never_goes_back() -> None:
    script = Overdue({5: []})
    world(script, [], cluster(*nodes(1)), until=10).run()
    assert script.rung == 3
    times = [minute for minute, *_words in script.heard]
    assert times == sorted(times)  # type: ignore[type-var]


UNLAWFUL: dict[str, tuple[Sequence[Action], str]] = {
    "more than a node has": ([grant("a", "wide", {"n00": 2, "n01": 1})], "more on n00 than is free"),
    "what somebody else holds": ([grant("a"), grant("b", "k")], "more on n00 than is free"),
    "half a gang": ([grant("a", "wide", {"n00": 1, "n01": 1})], "whole gangs or none"),
}


@pytest.mark.parametrize("sentence", UNLAWFUL)
def test_no_policy_may_grant(sentence: str) -> None:
    says, match = UNLAWFUL[sentence]
    asked = [job("j", 0, "1x8", 1), job("k", 0, "1x1", 1), job("wide", 0, "3x8", 1)]
    with pytest.raises(AssertionError, match=match):
        world(Script({1: says}), asked, cluster(*nodes(3))).run()


# ----------------------------------------------------------------------------------------------------------------------- failures


def test_a_failing_node_ends_whoever_has_a_part_there_at_once_and_nobody_else() -> None:
    fault = trouble("n00")
    says = {
        1: [grant("gang", "wide", {"n00": 1, "n01": 1}), grant("b", "k", {"n02": 1})],
        fault.fails + 1: [grant("c", "wide", {"n01": 1, "n03": 1})],
    }
    asked = [job("wide", 0, "2x8", 60, **SAVES), job("k", 0, "1x8", 60)]
    script = Script(says)
    history = world(script, asked, cluster(*nodes(4), failures=RARE), seed=fault.seed, until=200).run()
    lost, other, again = sorted(history.runs, key=lambda run: run.granted_at_ms)
    assert (lost.attempt, lost.end, lost.ended_at_ms) == ("gang", "node_lost", at(fault.fails))
    # It fails between the first and the second save: ten minutes of both nodes are kept.
    assert lost.lost_gpu_ms == 16 * (at(fault.fails) - at(11))
    assert (other.attempt, other.end) == ("b", "finished")
    assert again.ended_at_ms - (again.started_at_ms or 0) == 50 * MINUTE_MS
    assert history.lives["wide"].evictions == 0, "it is nobody's eviction"
    told = [words for minute, *words in script.heard if minute == minutes(at(fault.fails))]
    assert told == [["node", "n00", 0], ["ended", "gang", "node_lost", 11], ["decide"]]
    assert [(change.node, change.healthy, change.at_ms) for change in history.nodes[4:]] == [
        ("n00", 0, at(fault.fails)),
        ("n00", 8, at(fault.back)),
    ]


def test_no_policy_may_grant_on_a_node_that_is_down_but_on_it_once_it_is_back() -> None:
    fault = trouble("n00")
    asked, where = [job("j", 0, "1x8", 1)], cluster(*nodes(4), failures=RARE)
    with pytest.raises(AssertionError, match="which is down"):
        world(Script({fault.back - 1: [grant("a")]}), asked, where, seed=fault.seed).run()
    assert world(Script({fault.back: [grant("a")]}), asked, where, seed=fault.seed).run().lives["j"].end == "finished"


def test_one_that_had_not_started_when_its_node_failed_lost_nothing() -> None:
    fault = trouble("n00")
    where = cluster(*nodes(4), failures=RARE)._replace(start_ms=MINUTE_MS)
    history = world(Script({fault.fails - 0.5: [grant("a")]}), [job("j", 0, "1x8", 9)], where, seed=fault.seed, until=100).run()
    (run,) = history.runs
    assert (run.end, run.started_at_ms, run.lost_gpu_ms) == ("node_lost", None, 0)


# ---------------------------------------------------------------------------------------------------------------------- what holds


def free_at(history: History, instant_ms: int) -> tuple[int, int]:
    """(free GPUs, those on wholly free nodes), counted from the record alone; grants of the instant not yet made."""
    up = {node.node: True for node in history.cluster.nodes}
    for change in history.nodes:
        if change.at_ms <= instant_ms:
            up[change.node] = bool(change.healthy)
    held_on = dict.fromkeys(up, 0)
    for run in history.runs:
        if run.granted_at_ms < instant_ms < run.ended_at_ms:
            for part in run.placement:
                held_on[part.node] += part.replicas * run.gpus_per_replica
    free = {node.node: node.gpus - held_on[node.node] for node in history.cluster.nodes if up[node.node]}
    return sum(free.values()), sum(gpus for name, gpus in free.items() if not held_on[name])


@given(labs(), many_jobs(), st.booleans(), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_no_gpu_time_is_made_or_lost(where: Cluster, asked: list[Job], old: bool, seed: int) -> None:
    policy = Fifo(FifoSettings(), where) if old else Priority(PrioritySettings(), where)
    history = played(policy, where, asked, seed=seed, until=3_000)
    held(history)
    # Ends at a sample's very instant are in the record in an order that the record does not tell.
    edges = {run.ended_at_ms for run in history.runs} | {change.at_ms for change in history.nodes[len(where.nodes) :]}
    for sample in history.rooms:
        assert (sample.at_ms - ORIGIN_MS) % HOUR_MS == 0
        if sample.at_ms not in edges:
            assert (sample.free, sample.free_on_empty_nodes) == free_at(history, sample.at_ms)
    worked: dict[str, int] = {}
    for run in history.runs:
        if run.started_at_ms is not None:
            assert run.granted_at_ms <= run.started_at_ms <= run.ended_at_ms
            assert 0 <= run.lost_gpu_ms <= (run.ended_at_ms - run.started_at_ms) * run.gpus
            worked[run.job] = worked.get(run.job, 0) + (run.ended_at_ms - run.started_at_ms) * run.gpus - run.lost_gpu_ms
        assert run.lost_gpu_ms == 0 or run.end in ("evicted", "node_lost")
    for name, life in history.lives.items():
        if life.end in ("finished", "failed"):
            assert worked[name] == life.job.runtime_ms * life.job.gpus, "what was not lost is the job's work, neither more nor less"
        runs = [run for run in history.runs if run.job == name]
        assert life.attempts == len(runs)
        assert life.evictions == sum(run.end == "evicted" for run in runs)
        for before, after in pairwise(runs):
            assert before.ended_at_ms <= after.granted_at_ms, "one attempt at a time"
