"""A nats-server on this machine, for a laptop, a test or the demo. Never for a deployment."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from allmende.chassis import accounts
from allmende.chassis.accounts import Account, ServerConf
from allmende.chassis.clock import real_seconds
from allmende.chassis.embedded.process import Guarded
from allmende.chassis.errors import Misconfigured

# 2.14: the reset of a consumer, with which a service that was killed gets its unacknowledged messages back at once and not after
# the ack wait (see bus.pull); and the flag that pins the form of acknowledgements.
OLDEST_VERSION = (2, 14, 0)
START_S = 20.0
_POLL_S = 0.005
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


def find_nats_server() -> tuple[Path, tuple[int, int, int]]:
    """The program and its version: from PATH when new enough, else the one of the `embedded` extra beside this Python.

    Raises:
        Misconfigured: there is none.
    """
    seen: list[str] = []
    for candidate in (shutil.which("nats-server"), str(Path(sys.executable).with_name("nats-server"))):
        if candidate is None or not Path(candidate).exists():
            continue
        version = _version(candidate)
        if version is not None and version >= OLDEST_VERSION:
            return Path(candidate), version
        seen.append(f"{candidate} is {version}")
    oldest = ".".join(str(part) for part in OLDEST_VERSION)
    raise Misconfigured(
        f"no nats-server {oldest} or later: install allmende-chassis[embedded], or put one on PATH ({'; '.join(seen)})"
    )


def _version(program: str) -> tuple[int, int, int] | None:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=10)
    match = _VERSION.search(answer.stdout + answer.stderr)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


class NatsServer:
    """A nats-server with its data in a folder. The port is chosen at the first start and kept for later ones of this object."""

    def __init__(
        self, directory: Path, users: Sequence[Account], server_name: str, port: int = 0, *, sync_always: bool = True
    ) -> None:
        self.directory = directory.resolve()
        self.server_name = server_name
        self.port = port
        self._sync_always = sync_always
        self._users = tuple(users)
        self._program, self._version = find_nats_server()
        self._process: Guarded | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """False before the start and after the end."""
        return self._process is not None and self._process.running

    @property
    def _ports(self) -> Path:
        return self.directory / "ports"

    def write_conf(self) -> Path:
        """Write nats.conf for the users."""
        path = self.directory / "nats.conf"
        conf = ServerConf(
            self.server_name,
            self.directory / "jetstream",
            port=self.port or -1,
            ports_dir=self._ports,
            version=self._version,
            sync_always=self._sync_always,
        )
        accounts.write(path, conf, self._users)
        return path

    async def start(self) -> None:
        """Start, and wait until clients can connect.

        Raises:
            Misconfigured: it ended, or did not come up in time.
        """
        assert not self.running, "already started"
        await asyncio.to_thread(self._launch)
        until = real_seconds() + START_S
        while not await self._is_ready():
            assert self._process is not None
            if not self._process.running or real_seconds() > until:
                words = self._process.last_words()
                await self.stop()
                raise Misconfigured(f"nats-server did not come up: {words}")
            await asyncio.sleep(_POLL_S)

    def _launch(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(self._ports, ignore_errors=True)
        self._ports.mkdir()
        conf = self.write_conf()
        self._process = Guarded([str(self._program), "-c", str(conf)], log=self.directory / "nats.log")

    async def _is_ready(self) -> bool:
        """The server names its port in a file once it listens; no guessing of free ports, so no race for them."""
        if self._process is None or self.port == 0:
            for path in self._ports.glob("*.ports"):
                try:
                    urls = json.loads(path.read_text())["nats"]
                except (ValueError, KeyError):
                    return False  # half written
                self.port = int(urls[0].rpartition(":")[2])
                return True
            return False
        if not any(self._ports.glob("*.ports")):
            return False
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        greeting = await reader.readline()
        writer.close()
        # Somebody else's server may have taken the port meanwhile.
        return f'"server_name":"{self.server_name}"'.encode() in greeting

    def set_users(self, users: Sequence[Account]) -> None:
        """Let users come and go; a running server reads its file again."""
        self._users = tuple(users)
        self.write_conf()
        if self.running:
            accounts.reload(self.pid)

    async def stop(self) -> None:
        """End cleanly; the data stay."""
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    async def kill(self) -> None:
        """End as in a power cut; the data stay."""
        assert self._process is not None, "not started"
        await asyncio.to_thread(self._process.kill)


async def start_nats(
    directory: Path, users: Sequence[Account], *, server_name: str, port: int = 0, sync_always: bool = True
) -> NatsServer:
    """Start a nats-server with its data and configuration in a folder. Port 0: any free one.

    `sync_always` False (tests only): quicker, and what was confirmed can be lost when the machine, not the server, dies.

    Raises:
        Misconfigured: no usable program, or it did not come up.
    """
    server = NatsServer(directory, users, server_name, port, sync_always=sync_always)
    await server.start()
    return server
