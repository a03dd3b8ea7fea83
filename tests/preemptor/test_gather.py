"""When an attempt leaves nodes that are gathered for somebody else: after its slice, at its last save in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.preemptor.rules.gather import leaves_at_ms

# protected until, last save, pace, the order -> leaves
ROWS: dict[str, tuple[int, int | None, int | None, int, int]] = {
    "at the last save before the order": (100, 90, 30, 200, 180),
    "a save at the instant of the order is in time": (100, 80, 30, 200, 200),
    "never inside its slice: where the last save comes before its end, at its end": (195, 90, 30, 200, 195),
    "a slice that ends after the order is kept": (250, 90, 30, 200, 250),
    "a save that is already past and the next too late: as soon as the slice is over": (100, 90, 500, 200, 100),
    "who has shown no pace stays until the order": (100, 90, None, 200, 200),
    "who has never saved stays until the order": (100, None, 30, 200, 200),
    "and to the end of his slice, if that is later": (250, None, None, 200, 250),
    "a save after the order counts for nothing: the slice's end": (100, 220, 30, 200, 220),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_when_it_leaves(sentence: str) -> None:
    *given_, expected = ROWS[sentence]
    assert leaves_at_ms(*given_) == expected  # type: ignore[arg-type]


near = st.integers(0, 60)


@given(near, near, st.integers(1, 60), near)
def test_it_never_leaves_inside_its_slice_and_loses_least_of_all_instants_up_to_the_order(
    protected_ms: int, saved_ms: int, every_ms: int, order_ms: int
) -> None:
    leaves_ms = leaves_at_ms(protected_ms, saved_ms, every_ms, order_ms)
    assert leaves_ms >= protected_ms
    if saved_ms <= order_ms and protected_ms <= order_ms:
        assert leaves_ms <= order_ms

        def lost(at_ms: int) -> int:
            return (at_ms - saved_ms) % every_ms if at_ms >= saved_ms else at_ms

        in_time = range(max(protected_ms, saved_ms), order_ms + 1)
        saves = [at_ms for at_ms in in_time if lost(at_ms) == 0]
        if saves:
            assert leaves_ms == saves[-1], "the longest it may stay without losing anything"
        else:
            assert lost(leaves_ms) == min(map(lost, in_time), default=lost(leaves_ms))
