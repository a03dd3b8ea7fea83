"""Commands that other packages bring: found by entry point when they are called, and never looked at before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from allmende.cli.commands import elsewhere

GREET = """
import sys

def run(arguments, name):
    print(name, *arguments)
    sys.exit(7)
"""


def package(folder: Path, name: str, points: str, source: str = GREET) -> None:
    """A package as an installer leaves it, with entry points for commands."""
    (folder / f"{name}.py").write_text(source)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[allmende.commands]\n{points}\n")


def typed(folder: Path, *words: str) -> tuple[int, str, str]:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "allmende.cli", *words], capture_output=True, text=True, env=environment, timeout=50, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_command_gets_its_whole_command_line_and_gives_its_exit_code(tmp_path: Path) -> None:
    package(tmp_path, "greeter", "greet = greeter:run")
    code, out, _ = typed(tmp_path, "greet", "--help", "-x", "1", "file")
    assert (code, out.split(maxsplit=1)[1]) == (7, "-m allmende.cli greet --help -x 1 file\n")


def test_two_packages_with_one_command_are_told_apart_by_nobody(tmp_path: Path) -> None:
    package(tmp_path, "greeter", "greet = greeter:run")
    package(tmp_path, "other", "greet = other:run")
    code, out, err = typed(tmp_path, "greet")
    assert (code, out) == (2, "")
    assert "greeter, other" in err


@pytest.mark.parametrize("point", ["greet = missing:run", "greet = greeter:missing"])
def test_a_package_that_is_damaged_is_named(point: str, tmp_path: Path) -> None:
    package(tmp_path, "greeter", point)
    code, out, err = typed(tmp_path, "greet")
    assert (code, out) == (2, "")
    assert "install greeter again" in err


def test_an_own_command_is_never_replaced(tmp_path: Path) -> None:
    package(tmp_path, "greeter", "budgets = greeter:run")
    code, out, _ = typed(tmp_path, "budgets", "--help")
    assert (code, out.startswith("Usage:")) == (0, True)


def test_where_the_simulator_is_missing_the_command_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        elsewhere.run("simulate", [], ["--days", "1"], "allmende simulate")
    said = capsys.readouterr()
    assert (left.value.exit_code, said.out) == (69, "")
    assert "pip install allmende-simulator" in said.err


def test_no_help_looks_for_other_packages_or_loads_one() -> None:
    code = """
import sys
from typer.testing import CliRunner
from allmende.cli.app import app
shown = CliRunner().invoke(app, ["--help"]).stdout
assert "simulate" in shown, shown
print([name for name in ("importlib.metadata", "allmende.simulator") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "[]\n"
