"""The trace importer, on small made tables, and on the published file against totals computed by others."""

import json
import time
from pathlib import Path

import pytest

from allmende.agent.workload.openloop import Replay
from allmende.agent.workload.philly import COLUMNS, TraceError, TraceJob, lab_of, read_jobs, read_nodes, replay
from allmende.agent.workload.tracefile import lab_and_jobs, parse_instant
from allmende.chassis.errors import Misconfigured
from allmende.proto.tree_rules import validate
from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE, SECOND_MS
from tests.agent.builders import T0

TRACES = Path(__file__).parents[2] / ".." / "shared" / "traces"
PHILLY = TRACES / "philly_vc" / "philly.csv"
needs_traces = pytest.mark.skipif(not PHILLY.exists(), reason="the public traces are not beside the repository (../shared/traces)")

HEADER = ",".join(COLUMNS)
GOOD = "2017-10-09 07:01:55,66.0,2,132.0,11cb48"


def test_a_row_reads_as_it_stands() -> None:
    (row,) = read_jobs([HEADER + "\n", GOOD + "\r\n", "\n"])
    assert row == TraceJob(1_507_532_515_000, 66 * SECOND_MS, 2, "11cb48")


def test_rows_come_in_the_order_of_submission() -> None:
    later = GOOD.replace("07:01", "08:01")
    assert [row.submitted_at_ms for row in read_jobs([HEADER, later, GOOD])] == [1_507_532_515_000, 1_507_536_115_000]


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (GOOD.replace("2017-10-09", "2017-13-09"), "column timestamp"),
        (GOOD.replace("07:01:55", "07:01:55+02:00"), "column timestamp"),
        (GOOD.replace("66.0", "66.5"), "column duration"),
        (GOOD.replace(",66.0", ",-66"), "column duration"),
        (GOOD.replace(",2,", ",two,"), "column num_gpus"),
        (GOOD.replace(",2,", ",0,"), "column num_gpus"),
        (GOOD.replace("132.0", "133.0"), "column gpu_time"),
        (GOOD.replace("11cb48", "11 cb"), "column cluster"),
        (GOOD + ",x", "column cluster"),
        (GOOD.rpartition(",")[0], "column cluster"),
    ],
)
def test_a_bad_row_is_named_by_line_and_column(row: str, place: str) -> None:
    with pytest.raises(TraceError, match=f"line 3, {place}"):
        read_jobs([HEADER, GOOD, row])


def test_every_bad_row_is_named_up_to_a_bound() -> None:
    with pytest.raises(TraceError) as caught:
        read_jobs([HEADER, *["x"] * 100])
    assert str(caught.value).count("line ") == 20


def test_another_files_header_is_refused() -> None:
    with pytest.raises(TraceError, match="line 1"):
        read_jobs(["time,gpus"])
    with pytest.raises(TraceError, match="line 1"):
        read_nodes(["a,b"])


@pytest.mark.parametrize("row", ["a", "a,b", "a,1,2", "a b,1", "known,3"])
def test_a_bad_row_of_nodes_is_named(row: str) -> None:
    with pytest.raises(TraceError, match="line 3"):
        read_nodes(["vc,node num", "known,2", row])


def test_shares_follow_nodes_and_zero_is_zero() -> None:
    jobs = [TraceJob(T0, MINUTE_MS, 1, name) for name in ("a", "b", "c", "d")]
    lab = lab_of(jobs, {"a": 1, "b": 1, "c": 1})
    shares = {each.budget: each.share_ppm for each in lab.budgets if each.parent}
    assert shares == {"a": 333_334, "b": 333_333, "c": 333_333, "d": 0}
    assert validate(lab.budgets) == ()


def row(at_min: int, runs_min: int, gpus: int) -> TraceJob:
    return TraceJob(T0 + at_min * MINUTE_MS, runs_min * MINUTE_MS, gpus, "a")


