"""The ledger's handler and answers over a real database, fed by hand. Two desks on one database are two replicas."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from allmende.chassis import inbox
from allmende.chassis.db import Database, Transaction
from allmende.chassis.fakes import CountingIds, ManualClock
from allmende.chassis.health import Health
from allmende.chassis.ports import Event
from allmende.chassis.worker import Outcome
from allmende.ledger.handlers.answers import Answers
from allmende.ledger.handlers.booking import Booking
from allmende.ledger.handlers.corrections import CorrectionAnswers
from allmende.ledger.handlers.gaps import GapAnswers
from allmende.ledger.handlers.hearing import SKEW_MS, Hearing
from allmende.ledger.handlers.quarantine import QuarantineAnswers
from allmende.ledger.handlers.rounds import Rounds
from allmende.ledger.store.booking import BookingStore
from allmende.ledger.store.corrections import CorrectionStore
from allmende.ledger.store.gaps import GapStore
from allmende.ledger.store.heard import SEAL_WORDS, HeardStore
from allmende.ledger.store.quarantine import QuarantineStore
from allmende.ledger.store.reading import ReadingStore
from allmende.ledger.store.reports import ReportStore
from allmende.ledger.store.tree import TreeStore
from allmende.proto.envelope import Envelope
from allmende.proto.ledger import BucketBooks, CapacityQuery, LedgerState, LedgerStateQuery, Posting, PostingsQuery, StandingsQuery
from allmende.proto.message import Message, MessageRefused
from allmende.proto.subjects import subject_of
from allmende.proto.units import DAY_MS, HOUR_MS, SECOND_MS
from tests.ledger.builders import START_MS, id_of, read

SILENCE_MS = 30 * SECOND_MS

T = TypeVar("T")


class Desk:
    """A ledger at a clock that tests turn."""

    def __init__(
        self,
        db: Database,
        clock: ManualClock,
        start: int = 1,
        allowance_ms: int = 5 * SECOND_MS,
        slice_cap_ms: int = 8 * HOUR_MS,
        half_life_ms: int | None = None,
        seal_words: int = SEAL_WORDS,
    ) -> None:
        self.db, self.clock = db, clock
        ids = CountingIds(start)
        self.health = Health()
        self._rounds = Rounds(
            ReadingStore(),
            TreeStore(),
            clock,
            ids,
            self.health,
            window_ms=7 * DAY_MS,
            slice_cap_ms=slice_cap_ms,
            half_life_ms=half_life_ms,
        )
        self.heard = HeardStore(seal_words=seal_words)
        booking = Booking(BookingStore(), GapStore(), self.heard, SILENCE_MS * clock.rate)
        self.hearing = Hearing(BookingStore(), booking, TreeStore(), self._rounds, clock, ids, allowance_ms)
        self.answers = Answers(db, ReadingStore(), self._rounds, clock, silence_ms=SILENCE_MS)
        self.gaps = GapAnswers(db, GapStore(), clock, silence_ms=SILENCE_MS)
        self.quarantine = QuarantineAnswers(
            db, QuarantineStore(), BookingStore(), booking, self, clock, ids, allowance_ms=allowance_ms, skew_ms=SKEW_MS
        )
        self.corrections = CorrectionAnswers(db, CorrectionStore(), BookingStore(), ReadingStore(), ReportStore(), self, clock)
        self.said: list[Any] = []
        """What commands have said."""
        self._seq = start * 1_000_000

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """A command in a transaction of its own, as the worker does it."""
        async with self.db.transaction() as tx:
            result, outcome = await work(tx)
        self.said += read(outcome.drafts)
        return result

    async def hear(self, *bodies: Message, sent_at_ms: int | None = None) -> list[Any]:
        """Hear messages in one batch, each in a new envelope; returns what the ledger says."""
        return await self.hear_events([self.event(body, sent_at_ms) for body in bodies])

    async def hear_events(self, events: Sequence[Event]) -> list[Any]:
        """Hear events in one batch: those of an id that was heard before are dropped, as the worker does."""
        async with self.db.transaction() as tx:
            outcome = await self.hearing(tx, await inbox.fresh(tx, events))
        return read(outcome.drafts)

    def event(self, body: Message, sent_at_ms: int | None = None) -> Event:
        """A message in an envelope of its own."""
        self._seq += 1
        now_ms = self.clock.now_ms()
        envelope = Envelope(
            id=id_of(self._seq),
            type=body.TYPE,
            version=1,
            occurred_at_ms=now_ms,
            sent_at_ms=now_ms if sent_at_ms is None else sent_at_ms,
            body=body,
        )
        return Event(envelope, subject_of(body), "USAGE", self._seq, now_ms)

    async def pass_second(self) -> list[Any]:
        """Let a real second pass, and the timer ring."""
        self.clock.advance(SECOND_MS * self.clock.rate)
        return await self.hear()

    async def standings(self, cluster: str = "c1") -> dict[str, Any]:
        """Today's standings by budget."""
        found: dict[str, Any] = {}
        after: str | None = None
        while True:
            reply = await self.answers.standings("olga", StandingsQuery(cluster=cluster, after=after))
            found |= {each.budget: each for each in reply.standings}
            after = reply.next_after
            if after is None:
                return found

    async def postings(self, cluster: str = "c1") -> list[Posting]:
        """All postings."""
        found: list[Posting] = []
        after: int | None = 0
        while after is not None:
            page = await self.answers.postings("olga", PostingsQuery(cluster=cluster, after=after))
            found += page.postings
            after = page.next_after
        return found

    async def books(self, from_ms: int, to_ms: int, step_ms: int, cluster: str = "c1") -> list[BucketBooks]:
        """The books in steps."""
        found: list[BucketBooks] = []
        at_ms: int | None = from_ms
        while at_ms is not None:
            page = await self.answers.books("olga", CapacityQuery(cluster=cluster, from_ms=at_ms, to_ms=to_ms, step_ms=step_ms))
            found += page.buckets
            at_ms = page.next_from_ms
        return found

    async def state(self, cluster: str = "c1") -> LedgerState:
        """How complete the books are."""
        return await self.answers.state("olga", LedgerStateQuery(cluster=cluster))

    async def faults(self) -> dict[tuple[str, str], int]:
        """Times by what and code."""
        async with self.db.reading() as connection:
            rows = await connection.fetch("SELECT what, code, times FROM fault")
        return {(row["what"], row["code"]): row["times"] for row in rows}


