"""What the ledger reports to people: statements, usage by time and budget, user or GPU model, and whether the books agree.

Amounts are exact GPU-milliseconds. Never carries what a job runs.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.message import Text
from allmende.proto.units import DAY_MS, Amount, GpuCount, Instant, Sequence


class StatementQuery(Struct, frozen=True, kw_only=True):
    """Ask what one leaf was charged on one cluster in `[from_ms, to_ms)`; lines by attempt, behind `after`."""

    cluster: Name
    budget: Name
    from_ms: Instant
    to_ms: Instant
    after: Id | None = None


class StatementLine(Struct, frozen=True, kw_only=True):
    """One attempt that lived in the span: `charged_gpu_ms` of it in the span, `held_gpu_ms` is left of its hold now."""

    attempt: Id
    job: Id
    gpus: GpuCount
    """Of all replicas."""
    granted_at_ms: Instant
    ended_at_ms: Instant | None
    outcome: str | None
    charged_gpu_ms: Amount
    held_gpu_ms: Amount


class StatementPage(Struct, frozen=True, kw_only=True):
    """Lines by attempt. The sums are of the whole span, in this page's own snapshot: closing = opening + all lines + corrected.

    `next_after` unset: this was the last page.
    """

    cluster: Name
    budget: Name
    as_of_ms: Instant
    opening_gpu_ms: Amount
    """Charged before `from_ms`, since the books began."""
    closing_gpu_ms: Amount
    """Charged before `to_ms`."""
    held_gpu_ms: Amount
    """Left of the holds of all lines, now."""
    lines: tuple[StatementLine, ...]
    next_after: Id | None = None
    corrected_gpu_ms: int = 0
    """What corrections charge in the span; below 0: what they take off. Each counts at the end of its 5 minutes."""


class UsageMark(Struct, frozen=True, kw_only=True):
    """The place of a row of usage: its step, then its budget, unallocated first."""

    from_ms: Instant
    budget: Name | None


class UsageQuery(Struct, frozen=True, kw_only=True):
    """Ask who was charged how much of a cluster in `[from_ms, to_ms)`, in steps. All three are multiples of 5 minutes."""

    cluster: Name
    from_ms: Instant
    to_ms: Instant
    step_ms: Annotated[int, Meta(ge=1, le=366 * DAY_MS)]
    after: UsageMark | None = None


class UsageRow(Struct, frozen=True, kw_only=True):
    """What one budget was charged in the step that begins at `from_ms`. `budget` None: unallocated, charged to nobody."""

    from_ms: Instant
    budget: Name | None
    gpu_ms: Amount


class UsagePage(Struct, frozen=True, kw_only=True):
    """Rows by step and budget, none where nothing was used. `next_after` unset: this was the last page."""

    cluster: Name
    as_of_ms: Instant
    rows: tuple[UsageRow, ...]
    next_after: UsageMark | None = None


UsageSide: TypeAlias = Literal["user", "gpu_model"]


class UsageByMark(Struct, frozen=True, kw_only=True):
    """The place of a row of usage by user or GPU model: its step, then its name, what is not known first."""

    from_ms: Instant
    name: Name | None


class UsageByQuery(Struct, frozen=True, kw_only=True):
    """Ask what each user, or the GPUs of each model, held of a cluster in `[from_ms, to_ms)`: at most 1,000 steps.

    All three are multiples of 5 minutes.
    """

    cluster: Name
    by: UsageSide
    from_ms: Instant
    to_ms: Instant
    step_ms: Annotated[int, Meta(ge=1, le=366 * DAY_MS)]
    after: UsageByMark | None = None


class UsageByRow(Struct, frozen=True, kw_only=True):
    """What one user, or GPUs of one model, held in the step that begins at `from_ms`. `name` None: it is not known which."""

    from_ms: Instant
    name: Name | None
    allocated_gpu_ms: Amount
    unallocated_gpu_ms: Amount


class UsageByPage(Struct, frozen=True, kw_only=True):
    """Rows by step and name, none where nothing was used. `next_after` unset: this was the last page."""

    cluster: Name
    by: UsageSide
    as_of_ms: Instant
    rows: tuple[UsageByRow, ...]
    next_after: UsageByMark | None = None


class VerifyQuery(Struct, frozen=True, kw_only=True):
    """Ask whether a cluster's books agree from `from_ms` on, a day a reply. `to_ms` unset: up to now.

    Both are multiples of 5 minutes. `offset`: how many of that day's differences are known already.
    """

    cluster: Name
    from_ms: Instant = 0
    to_ms: Instant | None = None
    offset: Annotated[int, Meta(ge=0)] = 0


class Difference(Struct, frozen=True, kw_only=True):
    """One thing that does not agree: computed anew it is `recomputed`, in the books it is `kept`.

    `bucket`: a sum of postings, in GPU-ms. `interval`: what is posted of a counter, in ms. `terms`: the GPUs of a posting.
    `conservation`: GPU-ms in use against those available. `posting`: one of them, in GPU-ms; `counter`: what it has counted, in ms.
    """

    what: Literal["bucket", "interval", "terms", "conservation", "posting", "counter"]
    of: Text
    at_ms: Instant
    recomputed: int
    kept: int
    sentence: Text


class VerifyPage(Struct, frozen=True, kw_only=True):
    """What was verified: `[from_ms, to_ms)`, which begins where the books do. `found` counts all differences of it, listed or not.

    Conservation is not judged in buckets of which the capacity is not known. `next_from_ms` unset: this was the last piece.
    """

    cluster: Name
    as_of_ms: Instant
    from_ms: Instant
    to_ms: Instant
    postings: int
    buckets: int
    buckets_of_unknown_capacity: int
    found: int
    differences: tuple[Difference, ...]
    next_from_ms: Instant | None = None


class VerifyEventsQuery(Struct, frozen=True, kw_only=True):
    """Ask whether the postings of a cluster follow from what was heard, from one seal to the next.

    `after`: the seal to begin with; unset: the oldest one that is kept. `offset`: how many of its differences are known already.
    """

    cluster: Name
    after: Sequence | None = None
    offset: Annotated[int, Meta(ge=0)] = 0


class VerifyEventsPage(Struct, frozen=True, kw_only=True):
    """What was computed anew: the batches behind seal `after`, up to the one numbered `upto`, heard in `[from_ms, to_ms]`.

    `words`: facts and counters in them. `not_judged`: attempts that were complete before the seal and of which more was said.
    `next_after` unset: this was the last piece.
    """

    cluster: Name
    as_of_ms: Instant
    after: Sequence
    upto: Sequence
    from_ms: Instant
    to_ms: Instant
    words: int
    postings: int
    not_judged: int
    found: int
    differences: tuple[Difference, ...]
    next_after: Sequence | None = None
