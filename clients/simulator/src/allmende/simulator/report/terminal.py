"""The summary on the terminal: a sentence, the figures with Ai2's own in brackets, teams, waits, and what the run cost.

Every name is text, never markup. Never computes a figure.
"""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from allmende.simulator.figures.compare import Comparison, Row
from allmende.simulator.figures.model import Cost, Figures
from allmende.simulator.report import words

# Narrower than this, what a figure means goes before the figure is folded.
MEANING_WIDTH = 110
# More would push the figures off the screen; the rest is in the JSON.
NEVER_STARTED_MAX = 5


def render(figures: Figures, console: Console, cost: Cost | None = None, notes: Sequence[str] = ()) -> None:
    """Print the summary. `notes` are a scenario's own sentences."""
    console.print(Text(words.headline(figures), style="bold"))
    for note in notes:
        console.print(Text(f"  {words.plain(note)}", style="dim"))
    console.print(_figures(figures, with_meaning=console.width >= MEANING_WIDTH))
    console.print(_teams(figures))
    console.print(_waits(figures))
    if figures.large_never_started:
        console.print(_never_started(figures))
    if cost is not None:
        console.print(Text(words.cost(cost, figures.looks), style="dim"))


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print several runs side by side: the figures, then each team."""
    console.print(_side_by_side("Figures", comparison.runs, [_in_words(row) for row in comparison.figures]))
    for title, rows in (
        ("Delivered / owed of each team, weekly", comparison.teams),
        ("Delivered to each team, GPU-hours", comparison.delivered),
    ):
        console.print(_side_by_side(title, comparison.runs, rows))
    console.print(_side_by_side("90 % of each team's jobs started within", comparison.runs, comparison.teams_waits, waits=True))


def _under(title: str, table: Table) -> Group:
    # A title of the table's own would be folded to the width of a narrow table.
    return Group(Text(title, style="bold"), table)


def _table(columns: Sequence[str]) -> Table:
    """Columns that end in `#` hold numbers, to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.rstrip("#"), justify="right" if column.endswith("#") else "left", overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(words.plain(cell)) for cell in cells))


def _figures(figures: Figures, *, with_meaning: bool) -> Group:
    table = _table(("", "#", "", "") if with_meaning else ("", "#", ""))
    table.show_header = False
    for line in words.lines(figures):
        meaning = (line.meaning,) if with_meaning else ()
        _add(table, line.title, line.value, f"[{line.ai2}]" if line.ai2 else "", *meaning)
    return _under("Figures, with Ai2's own in brackets", table)


def _teams(figures: Figures) -> Group:
    heads = ("TEAM", "SHARE#", "OWED#", "GOT#", "WEEKLY#", "PLAIN#", "EVICTED#", "90 % WAIT#")
    table = _table(heads)
    for team in words.by_share(figures):
        _add(
            table,
            *(team.budget, words.share(team), words.number(team.owed_gpu_hours), words.number(team.delivered_gpu_hours)),
            *(words.ratio(team.delivered_owed_weekly), words.ratio(team.delivered_owed_plain)),
            *(words.number(team.evictions), words.duration(team.waits_s.p90)),
        )
    return _under("Teams, by share; owed and got in GPU-hours", table)


def _waits(figures: Figures) -> Group:
    heads = ("", "JOBS#", "HALF WITHIN#", "90 % WITHIN#", "LONGEST#", "NEVER STARTED#")
    table = _table(heads)
    for title, waits in words.waits(figures):
        p90 = words.duration(waits.p90) + (f" [{words.AI2['debug_p90']}]" if title.startswith("debug") else "")
        _add(
            table,
            *(title, words.number(waits.jobs), words.duration(waits.p50), p90, words.duration(waits.max)),
            words.number(waits.never_started),
        )
    return _under("From submission to the first start, allocated jobs", table)


def _never_started(figures: Figures) -> Group:
    listed = figures.large_never_started
    rest = f", the {NEVER_STARTED_MAX} that waited longest of {len(listed)}" if len(listed) > NEVER_STARTED_MAX else ""
    table = _table(("JOB", "TEAM", "GPUS#", "WAITED#", "RATIO#", "WHY"))
    for each in listed[:NEVER_STARTED_MAX]:
        _add(table, each.job, each.budget, str(each.gpus), words.duration(each.waited_s), words.ratio(each.ratio), each.why)
    return _under(f"Large jobs that never started{rest}", table)


def _side_by_side(title: str, runs: Sequence[str], rows: Sequence[Row], *, waits: bool = False) -> Group:
    table = _table(("", *(f"{words.plain(name)}#" for name in runs)))
    for row in rows:
        _add(table, row.figure, *(_value(value, waits) for value in row.values))
    return _under(title, table)


def _in_words(row: Row) -> Row:
    if not row.figure.startswith("waits_s "):
        return Row(figure=row.figure.replace("_", " "), values=row.values)
    _waits_s, name, part = row.figure.split()
    values = tuple(words.duration(value) if isinstance(value, float) else words.DASH for value in row.values)
    return Row(figure=f"wait of {name.replace('_', ' ')}, {part}", values=values)


def _value(value: float | int | str | None, is_wait: bool) -> str:
    if value is None:
        return words.DASH
    if is_wait and not isinstance(value, str):
        return words.duration(value)
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value
