"""The page: well-formed, needs no network, harmless whatever a budget is called, and readable without its plots."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from allmende.proto.placement import NodeReplicas
from allmende.simulator import figures
from allmende.simulator.model import Cluster, History, NodeChange, NodeSpec
from allmende.simulator.report import html
from allmende.simulator.report.html import timeline
from allmende.simulator.report.html.colours import HUES, inks
from allmende.simulator.report.html.page import page
from tests.simulator.figures.builders import at, generated, history, job, life, run

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "<script>alert(1)</script>"
NAMES = (
    HOSTILE,
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a & b",
    '<a href="javascript:x">b</a>',
    "x\x00\x1by",
)


class Page(HTMLParser):
    """Reads a page and remembers what is in it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] == "script" else self.words).append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _attributes in self.tags)


def drawn(told: History) -> str:
    return page(told, figures.measure(told))


def plots(text: str) -> list[dict[str, object]]:
    (data,) = re.findall(r'<script type="application/json" id="plots">(.*?)</script>', text, flags=re.DOTALL)
    found: list[dict[str, object]] = json.loads(data)
    return found


@pytest.mark.parametrize(
    "told",
    [generated(1), generated(1, cut_ms=at(3.5)), generated(1, cut_ms=at(-5)), history(), history(trees=[])],
    ids=["whole", "cut", "in the warm-up", "empty", "without a tree"],
)
def test_the_page_is_well_formed_and_asks_for_nothing(told: History) -> None:
    text = drawn(told)
    found = Page(text)
    assert found.open == []
    assert [tag for tag, _attributes in found.tags if tag in {"link", "img", "iframe", "object", "base", "form"}] == []
    assert [each for each in found.tags if {"src", "href", "srcset", "action", "xlink:href"} & each[1].keys()] == []
    assert [each for each in found.tags if any(name.startswith("on") for name in each[1])] == []
    without_plotly = text.replace(get_plotlyjs(), "")
    assert re.findall(r"https?:|url\(|@import|//\w+\.\w+", without_plotly) == []
    policy = next(attributes["content"] for tag, attributes in found.tags if attributes.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


@pytest.mark.parametrize("name", NAMES)
def test_no_name_can_do_harm(name: str) -> None:
    made = job("j" + name, name, user=name, gpus=256)
    told = history(
        [life(made, name, None), life(job("k", name), name, 0)],
        [run("k", 0, 2, name, end="evicted", ordered_at_ms=at(2), claimant="j" + name)],
        {name: 100},
        policy=name,
        standings=generated(1, days=1).standings,
    )
    text = drawn(told)
    found, clean = Page(text), Page(drawn(history([life(job("k"), "a", 0)], [run("k", 0, 2)])))
    assert found.count("script") == clean.count("script") == 3
    assert found.count("img") == found.count("a") == 0
    readable = name.replace("\x00", "\N{REPLACEMENT CHARACTER}").replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    assert any(readable in word for word in found.words)
    for plot in plots(text):
        # Inside a plot, plotly reads tags: none may be left.
        assert "<" not in re.sub(r'"title": "[^"]*"', "", json.dumps(plot))


def test_each_plot_has_a_caption_and_a_table() -> None:
    text = drawn(generated(1))
    found = Page(text)
    assert found.count("figure") == found.count("figcaption") == 6
    assert found.count("table") >= 7
    ids = [attributes.get("id") for _tag, attributes in found.tags]
    for plot in plots(text):
        assert plot["id"] in ids
    labels = [attributes for _tag, attributes in found.tags if attributes.get("role") == "img"]
    assert len(labels) == len(plots(text))
    assert all(label["aria-label"] for label in labels)
    words = " ".join(found.words)
    for expected in (
        "Who held the GPUs",
        "One day, node by node",
        "Delivered against owed",
        "How long jobs waited",
        "Ai2: 13 of 15",
    ):
        assert expected in words


def test_a_run_that_was_cut_short_says_so_far() -> None:
    assert "so far, 0.5 of 3 days" in " ".join(Page(drawn(generated(1, cut_ms=at(12)))).words)


def test_what_the_run_cost_and_notes_stand_on_the_page(tmp_path: Path) -> None:
    told = generated(1, days=1)
    measured = figures.measure(told)
    html.write(tmp_path / "report.html", told, measured, figures.cost(12, 300, measured.events), ["Bad <rows>: 3."])
    words = Page((tmp_path / "report.html").read_text(encoding="utf-8")).words
    assert any("300 MiB" in word for word in words)
    assert "Bad <rows>: 3." in words


def test_a_month_of_128_nodes_stays_small() -> None:
    told = generated(1, days=30, nodes=128, jobs_a_day=40)
    # A hundred times as many attempts: what is drawn must not grow with them.
    told.runs = [each._replace(attempt=f"{each.attempt}/{number}") for each in told.runs for number in range(100)]
    text = drawn(told)
    assert len(text) < 8_000_000
    assert len(text) - len(get_plotlyjs()) < 3_000_000


def test_a_busy_day_is_cut_to_what_a_browser_can_draw() -> None:
    jobs = [(f"j{number}", number * 0.002) for number in range(12_000)]
    lives = [life(job(name, gpus=1, submitted=start), "a", start, start + 0.002) for name, start in jobs]
    runs = [run(name, start, start + 0.002, gpus=1) for name, start in jobs]
    section = timeline.section(told := history(lives, runs, hours=24), figures.measure(told), inks(["a"]))
    assert section is not None
    assert "6 hours of day 1" in section.caption
    assert 2_000 < sum(len(trace["y"]) for trace in section.plots[0].traces) <= timeline.BARS_MAX


def test_a_gang_on_neighbouring_nodes_is_one_bar_and_an_eviction_a_cross() -> None:
    nodes = tuple(NodeSpec(f"n{number}", 8) for number in range(4))
    placement = tuple(NodeReplicas(f"n{number}", 8) for number in (0, 1, 3))
    gang = run("j", 0, 3, gpus=24, placement=placement, end="evicted", ordered_at_ms=at(2.9), claimant="k")
    told = history([life(job("j", gpus=24), "a", 0)], [gang], cluster=Cluster("c1", nodes), nodes=[NodeChange(at(-24), "n0", 8)])
    section = timeline.section(told, figures.measure(told), inks(["a"]))
    assert section is not None
    protected, past, marks = section.plots[0].traces
    # Nodes 0 and 1 together, node 3 alone; an hour of slice, then two hatched.
    assert [protected["base"], protected["x"]] == [[at(0)] * 2, [3_600_000] * 2]
    assert [round(width, 2) for width in protected["width"]] == [1.86, 0.86]
    assert [past["base"], past["marker"]["pattern"]["shape"]] == [[at(1)] * 2, "/"]
    assert [marks["x"], marks["text"]] == [[at(2.9)] * 2, ["j left for k"] * 2]
    assert section.grid.rows == [("2h 54m", "j", "a", "24", "k", "0.0")]


def test_a_team_keeps_its_colour_when_others_join() -> None:
    few, many = inks(["a", "b"]), inks(["a", "b", *(f"t{number}" for number in range(30))])
    assert few == {name: many[name] for name in few}
    assert len({tuple(ink) for ink in list(many.values())[: 3 * len(HUES)]}) == 3 * len(HUES)
