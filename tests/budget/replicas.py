"""Replicas of the budget service's answers, without a bus: what they decide is committed and never published."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from allmende.budget.handlers.committing import Committer
from allmende.budget.handlers.dated import DatedAnswers, Steps, Timer
from allmende.budget.handlers.proposals import Overtaken, ProposalAnswers
from allmende.budget.handlers.trees import Handlers
from allmende.budget.ports import Writer
from allmende.budget.store.dated import DatedStore
from allmende.budget.store.proposals import ProposalStore
from allmende.budget.store.trees import TreeStore
from allmende.chassis.db import Database, Transaction
from allmende.chassis.entropy import RandomIds
from allmende.chassis.ports import Clock
from allmende.chassis.worker import Outcome
from allmende.proto.budget import WriteReply
from allmende.proto.dated import DatedReply
from allmende.proto.ids import make_id
from allmende.proto.proposals import ProposalReply

T = TypeVar("T")
OPERATORS = ("ada", "grace", "kim")


class Silent:
    """A writer that commits and then never publishes: a process that dies between commit and publish."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """Commit the work and what it wants to say."""
        async with self._db.transaction() as tx:
            result, outcome = await work(tx)
            await tx.say(outcome.drafts)
        return result


class Replica(NamedTuple):
    """The answers of one replica, and its timer."""

    db: Database
    trees: Handlers
    dated: DatedAnswers
    proposals: ProposalAnswers
    timer: Timer

    async def look(self) -> int | None:
        """Let the timer look once; returns when it wants to look again."""
        async with self.db.transaction() as tx:
            outcome = await self.timer(tx)
            await tx.say(outcome.drafts)
        return outcome.wake_at_ms


def replica(db: Database, clock: Clock, operators: tuple[str, ...] = OPERATORS, writer: Writer | None = None) -> Replica:
    """A replica on this database."""
    trees, dated, kept, ids = TreeStore(), DatedStore(), ProposalStore(), RandomIds()
    writer = writer or Silent(db)
    carry_out = Committer(trees, ids, [Overtaken(kept)])
    steps = Steps(dated, carry_out)
    return Replica(
        db,
        Handlers(db, trees, dated, writer, clock, operators, carry_out),
        DatedAnswers(db, trees, dated, writer, clock, operators, steps),
        ProposalAnswers(db, trees, kept, dated, writer, clock, ids, operators, steps),
        Timer(trees, dated, clock, steps),
    )


def an_id(number: int = 1) -> str:
    """The id of a proposal or a dated change."""
    return make_id(number, bytes(10))


def refused(reply: WriteReply | ProposalReply | DatedReply) -> list[str]:
    """The codes of a refusal."""
    assert reply.rejected is not None, reply
    return [fault.code for fault in reply.rejected.faults]
