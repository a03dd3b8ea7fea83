"""What may be proposed, who decides, and what an answer does (decision 0028).

Pure. Accepting is the ordinary write of all children, judged by `rules.trees`; nothing here changes a share by itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

from allmende.budget.model import Asking, Budgets, ChildShares, Commit, Intent, OpenChange, Rejection, Tree
from allmende.budget.rules import dated, trees
from allmende.budget.rules.dated import Plan, Written, as_of, date_faults, judged, revision_of
from allmende.budget.rules.renewing import renew, renewal_faults
from allmende.budget.rules.rights import manages, may_divide, nearest_managers, those
from allmende.proto.budget import Budget, ChildShare
from allmende.proto.dated import DatedShares, PlannedShares, PlanShares
from allmende.proto.message import Problem
from allmende.proto.proposals import Ending, Proposal, ProposalDecided, Propose, ShareProposed
from allmende.proto.tree_rules import quote
from allmende.proto.units import Ms, format_share


def propose(
    tree: Tree, asked: Propose, open_one: str | None, opened: Sequence[OpenChange], now_ms: Ms, asking: Asking
) -> ShareProposed | Rejection:
    """Ask for a share. `open_one`: the id of a proposal for this budget by the same author that waits for an answer.

    Faults: `unknown_budget` and `no_parent` (alone: nothing else can be judged), `not_concerned`, `text_missing`,
    `same_share` (of what is asked for good and at once), `proposal_open`, those of `renewing`.
    """
    row = tree.budgets.get(asked.budget)
    if row is None:
        return _refused(tree, "unknown_budget", f"there is no budget {quote(asked.budget)} in revision {tree.revision}")
    if row.parent is None:
        return _refused(tree, "no_parent", f"{quote(row.budget)} is the whole: there is no larger share of it to ask for")
    faults: list[Problem] = []
    if not _may_ask(tree, row, asking):
        faults.append(_not_concerned(tree, row, asking.name))
    if not asked.text.strip():
        sentence = "a proposal needs a text that says why; whoever decides reads it beside the figures"
        faults.append(Problem(code="text_missing", sentence=sentence))
    for_good = asked.effective_from_ms is None and asked.effective_until_ms is None
    if asked.share_ppm == row.share_ppm and for_good:
        sentence = f"{quote(row.budget)} has {format_share(asked.share_ppm)} of {quote(row.parent)} already"
        faults.append(Problem(code="same_share", sentence=sentence))
    if open_one is not None:
        sentence = f"your proposal {open_one} for {quote(row.budget)} waits for an answer: withdraw it before you make another one"
        faults.append(Problem(code="proposal_open", sentence=sentence))
    faults += (
        date_faults(asked.effective_from_ms, asked.effective_until_ms, now_ms)
        if asked.renews is None
        else renewal_faults(row, asked, opened, now_ms)
    )
    if faults:
        return Rejection(tree.revision, faults)
    return ShareProposed(
        proposal=asked.proposal,
        budget=row.budget,
        parent=row.parent,
        author=asking.name,
        share_ppm=asked.share_ppm,
        share_before_ppm=row.share_ppm,
        text=asked.text,
        proposed_at_ms=now_ms,
        tree_revision=tree.revision,
        managers=nearest_managers(tree.budgets, row.parent),
        effective_from_ms=asked.effective_from_ms,
        effective_until_ms=asked.effective_until_ms,
        renews=asked.renews,
    )


class Given(NamedTuple):
    """An acceptance: what it does to the tree and to dated changes, the plan of dated shares, and how the proposal ends."""

    written: Written
    planned: PlannedShares | None
    decided: ProposalDecided


def accept(
    tree: Tree,
    asked: ShareProposed,
    intent: Intent,
    siblings: ChildShares,
    opened: Sequence[OpenChange],
    now_ms: Ms,
    asking: Asking,
) -> Given | Rejection:
    """Give what was asked: set, plan or renew all children of the parent, those that `siblings` does not name as they stand.

    A beginning that has passed meanwhile means at once. Faults: `not_a_manager`, `other_share` and `siblings_renewed` (alone),
    and those of `trees.set_shares`, `dated.judged`, `dated.plan` or `renewing.renew`. Refused: the proposal stays open.
    """
    if not may_divide(tree.budgets, asked.parent, asking):
        return Rejection(tree.revision, [_not_a_manager(tree, asked, asking.name)])
    if any(name == asked.budget and share != asked.share_ppm for name, share in siblings):
        sentence = (
            f"accepting gives {quote(asked.budget)} the {format_share(asked.share_ppm)} that was asked; "
            f"to give another share decline with the reason, and set it"
        )
        return _refused(tree, "other_share", sentence)
    given = _given(tree, asked, intent, siblings, opened, now_ms, asking)
    if isinstance(given, Rejection):
        return given
    written, planned = (given.written, given.planned) if isinstance(given, Plan) else (given, None)
    ended = _end(tree, asked, "accepted", asking.name, intent.reason, now_ms, revision_of(written.verdict))
    return Given(written, planned, ended)


def _given(
    tree: Tree,
    asked: ShareProposed,
    intent: Intent,
    siblings: ChildShares,
    opened: Sequence[OpenChange],
    now_ms: Ms,
    asking: Asking,
) -> Written | Plan | Rejection:
    if asked.renews is not None:
        if siblings:
            return _refused(tree, "siblings_renewed", "a renewal lets all shares stay as they are: name no siblings")
        return renew(tree, asked, opened, now_ms)
    begin_ms = asked.effective_from_ms if (asked.effective_from_ms or 0) > now_ms else None
    why = intent._replace(reason=_reason(asked, intent.reason))
    if begin_ms is None and asked.effective_until_ms is None:
        children = _children(tree.budgets, asked, siblings)
        verdict = judged(tree, trees.set_shares(tree, why, asked.parent, children, now_ms, asking), opened)
        return verdict if isinstance(verdict, Rejection) else Written(verdict)
    then = tree.budgets if begin_ms is None else as_of(tree.budgets, opened, begin_ms)
    request = PlanShares(
        change=asked.proposal,
        parent=asked.parent,
        children=tuple(ChildShare(budget=name, share_ppm=share) for name, share in _children(then, asked, siblings)),
        effective_from_ms=begin_ms,
        effective_until_ms=asked.effective_until_ms,
        expected_revision=intent.expected_revision,
        reason=why.reason,
    )
    return dated.plan(tree, opened, request, now_ms, asking)


def plan_taken(revision: int, known: DatedShares) -> Rejection:
    """The refusal where the id of what would be planned is a dated change's already: somebody has chosen it. `id_taken`."""
    was = known.planned
    sentence = f"{was.change} is the id of a dated change of {quote(was.author)} too: decline, and plan the shares yourself"
    return Rejection(revision, [Problem(code="id_taken", sentence=sentence)])


