"""The tree of budgets of an accounting file: accounts as leaves, within the organisation where two tables beside it tell it.

The tables are XDMoD's: hierarchy.csv (unit, title, parent unit) and group-to-hierarchy.csv (account, unit). Shares are what
each used: accounting does not say what anybody was owed. Never makes a budget that no account lies in.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from allmende.proto.budget import MAX_DEPTH, Budget
from allmende.simulator.inputs.faults import Cell, Faults
from allmende.simulator.inputs.foreign_names import ForeignNames
from allmende.simulator.inputs.lines import cells, lines
from allmende.simulator.inputs.trees import tree_by_use
from allmende.simulator.model import Job

UNITS = "hierarchy.csv"
ACCOUNTS = "group-to-hierarchy.csv"
_TITLE_MOST = 200


def sacct_tree(
    root: str, jobs: Sequence[Job], names: ForeignNames, folder: Path, faults: Faults
) -> tuple[tuple[Budget, ...], tuple[str, ...]]:
    """The tree of the accounts that the jobs name, and notes.

    Faults of the two tables go to `faults`: those of `lines.lines`, `bad_quotes`, `ragged_row`.
    """
    used = dict.fromkeys(job.budget for job in jobs if job.budget is not None)
    note = "shares are what each account used (accounting does not say what it was owed); give the real ones with --budgets"
    if not (folder / UNITS).exists() or not (folder / ACCOUNTS).exists():
        return tree_by_use(root, "Slurm", jobs), (note,)
    # The first row of a unit counts: published hierarchies name some twice.
    units: dict[str, tuple[str, str]] = {}
    for row in _rows(folder / UNITS, 3, faults):
        units.setdefault(row[0], (row[1], row[2]))
    lies_in = {names.of(row[0]): row[1] for row in _rows(folder / ACCOUNTS, 2, faults)}
    parents: dict[str, str] = {}
    titles: dict[str, str] = {}
    for account in used:
        at = account
        for unit in _upwards(lies_in.get(account, ""), units):
            # Units have names of their own: an account may be called like one.
            name = names.of(unit, "unit")
            titles[name] = units[unit][0][:_TITLE_MOST]
            parents[at] = name
            at = name
    tree = tree_by_use(root, "Slurm", jobs, parents)
    titled = tuple(msgspec.structs.replace(each, title=titles.get(each.budget, each.title)) for each in tree)
    lone = sum(account not in parents for account in used)
    return titled, (
        note,
        f"{UNITS} and {ACCOUNTS} beside the file give the tree above the accounts; {lone} accounts are in no unit",
    )


def _upwards(unit: str, units: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """A unit and those above it, as far as they are known, without circles, and not deeper than a tree may be."""
    seen: set[str] = set()
    # The root and the account take two levels.
    while unit in units and unit not in seen and len(seen) < MAX_DEPTH - 2:
        seen.add(unit)
        yield unit
        unit = units[unit][1]


def _rows(path: Path, width: int, faults: Faults) -> Iterator[list[str]]:
    own = Faults(str(path))
    for number, text in lines(path, own, ","):
        try:
            row = cells(text)
        except Cell as bad:
            own.add(number, 0, "", bad.code, str(bad))
            continue
        if len(row) != width:
            own.add(number, 0, "", "ragged_row", f"the row has {len(row)} cells, not {width}")
        elif row[0]:
            yield row
    faults.take(own)
