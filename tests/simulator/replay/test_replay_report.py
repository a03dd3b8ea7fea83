"""What a manager reads: tables and sentences, also where names are hostile, teams are missing or nothing was owed."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from allmende.proto.admission import PastJob
from allmende.proto.budget import Budget
from allmende.simulator.replay import report
from allmende.simulator.replay.columns import Replay
from tests.simulator.replay.builders import LENGTH, books, past, past_job, tree
from tests.simulator.replay.test_columns import columns

RAN = past_job(1, (0, 60, "finished"), until=60)
BOTH = (past_job(1, (0, 30, "finished"), until=30), past_job(2, (30, 90, "finished"), until=90, budget="tools"))


def printed(found: Replay, width: int = 140) -> str:
    file = io.StringIO()
    report.render(found, Console(file=file, width=width, color_system=None))
    return file.getvalue()


def of(*jobs: PastJob, proposal: Sequence[Budget] | None = None, length: float = LENGTH) -> Replay:
    return columns(past(*jobs, length=length, books=books([8] * round(length / 10), 10)), proposal)


# Jobs, a proposal (None: a tenth for vision), and what is read.
READ: dict[str, tuple[tuple[PastJob, ...], Sequence[Budget] | None, list[str]]] = {
    "what it is, in a sentence": ((RAN,), None, ["proposal.toml on c1, 8 GPUs: the last 1h 40m as they were, and again"]),
    "three columns": ((RAN,), None, ["AS IT WAS", "TODAY'S TREE", "PROPOSAL"]),
    "each team three times": ((RAN,), None, ["vision as it was", " today's tree", " proposal"]),
    "what is unknown is a dash": ((past_job(1, (0, 9, "evicted")),), None, ["lost to evictions - 0.0 %"]),
    "teams that were owed nothing have no ratio": ((RAN,), None, ["tools as it was 50 % 0.000 0.000 -"]),
    "a leaf that the proposal lacks": ((RAN,), tree(tools=50), ["proposal no leaf - -"]),
    "how far from the truth": (
        (RAN,), None, ["(today's tree against as it was): delivered/owed weekly 1.000 against 1.000; 8.000"]
    ),
    "that nothing changes": ((RAN,), tree(vision=50, tools=50), ["no team gets more or fewer GPU-hours."]),
    "who gets fewer, and how much": ((RAN,), tree(tools=50), ["fewer GPU-hours for vision (-8.000, -100 %)."]),
    "who gets more and who fewer": (
        (past_job(1, (0, 80, "finished"), until=80), past_job(2, (0, 80, "finished"), until=80, budget="tools")),
        tree(vision=99, tools=1), ["tree): more GPU-hours for vision (+8.0", ", +301 %); fewer GPU-hours for tools (-8.0"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", READ)
def test_it_reads(sentence: str) -> None:
    jobs, proposal, expected = READ[sentence]
    # How wide a column is says nothing.
    text = " ".join(printed(of(*jobs, proposal=proposal)).split())
    assert [each for each in expected if each not in text] == [], text


@pytest.mark.parametrize(("days", "said"), [(1, "the last 1 day as"), (2, "the last 2 days as"), (1.5, "the last 1.5 days as")])
def test_days(days: float, said: str) -> None:
    assert said in printed(of(RAN, length=days * 1_440))


def test_through_a_pipe_a_sentence_is_one_line_however_long() -> None:
    lines = printed(of(*BOTH), width=60).splitlines()
    assert any(line.startswith("How far") and line.endswith(".") for line in lines)


def test_the_json_has_every_column_and_no_more_than_is_known() -> None:
    found = of(past_job(1, (0, 9, "evicted")))
    text = report.encode(found)
    value = json.loads(text)
    assert text.endswith(b"\n")
    assert list(value["columns"]) == ["was", "today", "proposal"]
    assert [column["lab"]["lost_fraction"] for column in value["columns"].values()] == [None, 0.0, 0.0]
    assert {team["budget"] for team in value["columns"]["proposal"]["teams"]} == {"vision", "tools"}


def test_a_name_can_neither_command_a_terminal_nor_a_page(tmp_path: Path) -> None:
    found = replace(of(RAN), proposal_file="<script>\x1b[2J[red]x[/red].toml")
    text = printed(found)
    assert "[red]x[/red].toml" in text
    assert "\x1b" not in text
    report.write(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_a_page_is_whole_or_absent_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    report.write(of(RAN), tmp_path / "page.html")
    first = (tmp_path / "page.html").read_bytes()
    assert first.endswith(b"</html>\n")
    (tmp_path / "link").symlink_to("page.html")
    report.write(of(*BOTH), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.html").read_bytes() != first
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "page.html"]
