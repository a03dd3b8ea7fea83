"""A table of jobs is read as it stands, every fault is named by line and column, and what is written reads back the same."""

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.proto.units import HOUR_MS, LATEST_INSTANT_MS, SECOND_MS
from allmende.simulator.inputs.faults import NAMED_MOST, Faults
from allmende.simulator.inputs.jobs_file import COLUMNS, SPAN_MOST_MS, read_jobs, write_jobs
from allmende.simulator.inputs.lines import LINE_GIVEN_UP, LINE_MOST, lines
from allmende.simulator.model import Job
from tests.simulator.inputs.builders import a_job, places, value, written

HEADER = ",".join(COLUMNS)
GOOD = "j1,90,ada,vision,2,8,7200,1800,true,5,batch,9000"


def one(folder: Path, row: str, header: str = HEADER) -> Job:
    """The only job of a table."""
    (job,) = value(read_jobs(written(folder, f"{header}\n{row}\n")))
    return job


def test_a_row_reads_as_it_stands(tmp_path: Path) -> None:
    assert one(tmp_path, GOOD) == Job(
        job="j1",
        submitted_at_ms=90 * SECOND_MS,
        user="ada",
        budget="vision",
        replicas=2,
        gpus_per_replica=8,
        runtime_ms=2 * HOUR_MS,
        slice_ms=HOUR_MS // 2,
        priority=5,
        max_runtime_ms=9_000 * SECOND_MS,
    )


@pytest.mark.parametrize(
    ("sentence", "row", "slice_s", "resumable"),
    [
        ("without a budget nothing is protected", "j,0,ada,,,,7200,,,,,", 0, True),
        ("an hour is protected", "j,0,ada,vision,,,7200,,,,,", 3_600, True),
        ("but never longer than the job works", "j,0,ada,vision,,,60,,,,,", 60, True),
        ("nor than it may run", "j,0,ada,vision,,,7200,,,,,50", 50, True),
        ("a job that cannot resume is protected while it works", "j,0,ada,vision,,,7200,,no,,,", 7_200, False),
        ("up to 8 hours", "j,0,ada,vision,,,72000,,FALSE,,,", 28_800, False),
        ("a slice of 0 is meant", "j,0,ada,vision,,,7200,0,1,,,", 0, True),
    ],
)
def test_an_empty_cell_has_its_default(sentence: str, row: str, slice_s: int, resumable: bool, tmp_path: Path) -> None:
    job = one(tmp_path, row)
    assert (job.slice_ms, job.resumable) == (slice_s * SECOND_MS, resumable), sentence
    assert (job.replicas, job.gpus_per_replica, job.priority, job.kind) == (1, 1, 0, "batch")


def test_columns_come_in_any_order_and_may_be_missing(tmp_path: Path) -> None:
    job = one(tmp_path, '0.5 , "j, 1",ada,1.250000', "runtime_s,job_id,user,submitted_at_s")
    assert (job.job, job.runtime_ms, job.submitted_at_ms, job.budget) == ("j, 1", 500, 1_250, None)


def test_byte_order_mark_crlf_blank_lines_and_no_last_end(tmp_path: Path) -> None:
    content = f"\ufeff{HEADER}\r\n\r\n{GOOD}\r\n  \n{GOOD.replace('j1', 'j2')}"
    assert [job.job for job in value(read_jobs(written(tmp_path, content)))] == ["j1", "j2"]


@pytest.mark.parametrize(
    ("sentence", "content", "expected"),
    [
        ("nothing", "", (0, 0, "", "empty_file")),
        ("only blank lines", "\n \r\n", (0, 0, "", "empty_file")),
        ("a header without jobs", HEADER, (0, 0, "", "no_jobs")),
        ("an unknown column", HEADER + ",gpus\n", (1, 13, "", "unknown_column")),
        ("no header", GOOD, (1, 1, "", "unknown_column")),
        ("a column twice", HEADER + ",user\n", (1, 13, "user", "repeated_column")),
        ("a column without a default", HEADER.replace(",runtime_s", ""), (1, 0, "runtime_s", "missing_column")),
        ("quotation marks in the header", 'job_id,"user', (1, 0, "", "bad_quotes")),
        ("a header that is not UTF-8", b"job_id,\xff\n", (1, 2, "", "not_utf8")),
    ],
)
def test_a_table_that_cannot_be_used(
    sentence: str, content: str | bytes, expected: tuple[int, int, str, str], tmp_path: Path
) -> None:
    path = written(tmp_path, content)
    assert places(read_jobs(path))[0] == expected, sentence
    assert read_jobs(path, skip_bad=True).value is None, "no skipping mends a file without jobs"


