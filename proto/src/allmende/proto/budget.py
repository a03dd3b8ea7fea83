"""What the budget service says: the tree of shares, one message a budget, complete only when `RevisionComplete` says so."""

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from allmende.proto.ids import Name
from allmende.proto.message import Message, Problem, Text
from allmende.proto.units import Instant, Sequence, SharePpm

MAX_DEPTH = 8
MAX_BUDGETS = 10_000
MAX_CLUSTER_SHARES = 64
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
People = Annotated[tuple[Name, ...], Meta(max_length=500)]


class ClusterShare(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a budget's share is on one cluster, where it wins over the general one. Zero is a share: nothing is promised there."""

    cluster: Name
    share_ppm: SharePpm


ClusterShares = Annotated[tuple[ClusterShare, ...], Meta(min_length=1, max_length=MAX_CLUSTER_SHARES)]


class Budget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node of the tree. The root has no parent. An unset share is not zero: see contract §2."""

    budget: Name
    parent: Name | None = None
    title: Annotated[str, Meta(max_length=200)] = ""
    share_ppm: SharePpm | None = None
    managers: People = ()
    members: People = ()
    cluster_shares: ClusterShares | UnsetType = UNSET
    """Shares of single clusters, beside a general one that is set. Where there are none, nothing is encoded (old readers)."""


class BudgetChanged(Message, frozen=True, kw_only=True):
    """One budget as it stands from `revision` on. Only budgets that differ from the revision before are said."""

    TYPE: ClassVar[str] = "budget.changed"

    budget: Name
    revision: Sequence
    definition: Budget | None
    """None: the budget is gone in this revision."""
    jobs_to: Name | None = None
    """Of a budget that is gone: the leaf that its jobs go to. None: nobody has said."""


class RevisionComplete(Message, frozen=True, kw_only=True):
    """All changes of `revision` have been said. Readers switch only now.

    A reader may switch when the budgets it knows number `budgets` and hash to `digest` (`tree.digest`); otherwise it waits.
    """

    TYPE: ClassVar[str] = "budget.revision_complete"

    revision: Sequence
    effective_from_ms: Instant
    budgets: Annotated[int, Meta(ge=0, le=MAX_BUDGETS)]
    digest: Digest
    author: Name
    reason: Text = ""


class TreeQuery(Struct, frozen=True, kw_only=True):
    """Ask for the tree in pieces: budgets in the order of their names, after `after`.

    `differs_from`: only budgets that were written in a revision between that one and this one, whichever is the older. They may
    stand alike in both, where somebody has changed one and changed it back.
    """

    revision: Sequence | None = None
    """Unset: the newest."""
    at_ms: Instant | None = None
    """The revision that was in force at an instant; with `revision` unset."""
    after: Name | None = None
    differs_from: Sequence | None = None


class TreePage(Struct, frozen=True, kw_only=True):
    """A piece of the tree. `next_after` unset: this was the last piece."""

    revision: Sequence
    effective_from_ms: Instant
    author: Name
    reason: Text
    budgets: tuple[Budget, ...]
    next_after: Name | None = None


class ChildShare(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The share of one child. `share_ppm` None makes it unset; of one cluster, it lets the general share hold there again."""

    budget: Name
    share_ppm: SharePpm | None


class SetShares(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the shares of ALL children of one parent at once: the general ones, or those of one cluster."""

    parent: Name
    children: Annotated[tuple[ChildShare, ...], Meta(max_length=1_000)]
    expected_revision: Sequence
    reason: Text
    cluster: Name | None = None
    """Unset: the general shares, which hold wherever a cluster has none of its own."""


class PutBudgets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budgets as they shall stand from now on: a new name is created, a known one moved, retitled or given other people.

    A budget that stays where it is keeps its share: `SetShares` divides those of all children at once. One that moves says its
    share of the new parent, and none of single clusters.
    """

    budgets: Annotated[tuple[Budget, ...], Meta(min_length=1, max_length=1_000)]
    expected_revision: Sequence
    reason: Text


class CloseBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take one leaf out of the tree for good. Its waiting jobs go on in `jobs_to`, in their place; unset is refused.

    What runs keeps its slice and is charged to the closed budget until it ends.
    """

    budget: Name
    jobs_to: Name | None = None
    expected_revision: Sequence
    reason: Text


class UploadPiece(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of a whole tree that shall replace today's. `upload` names the pieces that belong together; the last one commits."""

    upload: Annotated[str, Meta(pattern=r"\A[0-9a-z]{26}\Z")]
    piece: Annotated[int, Meta(ge=0, le=10_000)]
    last: bool
    expected_revision: Sequence
    reason: Text
    budgets: Annotated[tuple[Budget, ...], Meta(max_length=1_000)]


class Committed(Struct, frozen=True, kw_only=True):
    """What a write left behind. `status` is `pieced` while pieces of an upload are missing."""

    status: Literal["committed", "unchanged", "pieced"]
    revision: Sequence


class BudgetDiff(Struct, frozen=True, kw_only=True):
    """One budget in two revisions; None where it is not there."""

    budget: Name
    before: Budget | None
    after: Budget | None


class Rejected(Struct, frozen=True, kw_only=True):
    """A refused write: every fault, not only the first. Nothing was changed."""

    revision: Sequence
    """The revision in force."""
    faults: tuple[Problem, ...]
    changed: tuple[BudgetDiff, ...] = ()
    """Of a stale write: what others have changed since the revision that its author expected, as much of it as fits."""
    more_changed: Annotated[int, Meta(ge=0, le=MAX_BUDGETS)] = 0
    """How many budgets more were changed since."""


class RevisionsQuery(Struct, frozen=True, kw_only=True):
    """Ask for the history: revisions before `before`, newest first; with `budget` only those that changed it."""

    before: Sequence | None = None
    budget: Name | None = None


class RevisionRow(Struct, frozen=True, kw_only=True):
    """One revision: who made it, when and why. `changed` of its `budgets` differ from the revision before, gone ones included."""

    revision: Sequence
    effective_from_ms: Instant
    author: Name
    reason: Text
    budgets: Annotated[int, Meta(ge=0, le=MAX_BUDGETS)]
    changed: Annotated[int, Meta(ge=0, le=2 * MAX_BUDGETS)]
    digest: Digest
    jobs_to: Name | None = None
    """Of a revision that closed a budget: where its jobs went."""


class RevisionsPage(Struct, frozen=True, kw_only=True):
    """Revisions, newest first. `next_before` unset: this was the first of all."""

    revisions: tuple[RevisionRow, ...]
    next_before: Sequence | None = None


class WriteReply(Struct, frozen=True, kw_only=True):
    """Exactly one of the two is set."""

    committed: Committed | None = None
    rejected: Rejected | None = None
