"""Trees of budgets out of what people used: shares in proportion, and members for leaves.

Shares are whole parts per million. Never writes a share that somebody gave.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from allmende.proto.budget import Budget
from allmende.proto.tree import leaves
from allmende.proto.units import PPM_WHOLE, Ppm
from allmende.simulator.model import Job

_LISTED = 5


def parts_of_whole(weights: Sequence[int]) -> list[Ppm]:
    """The whole in parts as the weights are to each other: largest remainder, ties to the first; all 0 where all weights are."""
    total = sum(weights)
    if total == 0:
        return [0] * len(weights)
    parts = [weight * PPM_WHOLE // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(weights[place] * PPM_WHOLE % total), place))
    for place in by_remainder[: PPM_WHOLE - sum(parts)]:
        parts[place] += 1
    return parts


def tree_of(root: str, title: str, weights: Mapping[str, int], parents: Mapping[str, str] | None = None) -> tuple[Budget, ...]:
    """A tree whose leaves share in proportion to their weights, each level within its parent.

    `parents` says what a leaf or an inner budget lies in (absent: the root), names are unique and without loops. A budget comes
    after its parent; children are in the order of their names.
    """
    above = parents or {}
    children: dict[str, set[str]] = {}
    sums: dict[str, int] = {}
    for leaf, weight in weights.items():
        at = leaf
        while at != root:
            sums[at] = sums.get(at, 0) + weight
            up = above.get(at, root)
            children.setdefault(up, set()).add(at)
            at = up
    tree = [Budget(budget=root, title=title)]
    # The list grows while it is walked: each budget's children come behind it.
    for budget in tree:
        names = sorted(children.get(budget.budget, ()))
        for name, share in zip(names, parts_of_whole([sums[name] for name in names]), strict=True):
            tree.append(Budget(budget=name, parent=budget.budget, share_ppm=share))
    return tuple(tree)


def tree_by_use(root: str, title: str, jobs: Iterable[Job], parents: Mapping[str, str] | None = None) -> tuple[Budget, ...]:
    """A tree of the budgets that the jobs name, each with the share that its jobs' work (GPU-ms) has of all.

    For a history without a budget file: everybody is owed what they used, so the comparison is about when, not about how much.
    `root` gets another name where a budget is called like it.
    """
    used: dict[str, int] = {}
    for job in jobs:
        if job.budget is not None:
            used[job.budget] = used.get(job.budget, 0) + job.gpus * job.runtime_ms
    taken = {*used, *(parents or {}), *(parents or {}).values()}
    while root in taken:
        root += "-all"
    return tree_of(root, title, used, parents)


def with_members(budgets: Sequence[Budget], jobs: Iterable[Job]) -> tuple[tuple[Budget, ...], tuple[str, ...]]:
    """The tree with the jobs' users among the members of the leaves they use, and notes on who was added.

    Inner and unknown budgets are left alone: such jobs are the policy's to refuse. More people than a budget file may hold are
    fine.
    """
    open_to = leaves({each.budget: each for each in budgets})
    users: dict[str, dict[str, None]] = {}
    unknown: dict[str, int] = {}
    for job in jobs:
        if job.budget is not None:
            if job.budget in open_to:
                users.setdefault(job.budget, {})[job.user] = None
            else:
                unknown[job.budget] = unknown.get(job.budget, 0) + 1
    tree: list[Budget] = []
    added = touched = 0
    for budget in budgets:
        have = frozenset(budget.members)
        new = sorted(user for user in users.get(budget.budget, ()) if user not in have)
        added += len(new)
        touched += bool(new)
        tree.append(msgspec.structs.replace(budget, members=(*budget.members, *new)) if new else budget)
    notes: list[str] = []
    if added:
        notes.append(
            f"{added} memberships were added to {touched} budgets: their jobs are in the list, their names were not in the tree"
        )
    if unknown:
        names = sorted(unknown, key=lambda name: (-unknown[name], name))
        shown = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
        notes.append(f"{sum(unknown.values())} jobs name what is no leaf of the tree, so they will be refused: {shown}")
    return tuple(tree), tuple(notes)
