"""Corrections by operators: what is refused and why, the entries, and the list. Never changes a posting."""

from allmende.chassis.db import Database, Transaction
from allmende.chassis.ports import Clock
from allmende.chassis.worker import Outcome
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.ports import Bookings, Corrections, Readings, ReportReadings, Writer
from allmende.ledger.rules.books import Steps, keep
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.corrections import Room, spread, uncharged
from allmende.ledger.rules.standings import Window
from allmende.proto.corrections import Correct, Correction, CorrectionsPage, CorrectionsQuery
from allmende.proto.envelope import Refusal
from allmende.proto.units import DAY_MS, Ms, format_instant

# A reply must fit one message of 64 KiB. With a reason that is all escapes a correction has 6,700 bytes.
CORRECTIONS_MAX = 9
# 8,928 entries.
SPAN_MAX_MS = 31 * DAY_MS


class CorrectionAnswers:
    """Makes and lists corrections."""

    def __init__(
        self,
        db: Database,
        store: Corrections,
        bookings: Bookings,
        readings: Readings,
        reports: ReportReadings,
        writer: Writer,
        clock: Clock,
    ) -> None:
        self._db, self._store, self._bookings, self._readings = db, store, bookings, readings
        self._reports, self._writer, self._clock = reports, writer, clock

    async def corrections(self, caller: str, query: CorrectionsQuery) -> CorrectionsPage:
        """Corrections by number, up to 9 a reply. Of an unknown cluster or budget there are none."""
        async with self._db.reading() as connection:
            rows = await self._store.page(connection, query, CORRECTIONS_MAX + 1)
        page = rows[:CORRECTIONS_MAX]
        return CorrectionsPage(corrections=tuple(page), next_after=page[-1].number if len(rows) > len(page) else None)

    async def correct(self, caller: str, request: Correct) -> Correction:
        """Move an amount from one account to another.

        Raises:
            Refusal: `same_account`, `not_on_an_edge`, `empty_span`, `span_too_long`, `not_yet`; `unknown_cluster`,
                `unknown_budget`, `has_budgets_below`; `more_than_there_is`; `correction_changed`: the id was used for another one.
        """

        async def work(tx: Transaction) -> tuple[Correction, Outcome]:
            await self._bookings.lock(tx, [request.cluster])
            before = await self._store.made(tx, request.correction)
            if before is not None:
                return _same(request, *before), Outcome()
            now_ms = self._clock.now_ms()
            _check(request, now_ms)
            await self._check_accounts(tx, request)
            room = await self._room(tx, request)
            whole = sum(room.values())
            amount = whole if request.amount_gpu_ms is None else request.amount_gpu_ms
            if not 0 < amount <= whole:
                sentence = f"{request.take_from} has {whole} GPU-ms in that span that can be moved, and {amount} were asked for"
                raise Refusal("more_than_there_is", sentence)
            return await self._store.add(tx, request, caller, spread(amount, room), now_ms), Outcome()

        return await self._writer.exclusively(work)

    async def _check_accounts(self, tx: Transaction, request: Correct) -> None:
        if not await self._reports.has_cluster(tx.connection, request.cluster):
            raise Refusal("unknown_cluster", f"nothing was ever heard of a cluster {request.cluster!r}")
        for account in (request.take_from, request.charge_to):
            if not account.startswith("budget/"):
                continue
            budget = account.removeprefix("budget/")
            known = await self._reports.known(tx.connection, request.cluster, budget)
            if not known.known:
                raise Refusal("unknown_budget", f"there is no budget {budget!r}; `allmende budgets` shows which there are")
            if known.has_below and account == request.charge_to:
                raise Refusal(
                    "has_budgets_below", f"{budget!r} has budgets below it, and only leaves are charged: name one of those"
                )

    async def _room(self, tx: Transaction, request: Correct) -> Room:
        """What can be taken, by bucket. Rests that are not posted yet cannot: they may still grow."""
        connection, cluster, from_ms, to_ms = tx.connection, request.cluster, request.from_ms, request.to_ms
        if request.take_from != "capacity":
            budget = request.take_from.removeprefix("budget/") if request.take_from != "unallocated" else ""
            return await self._store.room(connection, cluster, budget, from_ms, to_ms)
        steps = Steps(from_ms, BUCKET_MS, (to_ms - from_ms) // BUCKET_MS)
        capacity = levels(await self._readings.steps(connection, cluster, Window(from_ms, to_ms)), from_ms, to_ms)
        return uncharged(keep(steps, capacity, {}, ()), await self._store.charged(connection, cluster, from_ms, to_ms))


def _same(request: Correct, made: Correction, asked_gpu_ms: int | None) -> Correction:
    terms = (made.cluster, made.take_from, made.charge_to, made.from_ms, made.to_ms, asked_gpu_ms)
    if terms == (request.cluster, request.take_from, request.charge_to, request.from_ms, request.to_ms, request.amount_gpu_ms):
        return made
    raise Refusal("correction_changed", f"correction {made.correction} was made before, on other terms: take a new id")


def _check(request: Correct, now_ms: Ms) -> None:
    if request.take_from == request.charge_to:
        raise Refusal("same_account", f"{request.take_from} cannot give to itself: name two accounts")
    for name, value in (("from_ms", request.from_ms), ("to_ms", request.to_ms)):
        if value % BUCKET_MS:
            may = format_instant(value - value % BUCKET_MS)
            raise Refusal("not_on_an_edge", f"amounts are kept in steps of 5 minutes: {name} may be {may}")
    if request.from_ms >= request.to_ms:
        begin, end = format_instant(request.from_ms), format_instant(request.to_ms)
        raise Refusal("empty_span", f"the span ends at {end}, not after its beginning {begin}")
    if request.to_ms - request.from_ms > SPAN_MAX_MS:
        raise Refusal("span_too_long", "one correction reaches over at most 31 days: make several")
    if request.to_ms > now_ms:
        latest = format_instant(now_ms - now_ms % BUCKET_MS)
        raise Refusal("not_yet", f"only what is over can be put right: the span may end at {latest}")
