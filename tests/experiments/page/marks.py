"""What a page is made of: tables, bars, and numbers as people read them. Text in, text out; knows no figure.

Bars are `xychart-beta` blocks of mermaid: text that code hosts draw. Several series would be drawn over one another, so a chart has
one series of bars, and a line where a goal is.
"""

from collections.abc import Iterable, Sequence

from allmende.proto.units import PPM_WHOLE

DASH = "-"
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """A table of Markdown; `right`: columns that hold numbers."""
    sides = ["---:" if at in set(right) else "---" for at in range(len(heads))]
    lines = [_row(heads), _row(sides), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def bars(
    title: str, values: Sequence[tuple[str, float | None]], axis: str, *, goal: float | None = None, flat: bool = False
) -> str:
    """Bars with their labels; what has no value is left out. `goal`: a line across. `flat`: bars lie, for many or long labels."""
    shown = [(label, value) for label, value in values if value is not None]
    if not shown:
        return ""
    top = max([value for _label, value in shown] + ([goal] if goal is not None else []))
    lines = [
        "```mermaid",
        f"xychart-beta{' horizontal' if flat else ''}",
        f'    title "{title}"',
        f"    x-axis [{', '.join(f'{chr(34)}{label}{chr(34)}' for label, _value in shown)}]",
        f'    y-axis "{axis}" 0 --> {_short(top * 1.1 or 1)}',
        f"    bar [{', '.join(_short(value) for _label, value in shown)}]",
    ]
    if goal is not None:
        lines.append(f"    line [{', '.join([_short(goal)] * len(shown))}]")
    return "\n".join([*lines, "```"])


def lines(title: str, labels: Sequence[str], axis: str, bar: Sequence[float], line: Sequence[float]) -> str:
    """Bars, and beside them what they should reach as a line."""
    top = max([*bar, *line], default=0)
    return "\n".join(
        [
            "```mermaid",
            "xychart-beta",
            f'    title "{title}"',
            f"    x-axis [{', '.join(labels)}]",
            f'    y-axis "{axis}" 0 --> {_short(top * 1.1 or 1)}',
            f"    bar [{', '.join(map(_short, bar))}]",
            f"    line [{', '.join(map(_short, line))}]",
            "```",
        ]
    )


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def ratio(value: float | None) -> str:
    """Three decimals."""
    return DASH if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """A fraction as a percentage."""
    return DASH if value is None else f"{value * 100:.2f} %"


def whole(value: float | None) -> str:
    """A number without decimals, thousands separated."""
    return DASH if value is None else f"{value:,.0f}"


def tenths(value: float | None) -> str:
    """A number with one decimal."""
    return DASH if value is None else f"{value:,.1f}"


def duration(value_s: float | None) -> str:
    """Seconds in the unit that fits: `4.1 s`, `12 min`, `5.2 h`, `1.9 d`."""
    if value_s is None:
        return DASH
    for size, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if value_s >= 2 * size:
            return f"{value_s / size:.1f} {unit}"
    return f"{value_s:.1f} s"


def share(ppm: int | None) -> str:
    """A share in percent."""
    return DASH if ppm is None else f"{ppm / PPM_WHOLE * 100:.4g} %"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def count(number: int, one: str, many: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
