"""Philly, the public history of Microsoft's training cluster (Jeon et al., USENIX ATC 2019): `--philly DIR_OR_FILE`.

A table of timestamp,duration,num_gpus,gpu_time,cluster, and beside it philly_vc_nodes.csv with the nodes of each virtual
cluster. It names no users, no starts and no ends; what it does not say is a rule here, and a note. Never reads what it cannot
prove: gpu_time must be duration x num_gpus in every row.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from allmende.proto.budget import Budget
from allmende.proto.units import HOUR_MS, SECOND_MS, Ms, format_duration
from allmende.proto.user import MAX_REPLICAS
from allmende.simulator.inputs.faults import Cell, Faults, Read, quote
from allmende.simulator.inputs.history import History
from allmende.simulator.inputs.jobs_file import SPAN_MOST_MS, default_slice
from allmende.simulator.inputs.lines import cells, lines
from allmende.simulator.inputs.numbers import name_of, seconds, whole
from allmende.simulator.inputs.shapes import NODE_GPUS, cluster_of, split_gpus
from allmende.simulator.inputs.trees import tree_by_use, tree_of
from allmende.simulator.model import Cluster, Job

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
NODE_COLUMNS = ("vc", "node num")
TABLE = "philly.csv"
NODES_TABLE = "philly_vc_nodes.csv"
ROOT = "philly"
DEFAULT_GPUS = 500
DEFAULT_SLICE_MS: Ms = HOUR_MS
_AMOUNT = re.compile(r"\d{1,18}(\.\d{1,9})?\Z", re.ASCII)


def read_philly(
    path: Path,
    *,
    cluster: Cluster | None = None,
    budgets: tuple[Budget, ...] | None = None,
    gpus: int = DEFAULT_GPUS,
    slice_ms: Ms = DEFAULT_SLICE_MS,
    skip_bad: bool = False,
) -> Read[History]:
    """Read the table and make of it jobs, in the order of submission, and a cluster and tree where none is given.

    Rules: a virtual cluster is a budget, with its part of all nodes as its share (largest remainder; no nodes: share 0), or
    without the table of nodes the part of its work. One user in each. A job of more GPUs than the largest node has becomes
    equal replicas that fit one. Every job can resume; its slice is `slice_ms` or its runtime, whichever is shorter (at most 8
    h). Timestamps are local time without a zone, read as UTC. The cluster is `gpus` GPUs in nodes of 8.

    Codes of faults: those of `lines.lines`, `wrong_columns`, `no_jobs`; of rows `bad_quotes`, `ragged_row`, `bad_instant`,
    `bad_number`, `too_fine`, `out_of_range`, `bad_name`, `wrong_product`, `repeated_name`.
    """
    table = path / TABLE if path.is_dir() else path
    faults = Faults(str(table))
    there = cluster or cluster_of(ROOT, gpus)
    largest = max((node.gpus for node in there.nodes), default=NODE_GPUS)
    rows = lines(table, faults, ",")
    jobs = list(_jobs(rows, faults, largest, slice_ms)) if _headed(rows, COLUMNS, faults) else []
    nodes, beside = _nodes(table.parent / NODES_TABLE, faults)
    fatal = {"cannot_read", "too_many_lines", "wrong_columns"} & faults.counts.keys()
    if not jobs and not faults:
        faults.add(0, 0, "", "no_jobs", "the table has no jobs")
    if fatal or not jobs or (faults and not skip_bad):
        return faults.refused()
    jobs.sort(key=lambda job: job.submitted_at_ms)
    if budgets is not None:
        tree, shares = budgets, "the tree of budgets was given"
    elif nodes is None:
        tree, shares = tree_by_use(ROOT, "Philly", jobs), f"there is no {NODES_TABLE}: shares are what each virtual cluster used"
    else:
        tree, without = _tree(jobs, nodes)
        shares = f"shares are nodes of each virtual cluster ({beside}); {without} without nodes have share 0"
    notes = (
        shares,
        "the trace names no users: one user in each virtual cluster; timestamps without a zone are read as UTC",
        f"all jobs can resume; slice: the runtime, at most {format_duration(slice_ms)}",
        f"jobs larger than a node of {largest} GPUs are equal replicas that fit one",
    )
    return faults.done(History(there, tree, jobs), notes)


def _headed(rows: Iterator[tuple[int, str]], columns: tuple[str, ...], faults: Faults) -> bool:
    first = next(rows, None)
    if first is not None and tuple(first[1].split(",")) == columns:
        return True
    if not faults:
        is_there = f"the columns are {quote(first[1])}" if first else "the file is empty"
        faults.add(first[0] if first else 1, 1, "", "wrong_columns", f"{is_there}; they should be {','.join(columns)}")
    return False


def _jobs(rows: Iterable[tuple[int, str]], faults: Faults, node_gpus: int, slice_ms: Ms) -> Iterator[Job]:
    known: dict[str, str] = {}
    for number, text in rows:
        try:
            yield _job(number, _row(text, COLUMNS), known, node_gpus, slice_ms)
        except Cell as bad:
            _at(faults, number, COLUMNS, bad)


def _row(text: str, columns: tuple[str, ...]) -> list[str]:
    row = cells(text)
    if len(row) != len(columns):
        raise Cell("", "ragged_row", f"the row has {len(row)} cells, not {len(columns)}")
    return row


def _at(faults: Faults, number: int, columns: tuple[str, ...], bad: Cell) -> None:
    faults.add(number, columns.index(bad.name) + 1 if bad.name else 0, bad.name, bad.code, str(bad))


def _job(number: int, row: list[str], known: dict[str, str], node_gpus: int, slice_ms: Ms) -> Job:
    timestamp, duration, num_gpus, gpu_time, cluster = row
    runtime_ms = seconds("duration", duration, 1, SPAN_MOST_MS)
    gpus = whole("num_gpus", num_gpus, 1, 1_000_000)
    if not _AMOUNT.match(gpu_time):
        raise Cell("gpu_time", "bad_number", f"{quote(gpu_time)} is not a number of GPU-seconds")
    if Decimal(gpu_time) * SECOND_MS != runtime_ms * gpus:
        raise Cell("gpu_time", "wrong_product", f"{gpu_time} is not duration {duration} x num_gpus {num_gpus}")
    replicas, each = split_gpus(gpus, node_gpus)
    if replicas > MAX_REPLICAS:
        raise Cell("num_gpus", "out_of_range", f"{gpus} GPUs are {replicas} replicas; at most {MAX_REPLICAS} are a job")
    if cluster not in known:
        known[cluster] = name_of("cluster", cluster)
    return Job(
        # The trace has no ids; a line can be looked up. Padded, so that ids sort as the lines do.
        job=f"line-{number:06d}",
        submitted_at_ms=_instant(timestamp),
        user=known[cluster],
        budget=known[cluster],
        replicas=replicas,
        gpus_per_replica=each,
        runtime_ms=runtime_ms,
        slice_ms=default_slice(runtime_ms, None, True, slice_ms),
    )


def _instant(text: str) -> Ms:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is not None or at.microsecond or at.year < 1970 or at.year > 2099:
        raise Cell("timestamp", "bad_instant", f"{quote(text)} is not an instant such as 2017-10-05 12:00:00")
    return int(at.replace(tzinfo=UTC).timestamp()) * SECOND_MS


def _nodes(path: Path, faults: Faults) -> tuple[dict[str, int] | None, str]:
    """Nodes of each virtual cluster; None where there is no such table."""
    if not path.exists():
        return None, ""
    own = Faults(str(path))
    nodes: dict[str, int] = {}
    rows = lines(path, own, ",")
    if _headed(rows, NODE_COLUMNS, own):
        for number, text in rows:
            try:
                name, count = _row(text, NODE_COLUMNS)
                if name in nodes:
                    raise Cell("vc", "repeated_name", f"virtual cluster {quote(name)} comes twice")
                nodes[name_of("vc", name)] = whole("node num", count, 0, 1_000_000)
            except Cell as bad:
                _at(own, number, NODE_COLUMNS, bad)
    faults.take(own)
    return nodes, path.name


def _tree(jobs: Iterable[Job], nodes: dict[str, int]) -> tuple[tuple[Budget, ...], int]:
    """The tree by nodes, and how many virtual clusters have none."""
    names = {*nodes, *(job.budget for job in jobs if job.budget)}
    root = ROOT
    while root in names:
        root += "-all"
    tree = tree_of(root, "Philly", {name: nodes.get(name, 0) for name in sorted(names)})
    return tree, sum(each.share_ppm == 0 for each in tree)
