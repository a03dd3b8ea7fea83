"""What a write does to the tree: a commit, nothing, or a refusal with every fault (contract §2).

Pure. What a valid tree is, says `proto.tree_rules`. A refused write changes nothing.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from allmende.budget.model import Asking, Budgets, ChildShares, Commit, Intent, Piece, Rejection, Revision, Tree, Unchanged, Verdict
from allmende.budget.rules.rights import foreign_place, overreach
from allmende.proto.budget import Budget, ClusterShare
from allmende.proto.message import Problem
from allmende.proto.tree import digest, leaves
from allmende.proto.tree_rules import quote, validate, validate_change
from allmende.proto.units import Ms, Ppm

# A reason has at most so many characters, as in `proto.message.Text`.
REASON_MOST = 1_000


def load_tree(tree: Tree, intent: Intent, budgets: Sequence[Budget], now_ms: Ms) -> Verdict:
    """Replace the whole tree.

    Faults: those of `tree_rules.validate`, `stale_revision`, `reason_missing`, `jobs_to_missing`.
    """
    faults = [*stale_faults(tree, intent), *reason_faults(intent), *_left_out(tree, budgets), *validate(budgets)]
    if faults:
        return Rejection(tree.revision, faults)
    return commit(tree, intent, {row.budget: row for row in budgets}, now_ms)


def set_shares(
    tree: Tree, intent: Intent, parent: str, children: ChildShares, now_ms: Ms, asking: Asking, cluster: str | None = None
) -> Verdict:
    """Set the shares of ALL children of one parent: the general ones, or those of one cluster.

    Faults: `stale_revision` (alone: the author has not seen the tree that the rest would be judged by), `reason_missing`,
    `unknown_budget`, `no_children`, `missing_child`, `foreign_child`, `duplicate_child`, those of
    `rights.overreach` and of `tree_rules.validate`.
    """
    if stale := stale_faults(tree, intent):
        return Rejection(tree.revision, stale)
    faults = [*reason_faults(intent), *children_faults(tree, parent, children)]
    shares = dict(children)
    after = {
        name: with_share(row, shares[name], cluster) if row.parent == parent and name in shares else row
        for name, row in tree.budgets.items()
    }
    faults.extend(overreach(tree.budgets, after, asking))
    if tree.budgets:
        faults.extend(validate_change(tree.budgets, after))
    if faults:
        return Rejection(tree.revision, faults)
    return commit(tree, intent, after, now_ms)


def own_share(row: Budget, cluster: str | None) -> Ppm | None:
    """What `with_share` sets: the general share, or the cluster's own; None where there is none."""
    if cluster is None:
        return row.share_ppm
    return next((each.share_ppm for each in row.cluster_shares or () if each.cluster == cluster), None)


def with_share(row: Budget, share_ppm: Ppm | None, cluster: str | None) -> Budget:
    """The budget with another general share, or another share of its own on one cluster; None takes it away."""
    if cluster is None:
        return msgspec.structs.replace(row, share_ppm=share_ppm)
    own = {each.cluster: each for each in row.cluster_shares or () if each.cluster != cluster}
    if share_ppm is not None:
        own[cluster] = ClusterShare(cluster=cluster, share_ppm=share_ppm)
    return msgspec.structs.replace(row, cluster_shares=tuple(own[name] for name in sorted(own)) or msgspec.UNSET)


def put_budgets(tree: Tree, intent: Intent, rows: Sequence[Budget], used: Collection[str], now_ms: Ms, asking: Asking) -> Verdict:
    """Create budgets, or replace what is said of them; all others stay. `used`: which of their names are or were a budget's.

    Faults: `stale_revision` (alone, as in `set_shares`), `reason_missing`, `name_was_used`, `share_of_one`,
    `moved_cluster_shares`, `duplicate_budget`, those of `rights.overreach` and of `tree_rules.validate`.
    """
    if stale := stale_faults(tree, intent):
        return Rejection(tree.revision, stale)
    faults = [*reason_faults(intent), *_rows(tree, rows, used)]
    after = {**tree.budgets, **{row.budget: row for row in rows}}
    faults.extend(overreach(tree.budgets, after, asking))
    faults.extend(validate_change(tree.budgets, after))
    if faults:
        return Rejection(tree.revision, faults)
    return commit(tree, intent, after, now_ms)


def close_budget(tree: Tree, intent: Intent, budget: str, jobs_to: str | None, now_ms: Ms, asking: Asking) -> Verdict:
    """Take a leaf out of the tree; its jobs go to the leaf `jobs_to` of the tree after (decision 0029).

    Faults: `stale_revision` (alone, as in `set_shares`), `reason_missing`, `unknown_budget`, `has_children`, `jobs_to_missing`,
    `jobs_to_no_leaf`, `foreign_place`, those of `rights.overreach` and of `tree_rules.validate`.
    """
    if stale := stale_faults(tree, intent):
        return Rejection(tree.revision, stale)
    faults = reason_faults(intent)
    if budget not in tree.budgets:
        sentence = f"there is no budget {quote(budget)} in revision {tree.revision}"
        return Rejection(tree.revision, [*faults, Problem(code="unknown_budget", sentence=sentence)])
    after = {name: row for name, row in tree.budgets.items() if name != budget}
    below = sorted(name for name, row in tree.budgets.items() if row.parent == budget)
    faults.extend(overreach(tree.budgets, after, asking))
    if below:
        named = ", ".join(below[:5]) + (f" and {len(below) - 5} more" if len(below) > 5 else "")
        sentence = f"{quote(budget)} has budgets below it, whose jobs may go to different places: close or move {named} first"
        faults.append(Problem(code="has_children", sentence=sentence))
    else:
        faults.extend(validate_change(tree.budgets, after))
        faults.extend(_place(tree, after, budget, jobs_to, asking))
    if faults or jobs_to is None:
        return Rejection(tree.revision, faults)
    verdict = commit(tree, intent, after, now_ms)
    assert isinstance(verdict, Commit)
    return verdict._replace(jobs_to={budget: jobs_to})


