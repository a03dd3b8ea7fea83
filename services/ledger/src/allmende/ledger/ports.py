"""What the handlers need of the store, as protocols. Never a driver's type but the chassis' transaction."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from allmende.chassis.db import Connection, Transaction
from allmende.chassis.worker import Outcome
from allmende.ledger.model import (
    Attempt,
    AttemptKey,
    BudgetKnown,
    Charged,
    Claim,
    ClusterRow,
    Counter,
    CounterKey,
    Fault,
    FaultRow,
    Granted,
    InUse,
    Life,
    Live,
    NodeStep,
    Part,
    Piece,
    Posting,
    ReplicaKey,
    Share,
    StateRow,
    Used,
)
from allmende.ledger.rules.activity import Activity, Idle, Known
from allmende.ledger.rules.activity import Part as ActivePart
from allmende.ledger.rules.aging import Weights
from allmende.ledger.rules.books import Steps
from allmende.ledger.rules.corrections import Entry, Room
from allmende.ledger.rules.demand import AskedJob, Demand
from allmende.ledger.rules.figures import Busy
from allmende.ledger.rules.gaps import ClosedGap
from allmende.ledger.rules.hours import Span
from allmende.ledger.rules.posting import BucketKey
from allmende.ledger.rules.quarantine import Held
from allmende.ledger.rules.replay import Posted, State, Words
from allmende.ledger.rules.standings import Tree, Window
from allmende.ledger.rules.tree import Revision, Succession
from allmende.ledger.rules.verifying import Bucket, Interval, Terms
from allmende.proto.budget import Budget, BudgetChanged
from allmende.proto.corrections import Correct, Correction, CorrectionsQuery
from allmende.proto.gaps import Gap, GapsQuery
from allmende.proto.quarantine import QuarantineItem, QuarantineQuery, Released, ReleaseItem
from allmende.proto.reports import UsageByQuery, UsageQuery
from allmende.proto.units import GpuMs, Ms

T = TypeVar("T")


class Bookings(Protocol):
    """Reads and writes of a batch."""

    async def lock(self, tx: Transaction, clusters: Iterable[str]) -> None:
        """Lock clusters, always in the order of their names, so that two replicas never wait for one another in a circle."""

    async def know(self, tx: Transaction, clusters: Iterable[str]) -> None:
        """Have a row for each cluster, from the first message on."""

    async def attempts(self, tx: Transaction, names: Iterable[str]) -> dict[AttemptKey, Attempt]:
        """What is known of attempts, on whichever cluster."""

    async def counters_of_replicas(self, tx: Transaction, keys: Iterable[ReplicaKey]) -> list[Counter]:
        """All epochs of some replicas."""

    async def counters_of_attempts(self, tx: Transaction, keys: Iterable[AttemptKey]) -> list[Counter]:
        """All counters of some attempts."""

    async def save_attempts(self, tx: Transaction, attempts: Iterable[Attempt]) -> None:
        """Write attempts as they are now known."""

    async def add_placed(self, tx: Transaction, grants: Iterable[Granted]) -> None:
        """Keep who submitted newly granted attempts and on which nodes their replicas are. The attempts are saved before."""

    async def save_counters(self, tx: Transaction, counters: Sequence[Counter]) -> None:
        """Write counters as they now stand."""

    async def add_postings(self, tx: Transaction, postings: Sequence[Posting], buckets: Mapping[BucketKey, GpuMs]) -> None:
        """Add postings, and their amounts to the buckets."""

    async def add_faults(self, tx: Transaction, faults: Iterable[Fault], now_ms: Ms) -> None:
        """Keep what was not counted; several of one thing and code count up in one row."""

    async def add_steps(self, tx: Transaction, steps: Sequence[NodeStep]) -> None:
        """Keep nodes' reports; of two for one instant the one with the greater seq stands."""


