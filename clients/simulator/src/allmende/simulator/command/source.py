"""What is run: a made-up scenario, or a history out of files. Files are read once; each run gets a scenario of its own.

Never runs anything. Every fault of a file is named by the readers (`inputs`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from allmende.proto.budget import Budget
from allmende.proto.units import Ms
from allmende.simulator import scenarios
from allmende.simulator.command.ask import DEFAULT_DAYS, Ask, Terms
from allmende.simulator.command.failures import of_files
from allmende.simulator.inputs import jobs_file, philly, sacct
from allmende.simulator.inputs.budgets_file import read_budgets
from allmende.simulator.inputs.cluster_file import read_cluster
from allmende.simulator.inputs.faults import Fault, Read
from allmende.simulator.inputs.history import History
from allmende.simulator.inputs.listed import scenario_from
from allmende.simulator.inputs.trees import tree_by_use
from allmende.simulator.model import Cluster
from allmende.simulator.ports import Scenario

# What the tree of a table without budgets is called.
ROOT: Final = "lab"

T = TypeVar("T")


class Source(Protocol):
    """Makes the same scenario as often as it is asked."""

    def scenario(self, budgets: tuple[Budget, ...] | None = None) -> Scenario:
        """A scenario for one run; with `budgets`, under this tree."""


def source_of(ask: Ask, terms: Terms) -> Source:
    """Read what was asked for.

    Raises:
        CommandFailed: a file cannot be used, or nothing is left to measure.
    """
    source = _MadeUp(ask, terms) if ask.scenario is not None else _Replayed(ask, terms)
    # What only the whole can get wrong (the warm-up, the span) is found before anything runs.
    source.scenario()
    return source


def trees_of(paths: Sequence[Path]) -> list[tuple[Budget, ...]]:
    """The trees of several budget files, in their order.

    Raises:
        CommandFailed: one of them cannot be used.
    """
    reading = _Reading(may_skip=False)
    trees = [reading.take(read_budgets(path)) for path in paths]
    reading.check()
    return [tree for tree in trees if tree is not None]


class _MadeUp:
    """A scenario of the catalog."""

    def __init__(self, ask: Ask, terms: Terms) -> None:
        self._ask, self._terms = ask, terms

    def scenario(self, budgets: tuple[Budget, ...] | None = None) -> Scenario:
        assert budgets is None, "a scenario brings its own trees"
        ask = self._ask
        assert ask.scenario is not None
        days = DEFAULT_DAYS if ask.days is None else ask.days
        return scenarios.make(ask.scenario, seed=ask.seed, days=days, load_ppm=self._terms.load_ppm)


class _Replayed:
    """A history: jobs come at their instants."""

    def __init__(self, ask: Ask, terms: Terms) -> None:
        self._ask, self._terms = ask, terms
        reading = _Reading(may_skip=not ask.skip_bad)
        cluster = None if ask.cluster is None else reading.take(read_cluster(ask.cluster))
        budgets = None if ask.budgets is None else reading.take(read_budgets(ask.budgets))
        read = _read_history(ask, terms, cluster, budgets)
        history = reading.take(read)
        reading.check()
        assert history is not None, "a reader gives a value or a fault"
        self._history, self._notes = history, read.notes
        self._name = next(path.name for path in (ask.jobs, ask.philly, ask.sacct) if path is not None)

    def scenario(self, budgets: tuple[Budget, ...] | None = None) -> Scenario:
        history, terms = self._history, self._terms
        read = scenario_from(
            self._name,
            history.cluster,
            history.jobs,
            history.budgets if budgets is None else budgets,
            warm_up_ms=terms.warm_up_ms or 0,
            drain_ms=terms.drain_ms,
            add_members=self._ask.add_members is not False,
            notes=self._notes,
        )
        if read.value is None:
            raise of_files(read.faults, read.counts, may_skip=False)
        return read.value


def _read_history(ask: Ask, terms: Terms, cluster: Cluster | None, budgets: tuple[Budget, ...] | None) -> Read[History]:
    # An importer's own default where nothing was asked for.
    lengths: dict[str, Ms] = {} if terms.slice_ms is None else {"slice_ms": terms.slice_ms}
    if ask.philly is not None:
        gpus = philly.DEFAULT_GPUS if ask.gpus is None else ask.gpus
        return philly.read_philly(ask.philly, cluster=cluster, budgets=budgets, gpus=gpus, skip_bad=ask.skip_bad, **lengths)
    if ask.sacct is not None:
        return sacct.read_sacct(
            ask.sacct,
            cluster=cluster,
            budgets=budgets,
            unit="cpu" if ask.unit == "cpu" else "gpu",
            timezone="UTC" if ask.timezone is None else ask.timezone,
            skip_bad=ask.skip_bad,
            **lengths,
        )
    assert ask.jobs is not None
    read = jobs_file.read_jobs(ask.jobs, skip_bad=ask.skip_bad)
    if read.value is None:
        return Read(None, read.faults, read.counts)
    notes = read.notes
    tree = budgets
    if tree is None:
        tree = tree_by_use(ROOT, "made from what was used", read.value)
        notes = (*notes, "there is no tree of budgets: shares are what each budget used; give the real one with --budgets")
    # Without a cluster (its file has faults, which are reported) only the faults of the table count.
    there = cluster or Cluster("none", ())
    return Read(History(there, tree, read.value), read.faults, read.counts, notes)


class _Reading:
    """Collects the faults of several files. Rows that were skipped are no faults: the notes count them."""

    def __init__(self, *, may_skip: bool) -> None:
        self._may_skip = may_skip
        self._faults: list[Fault] = []
        self._counts: dict[str, int] = {}

    def take(self, read: Read[T]) -> T | None:
        """The value; None after faults."""
        if read.value is None:
            self._faults += read.faults
            for code, count in read.counts.items():
                self._counts[code] = self._counts.get(code, 0) + count
        return read.value

    def check(self) -> None:
        """Go on only without a fault.

        Raises:
            CommandFailed: a file cannot be used.
        """
        if self._counts:
            raise of_files(self._faults, self._counts, may_skip=self._may_skip)
