"""Instants as people type and read them: `2026-12-24T08:00Z`, or a duration from now such as `4h`. Pure; UTC only."""

from datetime import UTC, datetime

from allmende.cli.errors import CommandFailed, Exit
from allmende.proto.units import LATEST_INSTANT_MS, Ms, parse_duration


def read(option: str, text: str | None, now_ms: Ms) -> Ms | None:
    """The instant that an option names; None where it is not given.

    Raises:
        CommandFailed: it is neither a duration nor an instant with a time zone, or before 1970, or after what any message can say.
    """
    if text is None:
        return None
    at_ms = _ahead(text, now_ms)
    if at_ms is None:
        at_ms = _at(option, text)
    if not 0 <= at_ms <= LATEST_INSTANT_MS:
        raise CommandFailed(Exit.USAGE, f"{option} {text!r} is not between 1970 and {show(LATEST_INSTANT_MS)[:4]}")
    return at_ms


def _ahead(text: str, now_ms: Ms) -> Ms | None:
    try:
        return now_ms + parse_duration(text)
    except ValueError:
        return None


def _at(option: str, text: str) -> Ms:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        how = "write 2026-12-24T08:00Z (with its zone; Z is UTC), or how far ahead it is, such as 4h"
        raise CommandFailed(Exit.USAGE, f"{option} {text!r} is no instant: {how}")
    return round(at.timestamp() * 1_000)


def show(at_ms: Ms) -> str:
    """An instant to the minute: `2026-12-24T08:00Z`."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%MZ")
