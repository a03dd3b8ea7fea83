"""Who comes first, and who may displace whom: contract §4 and §7."""

import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.order import DEFAULT_MARGIN_PPM, Path, largest_hold, leaf_key, may_displace
from allmende.proto.standing import Ratio, Standing
from allmende.proto.units import LARGEST_AMOUNT, PPM_WHOLE

# Uneven on purpose: leaves on levels 2, 3 and 4.
PATHS: tuple[Path, ...] = (
    ("lab", "vision", "detection"),
    ("lab", "vision", "tracking", "fast"),
    ("lab", "vision", "tracking", "slow"),
    ("lab", "language", "base"),
    ("lab", "language", "tuning"),
    ("lab", "misc"),
)
LEAVES = st.sampled_from(PATHS)
BUDGETS = sorted({step for path in PATHS for step in path})

# Around the edge: ratio 1 and one GPU-ms beside it, ratio 0, no entitlement, and equals.
edges = st.sampled_from([(99, 100), (100, 100), (101, 100), (0, 100), (0, 0), (5, 0), (198, 200), (200, 200), (1, 1), (150, 100)])
standings_of_all = st.fixed_dictionaries(
    {
        budget: st.one_of(edges, st.tuples(st.integers(0, 300), st.integers(0, 200))).map(lambda pair: Standing(*pair))
        for budget in BUDGETS
    }
)
Standings = Mapping[str, Standing]


def order(standings: Standings, paths: Sequence[Path] = PATHS) -> list[str]:
    """The leaves in the order of their keys."""
    return [path[-1] for path in sorted(paths, key=lambda path: leaf_key(path, standings))]


def even(**used: int) -> dict[str, Standing]:
    """Standings of 100 GPU-ms entitlement each; whoever is not named has used as much."""
    return {budget: Standing(used.get(budget, 100), 100) for budget in BUDGETS}


