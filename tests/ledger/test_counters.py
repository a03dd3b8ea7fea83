"""Counters to postings: one row a sentence, then any order, repetition, loss and restart by hypothesis."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.ledger.model import BUCKET_MS, Fact, Limits, Reading, Started
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.ledger.builders import START_MS, id_of
from tests.ledger.paper import NOW_MS, Paper, end, grant, reading

T = START_MS
KEY = (id_of(1), 0)


class Row(NamedTuple):
    sentence: str
    said: Sequence[Fact | Reading]
    counted: Sequence[tuple[int, int]]
    """Joined intervals, relative to START_MS."""
    codes: Sequence[str] = ()


ROWS = [
    Row("a counter counts from its beginning", [grant(), reading(70_000, 1)], [(0, 70_000)]),
    Row("a higher one replaces it", [grant(), reading(70_000, 1), reading(90_000, 2)], [(0, 90_000)]),
    Row("a lower seq is stale", [grant(), reading(90_000, 2), reading(70_000, 1)], [(0, 90_000)]),
    Row("a repeat is nothing new", [grant(), reading(90_000, 2), reading(90_000, 2)], [(0, 90_000)]),
    Row(
        "a higher seq with a lower counter is set aside",
        [grant(), reading(90_000, 2), reading(70_000, 3)],
        [(0, 90_000)],
        ["counter_backwards"],
    ),
    Row(
        "also when the lower counter comes first, so that the books do not depend on the order",
        [grant(), reading(70_000, 3), reading(90_000, 2)],
        [(0, 90_000)],
        ["counter_backwards"],
    ),
    Row(
        "after one that was set aside the next good one counts",
        [grant(), reading(9, 2), reading(5, 3), reading(12, 4)],
        [(0, 12)],
        ["counter_backwards"],
    ),
    Row(
        "an amount that is not the time of all GPUs is set aside",
        [grant(gpus=8), reading(10, 1, used_gpu_ms=81)],
        [],
        ["amount_mismatch"],
    ),
    Row("also when it came before the grant", [reading(10, 1, used_gpu_ms=81), grant(gpus=8)], [], ["amount_mismatch"]),
    Row(
        "and a good one afterwards counts whatever its seq",
        [reading(10, 7, used_gpu_ms=81), grant(gpus=8), reading(20, 3, gpus=8)],
        [(0, 20)],
        ["amount_mismatch"],
    ),
    Row("an epoch has one beginning", [grant(), reading(10, 1), reading(20, 2, since_ms=T + 1)], [(0, 10)], ["since_changed"]),
    Row("a replica that was not granted is set aside", [grant(), reading(10, 1, replica=1)], [], ["unknown_replica"]),
    Row(
        "also when it came before the grant",
        [reading(10, 1, replica=1), grant(), reading(20, 2, replica=1)],
        [],
        ["unknown_replica", "unknown_replica"],
    ),
    Row(
        "what lies before the grant is cut, less the allowance",
        [grant(), reading(20_000, 1, since_ms=T - 6_000)],
        [(-5_000, 14_000)],
        ["before_grant"],
    ),
    Row("a skew within the allowance is believed", [grant(), reading(20_000, 1, since_ms=T - 5_000)], [(-5_000, 15_000)]),
    Row("what lies after the end is cut", [grant(), end(1, T + 10), reading(12, 1)], [(0, 10)], ["beyond_end"]),
    Row("and so when the end comes later", [grant(), reading(12, 1), end(1, T + 10)], [(0, 10)], ["beyond_end"]),
    Row("a new epoch goes on", [grant(), reading(50, 9), reading(30, 1, epoch=2, since_ms=T + 60)], [(0, 50), (60, 90)]),
    Row("a new epoch may come first", [grant(), reading(30, 1, epoch=2, since_ms=T + 60), reading(50, 9)], [(0, 50), (60, 90)]),
    Row(
        "what two epochs both claim counts once",
        [grant(), reading(50, 9), reading(30, 1, epoch=2, since_ms=T + 40)],
        [(0, 70)],
        ["epochs_overlap"],
    ),
    Row(
        "whichever comes first",
        [grant(), reading(30, 1, epoch=2, since_ms=T + 40), reading(50, 9)],
        [(0, 70)],
        ["epochs_overlap"],
    ),
    Row("the grant may come last", [reading(50, 9), reading(30, 1, epoch=2, since_ms=T + 60), grant()], [(0, 50), (60, 90)]),
    Row(
        "a counter that says more than can have passed when it was sent is cut at the allowance",
        [grant(), reading(20_000, 1, sent_at_ms=T + 10_000)],
        [(0, 15_000)],
        ["ahead_of_clock"],
    ),
    Row("what was spooled in an outage stays valid", [grant(), reading(HOUR_MS, 1, sent_at_ms=T + HOUR_MS)], [(0, HOUR_MS)]),
    Row(
        "what was cut counts once the time has passed",
        [grant(), reading(20_000, 1, sent_at_ms=T + 10_000), reading(20_000, 1, sent_at_ms=T + 20_000)],
        [(0, 20_000)],
        ["ahead_of_clock"],
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
@pytest.mark.parametrize("batched", [True, False], ids=["one batch", "one by one"])
def test_counting(row: Row, batched: bool) -> None:
    paper = Paper()
    for batch in [row.said] if batched else [[each] for each in row.said]:
        paper.hear(*batch)
    counted = [(from_ms - T, to_ms - T) for from_ms, to_ms in paper.intervals().get(KEY, ())]
    assert counted == list(row.counted)
    assert [fault.code for fault in paper.faults] == list(row.codes)


def test_a_clock_that_runs_ahead_cannot_lift_the_bound() -> None:
    paper = Paper(Limits(T + 10_000, 5_000, 200 * HOUR_MS))
    paper.hear(grant(), reading(HOUR_MS, 1, sent_at_ms=T + HOUR_MS))
    assert paper.intervals()[KEY] == [(T, T + 15_000)]
    assert [fault.excess_gpu_ms for fault in paper.faults] == [HOUR_MS - 15_000]


def test_an_attempt_of_another_cluster_is_set_aside_with_its_excess_shown() -> None:
    paper = Paper()
    paper.hear(grant(), reading(50, 1, cluster="c2"), reading(40, 1))
    assert paper.intervals()[KEY] == [(T, T + 40)]
    assert [(fault.cluster, fault.code) for fault in paper.faults] == [("c2", "foreign_attempt")]


def test_only_whole_buckets_and_ends_are_posted() -> None:
    paper = Paper()
    paper.hear(grant(), reading(BUCKET_MS - 1, 1))
    assert paper.postings == []
    paper.hear(reading(BUCKET_MS + 1, 2))
    assert paper.posted()[KEY] == [(T, T + BUCKET_MS)]
    paper.hear(reading(BUCKET_MS + 7, 3), end(1, T + BUCKET_MS + 7))
    assert paper.posted()[KEY] == [(T, T + BUCKET_MS + 7)]
    assert [(posting.from_ms - T, posting.to_ms - T) for posting in paper.postings] == [(0, BUCKET_MS), (BUCKET_MS, BUCKET_MS + 7)]


def test_an_end_is_confirmed_when_every_replica_has_said_its_last() -> None:
    paper = Paper()
    paper.hear(grant(replicas=2), end(1, T + 100), reading(100, 5))
    assert not paper.confirmed
    paper.hear(reading(80, 5, replica=1))
    assert not paper.confirmed, "replica 1 has not reached the end, and this was not its final counter"
    paper.hear(reading(80, 5, replica=1, final=True))
    assert paper.confirmed == {("c1", id_of(1))}


def test_replicas_that_never_began_hold_up_no_confirmation() -> None:
    paper = Paper()
    paper.hear(
        grant(replicas=8), *(reading(100, 5, replica=replica, final=True) for replica in range(4)), end(1, T + 100, "stopped")
    )
    assert paper.confirmed == {("c1", id_of(1))}


def test_an_attempt_that_ended_before_it_began_is_confirmed() -> None:
    paper = Paper()
    paper.hear(grant(), end(1, T + 100, "stopped"))
    assert paper.confirmed == {("c1", id_of(1))}


def test_an_attempt_that_ran_is_not_confirmed_before_its_counters_came() -> None:
    paper = Paper()
    paper.hear(grant(), Started("start-1", "c1", id_of(1), T), end(1, T + 100))
    assert not paper.confirmed
    paper.hear(reading(100, 1))
    assert paper.confirmed == {("c1", id_of(1))}


@pytest.mark.parametrize("outcome", ["never_started", "node_lost"])
def test_what_can_have_no_last_counter_is_confirmed_without(outcome: str) -> None:
    paper = Paper()
    paper.hear(grant(), end(1, T + 100, outcome))
    assert paper.confirmed == {("c1", id_of(1))}


def test_nothing_is_confirmed_before_its_grant_is_known() -> None:
    paper = Paper()
    paper.hear(end(1, T + 100), reading(100, 1, final=True))
    assert not paper.confirmed
    paper.hear(grant())
    assert paper.confirmed == {("c1", id_of(1))}


NEAR_EDGES = st.builds(
    lambda buckets, off: max(0, buckets * BUCKET_MS + off), st.integers(0, 4), st.sampled_from([-1, 0, 1, MINUTE_MS])
)


class Story(NamedTuple):
    """An honest agent's whole story and what must be counted of it."""

    said: list[Fact | Reading]
    truth: dict[tuple[str, int], list[tuple[int, int]]]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """One to three attempts of one to three replicas; agents restart and open new epochs, with or without a gap."""
    said: list[Fact | Reading] = []
    truth: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for number in range(1, draw(st.integers(1, 3)) + 1):
        gpus, replicas = draw(st.integers(1, 8)), draw(st.integers(1, 3))
        said.append(grant(number, gpus=gpus, replicas=replicas))
        ends = [T]
        for replica in range(replicas):
            at_ms, row = T, []
            for epoch in range(1, draw(st.integers(1, 3)) + 1):
                at_ms += draw(st.sampled_from([0, 0, 1, MINUTE_MS, BUCKET_MS]))
                steps = sorted(draw(st.lists(NEAR_EDGES, min_size=1, max_size=5)))
                said += [
                    reading(held, seq, number=number, gpus=gpus, replica=replica, epoch=epoch, since_ms=at_ms)
                    for seq, held in enumerate(steps, start=1)
                ]
                last = said.pop()
                assert isinstance(last, Reading)
                said.append(replace(last, final=True))
                if steps[-1]:
                    row.append((at_ms, at_ms + steps[-1]))
                at_ms += steps[-1]
            ends.append(at_ms)
            joined: list[tuple[int, int]] = []
            for from_ms, to_ms in row:
                if joined and joined[-1][1] == from_ms:
                    joined[-1] = (joined[-1][0], to_ms)
                else:
                    joined.append((from_ms, to_ms))
            if joined:
                truth[id_of(number), replica] = joined
        said.append(end(number, max(ends)))
    return Story(said, truth)


