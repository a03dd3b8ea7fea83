"""This machine for tests of the process agent: a backend with what it said, and commands that behave in a way."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from zlib import crc32

import pytest

from allmende.agent.process import cgroups
from allmende.agent.process.accounts import as_person
from allmende.agent.process.backend import ProcessBackend
from allmende.agent.process.machine import own_account
from allmende.agent.process.records import Record
from allmende.agent.sdk.backend import Exit, Launch, NodeState, ReplicaPlace, Running
from allmende.chassis.clock import RealClock
from allmende.chassis.ports import Clock
from allmende.proto.ids import make_id
from allmende.proto.units import Ms
from allmende.proto.user import Payload
from tests.agent.builders import T0

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the process agent looks after processes with Linux's means")
PATIENCE_S = 15.0


def attempt(number: int = 1) -> str:
    """The id of an attempt, of this test in this process alone: its cgroup, and what is left of it, are found by that."""
    test = crc32(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].encode())
    return make_id(T0, b"".join(part.to_bytes(size, "big") for part, size in ((os.getpid(), 4), (test, 4), (number, 2))))


def job(number: int = 1) -> str:
    """The id of a job."""
    return attempt(500 + number)


def me() -> str:
    """The person whose jobs an agent of this account runs."""
    return as_person(own_account().name)


class Said:
    """What a backend gave notice of."""

    def __init__(self) -> None:
        self.exits: list[Exit] = []

    def exited(self, left: Exit) -> None:
        self.exits.append(left)

    def node_changed(self, node: NodeState, at_ms: Ms) -> None:
        raise AssertionError("a process agent's node does not change by itself")


class Machine:
    """A backend that runs."""

    def __init__(self, folder: Path, clock: Clock, *, with_cgroups: bool) -> None:
        for part in ("attempts", "jobs", "logs"):
            (folder / part).mkdir(exist_ok=True)
        self.folder = folder
        self.said = Said()
        self.running: list[Running] = []
        self.died: list[Record] = []
        groups = cgroups.find() if with_cgroups else None
        self.backend = ProcessBackend(folder, NodeState("n1", 8, 8), clock, groups, None)

    async def start(
        self, script: str, number: int = 1, *, user: str | None = None, slice_ms: Ms = 0, replicas: int = 1, **variables: str
    ) -> Ms:
        launch = Launch(
            attempt=attempt(number),
            job=job(number),
            user=user or me(),
            budget=None,
            payload=Payload(command=("sh", "-c", script), environment={"PATH": os.environ["PATH"], **variables}, directory="/"),
            places=tuple(ReplicaPlace(each, "n1", (2 * each, 2 * each + 1)) for each in range(replicas)),
            gpus_per_replica=2,
            slice_ms=slice_ms,
            epoch=7,
        )
        return await self.backend.start(launch)

    async def exit(self, number: int = 1) -> Exit:
        await until(lambda: any(each.attempt == attempt(number) for each in self.said.exits), "it ends")
        (left,) = [each for each in self.said.exits if each.attempt == attempt(number)]
        return left

    def log(self, number: int = 1, replica: int = 0) -> str:
        path = self.folder / "logs" / job(number) / f"{attempt(number)}.{replica}.log"
        return path.read_text() if path.exists() else ""


@asynccontextmanager
async def machine(folder: Path, clock: Clock | None = None, *, with_cgroups: bool = True) -> AsyncIterator[Machine]:
    """A machine until the block is left, as if its agent had been killed then; what it started runs on until the test ends."""
    made = Machine(folder, clock or RealClock(), with_cgroups=with_cgroups)
    made.running, made.died = await made.backend.left_behind()
    running = asyncio.ensure_future(made.backend.run(made.said))
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        running.cancel()


async def until(true: Callable[[], object], what: str) -> None:
    """Wait for a fact, bounded."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not true():  # noqa: ASYNC110 the fact may be anywhere; nothing announces it
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what}") from None


def marked(word: str) -> list[int]:
    """The processes, zombies aside, whose command line has a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def cgroups_of(name: str) -> list[Path]:
    """The cgroups of an attempt, where this process may make any."""
    groups = cgroups.find()
    return [] if groups is None else list(groups.mount.rglob(f"allmende-{name}.*"))
