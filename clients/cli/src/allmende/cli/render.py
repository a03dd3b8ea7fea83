"""Values as people read them: durations, ratios, GPU-hours, tables. Pure: text in, text out.

Floats appear here and only here, where a number is about to be looked at.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from allmende.proto.standing import Standing
from allmende.proto.units import HOUR_MS, GpuMs, Ms, format_duration

SHORT_ID = 8


def short(identifier: str) -> str:
    """The end of an id, which tells it from its neighbours; its beginning is only the time."""
    return identifier[-SHORT_ID:]


def ago(instant_ms: Ms | None, now_ms: Ms) -> str:
    """How long ago, or in how long: `5m ago`, `in 2h`; a dash where there is no instant."""
    if instant_ms is None:
        return "-"
    if instant_ms > now_ms:
        return f"in {format_duration(instant_ms - now_ms)}"
    return f"{format_duration(now_ms - instant_ms)} ago"


def gpu_hours(amount: GpuMs) -> str:
    """GPU-hours with one decimal and thousands separated: `1,234.5`."""
    tenths = amount * 10 // HOUR_MS
    return f"{tenths // 10:,}.{tenths % 10}"


def ratio(used: GpuMs | None, entitlement: GpuMs | None) -> str:
    """`used / entitlement` with three decimals, rounded down; words where it is no number."""
    if used is None or entitlement is None:
        return "-"
    if not entitlement:
        return "no share"
    thousandths = used * 1_000 // entitlement
    return f"{thousandths // 1000}.{thousandths % 1000:03d}"


def tier(standing: Standing) -> str:
    """What a standing means: owed time, or over-served."""
    if not standing.entitlement:
        return "no share"
    return "owed" if standing.guaranteed else "over"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A plain table; columns whose name ends with `#` are numbers and go to the right."""
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = column.endswith("#")
        options: dict[str, Any] = {"justify": "right", "no_wrap": True} if numeric else {"overflow": "fold"}
        drawn.add_column(column.removesuffix("#"), **options)
    for row in rows:
        drawn.add_row(*row)
    return drawn
