"""Slurm's accounting as a history: the rules on made rows, and a published file whose sums are made here in another way."""

from pathlib import Path

import pytest

from allmende.proto.tree_rules import validate
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from allmende.simulator.inputs.cluster_file import read_cluster
from allmende.simulator.inputs.faults import Read
from allmende.simulator.inputs.history import History
from allmende.simulator.inputs.sacct import read_sacct
from allmende.simulator.inputs.sacct_rows import FATES, SHREDDER
from allmende.simulator.model import Job
from tests.simulator.inputs.builders import TRACES, places, value, written

XDMOD = TRACES / "xdmod_sacct"
needs_traces = pytest.mark.skipif(not XDMOD.exists(), reason="the public traces are not beside the repository (../shared/traces)")

FIELDS = ("JobID", "User", "Account", "Submit", "Start", "End", "Elapsed", "State", "AllocTRES", "NNodes", "Timelimit")
HEADER = "|".join(FIELDS)
USUAL = {
    "JobID": "100",
    "User": "ada",
    "Account": "vision",
    "Submit": "2026-01-05T08:00:00",
    "Start": "2026-01-05T09:00:00",
    "End": "2026-01-05T11:00:00",
    "Elapsed": "02:00:00",
    "State": "COMPLETED",
    "AllocTRES": "billing=32,cpu=32,gres/gpu=16,mem=64G,node=2",
    "NNodes": "2",
    "Timelimit": "1-00:00:00",
}
SUBMIT_MS = 1_767_600_000_000


def a_row(**other: str) -> str:
    """A row of accounting, the usual one but for some fields."""
    return "|".join((USUAL | other)[name] for name in FIELDS)


def a_file(folder: Path, *rows: str, header: str = HEADER) -> Path:
    """An accounting file."""
    return written(folder, "\n".join((header, *rows)) + "\n", "sacct.txt")


def jobs(folder: Path, *rows: str, header: str = HEADER) -> list[Job]:
    """The jobs of an accounting file without faults."""
    return value(read_sacct(a_file(folder, *rows, header=header))).jobs


def test_a_row_reads_as_it_stands(tmp_path: Path) -> None:
    assert jobs(tmp_path, a_row()) == [
        Job(
            job="100",
            submitted_at_ms=SUBMIT_MS,
            user="ada",
            budget="vision",
            replicas=2,
            gpus_per_replica=8,
            runtime_ms=2 * HOUR_MS,
            slice_ms=HOUR_MS,
            max_runtime_ms=DAY_MS,
        )
    ]


def test_fields_come_in_any_order_with_more_beside_them_and_a_trailing_separator(tmp_path: Path) -> None:
    names = (*reversed(FIELDS), "Partition", "QOS", "JobName")
    cells = [*(USUAL[name] for name in reversed(FIELDS)), "a100", "normal", "a|b"]
    assert jobs(tmp_path, "|".join(cells), header="|".join(names).upper()) == jobs(tmp_path, a_row())
    assert jobs(tmp_path, a_row() + "|", header=HEADER + "|") == jobs(tmp_path, a_row())


def test_steps_are_no_jobs(tmp_path: Path) -> None:
    steps = [a_row(JobID=f"100.{step}", User="", AllocTRES="gres/gpu=16") for step in ("batch", "extern", "0")]
    assert [job.job for job in jobs(tmp_path, a_row(), *steps, a_row(JobID="101_4"))] == ["100", "101_4"]


@pytest.mark.parametrize(
    ("sentence", "tres", "gpus"),
    [
        ("a plain count", "cpu=4,gres/gpu=3", 3),
        ("a count of a type", "cpu=4,gres/gpu:h100=3", 3),
        ("both are the same GPUs", "gres/gpu:h100=3,gres/gpu=3", 3),
        ("two types", "gres/gpu:h100=1,gres/gpu:a100=2", 3),
        ("memory of GPUs and shards are none", "gres/gpumem=80G,gres/gpu=3,gres/gpuutil=99,gres/shard=4", 3),
    ],
)
def test_gpus_are_counted_once(sentence: str, tres: str, gpus: int, tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, a_row(AllocTRES=tres, NNodes="1"))
    assert job.gpus == gpus, sentence


