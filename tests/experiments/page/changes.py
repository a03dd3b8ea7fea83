"""Labs with large gangs, and labs in which something changes: what those got whom it meets, day by day."""

from collections.abc import Sequence

from tests.experiments.page import marks
from tests.experiments.page.kept import Kept
from tests.experiments.results import Day, Result
from tests.experiments.table import CHANGES, Experiment, Watch

# Where a team is said to have what it is owed (contract §10: Ai2's own line).
SERVED_PERCENT = 95


def big_jobs(kept: Kept) -> list[str]:
    """Fragmentation, and who waits."""
    runs = [each for name in ("big-jobs", "big-jobs-fifo") for each in kept.of(name)]
    if not runs:
        return ["Not measured yet."]
    heads = [
        "policy",
        "occupancy",
        "free GPU time on partly held nodes",
        "64 to 255 p90",
        "256+ p90",
        "256+ never started",
        "worst team",
        "lost",
    ]
    rows = [
        [
            f"`{each.policy}`",
            marks.ratio(each.number("occupancy")),
            marks.percent(each.broken_share),
            marks.duration(each.waits["gpus_64_255"].p90),
            marks.duration(each.waits["gpus_256"].p90),
            f"{each.waits['gpus_256'].never_started} of {each.waits['gpus_256'].jobs}",
            f"{marks.ratio(each.number('worst_team'))} {each.figures['worst_team_name'] or ''}",
            marks.percent(each.number("lost_fraction")),
        ]
        for each in runs
    ]
    return [marks.table(heads, rows, right=range(1, len(heads))), *_sooner(runs)]


def _sooner(runs: Sequence[Result]) -> list[str]:
    ours = next((each for each in runs if each.policy == "allmende"), None)
    fifo = next((each for each in runs if each.policy == "fifo"), None)
    if ours is None or fifo is None:
        return []
    both = sorted(ours.large_waits_s.keys() & fifo.large_waits_s.keys())
    if not both:
        return ["The two runs have no job of 256 GPUs and more in common."]
    sooner = sum(ours.large_waits_s[job] < fifo.large_waits_s[job] for job in both)
    later = sum(ours.large_waits_s[job] > fifo.large_waits_s[job] for job in both)
    return [f"Of {len(both)} such jobs that both runs had, {sooner} waited less under `allmende`, {later} longer."]


def changes(kept: Kept) -> list[str]:
    """A part for each lab in which something changes."""
    found: list[str] = []
    for asked in CHANGES:
        if asked.watch:
            found += [f"### `{asked.name}`", f"{asked.why[0].upper()}{asked.why[1:]}."]
            found += [part for run in kept.of(asked.name) for part in _change(asked, run)] or ["Not measured yet."]
    return found


def _change(asked: Experiment, run: Result) -> list[str]:
    whole = (
        f"Seed {run.seed}, {run.days} days. Whole lab: weekly {marks.ratio(run.number('delivered_owed_weekly'))}, "
        f"worst team {marks.ratio(run.number('worst_team'))} ({run.figures['worst_team_name'] or 'nobody'}), "
        f"{run.figures['slice_violations']} slice violations, {marks.percent(run.number('lost_fraction'))} lost to evictions."
    )
    return [whole, *(part for watch in asked.watch for part in _watched(watch, run.daily.get(watch.title, ())))]


def _watched(watch: Watch, days: Sequence[Day]) -> list[str]:
    if not days:
        return []
    at = len(days) * watch.change_percent // 100
    parts = [("before", days[:at]), ("the first day after", days[at : at + 1]), ("the three days after", days[at : at + 3])]
    rows = [
        [when, marks.whole(_sum(part, 0)), marks.whole(_sum(part, 1)), marks.whole(_sum(part, 2)), _of_owed(part)]
        for when, part in [*parts, ("all days after", days[at:])]
        if part
    ]
    heads = [watch.title, "entitled, GPU-hours", "owed", "delivered", "delivered / owed"]
    title = f"{watch.title}: delivered a day (line: owed)"
    chart = marks.lines(title, _labels(days), "GPU-hours", [day.delivered for day in days], [day.owed for day in days])
    return [_settled(watch, days, at), marks.table(heads, rows, right=range(1, len(heads))), chart]


def _settled(watch: Watch, days: Sequence[Day], at: int) -> str:
    """How soon after the change a day's delivered is at least 95 % of its owed."""
    for number, day in enumerate(days[at:], start=1):
        if day.owed and day.delivered * 100 >= day.owed * SERVED_PERCENT:
            served = f"for the first time at least {SERVED_PERCENT} % of that day's owed"
            return f"{watch.title}: on day {number} after the change it gets {served}."
    return f"{watch.title}: on no day after the change does it get {SERVED_PERCENT} % of that day's owed."


def _labels(days: Sequence[Day]) -> list[str]:
    return [str(number) for number in range(1, len(days) + 1)]


def _sum(days: Sequence[Day], at: int) -> int:
    return sum((day.entitled, day.owed, day.delivered)[at] for day in days)


def _of_owed(days: Sequence[Day]) -> str:
    owed = _sum(days, 1)
    return marks.ratio(_sum(days, 2) / owed) if owed else marks.DASH
