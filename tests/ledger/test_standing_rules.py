"""Capacity, entitlement, charges and holds: the closed forms held against sums that take one bucket at a time."""

from fractions import Fraction
from itertools import pairwise
from math import floor

from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.ledger.model import BUCKET_MS, Level, Live, NodeStep, Share
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.entitlement import entitlements
from allmende.ledger.rules.standings import Charges, Era, Tree, Window, eras, hold_of, take, window_at
from allmende.ledger.rules.tree import on_cluster, shares_of, succeed, succeed_own
from allmende.proto.budget import Budget
from allmende.proto.units import DAY_MS, HOUR_MS
from tests.budget.builders import CLUSTERS, clustered_trees
from tests.ledger.builders import START_MS, TREE

T = START_MS
DEFINITIONS = {each.budget: each for each in TREE}


def step(node: str, at_ms: int, healthy: int, installed: int = 8) -> NodeStep:
    return NodeStep("c1", node, T + at_ms, 1, installed, healthy)


def share(
    budget: str, ppm: tuple[int, ...], from_ms: int, until_ms: int | None = None, *, path: tuple[str, ...] = (), covers: bool = True
) -> Share:
    return Share(budget, path or ("org", budget), ppm, covers, from_ms, until_ms, 1)


def test_capacity_is_the_sum_of_healthy_gpus_from_the_first_report_on() -> None:
    steps = [step("a", 10, 8), step("b", 20, 6), step("a", 30, 0)]
    assert levels(steps, T, T + 40) == (
        Level(T + 10, T + 20, 8, 8),
        Level(T + 20, T + 30, 16, 14),
        Level(T + 30, T + 40, 16, 6),
    )


def test_a_report_from_before_the_window_holds_in_it() -> None:
    assert levels([step("a", -1_000, 8)], T, T + 40) == (Level(T, T + 40, 8, 8),)


def test_reports_that_change_nothing_make_no_new_level() -> None:
    assert levels([step("a", 0, 8), step("a", 5, 8), step("b", 40, 8)], T, T + 40) == (Level(T, T + 40, 8, 8),)


EDGES = st.builds(lambda buckets, off: buckets * BUCKET_MS + off, st.integers(0, 12), st.sampled_from([-1, 0, 1, 7_777]))


@st.composite
def cut(draw: st.DrawFn, values: st.SearchStrategy[int]) -> list[tuple[int, int, int]]:
    """Pieces (from, to, value) that follow one another, with edges around those of buckets."""
    edges = sorted({max(0, each) for each in draw(st.lists(EDGES, min_size=2, max_size=6))})
    return [(T + a, T + b, draw(values)) for a, b in pairwise(edges)]


@given(cut(st.integers(0, 1_024)), cut(st.integers(0, 1_000_000)), EDGES, EDGES)
@settings(max_examples=200, deadline=None)
def test_entitlement_is_that_of_every_bucket_floored(
    capacity: list[tuple[int, int, int]], shares: list[tuple[int, int, int]], begin: int, end: int
) -> None:
    from_ms, to_ms = T + min(begin, end), T + max(begin, end)
    known = [Level(a, b, gpus, gpus) for a, b, gpus in capacity]
    history = {"x": [share("x", (ppm, 333_333), a, b) for a, b, ppm in shares]}
    owed = 0
    for a, b, ppm in shares:
        for bucket_ms in range(T - BUCKET_MS, T + 14 * BUCKET_MS, BUCKET_MS):
            amount = 0
            for c, d, gpus in capacity:
                amount += gpus * max(0, min(b, d, to_ms, bucket_ms + BUCKET_MS) - max(a, c, from_ms, bucket_ms))
            owed += floor(Fraction(amount * ppm * 333_333, 10**12))
    assert entitlements(history, known, from_ms, to_ms) == {"x": owed}


