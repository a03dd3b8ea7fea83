"""./dev: it has the tasks that README and .ci/run call, and it starts from any folder."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, files, text

# README is written last: until it is there, the two commands that it must give stand here alone.
CALLED = {"demo", "test"} | {
    task
    for path in (Path("README.md"), Path("CONTRIBUTING.md"), Path(".ci/run"))
    if path in files()
    for task in re.findall(r"\./dev ([a-z]+)", text(path))
}


def test_the_tasks_that_are_named_exist() -> None:
    listed = set(re.findall(r"(?m)^  ([a-z]+) ", _dev(ROOT).stdout))
    assert sorted(CALLED - listed) == []


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
