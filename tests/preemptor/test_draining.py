"""Cordons and drains as rules: what is said of a node, who leaves it, when it is empty. Decision 0025."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.preemptor.model import Closed, Cordon, Drain
from allmende.preemptor.rules import draining
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.preemptor.builders import NOW_MS, POLICY, attempt

BY_HAND = Cordon("olga", "new firmware", True, NOW_MS - HOUR_MS)
BY_AGENT = Cordon("c1", "GPU 3 is hot", True, NOW_MS - MINUTE_MS)
KNOWN = Closed(4, 17)


def drain(
    operator: Cordon | None = None,
    agent: Cordon | None = None,
    said: str = "returned",
    terms: Cordon | None = None,
    closed: Closed | None = None,
) -> Drain:
    """Node n1, whose terms were said at revision 4 if they ever were."""
    return Drain("n1", operator, agent, said, terms, 4 if terms else 0, 4 if terms else 0, closed)


class Row(NamedTuple):
    """A node, whether somebody holds GPUs there, how many grants were heard; what is said."""

    node: Drain
    expected: tuple[str, ...]
    occupied: bool = False
    grants_heard: int = 17


AHEAD = BY_HAND._replace(from_ms=NOW_MS + 1)
OVER = BY_HAND._replace(until_ms=NOW_MS)
HELD = BY_HAND._replace(drain=False)
WORDS: dict[str, Row] = {
    "a node that nobody wants anything of": Row(drain(), ()),
    "somebody wants it cordoned": Row(drain(BY_HAND), ("cordoned",)),
    "once it is said it is not said again": Row(drain(BY_HAND, said="cordoned", terms=BY_HAND), ()),
    "new terms are said": Row(drain(BY_HAND._replace(reason="other"), said="cordoned", terms=BY_HAND), ("cordoned",)),
    "empty, and admission knows: drained": Row(drain(BY_HAND, said="cordoned", terms=BY_HAND, closed=KNOWN), ("drained",)),
    "not while somebody holds a GPU": Row(drain(BY_HAND, said="cordoned", terms=BY_HAND, closed=KNOWN), (), occupied=True),
    "not while admission may still grant there": Row(drain(BY_HAND, said="cordoned", terms=BY_HAND), ()),
    "not by its word about earlier terms": Row(drain(BY_HAND, said="cordoned", terms=BY_HAND, closed=Closed(3, 17)), ()),
    "not while a grant is on its way": Row(drain(BY_HAND, said="cordoned", terms=BY_HAND, closed=KNOWN), (), grants_heard=16),
    "a node that is only cordoned is never drained": Row(drain(HELD, said="cordoned", terms=HELD, closed=KNOWN), ()),
    "nor before its time": Row(drain(AHEAD, said="cordoned", terms=AHEAD, closed=KNOWN), ()),
    "drained is said once": Row(drain(BY_HAND, said="drained", terms=BY_HAND, closed=KNOWN), ()),
    "nobody wants it any more: it returns": Row(drain(said="drained", terms=BY_HAND), ("returned",)),
    "its end has come": Row(drain(OVER, said="cordoned", terms=OVER), ("returned",)),
    "it has returned, and that was said": Row(drain(OVER), ()),
    "the operator is done, the agent is not": Row(
        drain(None, BY_AGENT, said="drained", terms=BY_HAND, closed=KNOWN), ("cordoned",)
    ),
    "the agent is well again, the operator is not done": Row(drain(BY_HAND, None, said="cordoned", terms=BY_HAND), ()),
}


def check(row: Row) -> None:
    found = draining.words(row.node, row.occupied, row.grants_heard, NOW_MS)
    assert tuple(word.kind for word in found) == row.expected


@pytest.mark.parametrize("sentence", WORDS)
def test_what_is_said(sentence: str) -> None:
    check(WORDS[sentence])


def test_two_who_want_it_are_taken_together() -> None:
    dated = Cordon("olga", "move", False, NOW_MS + HOUR_MS, until_ms=NOW_MS + 2 * HOUR_MS, deadline_ms=None)
    terms = draining.terms_of(drain(dated, BY_AGENT), NOW_MS)
    assert terms == Cordon("olga", "move; GPU 3 is hot", True, BY_AGENT.from_ms, None, None)


class Leaver(NamedTuple):
    """An attempt's budget, its slice (ms from now), where it is; does it leave?"""

    leaves: bool
    budget: str | None = "nlp"
    protected_for_ms: int | None = 0
    on: str = "n1"
    leaving: bool = False
    cordon: Cordon = BY_HAND