def decline(tree: Tree, asked: ShareProposed, reason: str, now_ms: Ms, asking: Asking) -> ProposalDecided | Rejection:
    """Say no. Faults: `not_a_manager`, `reason_missing`."""
    faults: list[Problem] = []
    if not may_divide(tree.budgets, asked.parent, asking):
        faults.append(_not_a_manager(tree, asked, asking.name))
    if not reason.strip():
        faults.append(Problem(code="reason_missing", sentence=f"{quote(asked.author)} asked with a text: say why not"))
    if faults:
        return Rejection(tree.revision, faults)
    return _end(tree, asked, "declined", asking.name, reason, now_ms, tree.revision)


def withdraw(tree: Tree, asked: ShareProposed, reason: str, now_ms: Ms, asking: Asking) -> ProposalDecided | Rejection:
    """Take it back. Faults: `not_the_author`."""
    if asking.name != asked.author:
        sentence = f"only {quote(asked.author)} may withdraw this proposal; whoever may decide it declines it with a reason"
        return _refused(tree, "not_the_author", sentence)
    return _end(tree, asked, "withdrawn", asking.name, reason, now_ms, tree.revision)


def repeated(revision: int, known: Proposal, asked: Propose, person: str) -> Proposal | Rejection:
    """What to answer where there is a proposal of this id: itself to whoever made it and asks again.

    Faults: `id_taken`.
    """
    was = known.proposed
    dates = (was.effective_from_ms, was.effective_until_ms, was.renews)
    same_dates = dates == (asked.effective_from_ms, asked.effective_until_ms, asked.renews)
    if same_dates and (was.author, was.budget, was.share_ppm, was.text) == (person, asked.budget, asked.share_ppm, asked.text):
        return known
    sentence = f"{asked.proposal} is the id of another proposal, for {quote(was.budget)} by {quote(was.author)}: make a new id"
    return Rejection(revision, [Problem(code="id_taken", sentence=sentence)])


