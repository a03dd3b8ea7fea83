"""A copy of the code that plays, so that whoever edits meanwhile disturbs no run, and its version: which code a result belongs to.

The version is that of the statements: comments and docstrings may change, and what only reads or reports plays no part. Another
Python may write the same statements differently; then everything counts as new. Never changes the sources.
"""

import ast
import hashlib
import shutil
from pathlib import Path
from typing import Final

from tests.repo.tree import ROOT

SOURCES: Final = ("proto", "services/admission", "services/ledger", "services/preemptor", "clients/simulator")
SIMULATOR: Final = "allmende/simulator"
# Of the simulator: what neither plays nor measures.
OUTSIDE: Final = tuple(f"{SIMULATOR}/{name}/" for name in ("report", "command", "replay", "inputs"))
# Of the services the simulator sees nothing else.
RULES: Final = tuple(
    f"allmende/{name}" for name in ("admission/rules", "admission/model", "preemptor/rules", "preemptor/model", "ledger/rules")
)
OURS: Final = (f"{SIMULATOR}/policies/allmende.py", f"{SIMULATOR}/policies/settings.py")


def copy(folder: Path) -> None:
    """Copy the packages into one folder, to be put on the import path before what is installed."""
    for source in SOURCES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / source / "src", folder, dirs_exist_ok=True, ignore=ignore)


def version(folder: Path, policy: str) -> str:
    """Twelve hexadecimal digits of the code in `folder` that a run under this policy depends on."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if _plays(name, policy):
            digest.update(f"{name}\0{_statements(path)}\0".encode())
    return digest.hexdigest()[:12]


def _plays(name: str, policy: str) -> bool:
    if name.startswith(OUTSIDE):
        return False
    if name.startswith(("allmende/proto/", f"{SIMULATOR}/")):
        return policy == "allmende" or name not in OURS
    return policy == "allmende" and name.startswith(RULES)


def _statements(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # Docstrings, also those below fields.
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
