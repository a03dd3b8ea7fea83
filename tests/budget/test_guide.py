"""The guide for managers says what the code does: its example is valid, and every fault is explained."""

import re
from pathlib import Path

import pytest

from allmende.proto.tree_file import read_tree
from allmende.proto.tree_rules import RESERVED_NAMES

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "budget-file.md").read_text(encoding="utf-8")
RULES = tuple(f"rules/{name}.py" for name in ("trees", "rights", "dated", "proposals", "renewing"))
README = (ROOT / "services" / "budget" / "README.md").read_text(encoding="utf-8")


def codes(path: str) -> set[str]:
    """The codes of faults that a source file can give."""
    source = (ROOT / path).read_text(encoding="utf-8")
    return set(re.findall(r'(?:code=|_broken\(|_refused\(tree, )"([a-z_]+)"', source))


def test_the_example_of_the_guide_is_a_valid_tree() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    read = read_tree(example)
    assert read.faults == ()
    assert [row.budget for row in read.budgets] == ["lab", "vision", "detection", "tracking", "language"]


@pytest.mark.parametrize("name", ["tree_rules.py", "tree_file.py"])
def test_every_fault_of_a_file_is_explained(name: str) -> None:
    found = codes(f"proto/src/allmende/proto/{name}")
    assert len(found) > 5
    assert sorted(code for code in found if f"`{code}`" not in GUIDE) == []


def test_every_refusal_of_a_write_is_named_to_the_operator() -> None:
    below = "services/budget/src/allmende/budget"
    found = {
        code for path in (*RULES, "wire.py", "handlers/proposals.py", "handlers/dated.py") for code in codes(f"{below}/{path}")
    }
    assert len(found) > 5
    assert sorted(code for code in found if f"`{code}`" not in README) == []


def test_every_key_of_a_table_is_explained() -> None:
    assert sorted(name for name in RESERVED_NAMES if f"| `{name}` |" not in GUIDE) == []


def test_every_refusal_of_a_proposal_is_explained_to_people() -> None:
    guide = (ROOT / "docs" / "guides" / "proposals.md").read_text(encoding="utf-8")
    below = "services/budget/src/allmende/budget"
    found = {code for path in ("rules/proposals", "rules/renewing", "handlers/proposals") for code in codes(f"{below}/{path}.py")}
    assert len(found) > 8
    # What a command cannot send: the file's guide and the command's own help say it.
    assert sorted(code for code in found - {"unknown_budget", "reason_missing"} if f"`{code}`" not in guide) == []
