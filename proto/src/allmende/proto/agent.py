"""What cluster agents say: nodes, starts, ticks, ends. The agent is the only authority on what runs on its cluster."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.message import Message, Text
from allmende.proto.units import Amount, GpuCount, Instant, Sequence, Span

Replica = Annotated[int, Meta(ge=0, le=4_095)]
Outcome = Literal["finished", "failed", "evicted", "stopped", "never_started", "node_lost"]


class Counter(Struct, frozen=True, kw_only=True):
    """The cumulative usage of one replica in one epoch. Monotone: a lost, repeated or reordered tick is harmless.

    The replica held its GPUs during `[since_ms, since_ms + held_ms)`. A restarted agent opens a new epoch whose `since_ms` is
    where its own observation begins. `busy_gpu_ms` informs and never bills.
    """

    attempt: Id
    replica: Replica
    epoch: Sequence
    seq: Sequence
    since_ms: Instant
    held_ms: Span
    used_gpu_ms: Amount
    busy_gpu_ms: Amount | None = None
    memory_active_gpu_ms: Amount | None = None
    checkpoint_at_ms: Instant | None = None
    """When the replica last saved progress; unset: never, or not known."""


class UsageTick(Message, frozen=True, kw_only=True):
    """All replicas on one node. Also the node's sign of life, with no counters when nothing runs there."""

    TYPE: ClassVar[str] = "usage.tick"

    cluster: Name
    node: Name
    at_ms: Instant
    counters: Annotated[tuple[Counter, ...], Meta(max_length=256)]


class NodeReported(Message, frozen=True, kw_only=True):
    """The GPUs of a node from `at_ms` on. Sent at the agent's start and whenever something changes.

    `installed_gpus` counts what the node has, `healthy_gpus` what may be used; a node that is down has 0 healthy ones. `cordon`:
    why the agent wants the node drained, for as long as its reports say so; unset: it does not.
    """

    TYPE: ClassVar[str] = "node.reported"

    cluster: Name
    node: Name
    at_ms: Instant
    seq: Sequence
    installed_gpus: GpuCount
    healthy_gpus: GpuCount
    gpu_model: Name | None = None
    reason: Text = ""
    cordon: Text | None = None


class AttemptStarted(Message, frozen=True, kw_only=True):
    """All replicas of a granted attempt run since `started_at_ms`."""

    TYPE: ClassVar[str] = "attempt.started"

    cluster: Name
    attempt: Id
    job: Id
    started_at_ms: Instant


class AttemptEnded(Message, frozen=True, kw_only=True):
    """No replica of the attempt runs any more. Carries the final counter of every replica and epoch that it can hold.

    `plan` names the eviction plan that ended it. `never_started` also answers a grant that the agent could not carry out.
    """

    TYPE: ClassVar[str] = "attempt.ended"

    cluster: Name
    attempt: Id
    job: Id
    ended_at_ms: Instant
    outcome: Outcome
    exit_code: int | None = None
    plan: Id | None = None
    checkpoint_at_ms: Instant | None = None
    counters: Annotated[tuple[Counter, ...], Meta(max_length=256)] = ()
    """At most 256; the finals of a larger gang come with its nodes' last ticks."""
    detail: Text = ""


class FreedGpus(Struct, frozen=True, kw_only=True):
    """GPUs of one node that an attempt no longer holds."""

    node: Name
    gpus: GpuCount


class GpuFreed(Message, frozen=True, kw_only=True):
    """The GPUs are free, on the agent's word. `plan` names the eviction that freed them."""

    TYPE: ClassVar[str] = "gpu.freed"

    cluster: Name
    attempt: Id
    freed_at_ms: Instant
    plan: Id | None = None
    nodes: tuple[FreedGpus, ...]
