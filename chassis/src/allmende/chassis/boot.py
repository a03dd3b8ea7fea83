"""Start and end of a service: settings, log, health pages, database, bus, migrations, signals, exit codes.

`main` is all that a service's `__main__` calls. It waits for servers that are not there yet, whatever the order of starting; it
does not wait when waiting cannot help. Decides nothing about the service's work.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import uvloop

from allmende.chassis import health as health_pages
from allmende.chassis import log, trace
from allmende.chassis.bus import connect
from allmende.chassis.bus.connection import NatsBus
from allmende.chassis.clock import parse_clock
from allmende.chassis.db import Database
from allmende.chassis.entropy import RandomIds
from allmende.chassis.errors import Misconfigured, StaleTerm, Transient
from allmende.chassis.health import Health
from allmende.chassis.migrate import migrate
from allmende.chassis.ports import Bus, Clock, Endpoint, Ids
from allmende.chassis.settings import BaseSettings, load, shown
from allmende.proto.subjects import REQUESTS, Role

__all__ = ["BaseSettings", "Chassis", "main"]

S = TypeVar("S", bound=BaseSettings)
T = TypeVar("T")

# sysexits.h: EX_CONFIG, EX_TEMPFAIL. A supervisor need not try again after the first.
EXIT_MISCONFIGURED = 78
EXIT_TRY_AGAIN = 75
EXIT_BROKEN = 70
# What orchestrators and people expect; the rows of the outbox and the inbox make a hard end safe.
CLEAN_END_S = 5.0
_LOOK_AGAIN_S = 0.25
# The part of a service that answers, in its health.
_ANSWERS = "requests"


class Chassis(NamedTuple):
    """What a service stands on."""

    settings: BaseSettings
    bus: Bus
    db: Database
    clock: Clock
    ids: Ids
    health: Health
    instance: str
    """Names this process among its replicas, for people: host and process number."""

    @asynccontextmanager
    async def answering(self, service: str, version: str, endpoints: Sequence[Endpoint]) -> AsyncIterator[None]:
        """Answer requests inside the block; ready as `requests` only once the server has taken every subscription.

        Raises:
            Misconfigured: these credentials may not hear one of the endpoints.
        """
        stop = await self.bus.answer(service, version, endpoints)
        self.health.ready(_ANSWERS, True)
        try:
            yield
        finally:
            await stop()


def main(
    service: Role, settings: type[S], run: Callable[[Chassis, S], Awaitable[None]], arguments: Sequence[str] | None = None
) -> NoReturn:
    """Be a service: `python -m allmende.X [--settings FILE] [run | migrate [--post] | settings]`. Ends the process.

    Exit codes: 0 ended as asked (SIGTERM, SIGINT, `run` returned), 70 broken invariant or unforeseen failure, 75 may go well when
    started again (the connection was closed for good, another writer took over), 78 misconfigured.
    """
    options = _options(service, arguments)
    try:
        filled, origins = load(service, settings, os.environ, options.settings)
        if options.command == "settings":
            sys.stdout.write(shown(filled, origins) + "\n")
            sys.exit(0)
        clock = parse_clock(filled.clock)
    except Misconfigured as error:
        sys.exit(_tell(service, str(error), EXIT_MISCONFIGURED))
    instance = f"{socket.gethostname()}-{os.getpid()}"
    log.setup(service, instance, filled.log_level)
    trace.setup(service, instance, console=filled.trace_console)
    work = _migrate_only(service, filled, post=options.post) if options.command == "migrate" else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_until_signal(service, work or _live(service, filled, clock, instance, run)))
    # Not sys.exit: a thread of a library must not hold up an end that is clean already.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _options(service: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m allmende.{service}", description=f"The {service} service of Allmende.")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="a TOML file; environment variables win over it")
    parser.add_argument("--post", action="store_true", help="migrate: also the files for when no old code is left")
    parser.add_argument("command", nargs="?", default="run", choices=("run", "migrate", "settings"))
    options = parser.parse_args(arguments)
    if options.post and options.command != "migrate":
        parser.error("--post goes with migrate")
    return options


def _tell(service: str, sentence: str, code: int) -> int:
    sys.stderr.write(f"{service}: {sentence}\n")
    return code


async def _until_signal(service: str, work: Awaitable[None]) -> int:
    """Do the work until it ends, fails, or a signal comes; returns the exit code."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop(name: str) -> None:
        if stopped.is_set():
            return
        stopped.set()
        log.get_logger(__name__).info("stopping", signal=name)
        # Should anything hang, the process still ends; nothing is lost by it.
        loop.call_later(CLEAN_END_S - 0.5, os._exit, EXIT_BROKEN)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    try:
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(_awaited(work))
            watching = tasks.create_task(stopped.wait())
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            watching.cancel()
    except BaseExceptionGroup as group:
        return _code_for(service, _first(group), stopping=stopped.is_set())
    return 0


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _first(error: BaseException) -> BaseException:
    """The failure that explains the others: a wrong set-up before a broken invariant before the rest."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first(inner) for inner in error.exceptions]
    for kind in (Misconfigured, StaleTerm, AssertionError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


def _code_for(service: str, error: BaseException, *, stopping: bool) -> int:
    logger = log.get_logger(__name__)
    if isinstance(error, Misconfigured):
        return _tell(service, str(error), EXIT_MISCONFIGURED)
    if isinstance(error, StaleTerm | Transient):
        logger.error("ended; start it again", why=str(error))
        return 0 if stopping else EXIT_TRY_AGAIN
    logger.error("ended by a failure that should not be", exc_info=error)
    return EXIT_BROKEN


async def _live(service: Role, settings: S, clock: Clock, instance: str, run: Callable[[Chassis, S], Awaitable[None]]) -> None:
    health = Health()
    health.ready("start", False, "the service is starting")
    if any(row.service == service for row in REQUESTS):
        health.ready(_ANSWERS, False, "requests are not answered yet")
    listener = _listen(settings)
    port = listener.getsockname()[1]
    async with asyncio.TaskGroup() as tasks:
        pages = tasks.create_task(health_pages.serve(health, listener))
        if settings.port_file:
            _write_port(Path(settings.port_file), port)
        db = await _patiently(
            health, "database", lambda: Database.connect(settings.database_url, service, application_name=instance)
        )
        try:
            if settings.migrate:
                await _patiently(health, "database", lambda: migrate(db, service))
            bus = await _patiently(health, "bus", lambda: _connect(settings, service))
            try:
                gone = tasks.create_task(bus.until_closed())
                # The one line by which an operator knows what runs here.
                log.get_logger(__name__).info("started", port=port, clock=settings.clock, pid=os.getpid(), nats=bus.server_name)
                health.ready("start", True)
                await run(Chassis(settings, bus, db, clock, RandomIds(), health, instance), settings)
                gone.cancel()
            finally:
                await bus.close()
        finally:
            await db.close()
        pages.cancel()


async def _connect(settings: BaseSettings, service: Role) -> NatsBus:
    return await connect(settings.nats_url, role=service, identity=service, seed_file=settings.nats_seed_file, wait_s=2.0)


async def _patiently(health: Health, part: str, work: Callable[[], Awaitable[T]]) -> T:
    """Try for ever: services and servers may start in any order."""
    told = False
    while True:
        try:
            result = await work()
        except Transient as error:
            health.ready(part, False, str(error))
            if not told:
                log.get_logger(__name__).warning("waiting", part=part, why=str(error))
            told = True
            await asyncio.sleep(_LOOK_AGAIN_S)
        else:
            health.ready(part, True)
            return result


async def _migrate_only(service: Role, settings: BaseSettings, *, post: bool) -> None:
    db = await Database.connect(settings.database_url, service, application_name=f"{service}-migrate")
    try:
        names = await migrate(db, service, post=post)
    finally:
        await db.close()
    sys.stdout.write("".join(f"applied {name}\n" for name in names) or "nothing to apply\n")


def _listen(settings: BaseSettings) -> socket.socket:
    try:
        return socket.create_server((settings.http_host, settings.http_port))
    except OSError as error:
        raise Misconfigured(f"http_port {settings.http_port} on {settings.http_host} cannot be opened: {error}") from error


def _write_port(file: Path, port: int) -> None:
    # Renamed into place: whoever sees the file sees the whole number.
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(f"{port}\n")
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise Misconfigured(f"port_file {file} cannot be written: {error}") from error
