"""Wires the admission service: one writer at a time, the others stand by."""

import asyncio

from allmende.admission.config import Settings
from allmende.admission.handlers.commands import Commands
from allmende.admission.handlers.desk import Desk
from allmende.admission.handlers.events import Hearing
from allmende.admission.handlers.queries import Queries
from allmende.admission.model.values import Terms
from allmende.admission.store import AdmissionStore
from allmende.chassis.boot import Chassis
from allmende.chassis.clock import real_seconds
from allmende.chassis.errors import Transient
from allmende.chassis.log import get_logger
from allmende.chassis.rpc import endpoint
from allmende.chassis.term import Term
from allmende.chassis.worker import Worker
from allmende.proto import subjects
from allmende.proto.streams import consumers_of

VERSION = "0.1.0"
# A batch costs half a dozen statements and a pass whatever its size; a person does not notice this delay.
LINGER_S = 0.01
FORGET_EVERY_S = 60.0
# Some milliseconds of work, so that nobody waits behind it.
FORGET_MOST = 500

_log = get_logger(__name__)


def terms_of(settings: Settings, rate: int) -> Terms:
    """The settings as rules take them: all in clock milliseconds, so real ones are multiplied by the clock's rate."""
    return Terms(
        slice_cap_ms=settings.slice_cap_ms,
        silent_after_ms=settings.real_silent_after_ms * rate,
        start_timeout_ms=settings.real_start_timeout_ms * rate,
        answer_wait_ms=settings.real_answer_wait_ms * rate,
        claim_timeout_ms=settings.claim_grace_ms + settings.real_claim_allowance_ms * rate,
        claims_max=settings.claims_max,
        claim_backoff_ms=settings.real_claim_backoff_ms * rate,
        claim_backoff_max_ms=settings.real_claim_backoff_max_ms * rate,
        requeue_backoff_ms=settings.requeue_backoff_ms,
        requeue_backoff_max_ms=settings.requeue_backoff_max_ms,
        avoid_ms=settings.avoid_ms,
        start_failures_max=settings.start_failures_max,
        settle_ms=settings.real_settle_ms * rate,
        stop_grace_ms=settings.stop_grace_ms,
        margin_ppm=settings.margin_ppm,
        reservations_max=settings.reservations_max,
        # Until then a claim is kept, so until then its victims have left.
        notice_ms=settings.claim_grace_ms + settings.real_claim_allowance_ms * rate,
    )


async def run(chassis: Chassis, settings: Settings) -> None:
    """Stand by until the term is ours, then decide until cancelled.

    Raises:
        StaleTerm: somebody else has taken over; the process ends and stands by again once it is restarted.
    """
    store = AdmissionStore()
    term = Term(chassis.db, "admission", holder=chassis.instance)
    chassis.health.ready("term", False, "another replica is the writer; this one stands by")
    await term.acquire()
    chassis.health.ready("term", True)
    desk = Desk(store, term, chassis.clock, chassis.ids, chassis.health, terms_of(settings, chassis.clock.rate))
    hearing = Hearing(desk, store, chassis.clock, chassis.ids)
    worker = Worker(
        service="admission",
        bus=chassis.bus,
        db=chassis.db,
        clock=chassis.clock,
        ids=chassis.ids,
        health=chassis.health,
        handle=hearing,
        consumers=consumers_of("admission"),
        linger_s=LINGER_S,
        on_failure=hearing.forget,
    )
    queries = Queries(desk, store, chassis.db, chassis.clock)
    commands = Commands(desk, store, chassis.db, worker, chassis.clock, settings.operators)
    endpoints = [
        endpoint(subjects.QUEUE, queries.queue),
        endpoint(subjects.JOBS, queries.jobs),
        endpoint(subjects.WHY, queries.why),
        endpoint(subjects.NODES, queries.nodes),
        endpoint(subjects.HISTORY, queries.history),
        endpoint(subjects.PAYLOAD, queries.payload),
        endpoint(subjects.POLICY, queries.policy),
        endpoint(subjects.POLICY_HISTORY, queries.policy_history),
        endpoint(subjects.SET_POLICY, commands.set_policy),
        endpoint(subjects.DECLARE_LOST, commands.declare_lost),
        endpoint(subjects.CANCEL, commands.cancel),
        endpoint(subjects.CHANGE, commands.change),
    ]
    # Only the writer answers: the queue's order and the live attempts are in its memory.
    try:
        async with chassis.answering("admission", VERSION, endpoints), asyncio.TaskGroup() as tasks:
            tasks.create_task(term.run())
            tasks.create_task(worker.run())
            tasks.create_task(_forget_for_ever(chassis, store, term, settings))
    finally:
        await term.release()


async def _forget_for_ever(chassis: Chassis, store: AdmissionStore, term: Term, settings: Settings) -> None:
    """Delete what ended long ago, in small steps. Such rows are in no one's memory."""
    while True:
        started_s, forgotten = real_seconds(), 0
        try:
            async with chassis.db.transaction() as tx:
                await term.check(tx)
                forgotten = await store.forget_ended(tx, chassis.clock.now_ms() - settings.keep_ended_ms, FORGET_MOST)
        except Transient as error:
            _log.warning("old jobs could not be forgotten", why=str(error))
        await asyncio.sleep(0.2 if forgotten == FORGET_MOST else max(0.0, FORGET_EVERY_S - (real_seconds() - started_s)))
