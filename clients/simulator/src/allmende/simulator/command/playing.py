"""One run with somebody watching: a progress bar on a terminal, and a signal that stops the clock between two instants.

A run is never torn: what happened up to the last whole instant is its history. Decides nothing about what is run.
"""

import gc
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from allmende.proto.units import DAY_MS, Ms, format_duration
from allmende.simulator.command.failures import CommandFailed, Exit
from allmende.simulator.model import History, Window
from allmende.simulator.ports import Policy, Scenario
from allmende.simulator.world.engine import World

# What is told to the bar: more often nobody can see.
_STEPS: Final = 1_000
# What a fault in our own code raises; everything else is not ours to explain.
FAULTS: Final = (AssertionError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Played(NamedTuple):
    """What became of a run. `stopped`: the signal that ended it early."""

    history: History
    stopped: int | None


class _Stopped(Exception):
    """A signal came. Raised between two instants only."""


class Watch:
    """Told after each instant how far the clock is."""

    def __init__(self, window: Window, bar: Progress | None = None, task: TaskID | None = None) -> None:
        self.stopped: int | None = None
        self._window, self._bar, self._task = window, bar, task
        self._step_ms: Ms = max(1, (window.to_ms - window.begin_ms) // _STEPS)
        self._next_ms: Ms = window.begin_ms

    def __call__(self, at_ms: Ms) -> None:
        """Go on, or stop.

        Raises:
            _Stopped: a signal came.
        """
        if self.stopped is not None:
            raise _Stopped
        if self._bar is not None and self._task is not None and at_ms >= self._next_ms:
            self._next_ms = at_ms + self._step_ms
            day = (at_ms - self._window.begin_ms) / DAY_MS
            where = "warm-up" if at_ms < self._window.from_ms else f"day {day:.1f}"
            self._bar.update(self._task, completed=at_ms - self._window.begin_ms, where=where)

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """A signal: stop after this instant. A second one ends the process at once."""
        self.stopped = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def play(scenario: Scenario, policy: Policy, seed: int, label: str, repeat: str, *, bar: bool) -> Played:
    """Run to the end of the window, or until a signal.

    Raises:
        CommandFailed: a rule is at fault; says where, when, and how to see it again with `repeat`.
    """
    world = World(scenario, policy, seed)
    with _watching(scenario.window, label, bar) as watch, _circles_sought_seldom():
        try:
            return Played(world.run(watch), None)
        except _Stopped:
            return Played(world.close(), watch.stopped)
        except FAULTS as error:
            raise CommandFailed(
                Exit.FAULT, *_fault(error, policy.name, seed, world.now_ms - scenario.window.begin_ms, repeat)
            ) from None


@contextmanager
def _circles_sought_seldom() -> Iterator[None]:
    """A world lives long, is large and leaves next to no circles: to look for them as often as Python does finds nothing."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _watching(window: Window, label: str, bar: bool) -> Iterator[Watch]:
    if not bar:
        with _signals(watch := Watch(window)):
            yield watch
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[where]}", markup=False),
        TimeRemainingColumn(),
    )
    # Gone when the run is over: what stays on the terminal is the summary.
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(Text(label).plain, total=window.to_ms - window.begin_ms, where="")
        with _signals(watch := Watch(window, progress, task)):
            yield watch


@contextmanager
def _signals(watch: Watch) -> Iterator[None]:
    caught = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, watch.stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fault(error: BaseException, policy: str, seed: int, at_ms: Ms, repeat: str) -> tuple[str, ...]:
    frames = traceback.extract_tb(error.__traceback__)
    said = " ".join(str(error).split()) or "no words"
    where = ""
    if frames:
        # From the package on: where it is installed says nothing.
        parts = Path(frames[-1].filename).parts
        inside = parts[len(parts) - 1 - parts[::-1].index("allmende") :] if "allmende" in parts else parts[-1:]
        where = f" at {'/'.join(inside)}:{frames[-1].lineno}"
    what = f"a rule of {policy} is at fault, not what you gave: {type(error).__name__}: {said}{where}"
    return f"{what}, {format_duration(at_ms)} after the beginning, seed {seed}", f"it happens again with: {repeat}"
