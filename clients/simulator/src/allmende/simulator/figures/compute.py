"""A history into its figures: each part's sums, brought together and divided once.

The same history gives the same figures, to the byte. Never reads a clock: what the run cost comes in as a `Cost`.
"""

from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any, NamedTuple

from allmende.proto.impact import SERVED_PERCENT, Impact, impact, total
from allmende.proto.units import HOUR_MS, GpuMs, Ppm
from allmende.simulator.figures import capacity, losses, promises, rooms, waits
from allmende.simulator.figures.held import Held, busy_ms, demand, held
from allmende.simulator.figures.impact import teams
from allmende.simulator.figures.model import Cost, Figures, Hourly, Tagged, Team, TeamHours
from allmende.simulator.figures.quotients import DECIMALS, hours, quotient
from allmende.simulator.figures.span import Span, measured
from allmende.simulator.model import History


class _Sums(NamedTuple):
    """Everything before the last division. `available` in GPU-ms."""

    available: GpuMs
    hourly: Hourly
    held: Held
    lost: losses.Losses
    impacts: dict[str, Impact]
    waits: list[waits.Wait]

    @property
    def delivered(self) -> GpuMs:
        return sum(part.delivered for part in self.impacts.values())

    @property
    def unallocated(self) -> GpuMs:
        return sum(self.hourly.unallocated)


def measure(history: History) -> Figures:
    """The figures of contract §10 over the window, as far as the clock came."""
    span = measured(history)
    sums = _sums(history, span)
    listed = _teams(history, sums, span)
    owed_teams = [team for team in listed if sums.impacts[team.budget].owed]
    worst = min(owed_teams, key=lambda team: _weekly_key(sums.impacts[team.budget], team.budget), default=None)
    return Figures(
        policy=history.policy,
        window_from_ms=history.window.from_ms,
        window_to_ms=history.window.to_ms,
        measured_to_ms=span.to_ms,
        gpus=history.cluster.gpus,
        **_jobs(history, span),
        **_shares_of_time(history, sums, span),
        **_impact(sums),
        teams_owed=len(owed_teams),
        teams_at_95=sum(_served(sums.impacts[team.budget]) for team in owed_teams),
        worst_team=None if worst is None else worst.delivered_owed_weekly,
        worst_team_name=None if worst is None else worst.budget,
        teams_without_owed=tuple(team.budget for team in listed if not sums.impacts[team.budget].owed),
        **_losses(sums),
        **{f"promises_{name}": count for name, count in promises.promises(history, span)._asdict().items()},
        waits_s=waits.by_class(sums.waits),
        teams=listed,
        tags=_tags(history, sums, span),
        fragmentation=rooms.fragmentation(history, span),
        large_never_started=waits.never_started(history, span),
        events=history.events,
        looks=history.looks,
        hourly=sums.hourly,
    )


def cost(runtime_s: float, peak_mib: float, events: int) -> Cost:
    """What a run cost, as the caller measured it, rounded for the JSON."""
    per_event = round(runtime_s * 1_000 / events, DECIMALS) if events else None
    return Cost(runtime_s=round(runtime_s, DECIMALS), peak_mib=round(peak_mib, DECIMALS), events=events, ms_per_event=per_event)


def _sums(history: History, span: Span) -> _Sums:
    steps = capacity.steps(history.nodes, span)
    got, lost = held(history, span), losses.losses(history, span)
    entitled = capacity.entitled_by_hour(steps, history.trees, history.cluster.cluster, span)
    team_hours = teams(entitled, demand(history, span), got.delivered, got.past_slice, span)
    hourly = Hourly(
        from_ms=span.from_ms,
        to_ms=span.to_ms,
        available=capacity.available_by_hour(steps, span),
        unallocated=got.unallocated.by_hour(),
        starting=got.starting.by_hour(),
        evictions=tuple(lost.by_hour),
        teams=team_hours,
    )
    impacts = {team.budget: impact(team.owed, team.delivered) for team in team_hours}
    return _Sums(sum(hourly.available), hourly, got, lost, impacts, waits.waits(history, span))


def _jobs(history: History, span: Span) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    submitted = started = 0
    for life in history.lives.values():
        submitted += span.has(life.submitted_at_ms)
        started += life.first_started_at_ms is not None and span.has(life.first_started_at_ms)
        if life.ended_at_ms is None or life.ended_at_ms >= span.to_ms:
            outcomes["open"] += life.submitted_at_ms < span.to_ms
        elif life.end is not None and span.has(life.ended_at_ms):
            outcomes[life.end] += 1
    return {
        "jobs_submitted": submitted,
        "jobs_started": started,
        "jobs_finished": outcomes["finished"],
        "outcomes": {name: outcomes[name] for name in sorted(outcomes) if outcomes[name]},
    }


