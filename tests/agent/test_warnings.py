"""When a warning before the end of a protection is due (decision 0041): a table, and what every history of looks has in common."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.agent.sdk.warnings import WARNINGS_MS, Warned, text_of, warning_due
from allmende.proto.units import HOUR_MS, MINUTE_MS

TEN, TWO = 10 * MINUTE_MS, 2 * MINUTE_MS


@pytest.mark.parametrize(
    ("sentence", "protected_ms", "held_ms", "expected"),
    [
        ("not a millisecond too early", HOUR_MS, HOUR_MS - TEN - 1, None),
        ("ten minutes before", HOUR_MS, HOUR_MS - TEN, TEN),
        ("until the next", HOUR_MS, HOUR_MS - TWO - 1, TEN),
        ("two minutes before", HOUR_MS, HOUR_MS - TWO, TWO),
        ("and it stays when the protection has ended", HOUR_MS, 2 * HOUR_MS, TWO),
        ("who looks late sees the latest only", HOUR_MS, HOUR_MS, TWO),
        ("a slice of ten minutes does without the first", TEN, 0, None),
        ("and has the second", TEN, TEN - TWO, TWO),
        ("a slice of two minutes has none", TWO, TWO, None),
        ("a millisecond longer, it comes at once after the start", TWO + 1, 1, TWO),
        ("unallocated, nothing ends", 0, HOUR_MS, None),
        ("a protection that was extended takes the warning back", 2 * HOUR_MS, HOUR_MS - TWO, None),
    ],
)
def test_which_warning_is_due(sentence: str, protected_ms: int, held_ms: int, expected: int | None) -> None:
    warned = warning_due(protected_ms, held_ms)
    assert (warned and warned.warning_ms) == expected, sentence


@given(
    protected=st.builds(lambda edge, off: max(0, edge + off), st.sampled_from([0, TWO, TEN, HOUR_MS]), st.integers(-2, 2)),
    data=st.data(),
)
def test_warnings_come_in_order_and_never_early(protected: int, data: st.DataObject) -> None:
    edges = st.builds(lambda edge, off: max(0, protected - edge + off), st.sampled_from([0, TWO, TEN]), st.integers(-2, 2))
    said = [(held, warning_due(protected, held)) for held in sorted(data.draw(st.lists(edges, max_size=8)))]
    due = [(held, warned) for held, warned in said if warned is not None]
    assert all(protected - held <= warned.warning_ms < protected for held, warned in due)
    assert [warned.warning_ms for _held, warned in due] == sorted((warned.warning_ms for _held, warned in due), reverse=True)
    assert all(warned is not None for held, warned in said if protected > min(WARNINGS_MS) and protected - held <= min(WARNINGS_MS))


def test_the_file_is_one_line_that_reads_as_it_was_written() -> None:
    warned = warning_due(HOUR_MS, HOUR_MS - TEN)
    assert warned is not None
    assert "1h after the start, at most 10m from now on" in warned.sentence
    text = text_of(warned)
    assert text.count(b"\n") == 1
    assert msgspec.json.decode(text, type=Warned) == warned
