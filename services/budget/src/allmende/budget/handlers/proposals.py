"""Proposals: what is asked, accepted, declined, withdrawn, and ended by a change of the tree. Each: load, decide, commit, say.

Who somebody is, is the NATS server's business. The lock of the tree orders answers too: of two at once the first one counts.
"""

from collections.abc import Callable, Sequence

from allmende.budget import wire
from allmende.budget.handlers.dated import Steps
from allmende.budget.model import Asking, Commit, Intent, ProposalFilter, Rejection, Tree
from allmende.budget.ports import Dated, Proposals, Store, Writer
from allmende.budget.rules import proposals as rules
from allmende.budget.rules.dated import next_look
from allmende.budget.rules.rights import may_divide
from allmende.chassis.db import Connection, Database, Transaction
from allmende.chassis.log import get_logger
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Ids
from allmende.chassis.worker import Outcome
from allmende.proto.budget import MAX_BUDGETS
from allmende.proto.message import Message, Problem
from allmende.proto.proposals import (
    AcceptProposal,
    DeclineProposal,
    Ending,
    ProposalDecided,
    ProposalReply,
    ProposalsPage,
    ProposalsQuery,
    Propose,
    ShareProposed,
    WithdrawProposal,
)

_log = get_logger(__name__)

Decide = Callable[[Tree, ShareProposed, str, int, Asking], ProposalDecided | Rejection]


class Overtaken:
    """Ends, in the transaction of a new tree, the open proposals that it leaves without anybody to decide them."""

    def __init__(self, proposals: Proposals) -> None:
        self._proposals = proposals

    async def __call__(self, tx: Transaction, commit: Commit) -> Sequence[Message]:
        """Returns what is to be said of them."""
        waiting = await self._proposals.open_for(tx.connection, list(commit.changed))
        found = rules.overtaken([each.proposed for each in waiting], commit)
        for decided in found:
            await self._proposals.end(tx, decided)
        return found


