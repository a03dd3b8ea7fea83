"""One HTTP post with an end: `http.client` in a thread of its own, cut off when its time is over.

Follows no redirect, uses no proxy, reads no body.

A thread of its own, because one that hangs in the resolver must not take a thread from anybody else.
"""

import asyncio
import http.client
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

# Receivers put a post into a queue and answer; who needs longer gets it again.
TIMEOUT_S = 10.0
# Enough to know the fault by; whatever a receiver writes must not fill our tables.
PROBLEM_MOST = 200


class Undelivered(Exception):
    """No answer came. The text names neither address nor secret."""


class Poster:
    """Posts to one address."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="webhook")

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Post once; returns the status.

        Raises:
            Undelivered: no status came within the time.
        """
        connection = self._connection()
        try:
            async with asyncio.timeout(self._timeout_s):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._thread, self._exchange, connection, body, headers)
        except TimeoutError:
            raise Undelivered(f"no answer within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Undelivered(_words(error)) from None
        finally:
            _cut_off(connection)

    def _connection(self) -> http.client.HTTPConnection:
        # The time-out of single steps; the sum of them is bounded by the caller.
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]) -> int:
        """In the thread. The answer's body is nobody's business, so it is not read."""
        try:
            fixed = {"content-type": "application/json", "user-agent": "allmende", "connection": "close"}
            connection.request("POST", self._path, body, {**fixed, **headers})
            with connection.getresponse() as answer:
                return answer.status
        finally:
            connection.close()


def _cut_off(connection: http.client.HTTPConnection) -> None:
    """End a thread that still waits for a byte: closing alone would not wake it."""
    line: socket.socket | None = connection.sock
    if line is not None:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def _words(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:PROBLEM_MOST]
