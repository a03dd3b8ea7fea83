"""What the budget service tells people: that a budget has come to a level of its entitlement, or will. And how that was delivered.

A notice is said once, as an event, and kept; `number` orders them. Never an order: nothing is decided by a notice.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.message import Code, Message, Text
from allmende.proto.units import Amount, Instant, Sequence

# Names take up to 66 bytes in JSON: so many of them, with everything else, stay well below 64 KiB.
PEOPLE_MOST = 200
PAGE_MOST = 100

Percent = Annotated[int, Meta(ge=1, le=1_000)]
Concerned = Annotated[tuple[Name, ...], Meta(max_length=PEOPLE_MOST)]


class BudgetNotice(Message, frozen=True, kw_only=True):
    """One thing that people should know of a budget.

    `kind` is `entitlement_level` (it has come to `level_percent` of its entitlement) or `entitlement_pace` (it is above 80 % and
    comes to 100 % at this rate). More kinds may come: a reader passes over what it does not know, or shows the sentence.
    Ratios are never sent as numbers: compare `charged + held` with `entitlement` by cross-multiplication.
    """

    TYPE: ClassVar[str] = "budget.notice"

    notice: Id
    kind: Code
    budget: Name
    cluster: Name
    as_of_ms: Instant
    """The instant of the standing that it was seen in."""
    usage_revision: Sequence
    tree_revision: Sequence
    level_percent: Percent
    """The highest level that the budget has come to."""
    passed_percent: Annotated[tuple[Percent, ...], Meta(max_length=16)]
    """All levels that it came to with this standing, lowest first, `level_percent` last; none for a pace."""
    charged_gpu_ms: Amount
    held_gpu_ms: Amount
    entitlement_gpu_ms: Amount
    whole_at_ms: Instant | None
    """When it comes to 100 % at this rate. None: it has, or it does not within a week, or too little is known."""
    managers: Concerned
    """Who may do something about it: the managers of the budget, or of the nearest one above that has any."""
    members: Concerned
    """Who charges it."""
    people_left_out: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """How many more managers and members there are than fit a message; the tree names all."""
    sentence: Text
    """The same for people, in English, with instants in UTC."""


class KeptNotice(Struct, frozen=True, kw_only=True):
    """A notice with its place in the order."""

    number: Sequence
    notice: BudgetNotice


class NoticesQuery(Struct, frozen=True, kw_only=True):
    """Ask for notices, newest first, those before `before`."""

    budget: Name | None = None
    cluster: Name | None = None
    before: Sequence | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MOST)] = 30


class NoticesPage(Struct, frozen=True, kw_only=True):
    """As many as fit a reply, newest first. `next_before` unset: there are no older ones."""

    notices: tuple[KeptNotice, ...]
    next_before: Sequence | None = None


DeliveryState = Literal["waiting", "delivered", "given_up"]


class Delivery(Struct, frozen=True, kw_only=True):
    """How a notice fares on its way to the webhook. Instants are real time, not the lab's."""

    number: Sequence
    """The notice's."""
    notice: Id
    budget: Name
    state: DeliveryState
    tries: Annotated[int, Meta(ge=0)]
    problem: Text
    """Why the last try failed; empty before the first failure."""
    next_try_at_ms: Instant | None
    """Set while it waits."""
    settled_at_ms: Instant | None
    """Set once it is delivered or given up."""


class DeliveriesQuery(Struct, frozen=True, kw_only=True):
    """Ask for deliveries, newest first, those before `before`; `state` unset: all."""

    state: DeliveryState | None = None
    before: Sequence | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_MOST)] = 30


class DeliveriesPage(Struct, frozen=True, kw_only=True):
    """`sender` says whether there is a webhook at all."""

    sender: Literal["off", "on"]
    deliveries: tuple[Delivery, ...]
    next_before: Sequence | None = None


class RetryDeliveries(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Try again what was given up: one by its number, or all (None)."""

    number: Sequence | None = None


class Retried(Struct, frozen=True, kw_only=True):
    """How many wait again."""

    deliveries: int
