"""A budget is closed at the command line while its jobs run and wait. One lab; then how the answers read."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from allmende.cli.commands.tree_closing import Closed, Jobs, afterwards, now
from tests.cli.terminal import Terminal, lab_with

FILE = """
[lab]
[lab.vision]
share = "60%"
managers = ["mia"]
[lab.vision.detection]
share = "50%"
members = ["ada"]
[lab.vision.tracking]
share = "50%"
members = ["bob"]
[lab.tools]
share = "40%"
members = ["bob"]
"""
JOB = ("--", "synthetic-job", "--runtime-ms", "7200000")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with lab_with(tmp_path_factory.mktemp("closing"), FILE, "ada", "bob", "mia") as terminal:
        yield terminal


def submitted(terminal: Terminal) -> str:
    options = ("--budget", "detection", "--gpus", "8", "--slice", "1h")
    said = terminal.type("submit", "--json", *options, *JOB, user="ada")
    assert said.code == 0, said
    return str(said.json["job"])


def why(terminal: Terminal, job: str) -> dict[str, Any]:
    found: dict[str, Any] = terminal.type("why", job, "--json").json
    return found


def nodes(terminal: Terminal) -> dict[str, dict[str, Any]]:
    return {each["node"]: each for each in terminal.type("nodes", "--json").json["nodes"]}


def close(terminal: Terminal, *words: str, user: str = "mia") -> Any:
    return terminal.type("budgets", "close", "detection", "--reason", "the project is over", *words, user=user)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.timeout(180)  # a lab, and some twenty commands, each a process of its own
def test_what_runs_keeps_its_slice_and_what_waits_starts_under_the_other_budget(terminal: Terminal) -> None:
    terminal.wait_for(lambda: len(nodes(terminal)) == 2, "nodes")
    later = max(nodes(terminal))
    assert terminal.type("nodes", "cordon", later, "--reason", "kept for later").code == 0
    terminal.wait_for(lambda: nodes(terminal)[later]["cordoned_from_ms"], "admission knows")
    runs = submitted(terminal)
    terminal.wait_for(lambda: why(terminal, runs)["job"]["state"] == "running", "it runs")
    waits = submitted(terminal)

    alone = close(terminal)
    assert (alone.code, "[jobs_to_missing]" in alone.err) == (1, True), alone
    assert "jobs of detection now: waiting 1, running 1 (on " in alone.err
    assert "[foreign_place]" in close(terminal, "--jobs-to", "tools").err
    assert close(terminal, "--jobs-to", "tracking", "--expect", "7").code == 3
    done = close(terminal, "--jobs-to", "tracking")
    assert done.out.startswith("revision 2 is in force: detection is closed\nits waiting jobs (1) go on in tracking"), done

    terminal.wait_for(lambda: why(terminal, waits)["job"]["budget"] == "tracking", "it has another budget")
    assert "its budget detection was closed: it waits under tracking" in terminal.type("why", waits).out
    late = terminal.type("submit", "--budget", "detection", "--gpus", "8", "--slice", "1h", *JOB, user="ada")
    assert (late.code, "its jobs went to tracking" in late.out, "[budget_closed]" in late.out) == (1, True, True), late

    assert terminal.type("nodes", "uncordon", later, "--reason", "now").code == 0
    terminal.wait_for(lambda: why(terminal, waits)["job"]["state"] == "running", "the next one runs")
    told = why(terminal, runs)
    assert (told["job"]["state"], told["job"]["budget"], len(told["attempts"])) == ("running", "detection", 1)
    assert "this attempt keeps its slice" in told["decisions"][-1]["sentence"]
    assert "detection" in {each["budget"] for each in terminal.type("standings", "--json").json["standings"]}
    history = terminal.type("budgets", "history", "--budget", "detection").out
    assert "mia: the project is over\n  detection: gone\n  its jobs went to tracking\n" in history


def test_answers_say_what_becomes_of_jobs_and_what_is_unknown() -> None:
    full = Jobs(waiting=100, running=2, clusters=("jupiter", "saturn"), more=True)
    assert now("x", full) == "jobs of x now: waiting 100, running 2 (on jupiter, saturn), and more"
    assert now("x", Jobs(waiting=0, running=0, clusters=(), more=False)) == "jobs of x now: waiting 0, running 0"
    assert "is not known" in now("x", None)
    assert "(at least 100) go on in y" in afterwards(Closed(revision=2, budget="x", jobs_to="y", jobs=full))
    closed = Closed(revision=2, budget="x", jobs_to="y", jobs=None)
    assert afterwards(closed).startswith("its waiting jobs go on in y, each in its place; what runs keeps")
