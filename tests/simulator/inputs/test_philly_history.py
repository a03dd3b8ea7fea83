"""Philly as a history: made tables for the rules, the published one against totals computed by others."""

import json
import time
from pathlib import Path

import pytest

from allmende.proto.tree_rules import validate
from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE, SECOND_MS
from allmende.simulator.inputs.cluster_file import read_cluster
from allmende.simulator.inputs.listed import scenario_from
from allmende.simulator.inputs.philly import COLUMNS, NODE_COLUMNS, NODES_TABLE, TABLE, read_philly
from allmende.simulator.model import Job
from tests.simulator.inputs.builders import TRACES, places, value, written

PHILLY = TRACES / "philly_vc"
needs_traces = pytest.mark.skipif(not PHILLY.exists(), reason="the public traces are not beside the repository (../shared/traces)")

HEADER = ",".join(COLUMNS)
GOOD = "2017-10-09 07:01:55,66.0,12,792.0,11cb48"
NODES = ",".join(NODE_COLUMNS)


def test_a_row_reads_as_it_stands(tmp_path: Path) -> None:
    history = value(read_philly(written(tmp_path, f"{HEADER}\r\n{GOOD}\r\n\r\n")))
    assert history.jobs == [
        Job(
            job="line-000002",
            submitted_at_ms=1_507_532_515_000,
            user="11cb48",
            budget="11cb48",
            replicas=2,
            gpus_per_replica=6,
            runtime_ms=66 * SECOND_MS,
            slice_ms=66 * SECOND_MS,
        )
    ]
    assert (history.cluster.gpus, len(history.cluster.nodes)) == (500, 63)


def test_jobs_come_in_the_order_of_submission_and_slices_are_bounded(tmp_path: Path) -> None:
    earlier = "2017-10-09 06:00:00,90000,1,90000,b"
    history = value(read_philly(written(tmp_path, f"{HEADER}\n{GOOD}\n{earlier}"), slice_ms=30 * MINUTE_MS))
    assert [(job.job, job.slice_ms) for job in history.jobs] == [("line-000003", 30 * MINUTE_MS), ("line-000002", 66 * SECOND_MS)]


def test_a_given_cluster_decides_how_a_gang_is_cut(tmp_path: Path) -> None:
    cluster = value(read_cluster(written(tmp_path, "[[nodes]]\ngpus = 4", "c.toml")))
    history = value(read_philly(written(tmp_path, f"{HEADER}\n{GOOD}"), cluster=cluster))
    assert (history.jobs[0].replicas, history.jobs[0].gpus_per_replica, history.cluster) == (3, 4, cluster)


def test_shares_are_nodes_and_none_is_zero(tmp_path: Path) -> None:
    written(tmp_path, f"{NODES}\n11cb48,1\nidle,2", NODES_TABLE)
    written(tmp_path, f"{HEADER}\n{GOOD}\n{GOOD.replace('11cb48', 'late')}", TABLE)
    read = read_philly(tmp_path)
    shares = {each.budget: each.share_ppm for each in value(read).budgets}
    assert shares == {"philly": None, "11cb48": 333_333, "idle": 666_667, "late": 0}
    assert "1 without nodes have share 0" in read.notes[0]


def test_without_nodes_shares_are_what_was_used(tmp_path: Path) -> None:
    read = read_philly(written(tmp_path, f"{HEADER}\n{GOOD}"))
    assert [each.share_ppm for each in value(read).budgets] == [None, PPM_WHOLE]
    assert "there is no philly_vc_nodes.csv" in read.notes[0]


