"""The hours of every team (contract §10): entitled, asked, owed and delivered, from which `proto.impact` makes the sums.

`owed(h) = min(entitlement in h, demand(h))`. Hours and weeks are counted from the window's beginning. Never divides.
"""

from collections.abc import Mapping

from allmende.proto.units import GpuMs
from allmende.simulator.figures.model import TeamHours
from allmende.simulator.figures.span import HourSums, Span


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
