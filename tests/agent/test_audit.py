"""The audit: all zero for a faultless run, and one planted fault makes each figure other than zero."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from allmende.agent.audit.history import read
from allmende.agent.audit.occupancy import amounts, available_by_hour
from allmende.agent.audit.report import Evidence, Report, report
from allmende.agent.sdk.backend import Cause
from allmende.agent.synthetic.command import Command
from allmende.agent.synthetic.truth import AnyRecord, Ended, NodeWas, Opened, Signalled
from allmende.agent.workload import log as workload
from allmende.proto.admission import AttemptProtected
from allmende.proto.ledger import Posting
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.agent.builders import PLAN, T0, attempt, cluster, eviction, job, launch

UNTIL = T0 + 3 * HOUR_MS
# An hour's edge, so that hours of the run are whole.
assert T0 % MINUTE_MS == 20_000


class Run(NamedTuple):
    """Attempt 1 (a gang of two) is evicted after its slice, 2 finishes, 3 is cut off by the end, 4 is unallocated."""

    truth: list[AnyRecord]
    postings: list[Posting]
    protections: list[AttemptProtected]
    orders: list[EvictionOrdered]
    entries: list[workload.AnyEntry]


def a_run() -> Run:
    truth: list[AnyRecord] = []
    made = cluster(truth)
    long = Command(10 * HOUR_MS, 10 * MINUTE_MS, startup_ms=0)
    made.start(launch(1, long, ("n0001", "n0002"), gpus=4), T0)
    made.start(launch(2, Command(30 * MINUTE_MS, startup_ms=0), ("n0001",), gpus=2), T0 + MINUTE_MS)
    made.start(launch(4, long, ("n0002",))._replace(budget=None, slice_ms=0), T0 + MINUTE_MS)
    made.terminate(attempt(1), Cause("eviction", PLAN), T0 + 65 * MINUTE_MS)
    made.kill(attempt(1), Cause("eviction", PLAN), T0 + 67 * MINUTE_MS)
    made.start(launch(3, long, ("n0001",), gpus=8), T0 + 2 * HOUR_MS)
    made.power_off(UNTIL)
    made.close(UNTIL, 0)
    history = read(truth)
    postings: list[Posting] = []
    for ran in history.attempts.values():
        for replica in range(ran.replicas):
            # Split in two: any split of an interval is exact.
            middle = ran.started_at_ms + (ran.ended_at_ms - ran.started_at_ms) // 3
            for from_ms, to_ms in ((ran.started_at_ms, middle), (middle, ran.ended_at_ms)):
                postings.append(posting(len(postings) + 1, ran.attempt, replica, from_ms, to_ms, ran.gpus_per_replica, ran.budget))
    protections = [
        AttemptProtected(
            cluster="c1",
            attempt=ran.attempt,
            job=ran.job,
            budget=ran.budget,
            started_at_ms=ran.started_at_ms,
            protected_until_ms=ran.started_at_ms + ran.slice_ms,
        )
        for ran in history.attempts.values()
    ]
    entries: list[workload.AnyEntry] = [
        workload.Began(at_ms=T0, seed=1, gpus=16, teams=(workload.TeamShare(budget="video", effective_share_ppm=1_000_000),))
    ]
    for number, gpus in ((1, 8), (2, 2), (3, 8)):
        entries.append(submitted(number, gpus))
    entries.append(workload.Ended(at_ms=T0 + 31 * MINUTE_MS, job=job(2), outcome="finished", first_started_at_ms=T0 + MINUTE_MS))
    return Run(truth, postings, protections, [eviction()], entries)


def submitted(number: int, gpus: int) -> workload.Submitted:
    return workload.Submitted(
        at_ms=T0, job=job(number), user="ada", team="video", budget="video", gpus=gpus, slice_ms=HOUR_MS, debug=False
    )


def posting(number: int, name: str, replica: int, from_ms: int, to_ms: int, gpus: int, budget: str | None) -> Posting:
    return Posting(
        number=number,
        attempt=name,
        replica=replica,
        epoch=1,
        from_ms=from_ms,
        to_ms=to_ms,
        gpus=gpus,
        budget=budget,
        amount_gpu_ms=gpus * (to_ms - from_ms),
    )


def judged(run: Run) -> Report:
    return report(Evidence(read(run.truth), run.postings, run.protections, run.orders, run.entries))


def zeros(found: Report) -> dict[str, int]:
    return {
        "difference": found.ledger_difference_gpu_ms,
        "lost": found.postings_lost,
        "duplicated": found.postings_duplicated,
        "violations": found.slice_violations,
        "unexplained": found.evictions_unexplained,
    }


def test_a_faultless_run_has_only_zeros() -> None:
    found = judged(a_run())
    assert set(zeros(found).values()) == {0}
    assert (found.evictions, found.jobs_submitted, found.jobs_started, found.jobs_finished) == (1, 3, 4, 1)


def _drop(run: Run) -> Run:
    return run._replace(postings=run.postings[:2] + run.postings[3:])


def _repeat(run: Run) -> Run:
    return run._replace(postings=[*run.postings, run.postings[2]])


def _post_twice(run: Run) -> Run:
    again = run.postings[2]
    twice = posting(99, again.attempt, again.replica, again.from_ms, again.to_ms, again.gpus, again.budget)
    return run._replace(postings=[*run.postings, twice])


def _one_ms_short(run: Run) -> Run:
    last = run.postings[-1]
    short = posting(last.number, last.attempt, last.replica, last.from_ms, last.to_ms - 1, last.gpus, last.budget)
    return run._replace(postings=[*run.postings[:-1], short])


def _never_ran(run: Run) -> Run:
    return run._replace(postings=[*run.postings, posting(99, attempt(77), 0, T0, T0 + 1, 1, "video")])


def _errors_that_cancel_out(run: Run) -> Run:
    first, *rest = run.postings
    other = rest[-1]
    changed = [
        posting(first.number, first.attempt, first.replica, first.from_ms, first.to_ms, first.gpus + 1, first.budget),
        *rest[:-1],
        posting(other.number, other.attempt, other.replica, other.from_ms, other.to_ms, other.gpus - 1, other.budget),
    ]
    return run._replace(postings=changed)


def _early(run: Run) -> Run:
    """The cluster's log says that the signal came a millisecond before the slice had passed."""
    truth = [
        Signalled(at_ms=T0 + HOUR_MS - 1, attempt=each.attempt, signal=each.signal, cause=each.cause, name=each.name)
        if isinstance(each, Signalled) and each.signal == "TERM"
        else each
        for each in run.truth
    ]
    return run._replace(truth=truth)


