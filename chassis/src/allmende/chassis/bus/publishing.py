"""Publishing into streams: many in flight, in order, each result told apart.

A message is stored when the stream says so. Silence means unknown, never failed: the same id may be said again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from nats.aio.msg import Msg

from allmende.chassis.bus.calls import NO_RESPONDERS, Calls, status_of
from allmende.chassis.errors import Refused, Transient
from allmende.proto.envelope import MAX_MESSAGE_BYTES

MESSAGE_ID = "Nats-Msg-Id"
TRACE = "traceparent"
# Enough to keep the server's disk busy over one round trip; each is at most 64 KiB, so at most 32 MiB wait here.
IN_FLIGHT_MAX = 512
# The server syncs each batch to disk; ten times the slowest sync we saw on a loaded two-core machine.
STORE_TIMEOUT_S = 5.0

# nats-server's err_code for `message size exceeds maximum allowed`.
_TOO_LARGE = 10_054


class _ApiError(Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Stored(Struct):
    stream: str = ""
    seq: Annotated[int, Meta(ge=0)] = 0
    error: _ApiError | None = None


_stored = msgspec.json.Decoder(_Stored)

Outgoing = tuple[str, str, bytes, str | None]
"""Subject, message id, data, traceparent."""


async def publish_many(
    calls: Calls, connected: Callable[[], bool], messages: Sequence[Outgoing], timeout_s: float = STORE_TIMEOUT_S
) -> list[Exception | None]:
    """Publish all, at most IN_FLIGHT_MAX at a time, in order. One result a message; None: it is on the server's disk."""
    results: list[Exception | None] = []
    for start in range(0, len(messages), IN_FLIGHT_MAX):
        window = messages[start : start + IN_FLIGHT_MAX]
        if not connected():
            # The library would buffer them in silence and send them at some later time, behind younger ones.
            results.extend(Transient("no connection to NATS") for _ in window)
            continue
        results.extend(await _publish_window(calls, window, timeout_s))
    return results


async def _publish_window(calls: Calls, window: Sequence[Outgoing], timeout_s: float) -> list[Exception | None]:
    sent = [await _send(calls, message) for message in window]
    waiting = [future for future in sent if isinstance(future, asyncio.Future)]
    if waiting:
        await asyncio.wait(waiting, timeout=timeout_s)
    return [_result(outcome) for outcome in sent]


async def _send(calls: Calls, message: Outgoing) -> "asyncio.Future[Msg] | Exception":
    subject, message_id, data, trace = message
    if len(data) > MAX_MESSAGE_BYTES:
        # Ours to check: the library closes the connection for good when the server finds a message too large.
        return Refused("message_too_large", f"the message has {len(data)} bytes; the largest allowed is {MAX_MESSAGE_BYTES}")
    headers = {MESSAGE_ID: message_id}
    if trace is not None:
        headers[TRACE] = trace
    try:
        return await calls.send(subject, data, headers)
    except Exception as error:  # noqa: BLE001 one message that cannot be sent shall not hide what became of the others
        return Transient(f"could not send on {subject!r}: {error!r}")


def _result(outcome: "asyncio.Future[Msg] | Exception") -> Exception | None:
    if isinstance(outcome, Exception):
        return outcome
    if not outcome.done():
        outcome.cancel()
        return Transient("NATS did not confirm in time; whether the message is stored is unknown")
    if outcome.cancelled():
        return Transient("the connection was closed; whether the message is stored is unknown")
    failure = outcome.exception()
    if isinstance(failure, Exception):
        return failure
    return _read_reply(outcome.result())


def _read_reply(reply: Msg) -> Exception | None:
    if status_of(reply) == NO_RESPONDERS:
        return Transient("no stream takes this subject now: JetStream is starting, or the topology command has not run")
    try:
        stored = _stored.decode(reply.data)
    except msgspec.MsgspecError as error:
        return Transient(f"NATS confirmed in words we do not know: {error}")
    if stored.error is None:
        return None if stored.stream else Transient("NATS confirmed without naming a stream")
    if stored.error.err_code == _TOO_LARGE:
        return Refused("message_too_large", stored.error.description)
    # A full stream (`discard: new`) is the likeliest: what ages out makes room, so it may go well later.
    return Transient(f"the stream did not store it: {stored.error.description}")
