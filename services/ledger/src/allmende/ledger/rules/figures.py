"""The hours of every team on one cluster: entitled, asked, owed and delivered (contract §10). `proto.impact` makes the sums.

`owed(h) = min(entitlement in h, demand(h))`, where both are known. Never reads "unknown" as zero, and never divides.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple, TypeAlias

from allmende.ledger.model import Level, Share, Used
from allmende.ledger.rules.demand import AskedJob, demanded
from allmende.ledger.rules.hours import HourSums, Span
from allmende.proto.impact import Impact, impact
from allmende.proto.units import HOUR_MS, PPM_WHOLE, GpuMs, Ms

ByHour: TypeAlias = Sequence[GpuMs]


class TeamHours(NamedTuple):
    """One leaf, hour by hour, all GPU-ms."""

    budget: str
    entitled: ByHour
    demand: ByHour
    delivered: ByHour

    @property
    def owed(self) -> tuple[GpuMs, ...]:
        """What was asked for, up to the entitlement."""
        return tuple(map(min, self.entitled, self.demand))


class Hours(NamedTuple):
    """A cluster's span: what of it is known, and its teams by name. An hour's owed is known where capacity and demand are."""

    span: Span
    capacity_known: Sequence[bool]
    demand_known: Sequence[bool]
    teams: tuple[TeamHours, ...]

    def known(self, hour: int) -> bool:
        """Whether what was owed in an hour is known."""
        return self.capacity_known[hour] and self.demand_known[hour]


def demand_from_ms(first_word_ms: Ms | None, first_grant_ms: Ms | None) -> Ms | None:
    """From when on the cluster's demand is known; None: it is not.

    Whoever runs on before the first word that told what a job asks for was started by an admission that did not tell; where
    nobody did, there was no demand before either.
    """
    if first_grant_ms is None or (first_word_ms is not None and first_word_ms <= first_grant_ms):
        return 0
    return None if first_word_ms is None else -(-first_word_ms // HOUR_MS) * HOUR_MS


class Asking:
    """Sums the demand of jobs, one by one, by leaf and hour."""

    def __init__(self, cluster: str, span: Span) -> None:
        self._cluster, self._span = cluster, span
        self._sums: dict[str, HourSums] = {}

    def add(self, job: AskedJob) -> None:
        """Add a job. Unallocated ones are nobody's demand."""
        leaf = job.leaf
        if leaf is None:
            return
        if leaf not in self._sums:
            self._sums[leaf] = HourSums(self._span)
        for from_ms, to_ms in demanded(job, self._cluster, self._span.to_ms):
            self._sums[leaf].add(job.want.gpus, from_ms, to_ms)

    def by_leaf(self) -> dict[str, ByHour]:
        """The leaves that asked for anything here."""
        hours = {leaf: sums.by_hour() for leaf, sums in self._sums.items()}
        return {leaf: each for leaf, each in hours.items() if any(each)}


def hours(
    span: Span,
    levels: Sequence[Level],
    shares: Iterable[Share],
    asked: Mapping[str, ByHour],
    used: Iterable[Used],
    demand_from_ms: Ms | None,
) -> Hours:
    """The teams of a span: every leaf with a share at its end, and whoever asked or was charged.

    Args:
        levels: the cluster's capacity in the span, as far as it was reported.
        shares: the cluster's history of shares over the span.
        asked: demand by leaf and hour.
        used: what was charged, in steps of an hour.
        demand_from_ms: from when on demand is known; None: it is not.
    """
    none = (0,) * span.hours
    given: dict[str, list[GpuMs]] = {}
    for each in used:
        if each.budget is not None:
            given.setdefault(each.budget, list(none))[span.hour_of(each.from_ms)] += each.gpu_ms
    listed = list(shares)
    entitled = entitlements(listed, levels, span)
    names = sorted({*leaves_at(listed, span.to_ms - 1), *asked, *given})
    teams = (TeamHours(name, entitled.get(name, none), asked.get(name, none), given.get(name, none)) for name in names)
    reported = HourSums(span)
    for level in levels:
        reported.add(1, level.from_ms, level.to_ms)
    begins = [span.begins(hour) for hour in range(span.hours)]
    demand_known = [demand_from_ms is not None and demand_from_ms <= at_ms for at_ms in begins]
    return Hours(span, [part > 0 for part in reported.by_hour()], demand_known, tuple(teams))


