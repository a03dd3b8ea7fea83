"""What an operator decides about one cluster: modes, bounds and limits, as one document with a revision (decision 0022).

Unset, zero and unlimited are three things: an unset limit is none, a limit of zero lets nobody start.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from allmende.proto.ids import Name
from allmende.proto.message import Message, Text
from allmende.proto.units import MINUTE_MS, GpuCount, Instant, Sequence, Span

Mode = Literal["observe", "admit", "enforce"]
OverBudget = Literal["queue", "unallocated", "refuse"]
Uncovered = Literal["refuse", "unallocated"]
Backfill = Literal["any", "unallocated_only", "within_deadline"]

# Contract §10: what counts as debug work.
DEBUG_SLICE_MAX_MS = 15 * MINUTE_MS
DEBUG_GPUS = 8


class DebugLane(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Small short jobs go first inside their leaf. `per_user`: so many of one person's run at the same time by this right."""

    gpus: Annotated[int, Meta(ge=1, le=1_024)] = DEBUG_GPUS
    slice_ms: Annotated[int, Meta(ge=1, le=DEBUG_SLICE_MAX_MS)] = DEBUG_SLICE_MAX_MS
    per_user: Annotated[int, Meta(ge=1, le=1_000)] = 1


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole document of one cluster."""

    mode: Mode = "enforce"
    """`observe`: say what would be done, command nothing. `admit`: grant, evict nobody. `enforce`: both (contract §8)."""
    paused: bool = False
    """Nothing new starts; jobs are still taken in."""
    over_budget: OverBudget = "queue"
    """What a job may do whose leaf stands at 1 or above (contract §5)."""
    uncovered: Uncovered = "refuse"
    """What becomes of a slice that no budget covers and whose job did not say that it may run unallocated."""
    backfill: Backfill = "any"
    """Who may start behind an allocated job that found no room. `within_deadline`: unallocated work, and slices that end by the
    instant at which that job could have room."""
    slice_min_ms: Span | None = None
    """The shortest slice that may be asked for, but for 0, which is unallocated. Unset: any."""
    slice_cap_ms: Span | None = None
    """The longest. Unset: the service's own; 0: only unallocated work."""
    gpus_at_once: Annotated[dict[Name, GpuCount], Meta(max_length=1_000)] = {}
    """GPUs that the allocated jobs of a budget, and of all below it, may hold at once. A budget without an entry has no limit."""
    sessions_per_user: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    """Sessions that one person may have at once. Unset: no limit."""
    debug_lane: DebugLane | None = None
    reservations: Annotated[int, Meta(ge=0, le=16)] | None = None
    """Large jobs that nodes may be gathered for at the same time (contract §5). Unset: the service's own; 0: none."""
    reserve_from_gpus: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Nodes are gathered for jobs of at least so many GPUs. Unset: an eighth of the cluster's."""


class PolicyChanged(Message, frozen=True, kw_only=True):
    """A cluster's policy is another one from `from_ms` on."""

    TYPE: ClassVar[str] = "policy.changed"

    cluster: Name
    revision: Sequence
    from_ms: Instant
    author: Name
    reason: Text
    policy: Policy


class PolicyQuery(Struct, frozen=True, kw_only=True):
    """Ask for a cluster's policy in force."""

    cluster: Name


class PolicyReply(Struct, frozen=True, kw_only=True):
    """Revision 0: nobody has set one; `policy` is what holds then. `author` and `from_ms` are unset too."""

    cluster: Name
    known: bool
    """A node of the cluster has been reported."""
    revision: Sequence
    policy: Policy
    author: Name | None = None
    reason: Text = ""
    from_ms: Instant | None = None
    slice_cap_ms: Span
    """The cap that holds: the policy's or the service's."""


class SetPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replace a cluster's policy. `expected_revision` 0: nobody has set one yet."""

    cluster: Name
    expected_revision: Sequence
    reason: Annotated[str, Meta(min_length=1, max_length=1_000)]
    policy: Policy


class PolicySet(Struct, frozen=True, kw_only=True):
    """`unchanged`: it was so already, and nothing was written. `claims`: how many open ones were withdrawn."""

    cluster: Name
    known: bool
    status: Literal["committed", "unchanged"]
    revision: Sequence
    claims: int = 0


class PolicyHistoryQuery(Struct, frozen=True, kw_only=True):
    """Ask for a cluster's policies, newest first, below revision `before`."""

    cluster: Name
    before: Sequence | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class PastPolicy(Struct, frozen=True, kw_only=True):
    """One policy and when it held: `[from_ms, until_ms)`; `until_ms` unset: it holds now."""

    revision: Sequence
    from_ms: Instant
    until_ms: Instant | None
    author: Name
    reason: Text
    policy: Policy


class PolicyHistoryPage(Struct, frozen=True, kw_only=True):
    """`next_before` unset: no older ones."""

    policies: tuple[PastPolicy, ...]
    next_before: Sequence | None = None
