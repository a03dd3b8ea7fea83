"""What the workload asked for and how it ended, one JSON object a line: the base of waits and of demand per team and hour."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
from msgspec import Struct

from allmende.agent.lines import read
from allmende.proto.units import Ms, Ppm


class Entry(Struct, frozen=True, kw_only=True, tag_field="what", forbid_unknown_fields=True):
    """One line, and when."""

    at_ms: Ms


class TeamShare(Struct, frozen=True, kw_only=True):
    """A leaf's part of the whole, rounded down to a millionth."""

    budget: str
    effective_share_ppm: Ppm


class Began(Entry, frozen=True, kw_only=True, tag="began"):
    """The first line: whose jobs these are."""

    seed: int
    gpus: int
    teams: tuple[TeamShare, ...]


class Submitted(Entry, frozen=True, kw_only=True, tag="submitted"):
    """A job was submitted. `team` is who wants it; `budget` None: unallocated, charged to nobody."""

    job: str
    user: str
    team: str
    budget: str | None
    gpus: int
    slice_ms: Ms
    debug: bool


class Ended(Entry, frozen=True, kw_only=True, tag="ended"):
    """A job ended at `at_ms`, or was refused then."""

    job: str
    outcome: str
    first_started_at_ms: Ms | None = None


AnyEntry: TypeAlias = Began | Submitted | Ended

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEntry] = msgspec.json.Decoder(AnyEntry)


def to_line(entry: AnyEntry) -> bytes:
    """One line of the log, with its newline."""
    return _encoder.encode(entry) + b"\n"


def from_lines(lines: Iterable[bytes]) -> Iterator[AnyEntry]:
    """Read a log back (see `lines.read`)."""
    return read(_decoder, lines, "workload log")
