"""Every case of other schedulers is settled in one place.

It runs in a folder's test_peer_cases.py, or the peer_differences.toml there says why our contract differs or where it belongs. A
case of which only a part runs stands in both, with `runs` naming that part.
"""

import importlib
import json
from collections import Counter
from typing import Any, NamedTuple

import pytest

from tests.repo.tree import ROOT

FILE = ROOT.parent / "shared" / "cases" / "peer_cases.jsonl"
FOLDERS = sorted(path.parent.name for path in (ROOT / "tests").glob("*/peer_differences.toml"))

pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the collected peer cases lie beside the checkout, and are not here")


class Settled(NamedTuple):
    """What a folder says of cases: those that run, wholly or in part, and those that are listed only."""

    runs: frozenset[str]
    listed: frozenset[str]


def settled(folder: str) -> Settled:
    """Read a folder's test module, which parametrizes its test with RUNS, or with all its cases that are not listed."""
    module = importlib.import_module(f"tests.{folder}.test_peer_cases")
    differences: dict[str, Any] = module.DIFFERENCES
    listed = frozenset(name for name, what in differences.items() if isinstance(what, str) or "runs" not in what)
    return Settled(frozenset(getattr(module, "RUNS", module.CASES.keys() - listed)), listed)


def test_every_peer_case_is_settled_exactly_once() -> None:
    ids = [json.loads(line)["id"] for line in FILE.read_text(encoding="utf-8").splitlines()]
    assert len(ids) == len(set(ids))
    times = Counter(name for folder in FOLDERS for kind in settled(folder) for name in kind)
    assert {name: count for name, count in times.items() if count > 1} == {}
    assert sorted(times) == sorted(ids)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_listed_case_does_not_run(folder: str) -> None:
    said = settled(folder)
    assert said.runs & said.listed == frozenset()
