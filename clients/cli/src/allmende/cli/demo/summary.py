"""The demo's last page: figures as a table, and the verdict. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from allmende.cli import render
from allmende.proto.message import MessageRefused
from allmende.proto.units import SECOND_MS, format_duration, format_share

# What the contract promises: any other value than 0 is a fault of ours.
MUST_BE_ZERO = ("slice_violations", "ledger_difference_gpu_ms", "postings_lost", "postings_duplicated", "evictions_unexplained")


def verdict(figures: Mapping[str, Any]) -> int:
    """The exit code: 0 when every promise was kept."""
    return int(any(figures[name] != 0 for name in MUST_BE_ZERO))


def drawn(figures: Mapping[str, Any], refusals: Sequence[MessageRefused]) -> RenderableType:
    """Everything a reader wants to know after a minute of watching."""
    parts: list[RenderableType] = [
        "",
        render.table("What happened", ("", "#"), _happened(figures)),
        "",
        render.table("Promises (each must be 0)", ("", "#"), [(_words(name), str(figures[name])) for name in MUST_BE_ZERO]),
        "",
        render.table("How long people waited", ("", "HALF WITHIN#", "90 % WITHIN#", "LONGEST#"), _waits(figures["waits_s"])),
        "",
        render.table("Delivered against owed", ("TEAM", "SHARE#", "PLAIN#", "STRICT#"), _teams(figures)),
    ]
    if refusals:
        lines = [(each.problem.code, each.problem.sentence) for each in refusals[:5]]
        parts += ["", render.table(f"{len(refusals)} messages were refused", ("CODE", "WHY"), lines)]
    return Group(*parts)


def _happened(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts = ("jobs_submitted", "jobs_started", "jobs_finished", "evictions")
    fractions = ("occupancy", "availability", "unallocated_share", "delivered_owed_plain", "delivered_owed_strict")
    rows = [(_words(name), f"{figures[name]:,}") for name in counts]
    return rows + [(_words(name), _fraction(figures[name])) for name in fractions]


def _waits(waits: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    names = {
        "debug": "debug jobs (to 8 GPUs, slices to 15 min)",
        "all": "all allocated jobs",
        "large": "large jobs (64 GPUs and more)",
    }
    return [(words, *(_seconds(waits[name][key]) for key in ("p50", "p90", "max"))) for name, words in names.items()]  # type: ignore[misc]


def _teams(figures: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    teams = sorted(figures["teams"], key=lambda team: -team["effective_share_ppm"])
    return [
        (
            team["budget"],
            format_share(team["effective_share_ppm"]),
            _fraction(team["delivered_owed_plain"]),
            _fraction(team["delivered_owed_strict"]),
        )
        for team in teams
    ]


def _words(name: str) -> str:
    return name.replace("_", " ").replace("gpu ms", "(GPU-ms)").replace("delivered owed ", "delivered / owed, ")


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_duration(int(value * SECOND_MS))
