"""The three columns as people read them: the whole cluster first, then each team, three lines each; and how far to trust them.

Never computes a figure.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from allmende.proto.units import DAY_MS
from allmende.simulator.replay.columns import PROPOSAL, TODAY, WAS, Lab, Replay, Side
from allmende.simulator.report import words
from allmende.simulator.report.places import draft, real

TITLES = {WAS: "as it was", TODAY: "today's tree", PROPOSAL: "proposal"}
# What the tables need; a page is read by scrolling.
PAGE_WIDTH = 132
# Teams in a sentence; the table has all.
_NAMED = 3

# The browser is forbidden any request. The marks are filled in by rich, which escapes every name.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Allmende: a proposal for the budgets, on the past</title>
</head>
<body style="color: {foreground}; background: {background}">
<pre style="font-family: monospace">{code}</pre>
</body>
</html>
"""


def encode(replay: Replay) -> bytes:
    """The columns as JSON. Ends with a newline."""
    return msgspec.json.format(msgspec.json.encode(replay), indent=2) + b"\n"


def render(replay: Replay, console: Console) -> None:
    """Print the tables. Through a pipe a sentence is one line, however long."""
    soft = not console.is_terminal
    console.print(Text(_headline(replay), style="bold"))
    for note in replay.notes:
        console.print(Text(f"  {words.plain(note)}", style="dim"), soft_wrap=soft)
    for key, column in replay.columns.items():
        for note in column.notes:
            console.print(Text(f"  {TITLES[key]}: {words.plain(note)}", style="dim"), soft_wrap=soft)
    console.print(_lab_table(replay))
    console.print(Text("Teams, by today's share; owed and got in GPU-hours", style="bold"))
    console.print(_team_table(replay))
    for sentence in (*changes(replay), *distance(replay)):
        console.print(Text(words.plain(sentence)), soft_wrap=soft)