def ended(revision: int, proposal: Proposal, ending: Ending, by: str) -> Proposal | Rejection | None:
    """What to answer about a proposal that has ended: itself to whoever ended it so and asks again; None while it is open.

    Faults: `already_decided`.
    """
    decided = proposal.decided
    if decided is None:
        return None
    if decided.ending == ending and decided.by == by:
        return proposal
    why = f": {decided.reason}"[:700] if decided.reason else ""
    sentence = f"this proposal was {decided.ending} by {quote(decided.by)} before{why}"
    return Rejection(revision, [Problem(code="already_decided", sentence=sentence)])


def overtaken(waiting: Sequence[ShareProposed], commit: Commit) -> Sequence[ProposalDecided]:
    """The open proposals that a new tree ends: their budget is gone, or hangs elsewhere, where others decide."""
    revision = commit.revision
    found: list[ProposalDecided] = []
    for asked in waiting:
        if asked.budget not in commit.changed:
            continue
        row = commit.changed[asked.budget]
        if row is None:
            why = f"budget {quote(asked.budget)} is gone in revision {revision.number}"
        elif row.parent != asked.parent:
            where = "is the root" if row.parent is None else f"hangs on {quote(row.parent)}"
            why = f"budget {quote(asked.budget)} {where} from revision {revision.number} on, where others decide: ask them"
        else:
            continue
        found.append(
            ProposalDecided(
                proposal=asked.proposal,
                budget=asked.budget,
                parent=asked.parent,
                author=asked.author,
                share_ppm=asked.share_ppm,
                ending="closed",
                by=revision.author,
                reason=why,
                decided_at_ms=revision.effective_from_ms,
                tree_revision=revision.number,
                managers=asked.managers,
            )
        )
    return found


def _may_ask(tree: Tree, row: Budget, asking: Asking) -> bool:
    return asking.operator or asking.name in row.members or manages(tree.budgets, row.budget, asking.name)


def _children(budgets: Budgets, asked: ShareProposed, siblings: ChildShares) -> ChildShares:
    """All children of the parent. What is named twice, or is no child, is left in: the write names it as a fault."""
    named = {name for name, _ in siblings}
    standing = [
        (name, asked.share_ppm if name == asked.budget else row.share_ppm)
        for name, row in budgets.items()
        if row.parent == asked.parent and name not in named
    ]
    return [*standing, *siblings]


def _reason(asked: ShareProposed, reason: str) -> str:
    # The history of revisions is columns of text, which hold no NUL; what was asked is kept to the letter elsewhere.
    given, text = (each.replace("\x00", "").strip() for each in (reason, asked.text))
    words = f"{given or 'accepted'} (proposal {asked.proposal} of {asked.author}: {text}"
    return trees.shortened(words, trees.REASON_MOST - 1) + ")"


def _end(tree: Tree, asked: ShareProposed, ending: Ending, by: str, reason: str, now_ms: Ms, revision: int) -> ProposalDecided:
    return ProposalDecided(
        proposal=asked.proposal,
        budget=asked.budget,
        parent=asked.parent,
        author=asked.author,
        share_ppm=asked.share_ppm,
        ending=ending,
        by=by,
        reason=reason,
        decided_at_ms=now_ms,
        tree_revision=revision,
        managers=nearest_managers(tree.budgets, asked.parent),
    )


def _not_concerned(tree: Tree, row: Budget, person: str) -> Problem:
    who = those([*nearest_managers(tree.budgets, row.budget), *row.members])
    sentence = f"{quote(person)} may not ask for {quote(row.budget)}: its managers and members may ({who})"
    return Problem(code="not_concerned", sentence=sentence)


def _not_a_manager(tree: Tree, asked: ShareProposed, person: str) -> Problem:
    who = those(nearest_managers(tree.budgets, asked.parent))
    sentence = f"{quote(person)} may not divide {quote(asked.parent)}; {who} may decide this proposal"
    return Problem(code="not_a_manager", sentence=sentence)


def _refused(tree: Tree, code: str, sentence: str) -> Rejection:
    return Rejection(tree.revision, [Problem(code=code, sentence=sentence)])
