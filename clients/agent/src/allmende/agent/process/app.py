"""Wires this machine to the SDK: takes over what an earlier agent left, runs until stopped, and leaves jobs as the settings say."""

import asyncio
import fcntl
import sys
from pathlib import Path
from typing import IO

from allmende.agent.process import cgroups
from allmende.agent.process.backend import ProcessBackend
from allmende.agent.process.config import ProcessSettings
from allmende.agent.process.machine import node_of, open_nvml
from allmende.agent.program import Footing
from allmende.agent.sdk.agent import Agent, Pace
from allmende.agent.sdk.journal import Journal
from allmende.chassis.errors import Misconfigured
from allmende.chassis.log import get_logger

# What a job has to leave in when the machine leaves the cluster; `allmende up` waits 10 s for the agent.
GRACE_S = 4.0
# For the ledger's confirmations, and for the bus to take what is said last.
SETTLE_S = 3.0

_log = get_logger(__name__)


async def run(footing: Footing, settings: ProcessSettings) -> None:
    """Be the machine until stopped.

    Raises:
        Misconfigured: the folder belongs to another agent or cannot be written, or no GPU is found.
    """
    if sys.platform != "linux":
        raise Misconfigured("the process agent needs Linux: it looks after processes with its means")
    folder = Path(settings.folder)
    with _held(folder):
        nvml = open_nvml()
        node = node_of(settings.node, settings.gpus, nvml)
        backend = ProcessBackend(folder, node, footing.clock, cgroups.find() if settings.cgroups else None, nvml)
        journal = Journal(folder / "ends")
        agent = Agent(
            cluster=settings.cluster,
            bus=footing.bus,
            clock=footing.clock,
            ids=footing.ids,
            backend=backend,
            pace=Pace(tick_ms=settings.tick_ms, tick_real_ms=settings.tick_ms),
            journal=journal,
        )
        await _take_over(agent, backend, journal)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(agent.run())
            await footing.stopped.wait()
            if settings.at_stop == "end":
                agent.node_changed(node._replace(healthy_gpus=0, reason="the agent was switched off"), footing.clock.now_ms())
                await backend.end_all(GRACE_S)
                if not await agent.settle(SETTLE_S):
                    _log.warning("left before the ledger confirmed all", unconfirmed=agent.unconfirmed, spooled=agent.spooled)
            running.cancel()
        journal.close()


async def _take_over(agent: Agent, backend: ProcessBackend, journal: Journal) -> None:
    found, died = await backend.left_behind()
    for running in found:
        if journal.knows(running.launch.attempt):
            # Killed between its end and the end of its folder.
            backend.forget(running.launch.attempt)
        else:
            agent.adopt(running)
    for record in died:
        if not journal.knows(record.attempt):
            agent.lost(record.attempt, record.job, "the machine was started anew; its jobs died with it")
        backend.forget(record.attempt)


def _held(folder: Path) -> IO[str]:
    """The folder, made where it is missing, locked while this process lives."""
    if not folder.is_absolute():
        raise Misconfigured(f"the folder {folder} must be given from the root on: jobs are told of it")
    try:
        for part in (folder, folder / "attempts", folder / "jobs", folder / "logs"):
            part.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = (folder / "agent.lock").open("w")
    except OSError as error:
        raise Misconfigured(f"nothing can be kept in {folder} ({error.strerror}): set ALLMENDE_PROCESS_FOLDER") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise Misconfigured(f"another agent keeps {folder}: one at a time") from None
    return lock