BAD_ROWS = [
    ("a cell too few", GOOD.rpartition(",")[0], 0, "", "ragged_row"),
    ("a cell too many", GOOD + ",", 0, "", "ragged_row"),
    ("a quotation mark without its pair", GOOD.replace("ada", '"ada'), 0, "", "bad_quotes"),
    ("text behind a quotation", GOOD.replace("ada", '"a"da'), 0, "", "bad_quotes"),
    ("no id", GOOD.replace("j1", ""), 1, "job_id", "missing_value"),
    ("an id that cannot be printed", GOOD.replace("j1", "a\u2028b"), 1, "job_id", "bad_id"),
    ("a long id", GOOD.replace("j1", "j" * 101), 1, "job_id", "bad_id"),
    ("no instant", GOOD.replace(",90,", ",,"), 2, "submitted_at_s", "missing_value"),
    ("a negative instant", GOOD.replace(",90,", ",-1,"), 2, "submitted_at_s", "bad_number"),
    ("an instant in milliseconds", GOOD.replace(",90,", ",1767571200000,"), 2, "submitted_at_s", "bad_number"),
    ("an instant after 2100", GOOD.replace(",90,", ",4102444800.001,"), 2, "submitted_at_s", "out_of_range"),
    ("a name of a person", GOOD.replace("ada", "Ada L"), 3, "user", "bad_name"),
    ("a budget that is no name", GOOD.replace("vision", "vi/sion"), 4, "budget", "bad_name"),
    ("no replicas", GOOD.replace(",2,8", ",0,8"), 5, "replicas", "out_of_range"),
    ("replicas with a point", GOOD.replace(",2,8", ",2.0,8"), 5, "replicas", "bad_number"),
    ("too many GPUs", GOOD.replace(",2,8", ",2,1025"), 6, "gpus_per_replica", "out_of_range"),
    ("not a number", GOOD.replace("7200", "NaN"), 7, "runtime_s", "bad_number"),
    ("an exponent", GOOD.replace("7200", "1e3"), 7, "runtime_s", "bad_number"),
    ("infinite", GOOD.replace("7200", "inf"), 7, "runtime_s", "bad_number"),
    ("digits of another script", GOOD.replace("7200", "٣"), 7, "runtime_s", "bad_number"),
    ("a job without work", GOOD.replace("7200", "0"), 7, "runtime_s", "out_of_range"),
    ("a century", GOOD.replace("7200", "3162240000"), 7, "runtime_s", "out_of_range"),
    ("a huge number", GOOD.replace("7200", "9" * 5_000), 7, "runtime_s", "bad_number"),
    ("finer than a millisecond", GOOD.replace("7200", "0.0005"), 7, "runtime_s", "too_fine"),
    ("a negative slice", GOOD.replace("1800", "-5"), 8, "slice_s", "bad_number"),
    ("perhaps resumable", GOOD.replace("true", "maybe"), 9, "resumable", "bad_word"),
    ("a high priority", GOOD.replace(",5,", ",1001,"), 10, "priority", "out_of_range"),
    ("a kind of its own", GOOD.replace("batch", "array"), 11, "kind", "bad_word"),
    ("a maximum of nothing", GOOD.replace("9000", "0"), 12, "max_runtime_s", "out_of_range"),
    ("the same id", GOOD.replace("j1", "j0"), 1, "job_id", "repeated_id"),
    ("a nul byte", GOOD.replace("vision", "vi\0sion"), 4, "", "nul_byte"),
    ("a line without end", "x" * (LINE_MOST + 10), 0, "", "line_too_long"),
]