@given(stories(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_any_order_repetition_and_batching_gives_the_same_books(story: Story, chance: random.Random) -> None:
    said = story.said + chance.sample(story.said, len(story.said) // 3)
    chance.shuffle(said)
    paper = Paper()
    while said:
        size = chance.randint(1, 7)
        paper.hear(*said[:size])
        del said[:size]
    assert paper.faults == []
    assert paper.posted() == story.truth == paper.intervals()
    assert paper.confirmed == set(paper.attempts)


@given(stories(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_whatever_is_lost_but_the_finals_changes_nothing(story: Story, chance: random.Random) -> None:
    paper = Paper()
    for each in story.said:
        if not isinstance(each, Reading) or each.final or chance.random() < 0.5:
            paper.hear(each)
    assert paper.faults == []
    assert paper.posted() == story.truth


@given(stories(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_prefix_never_posts_more_than_was_held_and_the_rest_is_less_than_a_bucket(story: Story, chance: random.Random) -> None:
    said = story.said[: chance.randint(0, len(story.said))]
    paper = Paper()
    paper.hear(*said)
    for key, intervals in paper.posted().items():
        for from_ms, to_ms in intervals:
            assert any(begin <= from_ms and to_ms <= until for begin, until in story.truth[key])
    for counter in paper.counters.values():
        if counter.from_ms is not None:
            assert 0 <= counter.to_ms - counter.posted_until_ms < BUCKET_MS


def test_the_clock_of_these_tests_is_later_than_their_stories() -> None:
    assert NOW_MS > T + 3 * (3 * (4 * BUCKET_MS + MINUTE_MS) + BUCKET_MS)