@pytest.mark.parametrize(("text", "gpus"), [("gpu:4", 4), ("gpu:h100:4(S:0-1)", 4), ("gres:gpu:2", 2), ("gpu", 1), ("gpu:h100", 1)])
def test_gpus_of_older_accounting(text: str, gpus: int, tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, a_row(AllocTRES=text, NNodes="1"), header=HEADER.replace("AllocTRES", "ReqGRES"))
    assert job.gpus == gpus


def test_what_was_asked_for_counts_where_nothing_was_said_of_what_it_got(tmp_path: Path) -> None:
    header = HEADER + "|ReqTRES"
    asked = "|gres/gpu=4"
    (job,) = jobs(tmp_path, a_row(AllocTRES="", NNodes="1") + asked, a_row(JobID="2", AllocTRES="cpu=1") + asked, header=header)
    assert (job.job, job.gpus) == ("100", 4)


@pytest.mark.parametrize(
    ("state", "ran", "fails"),
    [
        ("COMPLETED", True, False),
        ("CANCELLED by 1001", True, False),
        ("CANCELLED+", True, False),
        ("TIMEOUT", True, False),
        ("FAILED", True, True),
        ("OUT_OF_MEMORY", True, True),
        ("NODE_FAIL", True, False),
        ("PREEMPTED", True, False),
        ("RUNNING", True, False),
    ],
)
def test_a_job_works_as_long_as_it_did_whatever_ended_it(state: str, ran: bool, fails: bool, tmp_path: Path) -> None:
    end = "Unknown" if state == "RUNNING" else USUAL["End"]
    (job,) = jobs(tmp_path, a_row(State=state, End=end))
    assert (job.runtime_ms == 2 * HOUR_MS, job.fails) == (ran, fails)


def test_what_never_ran_and_what_has_no_gpu_is_left_out_and_counted(tmp_path: Path) -> None:
    never = {"Start": "Unknown", "End": "Unknown", "Elapsed": "00:00:00", "AllocTRES": ""}
    read = read_sacct(
        a_file(
            tmp_path,
            a_row(),
            a_row(JobID="1", State="PENDING", **never),
            a_row(JobID="2_[5-9%2]", State="PENDING", **never),
            a_row(JobID="3", State="CANCELLED by 5", **(never | {"Start": "None"})),
            a_row(JobID="4", AllocTRES="cpu=4,mem=1G"),
            a_row(JobID="5", State="RUNNING", End="Unknown"),
        )
    )
    assert [job.job for job in value(read).jobs] == ["100", "5"]
    assert read.notes[1:4] == (
        "3 jobs never ran (cancelled before the start, waiting, or over within a second) and were left out",
        "1 jobs had no GPU and were left out",
        "1 jobs were still running: they work as long as they had",
    )


def test_runs_of_a_requeued_job_are_one_job(tmp_path: Path) -> None:
    read = read_sacct(
        a_file(
            tmp_path,
            a_row(State="PREEMPTED"),
            a_row(
                Submit="2026-01-05T11:00:00",
                Start="2026-01-05T12:00:00",
                End="2026-01-05T12:30:00",
                Elapsed="30:00",
                State="FAILED",
            ),
        )
    )
    (job,) = value(read).jobs
    assert (job.submitted_at_ms, job.runtime_ms, job.fails) == (SUBMIT_MS, 2 * HOUR_MS + 30 * MINUTE_MS, True)
    assert read.notes[1] == "1 rows are further runs of a job: it was requeued"


def test_an_id_of_somebody_else_is_another_job(tmp_path: Path) -> None:
    assert [job.job for job in jobs(tmp_path, a_row(), a_row(User="kim"))] == ["100", "100~2"]


