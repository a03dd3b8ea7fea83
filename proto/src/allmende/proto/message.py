"""What every message has in common, and the refusals every service can give.

Never knows a particular message: those live with their owner (`user`, `agent`, `budget`, `ledger`, `admission`, `preemptor`).
"""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

Text = Annotated[str, Meta(max_length=1_000)]
Code = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{2,62}\Z", max_length=63)]


class Message(Struct, frozen=True, kw_only=True):
    """A body that travels in an envelope. Readers tolerate added fields; a field once published never changes its meaning."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1


class Problem(Struct, frozen=True, kw_only=True):
    """Why something was refused: a stable code for programs, one sentence for people."""

    code: Code
    sentence: Text


class MessageRefused(Message, frozen=True, kw_only=True):
    """A service put a message into quarantine. `publisher` is the identity token of the refused message's subject."""

    TYPE: ClassVar[str] = "message.refused"

    service: Annotated[str, Meta(max_length=63)]
    publisher: Annotated[str, Meta(max_length=63)]
    subject: Annotated[str, Meta(max_length=512)]
    stream: Annotated[str, Meta(max_length=63)]
    stream_seq: int
    message: Annotated[str, Meta(max_length=64)] | None
    """The refused envelope's id, where it could be read."""
    problem: Problem
