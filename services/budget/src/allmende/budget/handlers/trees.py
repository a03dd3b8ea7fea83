"""What the budget service answers: the tree in pieces, and the ways of writing it. Each write: load, decide, commit, say.

Who somebody is, is the NATS server's business: it lets nobody use another's name, and only operators load whole trees.
"""

from collections.abc import Sequence

from allmende.budget import wire
from allmende.budget.handlers.committing import Committer
from allmende.budget.model import NOTHING_SINCE, Asking, Intent, Rejection, Revision, Since, Tree, Unchanged, Verdict
from allmende.budget.ports import Dated, Store, Writer
from allmende.budget.rules import trees as rules
from allmende.budget.rules.dated import judged
from allmende.chassis.db import Connection, Database, Transaction
from allmende.chassis.ports import Clock
from allmende.chassis.worker import Outcome
from allmende.proto.budget import (
    Budget,
    CloseBudget,
    PutBudgets,
    RevisionsPage,
    RevisionsQuery,
    SetShares,
    TreePage,
    TreeQuery,
    UploadPiece,
    WriteReply,
)
from allmende.proto.envelope import Refusal
from allmende.proto.message import Problem

# Rows read for one page: most budgets take 100 to 200 bytes, so about this many fit a reply of 48 KiB.
_PAGE_ROWS = 400
# The author of what the operator's own file brought in; no person can have a token of this name by accident.
FILE_AUTHOR = "budget-file"


