"""Public bug reports about eviction, as scenarios with the right outcome. Named by their number in bug_scenarios.jsonl.

Of the area `preemption`, BR-022 is admission's: it counts evictions apart from failures. Where our contract decides otherwise than
the scenario, the docstring says so.
"""

from collections.abc import Mapping

from allmende.preemptor.model import Attempt, Claim, Infeasible, Planned, Snapshot
from allmende.preemptor.rules.judge import carried_on, judge
from allmende.proto.standing import Standing
from tests.preemptor.builders import NOW_MS, POLICY, attempt, claim, node, snapshot

HOUR = 3_600_000


def owed(gpus: int, entitled: int) -> Standing:
    """A leaf that has held `gpus` of the `entitled` all along."""
    return Standing(gpus * HOUR, entitled * HOUR)


def evicted(seen: Snapshot, wish: Claim) -> set[str]:
    decision = judge(seen, wish, POLICY)
    return {it.attempt.attempt for it in decision.victims} if isinstance(decision, Planned) else set()


def one_node(total: int, attempts: list[Attempt], ratios: Mapping[str, int | Standing]) -> Snapshot:
    return snapshot([node("n1", total)], attempts, ratios)


def test_br_004_whoever_has_a_share_takes_it_back_from_whoever_has_none() -> None:
    ratios = {"z": owed(0, 10), "y": Standing(10 * HOUR, 0)}
    borrowed = one_node(10, [attempt("borrower", "y", {"n1": 10})], ratios)
    assert evicted(borrowed, claim("z", 10, 1, hold=10 * HOUR)) == {"borrower"}
    inside = one_node(10, [attempt("owner", "z", {"n1": 10})], {"z": owed(10, 10), "y": Standing(0, 0)})
    assert evicted(inside, claim("y", 10, 1, hold=10 * HOUR)) == set()


def test_br_018_evict_readmit_evict_does_not_happen() -> None:
    """The scenario lets work without a share run on; our contract lets it go once (§4: it sorts last), never back in."""
    ratios = {"a": owed(25, 15), "b": owed(0, 15), "be": Standing(5 * HOUR, 0)}
    before = one_node(30, [attempt("a1", "a", {"n1": 25}), attempt("be1", "be", {"n1": 5})], ratios)
    wish = claim("a", 5, 1, hold=5 * HOUR)
    assert evicted(before, wish) == {"be1"}
    after = one_node(30, [attempt("a1", "a", {"n1": 25}), attempt("a2", "a", {"n1": 5})], ratios | {"be": Standing(0, 0)})
    for _ in range(100):
        assert evicted(after, claim("be", 5, 1, hold=5 * HOUR)) == set()
    same_team_only = one_node(30, [attempt("a1", "a", {"n1": 25}), attempt("a3", "a", {"n1": 5})], ratios)
    assert evicted(same_team_only, wish) == set()


def test_br_019_a_surplus_claim_evicts_nobody_and_an_owed_one_takes_the_smallest() -> None:
    attempts = [
        attempt("w1", "b", {"n1": 2}),
        attempt("w2", "b", {"n1": 5}),
        attempt("w3", "b", {"n1": 6}),
        attempt("c1", "c", {"n1": 9}),
    ]
    ratios = {"a": owed(10, 10), "b": owed(13, 10), "c": owed(9, 10), "d": owed(8, 10)}
    seen = one_node(22, attempts, ratios)
    assert evicted(seen, claim("a", 4, 1, hold=4 * HOUR)) == set()
    assert evicted(seen, claim("d", 2, 1, hold=2 * HOUR)) == {"w1"}


def test_br_020_a_job_larger_than_its_owners_share_leaves_once() -> None:
    ratios = {"q1": owed(4, 3), "q2": owed(1, 5)}
    before = one_node(8, [attempt("j1", "q1", {"n1": 4}), attempt("j2", "q2", {"n1": 1})], ratios)
    assert evicted(before, claim("q2", 4, 1, hold=4 * HOUR)) == {"j1"}
    after = one_node(
        8,
        [attempt("j3", "q2", {"n1": 4}, protected_for_ms=HOUR), attempt("j2", "q2", {"n1": 1})],
        {"q1": owed(0, 3), "q2": owed(5, 5)},
    )
    for slice_over in (False, True):
        it = after.attempts[0]._replace(protected_until_ms=NOW_MS if slice_over else NOW_MS + 1)
        seen = after._replace(attempts=(it, after.attempts[1]))
        assert evicted(seen, claim("q1", 4, 1, hold=4 * HOUR)) == set(), "1.33 after the grant is not below 1"


def test_br_021_a_claim_that_cannot_start_evicts_nobody_and_one_that_can_evicts_once() -> None:
    nodes = [node(f"n{i}", model="h100") for i in range(11)]
    seen = snapshot(nodes, [attempt(f"v{i}", "over", {f"n{i}": 8}) for i in range(11)], {"p": 10, "over": 150})
    wrong = judge(seen, claim("p", model="h10", gpus=1), POLICY)
    assert isinstance(wrong, Infeasible)
    assert wrong.sentence == "no node with h10 GPUs is up and heard of"
    total: set[str] = set()
    wish = claim("p", model="h100", gpus=1)
    for number in range(20):
        decision = judge(seen, wish._replace(claim=f"{number:026d}"), POLICY)
        assert isinstance(decision, Planned)
        total |= {it.attempt.attempt for it in decision.victims}
        # Admission's time ran out and it asks again: the promise is void, the eviction is under way.
        seen = carried_on(seen, wish, decision)._replace(promised={}, standings=seen.standings)
    assert len(total) == 1


def test_br_027_the_unit_is_the_job_and_the_smallest_sufficient_set_leaves() -> None:
    rigid = attempt("v", "over", {"n1": 11})
    alone = one_node(11, [rigid], {"p": 10, "over": 190})
    assert evicted(alone, claim("p", 1, 1)) == {"v"}
    beside = snapshot([node("n1", 11), node("n2", 1)], [rigid, attempt("w", "over", {"n2": 1})], {"p": 10, "over": 190})
    assert evicted(beside, claim("p", 1, 1)) == {"w"}


def test_br_031_a_cut_share_disturbs_nobody_until_somebody_owed_needs_it() -> None:
    """The scenario takes the latest started; our contract takes what loses least, whenever it started."""
    jobs = [attempt(f"p{i}", "p", {"n1": 4}, saved_ago_ms=i * 60_000) for i in range(10)]
    seen = one_node(100, [*jobs, attempt("q", "q", {"n1": 60}, protected_for_ms=1)], {"p": owed(40, 20), "q": owed(60, 80)})
    assert evicted(seen, claim("p", 4, 1, hold=4 * HOUR)) == set()
    assert evicted(seen, claim("q", 8, 1, hold=8 * HOUR)) == {"p0", "p1"}
