"""Who may change what: the managers of a budget divide what lies below it (contract §2). Judged on the difference of two trees.

Pure. Which request made the difference does not matter. Never judges whether the tree after it is valid.
"""

from collections.abc import Iterator, Sequence

import msgspec

from allmende.budget.model import Asking, Budgets
from allmende.proto.budget import Budget
from allmende.proto.message import Problem
from allmende.proto.tree import named_clusters, share_on
from allmende.proto.tree_rules import quote
from allmende.proto.units import Ppm, format_share


def overreach(before: Budgets, after: Budgets, asking: Asking) -> tuple[Problem, ...]:
    """What of the difference is not the asker's to change; nothing for an operator. `before` is a valid tree.

    Codes: `not_a_manager` (he manages nothing above that budget), `foreign_target` (nothing at or above where it shall hang),
    `more_than_held` (he draws more, through a budget without a share, than is drawn today).
    Cost: O(budgets x depth) at most.
    """
    if asking.operator:
        return ()
    faults: list[Problem] = []
    for name in sorted({*before, *after}):
        was, row = before.get(name), after.get(name)
        if was == row:
            continue
        if was is not None and not _may_change(before, was, row, asking.name):
            faults.append(_not_a_manager(before, was, asking.name))
        if row is not None and (was is None or was.parent != row.parent) and not _may_hang_below(before, after, row, asking.name):
            faults.append(_foreign_target(row, asking.name))
    return (*faults, *_beyond_holding(before, after, asking.name))


def foreign_place(before: Budgets, jobs_to: str, asking: Asking) -> tuple[Problem, ...]:
    """Whose jobs a budget takes in is for those to say who manage it: code `foreign_place`; nothing for an operator."""
    if may_divide(before, jobs_to, asking):
        return ()
    sentence = (
        f"{quote(asking.name)} manages nothing at or above {quote(jobs_to)} and cannot send jobs there; name a leaf that he "
        f"manages, or ask {those(nearest_managers(before, jobs_to))}"
    )
    return (Problem(code="foreign_place", sentence=sentence),)


def _may_change(before: Budgets, was: Budget, row: Budget | None, person: str) -> bool:
    if manages(before, was.parent, person):
        return True
    # Of what he manages himself only the members: a leaf has nothing below it, and its lead lets people in.
    only_members = row is not None and msgspec.structs.replace(was, members=row.members) == row
    return only_members and person in was.managers


def _may_hang_below(before: Budgets, after: Budgets, row: Budget, person: str) -> bool:
    # New budgets may hang on each other; the first one that was there before says whose subtree it is.
    passed: set[str] = set()
    at = row.parent
    while at is not None and at in after and at not in before and at not in passed:
        passed.add(at)
        at = after[at].parent
    return manages(before, at, person)


def may_divide(budgets: Budgets, parent: str, asking: Asking) -> bool:
    """Whether somebody may set the shares of the children of `parent`."""
    return asking.operator or manages(budgets, parent, asking.name)


def manages(budgets: Budgets, at: str | None, person: str) -> bool:
    """Whether a person manages this budget or one above it."""
    return any(person in budgets[name].managers for name in _upwards(budgets, at))


def nearest_managers(budgets: Budgets, at: str | None) -> tuple[str, ...]:
    """The managers of this budget, or of the nearest one above it that has any."""
    return next((budgets[name].managers for name in _upwards(budgets, at) if budgets[name].managers), ())


def _upwards(budgets: Budgets, at: str | None) -> Iterator[str]:
    while at is not None and at in budgets:
        yield at
        at = budgets[at].parent


def _beyond_holding(before: Budgets, after: Budgets, person: str) -> Iterator[Problem]:
    """A budget with a share bounds what lies below it. One without draws on an ancestor's: there nothing may be added."""
    for name, row in before.items():
        if row.parent is None or row.share_ppm is not None or person not in row.managers or manages(before, row.parent, person):
            continue
        for cluster in (None, *named_clusters((*before.values(), *after.values()))):
            was, now = _drawn(before, name, cluster), _drawn(after, name, cluster)
            if now > was:
                where = "" if cluster is None else f" on cluster {quote(cluster)}"
                sentence = (
                    f"{quote(name)} has no share of its own, and {format_share(was)} is shared below it{where}: "
                    f"{format_share(now)} is more than it holds; its managers may ask those of {quote(row.parent)}"
                )
                yield Problem(code="more_than_held", sentence=sentence)


def _drawn(budgets: Budgets, top: str, cluster: str | None) -> Ppm:
    """The sum of the shares on a cluster that count, through unset budgets, in the sum of whoever stands above `top`."""
    total = 0
    for row in budgets.values():
        share = share_on(row, cluster)
        if share is not None and row.parent is not None:
            for name in _unset_above(budgets, row.parent):
                if name == top:
                    total += share
                    break
    return total


def _unset_above(budgets: Budgets, at: str | None) -> Iterator[str]:
    passed: set[str] = set()
    while at is not None and at in budgets and at not in passed and budgets[at].share_ppm is None:
        passed.add(at)
        yield at
        at = budgets[at].parent


def _not_a_manager(before: Budgets, was: Budget, person: str) -> Problem:
    who = nearest_managers(before, was.parent)
    sentence = f"{quote(person)} manages nothing above {quote(was.budget)}; {those(who)} may change it"
    return Problem(code="not_a_manager", sentence=sentence)


def _foreign_target(row: Budget, person: str) -> Problem:
    where = f"below {quote(row.parent)}" if row.parent is not None else "at the root"
    sentence = f"{quote(person)} may put {quote(row.budget)} only at or below a budget that he manages, not {where}"
    return Problem(code="foreign_target", sentence=sentence)


def those(people: Sequence[str]) -> str:
    """People as a refusal names them: the first five, and that an operator may too."""
    named = ", ".join(people[:5]) + (" and others" if len(people) > 5 else "")
    return f"{named} or an operator" if people else "an operator"
