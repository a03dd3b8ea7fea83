"""What the handlers need: the stores, and the chassis' worker as the one that writes. As protocols."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from allmende.budget.model import (
    Commit,
    DeliveryRow,
    OpenChange,
    Parcel,
    PastRevision,
    Piece,
    ProposalFilter,
    Revision,
    Shares,
    Since,
    Tree,
)
from allmende.budget.rules.notices import Watch
from allmende.chassis.db import Connection, Transaction
from allmende.chassis.worker import Outcome
from allmende.proto.budget import Budget
from allmende.proto.dated import DatedQuery, DatedShares, DatedStep, PlannedShares
from allmende.proto.message import Message
from allmende.proto.notices import BudgetNotice, DeliveryState
from allmende.proto.pace import Sample
from allmende.proto.proposals import Proposal, ProposalDecided, ShareProposed
from allmende.proto.units import Ms

T = TypeVar("T")


class Store(Protocol):
    """Revisions and definitions, append-only, and the waiting room of uploads."""

    async def tree_for_writing(self, tx: Transaction) -> Tree:
        """The tree in force, locked against other writers until the transaction ends."""

    async def names_used(self, tx: Transaction, names: Sequence[str]) -> frozenset[str]:
        """Those of the names that a budget has, or once had."""

    async def newest_revision(self, connection: Connection) -> Revision | None:
        """The revision in force; None before the first."""

    async def one_revision(self, connection: Connection, number: int) -> Revision | None:
        """A revision by its number; None where there is none."""

    async def revision_at(self, connection: Connection, at_ms: Ms) -> Revision | None:
        """The revision that was in force at an instant; None before the first."""

    async def revisions_before(
        self, connection: Connection, before: int | None, budget: str | None, limit: int
    ) -> Sequence[PastRevision]:
        """Up to `limit` revisions, newest first; with a budget, only those that wrote it."""

    async def page_as_of(
        self, connection: Connection, revision: int, after: str, limit: int, differs_from: int | None = None
    ) -> Sequence[Budget]:
        """Up to `limit` budgets of a revision by name, behind `after`; `differs_from`: only those written between the two."""

    async def changed_between(self, connection: Connection, older: int, newer: int, limit: int) -> Since:
        """The budgets that stand otherwise in the newer revision, up to `limit` of them by name, and their number."""

    async def add(self, tx: Transaction, commit: Commit, upload: str | None = None) -> None:
        """Write a revision and the budgets that differ in it."""

    async def revision_of_upload(self, tx: Transaction, upload: str) -> Revision | None:
        """The revision that an upload has become; None while it has not."""

    async def stage(self, tx: Transaction, upload: str, author: str, piece: Piece) -> Sequence[Piece]:
        """Keep a piece and return all pieces of its upload."""


class Proposals(Protocol):
    """Proposals and their answers, append-only. Whoever writes holds the lock of the tree."""

    async def add(self, tx: Transaction, proposed: ShareProposed) -> None:
        """Keep a proposal."""

    async def end(self, tx: Transaction, decided: ProposalDecided) -> None:
        """Keep the answer to a proposal."""

    async def one(self, connection: Connection, proposal: str) -> Proposal | None:
        """A proposal by its whole id; None where there is none."""

    async def open_for(self, connection: Connection, budgets: Sequence[str]) -> Sequence[Proposal]:
        """The proposals for these budgets that wait for an answer, oldest first."""

    async def budgets_with_open(self, connection: Connection) -> Sequence[str]:
        """The budgets for which a proposal waits, by name."""

    async def before(self, connection: Connection, number: int | None, wanted: ProposalFilter, limit: int) -> Sequence[Proposal]:
        """Up to `limit` proposals, newest first, those before `number` (None: all)."""


class Dated(Protocol):
    """Dated changes and their steps, append-only. Whoever writes holds the lock of the tree."""

    async def add(self, tx: Transaction, planned: PlannedShares) -> None:
        """Keep a plan."""

    async def add_step(self, tx: Transaction, change: str, step: DatedStep, base: Shares | None = None) -> None:
        """Keep what became of a change; `base`: of a beginning, the shares that come back at the end."""

    async def open(self, connection: Connection) -> Sequence[OpenChange]:
        """What is planned or running, oldest first."""

    async def one(self, connection: Connection, change: str) -> DatedShares | None:
        """A change by its whole id; None where there is none."""

    async def before(self, connection: Connection, query: DatedQuery, limit: int) -> Sequence[DatedShares]:
        """Up to `limit` of the changes that a query means, newest first."""


class Follower(Protocol):
    """What a new tree brings with it, in the same transaction."""

    async def __call__(self, tx: Transaction, commit: Commit) -> Sequence[Message]:
        """Write it; returns what is to be said of it."""


class Writer(Protocol):
    """Runs writes one after another, each in a transaction of its own, and says what they decided."""

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """Do the work in a transaction; its drafts go into the same transaction's outbox."""


Key = tuple[str, str]
"""Cluster and budget."""


class Notices(Protocol):
    """What is remembered of standings, the notices that were told, and their deliveries as people see them."""

    async def lock(self, tx: Transaction) -> None:
        """Only one replica looks at standings at a time."""

    async def watches(self, tx: Transaction, keys: Iterable[Key]) -> Mapping[Key, Watch]:
        """What is remembered; nothing for a budget whose standing was never seen."""

    async def samples(self, tx: Transaction, keys: Iterable[Key]) -> Mapping[Key, Sequence[Sample]]:
        """The samples that are kept, oldest first."""

    async def keep(self, tx: Transaction, watches: Mapping[Key, Watch], samples: Mapping[Key, Sample]) -> None:
        """Remember watches, and the samples that are due."""

    async def with_those_above(self, tx: Transaction, budgets: Iterable[str]) -> Mapping[str, Budget]:
        """Budgets of the tree in force and all budgets above them, by name; those that are gone are missing."""

    async def add(self, tx: Transaction, notice: BudgetNotice, *, deliver: bool) -> None:
        """Keep a notice, and put it on its way where there is a webhook."""

    async def before(
        self, connection: Connection, budget: str | None, cluster: str | None, number: int | None, limit: int
    ) -> Sequence[tuple[int, BudgetNotice]]:
        """Up to `limit` notices with smaller numbers, newest first."""

    async def deliveries_before(
        self, connection: Connection, state: DeliveryState | None, number: int | None, limit: int
    ) -> Sequence[DeliveryRow]:
        """Up to `limit` deliveries with smaller numbers, newest first."""

    async def retry(self, tx: Transaction, number: int | None) -> int:
        """Let what was given up wait again: one, or all. Returns how many."""


class Deliveries(Protocol):
    """The sender's side of the deliveries."""

    async def take_due(self, tx: Transaction, out_of_the_way_s: float) -> Parcel | None:
        """One delivery that is due, taken out of other replicas' way for so many seconds; None: none is."""

    async def delivered(self, tx: Transaction, number: int) -> None:
        """The receiver has it."""

    async def failed(self, tx: Transaction, parcel: Parcel, problem: str, again_in_s: float | None) -> None:
        """A try failed: again after so many seconds, or never (None)."""
