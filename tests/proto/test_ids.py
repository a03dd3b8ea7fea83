"""Names and ids: what may be a token of a subject."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.ids import ENTROPY_BYTES, ID_LENGTH, is_id, is_name, make_id

LATEST = 2**48 - 1
instants = st.one_of(st.sampled_from([0, 1, LATEST - 1, LATEST]), st.integers(0, LATEST))
entropies = st.one_of(st.sampled_from([bytes(10), b"\xff" * 10]), st.binary(min_size=10, max_size=10))


@given(instants, entropies)
def test_an_id_has_its_form(now_ms: int, entropy: bytes) -> None:
    made = make_id(now_ms, entropy)
    assert is_id(made)
    assert is_name(made)
    assert len(made) == ID_LENGTH


@given(instants, entropies, instants, entropies)
def test_ids_sort_by_time_then_chance(first_ms: int, first: bytes, second_ms: int, second: bytes) -> None:
    ours, theirs = make_id(first_ms, first), make_id(second_ms, second)
    assert (ours < theirs) == ((first_ms, first) < (second_ms, second))


@pytest.mark.parametrize(
    ("now_ms", "entropy"), [(-1, bytes(10)), (LATEST + 1, bytes(10)), (0, bytes(ENTROPY_BYTES - 1)), (0, bytes(11))]
)
def test_an_id_is_not_made_of_what_does_not_fit(now_ms: int, entropy: bytes) -> None:
    with pytest.raises(ValueError, match=r"does not fit 48 bits|random bytes"):
        make_id(now_ms, entropy)


@pytest.mark.parametrize("text", ["a", "0", "a-b", "a_b", "x" * 63, "c1-n001"])
def test_a_name(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize("text", ["", "-", "a-", "-a", "_a", "x" * 64, "A", "a.b", "a b", "a\n", "a*", ">", "ä", "\u0661", "a\x00"])
def test_no_name(text: str) -> None:
    assert not is_name(text)


@pytest.mark.parametrize("text", ["", "8" + "0" * 25, "0" * 25, "0" * 27, "0" * 25 + "i", "0" * 25 + "A", "0" * 26 + "\n"])
def test_no_id(text: str) -> None:
    assert not is_id(text)
