"""The keeper of one replica: starts its command, passes signals on, and ends when no process of it is left. Outlives the agent.

Started as a script of its own (`python -I -S keeper.py FOLDER`), so it imports nothing of Allmende. What to run comes as JSON on
its standard input, for it may hold secrets. Never kills a process that is not its own direct child: nobody else can reap those, so
an id cannot have been given to a stranger meanwhile. As their subreaper it becomes the parent of whatever they leave behind.

In FOLDER: `alive` is locked while the keeper lives, `orders` takes T (SIGTERM), K (SIGKILL), 1 and 2 (SIGUSR1 and 2 to the
command), `exit` appears at the end. One line on standard output says that the command runs.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# As a shell has it: there is no such command, or it cannot be run.
NOT_FOUND, NOT_RUN = 127, 126
_TO_COMMAND = {b"1": signal.SIGUSR1, b"2": signal.SIGUSR2}
# Killed processes leave within milliseconds; only what hangs in the kernel is waited for longer, as long as it takes.
_LOOK_AGAIN_S = 0.02


def boot_ms() -> int:
    """Milliseconds since the machine was started, those included in which it slept."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Keeper:
    """One replica. `told`: a signal of ours was sent before the command ended."""

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self._folder, self._spec = folder, spec
        self._cgroup = Path(spec["cgroup"]) if spec["cgroup"] else None
        self._started: subprocess.Popen[bytes] | None = None
        self._main: int | None = None
        self._code: int | None = None
        self.told = False

    def start(self) -> None:
        """Start the command. One that cannot be started has ended with a shell's exit code and a sentence in its log."""
        account = self._spec["account"]
        log = os.open(self._spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        if account:
            os.fchown(log, account["uid"], account["gid"])
        who = {"user": account["uid"], "group": account["gid"], "extra_groups": account["groups"]} if account else {}
        home = self._enter()
        try:
            started = subprocess.Popen(
                self._spec["command"],
                env=self._spec["environment"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self._prepare,
                **who,
            )
            # Held on to: dropped, it would reap its process unseen.
            self._started = started
            self._main = started.pid
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN
            os.write(log, f"allmende: {self._why(error)}\n".encode())
        finally:
            self._leave(home)
            os.close(log)

    def _why(self, error: Exception) -> str:
        directory = self._spec["directory"]
        if isinstance(error, subprocess.SubprocessError):
            return f"the folder {directory} cannot be entered"
        return f"{self._spec['command'][0]} cannot be started: {getattr(error, 'strerror', None) or error}"

    def _prepare(self) -> None:
        # After the change of user: what the person may not enter is not entered in the agent's name.
        os.umask(0o022)
        os.chdir(self._spec["directory"])
        # Should the keeper be killed, its command must not run on unseen.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def _enter(self) -> str | None:
        """Go into the replica's cgroup for the time of the start, so that the command begins its life there."""
        if self._cgroup is None:
            return None
        home = Path("/proc/self/cgroup").read_text().split("0::", 1)[1].split("\n", 1)[0]
        (self._cgroup / "cgroup.procs").write_text("0")
        return str(Path(self._spec["cgroup_mount"], home.lstrip("/")))

    def _leave(self, home: str | None) -> None:
        if home is not None:
            Path(home, "cgroup.procs").write_text("0")

    # ---------------------------------------------------------------------------------------------------------------- signals

    def obey(self, orders: bytes) -> None:
        """Carry out what the agent wrote."""
        for order in orders:
            self._obey(bytes([order]))

    def _obey(self, order: bytes) -> None:
        if order in (b"T", b"K"):
            self.told = self.told or self._main is not None
        if order == b"T":
            self._terminate()
        elif order == b"K":
            self.kill()
        elif order in _TO_COMMAND and self._main is not None:
            os.kill(self._main, _TO_COMMAND[order])

    def _terminate(self) -> None:
        if self._main is not None:
            # Not reaped yet, so the group is still the command's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._main, signal.SIGTERM)
        for child in children():
            if child != self._main:
                os.kill(child, signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL for all; returns how many of them were direct children."""
        if self._cgroup is not None:
            with contextlib.suppress(OSError):
                (self._cgroup / "cgroup.kill").write_text("1")
        found = children()
        for child in found:
            os.kill(child, signal.SIGKILL)
        return len(found)

    # ------------------------------------------------------------------------------------------------------------------- ends

    def reap(self) -> bool:
        """Take in whatever has ended; True once the command has."""
        while (ended := _ended()) is not None:
            pid, status = ended
            if pid == self._main:
                self._main, code = None, os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code
        return self._main is None

    def clear(self) -> int:
        """Kill what the command left behind until nothing is there; returns how many there were at first."""
        left = len(children())
        while True:
            self.kill()
            self.reap()
            if not children() and self._is_empty():
                return left
            select.select([], [], [], _LOOK_AGAIN_S)

    def _is_empty(self) -> bool:
        return self._cgroup is None or "populated 0" in (self._cgroup / "cgroup.events").read_text()

    def close(self, left: int) -> None:
        """Write the end, whole or not at all."""
        part = self._folder / "exit.part"
        part.write_text(json.dumps({"code": self._code, "told": self.told, "at_boot_ms": boot_ms(), "left": left}))
        # Before the end is said: afterwards nothing of ours is touched any more.
        if self._cgroup is not None:
            with contextlib.suppress(OSError):
                self._cgroup.rmdir()
        part.replace(self._folder / "exit")


def _ended() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def children() -> list[int]:
    """Our direct children, those included that have ended and are not reaped."""
    own, found = os.getpid(), []
    for entry in os.listdir("/proc"):  # noqa: PTH208 a thousand Path objects for each look would cost more than the look
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as stat:  # noqa: PTH123
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == own:
                found.append(int(entry))
    return found


def detach() -> None:
    """Become nobody's child: the agent must neither reap us nor, when its loop is closed, kill us. Nothing of it is held open."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if os.fork():
        os._exit(0)


def main(folder: Path) -> None:
    """Keep one replica until its end."""
    detach()
    # A bare descriptor: an object would be closed, and the lock be gone, while the interpreter is still clearing up.
    fcntl.flock(os.open(folder / "alive", os.O_WRONLY | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.mkfifo(folder / "orders", 0o600)
    # For writing as well: without a writer it would be readable for ever.
    orders = os.open(folder / "orders", os.O_RDWR | os.O_NONBLOCK)
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    keeper = Keeper(folder, json.load(sys.stdin))
    # Whoever ends the keeper politely means the job.
    signal.signal(signal.SIGTERM, lambda *_: keeper.obey(b"T"))
    keeper.start()
    # The agent may be gone already; then nobody reads it.
    with contextlib.suppress(OSError):
        os.write(1, b"runs\n")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nowhere, number)
    while not keeper.reap():
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            os.read(woken, 4_096)
        if orders in ready:
            keeper.obey(os.read(orders, 64))
    keeper.close(keeper.clear())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
