"""What holds in both older worlds whatever happens: no node takes more than it has, nobody is forgotten, and a run repeats."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.proto.units import MINUTE_MS, PPM_WHOLE
from allmende.simulator.model import Cluster, Failures, History, Job, Leaving, NodeSpec, Run
from allmende.simulator.policies.fifo import Fifo
from allmende.simulator.policies.fifo import Settings as FifoSettings
from allmende.simulator.policies.priority import Priority
from allmende.simulator.policies.priority import Settings as PrioritySettings
from tests.simulator.policies.builders import at, cluster, job, played

HURRIED = Leaving(median_ms=3_000, p95_ms=20_000, ignore_ppm=PPM_WHOLE // 5)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Up to 25 jobs within a quarter of an hour, most of them of like shapes, so that they are in one another's way."""
    found: list[Job] = []
    for number in range(draw(st.integers(0, 25))):
        other: dict[str, Any] = {
            "priority": draw(st.sampled_from([0, 0, 1, 2, 5])),
            "resumable": draw(st.sampled_from([True, True, False])),
            "kind": draw(st.sampled_from(["batch", "batch", "batch", "session"])),
            "tag": draw(st.sampled_from(["", "", "", "parked"])),
            "budget": draw(st.sampled_from(["vision", "speech", None])),
            "slice_ms": draw(st.sampled_from([0, MINUTE_MS, 5 * MINUTE_MS])),
            "gpu_model": draw(st.sampled_from([None, None, None, "A", "B"])),
            "max_runtime_ms": draw(st.sampled_from([None, None, None, 3 * MINUTE_MS])),
        }
        shape = draw(st.sampled_from(["1x1", "1x2", "3x1", "1x4", "2x2", "2x4", "1x8", "2x8"]))
        found.append(job(f"j{number:02d}", draw(st.integers(0, 15)), shape, draw(st.integers(1, 9)), **other))
    return sorted(found, key=lambda each: each.submitted_at_ms)


@st.composite
def labs(draw: st.DrawFn) -> Cluster:
    """A few nodes of several sizes and two models; in every other lab they fail, each about twice an hour."""
    specs = [
        NodeSpec(f"n{number}", gpus, draw(st.sampled_from(["A", "B"])))
        for number, gpus in enumerate(draw(st.lists(st.sampled_from([2, 8, 8]), min_size=1, max_size=4)))
    ]
    failures = Failures(30 * MINUTE_MS, 4 * MINUTE_MS, 9 * MINUTE_MS) if draw(st.booleans()) else None
    return cluster(*specs, failures=failures, leaving=HURRIED)._replace(start_ms=draw(st.sampled_from([0, 1_000])))


def held(history: History) -> None:
    """On no node more was held at any instant than it has, counted from the record, not from the policy's own books."""
    changes: dict[str, list[tuple[int, int]]] = {node.node: [] for node in history.cluster.nodes}
    for run in history.runs:
        for part in run.placement:
            gpus = part.replicas * run.gpus_per_replica
            changes[part.node] += [(run.granted_at_ms, gpus), (run.ended_at_ms, -gpus)]
    for node in history.cluster.nodes:
        now = 0
        # At one instant ends come before grants: -gpus sorts first.
        for _at_ms, gpus in sorted(changes[node.node]):
            now += gpus
            assert now <= node.gpus, node
        assert now == 0


def over(history: History) -> None:
    """Everybody had a turn, and models were heeded."""
    models = {node.node: node.gpu_model for node in history.cluster.nodes}
    for name, life in history.lives.items():
        assert life.end is not None, f"{name} was forgotten"
    for run in history.runs:
        wanted = history.lives[run.job].job.gpu_model
        assert all(wanted in (None, models[part.node]) for part in run.placement)


def protected(run: Run, job: Job, limit: int) -> bool:
    """True where nobody may displace the attempt."""
    opts_out = not job.resumable or job.kind == "session" or job.tag == "parked"
    return opts_out and run.gpus <= limit


@given(labs(), jobs())
@settings(max_examples=150, deadline=None)
def test_fifo_keeps_its_books_and_its_word(where: Cluster, asked: list[Job]) -> None:
    history = played(Fifo(FifoSettings(), where), where, asked, until=5_000)
    held(history)
    over(history)
    assert not any(run.end == "evicted" for run in history.runs)
    for name in history.lives:
        said = [promise for promise in history.promises if promise.job == name]
        granted = [run.granted_at_ms for run in history.runs if run.job == name]
        if said and not any(promise.moved_by_failure for promise in said):
            assert any(said[0].at_ms <= at_ms <= said[0].by_ms for at_ms in granted)
    if where.failures is None:
        assert not any(promise.moved_by_failure for promise in history.promises)
    assert history == played(Fifo(FifoSettings(), where), where, asked, until=5_000)


@given(labs(), jobs())
@settings(max_examples=200, deadline=None)
def test_priority_keeps_its_books_and_its_levels(where: Cluster, asked: list[Job]) -> None:
    policy = Priority(PrioritySettings(), where)
    history = played(policy, where, asked, until=5_000)
    held(history)
    over(history)
    changes: dict[str, list[tuple[int, int]]] = {}
    for run in history.runs:
        mine = history.lives[run.job].job
        team = mine.budget or ""
        limit = policy.limit_of(team)
        if protected(run, mine, limit):
            changes.setdefault(team, []).extend([(run.granted_at_ms, run.gpus), (run.ended_at_ms, -run.gpus)])
        if run.claimant is not None:
            assert not protected(run, mine, limit)
            assert min(mine.priority, 2) < min(history.lives[run.claimant].job.priority, 2)
    for team, changed in changes.items():
        now = 0
        for _at_ms, gpus in sorted(changed):
            now += gpus
            assert now <= policy.limit_of(team), team
    assert history == played(Priority(PrioritySettings(), where), where, asked, until=5_000)


@given(labs(), jobs())
@settings(max_examples=100, deadline=None)
def test_without_levels_and_teams_priority_is_fifo(where: Cluster, asked: list[Job]) -> None:
    alike = [
        job(
            each.job,
            (each.submitted_at_ms - at(0)) / MINUTE_MS,
            f"{each.replicas}x{each.gpus_per_replica}",
            each.runtime_ms / MINUTE_MS,
        )
        for each in asked
    ]
    fifo = played(Fifo(FifoSettings(), where), where, alike, until=5_000)
    levels = played(Priority(PrioritySettings(), where), where, alike, until=5_000)
    assert levels.runs == fifo.runs
