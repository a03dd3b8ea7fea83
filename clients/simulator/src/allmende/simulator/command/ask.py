"""What was asked for on the command line, held against itself: which options go together, and what is missing beside one.

Never opens a file; says every contradiction at once.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

from msgspec import Struct

from allmende.proto.units import PPM_WHOLE, Ms, Ppm, format_duration, parse_duration
from allmende.proto.user import DEFAULT_SLICE_CAP_MS
from allmende.simulator.command.failures import Asked
from allmende.simulator.inputs.faults import quote
from allmende.simulator.inputs.jobs_file import SPAN_MOST_MS

DEFAULT_DAYS: Final = 30
DEFAULT_SEED: Final = 1
DAYS_MOST: Final = 3_660
"""As long as any other time here; a month of a large lab is a matter of minutes."""
LOAD_MOST_PPM: Final = 100 * PPM_WHOLE
"""A queue of a hundred clusters: beyond it nobody has measured anything."""
GPUS_MOST: Final = 100_000

EXAMPLES: Final = (
    "allmende simulate --scenario ai2-lab --seed 1 --days 30",
    "allmende simulate --cluster lab.toml --budgets budgets.toml --jobs jobs.csv",
    "allmende simulate --sacct history.txt --cluster lab.toml --budgets budgets.toml",
    "allmende simulate --philly PATH --gpus 500",
)

_LISTED: Final = ("--jobs", "--philly", "--sacct")
_ONLY_WITH: Final = {
    "--days": ("--scenario",),
    "--load": ("--scenario",),
    "--cluster": _LISTED,
    "--budgets": _LISTED,
    "--compare-budgets": _LISTED,
    "--warm-up": _LISTED,
    "--drain": _LISTED,
    "--add-members/--no-add-members": _LISTED,
    "--skip-bad": _LISTED,
    "--gpus": ("--philly",),
    "--slice": ("--philly", "--sacct"),
    "--unit": ("--sacct",),
    "--timezone": ("--sacct",),
}
_LOAD = re.compile(r"\d{1,3}(\.\d{1,6})?\Z", re.ASCII)


class Ask(Struct, frozen=True, kw_only=True):
    """The command line. None: not given."""

    scenario: str | None = None
    seed: int = DEFAULT_SEED
    days: int | None = None
    load: str | None = None
    cluster: Path | None = None
    budgets: Path | None = None
    jobs: Path | None = None
    philly: Path | None = None
    gpus: int | None = None
    sacct: Path | None = None
    unit: str | None = None
    timezone: str | None = None
    slice: str | None = None
    warm_up: str | None = None
    drain: str | None = None
    add_members: bool | None = None
    skip_bad: bool = False
    policy: str = "allmende"
    sets: tuple[str, ...] = ()
    compare: tuple[str, ...] = ()
    compare_budgets: tuple[Path, ...] = ()
    json: bool = False
    csv_dir: Path | None = None
    html: Path | None = None
    quiet: bool = False
    cost: bool = True

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that are read."""
        given = (self.cluster, self.budgets, self.jobs, self.philly, self.sacct, *self.compare_budgets)
        return tuple(path for path in given if path is not None)


class Terms(Struct, frozen=True, kw_only=True):
    """What was given as text, as values."""

    load_ppm: Ppm | None
    warm_up_ms: Ms | None
    drain_ms: Ms | None
    slice_ms: Ms | None


def terms_of(ask: Ask, scenarios: Sequence[str], asked: Asked) -> Terms:
    """Hold the inputs' options against one another and read their texts; what is wrong goes into `asked`."""
    _sources(ask, scenarios, asked)
    _companions(ask, asked)
    for path in (*ask.inputs, ask.csv_dir, ask.html):
        if path is not None and not _is_text(path):
            asked.add(ascii(str(path)), "the name is not UTF-8 text; give the file another name")
    return Terms(
        load_ppm=_load(ask.load, asked),
        warm_up_ms=_duration("--warm-up", ask.warm_up, 0, SPAN_MOST_MS, asked),
        drain_ms=_duration("--drain", ask.drain, 0, SPAN_MOST_MS, asked),
        slice_ms=_duration("--slice", ask.slice, 0, DEFAULT_SLICE_CAP_MS, asked),
    )