def _longer_promise(run: Run) -> Run:
    """What was published promised more than the slice."""
    first = run.protections[0]
    longer = AttemptProtected(
        cluster="c1",
        attempt=first.attempt,
        job=first.job,
        budget=first.budget,
        started_at_ms=first.started_at_ms,
        protected_until_ms=first.protected_until_ms + HOUR_MS,
    )
    return run._replace(protections=[longer, *run.protections[1:]])


def _unheard(run: Run) -> Run:
    return run._replace(orders=[])


def _another_plan(run: Run) -> Run:
    return run._replace(orders=[eviction(plan=job(5))])


def _wordless(run: Run) -> Run:
    order = eviction()
    wordless = EvictionOrdered(**{name: getattr(order, name) for name in order.__struct_fields__} | {"sentence": ""})
    return run._replace(orders=[wordless])


@pytest.mark.parametrize(
    ("fault", "figures"),
    [
        (_drop, {"difference", "lost"}),
        (_repeat, {"difference", "duplicated"}),
        (_post_twice, {"difference", "duplicated"}),
        (_one_ms_short, {"difference", "lost"}),
        (_never_ran, {"difference"}),
        (_errors_that_cancel_out, {"difference"}),
        (_early, {"violations"}),
        (_longer_promise, {"violations"}),
        (_unheard, {"unexplained"}),
        (_another_plan, {"unexplained"}),
        (_wordless, {"unexplained"}),
    ],
)
def test_a_planted_fault_shows_in_its_figures_and_in_no_other(fault: Callable[[Run], Run], figures: set[str]) -> None:
    found = zeros(judged(fault(a_run())))
    assert {name for name, value in found.items() if value} == figures


def test_one_posting_too_short_by_a_millisecond_is_one_gpu_ms_for_each_gpu() -> None:
    run = a_run()
    assert judged(_one_ms_short(run)).ledger_difference_gpu_ms == run.postings[-1].gpus


def test_amounts_are_what_was_held() -> None:
    history = read(a_run().truth)
    found = amounts(history, T0, UNTIL)
    ran = history.attempts
    lasted = {number: ran[attempt(number)].ended_at_ms - ran[attempt(number)].started_at_ms for number in (1, 2, 3, 4)}
    assert found.installed == found.available == 16 * 3 * HOUR_MS
    assert found.allocated == 8 * lasted[1] + 2 * 30 * MINUTE_MS + 8 * HOUR_MS
    assert found.unallocated == lasted[4] == 179 * MINUTE_MS
    assert sum(available_by_hour(history, T0, UNTIL).values()) == found.available
    first, second = amounts(history, T0, T0 + HOUR_MS // 3), amounts(history, T0 + HOUR_MS // 3, UNTIL)
    assert (first.occupied + second.occupied, first.available + second.available) == (found.occupied, found.available)


def test_a_node_that_is_down_is_not_available() -> None:
    def node(at_ms: int, healthy: int) -> NodeWas:
        return NodeWas(at_ms=at_ms, node="n1", installed_gpus=8, healthy_gpus=healthy)

    opened = Opened(at_ms=T0, cluster="c1", seed=1)
    found = amounts(read([opened, node(T0, 8), node(T0 + 10, 0), node(T0 + 30, 8), node(T0 + 40, 0)]), T0, T0 + 40)
    assert (found.installed, found.available) == (8 * 40, 8 * 20)


def test_delivery_and_waits_come_from_the_logs() -> None:
    found = judged(a_run())
    (team,) = found.teams
    assert team.budget == "video"
    assert found.delivered_owed_strict is not None
    assert 0 < found.delivered_owed_strict < 1
    assert found.waits_s["all"].max == 7_200
    assert found.outcomes == {"finished": 1, "open": 2}


@pytest.mark.parametrize(
    "records",
    [
        [],
        [Ended(at_ms=T0, attempt="a", job="j", by="itself", exit_code=0, progress_ms=0, saved_ms=0)],
        [
            Opened(at_ms=T0, cluster="c1", seed=1),
            Ended(at_ms=T0, attempt="a", job="j", by="itself", exit_code=0, progress_ms=0, saved_ms=0),
        ],
    ],
)
def test_a_log_that_contradicts_itself_is_refused(records: Sequence[AnyRecord]) -> None:
    with pytest.raises(ValueError, match=r"log|without a start"):
        read(records)
