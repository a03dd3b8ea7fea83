"""A guarded server process: started, awaited, stopped, killed. See `guard` for why there is a process between."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from allmende.chassis.errors import Misconfigured

_GUARD = Path(__file__).with_name("guard.py")
# Beyond the guard's own patience.
_STOP_S = 15.0


class Guarded:
    """A running server. `pid` is the server's own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        stop_signal: str = "SIGTERM",
        remove: Path | None = None,
        user: str | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._from = output.tell()
            # -I -S: nothing of our environment or packages is read, so it starts in a few milliseconds.
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), stop_signal, str(remove or "-"), user or "-", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        line = self._guard.stdout.readline()
        self._guard.stdout.close()
        if not line:
            self._guard.wait()
            raise Misconfigured(f"{command[0]} could not be started: {self.last_words()}")
        self.pid = int(line)

    @property
    def running(self) -> bool:
        """False once it has ended."""
        return self._guard.poll() is None

    def last_words(self) -> str:
        """The end of what it has said, for an error message; not what an earlier one has said into the same log."""
        said = self.log.read_bytes()[self._from :] if self.log.exists() else b""
        lines = said.decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-5:]) or "it said nothing"

    def stop(self) -> int:
        """Have it end cleanly, and wait. Its exit code. A second call does nothing."""
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        try:
            return self._guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            return self._guard.wait()

    def kill(self) -> None:
        """End it with SIGKILL, as a power cut would, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.stop()


def run(command: Sequence[str], *, log: Path, user: str | None) -> None:
    """Run a command to its end, as another user where asked.

    Raises:
        Misconfigured: it failed; with the end of its log.
    """
    process = Guarded(command, log=log, user=user)
    code = process._guard.wait()
    process.stop()
    if code != 0:
        raise Misconfigured(f"{command[0]} failed with code {code}: {process.last_words()}")