def _sources(ask: Ask, scenarios: Sequence[str], asked: Asked) -> None:
    given = _given(ask)
    sources = [name for name in ("--scenario", *_LISTED) if name in given]
    if len(sources) > 1:
        asked.add(" ".join(sources), "they exclude one another; one of them says which jobs come")
        return
    if not sources:
        beside = [name for name in given if name in _ONLY_WITH]
        if beside:
            asked.add(" ".join(beside), f"add what says which jobs come, such as --jobs FILE.csv; an example: {EXAMPLES[1]}")
        else:
            asked.add("allmende simulate", "say what to run, with --scenario NAME, --jobs FILE.csv, --philly PATH or --sacct FILE:")
            asked.faults += [f"  {example}" for example in EXAMPLES]
        return
    for name in given:
        allowed = _ONLY_WITH.get(name)
        if allowed is not None and sources[0] not in allowed:
            why = "; a scenario brings its own" if sources[0] == "--scenario" else ""
            asked.add(name, f"goes with {' or '.join(allowed)}, not with {sources[0]}{why}")
    if ask.scenario is not None and ask.scenario not in scenarios:
        asked.add("--scenario", f"no scenario is called {quote(ask.scenario)}; there are {', '.join(scenarios)}")


def _companions(ask: Ask, asked: Asked) -> None:
    if ask.jobs is not None and ask.cluster is None:
        sentence = "a table of jobs says nothing of the nodes; add --cluster FILE.toml (docs/guides/simulate-inputs.md shows one)"
        asked.add("--cluster", f"is missing: {sentence}")
    if ask.gpus is not None and ask.cluster is not None:
        asked.add("--gpus", "the cluster file says how many GPUs there are; leave one of the two out")
    if ask.days is not None and not 1 <= ask.days <= DAYS_MOST:
        asked.add("--days", f"{ask.days} is not within 1 to {DAYS_MOST:,}")
    if ask.gpus is not None and not 1 <= ask.gpus <= GPUS_MOST:
        asked.add("--gpus", f"{ask.gpus} is not within 1 to {GPUS_MOST:,}")
    if ask.unit is not None and ask.unit not in ("gpu", "cpu"):
        asked.add("--unit", f"{quote(ask.unit)} is neither gpu nor cpu")


def _given(ask: Ask) -> list[str]:
    values = {
        "--scenario": ask.scenario,
        "--jobs": ask.jobs,
        "--philly": ask.philly,
        "--sacct": ask.sacct,
        "--cluster": ask.cluster,
        "--budgets": ask.budgets,
        "--compare-budgets": ask.compare_budgets or None,
        "--days": ask.days,
        "--load": ask.load,
        "--gpus": ask.gpus,
        "--unit": ask.unit,
        "--timezone": ask.timezone,
        "--slice": ask.slice,
        "--warm-up": ask.warm_up,
        "--drain": ask.drain,
        "--add-members/--no-add-members": ask.add_members,
        "--skip-bad": ask.skip_bad or None,
    }
    return [name for name, value in values.items() if value is not None]


def _load(text: str | None, asked: Asked) -> Ppm | None:
    if text is None:
        return None
    load_ppm = int(Decimal(text) * PPM_WHOLE) if _LOAD.match(text) else 0
    if not 0 < load_ppm <= LOAD_MOST_PPM:
        asked.add("--load", f"{quote(text)} is not a demand in times the capacity such as 2.5 (above 0, at most 100)")
        return None
    return load_ppm


def _duration(option: str, text: str | None, least: Ms, most: Ms, asked: Asked) -> Ms | None:
    if text is None:
        return None
    try:
        length_ms = parse_duration(text)
    except ValueError:
        asked.add(option, f"{quote(text)} is not a duration; write for example 90s, 30m, 8h or 7d")
        return None
    if not least <= length_ms <= most:
        asked.add(option, f"{quote(text)} is more than {format_duration(most)}")
        return None
    return length_ms


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True
