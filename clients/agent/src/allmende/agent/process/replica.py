"""One replica as the agent sees it: a folder, in which its keeper is told things and leaves its end. Holds no process id.

Whether the keeper lives is a lock that the system frees with it; what it is told goes through a FIFO that only it reads.
"""

import asyncio
import fcntl
import os
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

KEEPER = Path(__file__).with_name("keeper.py")
# A keeper is there after some 20 ms; on a machine that swaps it may take longer.
START_S = 20.0


class Spec(Struct, frozen=True, kw_only=True):
    """What a keeper is to start. `account` None: as the agent itself."""

    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    log: str
    account: dict[str, int | tuple[int, ...]] | None
    cgroup: str | None
    cgroup_mount: str | None


class Gone(Struct, frozen=True, kw_only=True):
    """The end of a replica: no process of it is left. `at_boot_ms` is CLOCK_BOOTTIME; `left`: what the command left behind."""

    code: int | None
    told: bool
    at_boot_ms: int
    left: int


class Replica(NamedTuple):
    """One replica's folder."""

    folder: Path

    async def start(self, spec: Spec) -> bool:
        """Start a keeper and its command; False when it did not come up."""
        self.folder.mkdir(mode=0o700)
        keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(KEEPER), str(self.folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Never the agent's terminal or log file: the keeper may outlive both.
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={},
        )
        try:
            async with asyncio.timeout(START_S):
                # Returns when the keeper has let go of both pipes; it has left our care by then.
                said, _ = await keeper.communicate(msgspec.json.encode(spec))
        except (TimeoutError, OSError):
            return False
        return said == b"runs\n"

    def tell(self, order: bytes) -> None:
        """Give the keeper an order; nothing when there is none any more."""
        try:
            orders = os.open(self.folder / "orders", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(orders, order)
        except OSError:
            return
        finally:
            os.close(orders)

    @property
    def lives(self) -> bool:
        """True while the keeper does."""
        try:
            with (self.folder / "alive").open("r+") as alive:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def gone(self) -> Gone | None:
        """The end, once the keeper has written it."""
        try:
            return msgspec.json.decode((self.folder / "exit").read_bytes(), type=Gone)
        except FileNotFoundError:
            return None