class ProposalAnswers:
    """The answers. `steps` carries out what accepting does."""

    def __init__(
        self,
        db: Database,
        trees: Store,
        proposals: Proposals,
        dated: Dated,
        writer: Writer,
        clock: Clock,
        ids: Ids,
        operators: Sequence[str],
        steps: Steps,
    ) -> None:
        self._db = db
        self._trees = trees
        self._proposals = proposals
        self._dated = dated
        self._writer = writer
        self._clock = clock
        self._ids = ids
        self._operators = frozenset(operators)
        self._steps = steps

    async def page(self, caller: str, query: ProposalsQuery) -> ProposalsPage:
        """Proposals, newest first, from one snapshot."""
        async with self._db.reading() as connection:
            wanted = wire.filter_of(query)
            if query.to_decide:
                wanted = await self._to_decide(connection, caller, wanted)
            rows = await self._proposals.before(connection, query.before, wanted, query.limit + 1)
        return wire.proposals_page(rows[: query.limit], more=len(rows) > query.limit)

    async def propose(self, caller: str, request: Propose) -> ProposalReply:
        """Ask for a share. The same request again finds what it has done."""

        async def work(tx: Transaction) -> tuple[ProposalReply, Outcome]:
            tree = await self._trees.tree_for_writing(tx)
            known = await self._proposals.one(tx.connection, request.proposal)
            if known is not None:
                return wire.proposal_reply(rules.repeated(tree.revision, known, request, caller)), Outcome()
            waiting = await self._proposals.open_for(tx.connection, [request.budget])
            mine = next((each.proposed.proposal for each in waiting if each.proposed.author == caller), None)
            opened = await self._dated.open(tx.connection)
            asked = rules.propose(tree, request, mine, opened, self._clock.now_ms(), self._asking(caller))
            if isinstance(asked, Rejection):
                return self._refused(asked, caller), Outcome()
            await self._proposals.add(tx, asked)
            return await self._reply(tx, asked.proposal), self._said([asked], asked.proposed_at_ms)

        return await self._writer.exclusively(work)

    async def accept(self, caller: str, request: AcceptProposal) -> ProposalReply:
        """Give what was asked: a revision of the tree, and the answer, in one transaction."""

        async def work(tx: Transaction) -> tuple[ProposalReply, Outcome]:
            tree, found = await self._found(tx, request.proposal, "accepted", caller)
            if isinstance(found, ProposalReply):
                return found, Outcome()
            now_ms, siblings = self._clock.now_ms(), wire.shares_of(request.siblings)
            intent = Intent(caller, request.reason, request.expected_revision)
            opened = await self._dated.open(tx.connection)
            given = rules.accept(tree, found, intent, siblings, opened, now_ms, self._asking(caller))
            if isinstance(given, Rejection):
                return self._refused(given, caller), Outcome()
            if given.planned is not None:
                if (known := await self._dated.one(tx.connection, given.planned.change)) is not None:
                    return self._refused(rules.plan_taken(tree.revision, known), caller), Outcome()
                await self._dated.add(tx, given.planned)
            outcome = await self._steps.take(tx, given.written, caller, found.text or None, now_ms)
            return await self._ended(tx, given.decided, outcome)

        return await self._writer.exclusively(work)

    async def decline(self, caller: str, request: DeclineProposal) -> ProposalReply:
        """Say no."""
        return await self._without_a_change(caller, request, "declined", rules.decline)

    async def withdraw(self, caller: str, request: WithdrawProposal) -> ProposalReply:
        """Take one's own proposal back."""
        return await self._without_a_change(caller, request, "withdrawn", rules.withdraw)

    async def _without_a_change(
        self, caller: str, request: DeclineProposal | WithdrawProposal, ending: Ending, decide: Decide
    ) -> ProposalReply:
        async def work(tx: Transaction) -> tuple[ProposalReply, Outcome]:
            tree, found = await self._found(tx, request.proposal, ending, caller)
            if isinstance(found, ProposalReply):
                return found, Outcome()
            decided = decide(tree, found, request.reason, self._clock.now_ms(), self._asking(caller))
            if isinstance(decided, Rejection):
                return self._refused(decided, caller), Outcome()
            return await self._ended(tx, decided, Outcome())

        return await self._writer.exclusively(work)

    async def _found(
        self, tx: Transaction, proposal: str, ending: Ending, caller: str
    ) -> tuple[Tree, ShareProposed | ProposalReply]:
        """The tree, locked, and the open proposal; or the answer that needs no decision."""
        tree = await self._trees.tree_for_writing(tx)
        known = await self._proposals.one(tx.connection, proposal)
        if known is None:
            sentence = f"there is no proposal {proposal}; `allmende budgets proposals` lists them"
            return tree, wire.proposal_reply(Rejection(tree.revision, [Problem(code="unknown_proposal", sentence=sentence)]))
        before = rules.ended(tree.revision, known, ending, caller)
        return tree, known.proposed if before is None else wire.proposal_reply(before)

    async def _ended(self, tx: Transaction, decided: ProposalDecided, outcome: Outcome) -> tuple[ProposalReply, Outcome]:
        await self._proposals.end(tx, decided)
        _log.info("a proposal has ended", proposal=decided.proposal, budget=decided.budget, ending=decided.ending, by=decided.by)
        said = self._said([decided], decided.decided_at_ms)
        # What a renewal has kept beyond its end may be due now, and what was accepted may begin.
        wake_at_ms = next_look(await self._dated.open(tx.connection))
        return await self._reply(tx, decided.proposal), Outcome([*outcome.drafts, *said.drafts], wake_at_ms)

    async def _reply(self, tx: Transaction, proposal: str) -> ProposalReply:
        return ProposalReply(proposal=await self._proposals.one(tx.connection, proposal))

    async def _to_decide(self, connection: Connection, caller: str, wanted: ProposalFilter) -> ProposalFilter:
        newest = await self._trees.newest_revision(connection)
        rows = [] if newest is None else await self._trees.page_as_of(connection, newest.number, "", MAX_BUDGETS)
        budgets, asking = {row.budget: row for row in rows}, self._asking(caller)
        mine = [
            name
            for name in await self._proposals.budgets_with_open(connection)
            if name in budgets and may_divide(budgets, budgets[name].parent or name, asking)
        ]
        wide = wanted.budgets is None
        return wanted._replace(state="open", budgets=mine if wide else [name for name in mine if name in (wanted.budgets or ())])

    def _asking(self, caller: str) -> Asking:
        return Asking(caller, caller in self._operators)

    def _refused(self, rejection: Rejection, caller: str) -> ProposalReply:
        _log.info("a proposal was refused", author=caller, codes=[fault.code for fault in rejection.faults])
        return wire.proposal_reply(rejection)

    def _said(self, bodies: Sequence[Message], now_ms: int) -> Outcome:
        return Outcome(drafts=[draft(body, ids=self._ids, now_ms=now_ms) for body in bodies])
