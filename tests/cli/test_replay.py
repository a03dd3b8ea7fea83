"""`allmende budgets replay` on a past that was kept: files, options, exit codes. Needs no lab."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from allmende.cli.app import app
from allmende.cli.commands import replay
from allmende.proto.history import LabHistory
from tests.simulator.replay.builders import busy, past

TREE = '[lab]\n[lab.vision]\nshare = "10%"\nmembers = ["ada"]\n[lab.tools]\nshare = "90%"\n'
FAULTY = '[lab]\n[lab.vision]\nshare = "80%"\n[lab.tools]\nshare = "30%"\nmembers = ["A B"]\n[lab.x]\nshare = "lots"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one stands: with a past, a proposal and a faulty one."""
    (tmp_path / "past.json").write_bytes(msgspec.json.encode(busy(1, 20)))
    (tmp_path / "proposal.toml").write_text(TREE)
    (tmp_path / "faulty.toml").write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["budgets", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def replayed(*words: str) -> tuple[int, str, str]:
    return run("replay", "--history", "past.json", *words)


def test_a_kept_past_is_replayed_without_a_lab(folder: Path) -> None:
    before = sorted(folder.iterdir())
    code, out, err = replayed("--proposal", "proposal.toml")
    assert (code, err) == (0, "")
    assert out.startswith("proposal.toml on c1, 24 GPUs: the last 1h ")
    assert sorted(folder.iterdir()) == before
    code, out, err = replayed("--proposal", "proposal.toml", "--json", "--html", "page.html")
    assert (code, list(json.loads(out)["columns"]), err) == (0, ["was", "today", "proposal"], "")
    assert (folder / "page.html").is_file()


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_faulty_proposal_has_the_faults_that_check_names(words: tuple[str, ...], folder: Path) -> None:
    _, checked, _ = run("check", "faulty.toml")
    assert len(checked.splitlines()) == 3
    assert replayed("--proposal", "faulty.toml", *words) == (2, "", checked)


# What is typed behind `budgets replay`, the exit code, and a part of what is said.
SAID: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no proposal": ((), 2, "Missing option '--proposal'"),
    "a proposal that is not there": (("--proposal", "nope.toml"), 2, "nope.toml cannot be read: No such file or directory"),
    "a proposal that is a folder": (("--proposal", "."), 2, "cannot be read: Is a directory"),
    "no lab": (("--proposal", "proposal.toml", "--lab", "nowhere"), 69, "no lab is running in"),
    "no day": (("--proposal", "proposal.toml", "--days", "0"), 2, "--days"),
    "more days than are kept": (("--proposal", "proposal.toml", "--days", "91"), 2, "--days"),
    "a cluster that is no name": (("--proposal", "proposal.toml", "--cluster", "A B"), 2, "'A B' is not a name"),
    "a past that is not there": (("--proposal", "proposal.toml", "--history", "no.json"), 2, "no.json cannot be read"),
    "a past that is something else": (
        ("--proposal", "proposal.toml", "--history", "proposal.toml"), 2, "proposal.toml is no past that --keep wrote"
    ),
    "a past that is cut off": (("--proposal", "proposal.toml", "--history", "half.json"), 2, "half.json is no past"),
    "a past in which time goes back": (("--proposal", "proposal.toml", "--history", "back.json"), 2, "to_ms is not after begin_ms"),
    "a past of a later release": (("--proposal", "proposal.toml", "--history", "later.json"), 2, "later.json is no past"),
    "a past in which nothing happened": (
        ("--proposal", "proposal.toml", "--history", "empty.json"), 1, "there is nothing to replay [empty_history]"
    ),
    "days of a kept past": (("--proposal", "proposal.toml", "--history", "past.json", "--days", "3"), 2, "--days is for a past"),
    "a place that is no folder's": (("--proposal", "proposal.toml", "--keep", "no/past.json"), 2, "there is no folder no"),
    "a place that is a folder": (("--proposal", "proposal.toml", "--keep", "."), 2, "no ordinary file"),
    "a place that is a device": (("--proposal", "proposal.toml", "--html", os.devnull), 2, "no ordinary file"),
    "the proposal itself": (("--proposal", "proposal.toml", "--html", "./proposal.toml"), 2, "it is read by this very command"),
    "the past itself": (
        ("--proposal", "proposal.toml", "--history", "past.json", "--html", "past.json"), 2, "it is read by this very command"
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", SAID)
def test_it_is_said_and_nothing_is_written(sentence: str, folder: Path) -> None:
    words, code, said = SAID[sentence]
    whole = (folder / "past.json").read_bytes()
    for name, content in others(whole).items():
        (folder / name).write_bytes(content)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    found, out, err = run("replay", *words)
    assert (found, out) == (code, "")
    assert said in err
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def others(whole: bytes) -> dict[str, bytes]:
    """Pasts that cannot be replayed."""
    value = msgspec.json.decode(whole)
    return {
        "half.json": whole[: len(whole) // 2],
        "back.json": msgspec.json.encode(value | {"to_ms": value["from_ms"]}),
        "later.json": msgspec.json.encode(value | {"version": 2}),
        "empty.json": msgspec.json.encode(past()),
    }


def test_the_same_past_gives_the_same_bytes_on_any_hash_seed(folder: Path) -> None:
    words = ("budgets", "replay", "--history", "past.json", "--proposal", "proposal.toml", "--json", "--html", "page.html")
    outputs = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "allmende.cli", *words]
        done = subprocess.run(command, capture_output=True, env=environment, timeout=50, check=True)
        outputs.append((done.stdout, (folder / "page.html").read_bytes()))
    assert outputs[0] == outputs[1]
    assert outputs[0][0]


def test_a_past_is_kept_whole_and_a_link_stays_a_link(folder: Path) -> None:
    (folder / "link.json").symlink_to("kept.json")
    known = busy(2)
    replay._keep(known, folder / "link.json")
    assert (folder / "link.json").is_symlink()
    assert msgspec.json.decode((folder / "kept.json").read_bytes(), type=LabHistory) == known
    assert not [each for each in folder.iterdir() if each.name.endswith(".part")]


# What is installed under the name, the exit code, and a part of what is said.
PROGRAMS: dict[str, tuple[list[EntryPoint], int, str]] = {
    "nothing": ([], 69, "pip install allmende-simulator"),
    "a package without its module": ([EntryPoint("replay", "allmende.nowhere:run", replay.GROUP)], 2, "simulator again"),
    "a package of another release": (
        [EntryPoint("replay", "allmende.simulator.replay.command:gone", replay.GROUP)], 2, "simulator again"
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", PROGRAMS)
def test_without_the_simulator_it_says_how_to_get_it(sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, code, said = PROGRAMS[sentence]
    with pytest.raises(typer.Exit) as left:
        replay._program(found)
    heard = capsys.readouterr()
    assert (left.value.exit_code, heard.out) == (code, "")
    assert said in heard.err


def test_the_help_does_not_load_the_simulator() -> None:
    code = """
import sys
from typer.testing import CliRunner
from allmende.cli.app import app
shown = CliRunner().invoke(app, ["budgets", "replay", "--help"]).stdout
assert "--proposal" in shown, shown
print([name for name in ("allmende.simulator", "rich.progress") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "[]\n"
