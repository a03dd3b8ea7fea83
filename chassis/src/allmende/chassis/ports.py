"""What a service needs from the outside world, as protocols. `fakes` answers the same test suite as the real things.

No domain word inside. Nothing here imports nats or asyncpg.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from allmende.proto.envelope import Envelope
from allmende.proto.message import Message
from allmende.proto.units import Ms


class Clock(Protocol):
    """The lab's clock. In a scaled run one real second is `rate` seconds; all processes of the run share origin and rate."""

    @property
    def rate(self) -> int:
        """Clock milliseconds per real millisecond, at least 1."""

    def now_ms(self) -> Ms:
        """The instant, in clock milliseconds since the epoch, UTC."""

    async def sleep_until(self, instant_ms: Ms) -> None:
        """Return once `now_ms() >= instant_ms`; at once when that has passed."""


class Ids(Protocol):
    """The source of new ids: the one place that reads randomness."""

    def new(self, now_ms: Ms) -> str:
        """A new id (see `allmende.proto.ids`) for an instant."""


class Draft(NamedTuple):
    """A message that waits to be said: everything of its envelope but `sent_at_ms`, which is stamped at transmission."""

    subject: str
    id: str
    type: str
    version: int
    occurred_at_ms: Ms
    cause: str | None
    trace: str | None
    body: bytes
    """The body alone, as JSON."""


class Event(NamedTuple):
    """A message that has passed every gate, as a handler sees it."""

    envelope: Envelope[Message]
    subject: str
    stream: str
    stream_seq: int
    received_at_ms: Ms
    waited_ms: Ms = 0
    """How long the bus had stored it by then, in clock milliseconds."""

    @property
    def stored_at_ms(self) -> Ms:
        """When the bus took it, on our clock."""
        return self.received_at_ms - self.waited_ms

    @property
    def body(self) -> Message:
        """The body."""
        return self.envelope.body


class Delivery(Protocol):
    """One copy of a stored message, not yet acknowledged."""

    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def stream(self) -> str: ...
    @property
    def stream_seq(self) -> int: ...
    @property
    def waited_ms(self) -> int:
        """How long the bus had stored it when it came here, in real milliseconds."""


class Subscription(Protocol):
    """A durable pull consumer."""

    async def pull(self, most: int, wait_s: float) -> Sequence[Delivery]:
        """Between 0 and `most` deliveries; returns as soon as there is at least one, or after `wait_s` with none.

        Raises:
            Transient: the server cannot be reached, or the consumer is gone; call again.
        """

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge. A failure is not an error: the message comes again and the inbox knows it."""

    async def lag(self) -> int:
        """How many messages wait behind what was acknowledged."""


Answer = Callable[[str, bytes], Awaitable[bytes]]
"""A request handler: the caller's name (the last token, enforced by the server) and the body; returns the reply's body.

Raises Refusal for a `Problem`, which travels back with its code in the micro error header."""


class Endpoint(NamedTuple):
    """One verb that a service answers: `subject` is the pattern with the caller's name as last token."""

    verb: str
    subject: str
    answer: Answer


class Bus(Protocol):
    """Publish, pull, ask and answer."""

    async def publish(self, subject: str, message_id: str, data: bytes, trace: str | None = None) -> None:
        """Store one message; returns when the server has it on disk.

        Raises:
            Transient: unknown whether it was stored; say it again with the same id.
            Refused: the server or this client will not take it (`message_too_large`, `not_permitted`).
        """

    async def publish_many(self, messages: Sequence[tuple[str, str, bytes, str | None]]) -> Sequence[Exception | None]:
        """Store many, in order, many in flight: (subject, id, data, trace). One result a message, None: stored."""

    def subscribe(self, stream: str, durable: str) -> Subscription:
        """Bind to a consumer that the topology command made. Does not touch the server yet."""

    async def watch(self, pattern: str, hear: Callable[[str, bytes], None]) -> Callable[[], Awaitable[None]]:
        """Hear live messages of a pattern without storage (core NATS); returns what stops it. Missed ones do not come again."""

    async def last_values(self, stream: str, patterns: Sequence[str], timeout_s: float = 5.0) -> list[tuple[str, bytes]]:
        """The last message of every subject that matches, of a stream that keeps last values: (subject, data), at most 1,024.

        No consumer is made. Whoever wants what comes after watches first and asks then.

        Raises:
            Refused: `too_many_subjects`.
            Transient: no answer in time, which is also what a question without permission gets; or the connection is lost.
        """

    async def ask(self, subject: str, data: bytes, timeout_s: float = 5.0) -> bytes:
        """Ask a service.

        Raises:
            Refusal: the service answered with a problem.
            Transient: nobody answered in time, or the connection is lost.
        """

    async def answer(self, service: str, version: str, endpoints: Sequence[Endpoint]) -> Callable[[], Awaitable[None]]:
        """Answer requests as a discoverable NATS micro service; returns what stops it."""

    async def close(self) -> None:
        """Flush and leave."""
