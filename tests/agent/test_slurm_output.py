"""What Slurm prints, read: rows of real output, and rows that a user, an old version or a broken disk could make of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.agent.slurm.output import (
    SlurmJob,
    SlurmNode,
    Unreadable,
    devices_of,
    expand,
    gpus_of,
    read_accounting,
    read_jobs,
    read_nodes,
)
from allmende.agent.slurm.wishes import Refused, id_of, mark_of, slice_of
from allmende.proto.units import HOUR_MS, MINUTE_MS

# What `squeue --json` of 22.05 says of a held job, as far as it is read.
HELD: dict[str, Any] = {
    "job_id": 7,
    "user_name": "ann",
    "account": "vision",
    "name": "train",
    "comment": "",
    "admin_comment": "",
    "submit_time": 1_796_299_147,
    "start_time": 0,
    "job_state": "PENDING",
    "priority": 0,
    "requeue": False,
    "tres_per_node": "gres:gpu:h100:2",
    "tres_per_job": "",
    "tres_per_socket": "",
    "tres_per_task": "",
    "node_count": 1,
    "time_limit": None,
    "time_minimum": 0,
    "nodes": "",
    "gres_detail": [],
    "array_job_id": 0,
    "array_task_id": None,
    "array_task_string": "",
}
RUNS = {"job_state": "RUNNING", "priority": 4_294_901_759, "start_time": 1_796_299_200}


def jobs(*changes: dict[str, Any]) -> str:
    return json.dumps({"meta": {}, "errors": [], "jobs": [{**HELD, **change} for change in changes]})


def a_job(**changes: Any) -> SlurmJob:
    read = read_jobs(jobs(changes))
    assert read.faults == ()
    (job,) = read.rows
    assert isinstance(job, SlurmJob)
    return job


@pytest.mark.parametrize(
    ("sentence", "change", "expected"),
    [
        ("priority 0 is held", {}, {"held": True, "life": "waits", "started_at_ms": None}),
        ("released and waiting is not", {"priority": 5}, {"held": False, "life": "waits"}),
        ("a waiting job's expected start is no start", {"priority": 5, "start_time": 1_796_299_404}, {"started_at_ms": None}),
        ("a running job is not held", RUNS, {"held": False, "life": "runs", "started_at_ms": 1_796_299_200_000}),
        ("an ending job still holds its GPUs", {**RUNS, "job_state": "COMPLETING"}, {"life": "leaves"}),
        ("GPUs a node", {"node_count": 2}, {"gpus_per_node": 2, "nodes": 2, "model": "h100"}),
        ("GPUs a job", {"tres_per_node": "", "tres_per_job": "gres:gpu:6", "node_count": 2}, {"gpus_per_node": 3, "model": None}),
        ("none", {"tres_per_node": ""}, {"gpus_per_node": 0}),
        (
            "limits are minutes",
            {"time_limit": 20, "time_minimum": 10},
            {"time_limit_ms": 20 * MINUTE_MS, "time_min_ms": 10 * MINUTE_MS},
        ),
        ("null is unlimited, 0 is not said", {}, {"time_limit_ms": None, "time_min_ms": None}),
        (
            "where it runs",
            {**RUNS, "nodes": "n[1-2]", "gres_detail": ["gpu:h100:2(IDX:0-1)", "gpu:h100:2(IDX:3,5)"]},
            {"places": (("n1", (0, 1)), ("n2", (3, 5)))},
        ),
        (
            "a name may be anything",
            {"name": "evil|na me\n2|x", "comment": "a|b\n3|RUNNING"},
            {"name": "evil|na me\n2|x", "held": True},
        ),
        (
            "an array waits as one",
            {"array_job_id": 7, "array_task_string": "0-2%1"},
            {"array": 7, "array_task": None, "array_waits": "0-2%1"},
        ),
    ],
)
def test_a_job_of_the_queue(sentence: str, change: dict[str, Any], expected: dict[str, Any]) -> None:
    job = a_job(**change)
    assert {name: getattr(job, name) for name in expected} == expected, sentence


@pytest.mark.parametrize(
    "change",
    [
        {"job_state": "DREAMING"},
        {"submit_time": "now"},
        {"submit_time": -1},
        {"submit_time": 10**15},
        {"priority": None},
        {"priority": True},
        {"name": ["x"]},
        {"tres_per_node": "gres:gpu:a100:1,gres:gpu:h100:1"},
        {"tres_per_task": "gres:gpu:1"},
        {"tres_per_node": "", "tres_per_job": "gres:gpu:3", "node_count": 2},
        {"nodes": "n[1-"},
        {"nodes": "n[1-99999]"},
        {"nodes": "n1", "gres_detail": ["gpu:1(IDX:0)", "gpu:1(IDX:0)"]},
        {"user_name": 5},
    ],
)
def test_a_job_that_cannot_be_read_is_named_and_stops_no_other(change: dict[str, Any]) -> None:
    read = read_jobs(jobs({"job_id": 6}, change, {"job_id": 8}))
    assert [job.number for job in read.rows] == [6, 8]
    (fault,) = read.faults
    assert fault.startswith("job_id 7: ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slurm_load_jobs error: Unable to contact slurm controller",
        "[]",
        "{}",
        '{"jobs": 3}',
        '{"jobs": [3]}',
        '{"errors": ["x"]}',
    ],
)
def test_no_answer_is_not_an_empty_queue(text: str) -> None:
    with pytest.raises(Unreadable):
        read_jobs(text)
    with pytest.raises(Unreadable):
        read_nodes(text)


@pytest.mark.parametrize(
    ("state", "flags", "up", "drains"),
    [
        ("idle", [], True, False),
        ("mixed", ["DRAIN"], True, True),
        ("down", [], False, False),
        ("down", ["DRAIN"], False, True),
        ("idle", ["NOT_RESPONDING"], False, False),
        ("unknown", [], False, False),
        ("a-new-word", [], False, False),
    ],
)
def test_a_node(state: str, flags: list[str], up: bool, drains: bool) -> None:
    entry = {"name": "n1", "state": state, "state_flags": flags, "gres": "gpu:h100:8(S:0-1)", "reason": "bad fan|x"}
    read = read_nodes(json.dumps({"errors": [], "nodes": [entry]}))
    assert read == ((SlurmNode("n1", 8, "h100", up, drains, "bad fan|x"),), ())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1|100|102|104|2|REQUEUED|0:0|cpu=1,gres/gpu=2,node=1|n2", (102_000, 104_000, 2_000, "ended", 0, 2, ("n2",))),
        (
            "2|100|102|Unknown|9|RUNNING|0:0|cpu=1,gres/gpu:h100=4,gres/gpu=4|n[1-2]",
            (102_000, None, 9_000, "runs", 0, 4, ("n1", "n2")),
        ),
        ("3|100|102|102|0|CANCELLED by 1000|0:15|gres/gpu=1|n1", (102_000, 102_000, 0, "ended", 143, 1, ("n1",))),
        ("4|100|Unknown|103|0|CANCELLED by 0|0:0||None assigned", (None, 103_000, 0, "ended", 0, 0, ())),
        ("5|100|102|105|3|FAILED|3:0|gres/gpu=1|n1", (102_000, 105_000, 3_000, "failed", 3, 1, ("n1",))),
    ],
)
def test_a_run_in_the_accounting(line: str, expected: tuple[Any, ...]) -> None:
    (run,), faults = read_accounting(line + "\n")
    assert (run[2:], faults) == (expected, ())


def test_a_line_that_is_none_is_named() -> None:
    read = read_accounting("x|y\n1|100|102|104|2|REQUEUED|0:0|gres/gpu=2|n2\n1|1|1|1|-|FAILED|0:0||n2\n1|1|1|1|1|WHAT|0:0||n2")
    assert len(read.rows) == 1
    assert [fault.partition(":")[0] for fault in read.faults] == ["line 1", "line 3", "line 4"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("", ()),
        ("None assigned", ()),
        ("n1", ("n1",)),
        ("n1,gpu-a", ("n1", "gpu-a")),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("gpu[08-10,2]-x,n1", ("gpu08-x", "gpu09-x", "gpu10-x", "gpu2-x", "n1")),
    ],
)
def test_a_list_of_nodes(nodes: str, expected: tuple[str, ...]) -> None:
    assert expand(nodes) == expected


@pytest.mark.parametrize("nodes", ["n[3-1]", "n[1", "n]1", "n[a]", "n[1-2][3]", "n[0-999999999]", "a b", "-rf", "n;x", "n[]"])
def test_what_is_no_list_of_nodes(nodes: str) -> None:
    with pytest.raises(Unreadable):
        expand(nodes)


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("gpu:h100:3(IDX:0-1,5)", (0, 1, 5)),
        ("gpu:1(IDX:7)", (7,)),
        ("nic:1(IDX:0),gpu:2(IDX:2-3)", (2, 3)),
        ("gpu:0", ()),
        ("", ()),
    ],
)
def test_devices(detail: str, expected: tuple[int, ...]) -> None:
    assert devices_of(detail) == expected


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("gres:gpu", (1, None)),
        ("gres:gpu:2", (2, None)),
        ("gres:gpu:h100:2", (2, "h100")),
        ("gres:nic:1", (0, None)),
        ("gres:gpu:a100:1,gres:gpu:a100:2", (3, "a100")),
        ("gres:gpuless:4", (0, None)),
        ("", (0, None)),
    ],
)
def test_a_request(request_: str, expected: tuple[int, str | None]) -> None:
    assert gpus_of(request_) == expected


@given(st.text(), st.text())
def test_words_of_users_change_nothing_else(name: str, comment: str) -> None:
    job = a_job(name=name, comment=comment)
    assert job._replace(name="train", comment="") == a_job()
    assert (job.name, job.comment) == (name, comment)


# --------------------------------------------------------------------------------------------------------------------- wishes


def test_a_number_that_is_used_again_is_another_job() -> None:
    first, again = a_job(), a_job(submit_time=1_796_299_148)
    assert len({id_of("c1", first), id_of("c1", again), id_of("c2", first), id_of("c1", a_job(job_id=8))}) == 4
    assert id_of("c1", first) == id_of("c1", a_job(name="other", comment="other")), "what its user may change does not count"


def test_a_requeue_changes_the_submit_time_and_not_the_id() -> None:
    first = id_of("c1", a_job())
    assert id_of("c1", a_job(submit_time=1_796_299_900, admin_comment=mark_of(first))) == first


@pytest.mark.parametrize(
    "comment",
    ["allmende:", "allmende:held", "allmende:ILOU", "someone's own words", "allmende:" + "0" * 27, "allmende:" + "8" * 26],
)
def test_an_operators_own_comment_is_no_id(comment: str) -> None:
    assert id_of("c1", a_job(admin_comment=comment)) == id_of("c1", a_job())


@pytest.mark.parametrize(
    ("sentence", "change", "expected"),
    [
        ("said in the comment", {"comment": "slice=2h"}, 2 * HOUR_MS),
        ("among other words", {"comment": "my run, slice=90m|x"}, 90 * MINUTE_MS),
        ("0 is 0: unallocated", {"comment": "slice=0", "time_minimum": 10}, 0),
        ("else the least time", {"time_minimum": 10, "time_limit": 20}, 10 * MINUTE_MS),
        ("else the default", {}, HOUR_MS),
        ("which is not longer than the job may run", {"time_limit": 20}, 20 * MINUTE_MS),
    ],
)
def test_the_slice(sentence: str, change: dict[str, Any], expected: int) -> None:
    assert slice_of(a_job(**change), HOUR_MS) == expected, sentence


@pytest.mark.parametrize("comment", ["slice=", "slice=30", "slice=2h slice=3h", "slice=-1h", "slice=2h30"])
def test_a_slice_that_is_not_understood_is_refused_and_not_guessed(comment: str) -> None:
    assert isinstance(slice_of(a_job(comment=comment), HOUR_MS), Refused)
