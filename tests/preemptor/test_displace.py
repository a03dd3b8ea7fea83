"""Contract §7, sentence by sentence: who may be displaced, who goes first, what the answer says."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.preemptor.errors import InvariantBroken
from allmende.preemptor.model import Attempt, Claim, Infeasible, Node, Planned, Snapshot, Victim
from allmende.preemptor.rules.judge import assert_lawful, carried_on, judge
from allmende.proto.placement import NodeReplicas
from allmende.proto.standing import Standing
from allmende.proto.units import HOUR_MS
from tests.preemptor.builders import ENTITLED, NOW_MS, POLICY, attempt, claim, node, snapshot, standing

ONE = (node("n1"),)
TWO = (node("n1"), node("n2"))
PART = {"art": "org", "law": "org", "vision": "art", "nlp": "art", "tax": "law"}


def check(
    *,
    attempts: Iterable[Attempt],
    claim: Claim,
    ratios: Mapping[str, int | Standing],
    victims: set[str] | None = None,
    code: str | None = None,
    nodes: Iterable[Node] = ONE,
    parents: Mapping[str, str] | None = None,
    promised: Mapping[str, int] | None = None,
    rules: set[str] | None = None,
) -> Planned | Infeasible:
    """`victims`: exactly these leave; None: infeasible. `code`: of the answer. `rules`: those of the orders."""
    seen = snapshot(nodes, attempts, ratios, parents=parents, promised=promised)
    decision = judge(seen, claim, POLICY)
    if victims is None:
        assert isinstance(decision, Infeasible), decision
    else:
        assert isinstance(decision, Planned), decision
        assert {victim.attempt.attempt for victim in decision.victims} == victims
        assert sum(it.replicas for it in decision.placement) == claim.replicas
        assert_lawful(decision, NOW_MS, NOW_MS)
    if code is not None:
        assert decision.code == code
    if rules is not None and isinstance(decision, Planned):
        assert {victim.rule for victim in decision.victims} == rules
    return decision


def row(**arguments: Any) -> dict[str, Any]:
    return arguments


VICTIM = [attempt("v", "nlp", {"n1": 8})]
CLOSED = [attempt("v", "gone", {"n1": 8})]
TABLE: dict[str, dict[str, Any]] = {
    "an owed leaf displaces an over-served one past its slice": row(
        attempts=VICTIM, claim=claim("vision"), ratios={"vision": 62, "nlp": 131}, victims={"v"}, rules={"over_served_leaf"}
    ),
    "never one inside its slice, however over-served its leaf": row(
        attempts=[attempt("v", "nlp", {"n1": 8}, protected_for_ms=1)],
        claim=claim("vision"),
        ratios={"vision": 0, "nlp": 900},
        code="nothing_interruptible",
    ),
    "at the instant the slice ends it is over": row(
        attempts=[attempt("v", "nlp", {"n1": 8}, protected_for_ms=0)],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        victims={"v"},
    ),
    "an allocated attempt whose start is not confirmed is protected": row(
        attempts=[attempt("v", "nlp", {"n1": 8}, protected_for_ms=None)],
        claim=claim("vision"),
        ratios={"vision": 0, "nlp": 900},
        code="nothing_interruptible",
    ),
    "an unallocated attempt is interruptible from the first second, started or not": row(
        attempts=[attempt("v", None, {"n1": 8}, protected_for_ms=None)],
        claim=claim("vision"),
        ratios={"vision": 250},
        victims={"v"},
        rules={"unallocated"},
    ),
    "an unallocated attempt is never protected, whatever was said of it": row(
        attempts=[attempt("v", None, {"n1": 8}, protected_for_ms=HOUR_MS)],
        claim=claim("vision"),
        ratios={"vision": 62},
        victims={"v"},
    ),
    "the claimant's own hold counts": row(
        attempts=VICTIM,
        claim=claim("vision", hold=ENTITLED * 60 // 100),
        ratios={"vision": 62, "nlp": 131},
        code="ratio_within_margin",
    ),
    "the margin exactly reached is not enough": row(
        attempts=VICTIM, claim=claim("vision"), ratios={"vision": 90, "nlp": 100}, code="ratio_within_margin"
    ),
    "a hair beyond the margin is": row(
        attempts=VICTIM,
        claim=claim("vision"),
        ratios={"vision": 90, "nlp": Standing(ENTITLED + 1, ENTITLED)},
        victims={"v"},
    ),
    "a guaranteed claimant may displace a leaf that is itself below 1": row(
        attempts=VICTIM, claim=claim("vision"), ratios={"vision": 20, "nlp": 70}, victims={"v"}
    ),
    "a claimant in the surplus tier never displaces a guaranteed leaf": row(
        attempts=VICTIM, claim=claim("vision"), ratios={"vision": 100, "nlp": 99}, code="claimant_over_budget"
    ),
    "two surplus leaves are compared where their paths part: the family that is owed more": row(
        attempts=[attempt("v", "tax", {"n1": 8})],
        claim=claim("vision"),
        ratios={"art": 80, "law": 120, "vision": 300, "tax": 110},
        parents=PART,
        victims={"v"},
        rules={"over_served_family"},
    ),
    "the other way round the same two numbers say no": row(
        attempts=[attempt("v", "vision", {"n1": 8})],
        claim=claim("tax"),
        ratios={"art": 80, "law": 120, "vision": 300, "tax": 110},
        parents=PART,
        code="ratio_within_margin",
    ),
    "a guaranteed claimant is compared leaf with leaf, whatever its family had": row(
        attempts=[attempt("v", "tax", {"n1": 8})],
        claim=claim("vision"),
        ratios={"art": 200, "law": 50, "vision": 40, "tax": 110},
        parents=PART,
        victims={"v"},
        rules={"over_served_leaf"},
    ),
    "inside one leaf a higher priority displaces a lower": row(
        attempts=[attempt("v", "vision", {"n1": 8}, priority=1)],
        claim=claim("vision", priority=2),
        ratios={"vision": 250},
        victims={"v"},
        rules={"lower_priority"},
    ),
    "inside one leaf an equal priority displaces nobody": row(
        attempts=[attempt("v", "vision", {"n1": 8}, priority=2)],
        claim=claim("vision", priority=2),
        ratios={"vision": 10},
        code="priority_not_higher",
    ),
    "inside one leaf the slice protects as well": row(
        attempts=[attempt("v", "vision", {"n1": 8}, priority=1, protected_for_ms=1)],
        claim=claim("vision", priority=2),
        ratios={"vision": 10},
        code="nothing_interruptible",
    ),
    "priority never compares two teams": row(
        attempts=VICTIM, claim=claim("vision", priority=1_000), ratios={"vision": 90, "nlp": 100}, code="ratio_within_margin"
    ),
    "a leaf with zero entitlement gives way to everybody who has one": row(
        attempts=VICTIM, claim=claim("vision"), ratios={"vision": 62, "nlp": Standing(0, 0)}, victims={"v"}
    ),
    "and displaces nobody": row(
        attempts=VICTIM, claim=claim("vision"), ratios={"vision": Standing(0, 0), "nlp": 900}, code="ratio_within_margin"
    ),
    "a budget without a standing is unknown, not over-served": row(
        attempts=[attempt("v", "new", {"n1": 8})], claim=claim("vision"), ratios={"vision": 0, "new": None}, code="standing_unknown"
    ),
    "a budget that was closed is owed nothing past the slice": row(
        attempts=CLOSED, claim=claim("vision"), ratios={"vision": 0}, victims={"v"}, rules={"budget_closed"}
    ),
    "so even a leaf over budget may have its GPUs": row(
        attempts=CLOSED, claim=claim("vision"), ratios={"vision": 500}, victims={"v"}, rules={"budget_closed"}
    ),
    "inside its slice it is as safe as any other": row(
        attempts=[attempt("v", "gone", {"n1": 8}, protected_for_ms=1)],
        claim=claim("vision"),
        ratios={"vision": 0},
        code="nothing_interruptible",
    ),
    "it goes before the most over-served leaf, though it loses more work": row(
        attempts=[attempt("a", "nlp", {"n1": 8}, saved_ago_ms=0), attempt("b", "gone", {"n2": 8})],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 900},
        nodes=TWO,
        victims={"b"},
    ),
    "and after unallocated work": row(
        attempts=[attempt("a", "gone", {"n1": 8}), attempt("u", None, {"n2": 8})],
        claim=claim("vision"),
        ratios={"vision": 62},
        nodes=TWO,
        victims={"u"},
    ),
    "a leaf that became a parent is compared by what it has had": row(
        attempts=VICTIM,
        claim=claim("speech"),
        ratios={"nlp": 131, "speech": 62},
        parents={"speech": "nlp"},
        victims={"v"},
        rules={"over_served_leaf"},
    ),
    "unallocated first, even if an allocated one alone would do": row(
        attempts=[attempt("v", "nlp", {"n1": 8}), attempt("u1", None, {"n2": 5}), attempt("u2", None, {"n2": 3})],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        victims={"u1", "u2"},
        rules={"unallocated"},
    ),
    "then the most over-served leaf, though it loses more work": row(
        attempts=[attempt("a", "nlp", {"n1": 8}, saved_ago_ms=0), attempt("b", "tax", {"n2": 8})],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131, "tax": 132},
        nodes=TWO,
        victims={"b"},
    ),
    "then the least lost since the last checkpoint": row(
        attempts=[attempt("a", "nlp", {"n1": 8}), attempt("b", "nlp", {"n2": 8}, saved_ago_ms=60_000)],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        victims={"b"},
    ),
    "a checkpoint before the start counts from the start": row(
        attempts=[
            attempt("a", "nlp", {"n1": 8}, started_ago_ms=2 * HOUR_MS, saved_ago_ms=9 * HOUR_MS),
            attempt("b", "nlp", {"n2": 8}, started_ago_ms=3 * HOUR_MS),
        ],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        victims={"a"},
    ),
    "fewest allocated GPUs come before everything else": row(
        attempts=[attempt("big", "tax", {"n1": 8}, saved_ago_ms=0), attempt("small", "nlp", {"n2": 2})],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131, "tax": 400},
        nodes=TWO,
        victims={"small"},
    ),
    "what fits without an eviction is planned without a victim": row(
        attempts=VICTIM, claim=claim("vision"), ratios={"vision": 62, "nlp": 131}, nodes=TWO, victims=set(), code="fits_now"
    ),
    "GPUs on their way out are waited for, not asked for twice": row(
        attempts=[attempt("gone", "nlp", {"n1": 8}, leaving=True), attempt("v", "nlp", {"n2": 8})],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        victims=set(),
        code="room_is_coming",
    ),
    "GPUs on their way out to another claim are that claim's": row(
        attempts=[attempt("gone", "nlp", {"n1": 8}, leaving=True), attempt("v", "nlp", {"n2": 8})],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        promised={"n1": 8},
        victims={"v"},
    ),
    "free GPUs promised to another claim are that claim's": row(
        attempts=VICTIM,
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        promised={"n2": 1},
        victims={"v"},
    ),
    "half a gang is no gang": row(
        attempts=VICTIM, claim=claim("vision", replicas=3), ratios={"vision": 62, "nlp": 131}, nodes=TWO, code="does_not_fit"
    ),
    "a gang leaves whole or not at all: the smaller one suffices": row(
        attempts=[attempt("gang", "nlp", {"n1": 8, "n2": 8}), attempt("v", "nlp", {"n3": 8})],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        nodes=(*TWO, node("n3")),
        victims={"v"},
    ),
    "a silent node takes nobody": row(
        attempts=[],
        claim=claim("vision"),
        ratios={"vision": 62},
        nodes=[node("n1", heard=False)],
        code="does_not_fit",
    ),
    "who has a replica on a silent node is left alone": row(
        attempts=[attempt("v", "nlp", {"n1": 8, "n2": 8})],
        claim=claim("vision"),
        ratios={"vision": 62, "nlp": 131},
        nodes=[node("n1"), node("n2", heard=False)],
        code="does_not_fit",
    ),
    "a node that is down takes nobody": row(
        attempts=[], claim=claim("vision"), ratios={"vision": 62}, nodes=[node("n1", 0)], code="does_not_fit"
    ),
    "a model that no node has evicts nobody": row(
        attempts=VICTIM, claim=claim("vision", model="h10"), ratios={"vision": 62, "nlp": 131}, code="does_not_fit"
    ),
    "nodes that admission avoids for the job are not cleared for it": row(
        attempts=[attempt("a", "nlp", {"n1": 8}, saved_ago_ms=0), attempt("b", "nlp", {"n2": 8})],
        claim=claim("vision")._replace(avoid_nodes=("n1",)),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        victims={"b"},
    ),
    "one plan evicts at most 300": row(
        attempts=[attempt(f"a{i:03d}", "nlp", {"n1": 1}) for i in range(301)],
        claim=claim("vision", replicas=1, gpus=301),
        ratios={"vision": 62, "nlp": 131},
        nodes=[node("n1", 301)],
        code="too_many_victims",
    ),
    "only nodes of the model asked for are cleared": row(
        attempts=[attempt("a", "nlp", {"n1": 8}, saved_ago_ms=0), attempt("b", "nlp", {"n2": 8})],
        claim=claim("vision", model="h100"),
        ratios={"vision": 62, "nlp": 131},
        nodes=[node("n1", model="a100"), node("n2", model="h100")],
        victims={"b"},
    ),
    "some may leave, but only slices that still run would make enough room": row(
        attempts=[attempt("v", "nlp", {"n1": 8}), attempt("p", "nlp", {"n2": 8}, protected_for_ms=1)],
        claim=claim("vision", replicas=2),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        code="slices_running",
    ),
    "who has been freed of its GPUs already is not evicted": row(
        attempts=[attempt("v", "nlp", {"n1": 0}), attempt("w", "nlp", {"n2": 8})],
        claim=claim("vision", replicas=2),
        ratios={"vision": 62, "nlp": 131},
        nodes=TWO,
        victims={"w"},
    ),
}


@pytest.mark.parametrize("sentence", TABLE)
def test_contract(sentence: str) -> None:
    check(**TABLE[sentence])


def test_the_sentences_name_the_numbers() -> None:
    plan = check(attempts=VICTIM, claim=claim("vision"), ratios={"vision": 62, "nlp": 131}, victims={"v"})
    assert isinstance(plan, Planned)
    assert plan.victims[0].sentence == "vision stands at 0.62 after the grant + 0.1 margin, below nlp's 1.31"
    assert plan.sentence == "1 attempt must leave: 8 allocated GPUs displaced, 16.0 GPU-h lost since checkpoints"
    near = check(attempts=VICTIM, claim=claim("vision"), ratios={"vision": 90, "nlp": 100})
    assert near.sentence == (
        "0 of 1 replica of 8 GPUs would fit; vision stands at 0.90 after the grant + 0.1 margin, not below nlp's 1.00"
    )


def test_grace_is_short_for_the_unallocated() -> None:
    attempts = [attempt("u", None, {"n1": 8}), attempt("v", "nlp", {"n2": 8})]
    plan = check(
        attempts=attempts, claim=claim("vision", replicas=2), ratios={"vision": 62, "nlp": 131}, nodes=TWO, victims={"u", "v"}
    )
    assert isinstance(plan, Planned)
    assert {it.attempt.attempt: it.grace_ms for it in plan.victims} == {"u": 10_000, "v": 120_000}


def test_a_protected_victim_ends_the_process() -> None:
    protected = attempt("v", "nlp", {"n1": 8}, protected_for_ms=1)
    plan = Planned("makes_room", "", (Victim(protected, "over_served_leaf", "", None, 0, 0),), (NodeReplicas("n1", 1),))
    for ordered_at_ms, now_ms in ((NOW_MS, NOW_MS), (NOW_MS + 1, NOW_MS), (NOW_MS, NOW_MS + 1)):
        with pytest.raises(InvariantBroken):
            assert_lawful(plan, ordered_at_ms, now_ms)
    assert_lawful(plan, NOW_MS + 1, NOW_MS + 1)


def test_claims_of_one_batch_share_nothing_twice() -> None:
    seen = snapshot(TWO, [attempt("v", "nlp", {"n1": 8}), attempt("w", "nlp", {"n2": 8})], {"vision": 62, "nlp": 131})
    hold = ENTITLED * 50 // 100
    evicted = []
    for number in (1, 2, 3):
        wish = claim("vision", hold=hold, number=number)
        decision = judge(seen, wish, POLICY)
        if isinstance(decision, Planned):
            evicted.append({victim.attempt.attempt for victim in decision.victims})
            seen = carried_on(seen, wish, decision)
    # 0.62 + 0.5 is in the guaranteed tier before; the second starts at 1.12 and would end at 1.62: not below 1.31.
    assert evicted == [{"v"}]
    assert seen.standings["nlp"] == standing(131), "the victim does not look poorer within the revision"
    assert seen.standings["vision"] == standing(112)
    assert seen.standings["org"] == standing(150)


LEAVES = ("vision", "nlp", "tax")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Snapshot, Claim]:
    """Two to four nodes of 8, slices around now, ratios around each other, a claim around what there is."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 4)))]
    free = {name: draw(st.integers(6, 8)) for name in names}
    nodes = [node(name, free[name], heard=draw(st.integers(0, 9)) > 0) for name in names]
    attempts = []
    for number in range(draw(st.integers(0, 9))):
        on = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        held = {name: gpus for name in on if (gpus := min(free[name], draw(st.sampled_from([1, 2, 4, 8]))))}
        for name, gpus in held.items():
            free[name] -= gpus
        if held:
            attempts.append(
                attempt(
                    f"a{number}",
                    draw(st.sampled_from([None, *LEAVES])),
                    held,
                    priority=draw(st.integers(0, 2)),
                    protected_for_ms=draw(st.sampled_from([None, -HOUR_MS, -1, 0, 1])),
                    saved_ago_ms=draw(st.sampled_from([None, 0, HOUR_MS])),
                    leaving=draw(st.integers(0, 9)) == 0,
                )
            )
    ratios = {leaf: draw(st.sampled_from([0, 80, 89, 90, 91, 99, 100, 101, 110, 111, 200])) for leaf in LEAVES}
    families = {"art": draw(st.sampled_from([80, 100, 111])), "law": draw(st.sampled_from([80, 100, 111]))}
    wish = claim(
        draw(st.sampled_from(LEAVES)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from([1, 2, 4, 8])),
        hold=draw(st.sampled_from([0, ENTITLED // 100, ENTITLED // 10])),
        priority=draw(st.integers(0, 3)),
    )
    return snapshot(nodes, attempts, {**families, **ratios}, parents=PART), wish


@given(clusters())
@settings(max_examples=400, deadline=None)
def test_whatever_the_cluster_a_plan_keeps_its_promises(case: tuple[Snapshot, Claim]) -> None:
    seen, wish = case
    decision = judge(seen, wish, POLICY)
    mirrored = seen._replace(attempts=seen.attempts[::-1], nodes=seen.nodes[::-1])
    assert judge(mirrored, wish, POLICY)[:2] == decision[:2], "the order of what is loaded changes nothing"
    if isinstance(decision, Infeasible):
        return
    gone = {victim.attempt.attempt for victim in decision.victims}
    stay = [each for each in seen.attempts if each.attempt not in gone and not each.leaving]
    heard = {each.node: each.healthy for each in seen.nodes if each.heard}
    for where, replicas in decision.placement:
        held = sum(gpus for each in stay for name, gpus in each.held if name == where)
        assert held + replicas * wish.gpus_per_replica <= heard[where], "the claimant fits, node by node"
    for victim in decision.victims:
        it = victim.attempt
        assert it.budget is None or (it.protected_until_ms is not None and it.protected_until_ms <= NOW_MS)
        assert not it.leaving
        assert it.budget != wish.budget or it.priority < wish.priority
        assert {name for name, _ in it.held} <= heard.keys(), "nobody on a silent node"
        others = [each for each in seen.attempts if each.attempt not in gone or each.attempt == it.attempt]
        staying = [each if each.attempt == it.attempt else each._replace(budget=wish.budget, priority=99) for each in others]
        leaner = seen._replace(
            attempts=tuple(each._replace(protected_until_ms=NOW_MS + 1, budget=each.budget or "nlp") for each in staying)
        )
        assert isinstance(judge(leaner, wish, POLICY), Infeasible), "no victim can be given back"


@given(clusters())
@settings(max_examples=300, deadline=None)
def test_no_two_leaves_evict_each_other_at_one_revision(case: tuple[Snapshot, Claim]) -> None:
    seen, wish = case
    one, other = wish.budget, next(leaf for leaf in LEAVES if leaf != wish.budget)
    wins = []
    for ours, theirs in ((one, other), (other, one)):
        only = snapshot(ONE, [attempt("v", theirs, {"n1": 8})], {}, parents=PART)._replace(
            standings=seen.standings, paths=seen.paths
        )
        wins.append(isinstance(judge(only, wish._replace(budget=ours, replicas=1, gpus_per_replica=8), POLICY), Planned))
    assert wins != [True, True]
