"""`allmende budgets replay` against a lab of `allmende up` that has a past: what was is what was, and the lab is as it was.

Asked by the lab's dashboard, whom the bus lets publish nothing and ask nothing that changes anything. The tests share the lab and
run in the order in which they stand.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from allmende.cli.app import app
from tests.cli.terminal import Said, Terminal, lab_with

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    # Real servers start here; a machine with little time left needs more than a minute for it.
    pytest.mark.timeout(120),
]

TREE = '[lab]\n[lab.vision]\nshare = "60%"\nmembers = ["ada"]\n[lab.tools]\nshare = "40%"\nmembers = ["ada", "bob"]\n'
PROPOSAL = TREE.replace("60%", "10%").replace("40%", "90%")
# Who asks for what: everything fits at once.
JOBS = (
    ("ada", ("--budget", "vision", "--gpus", "8", "--slice", "1s")),
    ("bob", ("--budget", "tools", "--gpus", "2", "--replicas", "2", "--slice", "1h")),
    ("bob", ("--gpus", "1")),
)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("past")
    (folder / "proposal.toml").write_text(PROPOSAL)
    with lab_with(folder, TREE, "ada", "bob") as terminal:
        yield terminal


def typed(terminal: Terminal, *words: str, user: str | None = None, **more: str) -> Said:
    """Type a command in this very process: the lab's own processes want the time that starting one takes."""
    environment = {"ALLMENDE_LAB": str(terminal.folder), "ALLMENDE_USER": user or ""} | more
    done = CliRunner().invoke(app, list(words), env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


def on_the_wall(terminal: Terminal, *words: str) -> Said:
    """Type as the lab's dashboard."""
    place = json.loads((terminal.folder / "lab.json").read_text())
    screen = {
        "ALLMENDE_LAB": "",
        "ALLMENDE_NATS_URL": place["nats_url"],
        "ALLMENDE_NATS_SEED_FILE": str(terminal.folder / "seeds" / "dashboard.screen.nk"),
        "ALLMENDE_ROLE": "dashboard",
    }
    return typed(terminal, *words, user="screen", **screen)


def replayed(terminal: Terminal, *words: str) -> Said:
    return on_the_wall(terminal, "budgets", "replay", "--proposal", str(file(terminal, "proposal.toml")), *words)


def test_a_lab_in_which_nothing_happened_has_nothing_to_replay(terminal: Terminal) -> None:
    terminal.wait_for(lambda: typed(terminal, "nodes", "--json").json["nodes"], "nodes")
    said = replayed(terminal)
    assert (said.code, said.out) == (1, "")
    assert said.err == "allmende: no job lived on c1 in that time: there is nothing to replay [empty_history]\n"


def test_the_past_is_the_labs_own_and_the_lab_stays_as_it_is(terminal: Terminal) -> None:
    for user, options in JOBS:
        assert typed(terminal, "submit", *options, "--", "synthetic-job", "--runtime-ms", "1500", user=user).code == 0
    terminal.wait_for(lambda: {job["outcome"] for job in jobs(terminal)} == {"finished"}, "all have finished")
    before = (typed(terminal, "budgets", "show", "--json").json, jobs(terminal))
    kept = str(file(terminal, "past.json"))
    said = replayed(terminal, "--json", "--days", "30", "--keep", kept)
    assert (said.code, said.err) == (0, "")
    found = said.json["columns"]
    assert list(found) == ["was", "today", "proposal"]
    for column in found.values():
        assert (column["lab"]["jobs_submitted"], column["lab"]["jobs_finished"], column["lab"]["evictions"]) == (3, 3, 0)
        assert column["lab"]["unallocated_gpu_hours"] > 0
        assert column["lab"]["available_gpu_hours"] > 0
    held = {key: {team["budget"]: team["delivered_gpu_hours"] for team in column["teams"]} for key, column in found.items()}
    # A job works as long as it did: 8 GPUs twice as much as 4, give or take how long starts and ends take.
    assert held["today"] == pytest.approx(held["was"], abs=1e-5)
    assert held["was"]["vision"] / held["was"]["tools"] == pytest.approx(2, rel=0.4)
    shares = {key: {team["budget"]: team["effective_share_ppm"] for team in column["teams"]} for key, column in found.items()}
    assert shares["was"] == shares["today"] == {"vision": 600_000, "tools": 400_000}
    assert shares["proposal"] == {"vision": 100_000, "tools": 900_000}
    assert (typed(terminal, "budgets", "show", "--json").json, jobs(terminal)) == before
    again = replayed(terminal, "--json", "--history", kept)
    assert again.out == said.out


def test_who_asked_could_not_have_changed_anything(terminal: Terminal) -> None:
    said = on_the_wall(terminal, "budgets", "set", "lab", "vision=50%", "tools=50%", "--reason", "try")
    assert (said.code, said.out) != (0, "")
    assert "may not ask" in said.err
    said = on_the_wall(terminal, "submit", "--gpus", "1", "--", "synthetic-job", "--runtime-ms", "1")
    assert said.code != 0


def test_a_person_reads_tables(terminal: Terminal) -> None:
    said = typed(terminal, "budgets", "replay", "--proposal", str(file(terminal, "proposal.toml")), user="ada")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("proposal.toml on c1, 16 GPUs: the last ")
    assert "the lab's history begins" in lines[1]
    assert any("AS IT WAS" in line for line in lines)
    assert any(line.startswith("What the proposal changes") for line in lines)


def file(terminal: Terminal, name: str) -> Path:
    return terminal.folder.parent / name


def jobs(terminal: Terminal) -> Any:
    return typed(terminal, "jobs", "--json").json["jobs"]
