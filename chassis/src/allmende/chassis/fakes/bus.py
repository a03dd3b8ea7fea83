"""A bus in memory: streams, consumers, requests and permissions as the server has them, from the same tables.

It stands in for NATS in tests of what is above the bus; tests/ports holds it against the real one. It loses nothing, so what
happens when a server dies is tested over the real one only.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from allmende.chassis.errors import Misconfigured, Refused, Transient
from allmende.chassis.ports import Delivery, Endpoint
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.permissions import Permissions, UserRole, allows, covers, permissions
from allmende.proto.streams import MAX_ACK_PENDING, STREAMS, Consumer, Stream, all_consumers

Hear = Callable[[str, bytes], None]


class FakeDelivery(NamedTuple):
    """One copy of a stored message."""

    subject: str
    data: bytes
    stream: str
    stream_seq: int
    trace: str | None = None
    waited_ms: int = 0


class _Stream:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.stored: list[FakeDelivery] = []
        self.ids: set[str] = set()
        self.last_seq = 0

    def store(self, subject: str, message_id: str, data: bytes, trace: str | None) -> FakeDelivery | None:
        if message_id in self.ids:
            return None
        self.ids.add(message_id)
        self.last_seq += 1
        if self.stream.last_value_only:
            self.stored = [message for message in self.stored if message.subject != subject]
        message = FakeDelivery(subject, data, self.stream.name, self.last_seq, trace)
        self.stored.append(message)
        return message


class _Consumer:
    def __init__(self, consumer: Consumer) -> None:
        self.filters = consumer.filters
        self.waiting: deque[FakeDelivery] = deque()
        self.delivered: dict[int, FakeDelivery] = {}
        self.arrived = asyncio.Event()

    def offer(self, message: FakeDelivery, *, last_value_only: bool) -> None:
        if last_value_only:
            # What has been replaced is no longer in the stream, so it is not delivered any more.
            self.waiting = deque(waiting for waiting in self.waiting if waiting.subject != message.subject)
        if allows(self.filters, message.subject):
            self.waiting.append(message)
            self.arrived.set()

    def take(self, most: int) -> list[FakeDelivery]:
        room = min(most, len(self.waiting), MAX_ACK_PENDING - len(self.delivered))
        taken = [self.waiting.popleft() for _ in range(room)]
        self.delivered.update((message.stream_seq, message) for message in taken)
        return taken

    def rewind(self) -> None:
        self.waiting.extendleft(message for _, message in sorted(self.delivered.items(), reverse=True))
        self.delivered.clear()
        if self.waiting:
            self.arrived.set()


class FakeServer:
    """What several FakeBuses share. `running = False` cuts them off."""

    def __init__(self, clusters: Sequence[str] = ("c1", "c2")) -> None:
        self.running = True
        self._streams: dict[str, _Stream] = {stream.name: _Stream(stream) for stream in STREAMS}
        self._consumers: dict[tuple[str, str], _Consumer] = {
            (consumer.stream, consumer.durable): _Consumer(consumer) for consumer in all_consumers(tuple(clusters))
        }
        self._watchers: list[tuple[str, Hear]] = []
        self._endpoints: list[Endpoint] = []

    def stored(self, stream: str) -> Sequence[FakeDelivery]:
        """What a stream holds, oldest first."""
        return tuple(self._streams[stream].stored)

    def store(self, subject: str, message_id: str, data: bytes, trace: str | None) -> None:
        """Take a message as the server does: into its stream, to the consumers, and to those who watch."""
        for pattern, hear in tuple(self._watchers):
            if covers(pattern, subject):
                hear(subject, data)
        stream = next((held for held in self._streams.values() if allows(held.stream.subjects, subject)), None)
        if stream is None:
            raise Transient("no stream takes this subject")
        message = stream.store(subject, message_id, data, trace)
        if message is not None:
            for (name, _), consumer in self._consumers.items():
                if name == stream.stream.name:
                    consumer.offer(message, last_value_only=stream.stream.last_value_only)

    def consumer(self, stream: str, durable: str) -> _Consumer:
        """A consumer.

        Raises:
            Transient: there is none, or the server is down.
        """
        found = self._consumers.get((stream, durable))
        if not self.running or found is None:
            raise Transient(f"nobody serves consumer {durable!r} of stream {stream!r} now")
        return found

    @contextmanager
    def watching(self, pattern: str, hear: Hear) -> Iterator[None]:
        """Register one who watches."""
        entry = (pattern, hear)
        self._watchers.append(entry)
        try:
            yield
        finally:
            self._watchers.remove(entry)

    def endpoint(self, subject: str) -> Endpoint | None:
        """Who answers a subject."""
        return next((endpoint for endpoint in self._endpoints if covers(endpoint.subject, subject)), None)

    def serve(self, endpoints: Sequence[Endpoint]) -> Callable[[], None]:
        """Let endpoints answer; returns what ends it."""
        added = list(endpoints)
        self._endpoints += added

        def stop() -> None:
            for endpoint in added:
                self._endpoints.remove(endpoint)
            added.clear()

        return stop


class FakeSubscription:
    """A consumer as one process sees it. The first pull rewinds it, as the real one's does."""

    def __init__(self, server: FakeServer, allowed: Permissions | None, stream: str, durable: str) -> None:
        self._server = server
        self._allowed = allowed
        self.stream = stream
        self.durable = durable
        self._bound = False

    async def pull(self, most: int, wait_s: float) -> Sequence[FakeDelivery]:
        """See `ports.Subscription`."""
        tail = f"{self.stream}.{self.durable}"
        if self._allowed is not None and not allows(self._allowed.publish, f"$JS.API.CONSUMER.MSG.NEXT.{tail}"):
            raise Misconfigured(f"these credentials may not pull from consumer {self.durable!r} of stream {self.stream!r}")
        consumer = self._server.consumer(self.stream, self.durable)
        if not self._bound:
            consumer.rewind()
            self._bound = True
        # As over a socket, others get their turn between two pulls.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(wait_s):
                while not (taken := consumer.take(most)):
                    consumer.arrived.clear()
                    await consumer.arrived.wait()
        except TimeoutError:
            return ()
        return taken

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """See `ports.Subscription`."""
        if not self._server.running:
            return
        consumer = self._server.consumer(self.stream, self.durable)
        for delivery in deliveries:
            consumer.delivered.pop(delivery.stream_seq, None)
        if consumer.waiting:
            consumer.arrived.set()

    async def lag(self) -> int:
        """See `ports.Subscription`."""
        consumer = self._server.consumer(self.stream, self.durable)
        return len(consumer.waiting) + len(consumer.delivered)


