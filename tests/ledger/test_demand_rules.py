"""Demand as pure rules: words in any order end the same, and each millisecond of a job's wait and life is some cluster's demand."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.ledger.model import Level, Share
from allmende.ledger.rules.demand import AskedJob, Demand, JobEnd, Placing, Want, Word, demanded, learn
from allmende.ledger.rules.figures import demand_from_ms, entitlements, leaves_at
from allmende.ledger.rules.hours import HourSums, Span
from allmende.proto.budget import Budget
from allmende.proto.units import HOUR_MS
from allmende.simulator.figures.capacity import Step, entitled_by_hour
from allmende.simulator.figures.span import Span as SimulatedSpan
from allmende.simulator.model import TreeChange

WANT = Want("nlp", 100, (), 4, None, HOUR_MS)
LONGER = WANT._replace(slice_ms=2 * HOUR_MS)
END = JobEnd(900, "finished", 200)
WORDS = (
    Word((100, "a"), "j", WANT, None),  # queued
    Word((150, "b"), "j", LONGER, None),  # changed
    Word((200, "c"), "j", LONGER, None),  # granted
    Word((900, "d"), "j", LONGER, END),  # ended
)


def heard(*batches: tuple[Word, ...]) -> Demand:
    known: dict[str, Demand] = {}
    for batch in batches:
        known |= learn(known, batch)
    return known["j"]


@given(st.permutations([*WORDS, *WORDS]), st.integers(0, 8), st.sets(st.integers(0, 2)))
def test_words_in_any_order_twice_or_lost_before_the_last_end_the_same(words: list[Word], cut: int, lost: set[int]) -> None:
    left = [word for word in words if word not in [WORDS[number] for number in lost]]
    found = heard(tuple(left[:cut]), tuple(left[cut:]))
    assert (found.want, found.end) == (LONGER, END)
    assert heard((found_word := WORDS[3],), (found_word,)).want == LONGER, "the last word alone tells all"


def test_a_word_that_tells_nothing_new_changes_nothing() -> None:
    known = learn({}, WORDS)
    for words in permutations(WORDS):
        assert learn(known, words) == {}


def test_a_word_of_an_older_admission_leaves_what_is_asked_for_unknown() -> None:
    found = heard((Word((100, "a"), "j", None, None), Word((900, "d"), "j", None, END)))
    assert (found.want, found.known_from_ms, found.end) == (None, None, END)


def placing(cluster: str, granted: int, ended: int | None, outcome: str | None = "evicted", budget: str | None = "nlp") -> Placing:
    return Placing(cluster, budget, granted, granted + 1, ended, outcome if ended is not None else None)


# A job submitted at 100 that may run anywhere; now it is 1,000. What it asks of c1, and of c2.
DEMANDED = [
    ("a job that waits is asked of every cluster", (), (), None, [(100, 1_000)], [(100, 1_000)]),
    ("a job that names one is asked of that one", ("c1",), (), None, [(100, 1_000)], []),
    ("cancelled while it waited", (), (), 300, [(100, 300)], [(100, 300)]),
    ("a wait that led to a grant is of that cluster alone", (), (placing("c2", 400, None),), None, [], [(100, 1_000)]),
    ("until the job's end, not only the attempt's", (), (placing("c2", 400, 700, "finished"),), 705, [], [(100, 705)]),
    (
        "each wait is of the cluster that ended it",
        (),
        (placing("c1", 200, 300), placing("c2", 500, None)),
        None,
        [(100, 300)],
        [(300, 1_000)],
    ),
    (
        "back in the queue it is asked of all again",
        (),
        (placing("c1", 200, 300),),
        None,
        [(100, 300), (300, 1_000)],
        [(300, 1_000)],
    ),
    ("an attempt whose end was not heard ends at the next grant", (), (placing("c1", 200, None), placing("c2", 500, None)), None,
     [(100, 500)], [(500, 1_000)]),
    ("where the job's end is lost, a finished attempt ends it", (), (placing("c1", 200, 300, "finished"),), None, [(100, 300)], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "clusters", "placings", "ended", "on_c1", "on_c2"), DEMANDED, ids=[row[0] for row in DEMANDED]
)
def test_whose_demand_a_job_is_when(
    sentence: str,
    clusters: tuple[str, ...],
    placings: tuple[Placing, ...],
    ended: int | None,
    on_c1: list[tuple[int, int]],
    on_c2: list[tuple[int, int]],
) -> None:
    end = None if ended is None else JobEnd(ended, "finished", None)
    job = AskedJob(WANT._replace(clusters=clusters), end, placings)
    assert list(demanded(job, "c1", 1_000)) == on_c1
    assert list(demanded(job, "c2", 1_000)) == on_c2


LEAVES = [
    ("before a grant it is of the leaf that it names", "nlp", HOUR_MS, (), "nlp"),
    ("without a slice it is unallocated", "nlp", 0, (), None),
    ("a grant decides", "nlp", HOUR_MS, (placing("c1", 1, None, budget=None),), None),
    ("the latest grant decides", None, 0, (placing("c1", 1, 2, budget=None), placing("c1", 3, None, budget="rl")), "rl"),
]


@pytest.mark.parametrize(("sentence", "budget", "slice_ms", "placings", "leaf"), LEAVES, ids=[row[0] for row in LEAVES])
def test_whose_demand_a_job_is(sentence: str, budget: str | None, slice_ms: int, placings: tuple[Placing, ...], leaf: str) -> None:
    assert AskedJob(WANT._replace(budget=budget, slice_ms=slice_ms), None, placings).leaf == leaf


KNOWN = [
    ("nothing ever ran and nobody asked: there was no demand", None, None, 0),
    ("all that ran was asked for before", 500, 500, 0),
    ("what ran before the first word was started without one: known from the next full hour", 500, 499, HOUR_MS),
    ("what runs was never told of", None, 499, None),
]


@pytest.mark.parametrize(("sentence", "first_word", "first_grant", "expected"), KNOWN, ids=[row[0] for row in KNOWN])
def test_from_when_on_demand_is_known(sentence: str, first_word: int | None, first_grant: int | None, expected: int | None) -> None:
    assert demand_from_ms(first_word, first_grant) == expected


EDGES = st.integers(-2, 2).flatmap(lambda near: st.integers(0, 4).map(lambda hour: hour * HOUR_MS + near))


@given(st.lists(st.tuples(st.integers(1, 9), EDGES, EDGES), max_size=8), st.integers(1, 3 * HOUR_MS + 1))
def test_sums_by_hour_are_cut_exactly(parts: list[tuple[int, int, int]], length: int) -> None:
    span = Span(HOUR_MS, HOUR_MS + length)
    sums = HourSums(span)
    for gpus, from_ms, to_ms in parts:
        sums.add(gpus, from_ms, to_ms)
    for hour, amount in enumerate(sums.by_hour()):
        begin, end = span.begins(hour), min(span.begins(hour + 1), span.to_ms)
        assert amount == sum(gpus * max(0, min(to_ms, end) - max(from_ms, begin)) for gpus, from_ms, to_ms in parts)
    assert len(sums.by_hour()) == -(-length // HOUR_MS)


@given(
    st.lists(st.tuples(EDGES, st.integers(0, 9)), min_size=1, max_size=4, unique_by=lambda row: row[0]),
    st.lists(st.tuples(EDGES, st.integers(0, 1_000_000)), min_size=1, max_size=4, unique_by=lambda row: row[0]),
)
def test_an_hours_entitlement_is_the_simulators(capacity: list[tuple[int, int]], shares: list[tuple[int, int]]) -> None:
    end = 4 * HOUR_MS
    changes, changed = sorted(capacity), sorted(shares)
    spans = [(at, until) for (at, _), (until, _) in zip(changes, [*changes[1:], (end, 0)], strict=True)]
    levels = [Level(at, until, 9, gpus) for (at, until), (_, gpus) in zip(spans, changes, strict=True) if at < until]
    trees = [TreeChange(at, (Budget(budget="o"), Budget(budget="a", parent="o", share_ppm=ppm))) for at, ppm in changed]
    untils = [*(at for at, _ in changed[1:]), None]
    history = [Share("a", ("o", "a"), (ppm,), True, at, until, 1) for (at, ppm), until in zip(changed, untils, strict=True)]
    steps = tuple(Step(level.available, level.from_ms, level.to_ms) for level in levels)
    theirs = entitled_by_hour(steps, trees, "c1", SimulatedSpan(0, end)).get("a", (0,) * 4)
    assert entitlements(history, levels, Span(0, end)).get("a", (0,) * 4) == theirs


def test_a_leaf_is_what_has_nothing_below_it_at_the_instant() -> None:
    shares = [
        Share("o", ("o",), (), True, 0, None, 1),
        Share("a", ("o", "a"), (1,), True, 0, None, 1),
        Share("b", ("o", "a", "b"), (1,), True, 50, 60, 2),
    ]
    assert [leaves_at(shares, at) for at in (49, 50, 60)] == [{"a"}, {"b"}, {"a"}]
