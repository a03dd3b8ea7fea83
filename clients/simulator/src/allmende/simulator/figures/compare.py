"""Several runs side by side: the same figures of each, and the same teams. Never says which is better."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from allmende.simulator.figures.compute import measure
from allmende.simulator.figures.model import Figures, Waits
from allmende.simulator.model import History

# What a lab decides by, in the order in which it is read. Waits are `class p`.
COMPARED = (
    "delivered_owed_plain",
    "delivered_owed_strict",
    "delivered_owed_weekly",
    "teams_at_95",
    "worst_team",
    "worst_team_name",
    "occupancy",
    "utilisation",
    "unallocated_share",
    "demand",
    "lost_fraction",
    "goodput_gpu_hours",
    "evictions",
    "evictions_per_1000_gpu_hours",
    "evictions_most",
    "slice_violations",
    "promises_broken",
    "jobs_finished",
)
WAITS_COMPARED = (("debug", "p50"), ("debug", "p90"), ("all", "p50"), ("all", "p90"), ("gpus_256", "p50"), ("gpus_256", "p90"))


class Row(Struct, frozen=True, kw_only=True):
    """One figure of all runs, in their order."""

    figure: str
    values: tuple[float | int | str | None, ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """`runs` names the columns. Of each team in any run: weekly ratio (`teams`), `delivered` GPU-hours, p90 wait in s."""

    runs: tuple[str, ...]
    figures: tuple[Row, ...]
    teams: tuple[Row, ...]
    delivered: tuple[Row, ...]
    teams_waits: tuple[Row, ...]


def compare(histories: Iterable[History]) -> Comparison:
    """Measure each history and set them side by side. They may come one by one, so that only one is in memory."""
    return side_by_side(_named([measure(history) for history in histories]))


def side_by_side(measured: Mapping[str, Figures]) -> Comparison:
    """Set measured runs side by side under names of the caller's."""
    columns = tuple(measured.values())
    rows = [Row(figure=name, values=tuple(getattr(each, name) for each in columns)) for name in COMPARED]
    for name, part in WAITS_COMPARED:
        rows.append(Row(figure=f"waits_s {name} {part}", values=tuple(getattr(each.waits_s[name], part) for each in columns)))
    names = list(dict.fromkeys(team.budget for each in columns for team in each.teams))
    by_name = [{team.budget: team for team in each.teams} for each in columns]

    def of_teams(field: str) -> tuple[Row, ...]:
        return tuple(Row(figure=name, values=tuple(_team_value(teams.get(name), field) for teams in by_name)) for name in names)

    return Comparison(
        runs=tuple(measured),
        figures=tuple(rows),
        teams=of_teams("delivered_owed_weekly"),
        delivered=of_teams("delivered_gpu_hours"),
        teams_waits=of_teams("waits_s"),
    )


def _team_value(team: object | None, field: str) -> float | None:
    value: float | Waits | None = None if team is None else getattr(team, field)
    return value.p90 if isinstance(value, Waits) else value


def _named(measured: list[Figures]) -> dict[str, Figures]:
    """By policy; a second run of the same policy gets a number."""
    named: dict[str, Figures] = {}
    for each in measured:
        name, number = each.policy, 1
        while name in named:
            number += 1
            name = f"{each.policy} {number}"
        named[name] = each
    return named
