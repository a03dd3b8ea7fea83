"""Gaps: stretches in which a running replica had no counter, open or closed, and what is missing of them (contract §3).

Never says why: silence is not death.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.units import Amount, GpuCount, Instant


class GapMark(Struct, frozen=True, kw_only=True):
    """The place of a gap: by its beginning, then attempt and replica."""

    from_ms: Instant
    attempt: Id
    replica: Annotated[int, Meta(ge=0)]


class Gap(Struct, frozen=True, kw_only=True):
    """`[from_ms, to_ms)` without a counter; `to_ms` unset: it is open.

    `closed_by` counter: the same counter came back and nothing is missing; epoch: a new counter began at `to_ms`; end: the attempt
    ended then. `missing_gpu_ms`: what is charged to nobody of it, up to now while it is open; a late counter may still fill it.
    """

    attempt: Id
    replica: int
    gpus: GpuCount
    budget: Name | None
    from_ms: Instant
    to_ms: Instant | None
    closed_by: Literal["counter", "epoch", "end"] | None
    missing_gpu_ms: Amount


class GapsQuery(Struct, frozen=True, kw_only=True):
    """Ask for the gaps of one cluster that touch `[from_ms, to_ms)`, by their beginning, behind `after`."""

    cluster: Name
    from_ms: Instant
    to_ms: Instant
    open_only: bool = False
    after: GapMark | None = None


class GapsPage(Struct, frozen=True, kw_only=True):
    """`silence_ms`: a stretch that is no longer is no gap. `next_after` unset: this was the last page."""

    cluster: Name
    as_of_ms: Instant
    silence_ms: int
    gaps: tuple[Gap, ...]
    next_after: GapMark | None = None
