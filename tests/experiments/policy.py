"""Runs the experiments and writes docs/policy.md: `./dev run python -m tests.experiments.policy`.

Each run is a process of its own; its figures are kept in docs/policy/results.json as soon as it is over, so that whoever stops this
goes on later. What is kept of the same code is not run again. Never writes a verdict: the page computes them.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType
from typing import Final

from allmende.simulator.command import overrides
from allmende.simulator.command.failures import Asked
from tests.experiments import frozen
from tests.experiments.page.whole import page
from tests.experiments.results import Made, Result, Results, key
from tests.experiments.running import Planned, RunFailed, Runner, command
from tests.experiments.table import EXPERIMENTS
from tests.repo.tree import ROOT

DOCS: Final = ROOT / "docs"
PAGE: Final = "policy.md"
RESULTS: Final = "policy/results.json"
# A core each; the simulator uses one.
WORKERS: Final = 2
STOPPED: Final = 130


def main(words: Sequence[str]) -> int:
    """Exit status: 0 when every wanted result is there, 1 when a run failed, 2 for a wrong command line, 130 when stopped."""
    wanted = _arguments(words)
    folder: Path = wanted.folder
    kept = Results(folder / RESULTS)
    status = 0
    if not wanted.page_only:
        with tempfile.TemporaryDirectory(prefix="allmende-code-") as name:
            frozen.copy(Path(name))
            status = _run(_plan(wanted, kept.read(), Path(name)), kept, Path(name), wanted)
    if not wanted.list:
        write_page(folder)
    return status


def write_page(folder: Path) -> None:
    """Write the page of the kept results of a folder of documents."""
    (folder / PAGE).write_text(page(Results(folder / RESULTS).read()), encoding="utf-8")


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.experiments.policy", description=__doc__)
    parser.add_argument("--seeds", type=_numbers, help="only these, such as 1-5 or 1,3")
    parser.add_argument("--days", type=int, help="measure at most so many days; the page says so")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these experiments")
    parser.add_argument("--page-only", action="store_true", help="write the page out of the kept results, run nothing")
    parser.add_argument("--list", action="store_true", help="say what would be run, and run nothing")
    parser.add_argument("--missing", action="store_true", help="leave what is kept of older code as it is; run what is missing")
    parser.add_argument("--again", action="store_true", help="run also what is kept of the same code")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"runs at a time (default {WORKERS})")
    parser.add_argument("--folder", type=Path, default=DOCS, help="where page and results are kept (default docs)")
    wanted = parser.parse_args(words)
    names = [each.name for each in EXPERIMENTS]
    if unknown := [name for name in wanted.only or () if name not in names]:
        parser.error(f"no experiment is called {', '.join(unknown)}; there are {', '.join(names)}")
    if (wanted.days is not None and wanted.days < 1) or wanted.workers < 1:
        parser.error("--days and --workers are at least 1")
    return wanted


def _numbers(text: str) -> list[int]:
    """`1-5` or `1,3`.

    Raises:
        ValueError: anything else.
    """
    found: list[int] = []
    for part in text.split(","):
        first, _dash, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _plan(wanted: argparse.Namespace, kept: dict[str, Result], code: Path) -> list[Planned]:
    versions = {policy: frozen.version(code, policy) for policy in dict.fromkeys(each.policy for each in EXPERIMENTS)}
    plan: list[Planned] = []
    for asked in EXPERIMENTS:
        if wanted.only and asked.name not in wanted.only:
            continue
        days = min(asked.days, wanted.days or asked.days)
        for seed in asked.seeds:
            if wanted.seeds is not None and seed not in wanted.seeds:
                continue
            result = kept.get(key(asked.name, seed))
            there = result is not None and (wanted.missing or result.answers(asked, days, versions[asked.policy]))
            if wanted.again or not there:
                plan.append(Planned(asked, seed, days, versions[asked.policy]))
    return plan


def _run(plan: list[Planned], kept: Results, code: Path, wanted: argparse.Namespace) -> int:
    minutes = sum(map(_weight, plan))
    _say(f"{len(plan)} runs to be made, about {minutes:.0f} minutes of one core, {wanted.workers} at a time")
    if wanted.list:
        for planned in plan:
            print(f"{key(planned.experiment.name, planned.seed):24} {command(planned)}")
        return 0
    # What cannot be asked for is known before an hour has passed.
    good = [planned for planned in plan if not _faults(planned)]
    runner = Runner(code, _made())
    pool = ThreadPoolExecutor(wanted.workers)
    failed = len(plan) - len(good)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        running = {pool.submit(_one, runner, planned): planned for planned in good}
        failed += _collect(running, kept, sum(map(_weight, good)))
    except KeyboardInterrupt:
        _say("stopped; what is over is kept, the same command goes on from here")
        runner.stop()
        pool.shutdown(cancel_futures=True)
        return STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)
    pool.shutdown()
    return 1 if failed else 0


def _made() -> Made:
    said = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return Made(said.stdout.strip(), time.strftime("%Y-%m-%d", time.gmtime()))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _weight(planned: Planned) -> float:
    return planned.experiment._replace(days=planned.days).weight


def _faults(planned: Planned) -> bool:
    asked = Asked()
    overrides.override(planned.experiment.policy, planned.experiment.sets, asked)
    for fault in asked.faults:
        _say(f"{key(planned.experiment.name, planned.seed)} is left out: {fault}")
    return bool(asked.faults)


def _one(runner: Runner, planned: Planned) -> Result:
    _say(f"begins: {key(planned.experiment.name, planned.seed)}, {planned.days} days")
    return runner.run(planned)


def _collect(running: dict[Future[Result], Planned], kept: Results, whole: float) -> int:
    """Keep each result as it comes; returns how many failed."""
    began_s, failed, done = time.monotonic(), 0, 0.0
    for number, future in enumerate(as_completed(running), start=1):
        planned = running[future]
        done += _weight(planned)
        name = key(planned.experiment.name, planned.seed)
        try:
            result = future.result()
        except RunFailed as error:
            failed += 1
            _say(f"[{number}/{len(running)}] {name} FAILED: {error}")
            continue
        kept.put(result)
        left = (time.monotonic() - began_s) / 60 * (whole - done) / done
        _say(f"[{number}/{len(running)}] {name}: {_short(result)}; about {left:.0f} min left")
    return failed


def _short(result: Result) -> str:
    names = ("delivered_owed_weekly", "worst_team", "occupancy", "lost_fraction")
    figures = ", ".join(f"{name} {result.number(name)}" for name in names)
    return f"{figures}, 256+ p90 {result.waits['gpus_256'].p90} s, {result.cpu_s:.0f} s of a core"


def _say(text: str) -> None:
    # One write, so that two threads do not share a line.
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
