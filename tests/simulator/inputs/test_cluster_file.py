"""A cluster file says what it means, and every fault in it has its place."""

from pathlib import Path

import pytest

from allmende.proto.units import DAY_MS, HOUR_MS, SECOND_MS
from allmende.simulator.inputs.cluster_file import read_cluster
from allmende.simulator.model import Cluster, Failures, Leaving, NodeSpec
from tests.simulator.inputs.builders import places, value, written

WHOLE = """\
name = "lab"
start = "5s"

[[nodes]]
prefix = "gpu"
count = 2
gpus = 8
model = "h100"

[[nodes]]
name = "big"
gpus = 16

[failures]
mean_between = "180d"
repair_median = "4h"
repair_p95 = "2d"

[leaving]
median = "3s"
p95 = "20s"
ignore = "2.5%"
"""


def test_everything_that_a_file_can_say(tmp_path: Path) -> None:
    assert value(read_cluster(written(tmp_path, WHOLE))) == Cluster(
        "lab",
        (NodeSpec("gpu-001", 8, "h100"), NodeSpec("gpu-002", 8, "h100"), NodeSpec("big", 16)),
        Failures(180 * DAY_MS, 4 * HOUR_MS, 2 * DAY_MS),
        Leaving(3 * SECOND_MS, 20 * SECOND_MS, 25_000),
        5 * SECOND_MS,
    )


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    assert value(read_cluster(written(tmp_path, "\ufeff[[nodes]]\r\ngpus = 8\r\n"))) == Cluster(
        "cluster", (NodeSpec("node-001", 8),)
    )


