"""Pulling from one durable consumer: our own small loop.

One request for messages is open at a time and serves several calls. What arrives goes into a buffer; a call returns what is there.
The request is renewed as soon as it is used up, while the caller still works on what was in the buffer. The server's idle
heartbeats show that it knows the request: without them (server restarted, consumer deleted and made again) it is sent anew.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from allmende.chassis.bus.calls import NO_RESPONDERS, Calls, status_of
from allmende.chassis.bus.publishing import TRACE
from allmende.chassis.clock import real_ms_since, real_seconds
from allmende.chassis.errors import Misconfigured, Transient
from allmende.chassis.ports import Delivery

# Bus-and-store rule 8: short enough that a request the server forgot costs little.
EXPIRES_S = 5.0
HEARTBEAT_S = 1.0
# Two heartbeats and a half: one may be late on a loaded machine.
SILENCE_S = 2.5
# Several times what a caller takes at once, so that the next batch is on its way while one is committed.
REQUEST_FACTOR = 2
# Acknowledging is not worth a longer wait: what is not acknowledged comes again.
ACK_TIMEOUT_S = 2.0
# Wait before telling the caller that nobody answers, so that a caller without back-off does not spin.
NOBODY_WAIT_S = 0.1

_ACK = b"+ACK"
# The server says so when it gives up a request: time-out, consumer or leadership gone, shutting down, batch done.
_TIMED_OUT = "408"
_ENDS_REQUEST = ("400", "404", _TIMED_OUT, "409", NO_RESPONDERS)


class NatsDelivery(NamedTuple):
    """One copy of a stored message, not yet acknowledged."""

    subject: str
    data: bytes
    stream: str
    stream_seq: int
    reply: str
    trace: str | None
    waited_ms: int


class _ConsumerInfo(Struct):
    num_pending: int = 0
    num_ack_pending: int = 0
    error: dict[str, object] | None = None


_info = msgspec.json.Decoder(_ConsumerInfo)


def read_delivery(message: Msg) -> NatsDelivery | None:
    """Read a message with its acknowledgement subject, of either form; None for one that no consumer sent.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`, and in ADR-15's second version two
    tokens more, `<domain>.<account hash>`, before the stream.
    """
    tokens = message.reply.split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9:
        return None
    first = 2 if len(tokens) == 9 else 4
    if not (tokens[first + 3].isdigit() and tokens[first + 5].isdigit()):
        return None
    trace = message.headers.get(TRACE) if message.headers else None
    waited_ms = real_ms_since(int(tokens[first + 5]))
    return NatsDelivery(message.subject, message.data, tokens[first], int(tokens[first + 3]), message.reply, trace, waited_ms)


class PullSubscription:
    """A durable pull consumer, bound at the first pull. For one caller at a time."""

    def __init__(self, client: Client, calls: Calls, connected: Callable[[], bool], stream: str, durable: str) -> None:
        self._client = client
        self._calls = calls
        self._connected = connected
        self.stream = stream
        self.durable = durable
        self._buffer: deque[NatsDelivery] = deque()
        self._arrived = asyncio.Event()
        self._inbox: str | None = None
        self._rewound = False
        """False: what was delivered may have been so to a connection or a process that is gone."""
        self._open = 0
        """How many messages the open request may still bring; 0: no request is open."""
        self._number = 0
        self._heard_at = 0.0
        self._ends_at = 0.0
        self._failure: Exception | None = None

    @property
    def next_subject(self) -> str:
        """Where requests for messages go."""
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.durable}"

    async def pull(self, most: int, wait_s: float) -> Sequence[NatsDelivery]:
        """Between 0 and `most` deliveries; at once when one is there, or after `wait_s` real seconds with none.

        Raises:
            Transient: the server cannot be reached, or nobody knows the consumer; call again.
            Misconfigured: these credentials may not pull from the consumer.
        """
        until = real_seconds() + wait_s
        if self._inbox is None:
            await self._bind()
        while True:
            await self._keep_open(most)
            if self._buffer:
                return [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]
            left_s = until - real_seconds()
            if left_s <= 0:
                return ()
            await self._wait(min(left_s, HEARTBEAT_S))
            if self._failure is not None and not self._buffer:
                failure, self._failure = self._failure, None
                raise failure

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge what this subscription delivered, and wait until the server has taken it.

        Only the last one asks for an answer: a consumer takes acknowledgements of one connection in their order.
        """
        ours = [delivery for delivery in deliveries if isinstance(delivery, NatsDelivery)]
        if not ours or not self._connected():
            return
        *rest, last = ours
        try:
            for delivery in rest:
                await self._client.publish(delivery.reply, _ACK)
            answer = await self._calls.send(last.reply, _ACK)
            await asyncio.wait([answer], timeout=ACK_TIMEOUT_S)
            if not answer.done():
                answer.cancel()
        except Exception:  # noqa: BLE001 what is not acknowledged comes again, and the inbox knows it
            return

    async def lag(self) -> int:
        """How many messages wait, those that were delivered and not yet acknowledged included.

        Raises:
            Transient: nobody answered.
            Refused: these credentials may not ask.
        """
        answer = await self._calls.send(f"$JS.API.CONSUMER.INFO.{self.stream}.{self.durable}", b"")
        await asyncio.wait([answer], timeout=ACK_TIMEOUT_S)
        if not answer.done():
            answer.cancel()
            raise Transient(f"nobody tells the lag of {self.durable} on {self.stream}")
        reply = answer.result()
        if status_of(reply) == NO_RESPONDERS:
            raise Transient("JetStream does not answer")
        info = _info.decode(reply.data)
        if info.error is not None:
            raise Transient(f"consumer {self.durable} on {self.stream}: {info.error.get('description')}")
        return info.num_pending + info.num_ack_pending

    def refused(self) -> None:
        """The server did not permit the request for messages."""
        self._fail(Misconfigured(f"these credentials may not pull from consumer {self.durable!r} of stream {self.stream!r}"))

    def lost(self) -> None:
        """The connection is gone, and the request with it. What is buffered stays: its handling is as good as ever.

        What was on its way is not: it comes again after a rewind, once the connection is back.
        """
        self._open = 0
        self._rewound = False
        self._arrived.set()

    async def _bind(self) -> None:
        inbox = self._client.new_inbox()
        await self._client.subscribe(f"{inbox}.*", cb=self._heard)
        self._inbox = inbox

    async def _rewind(self) -> None:
        """What was taken and never acknowledged comes again now, in order, and not only after the consumer's ack wait.

        At the start (a former process may have been killed) and after each loss of the connection. ADR-60, nats-server 2.14:
        without a body the reset keeps the acknowledgements and forgets the deliveries. An older server knows no such request and
        waits. Another replica's messages come again as well; whoever handles them second finds them in the inbox.
        """
        # Before the question: a connection that is lost meanwhile asks for another rewind.
        self._rewound = True
        answer = await self._calls.send(f"$JS.API.CONSUMER.RESET.{self.stream}.{self.durable}", b"")
        await asyncio.wait([answer], timeout=ACK_TIMEOUT_S)
        if not answer.done():
            answer.cancel()

    async def _keep_open(self, most: int) -> None:
        now = real_seconds()
        if self._rewound and self._open > 0 and now < self._ends_at and now - self._heard_at < SILENCE_S:
            return
        if not self._connected():
            if self._buffer:
                return
            await asyncio.sleep(NOBODY_WAIT_S)
            raise Transient("no connection to NATS")
        if not self._rewound:
            await self._rewind()
        self._number += 1
        self._open = most * REQUEST_FACTOR
        now = self._heard_at = real_seconds()
        # The server may run a little late; its own word about the end (status 408) comes first.
        self._ends_at = now + EXPIRES_S + HEARTBEAT_S
        body = b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}' % (self._open, EXPIRES_S * 1e9, HEARTBEAT_S * 1e9)
        await self._client.publish(self.next_subject, body, f"{self._inbox}.{self._number}")

    async def _wait(self, most_s: float) -> None:
        self._arrived.clear()
        try:
            async with asyncio.timeout(most_s):
                await self._arrived.wait()
        except TimeoutError:
            return

    async def _heard(self, message: Msg) -> None:
        self._heard_at = real_seconds()
        status = status_of(message)
        if status is None:
            delivery = read_delivery(message)
            if delivery is not None:
                self._buffer.append(delivery)
                self._open = max(0, self._open - 1)
                self._arrived.set()
        elif status in _ENDS_REQUEST and message.subject == f"{self._inbox}.{self._number}":
            self._open = 0
            if status != _TIMED_OUT:
                # The consumer is gone, moves or cannot serve: asking again at once would be answered the same at once.
                await asyncio.sleep(NOBODY_WAIT_S)
            if status == NO_RESPONDERS:
                # Nobody heard the rewind either: JetStream is starting, or the consumer is being loaded.
                self._rewound = False
                self._fail(Transient(f"nobody serves consumer {self.durable!r} of stream {self.stream!r} now"))
            self._arrived.set()

    def _fail(self, error: Exception) -> None:
        self._open = 0
        self._failure = error
        self._arrived.set()
