"""Figures as people read them: percentages, hours, durations, the sentence above everything. Text in, text out.

Names come from files of others: `plain` takes out what a terminal would obey. Never knows where the text goes.
"""

from typing import NamedTuple

from allmende.proto.impact import SIZE_TITLES
from allmende.proto.units import DAY_MS, SECOND_MS, Ms, format_duration
from allmende.simulator.figures.model import Cost, Figures, Team, Waits

DASH = "-"
# Ai2, "Impactful scheduling for GPU clusters": after 30 days in production (contract §10).
AI2 = {
    "delivered_owed_plain": "0.98",
    "teams_at_95": "13 of 15",
    "worst_team": "0.90",
    "occupancy": "0.98",
    "unallocated_share": "18 %",
    "debug_p90": "30s",
    "demand": "2 to 3",
}
WAIT_ROWS = ("debug", "all", "gpus_1_8", "gpus_9_63", "gpus_64_255", "gpus_256")


class Line(NamedTuple):
    """One figure: what it is, its value, Ai2's own where it gives one, and what it means."""

    title: str
    value: str
    ai2: str = ""
    meaning: str = ""


def plain(text: str) -> str:
    """A name that cannot command a terminal or hide in a page: every character that does not print becomes a replacement mark."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def ratio(value: float | None) -> str:
    """Three decimals, or a dash."""
    return DASH if value is None else f"{value:.3f}"


def percent(value: float | None, decimals: int = 1) -> str:
    """A fraction as a percentage, or a dash."""
    return DASH if value is None else f"{value * 100:.{decimals}f} %"


def number(value: float | None, decimals: int = 0) -> str:
    """Thousands separated, or a dash."""
    return DASH if value is None else f"{value:,.{decimals}f}"


def duration(value_s: float | None) -> str:
    """Seconds as `45s`, `2m 30s`, `3d 4h`; below a second as such; or a dash."""
    if value_s is None:
        return DASH
    return f"{value_s:.1f}s" if 0 < value_s < 1 else format_duration(int(value_s * SECOND_MS))


def days(length_ms: Ms) -> str:
    """Days with one decimal where it is not whole."""
    whole, rest = divmod(length_ms, DAY_MS)
    return f"{whole}" if not rest else f"{length_ms / DAY_MS:.1f}"


def span(figures: Figures) -> str:
    """What was measured: `30 days`, or `so far, 12.5 of 30 days`."""
    whole = days(figures.window_to_ms - figures.window_from_ms)
    if not figures.partial:
        return f"{whole} day{'' if whole == '1' else 's'}"
    return f"so far, {days(figures.measured_to_ms - figures.window_from_ms)} of {whole} days"


def headline(figures: Figures) -> str:
    """The run in a sentence."""
    policy = plain(figures.policy)
    begin = f"{policy} on {number(figures.gpus)} GPUs, {span(figures)}: "
    if figures.occupancy is None:
        return begin + "the clock has not left the warm-up, so there is nothing to measure yet."
    held = f"{percent(figures.occupancy)} of the available GPU time was held"
    if figures.worst_team is None:
        return f"{begin}{held}; no team was owed anything."
    worst = f"the worst ({plain(figures.worst_team_name or '')}) {percent(figures.worst_team)}"
    return f"{begin}{held}; {figures.teams_at_95} of {figures.teams_owed} teams got at least 95 % of what they were owed, {worst}."


def lines(figures: Figures) -> list[Line]:
    """The figures in the order in which they are read."""
    return [*_fairness(figures), *_use(figures), *_price(figures), *_kept(figures)]


def _fairness(figures: Figures) -> list[Line]:
    at_95 = f"{figures.teams_at_95} of {figures.teams_owed}"
    worst = ratio(figures.worst_team) + (f" ({plain(figures.worst_team_name)})" if figures.worst_team_name is not None else "")
    return [
        Line("delivered / owed, plain", ratio(figures.delivered_owed_plain), AI2["delivered_owed_plain"], "all that teams got"),
        Line("delivered / owed, weekly", ratio(figures.delivered_owed_weekly), "", "capped per team over each 7 days"),
        Line("delivered / owed, strict", ratio(figures.delivered_owed_strict), "", "capped per team in each hour"),
        Line("teams at 95 % or more", at_95, AI2["teams_at_95"], "weekly; teams that were owed nothing do not count"),
        Line("worst team", worst, AI2["worst_team"], "weekly"),
    ]


def _use(figures: Figures) -> list[Line]:
    return [
        Line("occupancy", ratio(figures.occupancy), AI2["occupancy"], "held, of what was available"),
        Line("availability", ratio(figures.availability), "", "available, of what is installed"),
        Line("utilisation", ratio(figures.utilisation), "", "devices busy, of what was held"),
        Line("unallocated", percent(figures.unallocated_share), AI2["unallocated_share"], "of what was held"),
        Line("demand", ratio(figures.demand), AI2["demand"], "GPUs asked for by allocated jobs, for each available one"),
    ]


def _price(figures: Figures) -> list[Line]:
    per_1000 = f"{number(figures.evictions)} ({number(figures.evictions_per_1000_gpu_hours, 1)} in 1,000 GPU-hours)"
    allocated = number(figures.evictions_per_1000_gpu_hours_allocated, 1)
    per_1000_allocated = f"{number(figures.evictions_allocated)} ({allocated} in 1,000 GPU-hours)"
    return [
        Line("lost to evictions", percent(figures.lost_fraction, 2), "", "of what was delivered; work to be done again"),
        Line("   by allocated work", percent(figures.lost_fraction_allocated, 2), "", "of what was delivered"),
        Line("   by unallocated work", percent(figures.lost_fraction_unallocated, 2), "", "of what it held"),
        Line("lost to failing nodes", percent(figures.lost_to_failures_fraction, 2), "", "of what was delivered"),
        Line("goodput", ratio(figures.goodput), "", "delivered less all that was lost, of what was delivered"),
        Line("evictions", per_1000, "", f"at most {figures.evictions_most} of one job"),
        Line("   of allocated work", per_1000_allocated, "", f"at most {figures.evictions_most_allocated} of one job"),
    ]


def _kept(figures: Figures) -> list[Line]:
    made = f"{number(figures.promises_kept)} of {number(figures.promises_made)}"
    others = (
        (figures.promises_broken, "broken"),
        (figures.promises_open, "not yet due"),
        (figures.promises_withdrawn, "withdrawn"),
        (figures.promises_moved_by_failure, "moved by a failing node"),
    )
    rest = ", ".join(f"{number(count)} {what}" for count, what in others if count)
    return [
        Line("slice violations", number(figures.slice_violations), "", _of_slices(figures.policy)),
        Line("promises kept", made, "", rest or "of reservations"),
        Line("large jobs never started", number(len(figures.large_never_started)), "", never_started(figures)),
    ]


def _of_slices(policy: str) -> str:
    """What the number of slice violations means: only Allmende promises slices."""
    return "must be 0" if policy == "allmende" else f"told to leave inside their slice: {policy} promises none"


def never_started(figures: Figures) -> str:
    """Why large jobs did not start, counted: `3 over budget, 1 promised`."""
    counts: dict[str, int] = {}
    for each in figures.large_never_started:
        counts[each.why] = counts.get(each.why, 0) + 1
    return ", ".join(f"{count} {why}" for why, count in sorted(counts.items())) or "of 256 GPUs and more"


def waits(figures: Figures) -> list[tuple[str, Waits]]:
    """Each class with its name in words."""
    return [(SIZE_TITLES[name], figures.waits_s[name]) for name in WAIT_ROWS]


def by_share(figures: Figures) -> list[Team]:
    """Teams by share, the largest first; those without one last."""
    return sorted(figures.teams, key=lambda team: (-(team.effective_share_ppm or -1), team.budget))


def share(team: Team) -> str:
    """The effective share in percent, or `unset`."""
    return "unset" if team.effective_share_ppm is None else f"{team.effective_share_ppm / 10_000:.4g} %"


def cost(cost: Cost, looks: int) -> str:
    """What the run cost, in a sentence."""
    per_event = "" if cost.ms_per_event is None else f", {cost.ms_per_event:.3f} ms each"
    return (
        f"The run took {duration(cost.runtime_s)} and {cost.peak_mib:,.0f} MiB "
        f"for {cost.events:,} job events{per_event}; the queue was passed {looks:,} times."
    )
