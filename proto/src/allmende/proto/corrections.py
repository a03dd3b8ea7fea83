"""Corrections: an amount of GPU time moved from one account to another by an operator, for a reason, for ever (contract §3).

Never changes what was posted: a correction is a new entry.
"""

from typing import Annotated

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.message import Text
from allmende.proto.units import Amount, Instant, Sequence

Account = Annotated[str, Meta(pattern=r"\A(?:unallocated|capacity|budget/[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)\Z", max_length=70)]
"""`budget/NAME`, `unallocated`, or `capacity`: the cluster's, against which all use is charged."""


class Correct(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take an amount off one account and charge it to another, where the first has it in `[from_ms, to_ms)`.

    Both are multiples of 5 minutes. `correction`: a new id; the same again is the same correction. `amount_gpu_ms` unset: all that
    the first has there.
    """

    correction: Id
    cluster: Name
    take_from: Account
    charge_to: Account
    from_ms: Instant
    to_ms: Instant
    amount_gpu_ms: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=1_000)]


class Correction(Struct, frozen=True, kw_only=True):
    """One correction as it was made. `within_gpu_ms`: what of it is in the buckets that were asked for."""

    number: Sequence
    correction: Id
    cluster: Name
    take_from: Account
    charge_to: Account
    from_ms: Instant
    to_ms: Instant
    amount_gpu_ms: Amount
    within_gpu_ms: Amount
    author: Name
    reason: Text
    at_ms: Instant


class CorrectionsQuery(Struct, frozen=True, kw_only=True):
    """Ask for the corrections of one cluster whose buckets end in `(from_ms, to_ms]`, by number, behind `after`.

    `budget`: only those that take from it or charge to it.
    """

    cluster: Name
    budget: Name | None = None
    from_ms: Instant
    to_ms: Instant
    after: Sequence = 0


class CorrectionsPage(Struct, frozen=True, kw_only=True):
    """`next_after` unset: this was the last page."""

    corrections: tuple[Correction, ...]
    next_after: Sequence | None = None
