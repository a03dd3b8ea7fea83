"""A public trace (Philly: timestamp,duration,num_gpus,gpu_time,cluster) as submissions of virtual clusters. Pure.

The trace says when jobs were submitted and how long they ran, not when they started. What would still run or wait at the instant
from which it is replayed is decided by strict first-in-first-out on the GPUs there are, from the trace's first job on, counting
GPUs only: simple, and known to everybody. Such jobs are submitted at the start with what is left of their run time.
"""

import heapq
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple

from allmende.agent.synthetic.command import Command
from allmende.agent.workload.jobs import Shape, split
from allmende.agent.workload.lab import Lab, Team, largest_remainder
from allmende.proto.budget import Budget
from allmende.proto.ids import is_name
from allmende.proto.units import MINUTE_MS, PPM_WHOLE, SECOND_MS, Ms

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
NODE_COLUMNS = ("vc", "node num")
ROOT = "philly"
SLICE_MS: Ms = 30 * MINUTE_MS
CHECKPOINT_MS: Ms = 15 * MINUTE_MS
UNALLOCATED_IN_100 = 15
# Enough to see the kind of fault; a file of another form would name every line.
FAULTS_SHOWN = 20
# One person for so many jobs of a virtual cluster, and no more people than this: the trace names nobody.
_JOBS_A_PERSON = 200
_PEOPLE_MOST = 40


class TraceError(Exception):
    """The file cannot be used; the text names each bad place by line and column."""


class TraceJob(NamedTuple):
    """One row. The timestamp, local time in the file, is read as UTC."""

    submitted_at_ms: Ms
    runtime_ms: Ms
    gpus: int
    cluster: str


def read_jobs(lines: Iterable[str]) -> list[TraceJob]:
    """Read a trace, in the order of submission.

    Raises:
        TraceError: a row is not what the header promises.
    """
    rows = iter(lines)
    header = next(rows, "").strip()
    if tuple(header.split(",")) != COLUMNS:
        raise TraceError(f"line 1: the columns are {header!r}; they should be {','.join(COLUMNS)}")
    jobs: list[TraceJob] = []
    faults: list[str] = []
    for number, row in enumerate(rows, start=2):
        if row in {"", "\n", "\r\n"}:
            # The published file ends with an empty line.
            continue
        try:
            jobs.append(_job(row.rstrip("\r\n").split(",")))
        except _BadCell as bad:
            faults.append(f"line {number}, column {bad.column}: {bad}")
            if len(faults) >= FAULTS_SHOWN:
                break
    if faults:
        raise TraceError("; ".join(faults))
    jobs.sort()
    return jobs


class _BadCell(Exception):
    def __init__(self, column: str, sentence: str) -> None:
        super().__init__(sentence)
        self.column = column


def _job(cells: Sequence[str]) -> TraceJob:
    if len(cells) != len(COLUMNS):
        raise _BadCell(COLUMNS[min(len(cells), len(COLUMNS) - 1)], f"the row has {len(cells)} cells, not {len(COLUMNS)}")
    timestamp, duration, gpus, gpu_time, cluster = cells
    try:
        at = datetime.fromisoformat(timestamp)
    except ValueError:
        raise _BadCell("timestamp", f"{timestamp!r} is not an instant such as 2017-10-05 12:00:00") from None
    if at.tzinfo is not None:
        raise _BadCell("timestamp", f"{timestamp!r} names a time zone; the trace has none")
    length_s, count = _whole("duration", duration), _whole("num_gpus", gpus)
    if count == 0:
        raise _BadCell("num_gpus", "a job of 0 GPUs")
    if _whole("gpu_time", gpu_time) != length_s * count:
        raise _BadCell("gpu_time", f"{gpu_time} is not duration {duration} x num_gpus {gpus}")
    if not is_name(cluster):
        raise _BadCell("cluster", f"{cluster!r} is not a name")
    return TraceJob(int(at.replace(tzinfo=UTC).timestamp()) * SECOND_MS, length_s * SECOND_MS, count, cluster)


def _whole(column: str, text: str) -> int:
    """A whole number, as `12` or `12.0`."""
    digits = text.removesuffix(".0")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        raise _BadCell(column, f"{text!r} is not a whole number of at least 0")
    return int(digits)


