"""Wires the budget service: answers, outbox, the first tree from a file, dated changes, notices and their sender."""

import asyncio
import random
from pathlib import Path

from allmende.budget import wire
from allmende.budget.config import Settings
from allmende.budget.handlers.committing import Committer
from allmende.budget.handlers.dated import DatedAnswers, Looking, Steps, Timer
from allmende.budget.handlers.notices import NoticeAnswers
from allmende.budget.handlers.posting import Poster
from allmende.budget.handlers.proposals import Overtaken, ProposalAnswers
from allmende.budget.handlers.sending import Sender
from allmende.budget.handlers.telling import Telling
from allmende.budget.handlers.trees import Handlers
from allmende.budget.model import Rejection
from allmende.budget.store.dated import DatedStore
from allmende.budget.store.notices import NoticeStore
from allmende.budget.store.proposals import ProposalStore
from allmende.budget.store.trees import TreeStore
from allmende.chassis.boot import Chassis
from allmende.chassis.errors import Misconfigured
from allmende.chassis.rpc import endpoint
from allmende.chassis.worker import Worker
from allmende.proto import subjects
from allmende.proto.message import Problem
from allmende.proto.streams import consumers_of
from allmende.proto.tree_file import MAX_FILE_BYTES, TreeFile, read_tree

VERSION = "0.1.0"


async def run(chassis: Chassis, settings: Settings) -> None:
    """Serve until cancelled.

    Raises:
        Misconfigured: there is no tree yet and `tree_file` cannot be read or is not valid; every fault is named.
    """
    notices, trees, dated, kept = NoticeStore(), TreeStore(), DatedStore(), ProposalStore()
    carry_out = Committer(trees, chassis.ids, [Overtaken(kept)])
    steps = Steps(dated, carry_out)
    telling = Telling(notices, chassis.clock, chassis.ids, deliver=settings.webhook_url is not None)
    worker = Worker(
        service="budget",
        bus=chassis.bus,
        db=chassis.db,
        clock=chassis.clock,
        ids=chassis.ids,
        health=chassis.health,
        handle=Looking(telling, Timer(trees, dated, chassis.clock, steps)),
        consumers=consumers_of("budget"),
    )
    handlers = Handlers(chassis.db, trees, dated, worker, chassis.clock, settings.operators, carry_out)
    plans = DatedAnswers(chassis.db, trees, dated, worker, chassis.clock, settings.operators, steps)
    proposals = ProposalAnswers(chassis.db, trees, kept, dated, worker, chassis.clock, chassis.ids, settings.operators, steps)
    if settings.tree_file is not None:
        await load_first_tree(handlers, settings.tree_file)
    answers = NoticeAnswers(chassis.db, notices, worker, sends=settings.webhook_url is not None)
    endpoints = [
        endpoint(subjects.TREE, handlers.tree),
        endpoint(subjects.REVISIONS, handlers.revisions),
        endpoint(subjects.SET_SHARES, handlers.set_shares),
        endpoint(subjects.PUT_BUDGETS, handlers.put_budgets),
        endpoint(subjects.CLOSE_BUDGET, handlers.close_budget),
        endpoint(subjects.LOAD_TREE, handlers.load_tree),
        endpoint(subjects.DATED, plans.page),
        endpoint(subjects.PLAN_SHARES, plans.plan),
        endpoint(subjects.WITHDRAW_DATED, plans.withdraw),
        endpoint(subjects.PROPOSALS, proposals.page),
        endpoint(subjects.PROPOSE, proposals.propose),
        endpoint(subjects.ACCEPT_PROPOSAL, proposals.accept),
        endpoint(subjects.DECLINE_PROPOSAL, proposals.decline),
        endpoint(subjects.WITHDRAW_PROPOSAL, proposals.withdraw),
        endpoint(subjects.NOTICES, answers.notices),
        endpoint(subjects.DELIVERIES, answers.deliveries),
        endpoint(subjects.RETRY_DELIVERIES, answers.retry),
    ]
    async with chassis.answering("budget", VERSION, endpoints), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        if settings.webhook_url is not None and settings.webhook_secret is not None:
            poster = Poster(settings.webhook_url)
            tasks.create_task(Sender(chassis.db, notices, poster, wire.secret_of(settings.webhook_secret), random.Random()).run())


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