def write(replay: Replay, path: Path) -> None:
    """Write the tables as one page that needs no network.

    Raises:
        OSError: the file cannot be written.
    """
    console = Console(record=True, width=PAGE_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    render(replay, console)
    target = real(path)
    part = draft(target)
    try:
        # Whole or not at all.
        part.write_text(console.export_html(inline_styles=True, code_format=_PAGE), encoding="utf-8")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def changes(replay: Replay) -> Iterator[str]:
    """What the proposal changes for whom, against today's tree: the teams that get most and least more by it."""
    today = {side.budget: side.delivered_gpu_hours for side in replay.columns[TODAY].teams}
    proposed = {side.budget: side.delivered_gpu_hours for side in replay.columns[PROPOSAL].teams}
    # By name first, so that equal changes have one order.
    names = sorted({*today, *proposed})
    more = {name: proposed.get(name, 0.0) - today.get(name, 0.0) for name in names}
    gains = sorted((name for name in names if more[name] > 0), key=lambda name: -more[name])
    losses = sorted((name for name in names if more[name] < 0), key=lambda name: more[name])
    told = [
        f"{word} GPU-hours for " + ", ".join(_change(name, today.get(name, 0.0), more[name]) for name in found[:_NAMED])
        for word, found in (("more", gains), ("fewer", losses))
        if found
    ]
    yield f"What the proposal changes (proposal against today's tree): {'; '.join(told) or 'no team gets more or fewer GPU-hours'}."


def _change(name: str, before: float, more: float) -> str:
    part = f", {100 * more / before:+.0f} %" if before else ""
    return f"{name} ({'+' if more > 0 else '-'}{_hours(abs(more))}{part})"


def distance(replay: Replay) -> Iterator[str]:
    """How far the rules on today's tree are from what was: what the proposal changes by less than this says nothing."""
    was, today = replay.columns[WAS].lab, replay.columns[TODAY].lab
    parts = [
        f"delivered/owed weekly {words.ratio(today.delivered_owed_weekly)} against {words.ratio(was.delivered_owed_weekly)}",
        f"{_hours(today.delivered_gpu_hours)} GPU-hours got against {_hours(was.delivered_gpu_hours)}",
        f"90 % of waits within {words.duration(today.waits_s.p90)} against {words.duration(was.waits_s.p90)}",
        f"{words.number(today.evictions)} evictions against {words.number(was.evictions)}",
    ]
    yield f"How far the replay is from the truth (today's tree against as it was): {'; '.join(parts)}."
    yield "Compare the proposal with today's tree, not with what was; differences smaller than that distance say little."


def _hours(amount: float) -> str:
    # A young lab's amounts are parts of an hour.
    return words.number(amount, 1 if amount >= 10 else 3)


def _headline(replay: Replay) -> str:
    length_ms = replay.to_ms - replay.from_ms
    days = words.days(length_ms)
    span = f"{days} day{'' if days == '1' else 's'}" if length_ms >= DAY_MS else words.duration(length_ms / 1_000)
    what = f"{replay.proposal_file} on {replay.cluster}, {replay.gpus:,} GPUs"
    return words.plain(f"{what}: the last {span} as they were, and again by the rules")


def _table(columns: Sequence[str]) -> Table:
    """Columns that end in `#` hold numbers, to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.rstrip("#"), justify="right" if column.endswith("#") else "left", overflow="fold")
    return table


def _lab_table(replay: Replay) -> Table:
    table = _table(("", *(f"{TITLES[key].upper()}#" for key in replay.columns)))
    rows = [_lab_cells(column.lab) for column in replay.columns.values()]
    for number, (title, _value) in enumerate(rows[0]):
        table.add_row(title, *(Text(words.plain(cells[number][1])) for cells in rows))
    return table


def _lab_cells(lab: Lab) -> list[tuple[str, str]]:
    worst = words.ratio(lab.worst_team) + (f" ({lab.worst_team_name})" if lab.worst_team_name else "")
    return [
        ("delivered / owed, weekly", words.ratio(lab.delivered_owed_weekly)),
        ("delivered / owed, plain", words.ratio(lab.delivered_owed_plain)),
        ("teams at 95 %", f"{lab.teams_at_95} of {lab.teams_owed}"),
        ("worst team", worst),
        ("owed, GPU-hours", _hours(lab.owed_gpu_hours)),
        ("got, GPU-hours", _hours(lab.delivered_gpu_hours)),
        ("unallocated, GPU-hours", _hours(lab.unallocated_gpu_hours)),
        ("available, GPU-hours", _hours(lab.available_gpu_hours)),
        ("occupancy", words.percent(lab.occupancy)),
        ("half started within", words.duration(lab.waits_s.p50)),
        ("90 % started within", words.duration(lab.waits_s.p90)),
        ("90 % of debug jobs within", words.duration(lab.waits_debug_s.p90)),
        ("never started", words.number(lab.waits_s.never_started)),
        ("evictions", words.number(lab.evictions)),
        ("lost to evictions", words.percent(lab.lost_fraction)),
        ("jobs finished", words.number(lab.jobs_finished)),
        ("jobs refused", words.number(lab.jobs_refused)),
    ]


def _team_table(replay: Replay) -> Table:
    table = _table(("TEAM", "", "SHARE#", "OWED#", "GOT#", "WEEKLY#", "PLAIN#", "50 % WAIT#", "90 % WAIT#", "EVICTED#"))
    sides = {key: {side.budget: side for side in column.teams} for key, column in replay.columns.items()}
    names = dict.fromkeys(name for key in (TODAY, PROPOSAL, WAS) for name in sides[key])
    shares = {name: side.effective_share_ppm or -1 for name, side in sides[TODAY].items()}
    for name in sorted(names, key=lambda name: (-shares.get(name, -2), name)):
        for number, key in enumerate(sides):
            cells = _team_cells(sides[key].get(name))
            table.add_row(Text(words.plain(name) if number == 0 else ""), TITLES[key], *cells, end_section=key == PROPOSAL)
    return table


def _team_cells(side: Side | None) -> tuple[str, ...]:
    if side is None:
        return ("no leaf", *(words.DASH for _ in range(7)))
    ppm = side.effective_share_ppm
    return (
        words.DASH if ppm is None else f"{ppm / 10_000:.4g} %",
        _hours(side.owed_gpu_hours),
        _hours(side.delivered_gpu_hours),
        words.ratio(side.delivered_owed_weekly),
        words.ratio(side.delivered_owed_plain),
        words.duration(side.waits_s.p50),
        words.duration(side.waits_s.p90),
        words.number(side.evictions),
    )
