"""What issue 3 asks for, figure by figure: the goal, Ai2's own figure, how it is shown, and whether a run meets it.

Goals are those of the order and are nowhere else. Never rounds before it compares.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from tests.experiments.page import marks
from tests.experiments.results import Result, Waiting

# A job that waits longer has outlived every protection that stood when it came: the longest slice.
STARVED_S: Final = 8 * 3_600
MIB_MOST: Final = 1_024

Beside: TypeAlias = Result | None
"""The run of `fifo` on the same seed."""


class Goal(NamedTuple):
    """`met` None: no goal, shown beside the others. Its answer None: this run cannot say."""

    title: str
    wanted: str
    ai2: str
    show: Callable[[Result, Beside], str]
    met: Callable[[Result, Beside], bool | None] | None = None


def large_p90s(result: Result, beside: Beside) -> tuple[float, float] | None:
    """p90 in s of the waits of jobs of 256 GPUs and more, here and under fifo, over those that both had; None: there are none."""
    if beside is None or beside.days != result.days:
        return None
    both = sorted(result.large_waits_s.keys() & beside.large_waits_s.keys())
    if not both:
        return None
    return _p90([result.large_waits_s[job] for job in both]), _p90([beside.large_waits_s[job] for job in both])


def starved(result: Result) -> list[Waiting]:
    """Large jobs that waited at the end for longer than a slice, unpromised or past their promise, their leaf within budget."""
    late = [each for each in result.waiting if each.why == "promise overdue"]
    return late + [each for each in result.waiting if each.why == "waiting" and each.waited_s > STARVED_S]


def cpu_ms_an_event(result: Result) -> float | None:
    """Milliseconds of one core for a job event, by the processor time of the whole process."""
    events = result.number("events")
    return result.cpu_s * 1_000 / events if events else None


def _p90(values: Sequence[float]) -> float:
    # Nearest rank, as the simulator's own figures.
    return sorted(values)[-(-len(values) * 90 // 100) - 1]


def _figure(
    title: str,
    name: str,
    form: Callable[[float | None], str],
    wanted: str = "",
    ai2: str = "",
    met: Callable[[float], bool] | None = None,
) -> Goal:
    def judge(result: Result, _beside: Beside) -> bool | None:
        value = result.number(name)
        return None if value is None or met is None else met(value)

    return Goal(title, wanted, ai2, lambda result, _beside: form(result.number(name)), judge if met is not None else None)


def _debug(percentile: str, below_s: float, ai2: str) -> Goal:
    def value(result: Result) -> float | None:
        waits = result.waits["debug"]
        return waits.p50 if percentile == "p50" else waits.p90

    def judge(result: Result, _beside: Beside) -> bool | None:
        waited_s = value(result)
        return None if waited_s is None else waited_s < below_s

    title = f"debug jobs, {percentile} of the wait"
    return Goal(title, f"under {below_s:.0f} s", ai2, lambda result, _beside: marks.duration(value(result)), judge)


def _show_teams(result: Result, _beside: Beside) -> str:
    return f"{result.figures['teams_at_95']} of {result.figures['teams_owed']}"


def _all_teams(result: Result, _beside: Beside) -> bool | None:
    return bool(result.figures["teams_at_95"] == result.figures["teams_owed"])


def _show_worst(result: Result, _beside: Beside) -> str:
    return f"{marks.ratio(result.number('worst_team'))} {result.figures['worst_team_name'] or ''}".strip()


def _worst(result: Result, _beside: Beside) -> bool | None:
    value = result.number("worst_team")
    return None if value is None else value >= 0.95


def _show_large(result: Result, beside: Beside) -> str:
    found = large_p90s(result, beside)
    if found is None:
        return marks.duration(result.waits["gpus_256"].p90)
    return f"{marks.duration(found[0])} (fifo {marks.duration(found[1])})"


def _large(result: Result, beside: Beside) -> bool | None:
    found = large_p90s(result, beside)
    return None if found is None else found[0] <= found[1]


def _show_promises(result: Result, _beside: Beside) -> str:
    broken, made = result.figures["promises_broken"], result.figures["promises_made"]
    return f"{broken} of {made} broken"


def _promises(result: Result, _beside: Beside) -> bool | None:
    return bool(result.figures["promises_broken"] == 0)


def _show_starved(result: Result, _beside: Beside) -> str:
    return f"{len(starved(result))} of {len(result.waiting)} waiting"


def _none_starved(result: Result, _beside: Beside) -> bool | None:
    return not starved(result)


def _cost(result: Result, _beside: Beside) -> bool | None:
    value = cpu_ms_an_event(result)
    return None if value is None else value <= 1


GOALS: Final[Sequence[Goal]] = (
    _figure("delivered / owed, plain", "delivered_owed_plain", marks.ratio, "0.99 or more", "0.98", lambda value: value >= 0.99),
    _figure("delivered / owed, weekly", "delivered_owed_weekly", marks.ratio, "0.97 or more", "", lambda value: value >= 0.97),
    _figure("delivered / owed, strict", "delivered_owed_strict", marks.ratio, "none: reported"),
    Goal("teams at 95 % or more (weekly)", "all", "13 of 15", _show_teams, _all_teams),
    Goal("worst team (weekly)", "0.95 or more", "0.90", _show_worst, _worst),
    _figure("occupancy", "occupancy", marks.ratio, "0.985 or more", "0.98", lambda value: value >= 0.985),
    _figure("slice violations", "slice_violations", marks.whole, "0", "", lambda value: value == 0),
    _debug("p50", 5, ""),
    _debug("p90", 30, "30 s"),
    Goal("256 GPUs and more, p90 of the wait", "that of fifo on the same jobs, or less", "", _show_large, _large),
    Goal("promises to large jobs", "none broken", "", _show_promises, _promises),
    Goal("large jobs starved", "0", "", _show_starved, _none_starved),
    _figure("GPU time lost to evictions", "lost_fraction", marks.percent, "2 % or less", "", lambda value: value <= 0.02),
    _figure("evictions of one job, the most", "evictions_most", marks.whole, "20 or fewer", "", lambda value: value <= 20),
    Goal("one core for a job event", "1 ms or less", "", lambda result, _: f"{_ms(result)} ms", _cost),
    _figure("memory", "peak_mib", lambda value: f"{marks.whole(value)} MiB", "under 1 GiB", "", lambda value: value < MIB_MOST),
    _figure("unallocated, of what was held", "unallocated_share", marks.percent, "none: reported", "18 %"),
    _figure("demand of allocated jobs, of capacity", "demand", marks.ratio, "none: reported", "2 to 3"),
    _figure("evictions in 1,000 GPU-hours", "evictions_per_1000_gpu_hours", marks.tenths, "none: reported"),
)


def _ms(result: Result) -> str:
    value = cpu_ms_an_event(result)
    return marks.DASH if value is None else f"{value:.2f}"
