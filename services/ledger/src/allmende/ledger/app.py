"""Wires the ledger: the inbox of ticks, grants and trees, and the answers."""

import asyncio

from allmende.chassis.boot import Chassis
from allmende.chassis.ports import Endpoint
from allmende.chassis.rpc import endpoint
from allmende.chassis.worker import Worker
from allmende.ledger.config import Settings
from allmende.ledger.handlers.activity import ActivityHearing
from allmende.ledger.handlers.answers import Answers
from allmende.ledger.handlers.booking import Booking
from allmende.ledger.handlers.corrections import CorrectionAnswers
from allmende.ledger.handlers.demand import DemandHearing
from allmende.ledger.handlers.figures import Figures, Stores
from allmende.ledger.handlers.gaps import GapAnswers
from allmende.ledger.handlers.heard import HeardVerification, Keeping
from allmende.ledger.handlers.hearing import SKEW_MS, Hearing
from allmende.ledger.handlers.pace import Forecast
from allmende.ledger.handlers.quarantine import QuarantineAnswers
from allmende.ledger.handlers.reports import Reports
from allmende.ledger.handlers.rounds import Rounds
from allmende.ledger.handlers.said import UsageSaying
from allmende.ledger.handlers.verify import Verification
from allmende.ledger.store.activity import ActivityStore
from allmende.ledger.store.booking import BookingStore
from allmende.ledger.store.corrections import CorrectionStore
from allmende.ledger.store.demand import DemandStore
from allmende.ledger.store.gaps import GapStore
from allmende.ledger.store.heard import HeardStore
from allmende.ledger.store.quarantine import QuarantineStore
from allmende.ledger.store.reading import ReadingStore
from allmende.ledger.store.reports import ReportStore
from allmende.ledger.store.said import SaidStore
from allmende.ledger.store.tree import TreeStore
from allmende.ledger.store.verify import VerifyStore
from allmende.proto import subjects
from allmende.proto.streams import consumers_of

VERSION = "0.1.0"


async def run(chassis: Chassis, settings: Settings) -> None:
    """Serve until cancelled."""
    bookings, trees, readings = BookingStore(), TreeStore(), ReadingStore()
    kept = HeardStore()
    # Liveness is real time: on a scaled clock that is more.
    booking = Booking(bookings, GapStore(), kept, settings.silence_ms * chassis.clock.rate)
    rounds = Rounds(
        readings,
        trees,
        chassis.clock,
        chassis.ids,
        chassis.health,
        window_ms=settings.window_ms,
        slice_cap_ms=settings.slice_cap_ms,
        half_life_ms=settings.half_life_ms,
    )
    demands, activity = DemandStore(), ActivityStore()
    books = Hearing(bookings, booking, trees, rounds, chassis.clock, chassis.ids, settings.allowance_ms)
    heard = DemandHearing(ActivityHearing(books, activity), demands)
    worker = Worker(
        service="ledger",
        bus=chassis.bus,
        db=chassis.db,
        clock=chassis.clock,
        ids=chassis.ids,
        health=chassis.health,
        handle=UsageSaying(heard, SaidStore(), chassis.clock, chassis.ids),
        consumers=consumers_of("ledger"),
        batch=settings.batch,
    )
    answers = Answers(chassis.db, readings, rounds, chassis.clock, silence_ms=settings.silence_ms)
    reports = Reports(chassis.db, ReportStore(), chassis.clock)
    forecast = Forecast(chassis.db, rounds, demands, VerifyStore(), chassis.clock)
    served = Figures(chassis.db, Stores(demands, readings, ReportStore(), trees, activity), chassis.clock)
    verification = Verification(chassis.db, VerifyStore(), readings, chassis.clock)
    endpoints = [
        endpoint(subjects.STANDINGS, answers.standings),
        endpoint(subjects.POSTINGS, answers.postings),
        endpoint(subjects.BOOKS, answers.books),
        endpoint(subjects.LEDGER_STATE, answers.state),
        endpoint(subjects.FAULTS, answers.faults),
        endpoint(subjects.STATEMENT, reports.statement),
        endpoint(subjects.USAGE, reports.usage),
        endpoint(subjects.USAGE_BY, reports.usage_by),
        endpoint(subjects.VERIFY, verification.verify),
        endpoint(subjects.DEMAND, served.demand),
        endpoint(subjects.FIGURES, served.measure),
        endpoint(subjects.WAITS, served.waits),
        endpoint(subjects.IDLE, served.idle),
        endpoint(subjects.PACE, forecast.pace),
        *_of_trust(chassis, settings, worker, booking, kept),
    ]
    async with chassis.answering("ledger", VERSION, endpoints), asyncio.TaskGroup() as tasks:
        tasks.create_task(Keeping(kept, bookings, worker, chassis.clock, keep_ms=settings.keep_heard_ms).run())
        await worker.run()


def _of_trust(chassis: Chassis, settings: Settings, worker: Worker, booking: Booking, kept: HeardStore) -> list[Endpoint]:
    """What people ask when the numbers are in doubt, and how operators put them right."""
    quarantine = QuarantineAnswers(
        chassis.db,
        QuarantineStore(),
        BookingStore(),
        booking,
        worker,
        chassis.clock,
        chassis.ids,
        allowance_ms=settings.allowance_ms,
        skew_ms=SKEW_MS,
    )
    corrections = CorrectionAnswers(
        chassis.db, CorrectionStore(), BookingStore(), ReadingStore(), ReportStore(), worker, chassis.clock
    )
    gaps = GapAnswers(chassis.db, GapStore(), chassis.clock, silence_ms=settings.silence_ms)
    return [
        endpoint(subjects.QUARANTINE, quarantine.quarantine),
        endpoint(subjects.RELEASE, quarantine.release),
        endpoint(subjects.CORRECTIONS, corrections.corrections),
        endpoint(subjects.CORRECT, corrections.correct),
        endpoint(subjects.GAPS, gaps.gaps),
        endpoint(subjects.VERIFY_EVENTS, HeardVerification(chassis.db, kept, chassis.clock).verify),
    ]