class Trees(Protocol):
    """The tree's history."""

    async def lock(self, tx: Transaction) -> None:
        """Only one replica reads in revisions at a time."""

    async def keep(self, tx: Transaction, changes: Iterable[BudgetChanged], revisions: Iterable[Revision]) -> None:
        """Keep what was said of the tree; what is known already stays."""

    async def pending(self, tx: Transaction) -> list[Revision]:
        """Announced revisions that are not read in yet, oldest first."""

    async def applied(self, tx: Transaction) -> list[Revision]:
        """Revisions that were read in, oldest first."""

    async def definitions(self, tx: Transaction, revision: int) -> dict[str, Budget]:
        """The budgets of a revision, as far as they were said."""

    async def last_in_force(self, tx: Transaction) -> tuple[int, Ms] | None:
        """The newest revision read in, and since when it holds."""

    async def open_shares(self, tx: Transaction) -> dict[str, dict[str, Share]]:
        """The shares without an end, by cluster (empty: the general ones) and budget."""

    async def forget_shares(self, tx: Transaction) -> None:
        """Drop the derived history, to derive it anew."""

    async def mark_applied(self, tx: Transaction, revision: int, at_ms: Ms) -> None:
        """The revision has been read in and is in force from an instant on."""

    async def apply(self, tx: Transaction, cluster: str, change: Succession) -> None:
        """Let a revision's shares of a cluster (empty: the general ones) succeed those in force.

        A share that would have held for no time at all is not kept.
        """

    async def tree(self, connection: Connection, cluster: str, from_ms: Ms, now_ms: Ms) -> Tree:
        """The revision in force at `now_ms` and the shares of `[from_ms, now_ms]` on a cluster."""


class Readings(Protocol):
    """Reads for standings and answers."""

    async def clusters(self, connection: Connection) -> list[ClusterRow]:
        """All clusters that have ever said anything, by name."""

    async def one_cluster(self, connection: Connection, cluster: str) -> ClusterRow | None:
        """One of them."""

    async def counted_grants(self, connection: Connection, cluster: str, before: int) -> int:
        """The greatest grant_seq up to which all grants are known, at least `before`."""

    async def save_round(self, tx: Transaction, row: ClusterRow) -> None:
        """Remember a round as the newest."""

    async def steps(self, connection: Connection, cluster: str, window: Window) -> list[NodeStep]:
        """The nodes' reports that say the capacity of a window."""

    async def charged(
        self, connection: Connection, cluster: str, from_ms: Ms, to_ms: Ms, weights: Weights | None
    ) -> dict[str, int]:
        """What was posted to each budget in buckets `[from_ms, to_ms)`; each bucket times its weight where there are weights."""

    async def settled(self, connection: Connection, cluster: str) -> tuple[Ms, int]:
        """Until when sums may be kept in memory, and the transaction that last moved that or booked before it."""

    async def settle(self, tx: Transaction, cluster: str, until_ms: Ms) -> None:
        """Sums until then may be kept from now on. The caller holds the cluster's lock."""

    async def live(self, connection: Connection, cluster: str, from_ms: Ms, weights: Weights | None) -> list[Live]:
        """Granted attempts that have not ended; their rests from `from_ms` on."""

    async def postings(self, connection: Connection, cluster: str, after: int, limit: int) -> list[tuple[int, Posting]]:
        """Postings in the order of their numbers, those behind `after`."""

    async def posted_by_step(self, connection: Connection, cluster: str, steps: Steps) -> dict[tuple[int, str], GpuMs]:
        """GPU-ms of postings in each step."""

    async def lives(self, connection: Connection, cluster: str, steps: Steps) -> tuple[Sequence[Life], Sequence[Piece]]:
        """The attempts that touch the steps, and what their counters hold beyond their postings."""

    async def state(self, connection: Connection, cluster: str) -> StateRow:
        """Counts over the books."""

    async def faults(self, connection: Connection, cluster: str, after: tuple[str, str], limit: int) -> list[FaultRow]:
        """What is not counted, in the order of what and code, those behind `after`."""

    async def last_sign_ms(self, connection: Connection, cluster: str) -> Ms | None:
        """When the replica that is silent for longest was last heard of; None when nothing runs."""