class FakeBus:
    """One connection. Without a role it may do everything."""

    def __init__(self, server: FakeServer | None = None, role: UserRole | None = None, identity: str | None = None) -> None:
        self.server = server or FakeServer()
        self._allowed = None if role is None else permissions(role, identity or role)

    async def publish(self, subject: str, message_id: str, data: bytes, trace: str | None = None) -> None:
        """See `ports.Bus`."""
        await asyncio.sleep(0)
        if len(data) > MAX_MESSAGE_BYTES:
            raise Refused("message_too_large", f"the message has {len(data)} bytes; the largest allowed is {MAX_MESSAGE_BYTES}")
        if not self.server.running:
            raise Transient("no connection to NATS")
        if not self._may_publish(subject):
            raise Refused("not_permitted", f"these credentials may not publish on {subject!r}")
        self.server.store(subject, message_id, data, trace)

    async def publish_many(self, messages: Sequence[tuple[str, str, bytes, str | None]]) -> Sequence[Exception | None]:
        """See `ports.Bus`."""
        results: list[Exception | None] = []
        for message in messages:
            try:
                await self.publish(*message)
            except (Refused, Transient) as error:
                results.append(error)
            else:
                results.append(None)
        return results

    def subscribe(self, stream: str, durable: str) -> FakeSubscription:
        """See `ports.Bus`."""
        return FakeSubscription(self.server, self._allowed, stream, durable)

    async def watch(self, pattern: str, hear: Hear) -> Callable[[], Awaitable[None]]:
        """See `ports.Bus`."""
        if self._allowed is not None and not allows(self._allowed.subscribe, pattern):
            raise Refused("not_permitted", f"these credentials may not hear {pattern!r}")
        watching = self.server.watching(pattern, hear)
        watching.__enter__()

        async def stop() -> None:
            watching.__exit__(None, None, None)

        return stop

    async def last_values(self, stream: str, patterns: Sequence[str], timeout_s: float = 5.0) -> list[tuple[str, bytes]]:
        """See `ports.Bus`."""
        await asyncio.sleep(0)
        allowed = self._allowed is None or allows(self._allowed.publish, f"$JS.API.DIRECT.GET.{stream}")
        if not self.server.running or not allowed:
            raise Transient(f"no answer in {timeout_s} s")
        return [(each.subject, each.data) for each in self.server.stored(stream) if allows(tuple(patterns), each.subject)]

    async def ask(self, subject: str, data: bytes, timeout_s: float = 5.0) -> bytes:
        """See `ports.Bus`."""
        await asyncio.sleep(0)
        if len(data) > MAX_MESSAGE_BYTES:
            raise Refusal("message_too_large", f"the request has {len(data)} bytes; the largest allowed is {MAX_MESSAGE_BYTES}")
        if not self._may_publish(subject):
            raise Refusal("not_permitted", f"these credentials may not publish on {subject!r}")
        endpoint = self.server.endpoint(subject)
        if not self.server.running or endpoint is None:
            raise Transient(f"{subject}: nobody answers this; the service is not running")
        try:
            async with asyncio.timeout(timeout_s):
                reply = await endpoint.answer(subject.rpartition(".")[2], data)
        except TimeoutError as error:
            raise Transient(f"{subject}: no answer within {timeout_s:g} s; whether it was done is unknown") from error
        except (Refusal, Transient):
            raise
        except Exception as error:
            raise Refusal("internal_error", "the service failed at this request; its log says why") from error
        if len(reply) > MAX_MESSAGE_BYTES:
            raise Refusal("reply_too_large", f"the answer has {len(reply)} bytes; ask for a smaller page")
        return reply

    async def answer(self, service: str, version: str, endpoints: Sequence[Endpoint]) -> Callable[[], Awaitable[None]]:
        """See `ports.Bus`."""
        if self._allowed is not None:
            denied = [endpoint.subject for endpoint in endpoints if not allows(self._allowed.subscribe, endpoint.subject)]
            if denied:
                raise Misconfigured(f"{service} {version} may not answer {', '.join(denied)}: make its credentials anew")
        end = self.server.serve(endpoints)

        async def stop() -> None:
            end()

        return stop

    async def close(self) -> None:
        """See `ports.Bus`."""

    def _may_publish(self, subject: str) -> bool:
        return self._allowed is None or allows(self._allowed.publish, subject)
