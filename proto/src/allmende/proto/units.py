"""Units and their text forms: milliseconds, GPU-milliseconds and parts per million, all integers.

Never holds a float: an amount, a share or a ratio is an integer or a pair of integers.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, TypeAlias

from msgspec import Meta

Ms: TypeAlias = int
"""An instant (milliseconds since 1970-01-01T00:00Z) or a length of time, in milliseconds. The name says which."""

GpuMs: TypeAlias = int
"""One GPU held for one millisecond: the currency of every account."""

Ppm: TypeAlias = int
"""Parts per million of the parent's share."""

PPM_WHOLE: Ppm = 1_000_000

SECOND_MS: Ms = 1_000
MINUTE_MS: Ms = 60 * SECOND_MS
HOUR_MS: Ms = 60 * MINUTE_MS
DAY_MS: Ms = 24 * HOUR_MS

# 2100-01-01: instants beyond it are typing mistakes (seconds for milliseconds, or the reverse), not plans.
LATEST_INSTANT_MS: Ms = 4_102_444_800_000
# Counters and sums must fit PostgreSQL's bigint with room: 100,000 GPUs for 100 years are 3.2e17 GPU-ms.
LARGEST_AMOUNT: int = 2**60

Instant = Annotated[int, Meta(ge=0, le=LATEST_INSTANT_MS)]
Span = Annotated[int, Meta(ge=0, le=10 * 366 * DAY_MS)]
Amount = Annotated[int, Meta(ge=0, le=LARGEST_AMOUNT)]
GpuCount = Annotated[int, Meta(ge=0, le=1_000_000)]
SharePpm = Annotated[int, Meta(ge=0, le=PPM_WHOLE)]
Sequence = Annotated[int, Meta(ge=0, le=2**53)]

_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?\Z", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3})(?:\.(\d{1,4}))? ?%\Z", re.ASCII)
_PPM = re.compile(r"(\d{1,7})ppm\Z", re.ASCII)
_BARE = re.compile(r"\d{1,3}\Z", re.ASCII)
_COMMA = re.compile(r"(\d{1,3}),(\d{1,4}) ?%\Z", re.ASCII)
_FRACTION = re.compile(r"([01])\.(\d{1,6})\Z", re.ASCII)


def parse_duration(text: str) -> Ms:
    """Read a duration such as `90s`, `30m`, `8h`, `1d12h` or `0` into milliseconds.

    Raises:
        ValueError: anything else, a bare number included (`30` says no unit).
    """
    if text == "0":
        return 0
    match = _DURATION.match(text)
    if not match or not text:
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 30m, 8h or 1d12h")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS


def format_instant(at_ms: Ms) -> str:
    """An instant as people read it, UTC: `2026-12-24T08:00Z`, with seconds and milliseconds only where they are not zero."""
    at = datetime.fromtimestamp(at_ms // 1_000, UTC)
    parts = "%Y-%m-%dT%H:%M" if at_ms % 60_000 == 0 else "%Y-%m-%dT%H:%M:%S"
    return at.strftime(parts) + (f".{at_ms % 1_000:03}" if at_ms % 1_000 else "") + "Z"


def format_duration(length_ms: Ms) -> str:
    """Write milliseconds as people read them: `0s`, `45s`, `2m 30s`, `8h`, `3d 4h` (two largest units, rounded down)."""
    if length_ms < 0:
        return "-" + format_duration(-length_ms)
    rest = length_ms // SECOND_MS
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0s"


def parse_share(text: str) -> Ppm:
    """Read a share such as `35%`, `35 %`, `2.5%`, `0.35` or `350000ppm` into parts per million.

    A bare whole number is refused: `35` may mean 35 % or 35 times the whole.

    Raises:
        ValueError: not one of these forms, more than four decimals of a percent, or above 100 %.
    """
    if match := _PERCENT.match(text):
        ppm = int(match[1]) * 10_000 + int((match[2] or "").ljust(4, "0"))
    elif match := _FRACTION.match(text):
        ppm = int(match[1]) * PPM_WHOLE + int(match[2].ljust(6, "0"))
    elif match := _PPM.match(text):
        ppm = int(match[1])
    else:
        raise ValueError(f"{text!r} is not a share; write {_meant(text)}")
    if ppm > PPM_WHOLE:
        raise ValueError(f"{text!r} is more than 100%")
    return ppm


def _meant(text: str) -> str:
    if _BARE.match(text):
        return f"{text}% if that is meant"
    if match := _COMMA.match(text):
        return f"{match[1]}.{match[2]}% with a point"
    return "for example 35%, 2.5%, 0.35 or 350000ppm"


def format_share(ppm: Ppm) -> str:
    """Write parts per million as a percentage without trailing zeros: `35%`, `2.5%`."""
    whole, rest = divmod(ppm, 10_000)
    decimals = f"{rest:04d}".rstrip("0")
    return f"{whole}.{decimals}%" if decimals else f"{whole}%"
