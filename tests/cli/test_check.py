"""`allmende budgets check` and other command lines that need no server: exit codes, and every fault by its code."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from allmende.cli.app import app
from allmende.cli.lab.example import example_tree

LEAF = '[lab]\n[lab.a]\nshare = "{}"\n'


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        ("", ["empty_tree"]),
        ("[lab", ["malformed_toml"]),
        (b"\xff", ["not_utf8"]),
        ("a = 1\n[lab]\n", ["unknown_key"]),
        ("[lab]\nshares = '35%'\n", ["unknown_key"]),
        ("[lab]\ntitle = 3\n", ["wrong_type"]),
        ("[lab]\n[lab.a]\nshare = 35\n", ["invalid_share"]),
        (LEAF.format("350%"), ["invalid_share"]),
        ("[lab]\nshare = '50%'\n", ["root_share"]),
        ("[lab]\n[other]\n", ["several_roots"]),
        ("[lab]\n[lab.UPPER]\n", ["invalid_name"]),
        ("[lab]\n[lab.a]\n[lab.b]\n[lab.b.a]\n", ["duplicate_budget"]),
        ("[lab]\n[lab.a]\nshare = '60%'\n[lab.b]\nshare = '40.0001%'\n", ["shares_exceed_parent"]),
        ("[lab]\nmembers = ['ada']\n[lab.a]\n", ["members_on_inner_budget"]),
        ("[lab]\nmanagers = ['ada', 'ada']\n", ["duplicate_person"]),
        (f"[lab]\ntitle = '{'x' * 201}'\n", ["title_too_long"]),
        ("[a.b.c.d.e.f.g.h.i]\n", ["too_deep"]),
        ("[lab]\nshares = 1\n[lab.a]\nshare = 'lots'\n", ["unknown_key", "invalid_share"]),
    ],
)
def test_every_fault_is_named(tmp_path: Path, content: str | bytes, codes: list[str]) -> None:
    file = tmp_path / "budgets.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    exit_code, output, _ = run("budgets", "check", str(file), "--json")
    assert exit_code == 1
    assert [fault["code"] for fault in json.loads(output)["faults"]] == codes
    exit_code, output, _ = run("budgets", "check", str(file))
    assert exit_code == 1
    assert [line.rpartition("[")[2].rstrip("]") for line in output.splitlines()] == codes
    assert all(line.startswith(f"{file}: ") for line in output.splitlines())


def test_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(example_tree("ada"))
    assert run("budgets", "check", str(file)) == (0, f"{file}: good, 7 budgets, 4 of them leaves\n", "")
    exit_code, output, _ = run("budgets", "check", str(file), "--json")
    assert exit_code == 0
    assert json.loads(output) == {"file": str(file), "budgets": 7, "leaves": 4, "faults": []}


def test_shares_may_sum_to_exactly_the_whole(tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text("[lab]\n[lab.a]\nshare = '60%'\n[lab.b]\nshare = '40%'\n")
    assert run("budgets", "check", str(file))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("budgets", "check", "/nowhere.toml"), 2, "cannot be read"),
        (("budgets", "load", "/nowhere.toml", "--reason", "x"), 2, "cannot be read"),
        (("budgets", "set", "lab", "a=35%"), 2, "--reason"),
        (("budgets", "set", "lab", "a", "--reason", "x"), 2, "a=35%"),
        (("budgets", "set", "lab", "a=lots", "--reason", "x"), 2, "not a share"),
        (("jobs", "--state", "asleep"), 2, "queued, starting"),
        (("jobs", "--user", "No Body"), 2, "not a name"),
        (("queue", "--limit", "0"), 2, "--limit"),
        (("why", "abc"), 2, "too short"),
        (("cancel", "abc"), 2, "too short"),
        (("submit",), 2, "COMMAND"),
        (("submit", "--slice", "2x", "--", "true"), 2, "not a duration"),
        (("submit", "--max-runtime", "", "--", "true"), 2, "'' is not a duration"),
        (("submit", "--runtime", "", "--", "true"), 2, "'' is not a duration"),
        (("run", "--max-runtime", "", "--", "true"), 2, "'' is not a duration"),
        (("submit", "--env", "A", "--", "true"), 2, "KEY=VALUE"),
        (("submit", "--gpus", "0", "--", "true"), 2, "--gpus"),
        (("submit", "--model", "H100", "--", "true"), 2, "not a name"),
        (("submit", "--name", "x" * 201, "--", "true"), 2, "200"),
        (("up", "--budgets", "/nowhere.toml"), 2, "cannot be read"),
        (("up", "--lab", "/dev/null/lab"), 2, "choose another with --lab"),
        (("demo", "--trace", "/nowhere.csv"), 2, "not a file"),
        (("queue", "--lab", "/nowhere"), 69, "allmende up"),
        (("submit", "--lab", "/nowhere", "--", "true"), 69, "allmende up"),
        (("nodes", "--lab", "/nowhere", "--watch"), 69, "allmende up"),
    ],
)
def test_a_refused_command_line_says_what_to_do(tmp_path: Path, arguments: tuple[str, ...], code: int, word: str) -> None:
    # A folder of its own: `up` must not touch the home of whoever runs the tests.
    result = CliRunner().invoke(app, list(arguments), env={"ALLMENDE_LAB": str(tmp_path)})
    assert result.exit_code == code, result.output
    assert word in result.stderr
    assert "Traceback" not in result.stderr


def test_br_049_an_option_that_there_is_not_is_named_and_nothing_is_sent(tmp_path: Path) -> None:
    words = ["budgets", "rename", "vision", "Vision", "--reason", "x", "--default-class", "timeslice"]
    result = CliRunner().invoke(app, words, env={"ALLMENDE_LAB": str(tmp_path)})
    # There is no lab either: had anything been sent, that would have been said.
    assert (result.exit_code, "--default-class" in result.stderr) == (2, True)


def test_help_names_every_command() -> None:
    exit_code, output, _ = run("--help")
    assert exit_code == 0
    for command in ("up", "demo", "submit", "queue", "jobs", "why", "cancel", "standings", "nodes", "budgets"):
        assert f"\n  {command} " in output