def assemble(pieces: Sequence[Piece]) -> Sequence[Budget] | None:
    """The budgets of an upload in the order of its pieces; None while pieces are missing."""
    known = {piece.number: piece for piece in pieces}
    end = max((piece.number for piece in pieces if piece.last), default=None)
    if end is None or any(number not in known for number in range(end)):
        return None
    return [row for number in range(end + 1) for row in known[number].budgets]


def stale_faults(tree: Tree, intent: Intent) -> list[Problem]:
    """`stale_revision`, where the author has looked at another tree than the one in force."""
    if intent.expected_revision == tree.revision:
        return []
    sentence = (
        f"the tree has changed since you read it: revision {tree.revision} is in force, you expected {intent.expected_revision}"
    )
    return [Problem(code="stale_revision", sentence=sentence)]


def reason_faults(intent: Intent) -> list[Problem]:
    """`reason_missing`, where there is none; `reason_unreadable`, where it holds a NUL, which the history's columns do not."""
    if "\0" in intent.reason:
        return [
            Problem(code="reason_unreadable", sentence="the reason holds a NUL character, which nobody could read: leave it out")
        ]
    if intent.reason.strip():
        return []
    return [Problem(code="reason_missing", sentence="a change of shares needs a reason; whoever reads the history will ask for it")]


def shortened(text: str, most: int = REASON_MOST) -> str:
    """The text, or its beginning: what the history keeps as a reason may be made of several people's words."""
    return text if len(text) <= most else text[: most - 3] + "..."


def children_faults(tree: Tree, parent: str, children: ChildShares) -> list[Problem]:
    """`unknown_budget`, `no_children`, `missing_child`, `foreign_child`, `duplicate_child`: not all children of it, once each."""
    if parent not in tree.budgets:
        return [Problem(code="unknown_budget", sentence=f"there is no budget {quote(parent)} in revision {tree.revision}")]
    theirs = [name for name, row in tree.budgets.items() if row.parent == parent]
    if not theirs:
        return [Problem(code="no_children", sentence=f"budget {quote(parent)} has no children whose shares could be set")]
    named = Counter(name for name, _ in children)
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
        Problem(code="duplicate_child", sentence=f"budget {quote(name)} is given {count} shares")
        for name, count in sorted(named.items())
        if count > 1
    ]
    return faults


def _place(tree: Tree, after: Budgets, budget: str, jobs_to: str | None, asking: Asking) -> Sequence[Problem]:
    """What is wrong with the leaf that a closed budget's jobs shall go to. Its parent may be one, with its last child gone."""
    if jobs_to is None:
        sentence = (
            f"say where the jobs go that wait for {quote(budget)} or are on their way: "
            f"`allmende budgets close {budget} --jobs-to BUDGET`; what runs keeps its slice"
        )
        return [Problem(code="jobs_to_missing", sentence=sentence)]
    if jobs_to not in leaves(after):
        sentence = f"jobs are charged to leaves, and {quote(jobs_to)} is none once {quote(budget)} is closed; name a leaf"
        return [Problem(code="jobs_to_no_leaf", sentence=sentence)]
    return foreign_place(tree.budgets, jobs_to, asking)


def _left_out(tree: Tree, budgets: Sequence[Budget]) -> list[Problem]:
    """A file cannot say where the jobs go of a leaf that it leaves out. One that nobody may charge has none to come."""
    named = {row.budget for row in budgets}
    return [
        Problem(
            code="jobs_to_missing",
            sentence=(
                f"leaf {quote(name)} is left out, and the jobs of its members would go nowhere: close it first, with "
                f"`allmende budgets close {name} --jobs-to BUDGET`"
            ),
        )
        for name in sorted(leaves(tree.budgets) - named)
        if tree.budgets[name].members
    ]


def _rows(tree: Tree, rows: Sequence[Budget], used: Collection[str]) -> list[Problem]:
    faults: list[Problem] = []
    seen: set[str] = set()
    for row in rows:
        name, was = quote(row.budget), tree.budgets.get(row.budget)
        if row.budget in seen:
            faults.append(Problem(code="duplicate_budget", sentence=f"budget {name} is written twice in one request"))
        elif was is None and row.budget in used:
            sentence = f"there was a budget {name} before, and its usage is kept under that name: choose another one"
            faults.append(Problem(code="name_was_used", sentence=sentence))
        elif was is not None and was.parent == row.parent and _shares(was) != _shares(row):
            sentence = f"the share of {name} is set together with its siblings': `allmende budgets set {row.parent} ...`"
            faults.append(Problem(code="share_of_one", sentence=sentence))
        elif was is not None and was.parent != row.parent and row.cluster_shares:
            sentence = (
                f"{name} moves, and its shares of single clusters were parts of another parent: leave them out, then set "
                f"those of all children of the new one: `allmende budgets set {row.parent} ... --cluster CLUSTER`"
            )
            faults.append(Problem(code="moved_cluster_shares", sentence=sentence))
        seen.add(row.budget)
    return faults


def _shares(row: Budget) -> tuple[Ppm | None, tuple[ClusterShare, ...]]:
    return row.share_ppm, row.cluster_shares or ()


def commit(tree: Tree, intent: Intent, after: Budgets, now_ms: Ms) -> Commit | Unchanged:
    """The write that makes this tree the one in force; nothing where it is already. `after` has been judged."""
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
