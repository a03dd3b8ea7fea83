"""What lies in the repository: its files, its packages and the lock. Only reads; the tests say what may lie there."""

import ast
import re
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


@cache
def files() -> tuple[Path, ...]:
    """Every file that is tracked, or would be once added, by its path from the top."""
    # Not a walk of the folders: what .gitignore leaves out (.venv above all) is nobody's to keep tidy.
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    named = (Path(name.decode()) for name in listed.split(b"\0") if name)
    return tuple(sorted({path for path in named if (ROOT / path).is_file()}))


def python_files() -> list[Path]:
    """Every Python file of `files`."""
    return [path for path in files() if path.suffix == ".py"]


@cache
def text(path: Path) -> str:
    """The text of one of `files`; empty for a file that is no text."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@cache
def parsed(path: Path) -> ast.Module:
    """A Python file of `files`, parsed. Whoever asks only reads it."""
    return ast.parse(text(path))


@dataclass(frozen=True)
class Package:
    """One installable package: `folder` from the top, distribution `dist`, module `module`."""

    folder: Path
    dist: str
    module: str
    requires: tuple[Requirement, ...]
    optional: tuple[Requirement, ...]

    @property
    def source(self) -> Path:
        """The folder that is put on the import path."""
        return self.folder / "src"

    @property
    def stands_alone(self) -> bool:
        """Whether it is a program of its own (a service or a client), not a library of ours."""
        return self.folder.parts[0] in {"services", "clients"}


def packages() -> list[Package]:
    """Every package of the workspace."""
    folders = [path.parent for path in files() if path.name == "pyproject.toml" and path.parent != Path()]
    return [_package(folder) for folder in folders]


def settings(folder: Path = Path()) -> dict[str, Any]:
    """The pyproject.toml of a folder."""
    return tomllib.loads(text(folder / "pyproject.toml"))


def _package(folder: Path) -> Package:
    project = settings(folder)["project"]
    optional = [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
    return Package(
        folder=folder,
        dist=project["name"],
        module=project["name"].replace("-", ".", 1),
        requires=tuple(Requirement(line) for line in project.get("dependencies", [])),
        optional=tuple(Requirement(line) for line in optional),
    )


def lock_entries(lock: str) -> dict[str, str]:
    """The entries of a requirements.lock by canonical name: the pin, its marker and its hashes, as they stand."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
    return {canonicalize_name(re.split(r"[=\[]", entry, maxsplit=1)[0]): entry for entry in entries if entry.strip()}
