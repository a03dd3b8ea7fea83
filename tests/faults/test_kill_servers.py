"""The servers of a demo are killed with -9: nothing that was said is lost, and they are started again."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import asyncpg
import pytest

from allmende.chassis.embedded import start_postgres
from allmende.cli.lab.running import FAST_POSTGRES
from tests.system.demonstration import Demo, demo, processes_of

COMMITS = 50
PATIENCE_S = 30.0


async def test_a_killed_backend_loses_no_commit_in_the_demo_either(tmp_path: Path) -> None:
    """What was said cannot be taken back: a lost grant gives its number to the next one, and the books refuse that one."""
    postgres = await start_postgres(tmp_path / "postgres", settings=FAST_POSTGRES)
    try:
        await postgres.create_database("lab")
        url = postgres.dsn("lab", "postgres")
        connection, witness = await asyncpg.connect(url), await asyncpg.connect(url)
        ended = asyncio.Event()
        witness.add_termination_listener(lambda _connection: ended.set())
        await connection.execute("CREATE TABLE said (seq int)")
        for seq in range(COMMITS):
            await connection.execute("INSERT INTO said VALUES ($1)", seq)
        os.kill(connection.get_server_pid(), signal.SIGKILL)
        # The server ends every session once it has noticed: before that it would still let people in.
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        again = await _recovered(url)
        assert await again.fetchval("SELECT count(*) FROM said") == COMMITS
        await again.close()
        connection.terminate()
    finally:
        await postgres.stop()


async def _recovered(url: str) -> asyncpg.Connection:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await asyncpg.connect(url)
            except (OSError, asyncpg.PostgresError):  # it is recovering: nothing announces the end of that
                await asyncio.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
@pytest.mark.timeout(240)  # a whole demo, and two servers started twice
async def test_nats_and_postgresql_are_killed_in_mid_demo_and_started_again(tmp_path: Path) -> None:
    async with demo(tmp_path, seconds=3_600, gpus=256, seed=8) as it:
        await _life_goes_on(it, 60)
        for name, words in (("NATS", "nats-server"), ("PostgreSQL", "bin/postgres")):
            (server,) = [pid for pid, line in processes_of(it.folder).items() if line[0].endswith(words)]
            os.kill(server, signal.SIGKILL)
            await it.until(lambda name=name: f"{name} ended and is started again" in it.screen, f"{name} is started again")  # type: ignore[misc]
            await _life_goes_on(it, 60)
        it.interrupt()
        figures = await it.judged()
        assert "still has open attempts" not in it.screen
        assert figures["jobs_finished"] > 0


async def _life_goes_on(it: Demo, events: int) -> None:
    wanted = it.truths() + events
    await it.until(lambda: it.truths() >= wanted, f"{events} more starts and ends")
