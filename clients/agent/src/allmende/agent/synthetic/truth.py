"""The cluster's own log: what its simulated nodes and processes did, written when it happened. JSON lines.

It is never written from what is reported to anybody, so that the books can be held against it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from allmende.agent.lines import read
from allmende.proto.units import Ms


class Record(Struct, frozen=True, kw_only=True, tag_field="what", forbid_unknown_fields=True):
    """One line: what happened, and when."""

    at_ms: Ms


class Opened(Record, frozen=True, kw_only=True, tag="opened"):
    """The cluster was switched on. Its nodes follow."""

    cluster: str
    seed: int


class NodeWas(Record, frozen=True, kw_only=True, tag="node"):
    """A node has this many GPUs from now on; 0 healthy ones: it is down."""

    node: str
    installed_gpus: int
    healthy_gpus: int
    reason: str = ""


class Started(Record, frozen=True, kw_only=True, tag="started"):
    """All processes of an attempt run. `nodes` names the node of each replica, by its number."""

    attempt: str
    job: str
    budget: str | None
    slice_ms: Ms
    gpus_per_replica: int
    nodes: tuple[str, ...]


class Signalled(Record, frozen=True, kw_only=True, tag="signalled"):
    """Its processes received a signal, for this order: the plan of an eviction, or the reason of a stop."""

    attempt: str
    signal: Literal["TERM", "KILL"]
    cause: Literal["eviction", "stop"]
    name: str


class Ended(Record, frozen=True, kw_only=True, tag="ended"):
    """No process of the attempt runs any more. `by`: itself, a signal, the loss of its node, or the end of the cluster.

    `progress_ms` is the job's productive time then, `saved_ms` the part that is saved.
    """

    attempt: str
    job: str
    by: Literal["itself", "TERM", "KILL", "node", "power_off"]
    exit_code: int | None
    progress_ms: Ms
    saved_ms: Ms


class Closed(Record, frozen=True, kw_only=True, tag="closed"):
    """The cluster was switched off at `at_ms`; `unconfirmed` ends were not confirmed by the ledger before it left."""

    unconfirmed: int


AnyRecord: TypeAlias = Opened | NodeWas | Started | Signalled | Ended | Closed

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


def to_line(record: AnyRecord) -> bytes:
    """One line of the log, with its newline."""
    return _encoder.encode(record) + b"\n"


def from_lines(lines: Iterable[bytes]) -> Iterator[AnyRecord]:
    """Read a log back (see `lines.read`)."""
    return read(_decoder, lines, "truth")


class Left(NamedTuple):
    """What an earlier run left: attempts that still ran, because it was killed and not switched off; and the ends of that run."""

    running: tuple[Started, ...] = ()
    ended: tuple[Ended, ...] = ()


def left_by(path: Path) -> Left:
    """Read what the last run left. Nothing when there is no log yet."""
    if not path.exists():
        return Left()
    running: dict[str, Started] = {}
    ended: list[Ended] = []
    with path.open("rb") as lines:
        for record in from_lines(lines):
            match record:
                case Opened():
                    # What ended in a run before that one was that one's to settle.
                    ended.clear()
                case Started():
                    running[record.attempt] = record
                case Ended():
                    running.pop(record.attempt, None)
                    ended.append(record)
                case _:
                    pass
    return Left(tuple(running.values()), tuple(ended))


def lost(started: Started, at_ms: Ms) -> Ended:
    """The end of such an attempt, at the first instant that knows of it. What it had not saved is gone."""
    return Ended(at_ms=at_ms, attempt=started.attempt, job=started.job, by="node", exit_code=None, progress_ms=0, saved_ms=0)
