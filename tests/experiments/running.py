"""One experiment as a run of `allmende simulate` in a process of its own, and its output as a result.

What is run is what a person can type (`words`). Never decides what is to be run, and never writes a kept file.
"""

import contextlib
import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from allmende.proto.units import HOUR_MS, SECOND_MS
from tests.experiments import offline
from tests.experiments.results import FIGURES, WAITS, Day, Made, Result, Team, Waiting, Waits
from tests.experiments.table import MAIN, OFFLINE_LIMITS, Experiment, Watch

# The longest takes about 10 minutes on a core of its own. What needs six times that goes round in circles.
LIMIT_S: Final = 3_600
HOURS_A_DAY: Final = 24


class RunFailed(Exception):
    """The command ended with a fault; says what it said."""


class Planned(NamedTuple):
    """A run to be made. `days` may be fewer than the experiment wants."""

    experiment: Experiment
    seed: int
    days: int
    version: str


class Runner:
    """Starts runs, also several at a time out of threads, and can end those that it started."""

    def __init__(self, code: Path, made: Made) -> None:
        """`code`: the folder of the packages to run. `made`: kept with each result."""
        self._made = made
        self._environment = os.environ | {"PYTHONPATH": str(code), "PYTHONHASHSEED": "0"}
        self._running: set[int] = set()
        self._stopped = False

    def run(self, planned: Planned) -> Result:
        """Run to the end.

        Raises:
            RunFailed: there are no figures.
        """
        if self._stopped:
            raise RunFailed("not started any more")
        with tempfile.TemporaryDirectory(prefix="allmende-experiment-") as name:
            folder = Path(name)
            status, cpu_s = self._wait(planned, folder)
            if status:
                said = (folder / "err").read_text(errors="replace").strip().splitlines()
                raise RunFailed(f"exit code {status}: {' / '.join(said[-3:])}")
            return replace(_result(planned, folder, cpu_s), made=self._made)

    def stop(self) -> None:
        """End what runs and start nothing more."""
        self._stopped = True
        for number in list(self._running):
            _end(number)

    def _wait(self, planned: Planned, folder: Path) -> tuple[int, float]:
        command = [sys.executable, "-m", "allmende.simulator", *words(planned), "--csv-dir", str(folder / "csv")]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=self._environment)
        self._running.add(process.pid)
        timer = threading.Timer(LIMIT_S, _end, [process.pid])
        timer.start()
        try:
            # Not `process.wait`: only this tells the processor time of this very child.
            _pid, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
            self._running.discard(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, usage.ru_utime + usage.ru_stime


def words(planned: Planned) -> list[str]:
    """The arguments of `allmende simulate`."""
    asked = planned.experiment
    found = ["--scenario", asked.scenario, "--seed", str(planned.seed), "--days", str(planned.days)]
    if asked.policy != "allmende":
        found += ["--policy", asked.policy]
    for each in asked.sets:
        found += ["--set", each]
    return [*found, "--json"]


def command(planned: Planned) -> str:
    """The same as a person types it."""
    return shlex.join(["allmende", "simulate", *words(planned)])


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _result(planned: Planned, folder: Path, cpu_s: float) -> Result:
    said: dict[str, Any] = json.loads((folder / "out").read_bytes())
    asked = planned.experiment
    edges = (said["window_from_ms"], said["measured_to_ms"])
    record = offline.read(folder / "csv", *edges) if asked.name == MAIN else None
    hours = list(_rows(folder / "csv" / "teams_hourly.csv")) if asked.watch else []
    return Result(
        experiment=asked.name,
        seed=planned.seed,
        version=planned.version,
        scenario=asked.scenario,
        policy=asked.policy,
        sets=asked.sets,
        days=planned.days,
        cpu_s=round(cpu_s, 1),
        figures={name: said[name] for name in FIGURES},
        waits={name: Waits(**said["waits_s"][name]) for name in WAITS},
        teams={each["budget"]: _team(each) for each in said["teams"]},
        large_waits_s={
            row["job"]: int(row["waited_ms"]) / SECOND_MS
            for row in _rows(folder / "csv" / "waits.csv")
            if "gpus_256" in row["classes"].split()
        },
        waiting=tuple(Waiting(each["job"], each["waited_s"], each["ratio"], each["why"]) for each in said["large_never_started"]),
        broken_share=said["fragmentation"]["broken_share"],
        settings=said["settings"],
        daily={watch.title: _daily(watch, hours) for watch in asked.watch},
        useful=None if record is None else round(offline.useful(record) / record.available, 6),
        offline=() if record is None else offline.answers(record, OFFLINE_LIMITS),
    )


def _team(said: dict[str, Any]) -> Team:
    return Team(said["effective_share_ppm"], said["delivered_owed_weekly"], said["delivered_gpu_hours"], said["busy_gpu_hours"])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _daily(watch: Watch, hours: list[dict[str, str]]) -> tuple[Day, ...]:
    first_ms = int(hours[0]["hour_from_ms"]) if hours else 0
    days: dict[int, list[int]] = {}
    for row in hours:
        if row["budget"] in watch.teams:
            sums = days.setdefault((int(row["hour_from_ms"]) - first_ms) // (HOURS_A_DAY * HOUR_MS), [0, 0, 0])
            for at, name in enumerate(("entitled_gpu_ms", "owed_gpu_ms", "delivered_gpu_ms")):
                sums[at] += int(row[name])
    return tuple(Day(*(round(amount / HOUR_MS) for amount in days[day])) for day in sorted(days))
