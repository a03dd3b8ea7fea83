"""How the lab starts its processes: whatever lies in the caller's folder, it is our modules that run."""

import subprocess
from pathlib import Path

import pytest

from allmende.cli.errors import Exit
from allmende.cli.lab.processes import python
from tests.cli.terminal import ALLMENDE, environment


@pytest.mark.parametrize("name", ["allmende.py", "msgspec.py", "asyncio.py"])
def test_a_file_of_the_callers_folder_is_not_taken_for_a_module(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("raise SystemExit(3)\n")
    ran = subprocess.run(python("allmende.cli", "--help"), cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_service_that_is_set_up_wrongly_ends_up_with_its_own_sentence(tmp_path: Path) -> None:
    """Starting it again would not help (exit code 78): whoever started the lab reads what to change, and at once."""
    env = environment() | {"ALLMENDE_BUDGET_WEBHOOK_URL": "http://127.0.0.1:9/hooks/s3cret"}
    up = subprocess.run(
        [*ALLMENDE, "up", "--lab", str(tmp_path / "lab")], env=env, capture_output=True, text=True, timeout=50, check=False
    )
    assert (up.returncode, "webhook_url and webhook_secret go together" in up.stderr) == (Exit.USAGE, True), up
    assert "s3cret" not in up.stdout + up.stderr
