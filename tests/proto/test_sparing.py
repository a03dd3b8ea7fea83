"""Who is spared because he has not saved his work lately: decision 0015, the rule that admission and preemptor share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.order import spared, unspared_from
from allmende.proto.units import HOUR_MS, LARGEST_AMOUNT, MINUTE_MS, PPM_WHOLE

# A claimant that holds 8 GPUs for an hour, a victim on 8 GPUs with a slice of an hour, 3 % may be lost: 14.4 GPU-minutes.
HOLD = COURTESY = 8 * HOUR_MS
WASTE = 30_000
LIMIT = HOLD * WASTE // PPM_WHOLE

# lost, courtesy, hold, waste -> spared
ROWS: dict[str, tuple[int, int, int, int, bool]] = {
    "who has just saved leaves": (0, COURTESY, HOLD, WASTE, False),
    "who would lose as much as may be lost leaves": (LIMIT, COURTESY, HOLD, WASTE, False),
    "who would lose a GPU-millisecond more is spared": (LIMIT + 1, COURTESY, HOLD, WASTE, True),
    "who has saved nothing for as long as his slice is still spared": (COURTESY, COURTESY, HOLD, WASTE, True),
    "who has saved nothing for longer is spared no more": (COURTESY + 1, COURTESY, HOLD, WASTE, False),
    "without a slice there is no courtesy": (1, 0, HOLD, WASTE, False),
    "a claimant that gains nothing is not worth any loss": (1, COURTESY, 0, WASTE, True),
    "where any loss is allowed nobody is spared": (COURTESY, COURTESY, HOLD, 0, False),
    "a larger claimant is worth a larger loss": (LIMIT + 1, COURTESY, 2 * HOLD, WASTE, False),
    "amounts as large as there are do not overflow": (LARGEST_AMOUNT, LARGEST_AMOUNT, LARGEST_AMOUNT, PPM_WHOLE - 1, True),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_sparing(sentence: str) -> None:
    lost, courtesy, hold, waste_ppm, expected = ROWS[sentence]
    assert spared(lost, courtesy, hold, waste_ppm) is expected


around = st.integers(-2, 2)
wastes = st.sampled_from([1, WASTE, PPM_WHOLE])


@given(wastes, st.integers(1, 50), st.integers(0, 50), around)
def test_what_may_be_lost_grows_with_the_claimant_and_with_what_is_allowed(
    waste_ppm: int, hold: int, courtesy: int, by: int
) -> None:
    hold, courtesy = hold * MINUTE_MS, courtesy * MINUTE_MS
    lost = max(0, hold * waste_ppm // PPM_WHOLE + by)
    if not spared(lost, courtesy, hold, waste_ppm):
        assert not spared(lost, courtesy, hold + 1, waste_ppm)
        assert not spared(lost, courtesy, hold, waste_ppm + 1)
    elif lost < courtesy:
        assert spared(lost + 1, courtesy, hold, waste_ppm), "within the courtesy more unsaved work never makes it easier to evict"


@given(wastes, st.integers(1, 10), st.integers(1, 10), st.integers(0, 10))
def test_whoever_saves_once_in_each_slice_can_be_evicted_right_after_a_save_and_only_until_too_much_is_unsaved(
    waste_ppm: int, slice_minutes: int, hold_minutes: int, since_minutes: int
) -> None:
    gpus = 4
    courtesy, hold = slice_minutes * MINUTE_MS * gpus, hold_minutes * MINUTE_MS * gpus
    assert not spared(0, courtesy, hold, waste_ppm)
    lost = min(since_minutes, slice_minutes) * MINUTE_MS * gpus
    if not spared(lost, courtesy, hold, waste_ppm):
        assert lost * PPM_WHOLE <= hold * waste_ppm, "he loses no more than the claimant is worth"


@given(st.sampled_from([0, 1, WASTE, PPM_WHOLE]), st.integers(0, 1_000), st.integers(0, 1_000), around)
def test_from_one_hold_on_an_attempt_is_spared_no_more(waste_ppm: int, lost: int, courtesy: int, by: int) -> None:
    least = unspared_from(lost, courtesy, waste_ppm)
    hold = max(0, least + by)
    assert spared(lost, courtesy, hold, waste_ppm) is (hold < least)
