"""One day in detail: a row for each node, a bar for each piece of an attempt, evictions in red.

The day with most evictions is shown, cut to fewer hours where its bars would make the page heavy; the caption says what is shown.
Never says which GPU of a node it was: the drawing numbers them itself, as a scheduler only counts them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from allmende.proto.units import DAY_MS, HOUR_MS, Ms
from allmende.simulator.figures.held import past_slice_from_ms
from allmende.simulator.figures.model import Figures
from allmende.simulator.figures.span import Span
from allmende.simulator.model import History, Run
from allmende.simulator.report import words
from allmende.simulator.report.html.colours import EVICTED, UNALLOCATED, Ink
from allmende.simulator.report.html.plot import Grid, Plot, Section, Trace, label, time_axis

# Each is an element of the drawing: more makes a browser slow, and a phone give up.
BARS_MAX = 4_000
NODES_MAX = 160
EVICTIONS_MAX = 200
# Names of nodes that stand closer than this run into each other.
LABEL_PX = 17
# The rest of a node's row separates it from the next.
ROW = 0.86


class Bar(NamedTuple):
    """A piece of an attempt: `low` to `high` are rows, in nodes; hatched: interruptible."""

    run: Run
    from_ms: Ms
    to_ms: Ms
    low: float
    high: float
    hatched: bool


def section(history: History, figures: Figures, inks: dict[str, Ink]) -> Section | None:
    """The busiest day; None where the window was not reached."""
    if not figures.hourly.available:
        return None
    view = _busiest(figures)
    nodes = [spec.node for spec in history.cluster.nodes[:NODES_MAX]]
    bars = _bars(history, nodes, view)
    while len(bars) > BARS_MAX and view.length_ms > HOUR_MS:
        view = Span(view.from_ms, view.from_ms + max(HOUR_MS, view.length_ms // 2 // HOUR_MS * HOUR_MS))
        bars = _bars(history, nodes, view)
    runs = [run for run in history.runs if run.end == "evicted" and view.has(run.ordered_at_ms or run.ended_at_ms)]
    height = max(320, min(1_100, 70 + 12 * len(nodes)))
    step = -(-len(nodes) * LABEL_PX // (height - 70))
    ticks = [number + ROW / 2 for number in range(0, len(nodes), step)]
    names = [label(name) for name in nodes[::step]]
    layout = {
        "xaxis": time_axis(view.from_ms, view.to_ms),
        "yaxis": {"range": [len(nodes), 0], "tickvals": ticks, "ticktext": names, "showgrid": False},
        "barmode": "overlay",
        "hovermode": "closest",
    }
    traces = [*_traces(bars, inks), _marks(bars, runs, view)]
    return Section(
        "One day, node by node",
        _caption(view, figures, len(nodes), len(history.cluster.nodes)),
        [Plot("", traces, layout, height)],
        f"The evictions of these hours ({len(runs)}{f', the first {EVICTIONS_MAX}' if len(runs) > EVICTIONS_MAX else ''})",
        _evictions(runs[:EVICTIONS_MAX], view),
    )


def _busiest(figures: Figures) -> Span:
    hourly = figures.hourly
    day_hours = DAY_MS // HOUR_MS
    starts = range(0, len(hourly.evictions), day_hours)
    # The later one of equals: a policy has settled by then.
    best = max(starts, key=lambda at: (sum(hourly.evictions[at : at + day_hours]), at))
    from_ms = hourly.from_ms + best * HOUR_MS
    return Span(from_ms, min(from_ms + DAY_MS, hourly.to_ms))


def _caption(view: Span, figures: Figures, shown: int, nodes: int) -> str:
    day = (view.from_ms - figures.hourly.from_ms) // DAY_MS + 1
    hours = -(-view.length_ms // HOUR_MS)
    which = f"The first {shown} of {nodes} nodes" if shown < nodes else f"All {nodes} nodes"
    return (
        f"{which}, {hours} hours of day {day}, the day with most evictions. A row is a node, its height the node's GPUs. "
        "Full colour: in its slice. Hatched: interruptible. Red crosses: where an attempt was told to leave. "
        "Zoom by dragging or with the buttons."
    )


# -------------------------------------------------------------------------------------------------------------------------- bars


def _bars(history: History, nodes: Sequence[str], view: Span) -> list[Bar]:
    """The bars of all attempts that touch the view; pieces on neighbouring whole nodes are one bar."""
    numbers = {node: number for number, node in enumerate(nodes)}
    sizes = {spec.node: spec.gpus for spec in history.cluster.nodes}
    free_ms = {node: [0] * sizes[node] for node in nodes}
    found: list[Bar] = []
    seen = (run for run in history.runs if run.started_at_ms is not None and run.ended_at_ms > view.from_ms)
    for run in sorted(seen, key=lambda each: (each.granted_at_ms, each.attempt)):
        assert run.started_at_ms is not None, "filtered above"
        if run.granted_at_ms >= view.to_ms:
            break
        whole: list[int] = []
        for part in run.placement:
            if part.node not in numbers:
                continue
            lanes = _lanes(free_ms[part.node], part.replicas * run.gpus_per_replica, run.granted_at_ms, run.ended_at_ms)
            if len(lanes) == sizes[part.node]:
                whole.append(numbers[part.node])
                continue
            for first, last in _stretches(lanes):
                unit = ROW / sizes[part.node]
                found += _pieces(run, view, numbers[part.node] + first * unit, numbers[part.node] + (last + 1) * unit)
        for first, last in _stretches(sorted(whole)):
            found += _pieces(run, view, first, last + ROW)
    return found


def _lanes(free_ms: list[Ms], gpus: int, from_ms: Ms, to_ms: Ms) -> list[int]:
    """The lowest lanes that are free by then; those that are free first, where a history over-commits a node."""
    ready = [lane for lane, free in enumerate(free_ms) if free <= from_ms]
    if len(ready) < gpus:
        ready = sorted(range(len(free_ms)), key=lambda lane: (free_ms[lane], lane))
    taken = sorted(ready[:gpus])
    for lane in taken:
        free_ms[lane] = to_ms
    return taken


def _stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as (first, last) of those that follow one another."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _pieces(run: Run, view: Span, low: float, high: float) -> list[Bar]:
    assert run.started_at_ms is not None, "asked only of attempts that started"
    past_ms = max(run.started_at_ms, past_slice_from_ms(run))
    cuts = ((run.started_at_ms, min(past_ms, run.ended_at_ms), False), (past_ms, run.ended_at_ms, True))
    clipped = ((*view.clip(from_ms, to_ms), hatched) for from_ms, to_ms, hatched in cuts)
    return [Bar(run, from_ms, to_ms, low, high, hatched) for from_ms, to_ms, hatched in clipped if from_ms < to_ms]


# ------------------------------------------------------------------------------------------------------------------------ traces


def _traces(bars: list[Bar], inks: dict[str, Ink]) -> list[Trace]:
    groups: dict[tuple[str | None, bool], list[Bar]] = {}
    for bar in bars:
        groups.setdefault((bar.run.leaf, bar.hatched), []).append(bar)
    order = {name: number for number, name in enumerate(inks)}
    keys = sorted(groups, key=lambda key: (order.get(key[0] or "", len(order)), key[1]))
    return [_trace(groups[key], UNALLOCATED if key[0] is None else inks[key[0]].colour, *key) for key in keys]


def _trace(bars: list[Bar], colour: str, leaf: str | None, hatched: bool) -> Trace:
    # A little of the page between two bars, so that attempts of one team can be told apart.
    marker = {"color": colour, "line": {"width": 0.5, "color": "var(--page)"}}
    pattern = (
        {"pattern": {"shape": "/", "size": 5, "solidity": 0.4, "fgcolor": colour, "bgcolor": "rgba(0,0,0,0)"}} if hatched else {}
    )
    return {
        "type": "bar",
        "orientation": "h",
        "name": "unallocated" if leaf is None else label(leaf),
        "marker": {**marker, **pattern},
        "base": [bar.from_ms for bar in bars],
        "x": [bar.to_ms - bar.from_ms for bar in bars],
        "y": [round((bar.low + bar.high) / 2, 4) for bar in bars],
        "width": [round(bar.high - bar.low, 4) for bar in bars],
        "text": [label(f"{bar.run.job}, {bar.run.gpus} GPUs, {bar.run.end.replace('_', ' ')}") for bar in bars],
        "textposition": "none",
        "hovertemplate": "%{text}",
    }


def _marks(bars: list[Bar], runs: list[Run], view: Span) -> Trace:
    evicted = {run.attempt: run for run in runs}
    marks = [bar for bar in bars if bar.run.attempt in evicted and bar.to_ms == min(bar.run.ended_at_ms, view.to_ms)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "told to leave",
        "hovertemplate": "%{text}",
        "marker": {"symbol": "x", "color": EVICTED, "size": 7, "line": {"width": 1, "color": "var(--page)"}},
        "x": [bar.run.ordered_at_ms or bar.run.ended_at_ms for bar in marks],
        "y": [round((bar.low + bar.high) / 2, 4) for bar in marks],
        "text": [label(f"{bar.run.job} left for {bar.run.claimant or 'nobody in particular'}") for bar in marks],
    }


def _evictions(runs: list[Run], view: Span) -> Grid:
    rows = [
        (
            words.duration((max(run.ordered_at_ms or run.ended_at_ms, view.from_ms) - view.from_ms) / 1_000),
            *(run.job, run.leaf or "unallocated", str(run.gpus), run.claimant or words.DASH),
            words.number(run.lost_gpu_ms / HOUR_MS, 1),
        )
        for run in sorted(runs, key=lambda each: (each.ordered_at_ms or each.ended_at_ms, each.attempt))
    ]
    return Grid(("After#", "Job", "Team", "GPUs#", "For", "Lost GPU-hours#"), rows)
