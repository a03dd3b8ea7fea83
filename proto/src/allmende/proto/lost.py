"""A node that an operator has declared lost: what is asked, and what admission says of it. Silence alone never means death."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.message import Message, Text
from allmende.proto.units import GpuCount, Instant, Sequence


class LostAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that ended with the node, at `ended_at_ms`: the node's last sign of life. A gang ends whole."""

    attempt: Id
    job: Id
    ended_at_ms: Instant


class NodeDeclaredLost(Message, frozen=True, kw_only=True):
    """The attempts are over for the books, and their jobs wait again or have ended. Whatever still runs of them shall be killed, on
    every node. The node is no capacity until its agent reports it again.

    `reported_*` are of the last `node.reported` that was heard: a later report brings the node back.
    """

    TYPE: ClassVar[str] = "node.declared_lost"

    cluster: Name
    node: Name
    by: Name
    reason: Text
    declared_at_ms: Instant
    last_seen_ms: Instant
    reported_at_ms: Instant
    reported_seq: Sequence
    installed_gpus: GpuCount
    gpu_model: Name | None = None
    attempts: Annotated[tuple[LostAttempt, ...], Meta(max_length=1_024)] = ()


class DeclareLost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declare a silent node dead; with `force` also one that gives signs of life."""

    cluster: Name
    node: Name
    reason: Annotated[str, Meta(min_length=1, max_length=400)]
    force: bool = False


class DeclaredLost(Struct, frozen=True, kw_only=True):
    """`already_lost`: somebody had said so before, and the node has not been reported since; then nothing was changed."""

    cluster: Name
    node: Name
    status: Literal["declared", "already_lost"]
    last_seen_ms: Instant
    attempts: tuple[LostAttempt, ...] = ()
