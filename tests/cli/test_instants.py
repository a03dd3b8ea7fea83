"""Instants that people type: from now, or with a zone; nothing in between."""

import pytest

from allmende.cli import instants
from allmende.cli.errors import CommandFailed
from allmende.proto.units import HOUR_MS

NOW_MS = 1_700_000_000_000
READ = [
    ("not given", None, None),
    ("so long from now", "4h", NOW_MS + 4 * HOUR_MS),
    ("an instant in UTC", "2023-11-14T23:13:20Z", NOW_MS + HOUR_MS),
    ("the same elsewhere", "2023-11-15T00:13:20+01:00", NOW_MS + HOUR_MS),
    ("to the minute", "2023-11-14T23:13Z", NOW_MS + HOUR_MS - 20_000),
]


@pytest.mark.parametrize(("sentence", "text", "expected"), READ, ids=[row[0] for row in READ])
def test_an_instant_is_read(sentence: str, text: str | None, expected: int | None) -> None:
    assert instants.read("--from", text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "tomorrow", "2023-11-14", "2023-11-14T23:13", "23:13Z", "4", "-4h"])
def test_what_is_no_instant_is_refused_with_one_that_would_be(text: str) -> None:
    with pytest.raises(CommandFailed, match=r"--from .* is no instant: write 2026-12-24T08:00Z"):
        instants.read("--from", text, NOW_MS)


@pytest.mark.parametrize("text", ["1969-12-31T23:59Z", "0001-01-01T00:00Z", "2100-01-01T00:01Z", "9999-12-31T23:59Z", "300000d"])
def test_what_no_message_can_say_is_refused_before_it_is_sent(text: str) -> None:
    with pytest.raises(CommandFailed, match="is not between 1970 and 2100"):
        instants.read("--from", text, NOW_MS)


def test_an_instant_is_shown_to_the_minute() -> None:
    assert instants.show(NOW_MS) == "2023-11-14T22:13Z"
