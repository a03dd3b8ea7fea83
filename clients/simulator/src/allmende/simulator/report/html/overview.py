"""The plots over the whole window: GPUs by team, delivered against owed, waits, ratios, fragmentation.

Thinned to what a screen can show, so that the page stays small whatever the run's length. Never computes a figure: it draws the
hours, samples and waits that are there.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from allmende.proto.impact import SIZE_CLASSES, SIZE_TITLES
from allmende.proto.units import DAY_MS, HOUR_MS, SECOND_MS
from allmende.simulator.figures.model import Figures, TeamHours
from allmende.simulator.figures.span import measured
from allmende.simulator.figures.waits import waits
from allmende.simulator.model import History, RoomSample
from allmende.simulator.report import words
from allmende.simulator.report.html.colours import EVICTED, HUES, UNALLOCATED, Ink
from allmende.simulator.report.html.plot import Grid, Plot, Section, Trace, label, time_axis

# More areas side by side than this only flicker; lines may be as fine as a screen; a small plot is a fifth of one.
AREA_POINTS_MAX = 360
POINTS_MAX = 750
SMALL_POINTS_MAX = 120
CURVE_POINTS_MAX = 160
# More small plots would bury the page; the table holds every team.
SMALL_PLOTS_MAX = 24
RATIO_MAX = 3.0
HOURS_A_DAY = DAY_MS // HOUR_MS
WAIT_TICKS_S = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3_600: "1 h", 21_600: "6 h", 86_400: "1 d", 604_800: "7 d"}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def sections(history: History, figures: Figures, inks: dict[str, Ink]) -> list[Section]:
    """In the order of the page; empty where the window was not reached."""
    if not figures.hourly.available:
        return []
    return [
        _gpus(figures, inks),
        _delivered(figures, inks),
        _waits(history, figures),
        _ratios(history, figures, inks),
        _rooms(history, figures),
    ]


# -------------------------------------------------------------------------------------------------------------------------- GPUs


def _gpus(figures: Figures, inks: dict[str, Ink]) -> Section:
    hourly = figures.hourly
    size = -(-len(hourly.available) // AREA_POINTS_MAX)
    length_ms = hourly.to_ms - hourly.from_ms

    def gpus(amounts: Sequence[int]) -> list[float]:
        found = []
        for at in range(0, len(amounts), size):
            width_ms = min((at + size) * HOUR_MS, length_ms) - at * HOUR_MS
            found.append(round(sum(amounts[at : at + size]) / width_ms, 1))
        return [*found, found[-1]]

    def area(name: str, amounts: Sequence[int], colour: str, hatched: bool) -> Trace:
        pattern = {"fillpattern": {"shape": "/", "size": 6, "solidity": 0.35, "fgcolor": colour}} if hatched else {}
        return {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "gpus",
            "name": name,
            "x0": hourly.from_ms,
            "dx": size * HOUR_MS,
            "y": gpus(amounts),
            "line": {"shape": "hv", "width": 0, "color": colour},
            "fillcolor": colour,
            "hovertemplate": "%{y:.0f} GPUs",
            **pattern,
        }

    traces: list[Trace] = []
    for team in hourly.teams:
        if not any(team.delivered):
            continue
        ink, protected = inks[team.budget], [held - past for held, past in zip(team.delivered, team.past_slice, strict=True)]
        traces.append(area(f"{label(team.budget)}, in its slice", protected, ink.colour, hatched=False))
        traces.append(area(f"{label(team.budget)}, past it", team.past_slice, ink.colour, hatched=True))
    traces.append(area("unallocated", hourly.unallocated, UNALLOCATED, hatched=True))
    line = {"shape": "hv", "width": 1.5, "color": "var(--ink)"}
    available = {"type": "scatter", "mode": "lines", "name": "available", "line": line, "hovertemplate": "%{y:.0f} GPUs"}
    traces.append({**available, "x0": hourly.from_ms, "dx": size * HOUR_MS, "y": gpus(hourly.available)})
    layout = {"xaxis": {**time_axis(hourly.from_ms, hourly.to_ms), "anchor": "y2"}, **_stacked_axes(), "hovermode": "closest"}
    step = "each hour" if size == 1 else f"each {size} hours"
    return Section(
        "Who held the GPUs",
        f"Mean of {step}, over everything that was measured. Full colour: within a slice. Hatched: interruptible, past the "
        "slice or unallocated (grey). Red below: evictions. The line above is what was available; what is bare below it is idle "
        "or starting.",
        [Plot("", [*traces, _evictions(figures, size)], layout, 460)],
        "GPU-hours by day",
        _days(figures),
    )


def _evictions(figures: Figures, size: int) -> Trace:
    hourly = figures.hourly
    counts = [sum(hourly.evictions[at : at + size]) for at in range(0, len(hourly.evictions), size)]
    x0 = hourly.from_ms + size * HOUR_MS // 2
    placed = {"x0": x0, "dx": size * HOUR_MS, "y": counts, "yaxis": "y2"}
    return {"type": "bar", "name": "evictions", "marker": {"color": EVICTED}, "hovertemplate": "%{y} evictions", **placed}


def _stacked_axes() -> dict[str, Any]:
    return {
        "yaxis": {"title": {"text": "GPUs"}, "rangemode": "tozero", "domain": [0.22, 1]},
        "yaxis2": {"title": {"text": "evictions"}, "domain": [0, 0.14], "nticks": 3, "rangemode": "tozero"},
    }


def _days(figures: Figures) -> Grid:
    hourly = figures.hourly

    def day(at: int, amounts: Sequence[int]) -> int:
        return sum(amounts[at : at + HOURS_A_DAY])

    rows = []
    for at in range(0, len(hourly.available), HOURS_A_DAY):
        delivered = sum(day(at, team.delivered) for team in hourly.teams)
        past = sum(day(at, team.past_slice) for team in hourly.teams)
        amounts = (day(at, hourly.available), delivered, past, day(at, hourly.unallocated))
        evictions = words.number(day(at, hourly.evictions))
        rows.append((str(at // HOURS_A_DAY + 1), *(words.number(amount / HOUR_MS) for amount in amounts), evictions))
    return Grid(("Day#", "Available#", "Delivered#", "of it past its slice#", "Unallocated#", "Evictions#"), rows)


# ----------------------------------------------------------------------------------------------------------- delivered and owed


def _delivered(figures: Figures, inks: dict[str, Ink]) -> Section:
    most = sorted(figures.hourly.teams, key=lambda team: (-sum(team.owed), -sum(team.delivered), team.budget))
    shown = [team for team in most if any(team.owed) or any(team.delivered)]
    rest = f" The {SMALL_PLOTS_MAX} teams that were owed most, of {len(shown)}." if len(shown) > SMALL_PLOTS_MAX else ""
    rows = [
        (
            *(team.budget, words.share(team), words.number(team.entitled_gpu_hours), words.number(team.demand_gpu_hours)),
            *(words.number(team.owed_gpu_hours), words.number(team.delivered_gpu_hours), words.ratio(team.delivered_owed_plain)),
            *(words.ratio(team.delivered_owed_weekly), words.ratio(team.delivered_owed_strict)),
        )
        for team in words.by_share(figures)
    ]
    heads = ("Team", "Share#", "Entitled#", "Demand#", "Owed#", "Delivered#", "Plain#", "Weekly#", "Strict#")
    return Section(
        "Delivered against owed",
        "GPU-hours since the window's beginning. Full line: delivered. Dashed: owed, that is what the team's share entitled it to, "
        "or less where it asked for less. The number is the weekly ratio." + rest,
        [_cumulative(team, figures, inks) for team in shown[:SMALL_PLOTS_MAX]],
        "GPU-hours by team",
        Grid(heads, rows),
        small=True,
    )


def _cumulative(team: TeamHours, figures: Figures, inks: dict[str, Ink]) -> Plot:
    hourly = figures.hourly
    size = -(-len(hourly.available) // SMALL_POINTS_MAX)

    def line(name: str, amounts: Sequence[int], style: dict[str, Any]) -> Trace:
        sums = [0, *accumulate(amounts)]
        values = [round(amount / HOUR_MS, 1) for amount in sums[::size]]
        base = {"type": "scatter", "mode": "lines", "name": name, "x0": hourly.from_ms, "dx": size * HOUR_MS, "y": values}
        return {**base, "line": style, "hovertemplate": "%{y:,.0f} GPU-h"}

    weekly = next(each.delivered_owed_weekly for each in figures.teams if each.budget == team.budget)
    traces = [
        line("owed", team.owed, {"color": "var(--ink)", "dash": "dash", "width": 1.5}),
        line("delivered", team.delivered, {"color": inks[team.budget].colour, "width": 2.5}),
    ]
    layout = {"xaxis": {**time_axis(hourly.from_ms, hourly.to_ms), "nticks": 4}, "yaxis": {"nticks": 4, "rangemode": "tozero"}}
    return Plot(f"{team.budget}: {words.ratio(weekly)}", traces, layout, 170)


# ------------------------------------------------------------------------------------------------------------------------- waits


def _waits(history: History, figures: Figures) -> Section:
    listed = waits(history, measured(history))
    traces: list[Trace] = []
    for number, name in enumerate(each for each in words.WAIT_ROWS if each != "all"):
        waited = sorted(wait.waited_ms for wait in listed if SIZE_CLASSES[name](wait.gpus, wait.slice_ms))
        if not waited:
            continue
        ranks = _ranks(len(waited))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": SIZE_TITLES[name],
                "line": {"color": HUES[number], "dash": DASHES[number]},
                # A logarithmic axis has no 0: what started within a second stands at a second.
                "x": [max(1.0, waited[rank] / SECOND_MS) for rank in ranks],
                "y": [round(100 * (rank + 1) / len(waited), 2) for rank in ranks],
                "text": [words.duration(waited[rank] / SECOND_MS) for rank in ranks],
                "hovertemplate": "%{y:.0f} % within %{text}",
            }
        )
    ticks = {"tickvals": list(WAIT_TICKS_S), "ticktext": list(WAIT_TICKS_S.values())}
    layout = {
        "xaxis": {"type": "log", "title": {"text": "from submission to the first start"}, **ticks},
        "yaxis": {"title": {"text": "% of jobs"}, "range": [0, 101]},
        "showlegend": True,
    }
    rows = [
        (
            title,
            *(words.number(each.jobs), words.duration(each.p50), words.duration(each.p90), words.duration(each.max)),
            str(each.never_started),
        )
        for title, each in words.waits(figures)
    ]
    return Section(
        "How long jobs waited",
        "Allocated jobs of the window: how many had started after so long. Jobs that never started count with their wait so far.",
        [Plot("", traces, layout, 380)],
        "Waits by class",
        Grid(("Jobs", "Number#", "Half within#", "90 % within#", "Longest#", "Never started#"), rows),
    )


def _ranks(count: int) -> list[int]:
    step = max(1, count // CURVE_POINTS_MAX)
    return sorted({*range(0, count, step), count - 1})


# ------------------------------------------------------------------------------------------------------------------------ ratios


def _ratios(history: History, figures: Figures, inks: dict[str, Ink]) -> Section:
    span = measured(history)
    samples = [sample for sample in history.standings if span.has(sample.at_ms)]
    samples = samples[:: -(-len(samples) // (POINTS_MAX // 2)) or 1]
    traces: list[Trace] = []
    rows = []
    for team in figures.hourly.teams:
        values: list[float | None] = []
        for sample in samples:
            used, entitled = sample.standings.get(team.budget, (0, 0))
            values.append(round(used / entitled, 4) if entitled else None)
        known = [value for value in values if value is not None]
        if not known:
            continue
        ink = inks[team.budget]
        line = {"color": ink.colour, "dash": ink.dash, "width": 2}
        base = {"type": "scatter", "mode": "lines", "name": label(team.budget), "line": line, "hovertemplate": "%{y:.3f}"}
        traces.append({**base, "x": [sample.at_ms for sample in samples], "y": values})
        rows.append((team.budget, *(words.ratio(each) for each in (known[0], min(known), max(known), known[-1]))))
    top = min(RATIO_MAX, max((max(filter(None, trace["y"]), default=1.0) for trace in traces), default=1.0) * 1.05)
    thin = {"color": "var(--ink)", "width": 1, "dash": "dot"}
    one = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": thin}
    layout = {
        "xaxis": time_axis(span.from_ms, span.to_ms),
        "yaxis": {"title": {"text": "charged and held / entitled"}, "range": [0, max(1.2, top)]},
        "shapes": [one],
        "hovermode": "closest",
    }
    caption = (
        "Each team's standing over its look-back window. Below 1 a team is owed time and is served by its own ratio, smallest "
        "first; at 1 or above it comes after all of those."
    )
    if not traces:
        caption = "This policy keeps no standings."
    heads = ("Team", "First#", "Lowest#", "Highest#", "Last#")
    return Section("The ratio that sorts the queue", caption, [Plot("", traces, layout, 380)], "Ratios by team", Grid(heads, rows))


# ----------------------------------------------------------------------------------------------------------------- fragmentation


def _rooms(history: History, figures: Figures) -> Section:
    span = measured(history)
    rooms = [room for room in history.rooms if span.has(room.at_ms)]
    size = -(-len(rooms) // POINTS_MAX) or 1
    shown = [rooms[at : at + size] for at in range(0, len(rooms), size)]
    instants = [each[0].at_ms for each in shown]

    def mean(rooms: list[RoomSample], field: str) -> float:
        total: int = sum(getattr(room, field) for room in rooms)
        return round(total / len(rooms), 1)

    def area(name: str, field: str, colour: str, shape: str) -> Trace:
        base = {"type": "scatter", "mode": "lines", "name": name, "x": instants, "y": [mean(each, field) for each in shown]}
        return {**base, "fill": "tozeroy", "line": {"color": colour, "dash": shape, "width": 1.5}, "hovertemplate": "%{y:.0f} GPUs"}

    traces = [area("free", "free", HUES[4], "solid"), area("free on wholly free nodes", "free_on_empty_nodes", HUES[0], "dash")]
    axes = {"xaxis": time_axis(span.from_ms, span.to_ms), "yaxis": {"title": {"text": "GPUs"}, "rangemode": "tozero"}}
    whole = figures.fragmentation
    broken = words.percent(whole.broken_share)
    rows = []
    for number, day in enumerate(_by_day(rooms, span.from_ms), start=1):
        means = (mean(day, field) for field in ("free", "free_on_empty_nodes", "waiting_jobs", "waiting_gpus"))
        rows.append((str(number), *(words.number(each, 1) for each in means)))
    return Section(
        "How broken up the free room is",
        "Free GPUs at each sample, and those of them on nodes that are wholly free, which gangs need. "
        f"{broken} of all free GPU time lay on nodes that were partly held.",
        [Plot("", traces, {**axes, "showlegend": True}, 300)],
        "Means by day",
        Grid(("Day#", "Free#", "on free nodes#", "Jobs waiting#", "GPUs waited for#"), rows),
    )


def _by_day(rooms: Iterable[RoomSample], from_ms: int) -> list[list[RoomSample]]:
    days: dict[int, list[RoomSample]] = {}
    for room in rooms:
        days.setdefault((room.at_ms - from_ms) // DAY_MS, []).append(room)
    return list(days.values())
