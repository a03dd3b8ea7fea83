"""A demo as people start it: a process of its own, its folder, its screen, and whatever processes it has of this machine.

Looks at processes in /proc: everything that a demo starts names the demo's folder in its command line or its environment.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
PHILLY = ROOT.parent / "shared" / "traces" / "philly_vc" / "philly.csv"

# Servers, services and cluster are up in 8 s on an idle machine; stopping and judging takes 5 s. On two cores that others use as
# well we have seen five times that.
PATIENCE_S = 150.0
LOOK_S = 0.05

MUST_BE_ZERO = ("evictions_unexplained", "slice_violations", "ledger_difference_gpu_ms", "postings_lost", "postings_duplicated")
PERCENTILES = {"p50", "p90", "max"}
# The names that are stable: a chart somewhere reads them.
COUNTS = {"jobs_submitted", "jobs_started", "jobs_finished", "evictions", *MUST_BE_ZERO, "seed", "seconds", "rate"}
FRACTIONS = {"occupancy", "availability", "unallocated_share", "delivered_owed_plain", "delivered_owed_strict"}
TEAM = {"budget": str, "effective_share_ppm": int, "delivered_owed_plain": float, "delivered_owed_strict": float}


class Demo:
    """One running demo. `folder` is its lab, `json_file` its figures."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, json_file: Path, screen: Path) -> None:
        self.process = process
        self.folder = folder
        self.json_file = json_file
        self._screen = screen

    @property
    def screen(self) -> str:
        """What it has printed so far."""
        return self._screen.read_text()

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends it to the program in front. What that started has sessions of its own."""
        os.killpg(self.process.pid, signal.SIGINT)

    async def until(self, fact: Callable[[], bool], what: str) -> None:
        """Wait for a fact, with a bound; a demo that ends before is a failure."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not fact():  # the facts are files and processes: nothing announces them
                    if self.process.returncode is not None:
                        raise AssertionError(f"the demo ended before this: {what}\n{self.screen}")
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"within {PATIENCE_S:g} s this did not come about: {what}\n{self.screen}\n{self.logs()}") from None

    async def ended(self) -> None:
        """Wait for its end: it ends with code 0 and leaves nothing behind."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                code = await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"the demo did not end\n{self.screen}\n{self.logs()}") from None
        left = processes_of(self.folder)
        assert not left, f"left behind: {left}\n{self.screen}"
        assert code == 0, f"exit code {code}\n{self.screen}\n{self.logs()}"

    async def judged(self) -> dict[str, Any]:
        """Wait for its end and return its figures, which have all stable names and zeros where zeros are promised."""
        await self.ended()
        figures: dict[str, Any] = msgspec.json.decode(self.json_file.read_bytes())
        check_figures(figures)
        return figures

    def truths(self) -> int:
        """How many lines the cluster's own log has: starts, ends, signals. It grows as long as jobs live."""
        return lines_of(self.folder / "truth.jsonl")

    def submissions(self) -> int:
        """How many lines the workload's log has."""
        return lines_of(self.folder / "workload.jsonl")

    def service(self, name: str) -> int | None:
        """The process id of a service, while it runs."""
        command = f"allmende.{name}"
        return next((pid for pid, words in processes_of(self.folder).items() if words[-1:] == [command]), None)

    def port_file(self, name: str) -> Path:
        """Where a service writes its port once it is up."""
        return self.folder / "ports" / name

    def logs(self) -> str:
        """The last lines of every log, for a failure."""
        logs = sorted((self.folder / "logs").glob("*.log"))
        return "\n".join(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]) for log in logs)


@asynccontextmanager
async def demo(place: Path, **options: object) -> AsyncIterator[Demo]:
    """Start `allmende demo` with these options. Whatever happens, nothing of it is left afterwards."""
    folder, json_file, screen = place / "lab", place / "out.json", place / "screen.txt"
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with screen.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "allmende.cli", "demo", "--folder", str(folder), "--json", str(json_file), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(),
            start_new_session=True,
        )
    try:
        yield Demo(process, folder, json_file, screen)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        for pid in processes_of(folder):
            _kill(pid)


def _environment() -> Mapping[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("ALLMENDE_")}


def lines_of(path: Path) -> int:
    """Whole lines of a file; 0 while it does not exist."""
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def processes_of(folder: Path) -> dict[int, list[str]]:
    """Living processes that name a folder in their command line or environment, without this one: their words by their ids."""
    mark = str(folder).encode()
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            if mark in words or mark in (entry / "environ").read_bytes():
                found[int(entry.name)] = words.decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            # Gone in between, or another user's. A zombie has neither words nor environment.
            continue
    return {pid: words for pid, words in found.items() if words != [""]}


async def until_gone(folder: Path) -> None:
    """Until no process of a demo is left, with a bound."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while processes_of(folder):  # noqa: ASYNC110 - nothing announces the end of another's children
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"left behind: {processes_of(folder)}") from None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def check_figures(figures: Mapping[str, Any]) -> None:
    """Every stable name is there with its type, and what must be 0 is. More names may come."""
    for name in COUNTS:
        assert type(figures[name]) is int, f"{name}: {figures[name]!r}"
    for name in FRACTIONS:
        assert figures[name] is None or float(figures[name]) >= 0, f"{name}: {figures[name]!r}"
    assert set(figures["waits_s"]) >= {"debug", "all", "large"}
    for name, waits in figures["waits_s"].items():
        assert set(waits) >= PERCENTILES, f"{name}: {waits}"
    assert figures["teams"], "no team at all"
    for team in figures["teams"]:
        wrong = [key for key, kind in TEAM.items() if not isinstance(team[key], kind | None)]
        assert not wrong, f"{team}: {wrong}"
    assert {name: figures[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