@pytest.mark.parametrize(
    ("sentence", "fields", "expected"),
    [
        ("seconds", {"Elapsed": "00:00:07"}, (7_000, DAY_MS)),
        ("days", {"Elapsed": "1-01:00:01"}, (DAY_MS + HOUR_MS + SECOND_MS, DAY_MS + HOUR_MS + SECOND_MS)),
        ("parts of a second are not counted", {"Elapsed": "00:07.250"}, (7_000, DAY_MS)),
        ("no limit", {"Timelimit": "UNLIMITED"}, (2 * HOUR_MS, None)),
        ("no limit yet", {"Timelimit": "Partition_Limit"}, (2 * HOUR_MS, None)),
        ("no word of a limit", {"Timelimit": ""}, (2 * HOUR_MS, None)),
    ],
)
def test_lengths_of_time(sentence: str, fields: dict[str, str], expected: tuple[int, int | None], tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, a_row(**fields))
    assert (job.runtime_ms, job.max_runtime_ms) == expected, sentence


def test_raw_fields_are_preferred(tmp_path: Path) -> None:
    header = HEADER.replace("JobID", "JobIDRaw").replace("Elapsed", "ElapsedRaw").replace("Timelimit", "TimelimitRaw")
    (job,) = jobs(tmp_path, a_row(Elapsed="7200", Timelimit="180"), header=header)
    assert (job.job, job.runtime_ms, job.max_runtime_ms) == ("100", 2 * HOUR_MS, 3 * HOUR_MS)


@pytest.mark.parametrize(
    ("sentence", "text", "zone", "earlier_h"),
    [
        ("UTC unless told otherwise", "2026-01-05T08:00:00", "UTC", 0),
        ("the cluster's zone", "2026-01-05T08:00:00", "Europe/Berlin", 1),
        ("a zone in the text wins", "2026-01-05T08:00:00+02:00", "Europe/Berlin", 2),
        ("seconds since 1970", "1767600000", "Europe/Berlin", 0),
    ],
)
def test_time_zones(sentence: str, text: str, zone: str, earlier_h: int, tmp_path: Path) -> None:
    (job,) = value(read_sacct(a_file(tmp_path, a_row(Submit=text)), timezone=zone)).jobs
    assert job.submitted_at_ms == SUBMIT_MS - earlier_h * HOUR_MS, sentence


def test_an_account_is_a_budget_and_no_account_is_none(tmp_path: Path) -> None:
    read = read_sacct(a_file(tmp_path, a_row(Account="Team A", User="a.b"), a_row(JobID="2", Account="")))
    history = value(read)
    assert [(job.budget, job.user, job.slice_ms) for job in history.jobs] == [("team-a", "a-b", HOUR_MS), (None, "ada", 0)]
    assert [(each.budget, each.share_ppm) for each in history.budgets] == [("slurm", None), ("team-a", 1_000_000)]
    assert any("1 accounts or units and 1 users were renamed" in note for note in read.notes)


def test_the_cluster_is_the_smallest_that_could_have_run_it(tmp_path: Path) -> None:
    read = read_sacct(
        a_file(
            tmp_path,
            a_row(),
            a_row(JobID="2", Start="2026-01-05T10:59:59", AllocTRES="gres/gpu=4", NNodes="1"),
            a_row(JobID="3", Start="2026-01-05T13:00:00", End="2026-01-05T15:00:00", AllocTRES="gres/gpu=20", NNodes="4"),
        )
    )
    history = value(read)
    # 20 at once, on nodes of 8: three. 4 x 5 alone: four.
    assert [node.gpus for node in history.cluster.nodes] == [8] * 4
    assert any("made from the history: nodes of 8 GPUs" in note and "4 of them" in note for note in read.notes)


def test_a_given_cluster_and_tree_are_taken(tmp_path: Path) -> None:
    cluster = value(read_cluster(written(tmp_path, "[[nodes]]\ngpus = 4\ncount = 9", "c.toml")))
    read = read_sacct(a_file(tmp_path, a_row()), cluster=cluster, budgets=())
    assert (value(read).cluster, value(read).budgets) == (cluster, ())
    assert (value(read).jobs[0].replicas, value(read).jobs[0].gpus_per_replica) == (4, 4)


