"""The last value of every subject of a stream, asked of the server in one question (ADR-31): no consumer is made or left behind.

The answers come one by one to an inbox of their own, and an empty one says that they are all. Never touches the services.
"""

import asyncio
from collections.abc import Sequence

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from allmende.chassis.bus.calls import status_of
from allmende.chassis.errors import Refused, Transient

_END, _NOTHING, _TOO_MANY = "204", "404", "413"
_SUBJECT = "Nats-Subject"


async def last_values(client: Client, stream: str, patterns: Sequence[str], timeout_s: float) -> list[tuple[str, bytes]]:
    """Subjects and their last messages. See `NatsBus.last_values`."""
    found: list[tuple[str, bytes]] = []
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def heard(message: Msg) -> None:
        status = status_of(message)
        if status is None:
            found.append(((message.headers or {}).get(_SUBJECT, ""), message.data))
        elif not done.done():
            done.set_result(status)

    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox, cb=heard)
    try:
        question = msgspec.json.encode({"multi_last": list(patterns)})
        await client.publish(f"$JS.API.DIRECT.GET.{stream}", question, reply=inbox)
        try:
            status = await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            raise Transient(f"the server did not tell all last values of {stream} in {timeout_s} s") from None
    finally:
        await subscription.unsubscribe()
    if status == _TOO_MANY:
        raise Refused("too_many_subjects", f"more than 1,024 subjects of {stream} match: ask for fewer at once")
    if status not in (_END, _NOTHING):
        raise Transient(f"the server answered {status} when it was asked for the last values of {stream}")
    return found
