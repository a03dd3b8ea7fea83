"""What the ledger heard and does not count, and how an operator releases it (contract §3).

Never says how a release is judged: that is the ledger's.
"""

from typing import Annotated

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.message import Text
from allmende.proto.units import Amount, Instant

What = Annotated[str, Meta(min_length=1, max_length=200)]
"""attempt/replica/epoch, attempt/started, attempt/ended, an attempt or a node."""
Code = Annotated[str, Meta(pattern=r"\A[a-z_]{1,63}\Z")]


class Released(Struct, frozen=True, kw_only=True):
    """An item was released: by so much more is counted since then."""

    release: Id
    cluster: Name
    what: What
    code: Code
    counted_gpu_ms: Amount
    author: Name
    reason: Text
    at_ms: Instant


class QuarantineItem(Struct, frozen=True, kw_only=True):
    """One thing that is not counted, and why.

    `excess_gpu_ms`: what its newest word claimed beyond what is believed, `most_excess_gpu_ms` the most that any did. `times`
    unset: nobody counted; so of an unknown attempt, whose instants are those of its counter.
    """

    what: What
    code: Code
    sentence: Text
    excess_gpu_ms: Amount
    most_excess_gpu_ms: Amount
    times: int | None
    first_at_ms: Instant
    last_at_ms: Instant
    last_message: Id
    released: Released | None = None
    """Unset: it waits."""


class QuarantineQuery(Struct, frozen=True, kw_only=True):
    """Ask what of one cluster is not counted, by what and code, behind (`after_what`, `after_code`). `code`: only this one."""

    cluster: Name
    code: Code | None = None
    also_released: bool = False
    after_what: str = ""
    after_code: str = ""


class QuarantinePage(Struct, frozen=True, kw_only=True):
    """`more`: ask again after the last pair."""

    items: tuple[QuarantineItem, ...]
    more: bool = False


class ReleaseItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let an item count, as if it were said now by a right clock. `release`: a new id; the same again is the same release."""

    release: Id
    cluster: Name
    what: What
    code: Code
    reason: Annotated[str, Meta(min_length=1, max_length=1_000)]
