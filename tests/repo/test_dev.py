"""./dev: it has the tasks that README and .ci/run call, and it starts from any folder."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, files, text


def test_readme_begins_with_the_two_commands() -> None:
    first_block = text(Path("README.md")).split("```")[1]
    assert first_block.split("\n")[1:-1] == ["./dev demo", "./dev test"]


def test_every_task_that_a_text_names_exists() -> None:
    listed = set(re.findall(r"(?m)^  ([a-z]+) ", _dev(ROOT).stdout))
    texts = [path for path in files() if path.suffix == ".md"]
    found = [f"{path}: {task}" for path in texts for task in re.findall(r"\./dev ([a-z]+)", text(path)) if task not in listed]
    assert found == []


def test_the_build_runs_what_a_developer_runs() -> None:
    steps = re.search(r"for task in ([a-z ]+);", text(Path(".ci/run")))
    # The tests last: whoever reads the output looks for their summary at its end.
    assert steps is not None
    assert steps[1].split() == ["lint", "independence", "test"]


def test_it_starts_through_a_link_from_another_folder(tmp_path: Path) -> None:
    link = tmp_path / "a link"
    link.symlink_to(ROOT / "dev")
    ran = subprocess.run(
        [link, "run", "python", "-c", "import allmende.proto"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("arguments", [["nosuch"], ["run"]])
def test_a_wrong_call_is_refused_with_a_sentence(arguments: list[str]) -> None:
    ran = _dev(ROOT, *arguments)
    assert ran.returncode == 1
    assert "dev: " in ran.stderr


def _dev(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "dev", *arguments], cwd=cwd, check=False, capture_output=True, text=True)
