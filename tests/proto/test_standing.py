"""Ratios and standings: exact, totally ordered, and without entitlement last."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.standing import Ratio, Standing, with_holds
from allmende.proto.units import LARGEST_AMOUNT, PPM_WHOLE

EDGES = [0, 1, 2, PPM_WHOLE - 1, PPM_WHOLE, PPM_WHOLE + 1, LARGEST_AMOUNT - 1, LARGEST_AMOUNT]
amounts = st.one_of(st.sampled_from(EDGES), st.integers(0, 5), st.integers(0, LARGEST_AMOUNT))
ratios = st.builds(Ratio, amounts, amounts)
INFINITE = None


def exact(ratio: Ratio) -> Fraction | None:
    """The same number by other means; None is beyond every number."""
    return Fraction(ratio.used, ratio.entitlement) if ratio.entitlement else INFINITE


@given(ratios, ratios)
def test_comparison_is_that_of_fractions(first: Ratio, second: Ratio) -> None:
    ours, theirs = exact(first), exact(second)
    if ours is None or theirs is None:
        assert (first < second) == (ours is not None and theirs is None)
        assert (first == second) == (ours is theirs)
    else:
        assert (first < second) == (ours < theirs)
        assert (first == second) == (ours == theirs)


@given(ratios, ratios, ratios)
def test_the_order_is_total(first: Ratio, second: Ratio, third: Ratio) -> None:
    assert [first < second, first == second, first > second].count(True) == 1
    assert not (first <= second <= third) or first <= third
    assert first == Ratio(first.used, first.entitlement)


@given(amounts, amounts)
def test_zero_entitlement_sorts_last_even_unused(used: int, entitlement: int) -> None:
    nothing = Ratio(used, 0)
    assert nothing == Ratio(0, 0)
    assert (Ratio(used, entitlement) < nothing) == (entitlement > 0)
    assert not nothing < Ratio(LARGEST_AMOUNT, 1)


@given(ratios, st.sampled_from([0, 1, 100_000, PPM_WHOLE]))
def test_a_margin_is_added_exactly(ratio: Ratio, margin_ppm: int) -> None:
    before, after = exact(ratio), exact(ratio.plus(margin_ppm))
    assert after == (None if before is None else before + Fraction(margin_ppm, PPM_WHOLE))


@pytest.mark.parametrize(("used", "entitlement"), [(-1, 1), (1, -1)])
def test_negative_amounts_have_no_ratio(used: int, entitlement: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        Ratio(used, entitlement)


def test_a_ratio_is_no_key() -> None:
    with pytest.raises(TypeError):
        hash(Ratio(1, 2))
    assert Ratio(1, 2) != 0.5


@pytest.mark.parametrize(("used", "guaranteed", "shortfall"), [(99, True, 1), (100, False, 0), (101, False, -1)])
def test_a_leaf_is_guaranteed_below_one_and_not_at_one(used: int, guaranteed: bool, shortfall: int) -> None:
    standing = Standing(used, 100)
    assert standing.guaranteed is guaranteed
    assert standing.shortfall == shortfall
    assert standing.ratio == Ratio(used, 100)


def test_without_entitlement_nobody_is_guaranteed() -> None:
    assert not Standing(0, 0).guaranteed


def test_a_hold_counts_for_the_leaf_and_everything_above_it() -> None:
    before = {"lab": Standing(10, 100), "a": Standing(5, 50), "x": Standing(1, 20), "b": Standing(0, 50)}
    after = with_holds(before, [(("lab", "a", "x"), 7), (("lab", "b"), 1), (("lab", "gone"), 2)])
    assert after == {"lab": Standing(20, 100), "a": Standing(12, 50), "x": Standing(8, 20), "b": Standing(1, 50)}
    assert before["lab"] == Standing(10, 100)
    assert "gone" not in after
