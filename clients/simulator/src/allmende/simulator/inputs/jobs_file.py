"""Jobs as a table: `--jobs FILE.csv`. Reading it, and writing jobs so that they read back the same.

Streams; holds the jobs and their ids, nothing else of the file. Never guesses: what is not understood is named by line and
column.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

from allmende.proto.units import DAY_MS, HOUR_MS, LATEST_INSTANT_MS, Ms
from allmende.proto.user import DEFAULT_SLICE_CAP_MS, MAX_GPUS_PER_REPLICA, MAX_REPLICAS
from allmende.simulator.inputs.faults import Cell, Faults, Read, quote
from allmende.simulator.inputs.lines import cells, lines
from allmende.simulator.inputs.numbers import in_seconds, name_of, seconds, whole, word
from allmende.simulator.model import Job

COLUMNS = (
    "job_id",
    "submitted_at_s",
    "user",
    "budget",
    "replicas",
    "gpus_per_replica",
    "runtime_s",
    "slice_s",
    "resumable",
    "priority",
    "kind",
    "max_runtime_s",
)
# Without these there is no job; for all others there is a default.
NEEDED = ("job_id", "submitted_at_s", "user", "runtime_s")
DEFAULT_SLICE_MS: Ms = HOUR_MS
"""Slice of a job that can resume and names none: an hour of work is worth saving, and nobody is kept waiting for longer."""
# `allmende.proto.units.Span`: longer than this is a typing mistake.
SPAN_MOST_MS: Ms = 10 * 366 * DAY_MS
_ID_MOST = 100
_YES = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
_KINDS: dict[str, Literal["batch", "session"]] = {"batch": "batch", "session": "session"}


def default_slice(runtime_ms: Ms, max_runtime_ms: Ms | None, resumable: bool, wanted_ms: Ms = DEFAULT_SLICE_MS) -> Ms:
    """The slice of a charged job that names none: never longer than it runs or may run, nor than the usual cap of 8 h.

    A job that cannot resume needs all of its runtime, because an eviction would end it.
    """
    longest = runtime_ms if max_runtime_ms is None else min(runtime_ms, max_runtime_ms)
    return min(longest, DEFAULT_SLICE_CAP_MS, wanted_ms if resumable else longest)


def read_jobs(path: Path, *, skip_bad: bool = False) -> Read[list[Job]]:
    """Read the jobs of a table, in the order of the file.

    Instants stand as they do in the file: `listed.scenario_from` moves them onto the virtual clock. With `skip_bad`, rows at
    fault are left out and counted; the file, its header and a file without any job are never skipped.

    Codes of faults: those of `lines.lines`, `empty_file`, `unknown_column`, `repeated_column`, `missing_column`, `no_jobs`; of
    rows `bad_quotes`, `ragged_row`, `missing_value`, `bad_id`, `repeated_id`, `bad_name`, `bad_number`, `too_fine`,
    `out_of_range`, `bad_word`.
    """
    faults = Faults(str(path))
    rows = lines(path, faults, ",")
    first = next(rows, None)
    if first is None:
        if not faults:
            faults.add(0, 0, "", "empty_file", f"the file is empty; its first line names columns: {','.join(COLUMNS)}")
        return faults.refused()
    header = _header(*first, faults)
    if faults:
        return faults.refused()
    jobs = list(_jobs(rows, header, faults))
    fatal = {"cannot_read", "too_many_lines"} & faults.counts.keys()
    if not jobs and not (faults and not skip_bad):
        faults.add(0, 0, "", "no_jobs", "the file has no job that can be used")
        return faults.refused()
    return faults.refused() if fatal or (faults and not skip_bad) else faults.done(jobs)


def write_jobs(jobs: Iterable[Job], file: TextIO) -> int:
    """Write jobs so that `read_jobs` gives them back.

    The table has no columns for GPU model, saves, failing, idle devices and tag: these read back as their defaults.

    Returns:
        the number of jobs that lose something by this.

    Open the file with `newline=""`.
    """
    out = csv.writer(file, lineterminator="\n")
    out.writerow(COLUMNS)
    lossy = 0
    for job in jobs:
        out.writerow(
            (
                job.job,
                in_seconds(job.submitted_at_ms),
                job.user,
                job.budget or "",
                job.replicas,
                job.gpus_per_replica,
                in_seconds(job.runtime_ms),
                in_seconds(job.slice_ms),
                "true" if job.resumable else "false",
                job.priority,
                job.kind,
                "" if job.max_runtime_ms is None else in_seconds(job.max_runtime_ms),
            )
        )
        beside = (job.gpu_model, job.save_every_ms, job.fails, job.busy_ppm, job.tag)
        lossy += beside != (None, None, False, 1_000_000, "")
    return lossy


# ------------------------------------------------------------------------------------------------------------------------- reading


class _Header(NamedTuple):
    """The columns as they stand in the file; `order` says where each of `COLUMNS` is (len(names): absent, so empty)."""

    names: tuple[str, ...]
    order: tuple[int, ...]


def _header(number: int, text: str, faults: Faults) -> _Header:
    try:
        names = tuple(cells(text))
    except Cell as bad:
        faults.add(number, 0, "", bad.code, str(bad))
        return _Header((), ())
    for column, name in enumerate(names, start=1):
        if name not in COLUMNS:
            faults.add(number, column, "", "unknown_column", f"unknown column {quote(name)}; known are {', '.join(COLUMNS)}")
        elif name in names[: column - 1]:
            faults.add(number, column, name, "repeated_column", f"column {name} comes twice")
    for name in NEEDED:
        if name not in names:
            faults.add(number, 0, name, "missing_column", f"the column {name} is missing; it has no default")
    return _Header(names, tuple(names.index(name) if name in names else len(names) for name in COLUMNS))


def _jobs(rows: Iterable[tuple[int, str]], header: _Header, faults: Faults) -> Iterator[Job]:
    seen: dict[str, int] = {}
    known: dict[str, str] = {}

    def checked(name: str, text: str) -> str:
        # Few people and budgets submit many jobs: each name is judged once and held once.
        found = known.get(text)
        if found is None:
            found = known[text] = name_of(name, text)
        return found

    for number, text in rows:
        try:
            row = cells(text)
            if len(row) != len(header.names):
                raise Cell("", "ragged_row", f"the row has {len(row)} cells; the header has {len(header.names)}")
            row.append("")
            job = _job([row[place] for place in header.order], checked)
            if job.job in seen:
                raise Cell("job_id", "repeated_id", f"job {quote(job.job)} is on line {seen[job.job]} already")
        except Cell as bad:
            column = header.names.index(bad.name) + 1 if bad.name in header.names else 0
            faults.add(number, column, bad.name, bad.code, str(bad))
            continue
        seen[job.job] = number
        yield job


def _job(row: Sequence[str], checked: Callable[[str, str], str]) -> Job:
    (job, submitted, user, budget, replicas, gpus, runtime, slice_text, resumable, priority, kind, max_runtime) = row
    for name, text in zip(NEEDED, (job, submitted, user, runtime), strict=True):
        if not text:
            raise Cell(name, "missing_value", f"{name} is empty; it has no default")
    if len(job) > _ID_MOST or not job.isprintable():
        raise Cell("job_id", "bad_id", f"{quote(job)} is not an id: at most {_ID_MOST} printable characters")
    can_resume = _YES[word("resumable", resumable, _YES)] if resumable else True
    runtime_ms = seconds("runtime_s", runtime, 1, SPAN_MOST_MS)
    max_runtime_ms = seconds("max_runtime_s", max_runtime, 1, SPAN_MOST_MS) if max_runtime else None
    leaf = checked("budget", budget) if budget else None
    if slice_text:
        slice_ms = seconds("slice_s", slice_text, 0, SPAN_MOST_MS)
    else:
        slice_ms = 0 if leaf is None else default_slice(runtime_ms, max_runtime_ms, can_resume)
    return Job(
        job=job,
        submitted_at_ms=seconds("submitted_at_s", submitted, 0, LATEST_INSTANT_MS),
        user=checked("user", user),
        budget=leaf,
        replicas=whole("replicas", replicas, 1, MAX_REPLICAS) if replicas else 1,
        gpus_per_replica=whole("gpus_per_replica", gpus, 1, MAX_GPUS_PER_REPLICA) if gpus else 1,
        runtime_ms=runtime_ms,
        slice_ms=slice_ms,
        resumable=can_resume,
        priority=whole("priority", priority, -1_000, 1_000) if priority else 0,
        kind=_KINDS[word("kind", kind, _KINDS)] if kind else "batch",
        max_runtime_ms=max_runtime_ms,
    )