def leaves_at(shares: Iterable[Share], at_ms: Ms) -> set[str]:
    """The budgets that jobs could be charged to at an instant."""
    there = [share for share in shares if share.holds_at(at_ms)]
    inner = {name for share in there for name in share.path[:-1]}
    return {share.budget for share in there} - inner


def entitlements(shares: Iterable[Share], levels: Sequence[Level], span: Span) -> dict[str, ByHour]:
    """What each budget is entitled to in each hour: floor(available x effective share).

    Where capacity or share changes within the hour the parts are added before the floor, which is taken once.
    """
    whole = _available(levels, *span, span)
    known = {tuple(span): whole}
    found: dict[str, list[GpuMs]] = {}
    parts: dict[tuple[str, int], Fraction] = defaultdict(Fraction)
    for share in shares:
        held = span.clip(share.from_ms, span.to_ms if share.until_ms is None else share.until_ms)
        if held[0] >= held[1] or not share.covers:
            continue
        if held not in known:
            known[held] = _available(levels, *held, span)
        row = found.setdefault(share.budget, [0] * span.hours)
        product, below = prod(share.ppm), PPM_WHOLE ** len(share.ppm)
        for hour, amount in enumerate(known[held]):
            if amount == whole[hour]:
                row[hour] = amount * product // below
            elif amount:
                parts[share.budget, hour] += Fraction(amount * product, below)
    for (budget, hour), exact in parts.items():
        found[budget][hour] = exact.numerator // exact.denominator
    return {budget: tuple(row) for budget, row in found.items()}


def _available(levels: Iterable[Level], from_ms: Ms, to_ms: Ms, span: Span) -> tuple[GpuMs, ...]:
    """Available GPU-ms of each hour of a span, as far as it lies in an interval."""
    sums = HourSums(span)
    for level in levels:
        sums.add(level.available, max(level.from_ms, from_ms), min(level.to_ms, to_ms))
    return sums.by_hour()


class Busy(NamedTuple):
    """Held GPU-ms of which the activity is known, and how much of it the devices were busy."""

    watched_gpu_ms: GpuMs
    busy_gpu_ms: GpuMs


NOT_WATCHED = Busy(0, 0)


class Whole(NamedTuple):
    """The cluster over the hours in which its capacity is known, all GPU-ms."""

    installed: GpuMs
    available: GpuMs
    allocated: GpuMs
    unallocated: GpuMs


class TeamFigures(NamedTuple):
    """One leaf's sums over the hours in which owed is known, and its devices' activity over all."""

    budget: str
    entitled: GpuMs
    demand: GpuMs
    impact: Impact
    busy: Busy


def whole(found: Hours, levels: Iterable[Level], used: Iterable[Used]) -> Whole:
    """Availability's and occupancy's amounts."""
    installed, available = HourSums(found.span), HourSums(found.span)
    for level in levels:
        installed.add(level.installed, level.from_ms, level.to_ms)
        available.add(level.available, level.from_ms, level.to_ms)
    occupied = {True: 0, False: 0}
    for each in used:
        if found.capacity_known[found.span.hour_of(each.from_ms)]:
            occupied[each.budget is None] += each.gpu_ms
    return Whole(sum(installed.by_hour()), sum(available.by_hour()), occupied[False], occupied[True])


def team_figures(found: Hours, busy: Mapping[str | None, Busy]) -> tuple[TeamFigures, ...]:
    """Every team's figures. Hours in which owed is not known are nobody's, neither as owed nor as delivered."""
    known = [found.known(hour) for hour in range(found.span.hours)]

    def of_known(hours: ByHour) -> list[GpuMs]:
        return [amount if is_known else 0 for amount, is_known in zip(hours, known, strict=True)]

    return tuple(
        TeamFigures(
            team.budget,
            sum(of_known(team.entitled)),
            sum(of_known(team.demand)),
            impact(of_known(team.owed), of_known(team.delivered)),
            busy.get(team.budget, NOT_WATCHED),
        )
        for team in found.teams
    )
