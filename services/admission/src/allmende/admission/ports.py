"""What the handlers need of the outside, as protocols."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from allmende.admission.model.books import Books, Dirty
from allmende.admission.model.values import Attempt, Decided, Job, KnownPolicy
from allmende.chassis.db import Connection, Transaction
from allmende.chassis.worker import Outcome
from allmende.proto.units import Ms

T = TypeVar("T")


class JobFilter(NamedTuple):
    """Which jobs a page shows; unset selects everything."""

    user: str | None
    budget: str | None
    states: tuple[str, ...]
    before: str | None
    limit: int
    array: str | None = None


class Owner(NamedTuple):
    """Whose a job is, and the digest of its submission; None: from before digests were kept."""

    user: str
    digest: str | None


class PastFilter(NamedTuple):
    """Which part of the past a page shows: behind an attempt of a job, each empty at the beginning."""

    from_ms: Ms
    after_job: str
    after_attempt: str
    limit: int


class Store(Protocol):
    """Rows of jobs, attempts, claims, nodes, standings, the tree and decisions."""

    async def load(self, tx: Transaction) -> Books:
        """Books of everything that has not ended."""

    async def write(self, tx: Transaction, dirty: Dirty) -> None:
        """Write what a decision changed.

        Raises:
            StaleTerm: a job's row is not as it was; somebody else has written it.
        """

    async def owners(self, tx: Transaction, jobs: Sequence[str]) -> Mapping[str, Owner]:
        """Who submitted each of these jobs that exists, and what."""

    async def jobs_by_suffix(self, connection: Connection, suffix: str) -> Sequence[Job]:
        """At most two jobs whose id ends so."""

    async def page_of_jobs(self, connection: Connection, wanted: JobFilter) -> Sequence[tuple[Job, Attempt | None]]:
        """Jobs, newest first, each with its latest attempt."""

    async def page_of_past(self, connection: Connection, wanted: PastFilter) -> Sequence[tuple[Job, Attempt | None]]:
        """Jobs by id that had not ended before an instant, each as often as it has attempts; once where it has none."""

    async def attempts_of_job(self, connection: Connection, job: str) -> Sequence[Attempt]:
        """All attempts of a job, oldest first."""

    async def decisions_of_job(self, connection: Connection, job: str, limit: int) -> Sequence[Decided]:
        """The last decisions about a job, oldest first."""

    async def payload_of_job(self, connection: Connection, job: str) -> bytes | None:
        """What a job runs."""

    async def policies_of(self, connection: Connection, cluster: str, before: int | None, limit: int) -> Sequence[KnownPolicy]:
        """A cluster's policies below a revision, newest first."""

    async def forget_ended(self, tx: Transaction, before_ms: Ms, limit: int) -> int:
        """Delete jobs that ended before an instant; returns how many."""


class Term(Protocol):
    """The right to be the single writer."""

    fence: int | None

    async def check(self, tx: Transaction) -> None:
        """Hold it until the transaction ends, or raise StaleTerm."""


class Writer(Protocol):
    """Runs commands between the batches, each in a transaction of its own."""

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """Do the work; its drafts go into the same transaction's outbox."""
