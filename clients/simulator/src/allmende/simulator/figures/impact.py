"""Delivered against owed (contract §10): plain, strict by hour, and weekly, capped per team over each seven days.

`owed(h) = min(entitlement in h, demand(h))`. Plain is `sum delivered / sum owed`, strict
`sum min(delivered(h), owed(h)) / sum owed(h)` and weekly `sum over teams and weeks of min(delivered, owed) / sum owed`. Weeks are
counted from the window's beginning; a last partial week counts as a week of its own length. Never divides.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from allmende.proto.units import GpuMs
from allmende.simulator.figures.model import TeamHours
from allmende.simulator.figures.span import HOURS_A_WEEK, HourSums, Span


class Impact(NamedTuple):
    """Sums over hours, in GPU-ms. `strict` and `weekly` are what counts as delivered after the cap."""

    owed: GpuMs
    delivered: GpuMs
    strict: GpuMs
    weekly: GpuMs


def teams(
    entitled: Mapping[str, tuple[GpuMs, ...]],
    asked: Mapping[str, HourSums],
    given: Mapping[str, HourSums],
    past_slice: Mapping[str, HourSums],
    span: Span,
) -> tuple[TeamHours, ...]:
    """The hours of every leaf that had a share, asked or got: the leaves of the trees in their order, then the others by name."""
    none = (0,) * span.hours
    names = [*entitled, *sorted({*asked, *given} - entitled.keys())]
    found: list[TeamHours] = []
    for name in names:
        may, wants = entitled.get(name, none), _hours(asked.get(name), none)
        found.append(
            TeamHours(
                budget=name,
                entitled=may,
                demand=wants,
                owed=tuple(map(min, may, wants)),
                delivered=_hours(given.get(name), none),
                past_slice=_hours(past_slice.get(name), none),
            )
        )
    return tuple(found)


def _hours(sums: HourSums | None, none: tuple[GpuMs, ...]) -> tuple[GpuMs, ...]:
    return none if sums is None else sums.by_hour()


def impact(team: TeamHours) -> Impact:
    """One leaf's sums."""
    return Impact(
        owed=sum(team.owed),
        delivered=sum(team.delivered),
        strict=sum(map(min, team.delivered, team.owed)),
        weekly=sum(map(min, _weeks(team.delivered), _weeks(team.owed))),
    )


def total(parts: Iterable[Impact]) -> Impact:
    """All leaves together: the caps stay those of each team."""
    columns = list(zip(*parts, strict=True))
    return Impact(*(sum(column) for column in columns)) if columns else Impact(0, 0, 0, 0)


def _weeks(hours: Sequence[GpuMs]) -> list[GpuMs]:
    return [sum(hours[at : at + HOURS_A_WEEK]) for at in range(0, len(hours), HOURS_A_WEEK)]
