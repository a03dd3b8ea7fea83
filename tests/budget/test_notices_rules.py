"""Levels and pace as pure rules: once a crossing, armed again five points below, exact at the edge, honest where unknown."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.budget.rules.notices import LEVELS, REARM_POINTS, Seen, Watch, concerned, judge, sentence, wants_pace
from allmende.proto.budget import Budget
from allmende.proto.notices import PEOPLE_MOST
from allmende.proto.pace import HISTORY_LEAST_MS, HORIZON_MS, Pace, Sample, day_and_time, is_sample_due, pace
from allmende.proto.units import HOUR_MS
from tests.budget.builders import tree

ENTITLEMENT = 1_000
T0 = 1_700_000_000_000


def seen(revision: int, used: int, entitlement: int = ENTITLEMENT) -> Seen:
    """A standing with `used` charged; a round an hour."""
    return Seen(revision, 1, T0 + revision * HOUR_MS, used, 0, entitlement)


def told(uses: Sequence[int], entitlement: int = ENTITLEMENT) -> list[int]:
    """The levels told of when a budget's use goes this way."""
    watch, levels = Watch(), []
    for revision, used in enumerate(uses):
        watch, notice = judge(watch, seen(revision, used, entitlement), "unknown")
        levels += [notice.level] if notice else []
    return levels


class Way(NamedTuple):
    """How use goes, in thousandths of the entitlement, and the levels that are told of."""

    sentence: str
    uses: Sequence[int]
    levels: list[int]


WAYS = (
    Way("below every level nothing is said", [0, 500, 799], []),
    Way("at the level, not above it", [799, 800], [80]),
    Way("the first standing that is ever seen counts as a crossing", [1_000], [100]),
    Way("each level once, however long the budget stays there", [800, 900, 800, 1_000, 1_100, 1_200, 1_300], [80, 100, 120]),
    Way("several levels in one jump are one notice, at the highest", [700, 1_250], [120]),
    Way("around a level nothing is said again", [1_000, 999, 1_000, 951, 1_000], [100]),
    Way("five points below, it still counts as reached", [1_000, 950, 1_000], [100]),
    Way("a hair farther down, it is armed again", [1_000, 949, 1_000], [100, 100]),
    Way("the lower level stays told of when only the higher one is armed again", [1_000, 900, 1_000, 900], [100, 100]),
    Way("all the way down and up again", [1_250, 0, 1_250], [120, 120]),
    Way("down and up by steps", [1_200, 1_100, 900, 740, 800, 1_000, 1_200], [120, 80, 100, 120]),
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.sentence)
def test_a_level_is_told_of_once_a_crossing(way: Way) -> None:
    assert told(way.uses) == way.levels


def test_a_notice_names_every_level_that_was_passed() -> None:
    _, notice = judge(Watch(), seen(1, 1_000), "unknown")
    assert notice is not None
    assert (notice.level, list(notice.passed)) == (100, [80, 100])


def test_what_comes_twice_or_late_changes_nothing() -> None:
    watch, first = judge(Watch(), seen(7, 1_000), "unknown")
    assert first is not None
    for revision in (7, 6, 0):
        assert judge(watch, seen(revision, 0), "unknown") == (watch, None)
        assert judge(watch, seen(revision, 2_000), "unknown") == (watch, None)


def test_without_entitlement_there_is_no_percentage_and_what_was_told_stays_told() -> None:
    watch, notice = judge(Watch(), seen(1, 50, entitlement=0), "unknown")
    assert (watch.reached, notice) == (0, None)
    watch, _ = judge(watch, seen(2, 1_000), "unknown")
    watch, gone = judge(watch, seen(3, 1_000, entitlement=0), "unknown")
    watch, back = judge(watch, seen(4, 1_000), "unknown")
    assert (watch.reached, gone, back) == (100, None, None)


around = st.one_of(
    *(st.integers(level * 10 + by - 1, level * 10 + by + 1) for level in LEVELS for by in (0, -REARM_POINTS * 10)),
    st.integers(0, 2_000),
)


