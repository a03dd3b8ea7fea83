"""What was heard, in partitions of a day, and the seals: deflated JSON of the ledger's own values."""

import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.ledger.model import Counter
from allmende.ledger.rules.replay import Posted, State, Words
from allmende.ledger.store.booking import read_attempt
from allmende.proto.units import DAY_MS, Ms

_SQL = load_queries("allmende.ledger", "heard.sql")
_encode = msgspec.json.Encoder().encode
_words = msgspec.json.Decoder(Words)
_state = msgspec.json.Decoder(State)
# JSON of counters shrinks to a tenth already so; more would cost more than it saves.
_LEVEL = 1
# A seal at least so often, so that one piece of a verification is half a second's work ...
SEAL_WORDS = 25_000
# ... and in quiet times once a day, so that old days can go.
SEAL_EVERY_MS = DAY_MS
# Of an attempt that ended longer ago nothing more is said.
_COMPLETE_MS = 30 * DAY_MS


class Seal(NamedTuple):
    """The state right after a batch, and the greatest posting by then."""

    number: int
    at_ms: Ms
    posting: int
    state: State


class HeardStore:
    """The queries of what was heard. Whoever writes holds the cluster's lock."""

    def __init__(self, *, seal_words: int = SEAL_WORDS) -> None:
        self._seal_words = seal_words
        # Of these a head was seen, and heads are for ever.
        self._begun: set[str] = set()

    async def begin(self, tx: Transaction, clusters: Iterable[str], now_ms: Ms) -> None:
        """Before a batch is booked: of a cluster that is heard for the first time since this is kept, seal what is there."""
        new = sorted(set(clusters) - self._begun)
        if not new:
            return
        self._begun |= {row["cluster"] for row in await tx.connection.fetch(_SQL["heads"], new)}
        for cluster in new:
            if cluster not in self._begun:
                await tx.connection.execute(_SQL["begin"], cluster, now_ms)
                await self.seal(tx, cluster, now_ms)

    async def add(self, tx: Transaction, said: Iterable[tuple[str, Words]], now_ms: Ms) -> None:
        """Keep what a batch said, by cluster, after it was booked; and seal where it is time."""
        await self._have_day(tx, now_ms // DAY_MS)
        for cluster, words in said:
            count = len(words.facts) + len(words.readings)
            data = zlib.compress(_encode(words), _LEVEL)
            row = await tx.connection.fetchrow(_SQL["add"], cluster, now_ms, count, data)
            assert row is not None, "it was begun"
            if row["words"] >= self._seal_words or now_ms - row["sealed_at_ms"] >= SEAL_EVERY_MS:
                await self.seal(tx, cluster, now_ms)

    async def _have_day(self, tx: Transaction, day: int) -> None:
        """Have the partitions of a day and the next, which then need no lock in the middle of its first batch."""
        for each in (day, day + 1):
            if not await tx.connection.fetchval(_SQL["day"], each):
                await tx.lock("heard")
                span = f"FROM ({each * DAY_MS}) TO ({(each + 1) * DAY_MS})"
                await tx.connection.execute(f"CREATE TABLE IF NOT EXISTS heard_{each} PARTITION OF heard FOR VALUES {span}")

    async def seal(self, tx: Transaction, cluster: str, now_ms: Ms) -> None:
        """Keep the state of a cluster as it now stands."""
        posting = await tx.connection.fetchval(_SQL["last_posting"], cluster)
        state = zlib.compress(_encode(await self.state(tx.connection, cluster, now_ms)), _LEVEL)
        await tx.connection.execute(_SQL["add_seal"], cluster, now_ms, posting, state)

    async def state(self, connection: Connection, cluster: str, now_ms: Ms) -> State:
        """The attempts of which more may be said, and their counters."""
        rows = await connection.fetch(_SQL["attempts"], cluster, now_ms - _COMPLETE_MS)
        counters = await connection.fetch(_SQL["counters"], cluster, [row["attempt"] for row in rows])
        return State(tuple(read_attempt(row) for row in rows), tuple(Counter(*row.values()) for row in counters))

    async def seal_at(self, connection: Connection, cluster: str, number: int | None) -> Seal | None:
        """A seal; None as a number: the oldest that is kept."""
        row = await connection.fetchrow(_SQL["seal"], cluster, number)
        return None if row is None else Seal(*row.values())._replace(state=_state.decode(zlib.decompress(row["state"])))

    async def seal_after(self, connection: Connection, cluster: str, number: int) -> Seal | None:
        """The seal that follows another one."""
        row = await connection.fetchrow(_SQL["next_seal"], cluster, number)
        return None if row is None else Seal(*row.values())._replace(state=_state.decode(zlib.decompress(row["state"])))

    async def heard(self, connection: Connection, cluster: str, after: int, upto: int, limit: int) -> list[tuple[int, Ms, Words]]:
        """Batches in order: number, when, and what was said."""
        rows = await connection.fetch(_SQL["heard"], cluster, after, upto, limit)
        return [(row["number"], row["at_ms"], _words.decode(zlib.decompress(row["said"]))) for row in rows]

    async def posted(self, connection: Connection, cluster: str, after: int, upto: int) -> list[Posted]:
        """Postings by their numbers."""
        return [Posted(*row.values()) for row in await connection.fetch(_SQL["posted"], cluster, after, upto)]

    async def posted_before(self, connection: Connection, cluster: str, attempts: Sequence[str], upto: int) -> set[str]:
        """Those of the attempts that have postings up to a number."""
        rows = await connection.fetch(_SQL["posted_before"], cluster, attempts, upto)
        return {row["attempt"] for row in rows}

    async def days(self, connection: Connection) -> list[int]:
        """The days that are kept, oldest first."""
        return [row["day"] for row in await connection.fetch(_SQL["days"])]

    async def lasts(self, connection: Connection, before_ms: Ms) -> list[tuple[str, int, bool]]:
        """Of each cluster the last batch before an instant, and whether a seal comes after it."""
        return [(row["cluster"], row["number"], row["sealed"]) for row in await connection.fetch(_SQL["lasts"], before_ms)]

    async def forget_day(self, tx: Transaction, day: int, lasts: Iterable[tuple[str, int, bool]]) -> None:
        """Drop a day, and the seals that nothing can be computed from any more."""
        for cluster, number, _ in lasts:
            await tx.connection.execute(_SQL["forget_seals"], cluster, number)
        await tx.connection.execute(f"DROP TABLE heard_{int(day)}")
