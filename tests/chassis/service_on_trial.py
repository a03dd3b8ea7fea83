"""A service that tests start as a process: the ledger's role, nothing of its work. Its manner of ending is the setting `manner`."""

import asyncio
from typing import Literal

from allmende.chassis.boot import BaseSettings, Chassis, main
from allmende.chassis.errors import StaleTerm
from allmende.chassis.rpc import endpoint
from allmende.proto import subjects
from allmende.proto.ledger import LedgerState, LedgerStateQuery


class Settings(BaseSettings, frozen=True, kw_only=True):
    """`manner`: how the service behaves once it runs."""

    manner: Literal["wait", "return", "assert", "stale", "hang", "mute"] = "wait"


async def run(chassis: Chassis, settings: Settings) -> None:
    """Behave as told."""
    chassis.health.ready("trial", True)
    if settings.manner == "mute":
        await _behave(settings.manner)
    async with chassis.answering("ledger", "0.1.0", [endpoint(subjects.LEDGER_STATE, _state)]), asyncio.TaskGroup() as tasks:
        tasks.create_task(_behave(settings.manner))


async def _state(caller: str, query: LedgerStateQuery) -> LedgerState:
    return LedgerState(cluster=query.cluster, postings=0, posted_gpu_ms=0, open_attempts=0, unattributed_counters=0, quarantined=0)


async def _behave(manner: str) -> None:
    if manner == "assert":
        raise AssertionError("the books do not balance")
    if manner == "stale":
        raise StaleTerm("taken over")
    while manner in ("wait", "hang", "mute"):
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            if manner != "hang":
                raise


if __name__ == "__main__":
    main("ledger", Settings, run)
