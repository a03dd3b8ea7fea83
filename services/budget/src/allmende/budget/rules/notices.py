"""Who is told what of a budget's use: once a crossing of 80, 100 or 120 % of the entitlement, armed again when it falls back.

`charged + held` is compared by cross-multiplication: a level is reached when used x 100 >= level x entitlement. Never a float, and
never a message: `wire` makes those.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allmende.proto.budget import Budget
from allmende.proto.notices import PEOPLE_MOST
from allmende.proto.pace import Pace, Sample, day_and_time, is_sample_due
from allmende.proto.units import HOUR_MS, GpuMs, Ms

LEVELS = (80, 100, 120)
# A level is armed again once use is this many points below it. Grants and ends of single jobs move a ratio by a point or two around
# a level; five apart, what comes back is a new story.
REARM_POINTS = 5
# The level from which a budget's pace concerns people: a quarter full it will always come to 100 % some day.
PACE_LEVEL = LEVELS[0]

LEVEL = "entitlement_level"
PACE = "entitlement_pace"


class Watch(NamedTuple):
    """What is remembered of one budget on one cluster.

    `usage_revision`: of the newest standing looked at, -1 before the first. `reached`: the highest level that was told of and is
    not armed again; 0: none. `paced`: the pace was told since PACE_LEVEL was last reached. `sampled_at_ms`: of the last sample.
    """

    usage_revision: int = -1
    reached: int = 0
    paced: bool = False
    sampled_at_ms: Ms | None = None


class Seen(NamedTuple):
    """What a standing says of a budget."""

    usage_revision: int
    tree_revision: int
    as_of_ms: Ms
    charged: GpuMs
    held: GpuMs
    entitlement: GpuMs

    @property
    def sample(self) -> Sample:
        """Its amounts as a sample for the pace."""
        return Sample(self.as_of_ms, self.charged + self.held, self.entitlement)


class Notice(NamedTuple):
    """Something to tell: the level it is at, those that were passed to get there (none: it is about the pace), when 100 %."""

    level: int
    passed: Sequence[int]
    whole_at_ms: Ms | None


class People(NamedTuple):
    """Whom a notice concerns."""

    managers: Sequence[str]
    members: Sequence[str]
    left_out: int


def is_news(watch: Watch, seen: Seen) -> bool:
    """False for a standing that came twice or late: a newer one was looked at."""
    return seen.usage_revision > watch.usage_revision


def wants_pace(watch: Watch, seen: Seen) -> bool:
    """Whether `judge` looks at the pace, so that history is read only then: at the level's crossing, and then once a sample."""
    if standing_level(watch.reached, seen) != PACE_LEVEL or (watch.paced and watch.reached == PACE_LEVEL):
        return False
    return watch.reached < PACE_LEVEL or is_sample_due(watch.sampled_at_ms, seen.as_of_ms)


def may_want_pace(watch: Watch, several: Sequence[Seen]) -> bool:
    """Whether any of several standings in a row may want the pace; of several, `reached` is known only as they are judged."""
    if len(several) == 1:
        return wants_pace(watch, several[0])
    return any(standing_level(level, each) == PACE_LEVEL for each in several for level in (0, PACE_LEVEL))


def standing_level(reached: int, seen: Seen) -> int:
    """The level a budget is at, after one at which `reached` was told of: up at the level, down only REARM_POINTS below it.

    Without entitlement there is no percentage: what was reached stays, and what comes next is held against it.
    """
    if not seen.entitlement:
        return reached
    used = seen.charged + seen.held
    up = max((level for level in LEVELS if used * 100 >= level * seen.entitlement), default=0)
    kept = (level for level in LEVELS if level <= reached and used * 100 >= (level - REARM_POINTS) * seen.entitlement)
    return max(up, max(kept, default=0))


def judge(watch: Watch, seen: Seen, pace: Pace) -> tuple[Watch, Notice | None]:
    """What is remembered after a standing, and what people are told of it. What came late or twice changes nothing.

    `pace` is looked at only where `wants_pace`; a budget that jumps over several levels is told of once, at the highest.
    """
    if not is_news(watch, seen):
        return watch, None
    level = standing_level(watch.reached, seen)
    asks = wants_pace(watch, seen)
    whole_at_ms = pace if asks and not isinstance(pace, str) else None
    # Above PACE_LEVEL the pace has had its time; below it the next rise is a new story.
    paced = whole_at_ms is not None or (watch.paced and level == watch.reached)
    sampled_at_ms = seen.as_of_ms if is_sample_due(watch.sampled_at_ms, seen.as_of_ms) else watch.sampled_at_ms
    after = Watch(seen.usage_revision, level, paced, sampled_at_ms)
    passed = [each for each in LEVELS if watch.reached < each <= level]
    if passed:
        return after, Notice(level, passed, whole_at_ms)
    if whole_at_ms is not None:
        return after, Notice(level, (), whole_at_ms)
    return after, None


def concerned(budget: str, path: Mapping[str, Budget]) -> People | None:
    """The people of a budget; None when it is gone. `path` holds it and all budgets above it, by name.

    Managers: its own, or those of the nearest budget above that has any. Members are its own. Who does not fit is counted.
    """
    row = path.get(budget)
    if row is None:
        return None
    above: Budget | None = row
    while above is not None and not above.managers:
        above = path.get(above.parent) if above.parent else None
    managers = above.managers if above is not None else ()
    left_out = max(0, len(managers) - PEOPLE_MOST) + max(0, len(row.members) - PEOPLE_MOST)
    return People(managers[:PEOPLE_MOST], row.members[:PEOPLE_MOST], left_out)


def sentence(budget: str, cluster: str, seen: Seen, notice: Notice) -> str:
    """One notice for people. Percentages are rounded down, GPU-hours too."""
    used = seen.charged + seen.held
    now = f"{used * 100 // seen.entitlement} % of its entitlement ({_hours(used)} of {_hours(seen.entitlement)} GPU-hours)"
    text = f"{budget} has used {now} on {cluster}"
    if notice.passed and notice.level >= 100:
        text += "; its waiting jobs now stand behind those of budgets that are owed time"
    if notice.whole_at_ms is not None:
        text += f"; at this rate it comes to 100 % by {day_and_time(notice.whole_at_ms)}"
    return text


def _hours(amount: GpuMs) -> str:
    return f"{amount // HOUR_MS:,}"
