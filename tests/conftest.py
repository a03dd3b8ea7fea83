"""Fixtures for what must be closed again: servers. See tests/servers.py for what a `lab` is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from allmende.chassis.embedded import PostgresServer
from allmende.chassis.errors import Misconfigured
from tests.servers import Lab, start_session_postgres


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