def _shares_of_time(history: History, sums: _Sums, span: Span) -> dict[str, Any]:
    occupied = sums.delivered + sums.unallocated
    return {
        "availability": quotient(sums.available, history.cluster.gpus * span.length_ms),
        "occupancy": quotient(occupied, sums.available),
        "utilisation": quotient(busy_ms(sum(sums.held.busy_ppm_ms.values())), occupied),
        "unallocated_share": quotient(sums.unallocated, occupied),
        "demand": quotient(sum(sum(team.demand) for team in sums.hourly.teams), sums.available),
    }


def _impact(sums: _Sums) -> dict[str, Any]:
    whole = total(sums.impacts.values())
    return {
        "delivered_owed_plain": quotient(whole.delivered, whole.owed),
        "delivered_owed_strict": quotient(whole.strict, whole.owed),
        "delivered_owed_weekly": quotient(whole.weekly, whole.owed),
    }


def _served(part: Impact) -> bool:
    return part.weekly * 100 >= part.owed * SERVED_PERCENT


def _weekly_key(part: Impact, budget: str) -> tuple[Fraction, str]:
    return Fraction(part.weekly, part.owed), budget


def _losses(sums: _Sums) -> dict[str, Any]:
    lost, delivered, unallocated = sums.lost, sums.delivered, sums.unallocated
    evicted, evicted_unallocated = sum(lost.evicted_ms.values()), lost.evicted_ms[None]
    failed, failed_unallocated = sum(lost.failed_ms.values()), lost.failed_ms[None]
    count, occupied = sum(lost.evictions.values()), delivered + unallocated
    good = delivered - (evicted - evicted_unallocated) - (failed - failed_unallocated)
    return {
        "delivered_gpu_hours": hours(delivered),
        "unallocated_gpu_hours": hours(unallocated),
        "starting_gpu_hours": hours(sum(sums.hourly.starting)),
        "lost_gpu_hours": hours(evicted),
        "lost_fraction": quotient(evicted, delivered),
        "lost_fraction_allocated": quotient(evicted - evicted_unallocated, delivered),
        "lost_fraction_unallocated": quotient(evicted_unallocated, unallocated),
        "lost_to_failures_fraction": quotient(failed, delivered),
        "goodput_gpu_hours": hours(good),
        "goodput": quotient(good, delivered),
        "evictions": count,
        "evictions_allocated": lost.allocated,
        "evictions_per_1000_gpu_hours": _per_1000_hours(count, occupied),
        "evictions_per_1000_gpu_hours_allocated": _per_1000_hours(lost.allocated, delivered),
        "evictions_most": lost.most,
        "evictions_most_allocated": lost.most_allocated,
        "slice_violations": lost.violations,
    }


def _per_1000_hours(count: int, amount: GpuMs) -> float | None:
    return quotient(count * 1_000 * HOUR_MS, amount)


def _teams(history: History, sums: _Sums, span: Span) -> tuple[Team, ...]:
    shares_ppm = capacity.shares_ppm(history.trees, history.cluster.cluster, span)
    waited: dict[str, list[waits.Wait]] = defaultdict(list)
    for wait in sums.waits:
        waited[wait.leaf].append(wait)
    return tuple(_team(each, sums, shares_ppm.get(each.budget), waited[each.budget]) for each in sums.hourly.teams)


def _team(team: TeamHours, sums: _Sums, share_ppm: Ppm | None, waited: list[waits.Wait]) -> Team:
    part, name, lost = sums.impacts[team.budget], team.budget, sums.lost
    return Team(
        budget=name,
        effective_share_ppm=share_ppm,
        delivered_owed_plain=quotient(part.delivered, part.owed),
        delivered_owed_strict=quotient(part.strict, part.owed),
        delivered_owed_weekly=quotient(part.weekly, part.owed),
        entitled_gpu_hours=hours(sum(team.entitled)),
        demand_gpu_hours=hours(sum(team.demand)),
        owed_gpu_hours=hours(part.owed),
        delivered_gpu_hours=hours(part.delivered),
        busy_gpu_hours=hours(busy_ms(sums.held.busy_ppm_ms[name])),
        lost_gpu_hours=hours(lost.evicted_ms[name]),
        evictions=lost.evictions[name],
        waits_s=waits.percentiles(waited),
    )


def _tags(history: History, sums: _Sums, span: Span) -> tuple[Tagged, ...]:
    counts = Counter(life.job.tag for life in history.lives.values() if life.job.tag and span.has(life.submitted_at_ms))
    return tuple(
        Tagged(
            tag=tag,
            jobs=counts[tag],
            held_gpu_hours=hours(sums.held.tag_held.get(tag, 0)),
            busy_gpu_hours=hours(busy_ms(sums.held.tag_busy_ppm_ms.get(tag, 0))),
            evictions=sums.lost.by_tag.get(tag, 0),
        )
        for tag in sorted(counts.keys() | sums.held.tag_held.keys())
    )
