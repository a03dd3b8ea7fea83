"""The history as a folder of CSV files, for one's own analysis; docs/guides/simulate-outputs.md says what each column holds.

Instants are milliseconds since 1970 (UTC) on the virtual clock, amounts GPU-milliseconds, both integers; an empty field is unknown
or none. Never rounds, and never leaves out the warm-up, but where a file is about the window.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from allmende.proto.impact import SIZE_CLASSES
from allmende.proto.units import HOUR_MS
from allmende.simulator.figures.model import Figures
from allmende.simulator.figures.span import measured
from allmende.simulator.figures.waits import waits
from allmende.simulator.model import History

Row: TypeAlias = Iterable[str | int | None]

COLUMNS: dict[str, tuple[str, ...]] = {
    "jobs.csv": (
        *("job", "user", "budget", "leaf", "kind", "priority", "tag"),
        *("replicas", "gpus_per_replica", "gpus", "gpu_model", "runtime_ms", "slice_ms", "max_runtime_ms", "resumable", "busy_ppm"),
        *("submitted_at_ms", "first_started_at_ms", "ended_at_ms", "end", "refused", "attempts", "evictions"),
    ),
    "attempts.csv": (
        *("attempt", "job", "leaf", "gpus", "gpus_per_replica", "placement", "slice_ms", "granted_at_ms", "started_at_ms"),
        *("protected_until_ms", "ordered_at_ms", "claimant", "ended_at_ms", "end", "lost_gpu_ms"),
    ),
    "teams_hourly.csv": (
        *("hour_from_ms", "budget", "entitled_gpu_ms", "demand_gpu_ms", "owed_gpu_ms", "delivered_gpu_ms", "past_slice_gpu_ms"),
    ),
    "waits.csv": ("job", "leaf", "gpus", "slice_ms", "submitted_at_ms", "waited_ms", "never_started", "classes"),
    "standings.csv": ("at_ms", "budget", "used_gpu_ms", "entitlement_gpu_ms"),
    "nodes.csv": ("at_ms", "node", "gpus", "gpu_model", "healthy"),
}


def write(folder: Path, history: History, figures: Figures) -> None:
    """Write all files; the folder is made where it is missing, and files of these names are replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in _files(history, figures).items():
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS[name])
            writer.writerows(rows())


def _files(history: History, figures: Figures) -> dict[str, Callable[[], Iterator[Row]]]:
    return {
        "jobs.csv": lambda: _jobs(history),
        "attempts.csv": lambda: _attempts(history),
        "teams_hourly.csv": lambda: _teams_hourly(figures),
        "waits.csv": lambda: _waits(history),
        "standings.csv": lambda: _standings(history),
        "nodes.csv": lambda: _nodes(history),
    }


def _jobs(history: History) -> Iterator[Row]:
    for life in history.lives.values():
        job = life.job
        asked = (job.replicas, job.gpus_per_replica, job.gpus, job.gpu_model, job.runtime_ms, job.slice_ms, job.max_runtime_ms)
        yield (
            *(job.job, job.user, job.budget, life.leaf, job.kind, job.priority, job.tag),
            *asked,
            *(int(job.resumable), job.busy_ppm, life.submitted_at_ms, life.first_started_at_ms, life.ended_at_ms),
            *(life.end, life.refused, life.attempts, life.evictions),
        )


def _attempts(history: History) -> Iterator[Row]:
    for run in history.runs:
        placement = " ".join(f"{part.node}:{part.replicas}" for part in run.placement)
        yield (
            *(run.attempt, run.job, run.leaf, run.gpus, run.gpus_per_replica, placement, run.slice_ms),
            *(run.granted_at_ms, run.started_at_ms, run.protected_until_ms, run.ordered_at_ms, run.claimant),
            *(run.ended_at_ms, run.end, run.lost_gpu_ms),
        )


def _teams_hourly(figures: Figures) -> Iterator[Row]:
    hourly = figures.hourly
    for hour in range(len(hourly.available)):
        for team in hourly.teams:
            amounts = (team.entitled, team.demand, team.owed, team.delivered, team.past_slice)
            yield hourly.from_ms + hour * HOUR_MS, team.budget, *(amount[hour] for amount in amounts)


def _waits(history: History) -> Iterator[Row]:
    for wait in waits(history, measured(history)):
        classes = " ".join(name for name, belongs in SIZE_CLASSES.items() if belongs(wait.gpus, wait.slice_ms))
        yield wait.job, wait.leaf, wait.gpus, wait.slice_ms, wait.submitted_at_ms, wait.waited_ms, int(wait.open), classes


def _standings(history: History) -> Iterator[Row]:
    for sample in history.standings:
        for budget, (used, entitlement) in sample.standings.items():
            yield sample.at_ms, budget, used, entitlement


def _nodes(history: History) -> Iterator[Row]:
    specs = {spec.node: spec for spec in history.cluster.nodes}
    for change in history.nodes:
        spec = specs[change.node]
        yield change.at_ms, change.node, spec.gpus, spec.gpu_model, change.healthy