@pytest.mark.parametrize(
    ("sentence", "row", "expected"),
    [
        ("no month", GOOD.replace("2017-10", "2017-13"), (3, 1, "timestamp", "bad_instant")),
        ("a zone", GOOD.replace(":55", ":55+02:00"), (3, 1, "timestamp", "bad_instant")),
        ("another century", GOOD.replace("2017", "0017"), (3, 1, "timestamp", "bad_instant")),
        ("no work", GOOD.replace("66.0", "0"), (3, 2, "duration", "out_of_range")),
        ("negative", GOOD.replace("66.0", "-66"), (3, 2, "duration", "bad_number")),
        ("too fine", GOOD.replace("66.0", "66.0001"), (3, 2, "duration", "too_fine")),
        ("a word", GOOD.replace(",12,", ",two,"), (3, 3, "num_gpus", "bad_number")),
        ("no GPUs", GOOD.replace(",12,", ",0,"), (3, 3, "num_gpus", "out_of_range")),
        ("a prime of a gang", GOOD.replace(",12,", ",99991,").replace("792", "6599406"), (3, 3, "num_gpus", "out_of_range")),
        ("another product", GOOD.replace("792.0", "793.0"), (3, 4, "gpu_time", "wrong_product")),
        ("no product", GOOD.replace("792.0", "NaN"), (3, 4, "gpu_time", "bad_number")),
        ("no name", GOOD.replace("11cb48", "11 cb"), (3, 5, "cluster", "bad_name")),
        ("a cell more", GOOD + ",x", (3, 0, "", "ragged_row")),
        ("quotation marks", GOOD + '"', (3, 5, "cluster", "bad_name")),
    ],
)
def test_a_bad_row_is_named_and_can_be_skipped(
    sentence: str, row: str, expected: tuple[int, int, str, str], tmp_path: Path
) -> None:
    path = written(tmp_path, f"{HEADER}\n{GOOD}\n{row}\n")
    assert places(read_philly(path)) == [expected], sentence
    skipped = read_philly(path, skip_bad=True)
    assert skipped.value is not None
    assert len(skipped.value.jobs) == 1
    assert skipped.notes[-1].endswith(f"1 bad rows were skipped: 1 {expected[3]}")


@pytest.mark.parametrize(
    ("sentence", "content", "code"),
    [("nothing", "", "wrong_columns"), ("another table", "a,b\n1,2", "wrong_columns"), ("no jobs", HEADER, "no_jobs")],
)
def test_a_table_that_cannot_be_used(sentence: str, content: str, code: str, tmp_path: Path) -> None:
    for skip_bad in (False, True):
        (fault,) = read_philly(written(tmp_path, content), skip_bad=skip_bad).faults
        assert fault.code == code, sentence


def test_a_folder_without_the_table_and_faults_of_the_nodes_are_named(tmp_path: Path) -> None:
    assert places(read_philly(tmp_path)) == [(0, 0, "", "cannot_read")]
    written(tmp_path, f"{HEADER}\n{GOOD}\n", TABLE)
    written(tmp_path, f"{NODES}\na,1\na,2\nb\nc,x\n", NODES_TABLE)
    assert places(read_philly(tmp_path)) == [
        (3, 1, "vc", "repeated_name"),
        (4, 0, "", "ragged_row"),
        (5, 2, "node num", "bad_number"),
    ]


@needs_traces
@pytest.mark.trace
def test_the_published_history_has_its_published_totals_and_is_read_quickly() -> None:
    expected = json.loads((TRACES / "expected_totals.json").read_text())["philly_vc"]
    began = time.process_time()
    read = read_philly(PHILLY)
    # A quarter of it on an idle machine: nobody should wait for a history.
    assert time.process_time() - began < 6
    history = value(read)
    assert len(history.jobs) == expected["jobs"] == 82_247
    totals: dict[str, tuple[int, int]] = {}
    for job in history.jobs:
        assert job.budget is not None
        count, gpu_ms = totals.get(job.budget, (0, 0))
        totals[job.budget] = (count + 1, gpu_ms + job.gpus * job.runtime_ms)
    assert totals == {name: (vc["jobs"], int(vc["gpu_seconds"]) * SECOND_MS) for name, vc in expected["by_vc"].items()}
    assert sum(gpu_ms for _, gpu_ms in totals.values()) == int(expected["gpu_seconds"]) * SECOND_MS


@needs_traces
@pytest.mark.trace
def test_the_published_history_is_a_scenario_on_500_gpus() -> None:
    expected = json.loads((TRACES / "expected_totals.json").read_text())["philly_vc"]
    history = value(read_philly(PHILLY))
    assert validate(history.budgets) == ()
    shares = {each.budget: each.share_ppm for each in history.budgets if each.share_ppm is not None}
    assert sum(shares.values()) == PPM_WHOLE
    for name, vc in expected["by_vc"].items():
        assert abs(shares[name] - vc["share_by_nodes"] * PPM_WHOLE) < 1
    assert sum(not share for share in shares.values()) == 4
    assert {(job.replicas, job.gpus_per_replica) for job in history.jobs if job.gpus > 8} == {
        (2, 6),
        (2, 8),
        (3, 8),
        (4, 8),
        (8, 8),
        (16, 8),
    }
    assert max(job.slice_ms for job in history.jobs) == HOUR_MS
    scenario = value(scenario_from("philly", history.cluster, history.jobs, history.budgets))
    assert scenario.cluster.gpus == 500
    last_ms, first_ms = history.jobs[-1].submitted_at_ms, history.jobs[0].submitted_at_ms
    assert scenario.window.to_ms - scenario.window.from_ms == last_ms - first_ms
    assert all(each.members for each in scenario.trees[0].budgets[1:])
