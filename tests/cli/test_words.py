"""What people read: durations, ratios, tables that keep words whole, the demo's line and verdict. Pure."""

from datetime import UTC, datetime
from functools import reduce
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from allmende.cli import render
from allmende.cli.demo import live, summary
from allmende.cli.demo.plan import START_REAL_S, DemoPlan, clock_setting, load_begins_ms
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.lab.example import example_tree
from allmende.cli.place import LAB_FILE, Place, find, write
from allmende.proto.ledger import UsageStanding
from allmende.proto.standing import Standing
from allmende.proto.tree_file import read_tree
from allmende.proto.units import HOUR_MS, SECOND_MS


def drawn(what: object, width: int) -> list[str]:
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(
    ("sentence", "said", "expected"),
    [
        ("no instant is a dash", render.ago(None, 0), "-"),
        ("the past", render.ago(0, HOUR_MS), "1h ago"),
        ("the future", render.ago(HOUR_MS, 0), "in 1h"),
        ("now", render.ago(5, 5), "0s ago"),
        ("tenths are cut, thousands separated", render.gpu_hours(1_234 * HOUR_MS + HOUR_MS // 2), "1,234.5"),
        ("a ratio is rounded down", render.ratio(2, 3), "0.666"),
        ("a ratio above one", render.ratio(3, 2), "1.500"),
        ("no entitlement is no number", render.ratio(0, 0), "no share"),
        ("an unknown standing is a dash", render.ratio(None, 1), "-"),
        ("exactly served is not owed", render.tier(Standing(1, 1)), "over"),
        ("one below is owed", render.tier(Standing(0, 1)), "owed"),
        ("no share", render.tier(Standing(0, 0)), "no share"),
        ("one", render.count(1, "GPU"), "1 GPU"),
        ("none", render.count(0, "GPU"), "0 GPUs"),
        ("the end of an id tells it apart", render.short("01m8ty6y2pq3mcqq7pab0gtfa2"), "ab0gtfa2"),
    ],
)
def test_values_are_words(sentence: str, said: str, expected: str) -> None:
    assert said == expected, sentence


def test_a_listing_without_rows_is_its_title() -> None:
    assert drawn(render.table("no such jobs", ("JOB", "STATE"), []), 80) == ["no such jobs"]


def test_numbers_go_to_the_right() -> None:
    assert drawn(render.table("t", ("N#", "X"), [("5", "a"), ("500", "b")]), 80)[1:] == ["  N  X", "  5  a", "500  b"]


def test_on_a_narrow_screen_columns_go_but_words_stay_whole() -> None:
    table = render.table("t", ("JOB", "USER?", "NAME?"), [("ab0gtfa2", "somebody", "a-name")])
    whole = len("ab0gtfa2  somebody  a-name")
    assert drawn(table, whole)[2] == "ab0gtfa2  somebody  a-name"
    assert drawn(table, whole - 1)[2] == "ab0gtfa2  somebody"
    assert drawn(table, 10)[2] == "ab0gtfa2"


def test_a_sentence_takes_several_lines_and_is_complete() -> None:
    sentence = "needs 1 x 8 GPUs on c1; what is free and not earmarked has room for 0 replicas of that size"
    lines = drawn(render.table("t", ("JOB", "BECAUSE~"), [("ab0gtfa2", sentence)]), 60)[2:]
    assert len(lines) > 1
    assert " ".join(line.removeprefix("ab0gtfa2").strip() for line in lines) == sentence


@pytest.mark.parametrize(
    "spoilt", ["a\x1b[2Jb", "a\x1b]0;t\x07b", "a\x9b2Jb", "a\x00b", "a\x7fb", "a\rb", "a\u202eb", "a\u2066b", "a\u2028b"]
)
@pytest.mark.parametrize("tty", [False, True])
def test_nobodys_text_commands_a_terminal(spoilt: str, tty: bool) -> None:
    """Names, titles and reasons are anybody's: whoever lists them sees them, and his terminal obeys none of them."""
    whole = Group(f"{spoilt} said", render.table(spoilt, ("NAME", "WHY~"), [(spoilt, spoilt)]), Tree(Text(spoilt)))
    console = Console(width=200, markup=False, highlight=False, force_terminal=tty, no_color=True, file=StringIO())
    console.print(render.Harmless(whole))
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert "a" in shown
    assert "b" in shown
    ours = ("\x1b[1m", "\x1b[3m", "\x1b[0m")
    assert not any(
        each in reduce(lambda text, code: text.replace(code, ""), ours, shown)
        for each in "\x1b\x9b\x07\x00\x7f\r\u202e\u2066\u2028"
    )


def test_a_row_is_a_row_whatever_its_texts() -> None:
    rows = [("one\ntwo", "three\r\n\nfour"), ("five", "six\u2029seven")]
    assert drawn(render.table("t", ("NAME", "WHY~"), rows), 200)[2:] == ["one two  three  four", "five     six seven"]


def test_brackets_in_a_name_are_text() -> None:
    assert drawn(render.table("t", ("NAME",), [("[red]x[/red]",)]), 80)[2] == "[red]x[/red]"


# ------------------------------------------------------------------------------------------------------------------- where a lab is

PLACE = Place(nats_url="nats://127.0.0.1:1", seed_file="x", user="ada", role="operator", clusters=("c1",))


def test_a_lab_is_found_in_its_folder(tmp_path: Path) -> None:
    write(tmp_path, PLACE)
    assert find(tmp_path, {}) == PLACE
    assert find(None, {"ALLMENDE_LAB": str(tmp_path)}) == PLACE


def test_variables_name_a_lab_elsewhere_unless_a_folder_is_given(tmp_path: Path) -> None:
    environ = {"ALLMENDE_NATS_URL": "nats://there:4222", "ALLMENDE_USER": "bob"}
    assert find(None, environ) == Place(nats_url="nats://there:4222", seed_file=None, user="bob", role="user")
    write(tmp_path, PLACE)
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "user.bob.nk").touch()
    bob = find(tmp_path, environ)
    assert (bob.nats_url, bob.user, bob.role, bob.seed_file) == (
        PLACE.nats_url,
        "bob",
        "user",
        str(tmp_path / "seeds" / "user.bob.nk"),
    )


@pytest.mark.parametrize(
    ("content", "environ", "code", "word"),
    [
        (None, {}, Exit.UNREACHABLE, "allmende up"),
        (b"{", {}, Exit.UNREACHABLE, "cannot be read"),
        (msgspec.json.encode(PLACE), {"ALLMENDE_USER": "bob"}, Exit.USAGE, "--people bob"),
        (msgspec.json.encode(PLACE), {"ALLMENDE_USER": "../up"}, Exit.USAGE, "no key"),
    ],
)
def test_where_no_lab_is_the_sentence_says_what_to_do(
    tmp_path: Path, content: bytes | None, environ: dict[str, str], code: Exit, word: str
) -> None:
    if content is not None:
        (tmp_path / LAB_FILE).write_bytes(content)
    with pytest.raises(CommandFailed, match=word) as failed:
        find(tmp_path, environ)
    assert failed.value.exit_code == code


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(CommandFailed, match="ALLMENDE_ROLE"):
        find(None, {"ALLMENDE_NATS_URL": "x", "ALLMENDE_ROLE": "king"})


def test_the_example_tree_may_be_loaded() -> None:
    assert read_tree(example_tree("ada")).faults == ()


# ------------------------------------------------------------------------------------------------------------------------ the demo


def plan(trace: Path | None = None, trace_from: str = "2017-10-05") -> DemoPlan:
    return DemoPlan(seconds=60, seed=1, rate=360, gpus=1_024, trace=trace, trace_from=trace_from, json_file=None, folder=None)


def test_the_load_begins_on_the_hour_after_the_start() -> None:
    real_ms = 1_796_200_000_000
    began_ms = load_begins_ms(plan(), real_ms)
    assert began_ms % HOUR_MS == 0
    assert 0 < began_ms - real_ms <= HOUR_MS
    assert clock_setting(plan(), real_ms) == f"{real_ms}:{began_ms - START_REAL_S * 360 * SECOND_MS}:360"


def test_a_trace_begins_on_its_day() -> None:
    day = datetime(2017, 10, 5, tzinfo=UTC)
    assert load_begins_ms(plan(Path("t.csv")), 0) == int(day.timestamp()) * SECOND_MS
    with pytest.raises(CommandFailed, match="not a date"):
        load_begins_ms(plan(Path("t.csv"), "5.10.2017"), 0)


def standing(budget: str, used: int, owed: int) -> UsageStanding:
    return UsageStanding(
        cluster="demo",
        budget=budget,
        as_of_ms=0,
        usage_revision=1,
        tree_revision=1,
        counted_grants=0,
        charged_gpu_ms=used,
        held_gpu_ms=0,
        entitlement_gpu_ms=owed,
        available_gpus=8,
    )


def moment(healthy: int) -> live.Moment:
    return live.Moment(
        elapsed_ms=HOUR_MS,
        healthy=healthy,
        held=6,
        waiting=3,
        submitted=9,
        started=5,
        ended=2,
        evicted=1,
        standings={"rich": standing("rich", 3, 2), "poor": standing("poor", 1, 2), "lab": standing("lab", 4, 4)},
        leaves=("poor", "rich", "silent"),
    )


def test_the_demos_line_and_panel() -> None:
    line = " ".join(live.line(moment(8)).split())
    assert line == "1h 6/8 GPUs held (75.0 %) 3 wait 9 submitted 5 starts 2 ended 1 eviction"
    assert "(0.0 %)" in live.line(moment(0))
    lines = drawn(live.panel(moment(8)), 200)
    teams = [line.split()[0] for line in lines if line.startswith(("poor", "rich", "lab"))]
    assert teams == ["poor", "rich"], "leaves only, most owed first"


FIGURES: dict[str, Any] = {
    "jobs_submitted": 2_000,
    "jobs_started": 1_900,
    "jobs_finished": 1_800,
    "evictions": 7,
    "evictions_unexplained": 0,
    "occupancy": 0.97,
    "availability": 1.0,
    "unallocated_share": None,
    "delivered_owed_plain": 1.0,
    "delivered_owed_strict": 0.9,
    "slice_violations": 0,
    "ledger_difference_gpu_ms": 0,
    "postings_lost": 0,
    "postings_duplicated": 0,
    "waits_s": {name: {"p50": 1.5, "p90": None, "max": 3_600} for name in ("debug", "all", "large")},
    "teams": [
        {"budget": "a", "effective_share_ppm": 100_000, "delivered_owed_plain": 1.0, "delivered_owed_strict": None},
        {"budget": "b", "effective_share_ppm": 200_000, "delivered_owed_plain": 1.0, "delivered_owed_strict": 1.0},
    ],
}


def test_the_summary_shows_every_figure() -> None:
    lines = drawn(summary.drawn(FIGURES, []), 200)
    text = "\n".join(lines)
    assert "2,000" in text
    assert "0.970" in text
    assert [line.split()[0] for line in lines if line.startswith(("a ", "b "))] == ["b", "a"], "the largest share first"


@pytest.mark.parametrize("name", summary.MUST_BE_ZERO)
def test_any_promise_that_was_not_kept_is_the_exit_code(name: str) -> None:
    assert summary.verdict(FIGURES) == 0
    assert summary.verdict(FIGURES | {name: 1}) == 1
    assert summary.verdict(FIGURES | {name: -1}) == 1