class ReportReadings(Protocol):
    """Reads for reports."""

    async def known(self, connection: Connection, cluster: str, budget: str) -> BudgetKnown:
        """What kind of a budget it is."""

    async def has_cluster(self, connection: Connection, cluster: str) -> bool:
        """True when anything was ever heard of the cluster."""

    async def charged(self, connection: Connection, cluster: str, budget: str, from_ms: Ms, to_ms: Ms) -> list[Charged]:
        """A budget's attempts that were granted before `to_ms`, by id."""

    async def corrected(self, connection: Connection, cluster: str, budget: str, from_ms: Ms, to_ms: Ms) -> tuple[GpuMs, GpuMs]:
        """What corrections charge to a budget before a span and in it; below 0: what they take off it."""

    async def used(self, connection: Connection, query: UsageQuery, limit: int) -> list[Used]:
        """Usage by step and budget, unallocated first."""

    async def used_by(self, connection: Connection, query: UsageByQuery, limit: int) -> list[Part]:
        """Usage by step and user or GPU model, those that are not known first."""


class Quarantine(Protocol):
    """What waits, and what was released."""

    async def page(self, connection: Connection, query: QuarantineQuery, limit: int) -> list[QuarantineItem]:
        """Items by what and code, behind the pair that the query names."""

    async def held(self, tx: Transaction, cluster: str, what: str, code: str) -> Held | None:
        """An item that waits; None: there is none, or it was released."""

    async def is_unknown(self, tx: Transaction, cluster: str, what: str) -> bool:
        """True when a counter waits for the grant of its attempt."""

    async def released(self, tx: Transaction, release: str) -> Released | None:
        """The release of an id, if it was made."""

    async def add(
        self, tx: Transaction, request: ReleaseItem, author: str, claim: Claim, counted_gpu_ms: GpuMs, now_ms: Ms
    ) -> None:
        """Keep a release; the item waits no longer."""


class Corrections(Protocol):
    """What operators put right."""

    async def made(self, tx: Transaction, correction: str) -> tuple[Correction, GpuMs | None] | None:
        """The correction of an id and the amount that was asked for, if it was made."""

    async def room(self, connection: Connection, cluster: str, budget: str, from_ms: Ms, to_ms: Ms) -> Room:
        """What a budget ('': unallocated) was charged by bucket."""

    async def charged(self, connection: Connection, cluster: str, from_ms: Ms, to_ms: Ms) -> Room:
        """What all were charged, and what was unallocated, by bucket."""

    async def add(self, tx: Transaction, request: Correct, author: str, entries: Sequence[Entry], now_ms: Ms) -> Correction:
        """Keep a correction, and move its entries between the buckets."""

    async def page(self, connection: Connection, query: CorrectionsQuery, limit: int) -> list[Correction]:
        """Corrections by number."""


class Gaps(Protocol):
    """Stretches without a counter."""

    async def add(self, tx: Transaction, gaps: Iterable[ClosedGap], now_ms: Ms) -> None:
        """Keep gaps that closed."""

    async def page(self, connection: Connection, query: GapsQuery, now_ms: Ms, silence_ms: Ms, limit: int) -> list[Gap]:
        """Gaps by their beginning."""


class Sealed(Protocol):
    """The state of a cluster right after a batch, and the greatest posting by then."""

    @property
    def number(self) -> int: ...
    @property
    def at_ms(self) -> Ms: ...
    @property
    def posting(self) -> int: ...
    @property
    def state(self) -> State: ...


class Heard(Protocol):
    """What was heard, and the seals."""

    async def begin(self, tx: Transaction, clusters: Iterable[str], now_ms: Ms) -> None:
        """Before a batch is booked: of a cluster that is heard for the first time since this is kept, seal what is there."""

    async def add(self, tx: Transaction, said: Iterable[tuple[str, Words]], now_ms: Ms) -> None:
        """Keep what a batch said, by cluster, after it was booked; and seal where it is time."""

    async def seal(self, tx: Transaction, cluster: str, now_ms: Ms) -> None:
        """Keep the state of a cluster as it now stands."""

    async def state(self, connection: Connection, cluster: str, now_ms: Ms) -> State:
        """The attempts of which more may be said, and their counters."""

    async def seal_at(self, connection: Connection, cluster: str, number: int | None) -> Sealed | None:
        """A seal; None as a number: the oldest that is kept."""

    async def seal_after(self, connection: Connection, cluster: str, number: int) -> Sealed | None:
        """The seal that follows another one."""

    async def heard(self, connection: Connection, cluster: str, after: int, upto: int, limit: int) -> list[tuple[int, Ms, Words]]:
        """Batches in order: number, when, and what was said."""

    async def posted(self, connection: Connection, cluster: str, after: int, upto: int) -> list[Posted]:
        """Postings by their numbers."""

    async def posted_before(self, connection: Connection, cluster: str, attempts: Sequence[str], upto: int) -> set[str]:
        """Those of the attempts that have postings up to a number."""

    async def days(self, connection: Connection) -> list[int]:
        """The days that are kept, oldest first."""

    async def lasts(self, connection: Connection, before_ms: Ms) -> list[tuple[str, int, bool]]:
        """Of each cluster the last batch before an instant, and whether a seal comes after it."""

    async def forget_day(self, tx: Transaction, day: int, lasts: Iterable[tuple[str, int, bool]]) -> None:
        """Drop a day, and the seals that nothing can be computed from any more."""


