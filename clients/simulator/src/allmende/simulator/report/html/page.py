"""The page: one file with its style, its script, plotly and the data inside; it opens without a network, and asks for none.

Its own policy (`Content-Security-Policy`) forbids the browser any request, so that no library's mistake can make one. Every name is
escaped where it is written. Each plot has its caption and the same numbers as a table.
"""

import html
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from allmende.simulator.figures.model import Cost, Figures
from allmende.simulator.model import History
from allmende.simulator.report import words
from allmende.simulator.report.html import overview, timeline
from allmende.simulator.report.html.colours import UNALLOCATED, Ink, inks
from allmende.simulator.report.html.plot import Grid, Section

FORBIDDEN = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
# What stands in large print; the rest is in the table below it.
CARDS = 10
DASH_PATTERNS = {"solid": "", "dash": "6 3", "dot": "2 3"}


def write(path: Path, history: History, figures: Figures, cost: Cost | None = None, notes: Sequence[str] = ()) -> None:
    """Write the page. `notes` are a scenario's own sentences.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(page(history, figures, cost, notes), encoding="utf-8")


def page(history: History, figures: Figures, cost: Cost | None = None, notes: Sequence[str] = ()) -> str:
    """The whole page as text: the same for the same history, but for what the run cost."""
    team_inks = inks(team.budget for team in figures.hourly.teams)
    sections = overview.sections(history, figures, team_inks)
    day = timeline.section(history, figures, team_inks)
    if day is not None:
        sections.insert(1, day)
    body = [*_head(figures, notes), *_key(team_inks)]
    for number, section in enumerate(sections):
        body += _section(section, number)
    body += [*_never_started(figures), *_foot(figures, cost)]
    return _whole(f"Allmende: {words.plain(figures.policy)}, {words.span(figures)}", body, _data(sections))


def _whole(title: str, body: Sequence[str], data: str) -> str:
    # Imported here: only who wants a page pays for loading it.
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # plotly ships no types

    folder = files("allmende.simulator.report.html")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{FORBIDDEN}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{_text(title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            *body,
            "</main>",
            f'<script type="application/json" id="plots">{data}</script>',
            f"<script>{get_plotlyjs()}</script>",
            f"<script>\n{script}</script>",
            "</body>",
            "</html>\n",
        )
    )


def _text(value: str) -> str:
    return html.escape(words.plain(value))


def _data(sections: Sequence[Section]) -> str:
    """The plots as JSON that cannot end the element it stands in."""
    plots = [
        {"id": _id(number, index), "traces": plot.traces, "layout": plot.layout, "height": plot.height, "small": section.small}
        for number, section in enumerate(sections)
        for index, plot in enumerate(section.plots)
    ]
    encoded = msgspec.json.encode(plots).decode()
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _id(section: int, plot: int) -> str:
    return f"plot-{section}-{plot}"


# ------------------------------------------------------------------------------------------------------------------------- parts


def _head(figures: Figures, notes: Sequence[str]) -> Iterator[str]:
    yield f"<h1>What {_text(figures.policy)} did with {words.number(figures.gpus)} GPUs</h1>"
    yield f'<p class="headline">{_text(words.headline(figures))}</p>'
    yield from (f'<p class="notes">{_text(note)}</p>' for note in notes)
    lines = words.lines(figures)
    yield '<dl class="cards">'
    for line in lines[:CARDS]:
        aside = f"Ai2: {line.ai2}" if line.ai2 else line.meaning
        yield f"<div><dt>{_text(line.title)}</dt><dd>{_text(line.value)}<small>{_text(aside)}</small></dd></div>"
    yield "</dl>"
    rows = [(line.title.strip(), line.value, line.ai2, line.meaning) for line in lines]
    yield from _details("All figures", Grid(("Figure", "Value#", "Ai2", "Meaning"), rows))


def _key(team_inks: dict[str, Ink]) -> Iterator[str]:
    yield '<ul class="key sticky" aria-label="Colours of the teams">'
    for team, ink in team_inks.items():
        yield f"<li>{_swatch(ink)}{_text(team)}</li>"
    yield f"<li>{_swatch(Ink(UNALLOCATED, 'solid'))}unallocated</li>"
    yield "</ul>"


def _swatch(ink: Ink) -> str:
    dash = f' stroke-dasharray="{DASH_PATTERNS[ink.dash]}"' if DASH_PATTERNS[ink.dash] else ""
    line = f'<line x1="0" y1="6" x2="24" y2="6" stroke="{ink.colour}" stroke-width="8"{dash}></line>'
    return f'<svg width="24" height="12" aria-hidden="true">{line}</svg>'


def _section(section: Section, number: int) -> Iterator[str]:
    yield f"<section><h2>{_text(section.title)}</h2>"
    yield f"<figure><figcaption>{_text(section.caption)}</figcaption>"
    yield f'<div class="plots{" small" if section.small else ""}">'
    for index, plot in enumerate(section.plots):
        heading = f"<h3>{_text(plot.title)}</h3>" if plot.title else ""
        name = _text(plot.title or section.title)
        told = f'role="img" aria-label="Plot: {name}; the table has its numbers" style="height:{plot.height}px"'
        yield f'<div>{heading}<div id="{_id(number, index)}" {told}></div></div>'
    yield "</div></figure>"
    yield from _details(section.table_title, section.grid)
    yield "</section>"


def _details(title: str, grid: Grid) -> Iterator[str]:
    yield f"<details><summary>{_text(title)}</summary>"
    yield from _table(title, grid)
    yield "</details>"


def _table(title: str, grid: Grid) -> Iterator[str]:
    number = [' class="n"' if head.endswith("#") else "" for head in grid.heads]
    # A wide table scrolls inside its frame; the frame can be reached by keyboard.
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(title)}"><table><thead><tr>'
    yield "".join(f'<th scope="col"{kind}>{_text(head.rstrip("#"))}</th>' for head, kind in zip(grid.heads, number, strict=True))
    yield "</tr></thead><tbody>"
    for row in grid.rows:
        yield f"<tr>{''.join(f'<td{kind}>{_text(cell)}</td>' for cell, kind in zip(row, number, strict=True))}</tr>"
    yield "</tbody></table></div>"


def _never_started(figures: Figures) -> Iterator[str]:
    listed = figures.large_never_started
    if not listed:
        return
    waited = [(words.duration(each.waited_s), words.ratio(each.ratio), each.why) for each in listed]
    rows = [(each.job, each.budget, str(each.gpus), *cells) for each, cells in zip(listed, waited, strict=True)]
    yield f"<section><h2>Large jobs that never started</h2><p>{_text(words.never_started(figures))}</p>"
    yield from _details(f"The {len(listed)} jobs", Grid(("Job", "Team", "GPUs#", "Waited#", "Ratio#", "Why"), rows))
    yield "</section>"


def _foot(figures: Figures, cost: Cost | None) -> Iterator[str]:
    yield "<footer>"
    yield "<p>Allmende's own rules on a virtual clock, which begins on Monday, 5 January 2026, UTC. Ai2's figures are from"
    yield "&#8220;Impactful scheduling for GPU clusters&#8221;, after 30 days. docs/contract.md, section 10, defines each"
    yield "figure.</p>"
    if cost is not None:
        yield f"<p>{_text(words.cost(cost, figures.looks))}</p>"
    yield "</footer>"