def test_a_thousand_nodes_sort_as_they_count(tmp_path: Path) -> None:
    names = [node.node for node in value(read_cluster(written(tmp_path, "[[nodes]]\ngpus=8\ncount=1000"))).nodes]
    assert (names[0], names[-1]) == ("node-0001", "node-1000")
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("sentence", "content", "expected"),
    [
        ("no TOML", 'name = "a"\n[[nodes]\n', [(2, 8, "", "malformed_toml")]),
        ("a key twice", "[[nodes]]\ngpus = 1\ngpus = 2\n", [(3, 9, "", "malformed_toml")]),
        ("a text that is not closed", '[[nodes]]\nmodel = "h', [(2, 11, "", "malformed_toml")]),
        ("a number that nobody can read", "start = " + "9" * 5_000, [(1, 5_009, "", "malformed_toml")]),
        ("not UTF-8", b"name = 1\n\xff", [(2, 1, "", "not_utf8")]),
        ("a nul byte", b"name = 1\na\0", [(2, 2, "", "nul_byte")]),
        ("nothing", "", [(1, 1, "nodes", "no_nodes")]),
        ("no group", "nodes = []", [(1, 1, "nodes", "no_nodes")]),
        ("nodes as a number", "nodes = 3", [(1, 1, "nodes", "wrong_type")]),
        ("nodes as one table", "[nodes]\ngpus = 3", [(1, 2, "nodes", "wrong_type")]),
        ("failures as a text", '[[nodes]]\ngpus = 3\n[leaving]\n[failures]\nmean_between = "90d"',
         [(4, 2, "repair_median", "missing_key"), (4, 2, "repair_p95", "missing_key")]),
        ("a table as a value", 'failures = "often"\n[[nodes]]\ngpus = 3', [(1, 1, "failures", "wrong_type")]),
        ("unknown keys", '[[nodes]]\ngpus = 3\n  gpu_model = "x"\n[leaving]\nmode = "1s"\n[extra]\na = 1',
         [(6, 2, "extra", "unknown_key"), (3, 3, "gpu_model", "unknown_key"), (5, 1, "mode", "unknown_key")]),
        ("no GPUs", "[[nodes]]\ncount = 2", [(1, 3, "gpus", "missing_key")]),
        ("zero GPUs in the second group", "[[nodes]]\ngpus = 1\n[[nodes]]\nname = 'a'\ngpus = 0", [(5, 1, "gpus", "out_of_range")]),
        ("too many GPUs", "[[nodes]]\ngpus = 1025", [(2, 1, "gpus", "out_of_range")]),
        ("a count that is true", "[[nodes]]\ngpus = 1\ncount = true", [(3, 1, "count", "wrong_type")]),
        ("a count with a point", "[[nodes]]\ngpus = 1\ncount = 2.0", [(3, 1, "count", "wrong_type")]),
        ("a long count", "[[nodes]]\ngpus = 1\ncount = " + "9" * 4_000, [(3, 1, "count", "out_of_range")]),
        ("a model with spaces", '[[nodes]]\ngpus = 1\nmodel = "H100 SXM"', [(3, 1, "model", "bad_name")]),
        ("a model as a number", "[[nodes]]\ngpus = 1\nmodel = 100", [(3, 1, "model", "wrong_type")]),
        ("a prefix that leaves no room", f"[[nodes]]\ngpus = 1\nprefix = '{'a' * 60}'", [(3, 1, "prefix", "bad_name")]),
        ("a node with a count", "[[nodes]]\nname = 'a'\ncount = 2\ngpus = 1", [(3, 1, "count", "name_and_group")]),
        ("the same nodes twice", "[[nodes]]\ngpus = 1\n[[nodes]]\ngpus = 2\ncount = 5", [(3, 3, "nodes", "repeated_node")]),
        ("too many nodes", "[[nodes]]\ngpus = 1\ncount = 10000\n[[nodes]]\ngpus = 1\nname = 'a'",
         [(4, 3, "nodes", "too_many_nodes")]),
        ("a duration without a unit", 'start = "1"\n[[nodes]]\ngpus = 1', [(1, 1, "start", "bad_duration")]),
        ("a duration as a number", "start = 1\n[[nodes]]\ngpus = 1", [(1, 1, "start", "wrong_type")]),
        ("a start of a day", 'start = "1d"\n[[nodes]]\ngpus = 1', [(1, 1, "start", "out_of_range")]),
        ("more than all", "[[nodes]]\ngpus = 1\n[leaving]\nignore = '101%'", [(4, 1, "ignore", "bad_share")]),
        ("a bare share", "[[nodes]]\ngpus = 1\n[leaving]\nignore = 2", [(4, 1, "ignore", "bad_share")]),
        ("p95 below the median", "[[nodes]]\ngpus = 1\n[leaving]\np95 = '2s'", [(4, 1, "p95", "p95_below_median")]),
        ("text over several lines hides no key", "[[nodes]]\nmodel = '''\ngpus = 7\n'''\ngpus = 0",
         [(5, 1, "gpus", "out_of_range"), (2, 1, "model", "bad_name")]),
    ],
)  # fmt: skip
def test_a_fault_has_its_place(
    sentence: str, content: str | bytes, expected: list[tuple[int, int, str, str]], tmp_path: Path
) -> None:
    assert places(read_cluster(written(tmp_path, content))) == expected, sentence


def test_all_faults_are_said_at_once_with_file_line_and_column(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE.replace('"180d"', '"soon"').replace("count = 2", "count = 0").replace("5s", "2h"), "lab.toml")
    said = [str(fault) for fault in read_cluster(path).faults]
    assert said == [
        f"{path}:6:1: count: count must be within 1 to 10,000",
        f"{path}:15:1: mean_between: 'soon' is not a duration; write for example 90s, 30m, 8h or 1d12h",
        f"{path}:2:1: start: '2h' is not within 0s to 60m",
    ]


def test_a_file_that_is_not_there_a_folder_and_a_huge_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path, Path("a\0b"), written(tmp_path, b" " * (1024 * 1024 + 1))):
        (fault,) = read_cluster(path).faults
        assert fault.code in {"cannot_read", "file_too_large"}
        assert (fault.line, fault.column) == (0, 0)
