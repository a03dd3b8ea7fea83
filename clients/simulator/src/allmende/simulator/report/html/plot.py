"""One plot as plotly wants it, with what a reader who cannot see it needs: a caption and a table. Never draws."""

import html
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from allmende.simulator.report import words

Trace: TypeAlias = dict[str, Any]
Cells: TypeAlias = Sequence[str]


class Grid(NamedTuple):
    """A table: heads that end in `#` stand over numbers."""

    heads: Cells
    rows: Sequence[Cells]


class Plot(NamedTuple):
    """`layout` holds only what differs from the page's own; `height` in pixels."""

    title: str
    traces: list[Trace]
    layout: dict[str, Any]
    height: int


class Section(NamedTuple):
    """A heading, what is shown, the plots, and the same as a table under `table_title`."""

    title: str
    caption: str
    plots: list[Plot]
    table_title: str
    grid: Grid
    small: bool = False
    """Small plots stand side by side, each under its title."""


def label(name: str) -> str:
    """A name inside a plot. Plotly reads tags there, so they are taken apart first."""
    return html.escape(words.plain(name))


def time_axis(from_ms: int, to_ms: int) -> dict[str, Any]:
    """The virtual clock, UTC."""
    return {"type": "date", "range": [from_ms, to_ms]}
