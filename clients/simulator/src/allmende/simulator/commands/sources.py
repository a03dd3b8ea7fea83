"""Where a run's jobs come from: a scenario by name, files, or a history. Made anew for every run, because a run uses it up.

Raises `Wrong` with all faults; never prints.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from allmende.proto.budget import Budget
from allmende.proto.units import DAY_MS, HOUR_MS, Ms
from allmende.simulator.inputs.budgets_file import read_budgets
from allmende.simulator.inputs.cluster_file import read_cluster
from allmende.simulator.inputs.faults import Read
from allmende.simulator.inputs.history import History
from allmende.simulator.inputs.jobs_file import read_jobs
from allmende.simulator.inputs.listed import scenario_from
from allmende.simulator.inputs.philly import read_philly
from allmende.simulator.inputs.sacct import read_sacct
from allmende.simulator.inputs.trees import tree_by_use
from allmende.simulator.model import Cluster
from allmende.simulator.ports import Scenario
from allmende.simulator.scenarios import make, names

T = TypeVar("T")
Make = Callable[[], Scenario]

DEFAULT_DAYS = 30


class Wrong(Exception):
    """The command line or a file is wrong; `sentences` has every fault."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = sentences


class Asked(NamedTuple):
    """What the command line says about the input."""

    cluster: Path | None
    budgets: Path | None
    jobs: Path | None
    scenario: str | None
    seed: int
    days: int | None
    load: str | None
    philly: Path | None
    gpus: int
    sacct: Path | None
    unit: str
    timezone: str
    slice_ms: Ms
    warm_up_ms: Ms | None
    drain_ms: Ms | None
    skip_bad: bool


def maker(asked: Asked) -> Make:
    """How to make the scenario; files are read once, here.

    Raises:
        Wrong: nothing or too much was asked for, or a file cannot be used.
    """
    given = [
        name
        for name, value in (
            ("--scenario", asked.scenario),
            ("--jobs", asked.jobs),
            ("--philly", asked.philly),
            ("--sacct", asked.sacct),
        )
        if value is not None
    ]
    if len(given) != 1:
        which = f"{' and '.join(given)} exclude one another" if given else "nothing to run was named"
        raise Wrong(f"{which}: name one of --scenario NAME, --jobs FILE (with --cluster), --philly PATH, --sacct FILE")
    if asked.scenario is not None:
        return _scenario(asked, asked.scenario)
    for name, value in (("--days", asked.days), ("--load", asked.load)):
        if value is not None:
            raise Wrong(f"{name} belongs to --scenario; a list of jobs is as long and as heavy as it is")
    history, notes = _history(asked)

    def made() -> Scenario:
        read = scenario_from(
            given[0].removeprefix("--"),
            history.cluster,
            history.jobs,
            history.budgets,
            warm_up_ms=asked.warm_up_ms or 0,
            drain_ms=asked.drain_ms,
            notes=notes,
        )
        return _use(read)

    made()
    return made


def _scenario(asked: Asked, name: str) -> Make:
    beside = [word for word, value in (("--cluster", asked.cluster), ("--budgets", asked.budgets)) if value is not None]
    beside += [word for word, value in (("--warm-up", asked.warm_up_ms), ("--drain", asked.drain_ms)) if value is not None]
    if beside:
        raise Wrong(f"{' and '.join(beside)} cannot change a scenario, which brings its own")
    known = [each for each, _sentence in names()]
    if name not in known:
        raise Wrong(f"no scenario is called {name}; there are {', '.join(known)}")
    days = DEFAULT_DAYS if asked.days is None else asked.days
    if not 1 <= days <= 3_650:
        raise Wrong(f"--days {days}: between 1 and 3,650 days can be run")
    load_ppm = None if asked.load is None else _load_ppm(asked.load)
    return lambda: make(name, seed=asked.seed, days=days, load_ppm=load_ppm)


def _load_ppm(text: str) -> int:
    whole, _point, part = text.partition(".")
    if (
        not (whole.isdecimal() and (part.isdecimal() or not part))
        or len(part) > 6
        or len(whole) > 3
        or not int(whole + part or "0")
    ):
        raise Wrong(f"--load {text}: running plus waiting demand against capacity is wanted, such as 2.5")
    return int(whole) * 1_000_000 + int((part or "0").ljust(6, "0"))


def _history(asked: Asked) -> tuple[History, tuple[str, ...]]:
    cluster = None if asked.cluster is None else _use(read_cluster(asked.cluster))
    budgets = None if asked.budgets is None else _use(read_budgets(asked.budgets))
    if asked.jobs is not None:
        return _listed(asked, asked.jobs, cluster, budgets)
    if asked.philly is not None:
        read = read_philly(
            asked.philly, cluster=cluster, budgets=budgets, gpus=asked.gpus, slice_ms=asked.slice_ms, skip_bad=asked.skip_bad
        )
    else:
        assert asked.sacct is not None
        if asked.unit not in ("gpu", "cpu"):
            raise Wrong(f"--unit {asked.unit}: gpu or cpu is wanted")
        unit = "gpu" if asked.unit == "gpu" else "cpu"
        read = read_sacct(
            asked.sacct,
            cluster=cluster,
            budgets=budgets,
            unit=unit,  # type: ignore[arg-type]
            timezone=asked.timezone,
            slice_ms=asked.slice_ms,
            skip_bad=asked.skip_bad,
        )
    return _use(read), read.notes


def _listed(
    asked: Asked, path: Path, cluster: Cluster | None, budgets: tuple[Budget, ...] | None
) -> tuple[History, tuple[str, ...]]:
    if cluster is None:
        raise Wrong("--jobs needs --cluster FILE.toml: a list of jobs does not say where they run (docs/guides/simulate-inputs.md)")
    read = read_jobs(path, skip_bad=asked.skip_bad)
    jobs = _use(read)
    notes = read.notes
    if budgets is None:
        budgets = tree_by_use("lab", "Made from the list: shares in proportion to use", jobs)
        notes = (*notes, "no budgets were given: each budget named in the list has a share in proportion to its work")
    return History(cluster, budgets, jobs), notes


def _use(read: Read[T]) -> T:
    if read.value is None:
        more = (f"and {read.unnamed} more",) if read.unnamed > 0 else ()
        raise Wrong(*(str(fault) for fault in read.faults), *more)
    return read.value


def length_of(scenario: Scenario) -> Ms:
    """How much virtual time a run of the scenario takes."""
    return max(1, scenario.window.to_ms - scenario.window.begin_ms)


DEFAULT_SLICE_MS: Ms = HOUR_MS
WARM_UP_MOST_MS: Ms = 3_650 * DAY_MS