CASES: dict[str, tuple[dict[str, Standing], list[str]]] = {
    "who is owed most comes first, whatever its family has had": (
        even(vision=900, detection=10, language=10, base=50, misc=90, fast=120),
        # Surplus: tuning's language stands at 0.1; fast at 1.2 behind slow at 1.
        ["detection", "base", "misc", "tuning", "slow", "fast"],
    ),
    "at exactly 1 a leaf is no longer guaranteed": (
        even(base=99, tuning=100, detection=100, misc=100, language=500),
        ["base", "misc", "detection", "fast", "slow", "tuning"],
    ),
    "surplus is compared at the children of the lowest common ancestor": (
        even(vision=110, language=120, misc=130, detection=900, tracking=101, fast=400, slow=300, base=100, tuning=101),
        ["slow", "fast", "detection", "base", "tuning", "misc"],
    ),
    "of equal ratios the larger shortfall comes first": (
        {**even(), "misc": Standing(50, 100), "base": Standing(500, 1_000)},
        ["base", "misc", "tuning", "detection", "fast", "slow"],
    ),
    "without entitlement a leaf is last of its family, though it has used nothing": (
        {**even(), "base": Standing(0, 0)},
        ["tuning", "base", "misc", "detection", "fast", "slow"],
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_the_leaves_are_ordered(sentence: str) -> None:
    standings, expected = CASES[sentence]
    assert order(standings) == expected


@given(standings_of_all, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_arrival(standings: Standings, chance: random.Random) -> None:
    shuffled = list(PATHS)
    chance.shuffle(shuffled)
    assert order(standings, shuffled) == order(standings)


@given(standings_of_all)
def test_the_order_is_strict_and_transitive(standings: Standings) -> None:
    keys = {path: leaf_key(path, standings) for path in PATHS}
    for ours, theirs in permutations(PATHS, 2):
        assert (keys[ours] < keys[theirs]) != (keys[theirs] < keys[ours])
    for first, second, third in permutations(PATHS, 3):
        if keys[first] < keys[second] < keys[third]:
            assert keys[first] < keys[third]


def _exact(standing: Standing) -> tuple[bool, Fraction]:
    return (standing.entitlement == 0, Fraction(standing.used, standing.entitlement or 1) if standing.entitlement else Fraction(0))


def _fair_tree(standings: Standings, at: str, depth: int, paths: Sequence[Path]) -> list[str]:
    """Slurm's Fair Tree by its own description: sort the children of a node, then walk into each in turn."""
    below = sorted(
        {path[depth] for path in paths if len(path) > depth and path[depth - 1] == at},
        key=lambda budget: (*_exact(standings[budget]), standings[budget].used - standings[budget].entitlement, budget),
    )
    found = []
    for child in below:
        inside = [path for path in paths if len(path) > depth and path[depth] == child]
        found += [child] if inside[0][-1] == child else _fair_tree(standings, child, depth + 1, inside)
    return found


@given(standings_of_all)
def test_among_surplus_leaves_the_order_is_that_of_fair_tree(standings: Standings) -> None:
    surplus = [path for path in PATHS if not standings[path[-1]].guaranteed]
    assert order(standings, surplus) == _fair_tree(standings, "lab", 1, surplus)


@given(standings_of_all)
def test_guaranteed_leaves_come_first_ordered_by_their_own_ratio(standings: Standings) -> None:
    ordered = order(standings)
    guaranteed = [leaf for leaf in ordered if standings[leaf].guaranteed]
    assert ordered[: len(guaranteed)] == guaranteed
    exact = [Fraction(*standings[leaf]) for leaf in guaranteed]
    assert exact == sorted(exact)


def test_a_leaf_without_a_standing_is_not_guessed() -> None:
    with pytest.raises(KeyError):
        leaf_key(PATHS[0], {})
    with pytest.raises(KeyError):
        may_displace(PATHS[0], 1, PATHS[1], {})


def test_an_organisation_of_one_budget_has_an_order() -> None:
    assert leaf_key(("lab",), {"lab": Standing(5, 1)}) == leaf_key(("lab",), {"lab": Standing(5, 1)})


# ---------------------------------------------------------------------------------------------------------------- displacing


holds = st.sampled_from([0, 1, 10, 100])
margins = st.sampled_from([0, 1, DEFAULT_MARGIN_PPM, PPM_WHOLE])


@given(standings_of_all, LEAVES, LEAVES, holds, holds, margins)
def test_no_two_leaves_may_displace_each_other(
    standings: Standings, ours: Path, theirs: Path, our_hold: int, their_hold: int, margin_ppm: int
) -> None:
    there = may_displace(ours, our_hold, theirs, standings, margin_ppm)
    back = may_displace(theirs, their_hold, ours, standings, margin_ppm)
    assert not (there.allowed and back.allowed)


@given(standings_of_all, LEAVES, LEAVES, holds, margins)
def test_whoever_may_displace_also_comes_first(standings: Standings, ours: Path, theirs: Path, hold: int, margin_ppm: int) -> None:
    if may_displace(ours, hold, theirs, standings, margin_ppm).allowed:
        assert leaf_key(ours, standings) < leaf_key(theirs, standings)


@given(standings_of_all, LEAVES, LEAVES, holds, margins)
def test_the_answer_names_the_numbers_it_was_made_of(
    standings: Standings, ours: Path, theirs: Path, hold: int, margin_ppm: int
) -> None:
    found = may_displace(ours, hold, theirs, standings, margin_ppm)
    assert found.claimant_after == standings[found.claimant_budget].after(hold)
    assert found.victim_before == standings[found.victim_budget]
    assert found.claimant_budget in ours
    assert found.victim_budget in theirs
    if found.allowed:
        assert found.claimant_after.ratio.plus(found.margin_ppm) < found.victim_before.ratio


@given(standings_of_all, LEAVES, holds, margins)
def test_inside_one_leaf_standings_decide_nothing(standings: Standings, leaf: Path, hold: int, margin_ppm: int) -> None:
    assert not may_displace(leaf, hold, leaf, standings, margin_ppm).allowed


@given(standings_of_all, LEAVES, LEAVES, margins, st.integers(-2, 2), holds)
def test_the_largest_hold_is_the_last_one_that_is_allowed(
    standings: Standings, ours: Path, theirs: Path, margin_ppm: int, around: int, anywhere: int
) -> None:
    most = largest_hold(ours, theirs, standings, margin_ppm)
    # No hold is above the largest amount, which also says "any".
    for hold in (min(max(0, most + around), LARGEST_AMOUNT), anywhere):
        assert may_displace(ours, hold, theirs, standings, margin_ppm).allowed is (hold <= most)


BASE, MISC, DETECTION, FAST, SLOW = PATHS[3], PATHS[5], PATHS[0], PATHS[1], PATHS[2]
# claimant, its hold, victim, standings, allowed
DISPLACING: dict[str, tuple[Path, int, Path, dict[str, Standing], bool]] = {
    "the margin's edge: 0.5 + 0.1 is not below 0.6": (BASE, 10, MISC, even(base=40, misc=60), False),
    "one GPU-ms beyond the edge": (BASE, 10, MISC, even(base=40, misc=61), True),
    "the hold counts before the comparison": (BASE, 61, MISC, even(base=0, misc=71), False),
    "guaranteed against surplus is leaf against leaf": (BASE, 10, MISC, even(base=40, misc=130, language=900), True),
    "a surplus claimant never displaces a guaranteed leaf": (BASE, 0, MISC, even(base=100, language=0, misc=99), False),
    "surplus against surplus at the children of the lowest common ancestor": (
        BASE,
        0,
        DETECTION,
        even(base=900, language=10, detection=100, vision=130),
        True,
    ),
    "a satisfied programme does not displace another's surplus": (
        BASE,
        0,
        DETECTION,
        even(base=100, language=130, detection=900, vision=100),
        False,
    ),
    "brothers are compared themselves": (FAST, 0, SLOW, even(fast=100, slow=111), True),
    "a claimant without entitlement displaces nobody": (
        BASE,
        0,
        MISC,
        {**even(misc=900), "base": Standing(0, 0), "language": Standing(0, 0)},
        False,
    ),
    "a victim without entitlement is displaced by whoever has some": (
        BASE,
        0,
        MISC,
        {**even(base=0), "misc": Standing(0, 0)},
        True,
    ),
}


@pytest.mark.parametrize("sentence", DISPLACING)
def test_displacing(sentence: str) -> None:
    claimant, hold, victim, standings, allowed = DISPLACING[sentence]
    assert may_displace(claimant, hold, victim, standings).allowed is allowed


def test_the_default_margin_is_a_tenth() -> None:
    assert Ratio(0, 1).plus(DEFAULT_MARGIN_PPM) == Ratio(1, 10)
