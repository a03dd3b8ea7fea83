"""The first part of the page: what was asked beside what was reached, and the older worlds on the same seeds."""

from collections.abc import Sequence

from tests.experiments.page import marks
from tests.experiments.page.goals import GOALS, Goal, large_p90s
from tests.experiments.page.kept import Kept
from tests.experiments.results import Result
from tests.experiments.table import JOINT, MAIN

POLICIES = ("", "-priority", "-fifo")


def reached(kept: Kept) -> list[str]:
    """The table of goals, a sentence that counts them, and bars."""
    runs = kept.of(MAIN)
    if not runs:
        return ["Nothing has been measured yet."]
    shown = [_said(kept, MAIN), goals_table(kept, MAIN)]
    title = "Worst team of each seed, weekly (line: the goal)"
    shown.append(
        marks.bars(title, [(f"seed {each.seed}", each.number("worst_team")) for each in runs], "delivered / owed", goal=0.95)
    )
    lost = [(f"seed {each.seed}", _times_100(each.number("lost_fraction"))) for each in runs]
    shown.append(marks.bars("Lost to evictions, each seed (line: the most that was asked for)", lost, "% of delivered", goal=2))
    return [*shown, *_teams(runs)]


def joint(kept: Kept) -> list[str]:
    """The same goals where starved free work counts in its team's demand."""
    return [_said(kept, JOINT), goals_table(kept, JOINT)] if kept.of(JOINT) else ["Not measured yet."]


def goals_table(kept: Kept, experiment: str) -> str:
    """A row for each goal, a column for each seed."""
    runs = kept.of(experiment)
    heads = ["figure", "goal", "Ai2", *(f"seed {each.seed}" for each in runs), "reached"]
    rows = []
    for goal in GOALS:
        values = [goal.show(each, fifo(kept, each)) for each in runs]
        rows.append([goal.title, goal.wanted, goal.ai2 or marks.DASH, *values, _verdict(goal, kept, runs)])
    return marks.table(heads, rows, right=range(3, 3 + len(runs)))


def fifo(kept: Kept, result: Result) -> Result | None:
    """The run of `fifo` that a result is held against."""
    name = f"{result.experiment}-fifo" if result.experiment in (MAIN, JOINT) else None
    return kept.one(name, result.seed) if name else None


def _verdict(goal: Goal, kept: Kept, runs: Sequence[Result]) -> str:
    if goal.met is None:
        return ""
    answers = {each.seed: goal.met(each, fifo(kept, each)) for each in runs}
    if any(answer is None for answer in answers.values()):
        unknown = [str(seed) for seed, answer in answers.items() if answer is None]
        return f"not known for seed {marks.listed(unknown)}"
    missed = [str(seed) for seed, answer in answers.items() if not answer]
    if not missed:
        return "**yes**"
    return "**no**" if len(missed) == len(runs) else f"**no**: not with seed {marks.listed(missed)}"


def _said(kept: Kept, experiment: str) -> str:
    runs = kept.of(experiment)
    goals = [goal for goal in GOALS if goal.met is not None]
    verdicts = {goal.title: _verdict(goal, kept, runs) for goal in goals}
    good = [title for title, verdict in verdicts.items() if verdict == "**yes**"]
    bad = [title for title, verdict in verdicts.items() if verdict.startswith("**no**")]
    open_ = [title for title, verdict in verdicts.items() if title not in good and title not in bad]
    said = f"Of {len(goals)} goals {len(good)} are reached with every seed that was run ({marks.count(len(runs), 'seed')})."
    if bad:
        said += f" Not reached: {marks.listed(bad)}."
    if open_:
        said += f" Not known: {marks.listed(open_)}."
    return said


def _times_100(value: float | None) -> float | None:
    return None if value is None else value * 100


def _teams(runs: Sequence[Result]) -> list[str]:
    names = sorted(runs[0].teams, key=lambda name: (-(runs[0].teams[name].share_ppm or 0), name))
    heads = ["team", "share", *(f"seed {each.seed}" for each in runs), "worst"]
    rows, worst = [], []
    for name in names:
        values = [each.teams[name].weekly for each in runs if name in each.teams]
        least = min((value for value in values if value is not None), default=None)
        worst.append((name, least))
        rows.append([name, marks.share(runs[0].teams[name].share_ppm), *map(marks.ratio, values), marks.ratio(least)])
    below = [name for name, value in worst if value is not None and value < 0.95]
    said = f"Below 0.95 with some seed: {marks.listed(below)}." if below else "No team is below 0.95 with any seed."
    return [
        "### Each team",
        f"Delivered of owed, weekly, the largest share first. {said}",
        marks.table(heads, rows, right=range(1, len(heads))),
        marks.bars("Worst seed of each team (line: the goal)", worst, "delivered / owed", goal=0.95, flat=True),
    ]


