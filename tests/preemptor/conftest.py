"""A preemptor over a database. A file that begins with more has a fixture of the same name that takes this one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from allmende.chassis.embedded import PostgresServer
from allmende.chassis.fakes import ManualClock
from tests.preemptor.messages import START_MS, Ear
from tests.servers import Lab


@pytest_asyncio.fixture
async def ear(tmp_path: Path, postgres: PostgresServer) -> AsyncIterator[Ear]:
    """It has heard nothing yet."""
    # Not opened: no bus is needed here.
    lab = Lab(tmp_path, postgres)
    yield Ear(await lab.database("preemptor"), ManualClock(START_MS))
    await lab.close()