@pytest.mark.parametrize(
    ("sentence", "jobs", "left"),
    [
        ("what has ended is gone", [row(0, 60, 4)], []),
        ("what runs has the rest of its time left", [row(0, 90, 4)], [row(0, 30, 4)]),
        ("what waits has all of its time left", [row(0, 90, 4), row(1, 50, 1)], [row(0, 30, 4), row(1, 50, 1)]),
        ("nobody overtakes", [row(0, 90, 3), row(1, 50, 2), row(2, 50, 1)], [row(0, 30, 3), row(1, 50, 2), row(2, 50, 1)]),
        ("what waited and started has less left", [row(0, 40, 4), row(1, 50, 1)], [row(1, 30, 1)]),
        ("what is larger than the cluster blocks nobody", [row(0, 50, 5), row(1, 90, 4)], [row(1, 31, 4)]),
    ],
)
def test_what_still_runs_or_waits_after_an_hour_on_four_gpus(sentence: str, jobs: list[TraceJob], left: list[TraceJob]) -> None:
    assert replay(jobs, 4, T0 + HOUR_MS)[0] == left, sentence


def test_a_replay_submits_leftovers_first_and_the_rest_at_its_own_time() -> None:
    jobs = [row(0, 90, 4), row(70, 5, 1), row(80, 5, 12)]
    made = Replay(lab_of(jobs, {"a": 1}), jobs, 4, 1, T0 + HOUR_MS, T0 + 5 * HOUR_MS)
    assert [request.gpus for request in made.wanted(T0 + 5 * HOUR_MS)] == [4]
    assert [request.gpus for request in made.wanted(T0 + 5 * HOUR_MS + 10 * MINUTE_MS)] == [1]
    (last,) = made.wanted(T0 + 6 * HOUR_MS)
    assert (last.body.replicas, last.body.gpus_per_replica) == (2, 6)
    assert len(made.open) == 3


def test_a_seeded_share_of_jobs_has_slice_zero_and_no_budget() -> None:
    jobs = [row(0, 90, 1)] * 4_000
    requests = Replay(lab_of(jobs, {"a": 1}), jobs, 4, 1, T0, T0).wanted(T0)
    free = [request.body for request in requests if request.body.budget is None]
    assert 0.13 < len(free) / len(requests) < 0.17
    assert {body.slice_ms for body in free} == {0}
    assert {request.body.slice_ms for request in requests if request.body.budget} == {30 * MINUTE_MS}


def test_instants_and_missing_files_are_answered_with_a_sentence(tmp_path: Path) -> None:
    assert parse_instant("2017-10-05") == 1_507_161_600_000
    assert parse_instant("2017-10-05T02:00:00+02:00") == 1_507_161_600_000
    with pytest.raises(Misconfigured, match="tomorrow"):
        parse_instant("tomorrow")
    with pytest.raises(Misconfigured, match="cannot be used"):
        lab_and_jobs(1, str(tmp_path / "none.csv"))


@needs_traces
def test_the_published_trace_has_its_published_totals_and_is_read_quickly() -> None:
    expected = json.loads((TRACES / "expected_totals.json").read_text())["philly_vc"]
    began = time.process_time()
    lab, jobs = lab_and_jobs(1, str(PHILLY))
    # A quarter of it on an idle machine: a start must not wait for it.
    assert time.process_time() - began < 2
    assert len(jobs) == expected["jobs"] == 82_247
    totals: dict[str, tuple[int, int]] = {}
    for each in jobs:
        count, gpu_ms = totals.get(each.cluster, (0, 0))
        totals[each.cluster] = (count + 1, gpu_ms + each.gpus * each.runtime_ms)
    assert totals == {name: (vc["jobs"], int(vc["gpu_seconds"]) * SECOND_MS) for name, vc in expected["by_vc"].items()}
    shares = {team.budget: team.effective_ppm for team in lab.teams}
    assert sum(shares.values()) == PPM_WHOLE
    for name, share in shares.items():
        assert abs(share - expected["by_vc"][name]["share_by_nodes"] * PPM_WHOLE) < 1
    assert sum(not share for share in shares.values()) == 4
    left, later = replay(jobs, 500, parse_instant("2017-10-05"))
    assert sum(each.gpus for each in left) > 500
    assert len(later) == sum(each.submitted_at_ms >= parse_instant("2017-10-05") for each in jobs)
