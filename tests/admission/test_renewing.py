"""May a session be renewed, and until when: the pure rule (contract §6, decision 0041)."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.admission.model.values import Reason
from allmende.admission.rules.renewing import (
    AUTOMATIC_LEAD_MS,
    AUTOMATIC_RETRY_MS,
    LEAST_MS,
    Around,
    Bound,
    Limits,
    Renewal,
    Session,
    automatic_at_ms,
    judge,
    renewals_left,
    retry_at_ms,
)
from allmende.proto.standing import Standing
from allmende.proto.units import HOUR_MS, MINUTE_MS, Ms
from tests.admission.builders import NOW

CAP = 8 * HOUR_MS
# It began an hour ago with a slice of two hours, on 2 GPUs: an hour of protection is left.
BEGAN, UNTIL = NOW - HOUR_MS, NOW + HOUR_MS
PLENTY = Standing(0, 1_000 * HOUR_MS)


def session(**other: Any) -> Session:
    """The session of these tests, but for what is named."""
    made = Session("session", "running", "vision", 2, 2 * HOUR_MS, BEGAN, UNTIL)
    return made._replace(**other)


class Row(NamedTuple):
    """What is asked for of which session, and the end that comes of it; a word: the code of the refusal."""

    expected: Ms | str
    asked_ms: Ms | None = None
    session: Session = session()
    around: Around = Around(PLENTY)
    limits: Limits = Limits(CAP)
    now_ms: Ms = NOW


def owed(shortfall: int) -> Around:
    """A leaf that is owed so many GPU-ms."""
    return Around(Standing(50 * HOUR_MS, 50 * HOUR_MS + shortfall))


LAPSED = session(protected_until_ms=NOW - MINUTE_MS)
FULL = 4 * HOUR_MS  # another slice on 2 GPUs
TABLE: dict[str, Row] = {
    "nothing asked for is another slice, from the end of the protection": Row(UNTIL + 2 * HOUR_MS),
    "a length is taken as it is asked for": Row(UNTIL + 3 * HOUR_MS, 3 * HOUR_MS),
    "a protection that has passed begins again now": Row(NOW + 2 * HOUR_MS, session=LAPSED),
    "one that ends at this moment, too": Row(NOW + 2 * HOUR_MS, session=session(protected_until_ms=NOW)),
    "a batch job is not renewed": Row("not_a_session", session=session(kind="batch")),
    "nor what has not started": Row("not_running", session=session(state="starting")),
    "nor what was told to end": Row("not_running", session=session(state="ending")),
    "nor what has ended": Row("not_running", session=session(state="ended")),
    "unallocated, there is nothing to extend": Row("nothing_to_renew", session=session(budget=None)),
    "nor with a slice of 0": Row("nothing_to_renew", session=session(slice_ms=0)),
    "a plan that was given out is carried out": Row("leaving", session=session(plan="plan-1")),
    "also if its victim asks after its slice": Row("leaving", session=LAPSED._replace(plan="plan-1")),
    "while a claim may name it, nothing changes": Row("claim_answering", session=LAPSED, around=Around(PLENTY, NOW)),
    "also if its protection ends before the answer must be there": Row("claim_answering", around=Around(PLENTY, UNTIL)),
    "a claim that is answered before that cannot name it": Row(UNTIL + 2 * HOUR_MS, around=Around(PLENTY, UNTIL - 1)),
    # The limit on their number: unset never gets here, 0 and unlimited differ.
    "0 renewals: none": Row("renewals_used_up", limits=Limits(CAP, renewals=0)),
    "the last of two": Row(UNTIL + 2 * HOUR_MS, session=session(renewals=1), limits=Limits(CAP, renewals=2)),
    "a third of two": Row("renewals_used_up", session=session(renewals=2), limits=Limits(CAP, renewals=2)),
    "a lowered limit takes nothing back": Row("renewals_used_up", session=session(renewals=5), limits=Limits(CAP, renewals=2)),
    "unlimited": Row(UNTIL + 2 * HOUR_MS, session=session(renewals=999), limits=Limits(CAP, protected_ms="unlimited")),
    # How long in all.
    "protected as long as it may be in all": Row(UNTIL + 2 * HOUR_MS, 2 * HOUR_MS, limits=Limits(CAP, protected_ms=4 * HOUR_MS)),
    "not a millisecond longer": Row("protected_enough", 2 * HOUR_MS + 1, limits=Limits(CAP, protected_ms=4 * HOUR_MS)),
    "nothing asked for takes what is left": Row(UNTIL + MINUTE_MS, limits=Limits(CAP, protected_ms=2 * HOUR_MS + MINUTE_MS)),
    "unless that is a crumb": Row("protected_enough", limits=Limits(CAP, protected_ms=2 * HOUR_MS + MINUTE_MS - 1)),
    "0 in all: none": Row("protected_enough", limits=Limits(CAP, protected_ms=0)),
    # Never longer than the cap from now on.
    "up to the cap from now": Row(NOW + CAP, 7 * HOUR_MS),
    "not a millisecond more than the cap": Row("past_slice_cap", 7 * HOUR_MS + 1),
    "a slice as long as the cap is renewed by what has passed of it": Row(
        NOW + CAP, session=session(slice_ms=CAP, protected_until_ms=NOW + CAP - HOUR_MS)
    ),
    "and not at its very beginning": Row("past_slice_cap", session=session(slice_ms=CAP, protected_until_ms=NOW + CAP)),
    # Its own maximum runtime.
    "up to its maximum runtime": Row(UNTIL + HOUR_MS, session=session(max_runtime_ms=3 * HOUR_MS)),
    "not beyond it": Row("past_max_runtime", HOUR_MS + 1, session=session(max_runtime_ms=3 * HOUR_MS)),
    # Nodes.
    "not on a cordoned node": Row("node_closes", around=Around(PLENTY, node_closes_ms=NOW - HOUR_MS)),
    "until the maintenance that was announced": Row(UNTIL + HOUR_MS, around=Around(PLENTY, node_closes_ms=UNTIL + HOUR_MS)),
    "not into it": Row("node_closes", HOUR_MS + 1, around=Around(PLENTY, node_closes_ms=UNTIL + HOUR_MS)),
    "until a promised start": Row(UNTIL + HOUR_MS, HOUR_MS, around=Around(PLENTY, nodes_reserved_ms=UNTIL + HOUR_MS)),
    "a promised start never moves": Row("nodes_reserved", HOUR_MS + 1, around=Around(PLENTY, nodes_reserved_ms=UNTIL + HOUR_MS)),
    "of two bounds the nearer is named": Row(
        "nodes_reserved", 3 * HOUR_MS, around=Around(PLENTY, node_closes_ms=UNTIL + 1, nodes_reserved_ms=UNTIL)
    ),
    # The leaf.
    "a ratio of exactly 1 with the new hold is within the budget": Row(UNTIL + 2 * HOUR_MS, around=owed(FULL)),
    "a GPU-millisecond more is not": Row("renewal_over_budget", around=owed(FULL - 1)),
    "the standing takes it whole or not at all": Row("renewal_over_budget", around=owed(FULL // 2)),
    "but a shorter one may be asked for": Row(UNTIL + HOUR_MS, HOUR_MS, around=owed(FULL // 2)),
    "without entitlement nothing is within it": Row("renewal_over_budget", around=Around(Standing(0, 0))),
    "a standing that is not known is not zero": Row("standing_unknown", around=Around(None)),
}


@pytest.mark.parametrize("sentence", TABLE)
def test_a_renewal(sentence: str) -> None:
    row = TABLE[sentence]
    answer = judge(row.session, row.asked_ms, row.around, row.limits, row.now_ms)
    if isinstance(answer, Reason):
        assert answer.code == row.expected, answer
        assert 0 < len(answer.sentence) < 1_000
        return
    assert answer.protected_until_ms == row.expected
    assert answer.hold_gpu_ms == answer.length_ms * row.session.gpus
    assert answer.renewals == row.session.renewals + 1


SENTENCES: dict[str, tuple[Row, str]] = {
    "the number that was reached": (
        TABLE["a third of two"],
        "a session may be renewed 2 times on this cluster, and this one has been (2)",
    ),
    "what may be asked for instead": (TABLE["not a millisecond more than the cap"], "ask for at most 7h"),
    "that nothing more can be added": (TABLE["not on a cordoned node"], "no more can be added now"),
    "the compared numbers": (TABLE["without entitlement nothing is within it"], f"at {FULL} of 0 GPU-ms with {FULL} more held"),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_refusal_says(sentence: str) -> None:
    row, expected = SENTENCES[sentence]
    answer = judge(row.session, row.asked_ms, row.around, row.limits, row.now_ms)
    assert isinstance(answer, Reason)
    assert expected in answer.sentence


def test_how_many_are_left_is_no_number_where_they_are_unlimited() -> None:
    left = [renewals_left(session(renewals=2), Limits(CAP, renewals=most)) for most in (0, 2, 3)]
    assert left == [0, 0, 1]
    assert renewals_left(session(renewals=2), Limits(CAP)) == "unlimited"


def test_an_automatic_renewal_comes_before_the_first_warning() -> None:
    assert automatic_at_ms(session()) == UNTIL - AUTOMATIC_LEAD_MS < UNTIL - 10 * MINUTE_MS


def test_of_a_short_slice_half_is_used_first() -> None:
    short = session(slice_ms=4 * MINUTE_MS, protected_until_ms=BEGAN + 4 * MINUTE_MS)
    assert automatic_at_ms(short) == BEGAN + 2 * MINUTE_MS


def test_a_refused_automatic_renewal_is_tried_again_until_the_protection_ends() -> None:
    assert retry_at_ms(session(), NOW) == NOW + AUTOMATIC_RETRY_MS
    assert retry_at_ms(session(), UNTIL - AUTOMATIC_RETRY_MS) is None


# Lengths around the edges: of the hour that is left, of the cap, of nothing.
EDGES = st.sampled_from([0, LEAST_MS, HOUR_MS, 2 * HOUR_MS, 6 * HOUR_MS, 7 * HOUR_MS, CAP, 23 * HOUR_MS])
LENGTHS = st.builds(lambda edge, off: max(1, edge + off), EDGES, st.integers(-2, 2))
BOUNDS = st.one_of(st.just("unlimited"), st.builds(lambda edge, off: max(0, edge + off), EDGES, st.integers(-2, 2)))
MAYBE = st.none() | st.builds(lambda edge, off: NOW + edge + off, EDGES, st.integers(-2, 2))


class Ask(NamedTuple):
    """At `after_ms` from the last one, for so long."""

    after_ms: Ms
    asked_ms: Ms | None


@given(
    asks=st.lists(st.builds(Ask, LENGTHS, st.none() | LENGTHS), min_size=1, max_size=12),
    most=st.one_of(st.just("unlimited"), st.integers(0, 4)),
    protected=BOUNDS,
    gpus=st.integers(1, 8),
    owed_ms=LENGTHS,
    closes=MAYBE,
    reserved=MAYBE,
)
def test_no_session_is_ever_protected_beyond_a_limit_and_no_leaf_renews_past_its_budget(
    asks: list[Ask], most: Bound, protected: Bound, gpus: int, owed_ms: Ms, closes: Ms | None, reserved: Ms | None
) -> None:
    limits = Limits(CAP, most, protected)
    standing = Standing(10 * HOUR_MS, 10 * HOUR_MS + owed_ms * gpus)
    one, now_ms, added = session(gpus=gpus), NOW, 0
    for ask in asks:
        now_ms += ask.after_ms
        answer = judge(one, ask.asked_ms, Around(standing, None, closes, reserved), limits, now_ms)
        if isinstance(answer, Reason):
            continue
        _within(one, answer, ask, now_ms)
        assert answer.protected_until_ms <= min(edge for edge in (closes, reserved, now_ms + CAP) if edge is not None)
        assert protected == "unlimited" or answer.protected_until_ms - BEGAN <= protected
        assert most == "unlimited" or answer.renewals <= most
        added += answer.hold_gpu_ms
        standing = standing.after(answer.hold_gpu_ms)
        one = one._replace(protected_until_ms=answer.protected_until_ms, renewals=answer.renewals)
    # What is held more is what the renewals say, to the GPU-millisecond, and the leaf is still within its budget.
    assert standing == Standing(10 * HOUR_MS + added, standing.entitlement)
    assert standing.used <= standing.entitlement


def _within(one: Session, answer: Renewal, ask: Ask, now_ms: Ms) -> None:
    """What holds of every single renewal."""
    assert answer.protected_until_ms == max(one.protected_until_ms, now_ms) + answer.length_ms, "never shorter than it was"
    assert answer.hold_gpu_ms == answer.length_ms * one.gpus > 0
    assert answer.renewals == one.renewals + 1
    if ask.asked_ms is None:
        assert min(LEAST_MS, one.slice_ms) <= answer.length_ms <= one.slice_ms
    else:
        assert answer.length_ms == ask.asked_ms
