"""One row of Slurm's accounting as values: which fields there are, and what they mean (manual of sacct, "Job accounting fields").

Never joins rows or decides what a job is: `sacct` does.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Literal, NamedTuple, TypeAlias

from allmende.proto.units import DAY_MS, HOUR_MS, LATEST_INSTANT_MS, MINUTE_MS, SECOND_MS, Ms
from allmende.simulator.inputs.faults import Cell, quote

Unit: TypeAlias = Literal["gpu", "cpu"]
Fate: TypeAlias = Literal["finished", "failed", "cut", "open", "waiting"]

# XDMoD's shredder asks sacct for these, without a header, in this order (field 26 is the job's name).
SHREDDER = (
    "jobid",
    "jobidraw",
    "cluster",
    "partition",
    "qos",
    "account",
    "group",
    "gid",
    "user",
    "uid",
    "submit",
    "eligible",
    "start",
    "end",
    "elapsed",
    "exitcode",
    "state",
    "nnodes",
    "ncpus",
    "reqcpus",
    "reqmem",
    "reqtres",
    "alloctres",
    "timelimit",
    "nodelist",
    "jobname",
)
# Each is needed; of several, one, and the first that is there is read.
NEEDED: tuple[tuple[str, ...], ...] = (
    ("jobid", "jobidraw"),
    ("user",),
    ("account",),
    ("submit",),
    ("start",),
    ("end",),
    ("elapsedraw", "elapsed"),
    ("state",),
)
AMOUNTS: Mapping[Unit, tuple[str, ...]] = {
    "gpu": ("alloctres", "reqtres", "allocgres", "reqgres"),
    "cpu": ("alloctres", "alloccpus", "ncpus", "reqtres", "reqcpus"),
}
"""Where GPUs or CPUs are counted, in the order in which they are believed: what it got before what it asked for."""

# As `allmende.proto.units.GpuCount`: more than any cluster has.
AMOUNT_MOST = 1_000_000

FATES: Mapping[str, Fate] = {
    "COMPLETED": "finished",
    # Its user or its limit ended it: nobody knows how long it would have worked, so it works as long as it did.
    "CANCELLED": "finished",
    "TIMEOUT": "finished",
    "DEADLINE": "finished",
    "FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    # Not its own end. With `sacct --duplicates` the rest of its work follows under the same id.
    "NODE_FAIL": "cut",
    "BOOT_FAIL": "cut",
    "PREEMPTED": "cut",
    "REQUEUED": "cut",
    "REQUEUE_FED": "cut",
    "REQUEUE_HOLD": "cut",
    "SPECIAL_EXIT": "cut",
    "RESIZING": "cut",
    "REVOKED": "cut",
    # Not over when the history was taken: it works as long as it had by then.
    "RUNNING": "open",
    "SUSPENDED": "open",
    "STOPPED": "open",
    "SIGNALING": "open",
    "COMPLETING": "open",
    "STAGE_OUT": "open",
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "RESV_DEL_HOLD": "waiting",
}

_SPAN = re.compile(r"(?:(\d{1,5})-)?(?:(\d{1,4}):)?(\d{1,4}):(\d{2})(?:\.\d{1,6})?\Z", re.ASCII)
# `gres/gpu=4`, `gres/gpu:h100=4`, and the older `gpu:4`, `gpu:h100:4(S:0-1)`.
_TRES_GPU = re.compile(r"(?:^|,)gres/gpu(:[^=,]*)?=(\d{1,7})(?=,|$)", re.ASCII)
_TRES_CPU = re.compile(r"(?:^|,)cpu=(\d{1,7})(?=,|$)", re.ASCII)
_GRES_GPU = re.compile(r"(?:^|,)(?:gres:)?gpu(?::[A-Za-z_][^:,(]*)?(?::(\d{1,7}))?(?:\([^)]*\))?(?=,|$)", re.ASCII)
_NO_LIMIT = frozenset({"unlimited", "partition_limit", "unknown", "none", "n/a", "invalid"})
_ABSENT = frozenset({"", "unknown", "none", "n/a", "(null)", "invalid"})


class Row(NamedTuple):
    """One record of one job. `start_ms` None: it never started, or nobody knows when."""

    job: str
    user: str
    account: str
    submit_ms: Ms
    start_ms: Ms | None
    elapsed_ms: Ms
    fate: Fate
    amount: int
    """GPUs or CPUs of the whole job; 0: none."""
    nodes: int
    """Nodes it ran on; 0: not said."""
    limit_ms: Ms | None


class Fields(NamedTuple):
    """Where in a row the fields are, by name in lower case."""

    names: tuple[str, ...]
    place: Mapping[str, int]

    @classmethod
    def of(cls, names: Sequence[str]) -> "Fields":
        place: dict[str, int] = {}
        for number, name in enumerate(names):
            place.setdefault(name, number)
        return cls(tuple(names), place)

    def split(self, text: str) -> list[str]:
        """The cells of a row. The last field keeps what looks like separators: job names may hold `|`.

        Raises:
            Cell: too few cells, or too many where the last field is no free text (`ragged_row`).
        """
        row = text.split("|")
        most = len(self.names)
        if len(row) == most + 1 and not row[-1]:
            # `--parsable` instead of `--parsable2` ends each line with a separator.
            row.pop()
        if len(row) > most and self.names[-1] == "jobname":
            row[most - 1 :] = ["|".join(row[most - 1 :])]
        if len(row) != most:
            hint = "; does a job's name hold a `|`? ask sacct without JobName, or for JobName last" if len(row) > most else ""
            raise Cell("", "ragged_row", f"the row has {len(row)} cells, not {most}{hint}")
        return row

    def first(self, row: Sequence[str], names: Sequence[str]) -> tuple[str, str]:
        """(name, text) of the first of these fields that is there and not empty; ("", "") where none is."""
        for name in names:
            place = self.place.get(name)
            if place is not None and row[place]:
                return name, row[place]
        return "", ""


def is_step(row: Sequence[str], fields: Fields) -> bool:
    """True for `123.batch`, `123.0`: a part of a job that has a row of its own."""
    return any("." in row[fields.place[name]] for name in ("jobid", "jobidraw") if name in fields.place)


def parse_row(row: Sequence[str], fields: Fields, unit: Unit, zone: tzinfo) -> Row:
    """Read the cells of a row that is no step.

    Raises:
        Cell: `missing_value`, `bad_id`, `bad_instant`, `bad_span`, `bad_number`, `unknown_state`, `end_before_start`,
            `out_of_range`.
    """
    job = _must(row, fields, NEEDED[0])
    if len(job) > 100 or not job.isprintable():
        raise Cell(fields.first(row, NEEDED[0])[0], "bad_id", f"{quote(job)} is not the id of a job")
    start_ms, end_ms = _instant(row, fields, "start", zone), _instant(row, fields, "end", zone)
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise Cell("end", "end_before_start", "the job ends before it starts")
    submit_ms = _instant(row, fields, "submit", zone)
    if submit_ms is None:
        raise Cell("submit", "missing_value", "it is not said when the job was submitted")
    name, elapsed = fields.first(row, NEEDED[6])
    amount, nodes = _amount(row, fields, unit), _count(row, fields, ("nnodes", "allocnodes"))
    if amount > AMOUNT_MOST:
        raise Cell("", "out_of_range", f"the job has {amount} {unit.upper()}s; at most {AMOUNT_MOST:,} are meant")
    return Row(
        job=job,
        user=_must(row, fields, ("user",)),
        account=row[fields.place["account"]],
        submit_ms=submit_ms,
        start_ms=start_ms,
        elapsed_ms=_elapsed(name, elapsed),
        fate=_fate(row[fields.place["state"]]),
        amount=amount,
        nodes=nodes,
        limit_ms=_limit(row, fields),
    )


def _must(row: Sequence[str], fields: Fields, names: Sequence[str]) -> str:
    name, text = fields.first(row, names)
    if not text:
        present = next(each for each in names if each in fields.place)
        raise Cell(present, "missing_value", f"{name or present} is empty")
    return text


def _instant(row: Sequence[str], fields: Fields, name: str, zone: tzinfo) -> Ms | None:
    text = row[fields.place[name]]
    if text.lower() in _ABSENT:
        return None
    try:
        if text.isascii() and text.isdigit() and len(text) <= 12:
            # SLURM_TIME_FORMAT=%s
            at_ms = int(text) * SECOND_MS
        else:
            at = datetime.fromisoformat(text)
            at_ms = int((at if at.tzinfo is not None else at.replace(tzinfo=zone)).timestamp()) * SECOND_MS
    except (ValueError, OverflowError):
        at_ms = -1
    if not 0 <= at_ms <= LATEST_INSTANT_MS:
        raise Cell(name, "bad_instant", f"{quote(text)} is not an instant such as 2026-01-05T08:30:00")
    return at_ms


def _elapsed(name: str, text: str) -> Ms:
    if text.lower() in _ABSENT:
        return 0
    if name == "elapsedraw" and text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text) * SECOND_MS
    span = _span(text) if name == "elapsed" else None
    if span is None:
        raise Cell(name, "bad_span", f"{quote(text)} is not a time such as 1-06:30:00")
    return span


def _span(text: str) -> Ms | None:
    """`[days-][hours:]minutes:seconds`; None for anything else."""
    match = _SPAN.match(text)
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + rest * SECOND_MS


def _limit(row: Sequence[str], fields: Fields) -> Ms | None:
    """The time limit; None where there is none: UNLIMITED, Partition_Limit, empty, or no such field."""
    name, text = fields.first(row, ("timelimitraw", "timelimit"))
    if name == "timelimitraw" and text.isascii() and text.isdigit() and len(text) <= 7:
        return int(text) * MINUTE_MS or None
    if not name or text.lower() in _NO_LIMIT:
        return None
    span = _span(text) if name == "timelimit" else None
    if span is None:
        raise Cell(name, "bad_span", f"{quote(text)} is not a time limit such as 1-06:30:00 or UNLIMITED")
    return span or None


def _fate(text: str) -> Fate:
    # `CANCELLED by 1001`; a `+` marks a word that was cut off.
    word = text.split(" ", 1)[0].rstrip("+").upper()
    fate = FATES.get(word)
    if fate is None:
        raise Cell("state", "unknown_state", f"{quote(text)} is no state of a job; known are {', '.join(FATES)}")
    return fate


def _amount(row: Sequence[str], fields: Fields, unit: Unit) -> int:
    for name in AMOUNTS[unit]:
        _, text = fields.first(row, (name,))
        if not text:
            continue
        if name.endswith("cpus"):
            return _count(row, fields, (name,))
        found = _cpus(text) if unit == "cpu" else _gpus(text) if name.endswith("tres") else _old_gpus(text)
        if found or (name == "alloctres" and unit == "gpu"):
            # What was allocated is the truth: no GPU there is none, whatever was asked for.
            return found
    return 0


def _gpus(text: str) -> int:
    # Slurm may count the same GPUs twice, by type and in all: the count without a type is of all.
    typed, whole = 0, 0
    for kind, count in _TRES_GPU.findall(text):
        if kind:
            typed += int(count)
        else:
            whole += int(count)
    return whole or typed


def _cpus(text: str) -> int:
    return sum(int(count) for count in _TRES_CPU.findall(text))


def _old_gpus(text: str) -> int:
    return sum(int(match[1] or 1) for match in _GRES_GPU.finditer(text))


def _count(row: Sequence[str], fields: Fields, names: Sequence[str]) -> int:
    name, text = fields.first(row, names)
    if not text or text.lower() in _ABSENT:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise Cell(name, "bad_number", f"{quote(text)} is not a whole number")
    return int(text)
