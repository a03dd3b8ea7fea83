"""What a schedule made with full knowledge could do with the same unallocated jobs. Every word that judges is computed."""

from tests.experiments.page import marks
from tests.experiments.page.kept import Kept
from tests.experiments.results import Offline, Result
from tests.experiments.table import MAIN, OFFLINE_LIMITS

GOAL = 0.985

SAID = """\
Each run once more, offline: its allocated work stays as it ran, its unallocated jobs are placed anew by somebody who knows
everything beforehand and saves just before he must leave. `schedule` is such a placement (`tests/experiments/offline.py`). No
placement holds more than `bound`, in which each job has the longest times that its gang would fit, as if it were alone. All in
parts of what was available; `useful` is the run without unallocated work that was lost and done again. Whoever finishes brings
no other job here, as the closed loop of the run does."""


def offline(kept: Kept) -> list[str]:
    """A row for each seed, and where the goal of occupancy lies with each limit."""
    runs = [each for each in kept.of(MAIN) if each.offline]
    if not runs:
        return ["Not worked out yet."]
    heads = ["seed", "the run", "useful", "most evictions of a job"]
    for limit in OFFLINE_LIMITS:
        heads += [f"schedule, {_limit(limit)}", "most", "bound"]
    rows = [_row(each) for each in runs]
    return [SAID, marks.table(heads, rows, right=range(len(heads))), *(_verdict(runs, limit) for limit in OFFLINE_LIMITS)]


def _row(run: Result) -> list[str]:
    row = [str(run.seed), *map(marks.ratio, (run.number("occupancy"), run.useful)), str(run.figures["evictions_most"])]
    for limit in OFFLINE_LIMITS:
        found = _answer(run, limit)
        row += [marks.DASH] * 3 if found is None else [_exact(found.planned), str(found.evictions_most), _exact(found.bound)]
    return row


def _verdict(runs: list[Result], limit: int | None) -> str:
    answers = {each.seed: found for each in runs if (found := _answer(each, limit)) is not None}
    reached = [str(seed) for seed, each in answers.items() if each.planned >= GOAL]
    barred = [str(seed) for seed, each in answers.items() if each.bound < GOAL]
    between = [str(seed) for seed in answers if str(seed) not in reached and str(seed) not in barred]
    parts = []
    if reached:
        parts.append(f"the schedule holds {GOAL} with seed {marks.listed(reached)}")
    if barred:
        parts.append(f"no placement can hold {GOAL} with seed {marks.listed(barred)}")
    if between:
        parts.append(f"{GOAL} lies between schedule and bound with seed {marks.listed(between)}")
    return f"With {_limit(limit)} evictions of a job: {'; '.join(parts)}."


def _answer(run: Result, limit: int | None) -> Offline | None:
    return next((each for each in run.offline if each.limit == limit), None)


def _limit(limit: int | None) -> str:
    return "any number of" if limit is None else f"at most {limit}"


def _exact(value: float) -> str:
    return f"{value:.4f}"
