"""Between the messages of `proto.budget`, `proto.dated` and `proto.proposals` and the values of `model`. Never decides anything."""

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from allmende.budget.model import (
    NOTHING_SINCE,
    ChildShares,
    Commit,
    Intent,
    PastRevision,
    Piece,
    ProposalFilter,
    Rejection,
    Revision,
    Since,
    Unchanged,
    Verdict,
)
from allmende.budget.rules.notices import LEVEL, PACE, Notice, People, Seen, sentence
from allmende.proto.budget import (
    Budget,
    BudgetChanged,
    BudgetDiff,
    ChildShare,
    CloseBudget,
    Committed,
    PutBudgets,
    Rejected,
    RevisionComplete,
    RevisionRow,
    RevisionsPage,
    SetShares,
    TreePage,
    UploadPiece,
    WriteReply,
)
from allmende.proto.dated import DatedPage, DatedReply, DatedShares
from allmende.proto.ledger import UsageStanding
from allmende.proto.message import Message, Problem
from allmende.proto.notices import BudgetNotice, KeptNotice, NoticesPage
from allmende.proto.proposals import Proposal, ProposalReply, ProposalsPage, ProposalsQuery

# A reply must fit 64 KiB. Whoever has more faults than that mends these first.
FAULT_BYTES = 48 * 1024
PAGE_BYTES = 48 * 1024
# What faults and changes may take together.
REPLY_BYTES = 56 * 1024

_encoder = msgspec.json.Encoder()
S = TypeVar("S", bound=Struct)


def messages(commit: Commit) -> Sequence[Message]:
    """What a commit says: each budget that differs, then that the revision is complete."""
    revision = commit.revision
    changes = [
        BudgetChanged(budget=name, revision=revision.number, definition=row, jobs_to=commit.jobs_to.get(name))
        for name, row in commit.changed.items()
    ]
    complete = RevisionComplete(
        revision=revision.number,
        effective_from_ms=revision.effective_from_ms,
        budgets=revision.budgets,
        digest=revision.digest,
        author=revision.author,
        reason=revision.reason,
    )
    return [*changes, complete]


def reply(verdict: Verdict, since: Since = NOTHING_SINCE) -> WriteReply:
    """The answer to a write; `since`: what others have written meanwhile."""
    match verdict:
        case Commit(revision=revision):
            return WriteReply(committed=Committed(status="committed", revision=revision.number))
        case Unchanged(revision=number):
            return WriteReply(committed=Committed(status="unchanged", revision=number))
        case Rejection(revision=number, faults=faults):
            told = _bounded(faults)
            diffs = [BudgetDiff(budget=each.budget, before=each.before, after=each.after) for each in since.changes]
            changed = _fitting(diffs, REPLY_BYTES - len(_encoder.encode(told)), least=0)
            more = since.total - len(changed)
            return WriteReply(rejected=Rejected(revision=number, faults=told, changed=changed, more_changed=more))


def pieced(revision: int) -> WriteReply:
    """The answer to a piece whose upload is not whole yet."""
    return WriteReply(committed=Committed(status="pieced", revision=revision))


def already(revision: int) -> WriteReply:
    """The answer to a piece of an upload that has become a revision before."""
    return WriteReply(committed=Committed(status="committed", revision=revision))


def intent_of(caller: str, request: SetShares | PutBudgets | CloseBudget | UploadPiece) -> Intent:
    """Who wants to write. The author is the caller, whom the server has authenticated; a request cannot name one."""
    return Intent(author=caller, reason=request.reason, expected_revision=request.expected_revision)


def shares_of(children: Sequence[ChildShare]) -> ChildShares:
    """The shares that a request sets."""
    return [(child.budget, child.share_ppm) for child in children]


def piece_of(request: UploadPiece) -> Piece:
    """The piece that a request brings."""
    return Piece(request.piece, request.last, request.budgets)


def page(revision: Revision, budgets: Sequence[Budget], more: bool) -> TreePage:
    """As many budgets as fit a reply, at least one; `more`: others follow behind these."""
    fitting = _fitting(budgets, PAGE_BYTES, least=1)
    more = more or len(fitting) < len(budgets)
    return TreePage(
        revision=revision.number,
        effective_from_ms=revision.effective_from_ms,
        author=revision.author,
        reason=revision.reason,
        budgets=fitting,
        next_after=fitting[-1].budget if more and fitting else None,
    )


def proposal_reply(answer: Proposal | Rejection) -> ProposalReply:
    """The answer to whoever proposes or decides."""
    if isinstance(answer, Rejection):
        return ProposalReply(rejected=_rejected(answer))
    return ProposalReply(proposal=answer)


def dated_reply(answer: DatedShares | Rejection) -> DatedReply:
    """The answer to whoever plans or withdraws."""
    if isinstance(answer, Rejection):
        return DatedReply(rejected=_rejected(answer))
    return DatedReply(dated=answer)


