"""A service that tests start as a process: the ledger's role, nothing of its work. Its manner of ending is the setting `manner`."""

import asyncio
from typing import Literal

from allmende.chassis.boot import BaseSettings, Chassis, main
from allmende.chassis.errors import StaleTerm


class Settings(BaseSettings, frozen=True, kw_only=True):
    """`manner`: how the service behaves once it runs."""

    manner: Literal["wait", "return", "assert", "stale", "hang"] = "wait"


async def run(chassis: Chassis, settings: Settings) -> None:
    """Behave as told."""
    chassis.health.ready("trial", True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_behave(settings.manner))


async def _behave(manner: str) -> None:
    if manner == "assert":
        raise AssertionError("the books do not balance")
    if manner == "stale":
        raise StaleTerm("taken over")
    while manner in ("wait", "hang"):
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            if manner == "wait":
                raise


if __name__ == "__main__":
    main("ledger", Settings, run)
