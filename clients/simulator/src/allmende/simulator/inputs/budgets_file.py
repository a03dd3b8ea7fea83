"""A tree of budgets: `--budgets FILE.toml`, the same file that `allmende budgets load` takes (docs/guides/budget-file.md).

Judges nothing itself: `allmende.proto.tree_file` does. Adds only where in the file a fault lies.
"""

import re
from pathlib import Path

from allmende.proto.budget import Budget
from allmende.proto.message import Problem
from allmende.proto.tree_file import MAX_FILE_BYTES, read_tree
from allmende.simulator.inputs.faults import Faults, Read
from allmende.simulator.inputs.toml_places import Places
from allmende.simulator.inputs.whole_file import read_text

_TABLE = re.compile(r"\[([a-z0-9_.-]+)\]")
_QUOTED = re.compile(r"[\"'“]([^\"'”]{1,63})[\"'”]")
_KEYS = ("share", "title", "managers", "members")


def read_budgets(path: Path) -> Read[tuple[Budget, ...]]:
    """Read a budget file, in the order of the file.

    Codes of faults: those of `tree_file.read_tree`, and `cannot_read`, `nul_byte`. The line is that of the table or key that the
    sentence speaks of; a fault of the tree as a whole points to line 1.
    """
    faults = Faults(str(path))
    text = read_text(path, MAX_FILE_BYTES, faults)
    if text is None:
        return faults.refused()
    tree = read_tree(text)
    if not tree.faults:
        return faults.done(tree.budgets)
    places = Places(text)
    for problem in tree.faults:
        faults.add(*_place(places, problem), "", problem.code, problem.sentence)
    return faults.refused()


def _place(places: Places, problem: Problem) -> tuple[int, int]:
    if problem.code == "malformed_toml":
        return places.of_error(problem.sentence)
    table = _TABLE.search(problem.sentence)
    quoted = _QUOTED.findall(problem.sentence)
    if table:
        trail = tuple(table[1].split("."))
        keys = (*quoted, *(key for key in _KEYS if re.search(rf"\b{key}\b", problem.sentence)))
        whole = places.of(*trail)
        return next((place for key in keys if (place := places.of(*trail, key)) != whole), whole)
    words = (*quoted, *re.findall(r"[a-z0-9_-]+", problem.sentence))
    return next((found for word in words if (found := places.of_name(word))), (1, 1))
