"""What Slurm's commands print, as values: `squeue --json`, `sinfo --json` and `sacct --parsable2`. Pure.

Job names and comments are their users' words and may hold anything, line ends and separators included: from squeue and sinfo they
come as JSON, and sacct is not asked for them. What cannot be read is said, a sentence a row, and stops no other row. Never guesses.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from allmende.proto.units import LATEST_INSTANT_MS, SECOND_MS, Ms

Life: TypeAlias = Literal["waits", "runs", "leaves", "finished", "failed", "ended", "node_lost"]
"""`leaves`: told to end, and still holds its GPUs. `ended`: by somebody's order or its limit, not by itself."""

LIVES: Mapping[str, Life] = {
    "PENDING": "waits",
    "REQUEUE_HOLD": "waits",
    "REQUEUED": "ended",
    "SPECIAL_EXIT": "waits",
    "CONFIGURING": "runs",
    "RUNNING": "runs",
    "SUSPENDED": "runs",
    "STOPPED": "runs",
    "RESIZING": "runs",
    "SIGNALING": "runs",
    "STAGE_OUT": "leaves",
    "COMPLETING": "leaves",
    "COMPLETED": "finished",
    "FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    "CANCELLED": "ended",
    "TIMEOUT": "ended",
    "DEADLINE": "ended",
    "PREEMPTED": "ended",
    "REVOKED": "ended",
    "NODE_FAIL": "node_lost",
    "BOOT_FAIL": "node_lost",
}
# Without job names and comments, and in this order: what can hold a separator is not asked for.
SACCT_FIELDS = ("JobIDRaw", "Submit", "Start", "End", "ElapsedRaw", "State", "ExitCode", "AllocTRES", "NodeList")
# A list of nodes that expands to more is a mistake, or somebody's wish to fill our memory.
NODES_MAX = 10_000
DEVICES_MAX = 1_024

_GPU = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::([A-Za-z_][\w.-]*))?(?:[:=](\d{1,6}))?(?:\([^)]*\))?(?=,|\Z)", re.ASCII)
_ALLOCATED = re.compile(r"(?:^|,)gres/gpu=(\d{1,7})(?=,|\Z)", re.ASCII)
_INDICES = re.compile(r"(?:^|,)gpu(?::[A-Za-z_][\w.-]*)?:\d{1,6}\(IDX:([\d,-]{1,4000})\)", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})\Z", re.ASCII)

Value = TypeVar("Value")


class Unreadable(ValueError):
    """A sentence that says what cannot be read."""


class SlurmJob(NamedTuple):
    """One entry of the queue. A waiting job array is one entry, and `array_waits` says which of its tasks it stands for."""

    number: int
    user: str
    account: str
    name: str
    comment: str
    admin_comment: str
    """Only operators of Slurm can write it: it carries our id, as the submit time changes when a job is requeued."""
    submitted_at_ms: Ms
    started_at_ms: Ms | None
    life: Life
    held: bool
    requeue: bool
    gpus_per_node: int
    """0: it asks for none."""
    nodes: int
    model: str | None
    time_limit_ms: Ms | None
    """None: unlimited, or the partition's."""
    time_min_ms: Ms | None
    """None: not said."""
    places: tuple[tuple[str, tuple[int, ...]], ...]
    """Where it runs: node and devices there, in Slurm's order."""
    array: int | None
    array_task: int | None
    array_waits: str


class SlurmNode(NamedTuple):
    """One node. `up`: Slurm hears it. `drains`: an operator or a health check wants nothing new there."""

    name: str
    gpus: int
    model: str | None
    up: bool
    drains: bool
    reason: str


class SlurmRun(NamedTuple):
    """One run of a job out of the accounting; a requeued job has several. `ended_at_ms` None: it has not ended."""

    number: int
    submitted_at_ms: Ms
    started_at_ms: Ms | None
    ended_at_ms: Ms | None
    held_ms: Ms
    """Slurm's own elapsed time, in whole seconds."""
    life: Life
    exit_code: int
    gpus: int
    nodes: tuple[str, ...]


class Read(NamedTuple):
    """What could be read, and a sentence for each row that could not."""

    rows: tuple[Any, ...]
    faults: tuple[str, ...]


