"""The ledger's figures are the simulator's: the same generated past has the same hours, sums and waits in both, to the digit."""

from collections.abc import Iterator

import pytest

from allmende.ledger.model import NodeStep, Share, Used
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.demand import AskedJob, JobEnd, Placing, Want
from allmende.ledger.rules.figures import Asking, hours, team_figures, whole
from allmende.ledger.rules.hours import HourSums, Span
from allmende.ledger.rules.tree import succeed
from allmende.ledger.rules.waits import Waiting, wait
from allmende.proto.impact import total
from allmende.proto.units import HOUR_MS, SECOND_MS
from allmende.simulator.figures.compute import measure
from allmende.simulator.figures.quotients import quotient
from allmende.simulator.model import History
from tests.simulator.figures.builders import generated

CLUSTER = "lab"


def asked_jobs(past: History) -> Iterator[AskedJob]:
    for name, life in past.lives.items():
        job = life.job
        want = Want(job.budget, life.submitted_at_ms, (), job.gpus, None, job.slice_ms)
        end = None if life.ended_at_ms is None else JobEnd(life.ended_at_ms, "finished", life.first_started_at_ms)
        runs = sorted((run for run in past.runs if run.job == name), key=lambda run: run.granted_at_ms)
        placings = tuple(
            Placing(
                CLUSTER,
                run.leaf,
                run.granted_at_ms,
                run.started_at_ms,
                None if run.end == "still_running" else run.ended_at_ms,
                None if run.end == "still_running" else run.end,
            )
            for run in runs
        )
        yield AskedJob(want, end, placings)


def shares(past: History) -> list[Share]:
    found: list[Share] = []
    now: dict[str, Share] = {}
    for revision, tree in enumerate(past.trees, start=1):
        change = succeed(now, {each.budget: each for each in tree.budgets}, revision, tree.at_ms)
        found += [now[name]._replace(until_ms=tree.at_ms) for name in change.ended]
        now = {name: share for name, share in now.items() if name not in change.ended} | {
            each.budget: each for each in change.begun
        }
    return [*found, *now.values()]


def used(past: History, span: Span) -> list[Used]:
    sums: dict[str | None, HourSums] = {}
    for run in past.runs:
        if run.started_at_ms is not None:
            sums.setdefault(run.leaf, HourSums(span)).add(run.gpus, run.started_at_ms, run.ended_at_ms)
    return [
        Used(span.begins(at), leaf, amount) for leaf, each in sums.items() for at, amount in enumerate(each.by_hour()) if amount
    ]


@pytest.mark.parametrize(("seed", "days"), [(1, 2), (2, 3), (3, 9)])
def test_the_same_past_has_the_same_figures(seed: int, days: int) -> None:
    past = generated(seed, days=days, nodes=6)
    theirs = measure(past)
    span = Span(past.window.from_ms, past.reached_ms)
    assert span.from_ms % HOUR_MS == 0
    jobs = list(asked_jobs(past))
    steps = [NodeStep(CLUSTER, each.node, each.at_ms, number, 8, each.healthy) for number, each in enumerate(past.nodes)]
    capacity, charged = levels(steps, *span), used(past, span)
    asking, waiting = Asking(CLUSTER, span), Waiting()
    for job in jobs:
        asking.add(job)
        waited = wait(job, CLUSTER, span.to_ms)
        if waited is not None and span.has(job.want.submitted_at_ms):
            waiting.add(waited)
    ours = hours(span, capacity, shares(past), asking.by_leaf(), charged, 0)

    hourly = {team.budget: team for team in theirs.hourly.teams}
    assert {team.budget for team in ours.teams} == set(hourly)
    for team in ours.teams:
        expected = hourly[team.budget]
        found = (tuple(team.entitled), tuple(team.demand), team.owed, tuple(team.delivered))
        assert found == (expected.entitled, expected.demand, expected.owed, expected.delivered), team.budget
    sums, cluster = total(team.impact for team in team_figures(ours, {})), whole(ours, capacity, charged)
    assert sums.owed > 0
    assert (theirs.delivered_owed_plain, theirs.delivered_owed_weekly, theirs.delivered_owed_strict) == (
        quotient(sums.delivered, sums.owed),
        quotient(sums.weekly, sums.owed),
        quotient(sums.strict, sums.owed),
    )
    occupied = cluster.allocated + cluster.unallocated
    assert (theirs.availability, theirs.occupancy, theirs.unallocated_share) == (
        quotient(cluster.available, cluster.installed),
        quotient(occupied, cluster.available),
        quotient(cluster.unallocated, occupied),
    )
    for each in waiting.classes():
        expected_waits = theirs.waits_s[each.name]
        told = tuple(None if ms is None else round(ms / SECOND_MS, 6) for ms in (each.p50_ms, each.p90_ms, each.max_ms))
        assert told == (expected_waits.p50, expected_waits.p90, expected_waits.max), each.name
        assert (each.jobs, each.never_started) == (expected_waits.jobs, expected_waits.never_started)
