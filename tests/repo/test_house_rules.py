"""The rules of CONTRIBUTING.md that a program can check, over every file of the repository."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.repo.tree import files, parsed, python_files, text

# A file that needs more has two subjects: it becomes a folder with a name for each.
LINES_MAX = 500
# Aim at 30; what no longer fits a screen cannot be read at once.
FUNCTION_LINES_MAX = 70

# Names that say nothing, so that everything ends up there.
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "managers", "misc"}

# Whoever installs brings an index of their own. In parts, so that this file does not break the rule it checks.
HOSTS = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("registry", "npmjs"),
    ("deb", "debian", "org"),
    ("proxy", "golang", "org"),
)
FOREIGN = re.compile(
    "|".join([re.escape(".".join(host)) for host in HOSTS] + [r"(?<![\w.])/(?:work|farm)/[a-z.]", r"/opt/(?:wheels|py\w+)"])
)


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [f"{path}:{number}: {line.strip()}" for path, number, line in _lines() if FOREIGN.search(line)]
    assert found == []


def test_no_python_file_is_too_long_to_have_one_subject() -> None:
    lengths = {str(path): len(text(path).splitlines()) for path in python_files()}
    assert {path: lines for path, lines in lengths.items() if lines > LINES_MAX} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    found = [
        f"{path}:{node.lineno}: {node.name} has {(node.end_lineno or node.lineno) - node.lineno + 1} lines"
        for path in python_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert found == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    found = [str(path) for path in python_files() if EMPTY_NAMES & {path.stem, *path.parent.parts}]
    assert found == []


def test_no_refusal_of_a_handler_speaks_in_epoch_milliseconds() -> None:
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path in python_files()
        if "handlers" in path.parts and "src" in path.parts
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.JoinedStr) and _bare_milliseconds(node)
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    found = [str(path) for path in python_files() if not ast.get_docstring(parsed(path))]
    assert found == []


def test_the_shared_name_belongs_to_no_package() -> None:
    # An __init__.py there would hide the parts that other packages install.
    found = [str(path) for path in files() if path.parts[-3:] == ("src", "allmende", "__init__.py")]
    assert found == []


def _lines() -> Iterator[tuple[Path, int, str]]:
    for path in files():
        for number, line in enumerate(text(path).splitlines(), start=1):
            yield path, number, line


def _bare_milliseconds(sentence: ast.JoinedStr) -> bool:
    """Whether a sentence says an amount of milliseconds as a number without its unit: people read instants and durations."""
    parts = [*sentence.values, ast.Constant("")]
    return any(
        isinstance(part, ast.FormattedValue)
        and _names_milliseconds(part.value)
        and not (isinstance(after, ast.Constant) and str(after.value).startswith(" ms"))
        for part, after in pairwise(parts)
    )


def _names_milliseconds(value: ast.expr) -> bool:
    """Whether an expression is made of milliseconds. What a call makes of them is its own."""
    if isinstance(value, ast.BinOp):
        return _names_milliseconds(value.left) or _names_milliseconds(value.right)
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name.lower().endswith("_ms") and not name.endswith("_gpu_ms")
