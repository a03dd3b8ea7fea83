"""The summary on the terminal, as a reader sees it at some width."""

import io
from typing import Any

import pytest
from rich.console import Console

from allmende.simulator import figures
from allmende.simulator.figures import Comparison, Cost, Figures
from allmende.simulator.report import terminal
from tests.simulator.figures.builders import at, generated, history, job, life, run


def printed(given: Figures | Comparison, width: int = 120, **told: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None)
    if isinstance(given, Comparison):
        terminal.render_comparison(given, console)
    else:
        terminal.render(given, console, **told)
    return file.getvalue()


def small(**told: Any) -> Figures:
    return figures.measure(history([life(job("j"), "a", 1, 4)], [run("j", 1, 4)], **told))


SAID: dict[str, tuple[Figures, dict[str, Any], list[str]]] = {
    "a sentence above everything": (
        small(),
        {},
        ["by-hand on 8 GPUs, 0.2 days: 75.0 % of the available GPU time was held; 0 of 1 teams got at least 95 % of what they"],
    ),
    "Ai2's own figures in brackets": (small(), {}, ["[0.98]", "[13 of 15]", "[0.90]", "[30s]"]),
    "a run that was cut short says so far": (small(reached_ms=at(2)), {}, ["so far, 0.1 of 0.2 days"]),
    "a run that was cut in its warm-up has nothing to say": (small(reached_ms=at(-1)), {}, ["nothing to measure yet"]),
    "nothing owed, no worst team": (small(trees=[]), {}, ["no team was owed anything"]),
    "what the run cost": (
        small(),
        {"cost": Cost(runtime_s=95.2, peak_mib=321.4, events=2_000, ms_per_event=0.0476)},
        ["took 1m 35s and 321 MiB for 2,000 job events, 0.048 ms each"],
    ),
    "a scenario's notes": (small(), {"notes": ["Nothing was skipped."]}, ["Nothing was skipped."]),
    "a name that looks like markup is a name": (small(policy="[red]x[/red]"), {}, ["[red]x[/red] on 8 GPUs"]),
    "a name cannot command the terminal": (small(policy="x\x1b[2Jy"), {}, ["x\N{REPLACEMENT CHARACTER}[2Jy on 8 GPUs"]),
    "large jobs that never started": (
        figures.measure(history([life(job(f"big{number}", gpus=256)) for number in range(7)])),
        {},
        ["the 5 that waited longest of 7", "7 waiting", "big0"],
    ),
}


@pytest.mark.parametrize("sentence", SAID)
def test_summary(sentence: str) -> None:
    given, told, expected = SAID[sentence]
    text = printed(given, **told)
    assert [each for each in expected if each not in text] == []


def test_no_cost_no_sentence_about_it() -> None:
    assert "MiB" not in printed(small())


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_line_fits_and_no_figure_is_folded(width: int) -> None:
    lines = printed(figures.measure(generated(1)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("[13 of 15]" in line for line in lines)


def test_several_runs_stand_side_by_side() -> None:
    told = [history([life(job("j"), "a", 1, 4)], [run("j", 1, 4)], policy=name) for name in ("allmende", "fi\x1bfo")]
    text = printed(figures.compare(told), 100)
    assert "allmende" in text
    assert "fi\N{REPLACEMENT CHARACTER}fo" in text
    rows = {line.strip().split("  ")[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["occupancy"][-2:] == ["0.750", "0.750"]
    assert rows["wait of all, p90"][-2:] == ["1h", "1h"]