@given(st.lists(around, max_size=40), st.integers(1, 10**15))
def test_a_level_is_never_told_of_twice_without_a_fall_between_nor_missed(uses: list[int], factor: int) -> None:
    """An oracle that keeps one flag a level, which is the sentence of the issue itself."""
    armed = dict.fromkeys(LEVELS, True)
    wanted: list[list[int]] = []
    for used in uses:
        for level in LEVELS:
            armed[level] = armed[level] or used * 100 < (level - REARM_POINTS) * ENTITLEMENT
        passed = [level for level in LEVELS if armed[level] and used * 100 >= level * ENTITLEMENT]
        armed.update(dict.fromkeys(passed, False))
        wanted += [passed] if passed else []
    watch, got = Watch(), []
    for revision, used in enumerate(uses):
        watch, notice = judge(watch, seen(revision, used * factor, ENTITLEMENT * factor), "unknown")
        got += [list(notice.passed)] if notice else []
    assert got == wanted


@given(st.lists(st.tuples(st.integers(0, 20), around), max_size=40))
def test_copies_of_old_standings_between_the_new_ones_are_not_noticed(drawn: list[tuple[int, int]]) -> None:
    newest = list(dict(sorted(drawn)).items())
    watch, plain = Watch(), []
    for revision, used in newest:
        watch, notice = judge(watch, seen(revision, used), "unknown")
        plain += [notice] if notice else []
    watch, mixed = Watch(), []
    for at, (revision, used) in enumerate(newest):
        for old, was in [(revision, used), *newest[: at + 1]]:
            watch, notice = judge(watch, seen(old, was), "unknown")
            mixed += [notice] if notice else []
    assert mixed == plain


# ------------------------------------------------------------------------------------------------------------------------- pace


def hours(*, used: int, entitlement: int = 1_000, at: int = 0) -> Sample:
    """A sample `at` hours after T0."""
    return Sample(T0 + at * HOUR_MS, used, entitlement)


class Course(NamedTuple):
    """What was, what is, and when 100 % comes: hours after T0, or a word."""

    sentence: str
    history: Sequence[Sample]
    now: Sample
    wanted: int | str


COURSES = (
    Course("no history", [], hours(used=800, at=6), "unknown"),
    Course("less than six hours of history", [hours(used=0, at=1)], hours(used=800, at=6), "unknown"),
    Course("exactly six hours: 100 an hour, 200 left", [hours(used=200)], hours(used=800, at=6), 8),
    Course("samples of more than a day ago do not count", [hours(used=0)], hours(used=800, at=25), "unknown"),
    Course("the oldest of the last day counts", [hours(used=0), hours(used=400, at=4)], hours(used=800, at=24), 30),
    Course("a shrinking entitlement closes the gap as well", [hours(used=800, entitlement=1_600)], hours(used=800, at=6), 8),
    Course("use that falls never gets there", [hours(used=900)], hours(used=800, at=6), "not_soon"),
    Course("use that stands never gets there", [hours(used=800)], hours(used=800, at=6), "not_soon"),
    Course(
        "use that grows as fast as the entitlement never gets there",
        [hours(used=0)],
        hours(used=600, entitlement=1_600, at=6),
        "not_soon",
    ),
    Course("what is there is there", [hours(used=200)], hours(used=1_000, at=6), 6),
    Course("a week ahead is the farthest", [hours(used=0)], hours(used=1_000, entitlement=29_000, at=6), "not_soon"),
    Course("without entitlement there is no percentage", [hours(used=200)], hours(used=800, entitlement=0, at=6), "unknown"),
    Course("nor was there one then", [hours(used=200, entitlement=0)], hours(used=800, at=6), "unknown"),
    Course("a sample from the future does not count", [hours(used=0, at=7)], hours(used=800, at=6), "unknown"),
)


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.sentence)
def test_pace(course: Course) -> None:
    wanted = T0 + course.wanted * HOUR_MS if isinstance(course.wanted, int) else course.wanted
    assert pace(course.history, course.now) == wanted


@given(st.integers(HISTORY_LEAST_MS, 24 * HOUR_MS), st.integers(1, 2**60), st.integers(1, 2**60), st.integers(0, 2**60))
def test_at_the_instant_of_the_pace_the_gap_is_closed_and_a_millisecond_before_it_is_not(
    span: int, gap: int, closed: int, used: int
) -> None:
    old, now = Sample(T0, used, used + gap + closed), Sample(T0 + span, used, used + gap)
    found = pace([old], now)
    if found == "not_soon":
        assert closed * HORIZON_MS < gap * span
    else:
        assert isinstance(found, int)
        left = found - now.at_ms
        assert closed * left >= gap * span > closed * (left - 1)