class Writer(Protocol):
    """Who alone writes in this process."""

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """Do a command between batches, in a transaction of its own."""


class Verifying(Protocol):
    """Reads for the verification of the books: of every kind what does not agree."""

    async def begin_ms(self, connection: Connection, cluster: str) -> Ms | None:
        """When anything was first kept of a cluster."""

    async def postings(self, connection: Connection, cluster: str, steps: Steps) -> int:
        """How many postings begin in the steps."""

    async def buckets(self, connection: Connection, cluster: str, steps: Steps) -> list[Bucket]:
        """Buckets that are not the sum of their postings."""

    async def intervals(self, connection: Connection, cluster: str, steps: Steps) -> list[Interval]:
        """Counters, of attempts granted in the steps, whose postings do not cover them exactly once."""

    async def terms(self, connection: Connection, cluster: str, steps: Steps) -> list[Terms]:
        """Postings in the steps that are not on the terms of their attempt's grant."""


class Demands(Protocol):
    """What jobs ask for."""

    async def lock(self, tx: Transaction) -> None:
        """Only one replica takes in words about jobs at a time."""

    async def demands(self, tx: Transaction, jobs: Iterable[str]) -> dict[str, Demand]:
        """What is known of some jobs."""

    async def save(self, tx: Transaction, demands: Iterable[Demand]) -> None:
        """Write demands as they are now known."""

    async def demand_from_ms(self, connection: Connection, cluster: str) -> Ms | None:
        """From when on a cluster's demand is known; None: it is not."""

    async def not_known(self, connection: Connection, from_ms: Ms) -> int:
        """How many jobs that had not ended at an instant never told what they ask for."""

    def asked(self, connection: Connection, cluster: str, span: Span) -> AsyncIterator[AskedJob]:
        """The jobs that lived in a span and ran on a cluster, or may."""


class Activities(Protocol):
    """What devices did."""

    async def known(self, tx: Transaction, keys: Iterable[CounterKey]) -> dict[CounterKey, Known]:
        """Of counters that are in the books, how far they are, and what of their activity was read before."""

    async def save(self, tx: Transaction, read: Sequence[Activity], parts: Sequence[ActivePart]) -> None:
        """Remember what was read, and add what it comes to to its hours."""

    async def by_budget(self, connection: Connection, cluster: str, span: Span) -> dict[str | None, Busy]:
        """What of each budget's held time has known activity, and how much of it was busy; None: unallocated."""

    async def idle(
        self, connection: Connection, cluster: str, span: Span, budgets: Collection[str] | None, offset: int, limit: int
    ) -> list[Idle]:
        """Attempts that were idle in a span, most idle first; `budgets` None: of everybody."""


class PastHolds(Protocol):
    """What was held at an instant of the past."""

    async def live_at(self, connection: Connection, cluster: str, at_ms: Ms) -> list[Live]:
        """The attempts that lived at an instant, with what they had used by then."""


class Said(Protocol):
    """What viewers were told last."""

    async def turn(self, tx: Transaction, now_ms: Ms, every_ms: Ms) -> list[str]:
        """The clusters whose use nobody has looked at for so long; from now on it is this caller's to say."""

    async def changed(self, tx: Transaction, clusters: Sequence[str], now_ms: Ms) -> list[InUse]:
        """The budgets whose use differs from what was said, which is remembered as said; hours and days are those of UTC."""
