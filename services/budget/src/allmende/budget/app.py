"""Wires the budget service: answers, outbox, and the first tree from a file."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from allmende.budget.config import Settings
from allmende.budget.handlers.proposals import Overtaken, ProposalAnswers
from allmende.budget.handlers.trees import Handlers
from allmende.budget.model import Rejection
from allmende.budget.store.proposals import ProposalStore
from allmende.budget.store.trees import TreeStore
from allmende.chassis.boot import Chassis
from allmende.chassis.db import Transaction
from allmende.chassis.errors import Misconfigured
from allmende.chassis.ports import Event
from allmende.chassis.rpc import endpoint
from allmende.chassis.worker import Outcome, Worker
from allmende.proto import subjects
from allmende.proto.message import Problem
from allmende.proto.tree_file import MAX_FILE_BYTES, TreeFile, read_tree

VERSION = "0.1.0"


async def run(chassis: Chassis, settings: Settings) -> None:
    """Serve until cancelled.

    Raises:
        Misconfigured: there is no tree yet and `tree_file` cannot be read or is not valid; every fault is named.
    """
    worker = Worker(
        service="budget",
        bus=chassis.bus,
        db=chassis.db,
        clock=chassis.clock,
        ids=chassis.ids,
        health=chassis.health,
        handle=hear_nothing,
        consumers=(),
    )
    trees, kept = TreeStore(), ProposalStore()
    handlers = Handlers(chassis.db, trees, worker, chassis.clock, chassis.ids, settings.operators, [Overtaken(kept)])
    proposals = ProposalAnswers(chassis.db, trees, kept, worker, chassis.clock, chassis.ids, settings.operators, handlers.carry_out)
    if settings.tree_file is not None:
        await load_first_tree(handlers, settings.tree_file)
    endpoints = [
        endpoint(subjects.TREE, handlers.tree),
        endpoint(subjects.REVISIONS, handlers.revisions),
        endpoint(subjects.SET_SHARES, handlers.set_shares),
        endpoint(subjects.PUT_BUDGETS, handlers.put_budgets),
        endpoint(subjects.LOAD_TREE, handlers.load_tree),
        endpoint(subjects.PROPOSALS, proposals.page),
        endpoint(subjects.PROPOSE, proposals.propose),
        endpoint(subjects.ACCEPT_PROPOSAL, proposals.accept),
        endpoint(subjects.DECLINE_PROPOSAL, proposals.decline),
        endpoint(subjects.WITHDRAW_PROPOSAL, proposals.withdraw),
    ]
    async with chassis.answering("budget", VERSION, endpoints):
        await worker.run()


async def hear_nothing(tx: Transaction, events: Sequence[Event]) -> Outcome:
    """The budget service is written to by requests only; the subject table lets it hear no event."""
    return Outcome()


async def load_first_tree(handlers: Handlers, path: str) -> None:
    """Make the operator's file the first revision, unless there is one already.

    Raises:
        Misconfigured: the file is needed and cannot be used.
    """
    read = await asyncio.to_thread(_read, Path(path))
    verdict = await handlers.load_first(read.budgets, read.faults, f"first start with {Path(path).name}"[:1_000])
    if isinstance(verdict, Rejection):
        sentences = "; ".join(fault.sentence for fault in verdict.faults)
        raise Misconfigured(f"tree_file {path} cannot become the first tree: {sentences}")


def _read(path: Path) -> TreeFile:
    # Not a failure yet: once there is a revision nobody needs the file any more.
    try:
        with path.open("rb") as file:
            return read_tree(file.read(MAX_FILE_BYTES + 1))
    except OSError as error:
        return TreeFile((), (Problem(code="file_unreadable", sentence=f"the file cannot be read: {error.strerror}"),))
