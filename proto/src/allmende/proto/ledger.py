"""What the ledger says: standings, and to agents that their facts are safe."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.message import Message
from allmende.proto.units import Amount, GpuCount, Instant, Sequence, Span


class UsageStanding(Message, frozen=True, kw_only=True):
    """Where one budget of any level stands on one cluster over the look-back window.

    `ratio = (charged + held) / entitlement` is never sent as a number: compare by cross-multiplication (`standing`).
    `usage_revision` grows with every published round of a cluster and is the same for all budgets of the round.
    `counted_grants` says which of admission's grants the holds include: all whose `grant_seq` is at most this.
    """

    TYPE: ClassVar[str] = "usage.standing"

    cluster: Name
    budget: Name
    as_of_ms: Instant
    usage_revision: Sequence
    tree_revision: Sequence
    counted_grants: Sequence
    charged_gpu_ms: Amount
    held_gpu_ms: Amount
    entitlement_gpu_ms: Amount
    available_gpus: GpuCount


class BudgetUsage(Message, frozen=True, kw_only=True):
    """What one leaf uses of a cluster now, and was charged in the present hour and day of UTC. Said when it changes.

    `attempts` are granted and have not ended, with `gpus` in all. `hour_gpu_ms` since `hour_from_ms`, `day_gpu_ms` since midnight.
    """

    TYPE: ClassVar[str] = "budget.usage"

    cluster: Name
    budget: Name
    as_of_ms: Instant
    attempts: Sequence
    gpus: Sequence
    hour_from_ms: Instant
    hour_gpu_ms: Amount
    day_gpu_ms: Amount


class ConfirmedCounter(Struct, frozen=True, kw_only=True):
    """Every counter of this replica up to `seq` is in the books."""

    attempt: Id
    replica: int
    epoch: Sequence
    seq: Sequence


class UsageConfirmed(Message, frozen=True, kw_only=True):
    """The ledger has committed these ends and final counters; the agent may forget them."""

    TYPE: ClassVar[str] = "usage.confirmed"

    cluster: Name
    attempts: Annotated[tuple[Id, ...], Meta(max_length=512)]
    """Attempts whose end and final counters are all in the books."""
    counters: Annotated[tuple[ConfirmedCounter, ...], Meta(max_length=512)] = ()


class StandingsQuery(Struct, frozen=True, kw_only=True):
    """Ask for the standings of one cluster, computed now, by name of the budget, after `after`."""

    cluster: Name
    after: Name | None = None


class StandingsReply(Struct, frozen=True, kw_only=True):
    """Budgets of the tree on one cluster, by name. `next_after` unset: this was the last piece."""

    cluster: Name
    as_of_ms: Instant
    usage_revision: Sequence
    available_gpus: GpuCount
    standings: tuple[UsageStanding, ...]
    next_after: Name | None = None


class PostingsQuery(Struct, frozen=True, kw_only=True):
    """Ask for the raw postings of one cluster, in order of their number, after `after`."""

    cluster: Name
    after: Sequence = 0
    limit: Annotated[int, Meta(ge=1, le=400)] = 400


class Posting(Struct, frozen=True, kw_only=True):
    """`gpus` held from `from_ms` until `to_ms` by one replica, charged to `budget` (None: unallocated)."""

    number: Sequence
    attempt: Id
    replica: int
    epoch: Sequence
    from_ms: Instant
    to_ms: Instant
    gpus: GpuCount
    budget: Name | None
    amount_gpu_ms: Amount


class PostingsPage(Struct, frozen=True, kw_only=True):
    """`next_after` unset: no more at the moment."""

    postings: tuple[Posting, ...]
    next_after: Sequence | None = None


class CapacityQuery(Struct, frozen=True, kw_only=True):
    """Ask for the books of one cluster between two instants, in equal steps: `[from_ms, to_ms)`."""

    cluster: Name
    from_ms: Instant
    to_ms: Instant
    step_ms: Annotated[int, Meta(ge=1_000, le=366 * 86_400_000)]


class BucketBooks(Struct, frozen=True, kw_only=True):
    """One step: allocated + unallocated + starting + unknown + idle = available, all in GPU-ms."""

    from_ms: Instant
    installed_gpu_ms: Amount
    available_gpu_ms: Amount
    allocated_gpu_ms: Amount
    unallocated_gpu_ms: Amount
    starting_gpu_ms: Amount
    unknown_gpu_ms: Amount
    idle_gpu_ms: int
    """May be negative only when the books are wrong; never clipped."""


class CapacityReply(Struct, frozen=True, kw_only=True):
    """At most 400 steps a reply; `next_from_ms` unset: this was the last."""

    buckets: tuple[BucketBooks, ...]
    next_from_ms: Instant | None = None


class LedgerStateQuery(Struct, frozen=True, kw_only=True):
    """Ask how complete the books of one cluster are."""

    cluster: Name


class LedgerState(Struct, frozen=True, kw_only=True):
    """Counts over one cluster. `unattributed` are counters whose grant is not known yet; `open_attempts` have not ended."""

    cluster: Name
    postings: int
    posted_gpu_ms: Amount
    open_attempts: int
    unattributed_counters: int
    quarantined: int
    oldest_gap_ms: Span | None = None


class FaultsQuery(Struct, frozen=True, kw_only=True):
    """Ask what of one cluster is not counted, by `what` and code, after the pair (`after_what`, `after_code`)."""

    cluster: Name
    after_what: str = ""
    after_code: str = ""


class FaultView(Struct, frozen=True, kw_only=True):
    """One thing that is not counted, and why. `what`: attempt/replica/epoch, an attempt or a node.

    `excess_gpu_ms` is what its newest word claimed beyond what is believed, `most_excess_gpu_ms` the most that any did.
    """

    what: str
    code: str
    sentence: str
    excess_gpu_ms: Amount
    most_excess_gpu_ms: Amount
    times: int
    first_at_ms: Instant
    last_at_ms: Instant
    last_message: Id


class FaultsPage(Struct, frozen=True, kw_only=True):
    """`more`: ask again after the last pair."""

    faults: tuple[FaultView, ...]
    more: bool = False
