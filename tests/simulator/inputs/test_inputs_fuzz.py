"""Whatever bytes a file holds, a reader answers with a value or with faults that have a place; it never fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allmende.simulator.inputs.budgets_file import read_budgets
from allmende.simulator.inputs.cluster_file import read_cluster
from allmende.simulator.inputs.faults import Read
from allmende.simulator.inputs.jobs_file import COLUMNS, read_jobs
from allmende.simulator.inputs.philly import COLUMNS as PHILLY_COLUMNS
from allmende.simulator.inputs.philly import read_philly
from allmende.simulator.inputs.sacct import read_sacct
from tests.simulator.inputs.builders import written
from tests.simulator.inputs.test_cluster_file import WHOLE
from tests.simulator.inputs.test_jobs_file import GOOD
from tests.simulator.inputs.test_philly_history import GOOD as PHILLY_GOOD
from tests.simulator.inputs.test_sacct_history import HEADER as SACCT_HEADER
from tests.simulator.inputs.test_sacct_history import a_dump, a_row

LAB = '[lab]\n[lab.vision]\nshare = "60%"\nmembers = ["ada"]\n[lab.text]\nshare = "40%"\n'
READERS: dict[str, tuple[Callable[[Path], Read[Any]], str]] = {
    "cluster": (read_cluster, WHOLE),
    "budgets": (read_budgets, LAB),
    "jobs": (read_jobs, f"{','.join(COLUMNS)}\n{GOOD}\n"),
    "philly": (read_philly, f"{','.join(PHILLY_COLUMNS)}\n{PHILLY_GOOD}\n"),
    "sacct": (read_sacct, f"{SACCT_HEADER}\n{a_row()}\n"),
    "sacct without a header": (read_sacct, a_dump() + "\n"),
}
# What breaks readers: ends, signs that mean something, numbers at edges, bytes that are no text.
PIECES = (
    b"", b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b'"', b"'", b"'''", b"[", b"]", b"[[", b"=", b",", b"|", b"#", b"\\", b" ",
    b"-", b".", b"_", b"(", b":", b"+", b"0", b"-1", b"1e9", b"NaN", b"inf", b"9" * 7, b"9" * 12, b"9" * 400, b"9" * 5_000,
    b"1979-05-27T07:32:00", b"0001-01-01", b"9999-12-31T23:59:59", b"true", b"x" * 200, "\u0663".encode(), "\u2028".encode(),
    b"lab.lab", b"{a={a=1}}", b"=gpu", b'"a\\nb"=1',
)  # fmt: skip


def check(reader: Callable[[Path], Read[Any]], path: Path) -> None:
    """A value without faults, or faults that can be found."""
    read = reader(path)
    assert (read.value is None) == bool(read.faults)
    for fault in read.faults:
        assert fault.file.startswith(str(path.parent))
        assert fault.line >= 0
        assert fault.column >= 0
        assert fault.sentence
        assert "\n" not in fault.name
        assert len(str(fault)) < 1_000 + len(fault.file)


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400))
def test_any_bytes_are_answered(name: str, content: bytes, tmp_path: Path) -> None:
    check(READERS[name][0], written(tmp_path, content))


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=3))
def test_a_good_file_with_pieces_replaced_is_answered(name: str, cuts: list[tuple[int, int, bytes]], tmp_path: Path) -> None:
    reader, good = READERS[name]
    content = good.encode()
    for at, length, piece in cuts:
        at %= len(content) + 1
        content = content[:at] + piece + content[at + length :]
    check(reader, written(tmp_path, content))


@pytest.mark.parametrize("name", READERS)
def test_the_good_file_itself_has_no_fault(name: str, tmp_path: Path) -> None:
    reader, good = READERS[name]
    assert reader(written(tmp_path, good)).faults == ()
