"""The list of gaps. Reads one snapshot; never writes."""

from allmende.chassis.db import Database
from allmende.chassis.ports import Clock
from allmende.ledger.ports import Gaps
from allmende.proto.envelope import Refusal
from allmende.proto.gaps import GapMark, GapsPage, GapsQuery
from allmende.proto.units import Ms, format_instant

# A reply must fit one message of 64 KiB. With the longest names and numbers a gap has 320 bytes.
GAPS_MAX = 180


class GapAnswers:
    """Lists gaps."""

    def __init__(self, db: Database, store: Gaps, clock: Clock, *, silence_ms: Ms) -> None:
        self._db, self._store, self._clock = db, store, clock
        # Liveness is real time: on a scaled clock that is more.
        self._silence_ms = silence_ms * clock.rate

    async def gaps(self, caller: str, query: GapsQuery) -> GapsPage:
        """Gaps that touch a span, by their beginning, up to 180 a reply. An unknown cluster has none.

        Raises:
            Refusal: `empty_span`.
        """
        if query.from_ms >= query.to_ms:
            begin, end = format_instant(query.from_ms), format_instant(query.to_ms)
            raise Refusal("empty_span", f"the span ends at {end}, not after its beginning {begin}")
        now_ms = self._clock.now_ms()
        async with self._db.reading() as connection:
            found = await self._store.page(connection, query, now_ms, self._silence_ms, GAPS_MAX + 1)
        page = found[:GAPS_MAX]
        last = page[-1] if len(found) > len(page) else None
        return GapsPage(
            cluster=query.cluster,
            as_of_ms=now_ms,
            silence_ms=self._silence_ms,
            gaps=tuple(page),
            next_after=None if last is None else GapMark(from_ms=last.from_ms, attempt=last.attempt, replica=last.replica),
        )
