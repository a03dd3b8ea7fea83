"""Requests in flight over one reply inbox: the futures behind publish, ask, acknowledge and lag.

The library's own `request` makes a task and a timer for each call; at hundreds in flight that costs more than the call. A refusal
by the server arrives apart from the call it belongs to (`-ERR Permissions Violation`), so it is matched here by its subject.
"""

import asyncio
import re
from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from allmende.chassis.errors import Refused, Transient

_VIOLATION = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE)
NO_RESPONDERS = "503"
STATUS = "Status"


class Violation(NamedTuple):
    """Something the server did not permit. The library hands the subject over in lower case."""

    verb: str
    subject: str


def read_violation(error: Exception) -> Violation | None:
    """What the server did not permit, or None when the error says something else."""
    match = _VIOLATION.search(str(error))
    return None if match is None else Violation(match[1].lower(), match[2].lower())


class _Call(NamedTuple):
    subject: str
    future: asyncio.Future[Msg]


async def settle(client: Client, timeout_s: int) -> None:
    """Wait until the server has taken all subscriptions made so far, or has objected to them.

    Twice, because the library writes the ping of `flush` past what it has buffered: the first round trip lets the buffer go, the
    second one follows it.
    """
    for _ in range(2):
        await client.flush(timeout_s)


class Calls:
    """Calls that wait for their replies, oldest first."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._prefix = ""
        self._tokens = count()
        self._waiting: dict[str, _Call] = {}

    async def start(self) -> None:
        """Listen for replies. The library subscribes again by itself after a reconnect."""
        self._prefix = self._client.new_inbox()
        await self._client.subscribe(f"{self._prefix}.*", cb=self._heard)

    async def send(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> asyncio.Future[Msg]:
        """Send, and return the reply's future. It fails with Refused (not permitted) or Transient (connection lost)."""
        token = str(next(self._tokens))
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[token] = _Call(subject.lower(), future)
        future.add_done_callback(lambda _: self._waiting.pop(token, None))
        try:
            await self._client.publish(subject, data, f"{self._prefix}.{token}", dict(headers) if headers else None)
        except BaseException:
            future.cancel()
            raise
        return future

    def refuse(self, subject: str) -> None:
        """The server did not permit the oldest call on a subject (in lower case). Each refused call has a report of its own."""
        for call in self._waiting.values():
            if call.subject == subject and not call.future.done():
                _fail(call.future, Refused("not_permitted", f"these credentials may not publish on {subject!r}"))
                return

    def lose(self, why: str) -> None:
        """The connection is gone: whether the calls arrived is unknown."""
        for call in list(self._waiting.values()):
            if not call.future.done():
                _fail(call.future, Transient(why))

    async def _heard(self, message: Msg) -> None:
        call = self._waiting.get(message.subject[len(self._prefix) + 1 :])
        if call is not None and not call.future.done():
            call.future.set_result(message)


def _fail(future: asyncio.Future[Msg], error: Exception) -> None:
    future.set_exception(error)
    # Marks it as seen: whoever gave up waiting shall not be told a second time by the loop's exception handler.
    future.exception()


def status_of(message: Msg) -> str | None:
    """The status of a message that the server itself made, such as `503` where nobody listens; None for anybody else's."""
    headers = message.headers
    return None if not headers else headers.get(STATUS)
