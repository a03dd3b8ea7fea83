"""The envelope around every message, and the gates a message passes before anybody believes it.

Gates, in order: size, depth, JSON, envelope, known type, body. The meaning (does it agree with its subject?) is `subjects.check`.
Never touches a socket or a clock.
"""

from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from allmende.proto.ids import Id
from allmende.proto.message import Message, Problem
from allmende.proto.misfit import in_words
from allmende.proto.units import Instant

# The streams' max_msg_size: a larger message could not be stored, so it is not made either.
MAX_MESSAGE_BYTES = 64 * 1024
# W3C trace context: "00-<32 hex>-<16 hex>-<2 hex>" is 55 characters.
Trace = Annotated[str, Meta(max_length=128)]

M_co = TypeVar("M_co", bound=Message, covariant=True)


class Envelope(Struct, Generic[M_co], frozen=True, kw_only=True):
    """A message as it travels.

    `occurred_at_ms` is when the fact arose, `sent_at_ms` when this copy was transmitted (a spooled fact is sent later than it
    arose); `cause` is the id of the message it answers; `trace` is a W3C traceparent.
    """

    id: Id
    type: str
    version: int
    occurred_at_ms: Instant
    sent_at_ms: Instant
    cause: Id | None = None
    trace: Trace | None = None
    body: M_co


class _RawEnvelope(Struct, frozen=True, kw_only=True):
    id: Id
    type: Annotated[str, Meta(max_length=63)]
    version: Annotated[int, Meta(ge=1, le=1_000)]
    occurred_at_ms: Instant
    sent_at_ms: Instant
    cause: Id | None = None
    trace: Trace | None = None
    body: msgspec.Raw


class Refusal(Exception):
    """A message that will never be accepted, with the reason to tell its publisher. `message` is its id where it was readable."""

    def __init__(self, code: str, sentence: str, message: str | None = None) -> None:
        super().__init__(sentence)
        self.problem = Problem(code=code, sentence=sentence[:1_000])
        self.message = message


_envelopes = msgspec.json.Decoder(_RawEnvelope)
_encoder = msgspec.json.Encoder()
_bodies: dict[tuple[str, int], msgspec.json.Decoder[Message]] = {}


def register(message: type[Message]) -> None:
    """Make a message type known to `decode`. Called once for each row of the subject table.

    Raises:
        ValueError: the type and version are taken by another class.
    """
    key = (message.TYPE, message.VERSION)
    if key in _bodies and _bodies[key].type is not message:
        raise ValueError(f"message type {key} is declared twice")
    _bodies[key] = msgspec.json.Decoder(message)


def encode(envelope: Envelope[Message]) -> bytes:
    """Encode an envelope as JSON.

    Raises:
        Refusal: `message_too_large`, when it would not fit a stream, or `not_utf8`, when a text came from bytes that are none.
    """
    data = _encode(envelope, envelope.id)
    if len(data) > MAX_MESSAGE_BYTES:
        raise _too_large(len(data), envelope.id)
    return data


def decode(data: bytes) -> Envelope[Message]:
    """Decode one message strictly: types are never coerced, unknown types are refused, added fields are tolerated.

    Raises:
        Refusal: `message_too_large`, `nested_too_deep`, `malformed_json`, `wrong_type` or `unknown_message`.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise _too_large(len(data), None)
    raw = _decode_strictly(_envelopes, data, "envelope", None)
    decoder = _bodies.get((raw.type, raw.version))
    if decoder is None:
        raise Refusal("unknown_message", f"no message {raw.type!r} of version {raw.version} is known here", raw.id)
    body = _decode_strictly(decoder, raw.body, raw.type, raw.id)
    return Envelope(
        id=raw.id,
        type=raw.type,
        version=raw.version,
        occurred_at_ms=raw.occurred_at_ms,
        sent_at_ms=raw.sent_at_ms,
        cause=raw.cause,
        trace=raw.trace,
        body=body,
    )


T = TypeVar("T")


def _decode_strictly(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw, what: str, message: str | None) -> T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise Refusal("wrong_type", f"{what}: {in_words(error)}", message) from error
    except RecursionError as error:
        raise Refusal("nested_too_deep", f"{what}: the JSON is nested too deep to read", message) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("malformed_json", f"{what}: {error}", message) from error


def encode_value(value: Struct) -> bytes:
    """Encode a request or reply that travels without an envelope. Its size is judged by the bus.

    Raises:
        Refusal: `not_utf8`, when a text came from bytes that are none.
    """
    return _encode(value, None)


def _encode(value: Struct, message: str | None) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise Refusal("not_utf8", "the message holds a text that is not UTF-8; write it in UTF-8", message) from error


def decode_value(decoder: msgspec.json.Decoder[T], data: bytes, what: str) -> T:
    """Decode a request or reply that travels without an envelope, through the same gates.

    Raises:
        Refusal: `message_too_large`, `nested_too_deep`, `malformed_json` or `wrong_type`.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise _too_large(len(data), None)
    return _decode_strictly(decoder, data, what, None)


def _too_large(size: int, message: str | None) -> Refusal:
    sentence = f"the message has {size} bytes; the largest allowed is {MAX_MESSAGE_BYTES}"
    return Refusal("message_too_large", sentence, message)
