"""Asking for a share: what was proposed for one budget, what became of it, and the requests of both sides.

A proposal is said when it is made and when it ends. It never changes a share: accepting it does, as a revision of the tree.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from allmende.proto.budget import ChildShare, People, Rejected
from allmende.proto.ids import Id, Name
from allmende.proto.message import Message, Text
from allmende.proto.units import Instant, Sequence, SharePpm

PAGE_MOST = 100

Ending = Literal["accepted", "declined", "withdrawn", "closed"]
"""`closed`: the tree changed under it, so that nobody can decide it any more; `reason` says how."""
State = Literal["open", "accepted", "declined", "withdrawn", "closed"]


class ShareProposed(Message, frozen=True, kw_only=True):
    """Somebody asks that a budget should have a share of its parent."""

    TYPE: ClassVar[str] = "budget.proposed"

    proposal: Id
    budget: Name
    parent: Name
    author: Name
    share_ppm: SharePpm
    """What is asked."""
    share_before_ppm: SharePpm | None
    """What the budget had when it was asked; None is unset, which is not zero."""
    text: Text
    proposed_at_ms: Instant
    tree_revision: Sequence
    managers: People
    """Who may decide: the managers of the parent, or of the nearest budget above it that has any. Operators may as well."""
    effective_from_ms: Instant | None = None
    """From when on it is asked; unset: at once."""
    effective_until_ms: Instant | None = None
    """Until when; unset: for good."""
    renews: Id | None = None
    """The dated change that shall stay until `effective_until_ms`. While nobody has answered it does, also beyond its end."""


class ProposalDecided(Message, frozen=True, kw_only=True):
    """A proposal has ended."""

    TYPE: ClassVar[str] = "budget.proposal_decided"

    proposal: Id
    budget: Name
    parent: Name
    author: Name
    share_ppm: SharePpm
    ending: Ending
    by: Name
    """Who decided; of a withdrawn one the author, of a closed one whoever changed the tree."""
    reason: Text
    decided_at_ms: Instant
    tree_revision: Sequence
    """The revision in force from then on; of an accepted one the first that has the share."""
    managers: People
    """As in `ShareProposed`."""


class Propose(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for a share. The asker makes the id, so that the same request may be sent again."""

    proposal: Id
    budget: Name
    share_ppm: SharePpm
    text: Text
    effective_from_ms: Instant | None = None
    effective_until_ms: Instant | None = None
    renews: Id | None = None
    """A dated change that is not over, and has an end: asks that it should stay until `effective_until_ms`."""


class AcceptProposal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give what was asked: sets ALL children of the parent, those that are not named here as they stand (of dated ones: then)."""

    proposal: Id
    siblings: Annotated[tuple[ChildShare, ...], Meta(max_length=1_000)] = ()
    expected_revision: Sequence
    reason: Text = ""


class DeclineProposal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say no, and why."""

    proposal: Id
    reason: Text


class WithdrawProposal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take one's own proposal back."""

    proposal: Id
    reason: Text = ""


class Proposal(Struct, frozen=True, kw_only=True):
    """A proposal with its place in the order of all. `decided` unset: it is open."""

    number: Sequence
    proposed: ShareProposed
    decided: ProposalDecided | None = None


class ProposalReply(Struct, frozen=True, kw_only=True):
    """Exactly one of the two is set. `proposal`: how it stands now, also where the request had been done before."""

    proposal: Proposal | None = None
    rejected: Rejected | None = None


class ProposalsQuery(Struct, frozen=True, kw_only=True):
    """Ask for proposals, newest first, those before `before`. What is unset does not restrict."""

    proposal: Annotated[str, Meta(min_length=4, max_length=26, pattern=r"\A[0-9a-z]+\Z")] | None = None
    """The id, or the last letters of it."""
    budget: Name | None = None
    author: Name | None = None
    state: State | None = None
    to_decide: bool = False
    """Only open ones that the caller may decide."""
    before: Sequence | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MOST)] = 30


class ProposalsPage(Struct, frozen=True, kw_only=True):
    """As many as fit a reply, newest first. `next_before` unset: there are no older ones."""

    proposals: tuple[Proposal, ...]
    next_before: Sequence | None = None
