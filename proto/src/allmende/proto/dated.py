"""Shares that hold from an instant on, or between two: what was planned for one parent, and what became of it.

An instant is UTC, an interval half-open. A revision of the tree says what is in force; nobody has to work it out from these.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from allmende.proto.budget import ChildShare, Rejected
from allmende.proto.ids import Id, Name
from allmende.proto.message import Text
from allmende.proto.units import Instant, Sequence

PAGE_MOST = 100
# Open ones of all parents together: each is judged again by every write to the tree.
MAX_OPEN = 200

DatedState = Literal["planned", "running", "done", "withdrawn"]
"""`running` are only those with an end; one without is done when it has begun: from then on its shares are the lasting ones."""


class PlannedShares(Struct, frozen=True, kw_only=True):
    """The shares of all children of one parent, as somebody has planned them."""

    change: Id
    parent: Name
    children: tuple[ChildShare, ...]
    cluster: Name | None
    """Unset: the general shares."""
    from_ms: Instant
    until_ms: Instant | None
    """Unset: for good. Otherwise the shares of before come back then."""
    author: Name
    reason: Text
    planned_at_ms: Instant
    tree_revision: Sequence


class DatedStep(Struct, frozen=True, kw_only=True):
    """What became of a plan, and when. `tree_revision` is the one in force from then on."""

    step: Literal["begun", "extended", "ended", "withdrawn"]
    at_ms: Instant
    by: Name
    reason: Text
    tree_revision: Sequence
    until_ms: Instant | None = None
    """Of an extension: the new end."""


class DatedShares(Struct, frozen=True, kw_only=True):
    """A dated change as it stands. `number`: its place in the order of all."""

    number: Sequence
    planned: PlannedShares
    state: DatedState
    until_ms: Instant | None
    """The end with all extensions."""
    renewal: Id | None = None
    """A proposal to extend it that waits for an answer: until then it stays in force, also beyond its end."""
    steps: tuple[DatedStep, ...] = ()


class PlanShares(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the shares of ALL children of one parent from an instant on, until another one, or both.

    The asker makes the id, so that the same request may be sent again.
    """

    change: Id
    parent: Name
    children: Annotated[tuple[ChildShare, ...], Meta(max_length=1_000)]
    effective_from_ms: Instant | None = None
    """Unset: at once."""
    effective_until_ms: Instant | None = None
    expected_revision: Sequence
    reason: Text
    cluster: Name | None = None


class WithdrawDated(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take back what is planned, or end what runs: then the shares of before come back at once."""

    change: Id
    reason: Text


class DatedReply(Struct, frozen=True, kw_only=True):
    """Exactly one of the two is set. `dated`: how it stands now, also where the request had been done before."""

    dated: DatedShares | None = None
    rejected: Rejected | None = None


class DatedQuery(Struct, frozen=True, kw_only=True):
    """Ask for dated changes, newest first, those before `before`. What is unset does not restrict."""

    change: Annotated[str, Meta(min_length=4, max_length=26, pattern=r"\A[0-9a-z]+\Z")] | None = None
    """The id, or the last letters of it."""
    parent: Name | None = None
    open_only: bool = False
    """Only what is planned or running."""
    before: Sequence | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MOST)] = 30


class DatedPage(Struct, frozen=True, kw_only=True):
    """As many as fit a reply, newest first. `next_before` unset: there are no older ones."""

    changes: tuple[DatedShares, ...]
    next_before: Sequence | None = None
