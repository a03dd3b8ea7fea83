"""The ledger as a process of its own over a real NATS server and a real PostgreSQL, beside a bare loop on the same stream.

128 nodes tick every 10 s of the clock with 8 running attempts each. The bare loop pulls, decodes and acknowledges as many messages
of the same size and does nothing else. Both begin with the whole backlog stored, so that the publisher costs neither of them
anything. PostgreSQL does not wait for the disk, as in the tests; the ledger and both servers share the machine's cores.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from time import perf_counter, time_ns

from allmende.chassis.ports import Bus
from allmende.proto import agent
from allmende.proto.envelope import decode
from allmende.proto.ledger import UsageStanding
from allmende.proto.message import Message
from allmende.proto.units import DAY_MS, MINUTE_MS, SECOND_MS, Ms
from tests.ledger.builders import counter, granted, node, started, tick, tree
from tests.ledger.gauges import Parcel, parcel
from tests.ledger.theatre import Theatre, theatre
from tests.servers import Lab, start_session_postgres

NODES, ATTEMPTS_A_MESSAGE = 128, 8
ATTEMPTS = NODES * ATTEMPTS_A_MESSAGE
TICK_MS = 10 * SECOND_MS
# A busy job that saves its progress every half hour.
BUSY_PERCENT, CHECKPOINT_EVERY_MS = 90, 30 * MINUTE_MS
# Of the backlog each node has so many ticks; the paced part lasts so many seconds.
BACKLOG, PACED_S, PACE_S = 300, 20.0, 0.05
# Advances over which memory is watched; the first tenth fills caches.
MEMORY_ADVANCES = 10_000_000
PATIENCE_S = 1_200.0


def bench() -> dict[str, float]:
    """The four figures that issue 5 asks for, each with its bound, and what they were made of."""
    folder = Path(tempfile.mkdtemp(prefix="allmende-bench-"))
    try:
        return asyncio.run(_bench(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _bench(folder: Path) -> dict[str, float]:
    postgres = await start_session_postgres(folder / "postgres")
    lab = Lab(folder / "lab", postgres)
    try:
        await lab.open()
        async with theatre(lab, "real") as play:
            return await _Run(lab, play, await lab.bus("ledger"), await lab.bus("admission")).measured()
    finally:
        await lab.close()
        await postgres.stop()


class _Run:
    """One run: the ticks go on where the part before has ended."""

    def __init__(self, lab: Lab, play: Theatre, ledger: Bus, admission: Bus) -> None:
        self._play = play
        self._usage = ledger.subscribe("USAGE", "ledger")
        self._standings = admission.subscribe("STANDINGS", "admission")
        self._numbers = count(1)
        # An advance may not be ahead of the clock: the attempts began long ago.
        self._start_ms: Ms = (time_ns() // 1_000_000 - 6 * DAY_MS) // (5 * MINUTE_MS) * (5 * MINUTE_MS)
        self._seq = 0

    async def measured(self) -> dict[str, float]:
        """The parts one after another."""
        await self._play.publish(self._ticks(BACKLOG))
        bare = NODES * BACKLOG / await self._bare_s()
        process = self._play.start()
        await self._play.publish([*self._lab(), *self._ticks(1)])
        await self._handled()
        ledger = NODES * BACKLOG / await self._backlog_s(process)
        late = sorted(await self._paced(ledger / 2))
        assert late, "no standing counted any of the paced ticks"
        grown = await self._memory_growth(process)
        return {
            "ratio_to_bare_loop": round(ledger / bare, 3),
            "ratio_to_bare_loop_min": 0.3,
            "advances_per_s": round(ledger * ATTEMPTS_A_MESSAGE),
            "advances_per_s_min": 30_000,
            "tick_to_standing_p99_s": round(late[int(len(late) * 0.99)], 3),
            "tick_to_standing_p50_s": round(late[len(late) // 2], 3),
            "tick_to_standing_p99_s_max": 1.5,
            "rss_growth_mib": round(grown, 1),
            "bare_loop_messages_per_s": round(bare),
            "ledger_messages_per_s": round(ledger),
        }

    async def _bare_s(self) -> float:
        begun, left = perf_counter(), NODES * BACKLOG
        async with asyncio.timeout(PATIENCE_S):
            while left > 0:
                deliveries = await self._usage.pull(512, 1.0)
                for delivery in deliveries:
                    decode(delivery.data)
                await self._usage.ack(deliveries)
                left -= len(deliveries)
        return perf_counter() - begun

    async def _backlog_s(self, process: "subprocess.Popen[bytes]") -> float:
        process.send_signal(signal.SIGSTOP)
        await self._play.publish(self._ticks(BACKLOG))
        begun = perf_counter()
        process.send_signal(signal.SIGCONT)
        await self._handled()
        return perf_counter() - begun

    async def _paced(self, messages_per_s: float) -> Sequence[float]:
        """Of each tick the seconds from when it was stored until a standing that counts it could be read."""
        base = self._charged()
        sent: list[tuple[int, float]] = []
        late: list[float] = []
        reader = asyncio.get_running_loop().create_task(self._read_standings(sent, late))
        begun, published = perf_counter(), 0
        ticks = self._ticks(int(messages_per_s * PACED_S / NODES))
        while (passed := perf_counter() - begun) < PACED_S:
            due = [each for _, each in zip(range(int(messages_per_s * passed) - published), ticks, strict=False)]
            if due:
                await self._play.publish(due)
                published += len(due)
                # Ticks are in the order of their amounts, so one that is counted stands for those before it.
                sent.append((base + published * ATTEMPTS_A_MESSAGE * TICK_MS, perf_counter()))
            await asyncio.sleep(PACE_S)
        await self._play.publish(ticks)
        async with asyncio.timeout(60):
            await reader
        return late

    async def _read_standings(self, sent: list[tuple[int, float]], late: list[float]) -> None:
        begun = perf_counter()
        while perf_counter() - begun < PACED_S or len(late) < len(sent):
            deliveries = await self._standings.pull(100, 0.5)
            for delivery in deliveries:
                body = decode(delivery.data).body
                if isinstance(body, UsageStanding) and body.budget == "org":
                    now = perf_counter()
                    while len(late) < len(sent) and sent[len(late)][0] <= body.charged_gpu_ms:
                        late.append(now - sent[len(late)][1])
            await self._standings.ack(deliveries)

    async def _memory_growth(self, process: "subprocess.Popen[bytes]") -> float:
        """MiB that the ledger has grown between the first tenth and the end."""
        rounds = MEMORY_ADVANCES // ATTEMPTS
        early = 0.0
        for part in range(10):
            await self._play.publish(self._ticks(rounds // 10))
            await self._handled()
            early = early if part else _rss_mib(process.pid)
        return _rss_mib(process.pid) - early

    async def _handled(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            # The server has no word for "all is acknowledged", so it is asked.
            while await self._usage.lag():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def _charged(self) -> int:
        return self._seq * TICK_MS * ATTEMPTS

    def _lab(self) -> Iterator[Parcel]:
        yield from (self._sealed(body) for body in tree(at_ms=self._start_ms))
        yield from (self._sealed(node(f"n{number}", at_ms=self._start_ms)) for number in range(NODES))
        for number in range(1, ATTEMPTS + 1):
            yield self._sealed(granted(number, at_ms=self._start_ms))
            yield self._sealed(started(number, self._start_ms))

    def _ticks(self, rounds: int) -> Iterator[Parcel]:
        """So many ticks of each node, after those of before."""
        for _ in range(rounds):
            self._seq += 1
            for number in range(NODES):
                first = number * ATTEMPTS_A_MESSAGE + 1
                counters = [self._counter(each) for each in range(first, first + ATTEMPTS_A_MESSAGE)]
                yield self._sealed(tick(*counters, name=f"n{number}"))

    def _counter(self, number: int) -> agent.Counter:
        """All that an agent's SDK sends: also how long the devices were busy, and the last checkpoint."""
        held_ms = self._seq * TICK_MS
        return counter(
            number,
            held_ms,
            self._seq,
            since_ms=self._start_ms,
            busy_gpu_ms=held_ms * BUSY_PERCENT // 100,
            checkpoint_at_ms=self._start_ms + held_ms - held_ms % CHECKPOINT_EVERY_MS,
        )

    def _sealed(self, body: Message) -> Parcel:
        return parcel(body, next(self._numbers), time_ns() // 1_000_000)


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
