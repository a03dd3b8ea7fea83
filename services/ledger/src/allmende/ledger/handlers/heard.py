"""The books computed anew from what was heard, a piece a reply, and old days dropped. Never repairs anything."""

from typing import Final

from allmende.chassis.db import Connection, Database, Transaction
from allmende.chassis.errors import Transient
from allmende.chassis.log import get_logger
from allmende.chassis.ports import Clock
from allmende.chassis.worker import Outcome
from allmende.ledger.ports import Bookings, Heard, Sealed, Writer
from allmende.ledger.rules.replay import Replay, differing_counters, differing_postings
from allmende.ledger.rules.verifying import Difference
from allmende.proto import reports
from allmende.proto.envelope import Refusal
from allmende.proto.units import DAY_MS, MINUTE_MS, Ms

# A reply must fit one message of 64 KiB. With the longest names and numbers a difference has 700 bytes.
DIFFERENCES_MAX = 80
# So many batches at once; between them others have their turn.
BATCHES_AT_ONCE = 100
_LATEST_NUMBER: Final = 2**62

_log = get_logger(__name__)


class HeardVerification:
    """Answers `verify_events`."""

    def __init__(self, db: Database, store: Heard, clock: Clock) -> None:
        self._db, self._store, self._clock = db, store, clock

    async def verify(self, caller: str, query: reports.VerifyEventsQuery) -> reports.VerifyEventsPage:
        """One piece, from a seal to the next or to now: postings and counters, up to 80 differences a reply.

        Raises:
            Refusal: `unknown_cluster`; `seal_gone`: the seal to begin with is not kept any more; `batch_missing`.
        """
        now_ms = self._clock.now_ms()
        async with self._db.reading() as connection:
            seal = await self._store.seal_at(connection, query.cluster, query.after)
            if seal is None:
                if query.after is None:
                    raise Refusal("unknown_cluster", f"nothing was ever heard of a cluster {query.cluster!r}")
                raise Refusal("seal_gone", f"seal {query.after} of {query.cluster} is not kept any more: begin with the oldest")
            after = await self._store.seal_after(connection, query.cluster, seal.number)
            upto = _LATEST_NUMBER if after is None else after.number
            piece = await self._compute(connection, query.cluster, seal, upto)
            last = _LATEST_NUMBER if after is None else after.posting
            kept = await self._store.posted(connection, query.cluster, seal.posting, last)
            state = await self._store.state(connection, query.cluster, now_ms) if after is None else after.state
        found = [
            *differing_postings(piece.replay.postings, [each for each in kept if each.attempt not in piece.not_judged]),
            *differing_counters(piece.replay, state, piece.not_judged),
        ]
        return _page(query, now_ms, seal, piece, len(kept), found, None if after is None else after.number)

    async def _compute(self, connection: Connection, cluster: str, seal: Sealed, upto: int) -> "_Piece":
        piece = _Piece(seal)
        while True:
            rows = await self._store.heard(connection, cluster, piece.number, upto, BATCHES_AT_ONCE)
            if not rows:
                return piece
            known = {key[1] for key in piece.replay.attempts} | piece.not_judged
            new = set().union(*(words.attempts for _, _, words in rows)) - known
            piece.not_judged |= await self._store.posted_before(connection, cluster, sorted(new), seal.posting)
            for number, at_ms, words in rows:
                if number != piece.number + 1:
                    raise Refusal(
                        "batch_missing", f"batch {piece.number + 1} of {cluster} is not kept any more: nothing can follow"
                    )
                piece.number, piece.to_ms = number, at_ms
                piece.words += len(words.facts) + len(words.readings)
                piece.replay.hear(words.without(piece.not_judged) if piece.not_judged else words)


class _Piece:
    """What was computed so far."""

    def __init__(self, seal: Sealed) -> None:
        self.replay = Replay(seal.state)
        self.number, self.to_ms, self.words = seal.number, seal.at_ms, 0
        self.not_judged: set[str] = set()


def _page(
    query: reports.VerifyEventsQuery,
    now_ms: Ms,
    seal: Sealed,
    piece: _Piece,
    postings: int,
    found: list[Difference],
    next_after: int | None,
) -> reports.VerifyEventsPage:
    page = found[query.offset : query.offset + DIFFERENCES_MAX]
    return reports.VerifyEventsPage(
        cluster=query.cluster,
        as_of_ms=now_ms,
        after=seal.number,
        upto=piece.number,
        from_ms=seal.at_ms,
        to_ms=piece.to_ms,
        words=piece.words,
        postings=postings,
        not_judged=len(piece.not_judged),
        found=len(found),
        differences=tuple(reports.Difference(**each._asdict()) for each in page),
        next_after=next_after,
    )


class Keeping:
    """Drops days that are old enough, once a seal comes after them."""

    def __init__(self, store: Heard, bookings: Bookings, writer: Writer, clock: Clock, *, keep_ms: Ms) -> None:
        self._store, self._bookings, self._writer, self._clock, self._keep_ms = store, bookings, writer, clock, keep_ms

    async def run(self) -> None:
        """Look once a real minute, until cancelled."""
        while True:
            try:
                while await self.drop_one():
                    pass
            except Transient as error:
                _log.warning("old days could not be dropped", why=str(error))
            await self._clock.sleep_until(self._clock.now_ms() + MINUTE_MS * self._clock.rate)

    async def drop_one(self) -> bool:
        """Drop the oldest day if it is old enough; clusters without a seal behind it are sealed first. True when there was one."""

        async def work(tx: Transaction) -> tuple[bool, Outcome]:
            now_ms = self._clock.now_ms()
            days = await self._store.days(tx.connection)
            if not days or (days[0] + 1) * DAY_MS > now_ms - self._keep_ms:
                return False, Outcome()
            lasts = await self._store.lasts(tx.connection, (days[0] + 1) * DAY_MS)
            await self._bookings.lock(tx, [cluster for cluster, _, _ in lasts])
            for cluster, _, sealed in lasts:
                if not sealed:
                    await self._store.seal(tx, cluster, now_ms)
            await self._store.forget_day(tx, days[0], lasts)
            return True, Outcome()

        return await self._writer.exclusively(work)
