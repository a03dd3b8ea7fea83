"""The packages of the workspace: each is known to the tools, imports only what it declares, and ships what it needs."""

import ast
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.repo.tree import Package, files, packages, parsed, settings

each_package = pytest.mark.parametrize("package", packages(), ids=lambda package: package.dist)


@each_package
def test_the_tools_know_the_package(package: Package) -> None:
    tool = settings()["tool"]
    rooms = tool["importlinter"]["contracts"][0]["layers"]
    assert str(package.source) in tool["mypy"]["mypy_path"]
    assert package.module in tool["importlinter"]["root_packages"]
    assert package.module in [room for layer in rooms for room in layer.split(" | ")]
    assert package.source / package.module.replace(".", "/") / "py.typed" in files()


@each_package
def test_the_package_declares_everything_it_imports(package: Package) -> None:
    declared = {canonicalize_name(wanted.name) for wanted in (*package.requires, *package.optional)} | {package.dist}
    found = [
        f"{path}:{line}: {module}"
        for path in files()
        if path.suffix == ".py" and path.is_relative_to(package.source)
        for line, module in _imports(path)
        if not declared & _providers(module)
    ]
    assert found == [], f"not among the dependencies in {package.folder}/pyproject.toml"


def test_each_service_ships_and_describes_itself() -> None:
    for package in packages():
        assert package.folder / "README.md" in files(), package.dist
        assert settings(package.folder)["project"]["license"] == "Apache-2.0", package.dist


def _imports(path: Path) -> list[tuple[int, str]]:
    """Line and name of each module from outside the standard library."""
    named = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            named += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "allmende":
            named += [(node.lineno, f"allmende.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named.append((node.lineno, node.module))
    return [(line, module) for line, module in named if module.split(".")[0] not in sys.stdlib_module_names]


@cache
def _installed() -> Mapping[str, Sequence[str]]:
    """The distributions by the top modules they install. Read once: it goes through the file lists of all of them."""
    return packages_distributions()


def _providers(module: str) -> set[str]:
    """The distributions that can provide a module."""
    parts = module.split(".")
    if parts[0] == "allmende":
        return {"-".join(parts[:2])}
    return {canonicalize_name(dist) for dist in _installed().get(parts[0], [])}
