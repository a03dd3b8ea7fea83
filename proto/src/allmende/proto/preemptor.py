"""What the preemptor says: answers to claims, orders to evict, slices that have passed."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from allmende.proto.admission import Placed
from allmende.proto.ids import Id, Name
from allmende.proto.message import Code, Message, Text
from allmende.proto.units import Amount, GpuCount, Instant, Sequence, Span


class HeldGpus(Struct, frozen=True, kw_only=True):
    """GPUs of one node that are still held."""

    node: Name
    gpus: GpuCount


class Victim(Struct, frozen=True, kw_only=True):
    """An attempt that a plan evicts, and the work it loses since its last saved checkpoint."""

    attempt: Id
    job: Id
    budget: Name | None
    gpus: GpuCount
    lost_gpu_ms: Amount


class ClaimAnswered(Message, frozen=True, kw_only=True):
    """The one answer to a claim. Planned: `placement` is where the claimant fits once the victims are gone."""

    TYPE: ClassVar[str] = "claim.answered"

    cluster: Name
    claim: Id
    job: Id
    outcome: Literal["planned", "infeasible"]
    code: Code
    sentence: Text
    plan: Id | None = None
    victims: Annotated[tuple[Victim, ...], Meta(max_length=300)] = ()
    placement: Annotated[tuple[Placed, ...], Meta(max_length=1_024)] = ()
    tree_revision: Sequence
    usage_revision: Sequence


class Compared(Struct, frozen=True, kw_only=True):
    """The two ratios that made the eviction lawful: claimant after its grant, victim before the eviction, and the margin."""

    claimant_budget: Name
    victim_budget: Name | None
    claimant_used_gpu_ms: Amount
    claimant_entitlement_gpu_ms: Amount
    victim_used_gpu_ms: Amount | None
    victim_entitlement_gpu_ms: Amount | None
    margin_ppm: int


class EvictionOrdered(Message, frozen=True, kw_only=True):
    """The agent shall end the attempt: SIGTERM, `grace_ms` of clock time, SIGKILL; then say so, without deciding again.

    `claim` and `claimant_job` are unset where a node is drained: nobody in particular gets the GPUs.
    """

    TYPE: ClassVar[str] = "eviction.ordered"

    cluster: Name
    attempt: Id
    job: Id
    plan: Id
    claim: Id | None = None
    claimant_job: Id | None = None
    ordered_at_ms: Instant
    protected_until_ms: Instant | None
    """The end of the victim's slice, which lies before `ordered_at_ms`; None: unallocated, never protected."""
    grace_ms: Span
    rule: Code
    sentence: Text
    compared: Compared | None = None
    tree_revision: Sequence
    usage_revision: Sequence


class EvictionOverdue(Message, frozen=True, kw_only=True):
    """An attempt was told to leave, its grace and more have passed, and no agent has said that it is gone. Said once an attempt.

    Its GPUs stay held: they are free on the agent's word alone.
    """

    TYPE: ClassVar[str] = "eviction.overdue"

    cluster: Name
    attempt: Id
    job: Id
    plan: Id
    due_at_ms: Instant
    silent: bool
    """One of its nodes gives no sign of life."""
    nodes: Annotated[tuple[HeldGpus, ...], Meta(max_length=1_024)]
    sentence: Text


class SliceExpired(Message, frozen=True, kw_only=True):
    """The attempt's slice has passed: from now on it is interruptible. An event with a timer, said exactly once an attempt."""

    TYPE: ClassVar[str] = "slice.expired"

    cluster: Name
    attempt: Id
    job: Id
    budget: Name | None
    expired_at_ms: Instant


class NodeCordoned(Message, frozen=True, kw_only=True):
    """From `from_ms` on (which may lie ahead) the node takes nothing new; with `drain` it gives up what may be interrupted.

    The terms as they stand: a later word with a higher `revision` of the node replaces them, a lower one is late.
    """

    TYPE: ClassVar[str] = "node.cordoned"

    cluster: Name
    node: Name
    revision: Sequence
    by: Name
    """The operator, or the cluster's name where its agent wants it."""
    reason: Text
    drain: bool
    from_ms: Instant
    until_ms: Instant | None = None
    """When it ends by itself; unset: when somebody ends it."""
    deadline_ms: Instant | None = None
    """When it should be empty. No slice is cut for it."""


class NodeDrained(Message, frozen=True, kw_only=True):
    """No attempt holds a GPU on the node any more, and none will until it returns: it may be repaired."""

    TYPE: ClassVar[str] = "node.drained"

    cluster: Name
    node: Name
    revision: Sequence
    by: Name
    reason: Text
    cordoned_at_ms: Instant
    drained_at_ms: Instant


class NodeReturned(Message, frozen=True, kw_only=True):
    """The node is cordoned no more and takes work again. `by`, `reason`: of whoever ended the cordon; of the cordon itself
    where it ended by its date or its agent's word."""

    TYPE: ClassVar[str] = "node.returned"

    cluster: Name
    node: Name
    revision: Sequence
    by: Name
    reason: Text
    returned_at_ms: Instant


NodeNames = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=256)]


class CordonNodes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cordon nodes of one cluster, or change the terms of those that are: all of them or none."""

    cluster: Name
    nodes: NodeNames
    reason: Text
    drain: bool = False
    from_ms: Instant | None = None
    """Unset: at once."""
    until_ms: Instant | None = None
    deadline_ms: Instant | None = None


class UncordonNodes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End the operators' cordon of nodes. What an agent wants stays until its reports say otherwise."""

    cluster: Name
    nodes: NodeNames
    reason: Text


class DrainQuery(Struct, frozen=True, kw_only=True):
    """Ask for the cordoned nodes of one cluster by name, after `after`."""

    cluster: Name
    after: Name | None = None


class Occupant(Struct, frozen=True, kw_only=True):
    """An attempt that still holds GPUs of a cordoned node. `leaves_by_ms` unset: nobody knows, because its start is not
    confirmed or it is overdue."""

    attempt: Id
    job: Id
    budget: Name | None
    gpus: GpuCount
    state: Literal["protected", "interruptible", "leaving", "overdue", "starting"]
    leaves_by_ms: Instant | None
    """At the latest: the end of the slice and the grace after it."""
    late: bool
    """It may leave after the deadline."""


class NodeDrain(Struct, frozen=True, kw_only=True):
    """One cordoned node. `empty_by_ms` unset: unknown, or it is not drained and nobody has to leave."""

    node: Name
    state: Literal["announced", "cordoned", "draining", "drained"]
    by: Name
    reason: Text
    drain: bool
    from_ms: Instant
    until_ms: Instant | None
    deadline_ms: Instant | None
    agent_reason: Text | None
    """Why its agent wants it drained; unset: it does not."""
    empty_by_ms: Instant | None
    occupants: tuple[Occupant, ...]
    more_occupants: int = 0


class DrainPage(Struct, frozen=True, kw_only=True):
    """Cordoned nodes; `next_after` unset: this was the last piece. As a reply to a write: the first of the nodes it named."""

    cluster: Name
    as_of_ms: Instant
    nodes: tuple[NodeDrain, ...]
    next_after: Name | None = None
