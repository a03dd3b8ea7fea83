"""Requests and replies as typed structs over the bus's bytes. A refusal is an answer too."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from allmende.chassis.errors import Poison
from allmende.chassis.ports import Bus, Endpoint
from allmende.proto.envelope import Refusal, decode_value, encode_value
from allmende.proto.subjects import Request

_decoders: dict[type[Struct], msgspec.json.Decoder[Any]] = {}

Q = TypeVar("Q", bound=Struct)


def _decoder(kind: type[Struct]) -> msgspec.json.Decoder[Any]:
    return _decoders.setdefault(kind, msgspec.json.Decoder(kind))


def endpoint(row: Request, handle: Callable[[str, Q], Awaitable[Struct]]) -> Endpoint:
    """Answer one verb: `handle(caller, request)` returns the reply, or raises Refusal (or Poison) for a problem.

    Whatever else it raises, the bus answers `unavailable` or `internal_error` and logs.
    """
    decoder = _decoder(row.request)

    async def answer(caller: str, data: bytes) -> bytes:
        request = decode_value(decoder, data, row.verb)
        try:
            return encode_value(await handle(caller, request))
        except Poison as error:
            raise Refusal(error.code, error.sentence) from error

    return Endpoint(verb=row.verb, subject=row.pattern, answer=answer)


async def ask(bus: Bus, row: Request, caller: str, request: Struct, timeout_s: float = 5.0) -> Any:
    """Ask a service as `caller`; returns a struct of the type `row.reply`.

    Raises:
        Refusal: it answered with a problem, or with something that is no reply of this verb; or `not_utf8`, and nothing was asked.
        Transient: nobody answered in time, or the service is unavailable; whether it was done is unknown.
    """
    data = await bus.ask(row.of(caller), encode_value(request), timeout_s)
    return decode_value(_decoder(row.reply), data, row.verb)
