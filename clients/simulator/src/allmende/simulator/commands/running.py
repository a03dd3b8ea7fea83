"""One run with its costs: a progress bar, Ctrl-C, and what a fault in a rule looks like. Never decides what is run."""

import resource
import sys
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from allmende.simulator.commands.sources import length_of
from allmende.simulator.figures import Cost, Figures, cost, measure
from allmende.simulator.model import History
from allmende.simulator.ports import Policy, Scenario
from allmende.simulator.world.engine import World

Timer = Callable[[], float]
"""Seconds of processor time so far."""

# A bar that is drawn for every event would cost more than the event.
_DRAWN_EVERY = 200


class Ran(NamedTuple):
    """A run: whole, or up to where it was interrupted."""

    history: History
    figures: Figures
    cost: Cost
    notes: tuple[str, ...]
    interrupted: bool


class Broken(Exception):
    """A rule broke an invariant. `at_ms`: where the clock stood."""

    def __init__(self, sentence: str, at_ms: int) -> None:
        super().__init__(sentence)
        self.at_ms = at_ms


def run(scenario: Scenario, policy: Policy, seed: int, seconds: Timer, console: Console, *, bar: bool) -> Ran:
    """Run a scenario under a policy.

    Raises:
        Broken: an assertion of a rule or of the world failed.
    """
    world = World(scenario, policy, seed)
    began_s = seconds()
    interrupted = False
    try:
        with _Bar(scenario, policy.name, console, shown=bar) as progress:
            world.run(progress)
    except KeyboardInterrupt:
        interrupted = True
        world.close()
    except (AssertionError, RuntimeError, LookupError, ValueError) as error:
        raise Broken(f"{type(error).__name__}: {error}", world.now_ms) from error
    history = world.history
    figures = measure(history)
    spent = cost(seconds() - began_s, _peak_mib(), history.events)
    return Ran(history, figures, spent, scenario.notes, interrupted)


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts KiB, macOS bytes.
    return peak / (1_048_576 if sys.platform == "darwin" else 1_024)


class _Bar:
    def __init__(self, scenario: Scenario, title: str, console: Console, *, shown: bool) -> None:
        self._begin_ms, self._length_ms, self._calls = scenario.window.begin_ms, length_of(scenario), 0
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("day {task.fields[day]}"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not shown)
        self._task = self._progress.add_task(title, total=self._length_ms, day=0)

    def __enter__(self) -> Callable[[int], None]:
        self._progress.start()
        return self._moved

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def _moved(self, at_ms: int) -> None:
        self._calls += 1
        if self._calls % _DRAWN_EVERY == 0:
            done = at_ms - self._begin_ms
            self._progress.update(self._task, completed=done, day=done // 86_400_000)