class Held(NamedTuple):
    """What the books say of one replica, whatever the epochs and splits: intervals joined, and the amount."""

    intervals: tuple[tuple[int, int], ...]
    amount_gpu_ms: int
    budget: str | None


def joined(postings: Sequence[Posting]) -> dict[tuple[str, int], Held]:
    """Postings by attempt and replica, in a form that does not depend on how they were split.

    Raises:
        AssertionError: an instant is posted twice for one replica, or an amount is not GPUs x time.
    """
    found: dict[tuple[str, int], Held] = {}
    for posting in sorted(postings, key=lambda each: (each.attempt, each.replica, each.from_ms)):
        assert posting.amount_gpu_ms == posting.gpus * (posting.to_ms - posting.from_ms), posting
        key = (posting.attempt, posting.replica)
        before = found.get(key, Held((), 0, posting.budget))
        intervals = list(before.intervals)
        if intervals and intervals[-1][1] == posting.from_ms:
            intervals[-1] = (intervals[-1][0], posting.to_ms)
        else:
            assert not intervals or intervals[-1][1] < posting.from_ms, f"posted twice: {posting}"
            intervals.append((posting.from_ms, posting.to_ms))
        found[key] = Held(tuple(intervals), before.amount_gpu_ms + posting.amount_gpu_ms, posting.budget)
    return found


def refusals(said: Sequence[Any]) -> list[str]:
    """The codes of refusals among what was said."""
    return [body.problem.code for body in said if isinstance(body, MessageRefused)]


def clock_at(hours: float = 0) -> ManualClock:
    """A clock some hours after START_MS."""
    return ManualClock(START_MS + int(hours * HOUR_MS))