def faults(folder: Path, row: str) -> Read[History]:
    """An accounting file with this as its third line."""
    return read_sacct(a_file(folder, a_row(JobID="1"), row))


@pytest.mark.parametrize(
    ("sentence", "row", "expected"),
    [
        ("a cell too few", a_row().rpartition("|")[0], (0, "", "ragged_row")),
        ("a cell too many", a_row() + "|x", (0, "", "ragged_row")),
        ("no id", a_row(JobID=""), (1, "jobid", "missing_value")),
        ("an id that cannot be printed", a_row(JobID="1\x07"), (1, "jobid", "bad_id")),
        ("no user", a_row(User=""), (2, "user", "missing_value")),
        ("no submission", a_row(Submit="Unknown"), (4, "submit", "missing_value")),
        ("no instant", a_row(Submit="yesterday"), (4, "submit", "bad_instant")),
        ("no year that could be", a_row(Start="0001-01-01T00:00:00"), (5, "start", "bad_instant")),
        ("an end before the start", a_row(End="2026-01-05T08:59:59"), (6, "end", "end_before_start")),
        ("no length", a_row(Elapsed="-1"), (7, "elapsed", "bad_span")),
        ("a state of its own", a_row(State="SLEEPING"), (8, "state", "unknown_state")),
        ("no state", a_row(State=""), (8, "state", "unknown_state")),
        ("more GPUs than there are", a_row(AllocTRES="gres/gpu=1000001"), (0, "", "out_of_range")),
        ("no count", a_row(NNodes="2K"), (10, "nnodes", "bad_number")),
        ("no limit that could be", a_row(Timelimit="soon"), (11, "timelimit", "bad_span")),
        ("a gang that cannot be cut", a_row(AllocTRES="gres/gpu=99991", NNodes="2"), (0, "", "too_large")),
        ("a job of a life", a_row(Elapsed="9999-00:00:00"), (0, "", "too_long")),
        ("a nul byte", a_row(Account="a\0b"), (3, "", "nul_byte")),
    ],
)
def test_a_bad_row_is_named_and_can_be_skipped(sentence: str, row: str, expected: tuple[int, str, str], tmp_path: Path) -> None:
    path = a_file(tmp_path, a_row(JobID="1"), row)
    assert places(read_sacct(path)) == [(3, *expected)], sentence
    skipped = read_sacct(path, skip_bad=True)
    assert skipped.value is not None
    assert [job.job for job in skipped.value.jobs] == ["1"]
    assert skipped.counts == {expected[2]: 1}


