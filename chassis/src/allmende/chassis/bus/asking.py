"""Requests: asking a service, and answering as a discoverable NATS micro service.

A problem travels as the reply's body and in micro's two error headers. The trace travels in the W3C header. Requests are answered
side by side, a bounded number of each endpoint, so that a slow one does not hold up the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro import add_service
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER
from nats.micro.request import Request as MicroRequest
from nats.micro.service import EndpointConfig, ServiceConfig
from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from allmende.chassis.bus.calls import NO_RESPONDERS, Calls, status_of
from allmende.chassis.errors import Refused, Transient
from allmende.chassis.ports import Endpoint
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.message import Problem

# Codes of the bus itself, beside those of the services.
UNAVAILABLE = "unavailable"
INTERNAL_ERROR = "internal_error"

# As many of one endpoint are under way at once; further ones wait in the client. More would only queue up at the database's pool.
SIDE_BY_SIDE = 16
# A service that is asked to end within 5 s has more to do than to answer; who asked asks again.
FINISH_S = 1.0

_trace = TraceContextTextMapPropagator()
_problems = msgspec.json.Decoder(Problem)
_encode = msgspec.json.Encoder().encode


async def ask(calls: Calls, subject: str, data: bytes, timeout_s: float) -> bytes:
    """Ask, and wait for the answer.

    Raises:
        Refusal: the service answered with a problem, or the server does not permit the question (`not_permitted`).
        Transient: nobody listens, nobody answered in time, the service says `unavailable`, or the connection is lost.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        sentence = f"the request has {len(data)} bytes; the largest allowed is {MAX_MESSAGE_BYTES}"
        raise Refusal("message_too_large", sentence)
    headers: dict[str, str] = {}
    _trace.inject(headers)
    future = await calls.send(subject, data, headers)
    try:
        async with asyncio.timeout(timeout_s):
            reply = await future
    except TimeoutError as error:
        raise Transient(f"{subject}: no answer within {timeout_s:g} s; whether it was done is unknown") from error
    except Refused as error:
        raise Refusal(error.code, str(error)) from error
    return _read(subject, reply)


def _read(subject: str, reply: Msg) -> bytes:
    if status_of(reply) == NO_RESPONDERS:
        raise Transient(f"{subject}: nobody answers this; the service is not running")
    code = None if not reply.headers else reply.headers.get(ERROR_CODE_HEADER)
    if code is None:
        return reply.data
    problem = _problem(code, reply)
    if code == UNAVAILABLE:
        raise Transient(problem.sentence)
    raise Refusal(problem.code, problem.sentence)


def _problem(code: str, reply: Msg) -> Problem:
    try:
        return _problems.decode(reply.data)
    except msgspec.MsgspecError:
        # A service in another language may send micro's headers alone.
        return Problem(code=code, sentence=str((reply.headers or {}).get(ERROR_HEADER, code)))


async def answer(
    client: Client, service: str, version: str, endpoints: Sequence[Endpoint], report: Callable[[str, Exception], None]
) -> Callable[[], Awaitable[None]]:
    """Answer requests until the returned function is called. `report` hears of answers that failed, with their verb."""
    micro = await add_service(client, ServiceConfig(name=service, version=version, description=f"Allmende {service}"))
    working: set[asyncio.Task[None]] = set()
    for endpoint in endpoints:
        handler = _side_by_side(_handler(endpoint, report), working)
        await micro.add_endpoint(EndpointConfig(name=endpoint.verb, subject=endpoint.subject, handler=handler))

    async def stop() -> None:
        # After the connection has gone there is nobody to tell.
        if client.is_connected:
            await micro.stop()
        if working:
            _, late = await asyncio.wait(working, timeout=FINISH_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    return stop


Handler = Callable[[MicroRequest], Awaitable[None]]


def _side_by_side(handle: Callable[[MicroRequest], Coroutine[Any, Any, None]], working: set[asyncio.Task[None]]) -> Handler:
    """Let requests overtake each other; the library alone would answer the next one only after this one."""
    places = asyncio.Semaphore(SIDE_BY_SIDE)

    def done(task: asyncio.Task[None]) -> None:
        working.discard(task)
        places.release()

    async def begin(request: MicroRequest) -> None:
        await places.acquire()
        task = asyncio.get_running_loop().create_task(handle(request))
        working.add(task)
        task.add_done_callback(done)

    return begin


def _handler(endpoint: Endpoint, report: Callable[[str, Exception], None]) -> Callable[[MicroRequest], Coroutine[Any, Any, None]]:
    async def handle(request: MicroRequest) -> None:
        caller = request.subject.rpartition(".")[2]
        attached = context.attach(_trace.extract(request.headers or {}))
        try:
            reply = await endpoint.answer(caller, request.data)
            if len(reply) > MAX_MESSAGE_BYTES:
                problem = Problem(code="reply_too_large", sentence=f"the answer has {len(reply)} bytes; ask for a smaller page")
                await _refuse(request, problem)
            else:
                await request.respond(reply)
        except Refusal as refusal:
            await _refuse(request, refusal.problem)
        except Transient as error:
            await _refuse(request, Problem(code=UNAVAILABLE, sentence="the service cannot answer just now; ask again"))
            report(endpoint.verb, error)
        except Exception as error:  # noqa: BLE001 the caller is told that it failed, and the service goes on answering others
            await _refuse(request, Problem(code=INTERNAL_ERROR, sentence="the service failed at this request; its log says why"))
            report(endpoint.verb, error)
        finally:
            context.detach(attached)

    return handle


async def _refuse(request: MicroRequest, problem: Problem) -> None:
    headers = {ERROR_CODE_HEADER: problem.code, ERROR_HEADER: problem.sentence}
    await request.respond(_encode(problem), headers=headers)
