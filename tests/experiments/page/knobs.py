"""Experiments alone and together: one knob changed each time, held against the rules as they are, seed by seed.

What a row shows is computed: a figure counts as better or worse only where it moves the same way with every seed that both
have, and by more than its `least`, below which nobody would notice.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from allmende.simulator.command.overrides import in_words
from tests.experiments.page import marks
from tests.experiments.page.asked import mean, mean_wait
from tests.experiments.page.goals import GOALS
from tests.experiments.page.kept import Kept
from tests.experiments.results import Result
from tests.experiments.table import BASE, JOINT, KNOBS, MAIN, Experiment


class Judged(NamedTuple):
    """A figure by which rows are judged. `sign`: 1 where more is better. `least`: a smaller difference says nothing."""

    title: str
    value: Callable[[Result], float | None]
    form: Callable[[float | None], str]
    sign: int
    least: float


def _named(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.number(name)


def _p90(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.waits[name].p90


JUDGED: Final = (
    Judged("weekly", _named("delivered_owed_weekly"), marks.ratio, 1, 0.005),
    Judged("worst team", _named("worst_team"), marks.ratio, 1, 0.02),
    Judged("occupancy", _named("occupancy"), marks.ratio, 1, 0.002),
    Judged("lost", _named("lost_fraction"), marks.percent, -1, 0.001),
    Judged("most evictions of a job", _named("evictions_most"), marks.whole, -1, 2),
    Judged("debug p90", _p90("debug"), marks.duration, -1, 2),
    Judged("256+ p90", _p90("gpus_256"), marks.duration, -1, 1_800),
)


def knobs(kept: Kept) -> list[str]:
    """A row for each knob, and bars."""
    base = kept.of(BASE)
    if not base:
        return ["Not measured yet."]
    heads = ["experiment", "changed", *(each.title for each in JUDGED), "evictions in 1,000 h", "what it shows"]
    rows = [_row(each, kept.of(each.name), base) for each in KNOBS if kept.of(each.name)]
    least = ", ".join(f"{each.title} {_least(each)}" for each in JUDGED)
    said = f"Means over {marks.count(len(base), 'seed')}. A difference is named where it is the same with each seed, and more than"
    return [
        f"{said} what nobody would notice: {least}.",
        marks.table(heads, rows, right=range(2, 3 + len(JUDGED))),
        marks.bars(
            "GPU time lost to evictions (line: the goal)", _bars(kept, "lost_fraction", 100), "% of delivered", goal=2, flat=True
        ),
        marks.bars("Worst team, weekly (line: the goal)", _bars(kept, "worst_team", 1), "delivered / owed", goal=0.95, flat=True),
        marks.bars("p90 wait of jobs of 256 GPUs and more", _waits(kept), "hours", flat=True),
    ]


def _least(judged: Judged) -> str:
    return marks.duration(judged.least) if judged.form is marks.duration else judged.form(judged.least)


def _row(asked: Experiment, runs: Sequence[Result], base: Sequence[Result]) -> list[str]:
    values = [each.form(_mean(runs, each)) for each in JUDGED]
    per_1000 = marks.tenths(mean(runs, "evictions_per_1000_gpu_hours"))
    return [asked.name, _changed(asked, runs[0], base[0]), *values, per_1000, f"{asked.why}: {_shows(asked, runs, base)}"]


def _mean(runs: Sequence[Result], judged: Judged) -> float | None:
    values = [value for each in runs if (value := judged.value(each)) is not None]
    return sum(values) / len(values) if values else None


def _changed(asked: Experiment, run: Result, base: Result) -> str:
    if not asked.sets:
        return "nothing"
    names = [each.partition("=")[0] for each in asked.sets]
    return ", ".join(f"{name} {_said(name, run.settings)} (was {_said(name, base.settings)})" for name in names)


def _said(name: str, settings: dict[str, Any]) -> str:
    return in_words(name, settings[name]) if name in settings else "not there"


def _shows(asked: Experiment, runs: Sequence[Result], base: Sequence[Result]) -> str:
    if asked.name == BASE:
        return "the measure of the rows below."
    pairs = [(run, beside) for run in runs for beside in base if run.seed == beside.seed and run.days == beside.days]
    if not pairs:
        return "nothing to hold it against was measured."
    if all(run.settings == beside.settings for run, beside in pairs):
        return "this is what the rules have anyway."
    if any(run.version != beside.version for run, beside in pairs):
        return "measured with other rules than what it is held against."
    better, worse = _moved(pairs, 1), _moved(pairs, -1)
    only = "" if len(pairs) > 1 else " One seed: it may be chance."
    if not better and not worse:
        return f"no difference that every seed shows.{only}"
    parts = [f"{word} {marks.listed(moved)}" for word, moved in (("better", better), ("worse", worse)) if moved]
    return f"{'; '.join(parts)}.{only}"


def _moved(pairs: Sequence[tuple[Result, Result]], way: int) -> list[str]:
    found = []
    for judged in JUDGED:
        values = [(judged.value(run), judged.value(beside)) for run, beside in pairs]
        known = [(new, old) for new, old in values if new is not None and old is not None]
        if known and all((new - old) * judged.sign * way > judged.least for new, old in known):
            new, old = (sum(column) / len(known) for column in zip(*known, strict=True))
            found.append(f"{judged.title} ({judged.form(new)} instead of {judged.form(old)})")
    return found


def _bars(kept: Kept, name: str, times: int) -> list[tuple[str, float | None]]:
    found = ((each.name, mean(kept.of(each.name), name)) for each in KNOBS if kept.of(each.name))
    return [(label, None if value is None else value * times) for label, value in found]


def _waits(kept: Kept) -> list[tuple[str, float | None]]:
    found = ((each.name, mean_wait(kept.of(each.name), "gpus_256")) for each in KNOBS if kept.of(each.name))
    return [(label, None if value is None else value / marks.HOUR_S) for label, value in found]


# ----------------------------------------------------------------------------------------------------------- what excludes what


def excluded(kept: Kept) -> list[str]:
    """Pairs of goals that runs reach one by one but no run reaches both of, and goals that no run reaches."""
    runs = [each for name in (MAIN, JOINT, *(knob.name for knob in KNOBS)) for each in kept.of(name)]
    if not runs:
        return ["Not measured yet."]
    # Large jobs are held against fifo only where it was run, and the cost is no trade.
    goals = [goal for goal in GOALS if goal.met is not None and "fifo" not in goal.wanted and "core" not in goal.title]
    by_goal = {goal.title: {each.key for each in runs if goal.met is not None and goal.met(each, None)} for goal in goals}
    never = [title for title, met in by_goal.items() if not met]
    titles = [title for title, met in by_goal.items() if met]
    pairs = [
        [one, other, marks.count(len(by_goal[one]), "run"), marks.count(len(by_goal[other]), "run")]
        for at, one in enumerate(titles)
        for other in titles[at + 1 :]
        if not by_goal[one] & by_goal[other]
    ]
    every = [each.key for each in runs if all(each.key in met for met in by_goal.values())]
    said = [
        f"Over all {marks.count(len(runs), 'run')} of `allmende` on `ai2-lab` and `ai2-lab-joint` here, whatever was changed.",
        f"Reached by no run: {marks.listed(never)}." if never else "Each goal is reached by some run.",
        f"{marks.count(len(every), 'run')} reach{'es' if len(every) == 1 else ''} all of them at once.",
    ]
    if not pairs:
        return [" ".join([*said, "There is no pair of goals that only different runs reach."])]
    return [
        " ".join([*said, "Pairs that only different runs reach, so they may exclude each other under these rules:"]),
        marks.table(["goal", "and", "first reached by", "second reached by"], pairs),
    ]
