"""Everybody but the ledger, over real servers: says what agents, admission and budget say, asks as an operator, starts ledgers."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from allmende.chassis.clock import parse_clock
from allmende.chassis.errors import Transient
from allmende.chassis.ports import Bus
from allmende.chassis.rpc import ask
from allmende.proto import subjects
from allmende.proto.envelope import Refusal
from allmende.proto.ledger import LedgerState, LedgerStateQuery, Posting, PostingsQuery
from allmende.proto.subjects import Role
from tests.ledger.gauges import CLUSTER, Parcel
from tests.servers import Lab


class Theatre:
    """Everybody but the ledger."""

    def __init__(self, lab: Lab, busses: dict[Role, Bus], clock: str) -> None:
        self.lab, self.clock_text, self.clock = lab, clock, parse_clock(clock)
        self._busses = busses
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """A ledger as a process of its own."""
        command = [sys.executable, "-m", "allmende.ledger"]
        with (self.lab.directory / "ledger.log").open("ab") as log:
            process = subprocess.Popen(command, env=self.lab.env("ledger", self.clock_text), stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """End what still runs; a ledger must never have ended by itself."""
        for process in self._processes:
            assert process.poll() in (None, -signal.SIGKILL), (self.lab.directory / "ledger.log").read_text()[-3_000:]
            process.kill()
            process.wait()

    async def publish(self, parcels: Iterable[Parcel]) -> None:
        """Store all on the server."""
        by_role: dict[Role, list[Any]] = {}
        for each in parcels:
            by_role.setdefault(each.role, []).append(each.outgoing)
        for role, outgoing in by_role.items():
            failed = [error for error in await self._busses[role].publish_many(outgoing) if error is not None]
            assert not failed, failed[:3]

    async def ask(self, row: subjects.Request, request: Any) -> Any:
        """Ask the ledger as an operator, patiently: it may be starting."""
        until = time.monotonic() + 30
        while True:
            try:
                return await ask(self._busses["operator"], row, "olga", request)
            except (Transient, Refusal) as error:
                if not isinstance(error, Transient) and error.problem.code != "unknown_cluster":
                    raise
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.2)

    async def state(self) -> LedgerState:
        """How complete the books are."""
        found: LedgerState = await self.ask(subjects.LEDGER_STATE, LedgerStateQuery(cluster=CLUSTER))
        return found

    async def until_settled(self, amount_gpu_ms: int, wait_s: float) -> LedgerState:
        """Wait until the books have this amount, or more."""
        until = time.monotonic() + wait_s
        while True:
            state = await self.state()
            if state.posted_gpu_ms >= amount_gpu_ms and not state.open_attempts:
                return state
            assert time.monotonic() < until, state
            await asyncio.sleep(0.5)

    async def postings(self) -> list[Posting]:
        """All postings, through the ledger's own answers."""
        found: list[Posting] = []
        after: int | None = 0
        while after is not None:
            page = await self.ask(subjects.POSTINGS, PostingsQuery(cluster=CLUSTER, after=after))
            found += page.postings
            after = page.next_after
        return found


@asynccontextmanager
async def theatre(lab: Lab, clock: str) -> AsyncIterator[Theatre]:
    busses: dict[Role, Bus] = {"agent": await lab.bus("agent", "c1"), "operator": await lab.bus("operator", "olga")}
    for role in ("admission", "budget"):
        busses[role] = await lab.bus(role)
    play = Theatre(lab, busses, clock)
    try:
        yield play
    finally:
        play.stop()


def scaled(at_ms: int, rate: int) -> str:
    """A clock that shows `at_ms` now."""
    return f"{time.time_ns() // 1_000_000}:{at_ms}:{rate}"