def read_jobs(text: str | bytes) -> Read:
    """`squeue --json`: rows are `SlurmJob`.

    Raises:
        Unreadable: it is not what squeue prints, or says that it could not answer.
    """
    return _each(_entries(text, "jobs"), _job, "job_id")


def read_nodes(text: str | bytes) -> Read:
    """`sinfo --json`: rows are `SlurmNode`. Raises as `read_jobs`."""
    return _each(_entries(text, "nodes"), _node, "name")


def read_accounting(text: str) -> Read:
    """`sacct --allocations --duplicates --parsable2 --noheader --format` of SACCT_FIELDS, times as seconds: rows are `SlurmRun`."""
    rows, faults = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            rows.append(_run(line.split("|")))
        except (Unreadable, ValueError) as error:
            faults.append(f"line {number}: {error}")
    return Read(tuple(rows), tuple(faults))


def expand(nodes: str) -> tuple[str, ...]:
    """The names in a list of nodes such as `a1,gpu[01-03,7]-x`, in its order.

    Raises:
        Unreadable: brackets that do not close, ranges that run backwards, names that no node has, too many of them.
    """
    if nodes in ("", "None assigned", "(null)"):
        return ()
    found: list[str] = []
    for part in _parts(nodes):
        head, bracket, rest = part.partition("[")
        if not bracket:
            found.append(part)
            continue
        inner, closed, tail = rest.partition("]")
        if not closed or "[" in tail:
            raise Unreadable(f"the list of nodes {nodes[:80]!r} is not understood")
        found += [f"{head}{number}{tail}" for number in _padded(inner, NODES_MAX)]
        if len(found) > NODES_MAX:
            raise Unreadable(f"the list of nodes {nodes[:80]!r} has more than {NODES_MAX}")
    for name in found:
        if not _NODE.match(name):
            raise Unreadable(f"no node is called {name[:80]!r}")
    return tuple(found)


def devices_of(detail: str) -> tuple[int, ...]:
    """The devices in an entry of `gres_detail`, such as `gpu:h100:3(IDX:0-1,5)`; none where it names none."""
    return tuple(int(number) for found in _INDICES.findall(detail) for number in _padded(found, DEVICES_MAX))


def gpus_of(request: str) -> tuple[int, str | None]:
    """How many GPUs a request such as `gres:gpu:h100:2` names, and the model; (0, None): none at all.

    Raises:
        Unreadable: GPUs of several models at once.
    """
    found = _GPU.findall(request)
    models = {model for model, _count in found if model}
    if len(models) > 1:
        raise Unreadable(f"GPUs of several models in one job: {request[:80]!r}")
    return sum(int(count or 1) for _model, count in found), models.pop() if models else None


def _entries(text: str | bytes, name: str) -> list[dict[str, Any]]:
    try:
        whole = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Unreadable(f"not the JSON that was asked for: {error}") from error
    if whole.get("errors"):
        raise Unreadable(f"Slurm says: {str(whole['errors'])[:300]}")
    entries = whole.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Unreadable(f"there is no list of {name} in it")
    return entries


def _each(entries: Sequence[dict[str, Any]], read: Callable[[dict[str, Any]], Value], name: str) -> Read:
    rows, faults = [], []
    for entry in entries:
        try:
            rows.append(read(entry))
        except Unreadable as error:
            faults.append(f"{name} {str(entry.get(name))[:80]}: {error}")
    return Read(tuple(rows), tuple(faults))


def _job(entry: dict[str, Any]) -> SlurmJob:
    state = _text(entry, "job_state")
    nodes = max(_whole(entry, "node_count"), 1)
    per_node, model = gpus_of(_text(entry, "tres_per_node"))
    in_all, other = gpus_of(_text(entry, "tres_per_job"))
    if any("gpu" in _text(entry, field) for field in ("tres_per_socket", "tres_per_task")):
        raise Unreadable("GPUs by socket or by task; ask by node (--gres, --gpus-per-node) or by job (--gpus)")
    if in_all and not per_node:
        if in_all % nodes:
            raise Unreadable(f"{in_all} GPUs do not divide among {nodes} nodes")
        per_node, model = in_all // nodes, other
    return SlurmJob(
        number=_whole(entry, "job_id"),
        user=_text(entry, "user_name"),
        account=_text(entry, "account"),
        name=_text(entry, "name"),
        comment=_text(entry, "comment"),
        admin_comment=_text(entry, "admin_comment"),
        submitted_at_ms=_instant(_whole(entry, "submit_time")),
        started_at_ms=_instant(_whole(entry, "start_time")) if _life(state) != "waits" else None,
        life=_life(state),
        # A waiting job with priority 0 is held, whoever held it.
        held=_life(state) == "waits" and _whole(entry, "priority") == 0,
        requeue=entry.get("requeue") is True,
        gpus_per_node=per_node,
        nodes=nodes,
        model=model,
        time_limit_ms=_minutes(entry, "time_limit"),
        time_min_ms=_minutes(entry, "time_minimum") or None,
        places=_places(entry),
        array=_whole(entry, "array_job_id") or None,
        array_task=entry.get("array_task_id") if isinstance(entry.get("array_task_id"), int) else None,
        array_waits=_text(entry, "array_task_string"),
    )