def test_the_cost_of_a_quiet_week_is_not_its_length() -> None:
    history = {"x": [share("x", (350_000,), T)]}
    week = [Level(T, T + 7 * DAY_MS, 88, 88)]
    assert entitlements(history, week, T, T + 7 * DAY_MS) == {"x": 2_016 * (88 * BUCKET_MS * 35 // 100)}


def test_the_window_is_whole_buckets_and_the_current_one() -> None:
    assert window_at(T + 7_000, 7 * DAY_MS) == Window(T - 7 * DAY_MS, T + 7_000)


def tree_at(from_ms: int = T) -> Tree:
    return Tree(1, list(shares_of(DEFINITIONS, 1, from_ms).values()))


def test_charges_and_holds_count_on_every_level_and_unallocated_nowhere() -> None:
    window = Window(T, T + HOUR_MS)
    live = [Live("nlp", 4, 2, HOUR_MS, 600_000, 100_000), Live(None, 8, 1, 0, 500_000, 100_000)]
    charges = [Charges(era, {"nlp": 1_000, "vision": 500}) for era in eras(tree_at().shares, window)]
    taken = take(tree_at(), charges, live, [Level(T, T + HOUR_MS, 88, 80)], window, 8 * HOUR_MS)
    assert taken is not None
    found = {each.budget: each for each in taken.accounts}
    assert {name: each.charged_gpu_ms for name, each in found.items()} == {
        "nlp": 401_000,
        "rl": 0,
        "research": 401_000,
        "vision": 500,
        "org": 401_500,
    }
    hold = 4 * (2 * HOUR_MS - 600_000)
    assert {name: each.held_gpu_ms for name, each in found.items()} == {
        "nlp": hold,
        "rl": 0,
        "research": hold,
        "vision": 0,
        "org": hold,
    }
    assert found["nlp"].entitlement_gpu_ms == 80 * 8 * HOUR_MS * 2 // 10, "the floor: 8 h of 20 % of what is available now"


def test_a_hold_is_what_is_left_of_the_slice_and_never_below_nothing() -> None:
    assert hold_of(Live("x", 8, 1, HOUR_MS, 0, 0)) == 8 * HOUR_MS
    assert hold_of(Live("x", 8, 1, HOUR_MS, HOUR_MS - 1, 0)) == 8
    assert hold_of(Live("x", 8, 1, HOUR_MS, HOUR_MS + 1, 0)) == 0


def test_unknown_is_not_zero() -> None:
    window = Window(T, T + HOUR_MS)
    level = [Level(T, T + HOUR_MS, 8, 8)]
    assert take(Tree(None, []), [], [], level, window, HOUR_MS) is None
    assert take(tree_at(), [], [], [], window, HOUR_MS) is None


def test_a_moved_budget_leaves_its_charges_where_they_arose() -> None:
    moved = dict(DEFINITIONS) | {"nlp": Budget(budget="nlp", parent="vision", share_ppm=500_000)}
    moved_ms = T + 2 * BUCKET_MS + 1
    before = shares_of(DEFINITIONS, 1, T)
    change = succeed(before, moved, 2, moved_ms)
    shares = [each._replace(until_ms=moved_ms) if name in change.ended else each for name, each in before.items()] + list(
        change.begun
    )
    window = Window(T, T + 5 * BUCKET_MS)
    found = eras(shares, window)
    assert [(era.from_ms - T, era.to_ms - T) for era in found] == [(0, 3 * BUCKET_MS), (3 * BUCKET_MS, 6 * BUCKET_MS)]
    charges = [Charges(found[0], {"nlp": 1_000}), Charges(found[1], {"nlp": 10})]
    taken = take(Tree(2, shares), charges, [], [Level(T, T + 5 * BUCKET_MS, 8, 8)], window, 0)
    assert taken is not None
    assert {each.budget: each.charged_gpu_ms for each in taken.accounts} == {
        "nlp": 1_010,
        "research": 1_000,
        "vision": 10,
        "rl": 0,
        "org": 1_010,
    }


def test_usage_before_the_first_tree_goes_along_its_first_path() -> None:
    (era,) = eras(tree_at(T + BUCKET_MS + 5).shares, Window(T, T + 2 * BUCKET_MS))
    assert era == Era(T, T + 3 * BUCKET_MS, {name: each.path for name, each in shares_of(DEFINITIONS, 1, T).items()})


def test_an_unset_leaf_covers_nothing_and_an_unset_parent_is_transparent() -> None:
    budgets = {
        "org": Budget(budget="org"),
        "free": Budget(budget="free", parent="org"),
        "group": Budget(budget="group", parent="org"),
        "team": Budget(budget="team", parent="group", share_ppm=250_000),
        "none": Budget(budget="none", parent="group", share_ppm=0),
    }
    found = shares_of(budgets, 1, T)
    owed = entitlements({name: [each] for name, each in found.items()}, [Level(T, T + BUCKET_MS, 8, 8)], T, T + BUCKET_MS)
    whole = 8 * BUCKET_MS
    assert owed == {"org": whole, "free": 0, "group": whole, "team": whole // 4, "none": 0}


def test_a_revision_that_changes_one_share_ends_only_those_below_it() -> None:
    other = dict(DEFINITIONS) | {"research": Budget(budget="research", parent="org", share_ppm=300_000)}
    change = succeed(shares_of(DEFINITIONS, 1, T), other, 2, T + 5)
    assert change.ended == ("nlp", "research", "rl")
    assert {each.budget: (each.ppm, each.from_ms) for each in change.begun} == {
        "research": ((300_000,), T + 5),
        "nlp": ((300_000, 500_000), T + 5),
        "rl": ((300_000, 500_000), T + 5),
    }


@given(st.lists(st.tuples(clustered_trees(), st.integers(0, 2)), min_size=1, max_size=4))
def test_the_history_of_a_cluster_is_at_every_instant_what_the_tree_in_force_says_of_it(
    said: list[tuple[tuple[Budget, ...], int]],
) -> None:
    history: dict[str, list[Share]] = {}
    at_ms, in_force = T, []
    for revision, (rows, later) in enumerate(said):
        at_ms += later
        definitions = {row.budget: row for row in rows}
        in_force = [*((t, d) for t, d in in_force if t < at_ms), (at_ms, definitions)]
        for cluster in ("", *CLUSTERS):
            shares = history.setdefault(cluster, [])
            before = {each.budget: each for each in shares if each.until_ms is None}
            change = (succeed_own if cluster else succeed)(before, definitions, revision, at_ms, cluster)
            ended = [
                each._replace(until_ms=at_ms) if each is before.get(each.budget) and each.budget in change.ended else each
                for each in shares
            ]
            history[cluster] = [each for each in ended if each.until_ms != each.from_ms] + list(change.begun)
    for cluster in (*CLUSTERS, "elsewhere"):
        found = on_cluster(history[""], history.get(cluster, []))
        for since_ms, definitions in in_force:
            held = [each for each in found if each.holds_at(since_ms)]
            expected = shares_of(definitions, 0, since_ms, cluster)
            assert sorted(each[:4] for each in held) == sorted(each[:4] for each in expected.values())
