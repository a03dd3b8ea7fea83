"""Fixtures for what must be closed again: servers. See tests/servers.py for what a `lab` is.

Each worker (tests/workers.py) has a session of its own: its PostgreSQL server, its temporary folders, random ports.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from allmende.chassis.embedded import PostgresServer
from allmende.chassis.errors import Misconfigured
from tests import workers
from tests.servers import Lab, start_session_postgres


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Our units, unless somebody asks for one of pytest-xdist's own ways with --dist."""
    return workers.scheduler(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker: the order in which units are handed out."""
    if hasattr(config, "workerinput"):
        workers.sort(items)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PostgresServer]:
    """One PostgreSQL server for the whole session."""
    try:
        server = await start_session_postgres(tmp_path_factory.mktemp("postgres"))
    except Misconfigured as error:
        pytest.skip(f"no PostgreSQL here: {error}")
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def lab(tmp_path: Path, postgres: PostgresServer) -> AsyncIterator[Lab]:
    """Real servers with users, streams and consumers, for one test."""
    lab = Lab(tmp_path, postgres)
    try:
        await lab.open()
    except Misconfigured as error:
        pytest.skip(f"no NATS server here: {error}")
    try:
        yield lab
    finally:
        await lab.close()
