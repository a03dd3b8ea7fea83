"""The quarantine's answers: what waits, and the release of an item by an operator. Never edits what was said."""

from allmende.chassis.db import Database, Transaction
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Ids
from allmende.chassis.worker import Outcome
from allmende.ledger import errors, wire
from allmende.ledger.handlers.booking import Booking
from allmende.ledger.model import Claim, Fact, Limits
from allmende.ledger.ports import Bookings, Quarantine, Writer
from allmende.ledger.rules.posting import advanced_gpu_ms
from allmende.ledger.rules.quarantine import Held, No, release
from allmende.proto.envelope import Refusal
from allmende.proto.quarantine import QuarantinePage, QuarantineQuery, Released, ReleaseItem

# A reply must fit one message of 64 KiB. With the longest sentence and a reason that is all escapes an item has 7,500 bytes.
ITEMS_MAX = 8


class QuarantineAnswers:
    """Lists and releases."""

    def __init__(
        self,
        db: Database,
        store: Quarantine,
        bookings: Bookings,
        booking: Booking,
        writer: Writer,
        clock: Clock,
        ids: Ids,
        *,
        allowance_ms: int,
        skew_ms: int,
    ) -> None:
        self._db, self._store, self._bookings, self._writer, self._clock, self._ids = db, store, bookings, writer, clock, ids
        self._booking = booking
        # Two clocks differ by real time: on a scaled clock that is more.
        self._allowance_ms, self._skew_ms = allowance_ms * clock.rate, skew_ms * clock.rate

    async def quarantine(self, caller: str, query: QuarantineQuery) -> QuarantinePage:
        """What is not counted and why, in the order of what and code, up to 8 a reply. An unknown cluster has nothing."""
        async with self._db.reading() as connection:
            items = await self._store.page(connection, query, ITEMS_MAX + 1)
        return QuarantinePage(items=tuple(items[:ITEMS_MAX]), more=len(items) > ITEMS_MAX)

    async def release(self, caller: str, request: ReleaseItem) -> Released:
        """Release one item.

        Raises:
            Refusal: `nothing_held`; `contradicts_the_books`, `not_yet`, `claim_not_kept`; `release_changed`: the id was used for
                another item; or the code for which the released claim, heard again, was not counted either.
        """

        async def work(tx: Transaction) -> tuple[Released, Outcome]:
            await self._bookings.lock(tx, [request.cluster])
            before = await self._store.released(tx, request.release)
            if before is not None:
                if (before.cluster, before.what, before.code) != (request.cluster, request.what, request.code):
                    raise Refusal(
                        "release_changed", f"release {request.release} was of {before.what}, {before.code}: take a new id"
                    )
                return before, Outcome()
            return await self._release(tx, caller, request)

        return await self._writer.exclusively(work)

    async def _release(self, tx: Transaction, caller: str, request: ReleaseItem) -> tuple[Released, Outcome]:
        now_ms = self._clock.now_ms()
        limits = Limits(now_ms, self._allowance_ms, self._skew_ms)
        held = await self._held(tx, request)
        key = (request.cluster, request.what.partition("/")[0])
        attempt = (await self._bookings.attempts(tx, [key[1]])).get(key)
        judged = release(held, attempt.grant if attempt is not None else None, request.release, limits)
        if isinstance(judged, No):
            raise Refusal(judged.code, judged.sentence)
        if judged.step is not None:
            await self._bookings.add_steps(tx, [judged.step])
        facts: list[Fact] = [each for each in (judged.started, judged.ended) if each is not None]
        booked = await self._booking.book(tx, facts, judged.readings, limits)
        counted = advanced_gpu_ms(booked.loaded, booked.entries)
        if booked.faults and not counted:
            raise Refusal(booked.faults[0].code, booked.faults[0].sentence)
        await self._bookings.add_faults(tx, booked.faults, now_ms)
        await self._store.add(tx, request, caller, held.claim or Claim(), counted, now_ms)
        drafts = [draft(body, ids=self._ids, now_ms=now_ms) for body in wire.confirmations(booked.confirmed)]
        done = Released(
            release=request.release,
            cluster=request.cluster,
            what=request.what,
            code=request.code,
            counted_gpu_ms=counted,
            author=caller,
            reason=request.reason,
            at_ms=now_ms,
        )
        return done, Outcome(drafts)

    async def _held(self, tx: Transaction, request: ReleaseItem) -> Held:
        held = await self._store.held(tx, request.cluster, request.what, request.code)
        if held is not None:
            return held
        if request.code == errors.UNKNOWN_ATTEMPT and await self._store.is_unknown(tx, request.cluster, request.what):
            return Held(request.what, request.code, 0, None)
        sentence = f"nothing of {request.what} waits for the reason {request.code}; see `allmende ledger quarantine`"
        raise Refusal("nothing_held", sentence)
