"""The price of an eviction (decision 0015): who is spared, what all together may cost, the idle, and gathered nodes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.preemptor.model import Attempt, Claim, Infeasible, Node, Planned, Policy, Snapshot
from allmende.preemptor.rules.judge import assert_lawful, judge
from allmende.proto.order import spared
from allmende.proto.standing import Standing
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.preemptor.builders import NOW_MS, attempt, claim, node, snapshot
from tests.preemptor.test_displace import clusters

# The claimant of these tests wants 8 GPUs for an hour: 3 % of that is 108 s of 8 GPUs.
WASTE = Policy(waste_ppm=30_000)
GAIN = 8 * HOUR_MS
LIMIT_MS = 108 * SECOND_MS
OWED: Mapping[str, int | Standing] = {"vision": 62, "nlp": 131, "tax": 132}
NODES = (node("n1"), node("n2"), node("n3"))


def victim(
    name: str, saved_ago_ms: int | None, where: str = "n1", gpus: int = 8, budget: str | None = "nlp", **other: Any
) -> Attempt:
    """An attempt with a slice of an hour that ended an hour ago."""
    return attempt(name, budget, {where: gpus}, saved_ago_ms=saved_ago_ms, **other)


def idle(name: str, where: str = "n1", budget: str = "nlp", **other: Any) -> Attempt:
    return victim(name, HOUR_MS // 2, where, budget=budget, **other)._replace(idle=True)


def check(
    *,
    attempts: Sequence[Attempt],
    expected: set[str] | str,
    claim: Claim | None = None,
    policy: Policy = WASTE,
    nodes: Iterable[Node] | None = None,
    ratios: Mapping[str, int | Standing | None] = OWED,
    rules: set[str] | None = None,
) -> Planned | Infeasible:
    """`expected`: exactly these leave, or the code of the refusal. As many nodes of 8 GPUs as attempts hold, all full."""
    wish = claim or wanted()
    named = {name for each in attempts for name, _gpus in each.held}
    decision = judge(snapshot(nodes or [each for each in NODES if each.node in named], attempts, ratios), wish, policy)
    if isinstance(decision, Infeasible):
        assert decision.code == expected, decision
        return decision
    assert {each.attempt.attempt for each in decision.victims} == expected, decision
    assert_lawful(decision, NOW_MS, NOW_MS)
    if rules is not None:
        assert {each.rule for each in decision.victims} == rules
    return decision


def wanted(replicas: int = 1, **other: Any) -> Claim:
    """So many nodes for an hour, for vision."""
    reserved = other.pop("reserved", ())
    return claim("vision", replicas, hold=replicas * GAIN, **other)._replace(reserved_nodes=reserved)


def row(**arguments: Any) -> dict[str, Any]:
    return arguments


SPARING: dict[str, dict[str, Any]] = {
    "who has just saved leaves": row(attempts=[victim("v", 0)], expected={"v"}),
    "who loses exactly as much as may be lost leaves": row(attempts=[victim("v", LIMIT_MS)], expected={"v"}),
    "who would lose a millisecond more is spared": row(attempts=[victim("v", LIMIT_MS + 1)], expected="unsaved_work"),
    "where any loss is allowed nobody is": row(attempts=[victim("v", LIMIT_MS + 1)], expected={"v"}, policy=Policy()),
    "who has saved nothing for as long as his slice is spared": row(attempts=[victim("v", HOUR_MS)], expected="unsaved_work"),
    "who has saved nothing for longer is spared no more": row(attempts=[victim("v", HOUR_MS + 1)], expected={"v"}),
    "who has never saved though his slice is long over is spared no more": row(attempts=[victim("v", None)], expected={"v"}),
    "who has never saved and is just past his slice is spared": row(
        attempts=[victim("v", None, started_ago_ms=HOUR_MS, protected_for_ms=0)], expected="unsaved_work"
    ),
    "inside one leaf, too, a higher priority waits for the save": row(
        attempts=[victim("v", LIMIT_MS + 1, budget="vision")], claim=wanted(priority=1), expected="unsaved_work"
    ),
    "inside one leaf, too, a higher priority displaces whoever has saved": row(
        attempts=[victim("v", LIMIT_MS, budget="vision")], claim=wanted(priority=1), expected={"v"}, rules={"lower_priority"}
    ),
    "unallocated work is never spared": row(
        attempts=[victim("v", HOUR_MS // 2, budget=None)], expected={"v"}, rules={"unallocated"}
    ),
    "of two the one who has saved leaves, whatever the leaves stand at": row(
        attempts=[victim("a", HOUR_MS // 2, "n1", budget="tax"), victim("b", 0, "n2")], expected={"b"}
    ),
    "who may not be displaced by law is named before who has not saved": row(
        attempts=[victim("v", LIMIT_MS + 1)], expected="ratio_within_margin", ratios={"vision": 62, "nlp": 72}
    ),
    "a larger claimant is worth a larger loss": row(
        attempts=[victim("v", LIMIT_MS + 1)], claim=wanted()._replace(hold_gpu_ms=2 * GAIN), expected={"v"}
    ),
    "all together may lose as much as one might": row(
        attempts=[victim("a", LIMIT_MS, "n1"), victim("b", LIMIT_MS, "n2")], claim=wanted(2), expected={"a", "b"}
    ),
    "each may be worth its loss and both together not": row(
        attempts=[victim("a", LIMIT_MS, "n1"), victim("b", LIMIT_MS + 1, "n2")], claim=wanted(2), expected="costs_too_much"
    ),
    "who is spared no more does not count among what all lose": row(
        attempts=[victim("a", 2 * LIMIT_MS, "n1"), victim("b", None, "n2")], claim=wanted(2), expected={"a", "b"}
    ),
    "nor does unallocated work": row(
        attempts=[victim("a", 2 * LIMIT_MS, "n1"), victim("b", HOUR_MS // 2, "n2", budget=None)],
        claim=wanted(2),
        expected={"a", "b"},
    ),
    "nor does an idle attempt": row(
        attempts=[victim("a", 2 * LIMIT_MS, "n1"), idle("b", "n2")], claim=wanted(2), expected={"a", "b"}
    ),
}

OFTEN = Policy(waste_ppm=30_000, loss_first=True, bother_ms=15 * MINUTE_MS)


def often(name: str, evictions: int, where: str, saved_ago_ms: int = 0, budget: str | None = None) -> Attempt:
    return victim(name, saved_ago_ms, where, budget=budget)._replace(evictions=evictions)


EVICTED_OFTEN: dict[str, dict[str, Any]] = {
    "of two the one whose job was evicted less leaves": row(
        attempts=[often("a", 3, "n1"), often("b", 2, "n2")], policy=OFTEN, expected={"b"}
    ),
    "an earlier eviction counts as fifteen minutes of its GPUs": row(
        attempts=[often("a", 1, "n1"), often("b", 0, "n2", 15 * MINUTE_MS - 1)], policy=OFTEN, expected={"b"}
    ),
    "and not as more": row(attempts=[often("a", 1, "n1"), often("b", 0, "n2", 15 * MINUTE_MS + 1)], policy=OFTEN, expected={"a"}),
    "among the allocated, too": row(
        attempts=[often("a", 1, "n1", budget="nlp"), often("b", 0, "n2", budget="nlp")], policy=OFTEN, expected={"b"}
    ),
    "unallocated work still goes before any other, however often it went before": row(
        attempts=[often("a", 1_000, "n1"), often("b", 0, "n2", budget="nlp")], policy=OFTEN, expected={"a"}
    ),
    "it makes nobody's loss too large": row(attempts=[often("a", 1_000, "n1", budget="nlp")], policy=OFTEN, expected={"a"}),
    "without the rule earlier evictions do not count": row(
        attempts=[often("a", 9, "n1"), often("b", 0, "n2", 1)], policy=Policy(loss_first=True), expected={"a"}
    ),
}

IDLE: dict[str, dict[str, Any]] = {
    "an idle attempt past its slice protects nobody, unsaved or not": row(attempts=[idle("v")], expected={"v"}, rules={"idle"}),
    "whatever its leaf is owed": row(attempts=[idle("v")], ratios={"vision": 300, "nlp": 0}, expected={"v"}, rules={"idle"}),
    "in the claimant's own leaf, whatever its priority": row(
        attempts=[idle("v", budget="vision", priority=9)], expected={"v"}, rules={"idle"}
    ),
    "though its leaf has no standing yet": row(
        attempts=[idle("v", budget="new")], ratios={**OWED, "new": None}, expected={"v"}, rules={"idle"}
    ),
    "inside its slice it is protected as any other": row(
        attempts=[idle("v", protected_for_ms=1)], expected="nothing_interruptible"
    ),
    "before its start is confirmed, too": row(attempts=[idle("v", protected_for_ms=None)], expected="nothing_interruptible"),
    "idle and unallocated it is unallocated": row(
        attempts=[victim("v", 0, budget=None)._replace(idle=True)], expected={"v"}, rules={"unallocated"}
    ),
}

HERE = ("n1",)
GATHERED: dict[str, dict[str, Any]] = {
    "on gathered nodes whoever is past his slice leaves, whatever his ratio": row(
        attempts=[victim("v", 0)], claim=wanted(reserved=HERE), ratios={"vision": 140, "nlp": 3}, expected={"v"}, rules={"reserved"}
    ),
    "whatever he has not saved": row(attempts=[victim("v", HOUR_MS // 2)], claim=wanted(reserved=HERE), expected={"v"}),
    "in the own leaf, whatever his priority": row(
        attempts=[victim("v", 0, budget="vision", priority=9)], claim=wanted(reserved=HERE), expected={"v"}, rules={"reserved"}
    ),
    "though his leaf has no standing": row(
        attempts=[victim("v", 0, budget="gone")], claim=wanted(reserved=HERE), expected={"v"}, rules={"reserved"}
    ),
    "but nobody inside his slice": row(
        attempts=[victim("v", 0, protected_for_ms=1)], claim=wanted(reserved=HERE), expected="nothing_interruptible"
    ),
    "at the instant the slice ends it is over": row(
        attempts=[victim("v", 0, protected_for_ms=0)], claim=wanted(reserved=HERE), expected={"v"}
    ),
    "unallocated work there leaves as unallocated work does": row(
        attempts=[victim("v", 0, budget=None)], claim=wanted(reserved=HERE), expected={"v"}, rules={"unallocated"}
    ),
    "nobody elsewhere is touched, though that were cheaper": row(
        attempts=[victim("a", HOUR_MS // 2, "n1"), victim("b", 0, "n2")], claim=wanted(reserved=HERE), expected={"a"}
    ),
    "room elsewhere is not used: the nodes are by name": row(
        attempts=[victim("a", 0, "n1")], nodes=NODES, claim=wanted(reserved=HERE), expected={"a"}
    ),
    "whoever is not needed stays": row(
        attempts=[victim("a", 0, "n1", 4), victim("b", 0, "n1", 4)],
        claim=claim("vision", 1, 4, hold=GAIN // 2)._replace(reserved_nodes=HERE),
        expected={"a"},
    ),
    "a gang with a part elsewhere leaves whole": row(
        attempts=[attempt("gang", "nlp", {"n1": 8, "n2": 8})], claim=wanted(reserved=HERE), expected={"gang"}
    ),
    "where not all of the gathered nodes can be cleared nobody leaves": row(
        attempts=[victim("a", 0, "n1"), victim("b", 0, "n2", protected_for_ms=1)],
        claim=wanted(2, reserved=("n1", "n2")),
        expected="slices_running",
    ),
    "what all lose together is not weighed: it was when the nodes were gathered": row(
        attempts=[victim("a", HOUR_MS // 2, "n1"), victim("b", HOUR_MS // 2, "n2")],
        claim=wanted(2, reserved=("n1", "n2")),
        expected={"a", "b"},
    ),
}

LOSS = Policy(loss_first=True)
CHOICE: dict[str, dict[str, Any]] = {
    "by default the most over-served leaf comes before the least loss": row(
        attempts=[victim("a", 0, "n1"), victim("b", MINUTE_MS, "n2", budget="tax")], policy=Policy(), expected={"b"}
    ),
    "with loss first it is the other way round": row(
        attempts=[victim("a", 0, "n1"), victim("b", MINUTE_MS, "n2", budget="tax")], policy=LOSS, expected={"a"}
    ),
    "of equal losses the most over-served leaf's": row(
        attempts=[victim("a", MINUTE_MS, "n1"), victim("b", MINUTE_MS, "n2", budget="tax")], policy=LOSS, expected={"b"}
    ),
    "a leaf whose standing is unknown is not over-served: others go first": row(
        attempts=[idle("a", "n1", "new"), idle("b", "n2", "vision")], ratios={**OWED, "new": None}, policy=Policy(), expected={"b"}
    ),
    "one that was closed is: it goes before all": row(
        attempts=[idle("a", "n1", "gone"), idle("b", "n2", "nlp")], policy=Policy(), expected={"a"}
    ),
    "fewer allocated GPUs come before both": row(
        attempts=[victim("a", 0, "n1"), victim("b", HOUR_MS, "n2", gpus=2)], policy=LOSS, expected={"b"}
    ),
    "unallocated work comes before all, whatever it loses": row(
        attempts=[victim("a", 0, "n1"), victim("b", None, "n2", budget=None)], policy=LOSS, expected={"b"}
    ),
}


TABLE = SPARING | EVICTED_OFTEN | IDLE | GATHERED | CHOICE


@pytest.mark.parametrize("sentence", TABLE)
def test_the_price_of_an_eviction(sentence: str) -> None:
    check(**TABLE[sentence])


def test_no_sentence_stands_twice() -> None:
    assert len(TABLE) == sum(len(part) for part in (SPARING, EVICTED_OFTEN, IDLE, GATHERED, CHOICE))


def test_the_refusals_name_the_numbers() -> None:
    near = check(attempts=[victim("v", LIMIT_MS + 1)], expected="unsaved_work")
    assert near.sentence == (
        "0 of 1 replica of 8 GPUs would fit; 1 attempt there would lose more unsaved work than 0.03 of the claimant's slice and"
        " may go once they have saved"
    )
    dear = check(
        attempts=[victim("a", LIMIT_MS, "n1"), victim("b", 2 * LIMIT_MS, "n2")], claim=wanted(2), expected="costs_too_much"
    )
    assert dear.sentence == (
        "0.7 GPU-h of unsaved work would be lost for a slice of 16.0 GPU-h, more than 0.03 of it; the claim waits until"
        " more is saved"
    )


POLICIES = st.tuples(st.sampled_from([0, 1, 30_000, 1_000_000]), st.booleans()).map(
    lambda drawn: Policy(waste_ppm=drawn[0], loss_first=drawn[1])
)
RESERVED = st.lists(st.sampled_from(["n0", "n1", "n2", "n3"]), max_size=3, unique=True).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Snapshot, Claim]:
    """Any cluster; some of its attempts idle, some claims for gathered nodes."""
    seen, wish = draw(clusters())
    attempts = tuple(each._replace(idle=draw(st.integers(0, 4)) == 0) for each in seen.attempts)
    return seen._replace(attempts=attempts), wish._replace(reserved_nodes=draw(RESERVED))


@given(cases(), POLICIES)
@settings(max_examples=120, deadline=None)
def test_under_every_policy_nobody_is_evicted_inside_his_slice_and_sparing_only_refuses(
    case: tuple[Snapshot, Claim], policy: Policy
) -> None:
    seen, wish = case
    lenient, decision = judge(seen, wish, policy._replace(waste_ppm=0)), judge(seen, wish, policy)
    if isinstance(decision, Infeasible):
        if decision.code in ("unsaved_work", "costs_too_much"):
            assert policy.waste_ppm
            assert not wish.reserved_nodes
        if isinstance(lenient, Planned):
            assert decision.code not in ("does_not_fit", "nothing_interruptible", "slices_running", "too_many_victims")
        return
    assert isinstance(lenient, Planned), "what is allowed with sparing is allowed without"
    assert_lawful(decision, NOW_MS, NOW_MS)
    for each in decision.victims:
        it = each.attempt
        assert it.budget is None or (it.protected_until_ms is not None and it.protected_until_ms <= NOW_MS)
        if each.rule not in ("unallocated", "reserved", "idle"):
            assert not spared(it.lost_gpu_ms(NOW_MS), it.courtesy_gpu_ms, wish.hold_gpu_ms, policy.waste_ppm)
    if wish.reserved_nodes:
        assert {part.node for part in decision.placement} <= set(wish.reserved_nodes)
        assert all({name for name, _ in each.attempt.held} & set(wish.reserved_nodes) for each in decision.victims)
