"""What the preemptor says: answers to claims, orders to evict, slices that have passed."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from allmende.proto.admission import Placed
from allmende.proto.ids import Id, Name
from allmende.proto.message import Code, Message, Text
from allmende.proto.units import Amount, GpuCount, Instant, Sequence, Span


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
    """The agent shall end the attempt: SIGTERM, `grace_ms` of clock time, SIGKILL; then say so, without deciding again."""

    TYPE: ClassVar[str] = "eviction.ordered"

    cluster: Name
    attempt: Id
    job: Id
    plan: Id
    claim: Id
    claimant_job: Id
    ordered_at_ms: Instant
    protected_until_ms: Instant | None
    """The end of the victim's slice, which lies before `ordered_at_ms`; None: unallocated, never protected."""
    grace_ms: Span
    rule: Code
    sentence: Text
    compared: Compared | None = None
    tree_revision: Sequence
    usage_revision: Sequence


class SliceExpired(Message, frozen=True, kw_only=True):
    """The attempt's slice has passed: from now on it is interruptible. An event with a timer, said exactly once an attempt."""

    TYPE: ClassVar[str] = "slice.expired"

    cluster: Name
    attempt: Id
    job: Id
    budget: Name | None
    expired_at_ms: Instant
