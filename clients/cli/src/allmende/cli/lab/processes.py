"""Child processes that are started, watched, started again when they die, and never left behind.

Knows nothing of Allmende: a name, a command line, an environment, a log file.
"""

import asyncio
import ctypes
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

# A process that dies sooner than this after its start is waited for a little before the next try, so that a fault does not spin.
QUICK_DEATH_S = 2.0
RETRY_S = 0.5
# Services promise to leave within 5 s of SIGTERM; after twice that they are ended.
STOP_S = 10.0
_PR_SET_PDEATHSIG = 1


class Program(Struct, frozen=True, kw_only=True):
    """What to start. `restart`: start it again whenever it ends by itself."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    restart: bool = True


class Running:
    """One program, kept running until `stop`. `starts` counts how often it was started, `exit_code` is how it ended last."""

    def __init__(self, program: Program, changed: Callable[[str], None]) -> None:
        self.program = program
        self.starts = 0
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._stops = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def keep(self) -> None:
        """Start the program, and again whenever it ends, until `stop`."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                self._process = await _start(self.program)
                self.starts += 1
                code = self.exit_code = await self._process.wait()
                if self._stops.is_set() or not self.program.restart:
                    return
                self._changed(f"{self.program.name} ended ({_in_words(code)}) and is started again; its log: {self.program.log}")
                if loop.time() - began < QUICK_DEATH_S:
                    await asyncio.sleep(RETRY_S)
        finally:
            self.ended.set()

    async def stop(self, patience_s: float = STOP_S) -> None:
        """SIGTERM, then SIGKILL after `patience_s`; returns when it is gone."""
        self._stops.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), patience_s)
        except TimeoutError:
            process.kill()
            await process.wait()

    def kill(self) -> None:
        """SIGKILL, without warning: for tests and the demo's fault. `keep` starts it again."""
        if self._process and self._process.returncode is None:
            self._process.kill()


async def _start(program: Program) -> asyncio.subprocess.Process:
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with program.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *program.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(program.environment),
            # A session of its own: Ctrl-C at the terminal reaches only us, and we end the others in order.
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    # Where the parent is killed with -9 nobody else could end the children.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _in_words(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs a module of this very environment."""
    # -P: a file allmende.py in the folder from which somebody calls must not be taken for ours.
    return (sys.executable, "-P", "-m", module, *arguments)


def base_environment(environ: Mapping[str, str], drop: Sequence[str] = ("ALLMENDE_",)) -> dict[str, str]:
    """The environment for a child, without settings of ours that were meant for this process."""
    return {key: value for key, value in environ.items() if not key.startswith(tuple(drop))}