def _places(entry: dict[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    names = expand(_text(entry, "nodes"))
    details = entry.get("gres_detail")
    if not isinstance(details, list) or not details:
        return tuple((name, ()) for name in names)
    if len(details) != len(names):
        raise Unreadable(f"{len(names)} nodes and GPUs of {len(details)}")
    return tuple((name, devices_of(str(detail))) for name, detail in zip(names, details, strict=True))


def _node(entry: dict[str, Any]) -> SlurmNode:
    flags = entry.get("state_flags")
    words = {str(flag).upper() for flag in flags} if isinstance(flags, list) else set()
    state = _text(entry, "state").lower()
    gpus, model = gpus_of(_text(entry, "gres"))
    (name,) = expand(_text(entry, "name")) or ("",)
    gone = {"NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"}
    return SlurmNode(
        name=name,
        gpus=gpus,
        model=model,
        up=state in ("idle", "allocated", "mixed") and not words & gone,
        drains=bool(words & {"DRAIN", "FAIL", "MAINTENANCE"}),
        reason=_text(entry, "reason"),
    )


def _run(cells: Sequence[str]) -> SlurmRun:
    if len(cells) != len(SACCT_FIELDS):
        raise Unreadable(f"{len(cells)} fields, where {len(SACCT_FIELDS)} were asked for")
    number, submit, start, end, elapsed, state, code, tres, nodes = cells
    found = _ALLOCATED.search(tres)
    exit_code, _, by = code.partition(":")
    return SlurmRun(
        number=int(number),
        submitted_at_ms=_instant(int(submit)),
        started_at_ms=_known(start),
        ended_at_ms=_known(end),
        held_ms=int(elapsed) * SECOND_MS,
        # `CANCELLED by 1000`
        life=_life(state.partition(" ")[0]),
        # As a shell says it: 128 and the signal's number.
        exit_code=int(exit_code) or (128 + int(by) if by and int(by) else 0),
        gpus=int(found[1]) if found else 0,
        nodes=expand(nodes),
    )


def _life(state: str) -> Life:
    if state not in LIVES:
        raise Unreadable(f"no state of a job is called {state[:40]!r}")
    return LIVES[state]


def _known(text: str) -> Ms | None:
    return None if text in ("", "Unknown", "None", "0") else _instant(int(text))


def _instant(at_s: int) -> Ms:
    if not 0 <= at_s * SECOND_MS <= LATEST_INSTANT_MS:
        raise Unreadable(f"{at_s} is no instant")
    return at_s * SECOND_MS


def _minutes(entry: dict[str, Any], name: str) -> Ms | None:
    found = entry.get(name)
    # 22.05 says null for unlimited.
    return found * 60 * SECOND_MS if isinstance(found, int) and not isinstance(found, bool) else None


def _text(entry: dict[str, Any], name: str) -> str:
    found = entry.get(name)
    if found is not None and not isinstance(found, str):
        raise Unreadable(f"{name} is no text")
    return found or ""


def _whole(entry: dict[str, Any], name: str) -> int:
    found = entry.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise Unreadable(f"{name} is no whole number")
    return found


def _parts(nodes: str) -> list[str]:
    """Split at the commas outside brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", nodes) if part]


def _padded(ranges: str, most: int) -> list[str]:
    found: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.match(part)
        if not match:
            raise Unreadable(f"the numbers {ranges[:80]!r} are not understood")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < most:
            raise Unreadable(f"the range {part!r} runs backwards, or names more than {most}")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found
