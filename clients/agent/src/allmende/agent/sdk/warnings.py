"""Warnings before a protection ends (contract §6, decision 0041): when which is due, and what it says. Pure.

Never says when an attempt is evicted: that is an order. After its protection it may run on for days.
"""

import msgspec
from msgspec import Struct

from allmende.proto.units import MINUTE_MS, Ms, format_duration

# Issue 7: long enough to finish a thought, then long enough to save. Earliest first.
WARNINGS_MS: tuple[Ms, ...] = (10 * MINUTE_MS, 2 * MINUTE_MS)


class Warned(Struct, frozen=True, kw_only=True):
    """What the warning file holds, as JSON."""

    warning_ms: Ms
    """Which warning: so long before the end it is given, in clock milliseconds."""
    protected_ms: Ms
    """How long the attempt is protected in all, from its start on."""
    sentence: str


def warning_due(protected_ms: Ms, held_ms: Ms) -> Warned | None:
    """The latest warning that is due once an attempt has run for `held_ms` of its `protected_ms`; None: none is.

    One that would come with the start tells nothing new and is left out: a slice of 10 minutes has the second warning only.
    """
    due = [before_ms for before_ms in WARNINGS_MS if before_ms < protected_ms and held_ms >= protected_ms - before_ms]
    if not due:
        return None
    sentence = (
        f"protection ends {format_duration(protected_ms)} after the start, at most {format_duration(due[-1])} from now on: "
        "save now; after it the attempt may be interrupted"
    )
    return Warned(warning_ms=due[-1], protected_ms=protected_ms, sentence=sentence)


def text_of(warned: Warned) -> bytes:
    """The file's content: one line."""
    return msgspec.json.encode(warned) + b"\n"
