"""Start and end of this package's programs: settings from ALLMENDE_* variables, log, health pages, bus, signals.

Like `chassis.boot`, for programs without a database. Reads no environment itself: each `__main__` passes it in.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import uvloop

from allmende.chassis import health as health_pages
from allmende.chassis import log, trace
from allmende.chassis.boot import EXIT_BROKEN, EXIT_MISCONFIGURED, EXIT_TRY_AGAIN
from allmende.chassis.bus import connect
from allmende.chassis.bus.connection import NatsBus
from allmende.chassis.clock import parse_clock
from allmende.chassis.entropy import RandomIds
from allmende.chassis.errors import Misconfigured, Transient
from allmende.chassis.health import Health
from allmende.chassis.ports import Bus, Clock, Ids
from allmende.chassis.settings import BaseSettings, load
from allmende.proto.subjects import Role

# What a program needs after its signal: to power off, to hear the ledger's confirmations, to flush. Then it ends all the same.
CLEAN_END_S = 30.0
_LOOK_AGAIN_S = 0.25


class ProgramSettings(BaseSettings, frozen=True, kw_only=True):
    """What every program of this package needs: a service's settings, but no database."""

    database_url: str = ""
    """Not used: these programs keep nothing in a database."""


class Footing(NamedTuple):
    """What a program stands on. `stopped` is set by SIGTERM or SIGINT: end what you do, and return."""

    bus: Bus
    clock: Clock
    ids: Ids
    health: Health
    stopped: asyncio.Event


S = TypeVar("S", bound=ProgramSettings)


def main(
    program: str,
    settings: type[S],
    environment: Mapping[str, str],
    user: Callable[[S], tuple[Role, str]],
    run: Callable[[Footing, S], Awaitable[None]],
) -> NoReturn:
    """Run a program until it returns, and end the process. `user` names the role and identity of its credentials.

    Exit codes as in `chassis.boot`: 0 ended as asked, 70 unforeseen failure, 75 may go well when started again, 78 misconfigured.
    """
    try:
        filled, _ = load(program, settings, environment, None)
        clock = parse_clock(filled.clock)
    except Misconfigured as error:
        _end(_tell(program, error))
    instance = f"{socket.gethostname()}-{os.getpid()}"
    log.setup(program, instance, filled.log_level)
    trace.setup(program, instance, console=filled.trace_console)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_guarded(program, filled, clock, user(filled), run))
    _end(code)


def _end(code: int) -> NoReturn:
    # Not sys.exit: a thread of a library must not hold up an end that is clean already.
    os._exit(code)


def _tell(program: str, error: Exception) -> int:
    os.write(2, f"{program}: {error}\n".encode())
    return EXIT_MISCONFIGURED


async def _guarded(
    program: str, settings: S, clock: Clock, user: tuple[Role, str], run: Callable[[Footing, S], Awaitable[None]]
) -> int:
    try:
        await _live(settings, clock, user, run)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, Misconfigured):
            return _tell(program, error)
        if isinstance(error, Transient):
            log.get_logger(__name__).error("ended; start it again", why=str(error))
            return EXIT_TRY_AGAIN
        log.get_logger(__name__).error("ended by a failure that should not be", exc_info=error)
        return EXIT_BROKEN
    return 0


async def _live(settings: S, clock: Clock, user: tuple[Role, str], run: Callable[[Footing, S], Awaitable[None]]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if not stopped.is_set():
            stopped.set()
            loop.call_later(CLEAN_END_S, os._exit, EXIT_BROKEN)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    health = Health()
    async with asyncio.TaskGroup() as tasks:
        pages = tasks.create_task(health_pages.serve(health, _listen(settings)))
        bus = await _connected(settings, user, stopped)
        if bus is not None:
            gone = tasks.create_task(bus.until_closed())
            health.ready("start", True)
            try:
                await run(Footing(bus, clock, RandomIds(), health, stopped), settings)
            finally:
                gone.cancel()
                await bus.close()
        pages.cancel()


async def _connected(settings: ProgramSettings, user: tuple[Role, str], stopped: asyncio.Event) -> NatsBus | None:
    """Try until it goes well; None when the program is stopped before."""
    role, identity = user
    while not stopped.is_set():
        try:
            return await connect(settings.nats_url, role=role, identity=identity, seed_file=settings.nats_seed_file, wait_s=2.0)
        except Transient:
            await asyncio.sleep(_LOOK_AGAIN_S)
    return None


def _listen(settings: ProgramSettings) -> socket.socket:
    try:
        listener = socket.create_server((settings.http_host, settings.http_port))
        if settings.port_file:
            part = Path(f"{settings.port_file}.part")
            part.write_text(f"{listener.getsockname()[1]}\n")
            part.replace(settings.port_file)
    except OSError as error:
        raise Misconfigured(f"the health pages cannot be opened: {error}") from error
    return listener