LEAVERS: dict[str, Leaver] = {
    "past its slice": Leaver(True),
    "in the last millisecond of its slice": Leaver(False, protected_for_ms=1),
    "allocated and not started yet": Leaver(False, protected_for_ms=None),
    "unallocated": Leaver(True, budget=None, protected_for_ms=None),
    "told already": Leaver(False, leaving=True),
    "elsewhere": Leaver(False, on="n2"),
    "cordoned is not drained": Leaver(False, cordon=HELD),
    "not before it begins": Leaver(False, cordon=AHEAD),
    "from its first instant on": Leaver(True, cordon=BY_HAND._replace(from_ms=NOW_MS)),
    "not after its end": Leaver(False, cordon=OVER),
    "no deadline cuts a slice": Leaver(False, protected_for_ms=1, cordon=BY_HAND._replace(deadline_ms=NOW_MS - 1)),
}


@pytest.mark.parametrize("sentence", LEAVERS)
def test_who_leaves(sentence: str) -> None:
    row = LEAVERS[sentence]
    who = attempt("x", row.budget, {row.on: 4, "n3": 4}, protected_for_ms=row.protected_for_ms, leaving=row.leaving)
    found = draining.leaving([drain(row.cordon)], [who], POLICY, NOW_MS)
    assert [each.attempt.attempt for each in found] == (["x"] if row.leaves else [])


@given(
    st.lists(st.tuples(st.sampled_from(["nlp", None]), st.integers(-2, 2), st.sampled_from(["n1", "n2"])), max_size=6),
    st.booleans(),
    st.integers(-1, 1),
)
def test_no_drain_ever_ends_a_slice(people: list[tuple[str | None, int, str]], by_agent: bool, begins_ms: int) -> None:
    cordon = BY_HAND._replace(from_ms=NOW_MS + begins_ms, deadline_ms=NOW_MS + begins_ms)
    node = drain(None, cordon) if by_agent else drain(cordon)
    attempts = [attempt(f"x{i}", budget, {on: 1}, protected_for_ms=protected) for i, (budget, protected, on) in enumerate(people)]
    gone = {each.attempt.attempt for each in draining.leaving([node], attempts, POLICY, NOW_MS)}
    over = {f"x{i}" for i, (budget, protected_ms, on) in enumerate(people) if on == "n1" and (budget is None or protected_ms <= 0)}
    assert gone == (over if begins_ms <= 0 else set())


def test_when_somebody_is_gone_at_the_latest() -> None:
    inside = attempt("x", "nlp", {"n1": 1}, protected_for_ms=HOUR_MS)
    assert draining.leaves_by_ms(inside, BY_HAND, POLICY, NOW_MS) == NOW_MS + HOUR_MS + 2 * MINUTE_MS
    free = attempt("x", None, {"n1": 1}, protected_for_ms=None)
    assert draining.leaves_by_ms(free, AHEAD, POLICY, NOW_MS) == NOW_MS + 1 + 10 * SECOND_MS
    unknown = attempt("x", "nlp", {"n1": 1}, protected_for_ms=None)
    assert draining.leaves_by_ms(unknown, BY_HAND, POLICY, NOW_MS) is None


FAULTS: dict[str, tuple[Cordon, int | None, str]] = {
    "no reason": (BY_HAND._replace(reason=" ", from_ms=NOW_MS), None, "needs a reason"),
    "it begins in the past": (BY_HAND, NOW_MS - HOUR_MS, "begins in the past"),
    "it ends as it begins": (AHEAD._replace(until_ms=NOW_MS + 1), NOW_MS + 1, "end before it begins"),
    "a deadline and nobody has to leave": (HELD._replace(deadline_ms=NOW_MS + 1), None, "belongs to a drain"),
    "a deadline before its beginning": (AHEAD._replace(deadline_ms=NOW_MS), NOW_MS + 1, "lies before its beginning"),
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_terms_that_are_refused(sentence: str) -> None:
    cordon, asked_from_ms, words = FAULTS[sentence]
    [fault] = draining.faults_of(cordon, NOW_MS, asked_from_ms)
    assert words in fault


def test_the_next_edge_is_the_timer() -> None:
    ends = BY_AGENT._replace(until_ms=NOW_MS + 5)
    assert draining.next_change_ms([drain(AHEAD._replace(until_ms=NOW_MS + 9)), drain(None, ends)], NOW_MS) == NOW_MS + 1
    assert draining.next_change_ms([drain(BY_HAND)], NOW_MS) is None


def test_what_an_agent_wants_begins_with_its_first_report_and_ends_with_its_last() -> None:
    first = draining.agents_wish("c1", "GPU 3 is hot", 5, None)
    assert first == Cordon("c1", "GPU 3 is hot", True, 5)
    assert draining.agents_wish("c1", "GPU 4 too", 9, first) == Cordon("c1", "GPU 4 too", True, 5)
    assert draining.agents_wish("c1", None, 9, first) is None