@pytest.mark.parametrize(("sentence", "row", "column", "name", "code"), BAD_ROWS)
def test_a_bad_row_is_named_and_can_be_skipped(sentence: str, row: str, column: int, name: str, code: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\n{GOOD.replace('j1', 'j0')}\n{row}\n{GOOD.replace('j1', 'j9')}\n")
    assert places(read_jobs(path)) == [(3, column, name, code)], sentence
    read = read_jobs(path, skip_bad=True)
    assert read.value is not None
    assert [job.job for job in read.value] == ["j0", "j9"]
    assert (read.counts, read.notes) == ({code: 1}, (f"{path}: 1 bad rows were skipped: 1 {code}",))


def test_a_fault_is_one_sentence_with_file_line_and_column(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\n{GOOD.replace('7200', '-7')}\n", "jobs.csv")
    (fault,) = read_jobs(path).faults
    assert str(fault) == f"{path}:2:7: runtime_s: '-7' is not a number of seconds such as 90 or 0.5"


def test_all_bad_rows_are_counted_and_as_many_named_as_help(tmp_path: Path) -> None:
    read = read_jobs(written(tmp_path, HEADER + "\nx" * (NAMED_MOST + 50)))
    assert (len(read.faults), read.counts, read.unnamed) == (NAMED_MOST, {"ragged_row": NAMED_MOST + 50}, 50)


def test_bytes_that_are_no_text_cost_one_row(tmp_path: Path) -> None:
    content = f"{HEADER}\n{GOOD}\n".encode() + b"j2,1,\xff\xfe,x\n" + GOOD.replace("j1", "j3").encode()
    assert places(read_jobs(written(tmp_path, content))) == [(3, 3, "", "not_utf8")]


ids = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF).filter(str.isprintable), min_size=1, max_size=100).filter(
    lambda text: text == text.strip()
)
names = st.from_regex(r"\A[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?\Z")
lengths = st.sampled_from([1, 999, 1_000, 1_001, HOUR_MS, SPAN_MOST_MS]) | st.integers(1, SPAN_MOST_MS)


@st.composite
def some_jobs(draw: st.DrawFn) -> list[Job]:
    """Jobs with different ids, everything else around the edges of what a table can hold."""
    return [
        Job(
            job=name,
            submitted_at_ms=draw(st.sampled_from([0, 1, LATEST_INSTANT_MS]) | st.integers(0, LATEST_INSTANT_MS)),
            user=draw(names),
            budget=draw(st.none() | names),
            replicas=draw(st.sampled_from([1, 4_096])),
            gpus_per_replica=draw(st.sampled_from([1, 1_024])),
            runtime_ms=draw(lengths),
            slice_ms=draw(st.just(0) | lengths),
            resumable=draw(st.booleans()),
            priority=draw(st.sampled_from([-1_000, 0, 1_000])),
            kind=draw(st.sampled_from(["batch", "session"])),
            max_runtime_ms=draw(st.none() | lengths),
        )
        for name in draw(st.lists(ids, min_size=1, max_size=5, unique=True))
    ]


@settings(deadline=None)
@given(jobs=some_jobs())
def test_what_is_written_reads_back_the_same(jobs: list[Job], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("jobs") / "jobs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        assert write_jobs(jobs, file) == 0
    assert value(read_jobs(path)) == jobs


def test_what_the_table_has_no_column_for_is_counted() -> None:
    fails = Job(**{name: getattr(a_job(), name) for name in a_job().__struct_fields__} | {"fails": True})
    assert write_jobs([a_job(), fails], io.StringIO()) == 1


def test_a_file_without_line_ends_is_given_up(tmp_path: Path) -> None:
    endless = tmp_path / "endless.csv"
    with endless.open("wb") as file:
        file.truncate(LINE_GIVEN_UP * 2)
        file.seek(0, 2)
        file.write(b"\nnever read\n")
    faults = Faults(endless.name)
    assert list(lines(endless, faults, ",")) == []
    assert faults.counts == {"line_too_long": 1}