class Handlers:
    """The answers, with what they need of the outside."""

    def __init__(
        self, db: Database, store: Store, dated: Dated, writer: Writer, clock: Clock, operators: Sequence[str], carry_out: Committer
    ) -> None:
        self._db = db
        self._store = store
        self._dated = dated
        self._writer = writer
        self._clock = clock
        self._operators = frozenset(operators)
        self._carry_out = carry_out

    async def tree(self, caller: str, query: TreeQuery) -> TreePage:
        """A piece of a revision, from one snapshot.

        Whoever reads several pieces names the revision of the first in the others: another may come into force in between.

        Raises:
            Refusal: `no_tree`, `unknown_revision` or `no_tree_then`.
        """
        async with self._db.reading() as connection:
            wanted = await self._revision(connection, query)
            rows = await self._store.page_as_of(
                connection, wanted.number, query.after or "", _PAGE_ROWS + 1, differs_from=query.differs_from
            )
        return wire.page(wanted, rows[:_PAGE_ROWS], more=len(rows) > _PAGE_ROWS)

    async def revisions(self, caller: str, query: RevisionsQuery) -> RevisionsPage:
        """The history: who has changed the tree, when and why, newest first. Empty while there is no tree."""
        async with self._db.reading() as connection:
            rows = await self._store.revisions_before(connection, query.before, query.budget, _PAGE_ROWS + 1)
        return wire.revisions_page(rows[:_PAGE_ROWS], more=len(rows) > _PAGE_ROWS)

    async def set_shares(self, caller: str, request: SetShares) -> WriteReply:
        """Set the shares of all children of one parent."""

        async def work(tx: Transaction) -> tuple[WriteReply, Outcome]:
            tree = await self._store.tree_for_writing(tx)
            intent, now_ms = wire.intent_of(caller, request), self._clock.now_ms()
            verdict = rules.set_shares(
                tree, intent, request.parent, wire.shares_of(request.children), now_ms, self._asking(caller), request.cluster
            )
            return await self._settled(tx, tree, intent, verdict)

        return await self._writer.exclusively(work)

    async def put_budgets(self, caller: str, request: PutBudgets) -> WriteReply:
        """Create budgets, move them, give them other titles and people."""

        async def work(tx: Transaction) -> tuple[WriteReply, Outcome]:
            tree = await self._store.tree_for_writing(tx)
            used = await self._store.names_used(tx, [row.budget for row in request.budgets])
            intent, now_ms = wire.intent_of(caller, request), self._clock.now_ms()
            verdict = rules.put_budgets(tree, intent, request.budgets, used, now_ms, self._asking(caller))
            return await self._settled(tx, tree, intent, verdict)

        return await self._writer.exclusively(work)

    async def close_budget(self, caller: str, request: CloseBudget) -> WriteReply:
        """Take a leaf out of the tree, and say where its jobs go."""

        async def work(tx: Transaction) -> tuple[WriteReply, Outcome]:
            tree = await self._store.tree_for_writing(tx)
            intent, now_ms = wire.intent_of(caller, request), self._clock.now_ms()
            verdict = rules.close_budget(tree, intent, request.budget, request.jobs_to, now_ms, self._asking(caller))
            return await self._settled(tx, tree, intent, verdict)

        return await self._writer.exclusively(work)

    async def load_tree(self, caller: str, request: UploadPiece) -> WriteReply:
        """Stage a piece of a whole tree; the piece that makes the upload whole commits it. Every piece may be sent again."""

        async def work(tx: Transaction) -> tuple[WriteReply, Outcome]:
            tree = await self._store.tree_for_writing(tx)
            if done := await self._store.revision_of_upload(tx, request.upload):
                return wire.already(done.number), Outcome()
            budgets = rules.assemble(await self._store.stage(tx, request.upload, caller, wire.piece_of(request)))
            if budgets is None:
                return wire.pieced(tree.revision), Outcome()
            intent = wire.intent_of(caller, request)
            verdict = rules.load_tree(tree, intent, budgets, self._clock.now_ms())
            return await self._settled(tx, tree, intent, verdict, request.upload)

        return await self._writer.exclusively(work)

    async def load_first(self, budgets: Sequence[Budget], faults: Sequence[Problem], reason: str) -> Verdict:
        """Make these budgets the first revision unless their file had faults; where there is a revision, nothing happens."""

        async def work(tx: Transaction) -> tuple[Verdict, Outcome]:
            tree = await self._store.tree_for_writing(tx)
            if tree.revision:
                return Unchanged(tree.revision), Outcome()
            if faults:
                return Rejection(tree.revision, faults), Outcome()
            verdict = rules.load_tree(tree, Intent(FILE_AUTHOR, reason, 0), budgets, self._clock.now_ms())
            return verdict, await self._carry_out(tx, verdict, FILE_AUTHOR)

        return await self._writer.exclusively(work)

    async def _revision(self, connection: Connection, query: TreeQuery) -> Revision:
        newest = await self._store.newest_revision(connection)
        if newest is None:
            raise Refusal("no_tree", "there is no tree yet; load one with `allmende budgets load FILE.toml`")
        if query.revision is not None:
            wanted = await self._store.one_revision(connection, query.revision)
            if wanted is None:
                raise Refusal("unknown_revision", f"there is no revision {query.revision}; the newest is {newest.number}")
            return wanted
        if query.at_ms is not None:
            then = await self._store.revision_at(connection, query.at_ms)
            if then is None:
                raise Refusal("no_tree_then", "there was no tree at that time yet; `allmende budgets history` shows the first one")
            return then
        return newest

    async def _settled(
        self, tx: Transaction, tree: Tree, intent: Intent, verdict: Verdict, upload: str | None = None
    ) -> tuple[WriteReply, Outcome]:
        """The end of every write: what is planned is judged too, then it is carried out, and its author is told."""
        verdict = judged(tree, verdict, await self._dated.open(tx.connection))
        since = await self._since(tx, intent, verdict)
        return wire.reply(verdict, since), await self._carry_out(tx, verdict, intent.author, upload)

    async def _since(self, tx: Transaction, intent: Intent, verdict: Verdict) -> Since:
        """What the author of a stale write has not seen."""
        if not isinstance(verdict, Rejection) or intent.expected_revision >= verdict.revision:
            return NOTHING_SINCE
        return await self._store.changed_between(tx.connection, intent.expected_revision, verdict.revision, _PAGE_ROWS)

    def _asking(self, caller: str) -> Asking:
        return Asking(caller, caller in self._operators)