@pytest.mark.parametrize(
    ("instant_ms", "text"),
    [
        (0, "Thursday 1970-01-01 00:00 UTC"),
        (1, "Thursday 1970-01-01 00:01 UTC"),
        (1_796_912_400_000, "Thursday 2026-12-10 14:20 UTC"),
        (4_102_444_800_000, "Friday 2100-01-01 00:00 UTC"),
    ],
)
def test_a_day_with_its_name(instant_ms: int, text: str) -> None:
    assert day_and_time(instant_ms) == text


def test_a_sample_an_hour() -> None:
    assert [is_sample_due(last, T0) for last in (None, T0 - HOUR_MS, T0 - HOUR_MS + 1, T0 + 1)] == [True, True, False, False]


# ------------------------------------------------------------------------------------------------------- pace within the notices


class Moment(NamedTuple):
    """One standing, what the pace is then, and what is told: the level, or `pace`, with or without an instant."""

    used: int
    pace: Pace
    told: str


PACES = (
    ("with the level, where it is known then, and not again", [Moment(800, T0, "80 at"), Moment(850, T0, "-")]),
    ("apart, as soon as it is known, once", [Moment(800, "unknown", "80"), Moment(810, T0, "pace at"), Moment(820, T0, "-")]),
    ("not while it never gets there", [Moment(800, "not_soon", "80"), Moment(810, "not_soon", "-")]),
    ("again after a fall", [Moment(800, T0, "80 at"), Moment(749, "unknown", "-"), Moment(800, T0, "80 at")]),
    ("not below 80 %", [Moment(799, T0, "-")]),
    ("not at 100 %", [Moment(1_000, T0, "100"), Moment(1_000, T0, "-")]),
    ("back from 100 % it is a new story", [Moment(800, T0, "80 at"), Moment(1_000, T0, "100"), Moment(900, T0, "pace at")]),
)


@pytest.mark.parametrize(("sentence", "moments"), PACES, ids=[sentence for sentence, _ in PACES])
def test_the_pace_is_told_once_a_stay_between_80_and_100(sentence: str, moments: list[Moment]) -> None:
    watch = Watch()
    for revision, moment in enumerate(moments):
        it = seen(revision, moment.used)
        assert wants_pace(watch, it) or "at" not in moment.told
        watch, notice = judge(watch, it, moment.pace)
        words = "-" if notice is None else str(notice.level if notice.passed else "pace") + " at" * (notice.whole_at_ms is not None)
        assert words == moment.told


# ----------------------------------------------------------------------------------------------------------------- words, people


def test_the_sentence_says_numbers_and_the_day() -> None:
    at = Seen(5, 1, 1_796_000_000_000, 700 * HOUR_MS, 150 * HOUR_MS, 1_000 * HOUR_MS)
    _, notice = judge(Watch(), at, 1_796_912_400_000)
    assert notice is not None
    assert sentence("vision", "c1", at, notice) == (
        "vision has used 85 % of its entitlement (850 of 1,000 GPU-hours) on c1; "
        "at this rate it comes to 100 % by Thursday 2026-12-10 14:20 UTC"
    )
    over = at._replace(held=350 * HOUR_MS)
    _, notice = judge(Watch(), over, "unknown")
    assert notice is not None
    assert "105 %" in sentence("vision", "c1", over, notice)
    assert "behind" in sentence("vision", "c1", over, notice)


def test_whom_it_concerns() -> None:
    rows = {row.budget: row for row in tree("lab", "vision < lab 40%", "lines < vision")}
    rows["lab"] = Budget(budget="lab", managers=("ada",))
    rows["lines"] = Budget(budget="lines", parent="vision", members=("bo", "cy"))
    assert concerned("lines", rows) == (("ada",), ("bo", "cy"), 0)
    rows["vision"] = Budget(budget="vision", parent="lab", managers=("dee",))
    assert concerned("lines", rows) == (("dee",), ("bo", "cy"), 0)
    assert concerned("gone", rows) is None
    many = tuple(f"p{number}" for number in range(500))
    found = concerned("lab", {"lab": Budget(budget="lab", managers=many, members=many)})
    assert found is not None
    assert (len(found.managers), len(found.members), found.left_out) == (PEOPLE_MOST, PEOPLE_MOST, 600)
    assert concerned("lab", {"lab": Budget(budget="lab")}) == ((), (), 0)
