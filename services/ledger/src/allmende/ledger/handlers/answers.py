"""Answers to questions: standings, postings, books, and how complete the books are. Reads one snapshot; never writes."""

from allmende.chassis.db import Database
from allmende.chassis.ports import Clock
from allmende.ledger import wire
from allmende.ledger.handlers.rounds import Rounds
from allmende.ledger.ports import Readings
from allmende.ledger.rules.books import Steps, keep, uncounted
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.standings import Window
from allmende.proto.envelope import Refusal
from allmende.proto.ledger import (
    CapacityQuery,
    CapacityReply,
    FaultsPage,
    FaultsQuery,
    LedgerState,
    LedgerStateQuery,
    PostingsPage,
    PostingsQuery,
    StandingsQuery,
    StandingsReply,
)
from allmende.proto.units import Ms

# A reply must fit one message of 64 KiB. With the longest names and numbers a standing has 420 bytes, a posting 280, a step of the
# books 310.
STANDINGS_MAX = 150
POSTINGS_MAX = 230
STEPS_MAX = 200
# A fault with the longest sentence has 1,400 bytes.
FAULTS_MAX = 40


class Answers:
    """The ledger's verbs."""

    def __init__(self, db: Database, store: Readings, rounds: Rounds, clock: Clock, *, silence_ms: Ms) -> None:
        self._db, self._clock, self._rounds, self._store = db, clock, rounds, store
        # Liveness is real time (contract: start, bus and liveness time-outs do not scale).
        self._silence_ms = silence_ms * clock.rate

    async def standings(self, caller: str, query: StandingsQuery) -> StandingsReply:
        """The budgets on one cluster, computed now, up to 150 a reply. Each piece is of its own instant.

        Raises:
            Refusal: `unknown_cluster`; `not_ready` while the tree or the capacity is unknown.
        """
        async with self._db.reading() as connection:
            taken = await self._rounds.now(connection, query.cluster, self._clock.now_ms())
            if taken is None:
                raise _unknown(query.cluster)
            if taken.standings is None:
                raise Refusal("not_ready", f"the tree of budgets or the capacity of {query.cluster!r} is not known yet; ask again")
            row, standings = taken.row, taken.standings
            counted = await self._store.counted_grants(connection, query.cluster, row.counted_grants)
        accounts = [each for each in standings.accounts if query.after is None or each.budget > query.after]
        page = accounts[:STANDINGS_MAX]
        lines = (wire.standing(row.cluster, standings, each, row.usage_revision, counted) for each in page)
        return StandingsReply(
            cluster=row.cluster,
            as_of_ms=standings.as_of_ms,
            usage_revision=row.usage_revision,
            available_gpus=standings.available_gpus,
            standings=tuple(lines),
            next_after=page[-1].budget if len(accounts) > len(page) else None,
        )

    async def postings(self, caller: str, query: PostingsQuery) -> PostingsPage:
        """Raw postings in the order of their numbers, up to 230 a reply.

        A missing number was rolled back. Within a cluster none appears after a greater one: writers hold its lock until the commit.
        """
        limit = min(query.limit, POSTINGS_MAX)
        async with self._db.reading() as connection:
            rows = await self._store.postings(connection, query.cluster, query.after, limit)
        more = rows[-1][0] if len(rows) == limit else None
        return PostingsPage(postings=tuple(wire.posting(*row) for row in rows), next_after=more)

    async def books(self, caller: str, query: CapacityQuery) -> CapacityReply:
        """The books in equal steps, up to 200 a reply. The last step reaches over `to_ms` where the length is no multiple."""
        wanted = max(-(-(query.to_ms - query.from_ms) // query.step_ms), 0)
        steps = Steps(query.from_ms, query.step_ms, min(wanted, STEPS_MAX))
        async with self._db.reading() as connection:
            reports = await self._store.steps(connection, query.cluster, Window(steps.from_ms, steps.to_ms))
            posted = await self._store.posted_by_step(connection, query.cluster, steps) if steps.total else {}
            lives, rests = await self._store.lives(connection, query.cluster, steps)
        now_ms = self._clock.now_ms()
        capacity = levels(reports, steps.from_ms, min(steps.to_ms, max(now_ms, steps.from_ms)))
        rows = keep(steps, capacity, posted, [*rests, *uncounted(lives, now_ms)])
        return CapacityReply(
            buckets=tuple(wire.books(row) for row in rows), next_from_ms=steps.to_ms if wanted > steps.total else None
        )

    async def faults(self, caller: str, query: FaultsQuery) -> FaultsPage:
        """What is not counted and why, in the order of what and code, up to 40 a reply.

        Raises:
            Refusal: `unknown_cluster`.
        """
        async with self._db.reading() as connection:
            if await self._store.one_cluster(connection, query.cluster) is None:
                raise _unknown(query.cluster)
            rows = await self._store.faults(connection, query.cluster, (query.after_what, query.after_code), FAULTS_MAX + 1)
        return FaultsPage(faults=tuple(wire.fault(row) for row in rows[:FAULTS_MAX]), more=len(rows) > FAULTS_MAX)

    async def state(self, caller: str, query: LedgerStateQuery) -> LedgerState:
        """Counts over the books; `oldest_gap_ms`: how long the running attempt that is silent for longest has been, if over 30 s.

        Raises:
            Refusal: `unknown_cluster`.
        """
        async with self._db.reading() as connection:
            if await self._store.one_cluster(connection, query.cluster) is None:
                raise _unknown(query.cluster)
            row = await self._store.state(connection, query.cluster)
            sign_ms = await self._store.last_sign_ms(connection, query.cluster)
        gap_ms = 0 if sign_ms is None else self._clock.now_ms() - sign_ms
        return LedgerState(
            cluster=query.cluster,
            postings=row.postings,
            posted_gpu_ms=row.posted_gpu_ms,
            open_attempts=row.open_attempts,
            unattributed_counters=row.unattributed,
            quarantined=row.faults,
            oldest_gap_ms=gap_ms if gap_ms > self._silence_ms else None,
        )


def _unknown(cluster: str) -> Refusal:
    return Refusal("unknown_cluster", f"nothing was ever heard of a cluster {cluster!r}; `allmende nodes` lists what is known")
