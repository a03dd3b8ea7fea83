"""Every public bug report stands once in tests/bug_scenarios.toml, and the tests that it names exist and name the report."""

import ast
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.repo.tree import ROOT, text

FILE = ROOT.parent / "shared" / "cases" / "bug_scenarios.jsonl"
TABLE: Mapping[str, Mapping[str, Any]] = tomllib.loads((ROOT / "tests" / "bug_scenarios.toml").read_text(encoding="utf-8"))
NAMED = re.compile(r"(?P<path>tests/[\w/]+\.py)::(?P<function>\w+)(?:\[(?P<row>.+)\])?")
LATER = re.compile(r"issue \d+: \w.+")


def named_by(report: str) -> list[str]:
    """The tests that a report names."""
    named = TABLE[report].get("test", [])
    return [named] if isinstance(named, str) else list(named)


def fault(report: str, named: str) -> str | None:
    """What is wrong with a named test, or None: it exists, and its name, its docstring or its row of a table names the report."""
    match = NAMED.fullmatch(named)
    if match is None:
        return "not path::function, nor path::function[row]"
    module = ast.parse(text(Path(match["path"])))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if match["function"] not in functions:
        return "no such test"
    rows = {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
    if match["row"] is not None and match["row"] not in rows:
        return "no such row"
    says = (match["function"], ast.get_docstring(functions[match["function"]]) or "", match["row"] or "")
    if not any(report in each or report.lower().replace("-", "_") in each for each in says):
        return "does not name the report"
    return None


@pytest.mark.skipif(not FILE.exists(), reason="the collected bug reports lie beside the checkout, and are not here")
def test_every_report_stands_in_the_table_once() -> None:
    ids = [json.loads(line)["id"] for line in FILE.read_text(encoding="utf-8").splitlines()]
    assert sorted(TABLE) == sorted(ids)


@pytest.mark.parametrize("report", TABLE)
def test_a_report_is_tested_or_says_why_not(report: str) -> None:
    said = TABLE[report]
    assert said.keys() <= {"test", "waits", "differs"}
    assert said, "it must say something"
    assert LATER.fullmatch(said.get("waits", "issue 1: nothing"))
    assert said.get("differs", "Nothing.").endswith(".")
    assert {named: why for named in named_by(report) if (why := fault(report, named))} == {}


def test_a_wrong_name_is_noticed() -> None:
    here = "tests/repo/test_bug_scenarios.py"
    assert fault("BR-002", f"{here}::test_that_is_not_there") == "no such test"
    assert fault("BR-002", f"{here}::test_a_wrong_name_is_noticed") == "does not name the report"
    assert fault("BR-002", f"{here}::test_a_wrong_name_is_noticed[BR-002 a row of " + "nothing]") == "no such row"
    assert fault("BR-002", "nothing") == "not path::function, nor path::function[row]"
    good = next(iter(named_by("BR-002")))
    assert fault("BR-002", good) is None
