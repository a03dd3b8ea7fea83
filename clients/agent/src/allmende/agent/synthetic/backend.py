"""A synthetic cluster as a backend of the SDK: moves the cluster along the clock and hands on what happens."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from allmende.agent.sdk.backend import Cause, Exit, Launch, NodeState, Notices, Vitals
from allmende.agent.synthetic.cluster import Cluster
from allmende.agent.synthetic.truth import AnyRecord, to_line
from allmende.chassis.ports import Clock
from allmende.proto.units import Ms


class TruthFile:
    """The log on disk. Each line is with the operating system when `write` returns, so it survives the death of this process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, record: AnyRecord) -> None:
        """Append one line."""
        line = to_line(record)
        written = os.write(self._file.fileno(), line)
        assert written == len(line), "the disk is full: without the truth there is nothing to compare with"

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SyntheticBackend:
    """See `sdk.backend.Backend`. Exact: `observe` lets everything happen that is due first."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._notices: Notices | None = None
        self._stir = asyncio.Event()

    async def run(self, notices: Notices) -> None:
        """Move the cluster from due instant to due instant."""
        self._notices = notices
        while True:
            self._move(self._clock.now_ms())
            # After the move, which stirs as well: cleared before it, the loop would wake itself for ever.
            self._stir.clear()
            due_ms = self._cluster.next_due_ms
            if due_ms is None:
                await self._stir.wait()
                continue
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(self._clock.sleep_until(due_ms)), group.create_task(self._wait_for_stir())]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in waiting:
                    task.cancel()

    async def nodes(self) -> Sequence[NodeState]:
        """All nodes as they are now."""
        self._move(self._clock.now_ms())
        return self._cluster.nodes

    async def start(self, launch: Launch) -> Ms:
        """Start an attempt (see `Cluster.start`)."""
        at_ms = self._clock.now_ms()
        self._cluster.start(launch, at_ms)
        self._hand_on()
        return at_ms

    async def terminate(self, attempt: str, cause: Cause) -> None:
        """SIGTERM."""
        self._cluster.terminate(attempt, cause, self._clock.now_ms())
        self._hand_on()

    async def kill(self, attempt: str, cause: Cause) -> None:
        """SIGKILL."""
        self._cluster.kill(attempt, cause, self._clock.now_ms())
        self._hand_on()

    async def observe(self, at_ms: Ms) -> Mapping[str, Vitals]:
        """What runs, after everything that was due by then has happened."""
        self._move(at_ms)
        return self._cluster.vitals(at_ms)

    def power_off(self) -> Ms:
        """Every node goes down, and all that runs with it; returns the instant."""
        at_ms = self._clock.now_ms()
        self._cluster.power_off(at_ms)
        self._hand_on()
        return at_ms

    def _move(self, now_ms: Ms) -> None:
        self._cluster.advance(now_ms)
        self._hand_on()

    def _hand_on(self) -> None:
        if self._notices is not None:
            for it in self._cluster.happened():
                if isinstance(it, Exit):
                    self._notices.exited(it)
                else:
                    self._notices.node_changed(it.state, it.at_ms)
        self._stir.set()

    async def _wait_for_stir(self) -> None:
        await self._stir.wait()