def read_nodes(lines: Iterable[str]) -> dict[str, int]:
    """Read the nodes of each virtual cluster (columns vc,node num).

    Raises:
        TraceError: a row is not a name and a whole number, or a name comes twice.
    """
    rows = iter(lines)
    header = next(rows, "").strip()
    if tuple(header.split(",")) != NODE_COLUMNS:
        raise TraceError(f"line 1: the columns are {header!r}; they should be {','.join(NODE_COLUMNS)}")
    nodes: dict[str, int] = {}
    for number, row in enumerate(rows, start=2):
        if not row.strip():
            continue
        cells = row.strip().split(",")
        if len(cells) != 2 or not is_name(cells[0]) or cells[0] in nodes:
            raise TraceError(f"line {number}, column vc: {row.strip()!r} is not one new virtual cluster and its nodes")
        try:
            nodes[cells[0]] = _whole("node num", cells[1])
        except _BadCell as bad:
            raise TraceError(f"line {number}, column {bad.column}: {bad}") from None
    return nodes


def lab_of(jobs: Sequence[TraceJob], nodes: dict[str, int]) -> Lab:
    """The virtual clusters as budgets: shares by nodes, exactly 1,000,000 ppm in all; zero share where there are no nodes."""
    counts: dict[str, int] = dict.fromkeys(nodes, 0)
    for job in jobs:
        counts[job.cluster] = counts.get(job.cluster, 0) + 1
    names = sorted(counts)
    shares = largest_remainder([nodes.get(name, 0) for name in names], PPM_WHOLE)
    budgets = [Budget(budget=ROOT, title="Philly, replayed")]
    teams: list[Team] = []
    for name, share in zip(names, shares, strict=True):
        people = min(_PEOPLE_MOST, 1 + counts[name] // _JOBS_A_PERSON)
        users = tuple(f"{name}-u{number:02d}" for number in range(1, people + 1))
        budgets.append(Budget(budget=name, parent=ROOT, share_ppm=share, managers=users[:1], members=users))
        teams.append(Team(name, share, users))
    return Lab(tuple(budgets), tuple(teams))


def replay(jobs: Sequence[TraceJob], gpus: int, from_ms: Ms) -> tuple[list[TraceJob], list[TraceJob]]:
    """Split a trace at an instant: (what still runs or waits then, with its remaining run time; what is submitted later)."""
    later = [job for job in jobs if job.submitted_at_ms >= from_ms]
    free = gpus
    free_at_ms = 0
    running: list[tuple[Ms, int]] = []
    left: list[TraceJob] = []
    for job in jobs:
        if job.submitted_at_ms >= from_ms:
            break
        if job.gpus > gpus:
            # Larger than the cluster: it never runs, and must not block everybody behind it.
            continue
        # First in, first out: nobody starts before whoever came earlier.
        at_ms = free_at_ms = max(free_at_ms, job.submitted_at_ms)
        while running and (running[0][0] <= at_ms or free < job.gpus):
            ended_at_ms, freed = heapq.heappop(running)
            at_ms = free_at_ms = max(at_ms, ended_at_ms)
            free += freed
        ends_at_ms = at_ms + job.runtime_ms
        free -= job.gpus
        heapq.heappush(running, (ends_at_ms, job.gpus))
        if ends_at_ms > from_ms:
            left.append(job._replace(runtime_ms=min(job.runtime_ms, ends_at_ms - from_ms)))
    return left, later


class Submitter:
    """Gives the trace's rows what the trace does not say, in their order: a person, and 15 % with slice 0."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self._teams = {team.budget: team for team in lab.teams}
        self._chance = Random(f"{seed}/philly")

    def shape(self, job: TraceJob) -> tuple[Shape, Team, str, bool]:
        """The job, its team, who submits it, and whether it is allocated."""
        team = self._teams[job.cluster]
        user = team.users[self._chance.randrange(len(team.users))]
        allocated = self._chance.randrange(100) >= UNALLOCATED_IN_100
        replicas, gpus_per_replica = split(job.gpus)
        shape = Shape(
            replicas=replicas,
            gpus_per_replica=gpus_per_replica,
            slice_ms=SLICE_MS if allocated else 0,
            stated_runtime_ms=job.runtime_ms,
            max_runtime_ms=None,
            resumable=True,
            priority=0,
            kind="batch",
            command=Command(runtime_ms=job.runtime_ms, checkpoint_ms=CHECKPOINT_MS),
        )
        return shape, team, user, allocated
