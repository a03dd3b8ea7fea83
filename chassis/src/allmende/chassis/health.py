"""Is this service alive, ready, and getting on? Three pages over HTTP: /healthz, /readyz, /metrics.

Alive is measured by progress (messages wait, and something was handled lately), not by an open socket. Decides nothing: whoever
asks restarts or waits.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from allmende.chassis.clock import real_seconds

# Longer than the longest statement and the time a message needs to come again after a lost acknowledgement.
STALE_S = 90.0


class _Progress(NamedTuple):
    moved_s: float
    lag: int


class Health:
    """What the parts of a service report of themselves. A part that never reported does not count."""

    def __init__(self, stale_s: float = STALE_S) -> None:
        self._stale_s = stale_s
        self._ready: dict[str, str] = {}
        self._progress: dict[str, _Progress] = {}

    def ready(self, name: str, ok: bool, why: str = "") -> None:
        """Report whether a part can do its work; `why` is a sentence for the operator."""
        self._ready[name] = "" if ok else why or "not ready"

    def progress(self, name: str, lag: int | None = None) -> None:
        """Report that something was handled (without `lag`), or how much waits (with it)."""
        now_s = real_seconds()
        before = self._progress.get(name)
        if lag is None:
            self._progress[name] = _Progress(now_s, before.lag if before else 0)
        else:
            # With nothing waiting before, standing still begins now.
            moved_s = before.moved_s if before and before.lag > 0 else now_s
            self._progress[name] = _Progress(moved_s, lag)

    def why_not_ready(self) -> dict[str, str]:
        """The parts that are not ready, each with its sentence; empty: ready."""
        if not self._ready:
            return {"start": "the service is starting"}
        return {name: why for name, why in self._ready.items() if why}

    def why_not_alive(self) -> dict[str, str]:
        """The parts for which messages wait while nothing is handled; empty: alive."""
        now_s = real_seconds()
        return {
            name: f"{it.lag} messages wait and nothing was handled for {now_s - it.moved_s:.0f} s"
            for name, it in self._progress.items()
            if it.lag > 0 and now_s - it.moved_s > self._stale_s
        }

    def lags(self) -> dict[str, int]:
        """How much waits, by part."""
        return {name: it.lag for name, it in self._progress.items()}


def application(health: Health) -> Starlette:
    """The three pages: 200 or 503, with JSON that says why."""

    async def healthz(_: Request) -> Response:
        stale = health.why_not_alive()
        return _json({"alive": not stale, "why": stale, "lag": health.lags()}, ok=not stale)

    async def readyz(_: Request) -> Response:
        reasons = health.why_not_ready()
        return _json({"ready": not reasons, "why": reasons}, ok=not reasons)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)])


def _json(body: object, *, ok: bool) -> Response:
    return Response(msgspec.json.encode(body), status_code=200 if ok else 503, media_type="application/json")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to boot.
        yield


async def serve(health: Health, listener: socket.socket) -> None:
    """Answer on a bound socket until cancelled."""
    config = uvicorn.Config(application(health), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    server = _Server(config)
    try:
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        # Cancelled in its main loop, the server has not yet let go of its connections.
        if server.started:
            await server.shutdown(sockets=[listener])
        raise
