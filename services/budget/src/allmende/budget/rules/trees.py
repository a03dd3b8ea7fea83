"""What a write does to the tree: a commit, nothing, or a refusal with every fault (contract §2).

Pure. What a valid tree is, says `proto.tree_rules`. A refused write changes nothing.
"""

from collections.abc import Mapping, Sequence

import msgspec

from allmende.budget.model import ChildShares, Commit, Intent, Piece, Rejection, Revision, Tree, Unchanged, Verdict
from allmende.proto.budget import Budget
from allmende.proto.message import Problem
from allmende.proto.tree import digest
from allmende.proto.tree_rules import quote, validate
from allmende.proto.units import Ms


def load_tree(tree: Tree, intent: Intent, budgets: Sequence[Budget], now_ms: Ms) -> Verdict:
    """Replace the whole tree.

    Faults: those of `tree_rules.validate`, `stale_revision`, `reason_missing`.
    """
    faults = [*_stale(tree, intent), *_reason(intent), *validate(budgets)]
    if faults:
        return Rejection(tree.revision, faults)
    return _commit(tree, intent, {row.budget: row for row in budgets}, now_ms)


def set_shares(tree: Tree, intent: Intent, parent: str, children: ChildShares, now_ms: Ms) -> Verdict:
    """Set the shares of ALL children of one parent.

    Faults: `stale_revision` (alone: the author has not seen the tree that the rest would be judged by), `reason_missing`,
    `unknown_budget`, `no_children`, `missing_child`, `foreign_child`, `duplicate_child`, and those of `tree_rules.validate`.
    """
    if stale := _stale(tree, intent):
        return Rejection(tree.revision, stale)
    faults = [*_reason(intent), *_children(tree, parent, children)]
    shares = dict(children)
    after = {
        name: msgspec.structs.replace(row, share_ppm=shares[name]) if row.parent == parent and name in shares else row
        for name, row in tree.budgets.items()
    }
    if tree.budgets:
        faults.extend(validate(after.values()))
    if faults:
        return Rejection(tree.revision, faults)
    return _commit(tree, intent, after, now_ms)


def assemble(pieces: Sequence[Piece]) -> Sequence[Budget] | None:
    """The budgets of an upload in the order of its pieces; None while pieces are missing."""
    known = {piece.number: piece for piece in pieces}
    end = max((piece.number for piece in pieces if piece.last), default=None)
    if end is None or any(number not in known for number in range(end)):
        return None
    return [row for number in range(end + 1) for row in known[number].budgets]


def _stale(tree: Tree, intent: Intent) -> list[Problem]:
    if intent.expected_revision == tree.revision:
        return []
    sentence = (
        f"the tree has changed since you read it: revision {tree.revision} is in force, you expected {intent.expected_revision}"
    )
    return [Problem(code="stale_revision", sentence=sentence)]


def _reason(intent: Intent) -> list[Problem]:
    if intent.reason.strip():
        return []
    return [Problem(code="reason_missing", sentence="a change of shares needs a reason; whoever reads the history will ask for it")]


def _children(tree: Tree, parent: str, children: ChildShares) -> list[Problem]:
    if parent not in tree.budgets:
        return [Problem(code="unknown_budget", sentence=f"there is no budget {quote(parent)} in revision {tree.revision}")]
    theirs = [name for name, row in tree.budgets.items() if row.parent == parent]
    if not theirs:
        return [Problem(code="no_children", sentence=f"budget {quote(parent)} has no children whose shares could be set")]
    named = [name for name, _ in children]
    faults = [
        Problem(
            code="missing_child", sentence=f"the share of {quote(name)} is missing: all children of {quote(parent)} are set at once"
        )
        for name in sorted(set(theirs) - set(named))
    ]
    faults += [
        Problem(code="foreign_child", sentence=f"budget {quote(name)} is not a child of {quote(parent)}")
        for name in sorted(set(named) - set(theirs))
    ]
    faults += [
        Problem(code="duplicate_child", sentence=f"budget {quote(name)} is given {named.count(name)} shares")
        for name in sorted(set(named))
        if named.count(name) > 1
    ]
    return faults


def _commit(tree: Tree, intent: Intent, after: Mapping[str, Budget], now_ms: Ms) -> Commit | Unchanged:
    changed: dict[str, Budget | None] = {name: row for name, row in after.items() if tree.budgets.get(name) != row}
    changed.update({name: None for name in tree.budgets if name not in after})
    if not changed:
        return Unchanged(tree.revision)
    revision = Revision(
        number=tree.revision + 1,
        effective_from_ms=now_ms,
        author=intent.author,
        reason=intent.reason,
        budgets=len(after),
        digest=digest(after.values()),
    )
    return Commit(revision, dict(sorted(changed.items())))
