"""How the lab starts its processes: whatever lies in the caller's folder, it is our modules that run."""

import subprocess
from pathlib import Path

import pytest

from allmende.cli.lab.processes import python


@pytest.mark.parametrize("name", ["allmende.py", "msgspec.py", "asyncio.py"])
def test_a_file_of_the_callers_folder_is_not_taken_for_a_module(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("raise SystemExit(3)\n")
    ran = subprocess.run(python("allmende.cli", "--help"), cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