@pytest.mark.parametrize(
    ("sentence", "content", "expected"),
    [
        ("nothing", "", [(0, 0, "", "no_header")]),
        ("something else", "a,b\n", [(1, 1, "", "no_header")]),
        ("no header", a_row() + "\n", [(1, 1, "", "no_header")]),
        ("fields are missing", "JobID|User|Account|Submit|Start|State\n", [
            (1, 0, "end", "missing_field"), (1, 0, "elapsedraw", "missing_field"), (1, 0, "alloctres", "missing_field")]),
        ("no jobs", HEADER, [(0, 0, "", "no_jobs")]),
        ("no job that ran", f"{HEADER}\n{a_row(Elapsed='00:00:00')}", [(0, 0, "", "no_jobs")]),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used(sentence: str, content: str, expected: list[tuple[int, int, str, str]], tmp_path: Path) -> None:
    for skip_bad in (False, True):
        assert places(read_sacct(written(tmp_path, content), skip_bad=skip_bad)) == expected, sentence


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc", "", "a\0b", "/"])
def test_a_zone_that_nobody_knows(zone: str, tmp_path: Path) -> None:
    assert places(read_sacct(a_file(tmp_path, a_row()), timezone=zone)) == [(0, 0, "timezone", "bad_timezone")]


def test_every_state_of_the_manual_is_known() -> None:
    manual = (
        "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED RUNNING REQUEUED RESIZING REVOKED "
        "SUSPENDED TIMEOUT"
    )
    assert set(manual.split()) <= set(FATES)


def a_dump(**other: str) -> str:
    """A row in the order of XDMoD's shredder."""
    usual = {name.lower(): text for name, text in USUAL.items()} | {"jobidraw": "100", "ncpus": "32", "jobname": "x|y"} | other
    return "|".join(usual.get(name, "") for name in SHREDDER)


def test_a_dump_without_a_header_is_read_in_xdmods_order_within_its_hierarchy(tmp_path: Path) -> None:
    written(tmp_path, '"cs","Computing",""\n"ai","Learning","cs"\n"cs","again","ai"\n"vision","Seeing","ai"\n', "hierarchy.csv")
    written(tmp_path, '"vision","vision"\n"other","cs"\n', "group-to-hierarchy.csv")
    path = written(tmp_path, a_dump() + "\n" + a_dump(jobid="2", jobidraw="2", account="lone") + "\n")
    history = value(read_sacct(path))
    assert history.jobs[0].gpus == 16
    assert [(each.budget, each.parent, each.title, each.share_ppm) for each in history.budgets] == [
        ("slurm", None, "Slurm", None),
        ("cs", "slurm", "Computing", 500_000),
        ("lone", "slurm", "", 500_000),
        ("ai", "cs", "Learning", 1_000_000),
        ("vision-2", "ai", "Seeing", 1_000_000),
        ("vision", "vision-2", "", 1_000_000),
    ]
    assert validate(history.budgets) == ()


def test_a_circle_of_units_and_bad_rows_in_the_hierarchy(tmp_path: Path) -> None:
    written(tmp_path, '"a","A","b"\n"b","B","a"\n', "hierarchy.csv")
    written(tmp_path, '"vision","a"\n', "group-to-hierarchy.csv")
    path = written(tmp_path, a_dump())
    assert [each.budget for each in value(read_sacct(path)).budgets] == ["slurm", "b", "a", "vision"]
    written(tmp_path, '"vision","a"\nx\n"y\n', "group-to-hierarchy.csv")
    assert places(read_sacct(path)) == [(2, 0, "", "ragged_row"), (3, 0, "", "bad_quotes")]
    assert read_sacct(path, skip_bad=True).value is not None


def test_cpus_are_a_unit_too(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_row(AllocTRES="cpu=24,node=2"))
    (job,) = value(read_sacct(path, unit="cpu")).jobs
    assert (job.replicas, job.gpus_per_replica) == (2, 12)


@needs_traces
@pytest.mark.trace
@pytest.mark.parametrize("unit", ["gpu", "cpu"])
def test_the_published_file_has_the_sums_of_its_columns(unit: str) -> None:
    """expected_totals.json says nothing of this file, so the sums are taken here from the columns, without the reader."""
    expected: dict[str, int] = {}
    count = 0
    for line in (XDMOD / "phillips.log").read_text().splitlines():
        cells = line.split("|")
        days, _, clock = cells[14].rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        length_ms = (int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds) * SECOND_MS
        amount = int(cells[18]) if unit == "cpu" else 2 * ("gres/gpu=2" in cells[22])
        if length_ms and amount:
            count += 1
            expected[cells[5]] = expected.get(cells[5], 0) + amount * length_ms
    history = value(read_sacct(XDMOD / "phillips.log", unit="cpu" if unit == "cpu" else "gpu"))
    got: dict[str, int] = {}
    for job in history.jobs:
        assert job.budget is not None
        got[job.budget] = got.get(job.budget, 0) + job.gpus * job.runtime_ms
    assert (len(history.jobs), got) == (count, expected)
    assert count == (2 if unit == "gpu" else 4_024)
    assert validate(history.budgets) == ()
