"""Dated changes: planning, taking back, and the timer that begins and ends them. Each: load, decide, commit, say.

Any replica may do what is due: the lock of the tree orders them, and a step that was taken is not due any more.
"""

from collections.abc import Sequence

from allmende.budget import wire
from allmende.budget.handlers.committing import CarryOut
from allmende.budget.model import Asking, Rejection, Tree
from allmende.budget.ports import Dated, Store, Writer
from allmende.budget.rules import dated as rules
from allmende.chassis.db import Database, Transaction
from allmende.chassis.log import get_logger
from allmende.chassis.ports import Clock, Event
from allmende.chassis.worker import Handler, Outcome
from allmende.proto.dated import DatedPage, DatedQuery, DatedReply, DatedStep, PlanShares, WithdrawDated
from allmende.proto.message import Problem
from allmende.proto.units import SECOND_MS, Ms

_log = get_logger(__name__)

# Another replica may have planned something; its timer is its own.
LOOK_MS = 5 * SECOND_MS


class Steps:
    """Carries out what a dated write does."""

    def __init__(self, dated: Dated, carry_out: CarryOut) -> None:
        self._dated = dated
        self._carry_out = carry_out

    async def take(self, tx: Transaction, written: rules.Written, by: str, reason: str | None, now_ms: Ms) -> Outcome:
        """Commit the tree and keep the steps. `reason` None: of each its plan's own."""
        outcome = await self._carry_out(tx, written.verdict, by)
        for taken in written.steps:
            planned = taken.change.planned
            step = DatedStep(
                step=taken.step,
                at_ms=now_ms,
                by=by,
                reason=planned.reason if reason is None else reason,
                tree_revision=rules.revision_of(written.verdict),
                until_ms=taken.until_ms,
            )
            await self._dated.add_step(tx, planned.change, step, taken.base if taken.step == "begun" else None)
            _log.info("a dated change", change=planned.change, parent=planned.parent, step=taken.step, due_ms=taken.change.next_ms)
        return outcome


class Timer:
    """Does what is due, one instant a transaction, and says when to look again."""

    def __init__(self, trees: Store, dated: Dated, clock: Clock, steps: Steps) -> None:
        self._trees = trees
        self._dated = dated
        self._clock = clock
        self._steps = steps

    async def __call__(self, tx: Transaction) -> Outcome:
        """Look, and do the first instant that has passed."""
        now_ms = self._clock.now_ms()
        first = rules.next_look(await self._dated.open(tx.connection))
        if first is None or first > now_ms:
            return Outcome(wake_at_ms=self._again(first, now_ms))
        tree = await self._trees.tree_for_writing(tx)
        written = rules.due(tree, await self._dated.open(tx.connection), now_ms)
        if written is None:
            # Another replica has done it.
            return Outcome(wake_at_ms=now_ms + SECOND_MS)
        outcome = await self._steps.take(tx, written, written.steps[0].change.planned.author, None, now_ms)
        first = rules.next_look(await self._dated.open(tx.connection))
        return outcome._replace(wake_at_ms=self._again(first, now_ms))

    def _again(self, first: Ms | None, now_ms: Ms) -> Ms:
        look_ms = now_ms + LOOK_MS
        return look_ms if first is None else min(first, look_ms)


class Looking:
    """The worker's handler: standings that have come, then what is due."""

    def __init__(self, standings: Handler, timer: Timer) -> None:
        self._standings = standings
        self._timer = timer

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Both in the one transaction."""
        told, dated = await self._standings(tx, events), await self._timer(tx)
        return dated._replace(drafts=[*told.drafts, *dated.drafts])


class DatedAnswers:
    """The answers to whoever plans, takes back or looks."""

    def __init__(
        self, db: Database, trees: Store, dated: Dated, writer: Writer, clock: Clock, operators: Sequence[str], steps: Steps
    ) -> None:
        self._db = db
        self._trees = trees
        self._dated = dated
        self._writer = writer
        self._clock = clock
        self._operators = frozenset(operators)
        self._steps = steps

    async def page(self, caller: str, query: DatedQuery) -> DatedPage:
        """Dated changes, newest first, from one snapshot."""
        async with self._db.reading() as connection:
            rows = await self._dated.before(connection, query, query.limit + 1)
        return wire.dated_page(rows[: query.limit], more=len(rows) > query.limit)

    async def plan(self, caller: str, request: PlanShares) -> DatedReply:
        """Plan shares. The same request again finds what it has done."""

        async def work(tx: Transaction) -> tuple[DatedReply, Outcome]:
            tree = await self._trees.tree_for_writing(tx)
            known = await self._dated.one(tx.connection, request.change)
            if known is not None:
                return wire.dated_reply(rules.repeated(tree.revision, known, request, caller)), Outcome()
            now_ms, opened = self._clock.now_ms(), await self._dated.open(tx.connection)
            planned = rules.plan(tree, opened, request, now_ms, self._asking(caller))
            if isinstance(planned, Rejection):
                return self._refused(planned, caller), Outcome()
            await self._dated.add(tx, planned.planned)
            outcome = await self._steps.take(tx, planned.written, caller, None, now_ms)
            return await self._reply(tx, request.change), await self._awake(tx, outcome)

        return await self._writer.exclusively(work)

    async def withdraw(self, caller: str, request: WithdrawDated) -> DatedReply:
        """Take back what is planned, or end what runs."""

        async def work(tx: Transaction) -> tuple[DatedReply, Outcome]:
            tree = await self._trees.tree_for_writing(tx)
            known = await self._dated.one(tx.connection, request.change)
            if known is None:
                return wire.dated_reply(self._unknown(tree, request.change)), Outcome()
            if (before := rules.over(tree.revision, known, caller)) is not None:
                return wire.dated_reply(before), Outcome()
            now_ms, opened = self._clock.now_ms(), await self._dated.open(tx.connection)
            written = rules.withdraw(tree, opened, request.change, request.reason, now_ms, self._asking(caller))
            if isinstance(written, Rejection):
                return self._refused(written, caller), Outcome()
            outcome = await self._steps.take(tx, written, caller, request.reason, now_ms)
            return await self._reply(tx, request.change), await self._awake(tx, outcome)

        return await self._writer.exclusively(work)

    async def _awake(self, tx: Transaction, outcome: Outcome) -> Outcome:
        return outcome._replace(wake_at_ms=rules.next_look(await self._dated.open(tx.connection)))

    async def _reply(self, tx: Transaction, change: str) -> DatedReply:
        return DatedReply(dated=await self._dated.one(tx.connection, change))

    def _unknown(self, tree: Tree, change: str) -> Rejection:
        sentence = f"there is no dated change {change}; `allmende budgets planned` lists them"
        return Rejection(tree.revision, [Problem(code="unknown_change", sentence=sentence)])

    def _asking(self, caller: str) -> Asking:
        return Asking(caller, caller in self._operators)

    def _refused(self, rejection: Rejection, caller: str) -> DatedReply:
        _log.info("a dated change was refused", author=caller, codes=[fault.code for fault in rejection.faults[:20]])
        return wire.dated_reply(rejection)
