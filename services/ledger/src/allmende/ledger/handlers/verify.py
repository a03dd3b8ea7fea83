"""The verification of a cluster's books, a day a reply: everything derived is computed anew. Reads one snapshot; never repairs."""

from allmende.chassis.db import Connection, Database
from allmende.chassis.ports import Clock
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.ports import Readings, Verifying
from allmende.ledger.rules import verifying
from allmende.ledger.rules.books import Steps, keep, uncounted
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.standings import Window
from allmende.proto import reports
from allmende.proto.envelope import Refusal
from allmende.proto.units import DAY_MS, Ms, format_instant

# A reply must fit one message of 64 KiB. With the longest names and numbers a difference has 600 bytes.
DIFFERENCES_MAX = 90


class Verification:
    """Answers `verify`."""

    def __init__(self, db: Database, store: Verifying, readings: Readings, clock: Clock) -> None:
        self._db, self._store, self._readings, self._clock = db, store, readings, clock

    async def verify(self, caller: str, query: reports.VerifyQuery) -> reports.VerifyPage:
        """At most a day of the books: balances, intervals, terms and conservation, and up to 90 differences a reply.

        Raises:
            Refusal: `unknown_cluster`; `empty_span`: nothing lies in the span; `not_on_an_edge`: no multiple of 5 minutes.
        """
        now_ms = self._clock.now_ms()
        last_ms = -(-now_ms // BUCKET_MS) * BUCKET_MS
        end_ms = last_ms if query.to_ms is None else min(query.to_ms, last_ms)
        for name, value in (("from_ms", query.from_ms), ("to_ms", query.to_ms)):
            if value is not None and value % BUCKET_MS:
                may = format_instant(value - value % BUCKET_MS)
                raise Refusal("not_on_an_edge", f"the books are verified by buckets of 5 minutes: {name} may be {may}")
        async with self._db.reading() as connection:
            begin_ms = await self._store.begin_ms(connection, query.cluster)
            if begin_ms is None:
                raise Refusal("unknown_cluster", f"nothing was ever heard of a cluster {query.cluster!r}")
            from_ms = max(query.from_ms, begin_ms - begin_ms % BUCKET_MS)
            if query.from_ms >= end_ms:
                begin, end = format_instant(query.from_ms), format_instant(end_ms)
                raise Refusal("empty_span", f"the span ends at {end}, not after its beginning {begin}: let it begin earlier")
            steps = Steps(from_ms, BUCKET_MS, max(0, min(end_ms - from_ms, DAY_MS)) // BUCKET_MS)
            postings = await self._store.postings(connection, query.cluster, steps)
            found, known = await self._differences(connection, query.cluster, steps, now_ms)
        page = found[query.offset : query.offset + DIFFERENCES_MAX]
        return reports.VerifyPage(
            cluster=query.cluster,
            as_of_ms=now_ms,
            from_ms=steps.from_ms,
            to_ms=steps.to_ms,
            postings=postings,
            buckets=steps.total,
            buckets_of_unknown_capacity=steps.total - known,
            found=len(found),
            differences=tuple(reports.Difference(**each._asdict()) for each in page),
            next_from_ms=steps.to_ms if steps.to_ms < end_ms else None,
        )

    async def _differences(
        self, connection: Connection, cluster: str, steps: Steps, now_ms: Ms
    ) -> tuple[list[verifying.Difference], int]:
        """All differences, and in how many buckets the capacity is known."""
        if not steps.total:
            return [], 0
        found = [
            *verifying.buckets(await self._store.buckets(connection, cluster, steps)),
            *verifying.intervals(await self._store.intervals(connection, cluster, steps)),
            *verifying.terms(await self._store.terms(connection, cluster, steps)),
        ]
        nodes = await self._readings.steps(connection, cluster, Window(steps.from_ms, steps.to_ms))
        capacity = levels(nodes, steps.from_ms, min(steps.to_ms, max(now_ms, steps.from_ms)))
        posted = await self._readings.posted_by_step(connection, cluster, steps)
        lives, rests = await self._readings.lives(connection, cluster, steps)
        books = keep(steps, capacity, posted, [*rests, *uncounted(lives, now_ms)])
        known_from_ms = verifying.known_from(capacity)
        found += verifying.conservation(books, known_from_ms)
        known = 0 if known_from_ms is None else max(0, steps.to_ms - max(known_from_ms, steps.from_ms)) // BUCKET_MS
        return found, known
