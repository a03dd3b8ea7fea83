"""The kept results: one for each experiment and seed, with the version of the rules that it was measured with.

A file of JSON, one result a line, so that a rerun changes only its own lines. Never keeps what the page does not show.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tests.experiments.table import Experiment

FIGURES: Final = (
    *("availability", "occupancy", "utilisation", "unallocated_share", "demand", "jobs_submitted", "jobs_finished"),
    *("delivered_owed_plain", "delivered_owed_strict", "delivered_owed_weekly", "teams_owed", "teams_at_95"),
    *("worst_team", "worst_team_name", "delivered_gpu_hours", "goodput", "lost_fraction", "lost_fraction_allocated"),
    *("lost_fraction_unallocated", "lost_to_failures_fraction", "evictions", "evictions_allocated"),
    *("evictions_per_1000_gpu_hours", "evictions_most", "evictions_most_allocated", "slice_violations"),
    *("promises_made", "promises_kept", "promises_broken", "promises_open", "promises_moved_by_failure", "promises_withdrawn"),
    *("events", "looks", "runtime_s", "peak_mib"),
)
WAITS: Final = ("debug", "all", "gpus_64_255", "gpus_256")


class Waits(Struct, frozen=True):
    """Seconds; None: no such jobs."""

    p50: float | None
    p90: float | None
    max: float | None
    jobs: int
    never_started: int


class Team(Struct, frozen=True):
    """One leaf over the window."""

    share_ppm: int | None
    weekly: float | None
    delivered_gpu_hours: float
    busy_gpu_hours: float


class Waiting(Struct, frozen=True):
    """A large job that had not started at the end, and why."""

    job: str
    waited_s: float
    ratio: float | None
    why: str


class Day(Struct, frozen=True, array_like=True):
    """GPU-hours of some teams in one day."""

    entitled: int
    owed: int
    delivered: int


class Made(Struct, frozen=True, array_like=True):
    """When a run was made, and of which commit the code was; of older results that with which they came."""

    commit: str
    day: str
    """`2026-12-03`, UTC."""


class Offline(Struct, frozen=True, array_like=True):
    """What could be held, of what was available, with no unallocated job evicted more than `limit` times (None: any number)."""

    limit: int | None
    bound: float
    """No schedule holds more."""
    planned: float
    """A schedule that holds this."""
    evictions_most: int
    """Of one job, in that schedule."""


class Result(Struct, frozen=True, kw_only=True):
    """One run. `figures` and `waits` as `allmende simulate --json` names them; `cpu_s` is the whole process, start-up included."""

    experiment: str
    seed: int
    version: str
    scenario: str
    policy: str
    sets: tuple[str, ...]
    days: int
    cpu_s: float
    figures: dict[str, Any]
    waits: dict[str, Waits]
    teams: dict[str, Team]
    large_waits_s: dict[str, float]
    """Of each allocated job of 256 GPUs and more that was submitted in the window."""
    waiting: tuple[Waiting, ...]
    broken_share: float | None
    """Part of the free GPU time that lay on partly held nodes."""
    settings: dict[str, Any]
    daily: dict[str, tuple[Day, ...]] = {}
    """By the title of what is watched."""
    made: Made | None = None
    """None: nobody has noted it."""
    useful: float | None = None
    """Occupancy without unallocated work that was lost and done again; None: not worked out."""
    offline: tuple[Offline, ...] = ()
    """What an all-knowing scheduler could do with the same unallocated jobs; empty: not worked out."""

    @property
    def key(self) -> str:
        """Experiment and seed."""
        return key(self.experiment, self.seed)

    def number(self, name: str) -> float | None:
        """A figure; None where it has no value."""
        value = self.figures.get(name)
        return value if isinstance(value, int | float) else None

    def answers(self, asked: Experiment, days: int, version: str) -> bool:
        """Whether a run of this experiment with this version would be the same again."""
        now = (asked.scenario, asked.policy, asked.sets, days, version)
        watched = tuple(self.daily) == tuple(each.title for each in asked.watch)
        return watched and (self.scenario, self.policy, self.sets, self.days, self.version) == now


def key(experiment: str, seed: int) -> str:
    """How a result is called."""
    return f"{experiment}/{seed}"


class Results:
    """The file. Read anew before each writing, so that two who run different experiments do not take away each other's."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Result]:
        """All of them by key; none where there is no file yet.

        Raises:
            msgspec.ValidationError: the file is from another version of this script.
        """
        if not self._path.exists():
            return {}
        return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Result])

    def put(self, result: Result) -> None:
        """Add or replace one; the file is whole at every instant."""
        kept = self.read() | {result.key: result}
        lines = ",\n".join(f"{json.dumps(name)}: {msgspec.json.encode(kept[name]).decode()}" for name in sorted(kept))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(f".{os.getpid()}.tmp")
        beside.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        beside.replace(self._path)