# ---------------------------------------------------------------------------------------------------------------- the older worlds


def worlds(kept: Kept) -> list[str]:
    """`fifo` and `priority` on the same seeds: means, the worst, and large jobs seed by seed."""
    rows = [_world(kept.of(f"{MAIN}{policy}")) for policy in POLICIES if kept.of(f"{MAIN}{policy}")]
    if not rows:
        return ["Not measured yet."]
    heads = ["policy", "weekly", "strict", "worst team", "at 95 %", "occupancy", "lost", "debug p90", "256+ p90", "utilisation"]
    worst = [(each[0].policy, _least(each, "worst_team")) for each in _by_policy(kept)]
    return [
        "Means over the seeds; of the teams the worst seed.",
        marks.table(heads, rows, right=range(1, len(heads))),
        marks.bars("Worst team of all seeds, weekly", worst, "delivered / owed", goal=0.95),
        "### Jobs of 256 GPUs and more",
        *_large(kept),
    ]


def _by_policy(kept: Kept) -> list[list[Result]]:
    return [runs for policy in POLICIES if (runs := kept.of(f"{MAIN}{policy}"))]


def _world(runs: Sequence[Result]) -> list[str]:
    at_95 = min(runs, key=lambda each: each.figures["teams_at_95"])
    return [
        f"`{runs[0].policy}`",
        marks.ratio(mean(runs, "delivered_owed_weekly")),
        marks.ratio(mean(runs, "delivered_owed_strict")),
        marks.ratio(_least(runs, "worst_team")),
        f"{at_95.figures['teams_at_95']} of {at_95.figures['teams_owed']}",
        marks.ratio(mean(runs, "occupancy")),
        marks.percent(mean(runs, "lost_fraction")),
        marks.duration(mean_wait(runs, "debug")),
        marks.duration(mean_wait(runs, "gpus_256")),
        marks.ratio(mean(runs, "utilisation")),
    ]


def mean(runs: Sequence[Result], name: str) -> float | None:
    """The mean of a figure over runs that have it."""
    values = [value for each in runs if (value := each.number(name)) is not None]
    return sum(values) / len(values) if values else None


def mean_wait(runs: Sequence[Result], name: str) -> float | None:
    """The mean of a class's p90 over runs that have such jobs, in s."""
    values = [value for each in runs if (value := each.waits[name].p90) is not None]
    return sum(values) / len(values) if values else None


def _least(runs: Sequence[Result], name: str) -> float | None:
    return min((value for each in runs if (value := each.number(name)) is not None), default=None)


def _large(kept: Kept) -> list[str]:
    rows, bars, shorter = [], [], 0
    for run in kept.of(MAIN):
        beside = fifo(kept, run)
        found = large_p90s(run, beside)
        old = kept.one(f"{MAIN}-priority", run.seed)
        priority = None if old is None else old.waits["gpus_256"].p90
        if found is None or beside is None:
            continue
        shorter += found[0] <= found[1]
        both = len(run.large_waits_s.keys() & beside.large_waits_s.keys())
        never = f"{run.waits['gpus_256'].never_started} / {beside.waits['gpus_256'].never_started}"
        rows.append(
            [
                str(run.seed),
                str(both),
                *map(marks.duration, (*found, priority)),
                f"{found[0] / found[1]:.2f}" if found[1] else marks.DASH,
                never,
            ]
        )
        bars += [(f"{run.seed} allmende", found[0] / marks.DAY_S), (f"{run.seed} fifo", found[1] / marks.DAY_S)]
    if not rows:
        return ["No two runs have such jobs in common yet."]
    heads = [
        "seed",
        "jobs in both",
        "allmende p90",
        "fifo p90",
        "priority p90 (its own jobs)",
        "allmende / fifo",
        "never started, allmende / fifo",
    ]
    said = f"With {marks.count(shorter, 'seed')} of {len(rows)} nine of ten of them start at least as soon as under `fifo`."
    return [
        "Waits from submission to first start of the very jobs that both runs had; who never started counts with the wait so far.",
        said,
        marks.table(heads, rows, right=range(len(heads))),
        marks.bars("p90 wait of jobs of 256 GPUs and more", bars, "days", flat=True),
    ]