def dated_page(changes: Sequence[DatedShares], more: bool) -> DatedPage:
    """As many as fit a reply, at least one; `more`: older ones follow behind these."""
    fitting = _fitting(changes, PAGE_BYTES, least=1)
    more = more or len(fitting) < len(changes)
    return DatedPage(changes=fitting, next_before=fitting[-1].number if more and fitting else None)


def filter_of(query: ProposalsQuery) -> ProposalFilter:
    """Which proposals a query means; who may decide them is not said here."""
    return ProposalFilter(query.proposal, None if query.budget is None else (query.budget,), query.author, query.state)


def proposals_page(proposals: Sequence[Proposal], more: bool) -> ProposalsPage:
    """As many as fit a reply, at least one; `more`: older ones follow behind these."""
    fitting = _fitting(proposals, PAGE_BYTES, least=1)
    more = more or len(fitting) < len(proposals)
    return ProposalsPage(proposals=fitting, next_before=fitting[-1].number if more and fitting else None)


def revisions_page(rows: Sequence[PastRevision], more: bool) -> RevisionsPage:
    """As many revisions as fit a reply, at least one; `more`: older ones follow behind these."""
    fitting = _fitting([_revision_row(row) for row in rows], PAGE_BYTES, least=1)
    more = more or len(fitting) < len(rows)
    return RevisionsPage(revisions=fitting, next_before=fitting[-1].revision if more and fitting else None)


def _revision_row(past: PastRevision) -> RevisionRow:
    revision = past.revision
    return RevisionRow(
        revision=revision.number,
        effective_from_ms=revision.effective_from_ms,
        author=revision.author,
        reason=revision.reason,
        budgets=revision.budgets,
        changed=past.changed,
        digest=revision.digest,
        jobs_to=past.jobs_to,
    )


def _rejected(rejection: Rejection) -> Rejected:
    return Rejected(revision=rejection.revision, faults=_bounded(rejection.faults))


def _fitting(rows: Sequence[S], room: int, least: int) -> tuple[S, ...]:
    """The first rows that fit into `room` bytes, but not fewer than `least` of them."""
    for number, row in enumerate(rows):
        room -= len(_encoder.encode(row)) + 1
        if room < 0 and number >= least:
            return tuple(rows[:number])
    return tuple(rows)


def _bounded(faults: Sequence[Problem]) -> tuple[Problem, ...]:
    size = 0
    for number, fault in enumerate(faults):
        size += len(_encoder.encode(fault)) + 1
        if size > FAULT_BYTES:
            rest = Problem(code="more_faults", sentence=f"and {len(faults) - number} faults more; mend these first")
            return (*faults[:number], rest)
    return tuple(faults)


def seen_in(standing: UsageStanding) -> Seen:
    """What a standing says of its budget."""
    return Seen(
        usage_revision=standing.usage_revision,
        tree_revision=standing.tree_revision,
        as_of_ms=standing.as_of_ms,
        charged=standing.charged_gpu_ms,
        held=standing.held_gpu_ms,
        entitlement=standing.entitlement_gpu_ms,
    )


def budget_notice(identifier: str, cluster: str, budget: str, seen: Seen, notice: Notice, people: People) -> BudgetNotice:
    """A notice as it is said."""
    return BudgetNotice(
        notice=identifier,
        kind=LEVEL if notice.passed else PACE,
        budget=budget,
        cluster=cluster,
        as_of_ms=seen.as_of_ms,
        usage_revision=seen.usage_revision,
        tree_revision=seen.tree_revision,
        level_percent=notice.level,
        passed_percent=tuple(notice.passed),
        charged_gpu_ms=seen.charged,
        held_gpu_ms=seen.held,
        entitlement_gpu_ms=seen.entitlement,
        whole_at_ms=notice.whole_at_ms,
        managers=tuple(people.managers),
        members=tuple(people.members),
        people_left_out=people.left_out,
        sentence=sentence(budget, cluster, seen, notice),
    )


def notices_page(rows: Sequence[tuple[int, BudgetNotice]], more: bool) -> NoticesPage:
    """As many notices as fit a reply, at least one; `more`: there are older ones behind these."""
    fitting: list[KeptNotice] = []
    size = 0
    for number, notice in rows:
        size += len(_encoder.encode(notice)) + 32
        if fitting and size > PAGE_BYTES:
            more = True
            break
        fitting.append(KeptNotice(number=number, notice=notice))
    return NoticesPage(notices=tuple(fitting), next_before=fitting[-1].number if more and fitting else None)


def post_of(notice: BudgetNotice) -> bytes:
    """The body of a post: type and data as Standard Webhooks has them, and `text`, which chat services show as it stands."""
    return _encoder.encode({"type": notice.TYPE, "text": notice.sentence, "data": notice})


def secret_of(text: str) -> bytes:
    """The bytes of a webhook's secret.

    Raises:
        ValueError: it is not 24 to 64 bytes in base64, with or without `whsec_`; does not say it.
    """
    try:
        secret = base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        secret = b""
    if not 24 <= len(secret) <= 64:
        raise ValueError("webhook_secret should be `whsec_` and 24 to 64 random bytes in base64, as of `openssl rand -base64 32`")
    return secret
