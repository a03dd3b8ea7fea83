"""Slurm's accounting as a history: `--sacct FILE`, what `sacct --parsable2 --allusers --duplicates --format=...` prints.

Rules where the accounting leaves something open are written here, once, and said in the notes. Never invents work: a job works
as long as all its runs did together, and one that never ran is left out and counted.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from msgspec import Struct

from allmende.proto.budget import Budget
from allmende.proto.units import HOUR_MS, Ms, format_duration
from allmende.proto.user import MAX_GPUS_PER_REPLICA, MAX_REPLICAS
from allmende.simulator.inputs.cluster_file import NODES_MOST
from allmende.simulator.inputs.faults import Cell, Faults, Read, quote
from allmende.simulator.inputs.foreign_names import ForeignNames
from allmende.simulator.inputs.history import History
from allmende.simulator.inputs.jobs_file import SPAN_MOST_MS, default_slice
from allmende.simulator.inputs.lines import lines
from allmende.simulator.inputs.sacct_rows import AMOUNTS, NEEDED, SHREDDER, Fate, Fields, Row, Unit, is_step, parse_row
from allmende.simulator.inputs.sacct_tree import sacct_tree
from allmende.simulator.inputs.shapes import NODE_GPUS, cluster_of, nodes_for, peak, split_gpus
from allmende.simulator.model import Cluster, Job

ROOT = "slurm"
DEFAULT_SLICE_MS: Ms = HOUR_MS


class _Record(Struct):
    """A job, out of one row or several."""

    line: int
    job: str
    user: str
    account: str
    submit_ms: Ms
    work_ms: Ms
    fate: Fate
    amount: int
    nodes: int
    limit_ms: Ms | None


def read_sacct(
    path: Path,
    *,
    cluster: Cluster | None = None,
    budgets: tuple[Budget, ...] | None = None,
    unit: Unit = "gpu",
    timezone: str = "UTC",
    slice_ms: Ms = DEFAULT_SLICE_MS,
    skip_bad: bool = False,
) -> Read[History]:
    """Read an accounting file, with a header (fields in any order) or in the 26 fields of XDMoD's shredder without one.

    Rules: steps are skipped. Rows of one id, user and account are one job (a requeue starts a new row): submitted at the first
    row's instant, its work is the sum of all its runs, its end the last row's. `FATES` says what each state means. Jobs that
    never ran, and with `unit="gpu"` those without GPUs, are left out and counted. A gang is as many replicas as it had nodes
    where that comes out even, else `shapes.split_gpus`. An account is a budget, a job without one is unallocated; `sacct_tree`
    makes the tree where none is given. The time limit is the maximum runtime, raised to what the job did work. Every job can
    resume; its slice is `slice_ms` or its runtime, whichever is shorter (at most 8 h). Names that ours cannot hold are changed.
    Without a cluster: nodes of the largest count that a job had on one node, as many as the largest use at one time needs, and
    every single job.

    Codes of faults: those of `lines.lines`, `bad_timezone`, `no_header`, `missing_field`, `no_jobs`; of rows those of
    `sacct_rows.parse_row`, `ragged_row`, `too_large`, `too_long`.
    """
    faults = Faults(str(path))
    zone = _zone(timezone, faults)
    rows = lines(path, faults, "|")
    found = _fields(rows, unit, faults)
    if found is None or zone is None:
        return faults.refused()
    fields, rest = found
    tally: dict[str, int] = {}
    spans: list[tuple[Ms, Ms, int]] = []
    records = _records(rest, fields, unit, zone, faults, tally, spans)
    there = cluster or _cluster(records, spans)
    accounts, users = ForeignNames(), ForeignNames()
    jobs = sorted(_jobs(records, there, accounts, users, slice_ms, faults), key=lambda job: job.submitted_at_ms)
    fatal = {"cannot_read", "too_many_lines"} & faults.counts.keys()
    if not jobs and (not faults or skip_bad):
        left = "; ".join(f"{count} {what}" for what, count in tally.items())
        faults.add(0, 0, "", "no_jobs", f"the file has no job that can be used{f' ({left})' if left else ''}")
    if not jobs or fatal:
        return faults.refused()
    said: tuple[str, ...] = ("the tree of budgets was given",)
    if budgets is None:
        budgets, said = sacct_tree(ROOT, jobs, accounts, path.parent, faults)
    if faults and not skip_bad:
        return faults.refused()
    notes = [f"times without a zone are read as {timezone}; what is counted are {unit.upper()}s"]
    notes += [f"{count} {what}" for what, count in tally.items()]
    notes += said
    if cluster is None:
        notes.append(_about(there, unit))
    if accounts.changed or users.changed:
        notes.append(
            f"{accounts.changed} accounts or units and {users.changed} users were renamed: names have a-z, 0-9, - and _ only"
        )
    notes.append(
        f"all jobs can resume; slice: the runtime, at most {format_duration(slice_ms)}; models of GPUs are not carried over"
    )
    return faults.done(History(there, budgets, jobs), tuple(notes))


# ---------------------------------------------------------------------------------------------------------------------------- rows


def _zone(timezone: str, faults: Faults) -> tzinfo | None:
    if timezone == "UTC":
        return UTC
    try:
        return ZoneInfo(timezone)
    except (OSError, ValueError, KeyError):
        # ZoneInfoNotFoundError is a KeyError; a name with a path or a nul byte is a ValueError or OSError.
        faults.add(0, 0, "timezone", "bad_timezone", f"{quote(timezone)} is no time zone known here, such as Europe/Berlin")
        return None


def _fields(rows: Iterator[tuple[int, str]], unit: Unit, faults: Faults) -> tuple[Fields, Iterator[tuple[int, str]]] | None:
    """The fields, and the rows that follow; None after a fault."""
    first = next(rows, None)
    if first is None:
        if not faults:
            faults.add(0, 0, "", "no_header", "the file is empty")
        return None
    number, text = first
    names = [name.strip().lower() for name in text.removesuffix("|").split("|")]
    if not {"jobid", "jobidraw"} & set(names):
        if text.count("|") >= len(SHREDDER) - 1:
            return Fields.of(SHREDDER), _with(first, rows)
        sentence = "the first line is neither a header with JobID nor a row of 26 fields; leave sacct's header on (no --noheader)"
        faults.add(number, 1, "", "no_header", sentence)
        return None
    for any_of in (*NEEDED, AMOUNTS[unit]):
        if not set(any_of) & set(names):
            faults.add(
                number, 0, any_of[0], "missing_field", f"the field {' or '.join(any_of)} is missing; ask sacct for it (--format)"
            )
    return None if faults else (Fields.of(names), rows)


def _with(first: tuple[int, str], rows: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rows


def _records(
    rows: Iterable[tuple[int, str]],
    fields: Fields,
    unit: Unit,
    zone: tzinfo,
    faults: Faults,
    tally: dict[str, int],
    spans: list[tuple[Ms, Ms, int]],
) -> list[_Record]:
    """The jobs, in the order of their first rows. `tally` counts what was left out, `spans` collects who held how much when."""
    jobs: dict[tuple[str, str, str], _Record] = {}
    for number, text in rows:
        try:
            cells = fields.split(text)
            if is_step(cells, fields):
                continue
            row = parse_row(cells, fields, unit, zone)
        except Cell as bad:
            column = fields.place[bad.name] + 1 if bad.name in fields.place else 0
            faults.add(number, column, bad.name, bad.code, str(bad))
            continue
        if row.start_ms is not None and row.elapsed_ms and row.amount:
            spans.append((row.start_ms, row.start_ms + row.elapsed_ms, row.amount))
        key = (row.job, row.user, row.account)
        if key in jobs:
            _count(tally, "rows are further runs of a job: it was requeued")
            _further(jobs[key], row)
        else:
            jobs[key] = _Record(
                number, row.job, row.user, row.account, row.submit_ms, row.elapsed_ms, row.fate, row.amount, row.nodes, row.limit_ms
            )
    return [record for record in jobs.values() if _ran(record, unit, tally)]


def _further(record: _Record, row: Row) -> None:
    """Another run of the same job. Runs are in the order of the file; the last one's end is the job's."""
    record.submit_ms = min(record.submit_ms, row.submit_ms)
    record.work_ms += row.elapsed_ms
    if row.elapsed_ms or row.fate != "waiting":
        record.fate = row.fate
    if row.amount:
        record.amount, record.nodes = row.amount, row.nodes
    record.limit_ms = row.limit_ms or record.limit_ms


def _ran(record: _Record, unit: Unit, tally: dict[str, int]) -> bool:
    if record.work_ms == 0:
        _count(tally, "jobs never ran (cancelled before the start, waiting, or over within a second) and were left out")
    elif record.amount == 0:
        _count(tally, f"jobs had no {unit.upper()} and were left out")
    else:
        if record.fate == "open":
            _count(tally, "jobs were still running: they work as long as they had")
        return True
    return False


def _count(tally: dict[str, int], what: str) -> None:
    tally[what] = tally.get(what, 0) + 1


# ---------------------------------------------------------------------------------------------------------------------------- jobs


def _shape(record: _Record, node_gpus: int) -> tuple[int, int]:
    if record.nodes and record.amount % record.nodes == 0 and record.amount // record.nodes <= node_gpus:
        return record.nodes, record.amount // record.nodes
    return split_gpus(record.amount, node_gpus)


def _cluster(records: list[_Record], spans: list[tuple[Ms, Ms, int]]) -> Cluster:
    """The smallest cluster of equal nodes that the history could have run on, as far as counts go."""
    on_one_node = (-(-record.amount // record.nodes) for record in records if record.nodes)
    node_gpus = min(MAX_GPUS_PER_REPLICA, max(on_one_node, default=NODE_GPUS))
    most = peak(spans)
    nodes = max(-(-most // node_gpus), nodes_for((_shape(record, node_gpus) for record in records), node_gpus))
    nodes = min(nodes, NODES_MOST)
    return cluster_of(ROOT, nodes * node_gpus, node_gpus)


def _about(cluster: Cluster, unit: Unit) -> str:
    nodes = cluster.nodes
    return (
        f"the cluster is made from the history: nodes of {nodes[0].gpus} {unit.upper()}s, the most that a job had on one node; "
        f"{len(nodes)} of them, enough for the largest use at one time and for every job alone; give the real one with --cluster"
    )


def _jobs(
    records: Iterable[_Record], cluster: Cluster, names: ForeignNames, people: ForeignNames, slice_ms: Ms, faults: Faults
) -> Iterator[Job]:
    node_gpus = min(MAX_GPUS_PER_REPLICA, max((node.gpus for node in cluster.nodes), default=NODE_GPUS))
    taken: set[str] = set()
    for record in records:
        replicas, each = _shape(record, node_gpus)
        if replicas > MAX_REPLICAS:
            faults.add(
                record.line, 0, "", "too_large", f"{record.amount} are {replicas} replicas; at most {MAX_REPLICAS} are a job"
            )
            continue
        if record.work_ms > SPAN_MOST_MS:
            faults.add(
                record.line, 0, "", "too_long", f"the job worked for {format_duration(record.work_ms)}; at most ten years are meant"
            )
            continue
        limit_ms = None if record.limit_ms is None else min(SPAN_MOST_MS, max(record.limit_ms, record.work_ms))
        budget = names.of(record.account) if record.account else None
        yield Job(
            job=_unique(record.job, taken),
            submitted_at_ms=record.submit_ms,
            user=people.of(record.user),
            budget=budget,
            replicas=replicas,
            gpus_per_replica=each,
            runtime_ms=record.work_ms,
            slice_ms=0 if budget is None else default_slice(record.work_ms, limit_ms, True, slice_ms),
            max_runtime_ms=limit_ms,
            fails=record.fate == "failed",
        )


def _unique(job: str, taken: set[str]) -> str:
    """Slurm begins to count again after a reset: a later job of the same id gets a number behind it."""
    name, number = job, 1
    while name in taken:
        number += 1
        name = f"{job}~{number}"
    taken.add(name)
    return name
