"""Durations and shares as people write them: exact, and nothing ambiguous is guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto.units import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    PPM_WHOLE,
    SECOND_MS,
    format_duration,
    format_share,
    parse_duration,
    parse_share,
)


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("90s", 90 * SECOND_MS),
        ("30m", 30 * MINUTE_MS),
        ("8h", 8 * HOUR_MS),
        ("1d12h", 36 * HOUR_MS),
        ("1d2h3m4s", DAY_MS + 2 * HOUR_MS + 3 * MINUTE_MS + 4 * SECOND_MS),
        ("90m", 90 * MINUTE_MS),
    ],
)
def test_a_duration_is_read(text: str, length_ms: int) -> None:
    assert parse_duration(text) == length_ms


@pytest.mark.parametrize(
    "text", ["", "30", "h", "-1h", "1.5h", "1h ", " 1h", "1h\n", "1m1h", "1h1h", "1H", "1 h", "٣h", "1h30", "1234567h", "1w", "00"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@given(st.integers(0, 999_999), st.integers(0, 999_999), st.integers(0, 999_999), st.integers(0, 99_999_999))
def test_a_duration_is_the_sum_of_its_parts(days: int, hours: int, minutes: int, seconds: int) -> None:
    expected = days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS
    assert parse_duration(f"{days}d{hours}h{minutes}m{seconds}s") == expected


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0s"),
        (999, "0s"),
        (45_000, "45s"),
        (150_000, "2m 30s"),
        (8 * HOUR_MS, "8h"),
        (8 * HOUR_MS + 5_000, "8h"),
        (3 * DAY_MS + 4 * HOUR_MS + 59 * MINUTE_MS, "3d 4h"),
        (-150_000, "-2m 30s"),
    ],
)
def test_a_duration_is_written(length_ms: int, text: str) -> None:
    assert format_duration(length_ms) == text


@given(st.integers(0, 400 * DAY_MS))
def test_a_written_duration_is_never_longer_and_loses_less_than_its_second_unit(length_ms: int) -> None:
    back = parse_duration(format_duration(length_ms).replace(" ", ""))
    assert back <= length_ms
    assert length_ms - back < (HOUR_MS if length_ms >= DAY_MS else MINUTE_MS)


@pytest.mark.parametrize(
    "text",
    [
        "35",
        "35%%",
        "-5%",
        "35,0%",
        "1e99",
        "135%",
        "100.0001%",
        "1.000001",
        "1.1",
        "",
        "%",
        "0.",
        ".5",
        "35% ",
        "35%\n",
        "35,0 %",
        "1e-1",
        "NaN",
        "-0.1",
        "35  %",
        "35\u00a0%",
        "1000001ppm",
        "35 ppm",
        "-1ppm",
        "٣٥%",
    ],
)
def test_br_048_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a share|more than 100%"):
        parse_share(text)


SAYS = [
    ("35", "write 35% if that is meant"),
    ("35,0 %", "write 35.0% with a point"),
    ("", "write for example 35%"),
    ("NaN", "write for example 35%"),
]


@pytest.mark.parametrize(("text", "sentence"), SAYS)
def test_a_refused_share_says_what_would_be_right(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_share(text)


@pytest.mark.parametrize("text", ["35%", "35 %", "35.0000 %", "0.35", "350000ppm"])
def test_one_share_in_all_its_forms(text: str) -> None:
    assert parse_share(text) == 350_000


@given(st.one_of(st.integers(0, PPM_WHOLE), st.sampled_from([0, 1, 9_999, 10_000, PPM_WHOLE - 1, PPM_WHOLE])))
def test_a_share_is_written_and_read_exactly(ppm: int) -> None:
    assert parse_share(format_share(ppm)) == ppm
    assert parse_share(f"{ppm}ppm") == ppm
    assert parse_share(f"{ppm // PPM_WHOLE}.{ppm % PPM_WHOLE:06d}") == ppm
