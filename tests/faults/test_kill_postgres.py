"""The demo's PostgreSQL, quick as it is, keeps what was committed when one of its processes is killed."""

import asyncio
import os
import signal
from pathlib import Path

import asyncpg

from allmende.chassis.embedded import start_postgres
from allmende.cli.lab.running import FAST_POSTGRES

COMMITS = 50
TRIES = 100


async def test_a_killed_backend_loses_no_commit_in_the_demo_either(tmp_path: Path) -> None:
    """What was said cannot be taken back: a lost grant gives its number to the next one, and the books refuse that one."""
    postgres = await start_postgres(tmp_path / "postgres", settings=FAST_POSTGRES)
    try:
        await postgres.create_database("lab")
        url = postgres.dsn("lab", "postgres")
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE said (seq int)")
        for seq in range(COMMITS):
            await connection.execute("INSERT INTO said VALUES ($1)", seq)
        os.kill(connection.get_server_pid(), signal.SIGKILL)
        again = await _recovered(url)
        assert await again.fetchval("SELECT count(*) FROM said") == COMMITS
        await again.close()
        connection.terminate()
    finally:
        await postgres.stop()


async def _recovered(url: str) -> asyncpg.Connection:
    for _ in range(TRIES):
        try:
            # The killed one's end is noticed a moment later: until then the old server still lets people in.
            connection = await asyncpg.connect(url)
            await asyncio.sleep(0.2)
            await connection.fetchval("SELECT 1")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await asyncio.sleep(0.1)
        else:
            return connection
    raise AssertionError("PostgreSQL did not recover")
