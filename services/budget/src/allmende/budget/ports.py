"""What the handlers need: the store, and the chassis' worker as the one that writes. As protocols."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from allmende.budget.model import Commit, Piece, Revision, Tree
from allmende.chassis.db import Connection, Transaction
from allmende.chassis.worker import Outcome
from allmende.proto.budget import Budget

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

    async def page_as_of(self, connection: Connection, revision: int, after: str, limit: int) -> Sequence[Budget]:
        """Up to `limit` budgets of a revision in the order of their names, those behind `after`."""

    async def add(self, tx: Transaction, commit: Commit, upload: str | None = None) -> None:
        """Write a revision and the budgets that differ in it."""

    async def revision_of_upload(self, tx: Transaction, upload: str) -> Revision | None:
        """The revision that an upload has become; None while it has not."""

    async def stage(self, tx: Transaction, upload: str, author: str, piece: Piece) -> Sequence[Piece]:
        """Keep a piece and return all pieces of its upload."""


class Writer(Protocol):
    """Runs writes one after another, each in a transaction of its own, and says what they decided."""

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """Do the work in a transaction; its drafts go into the same transaction's outbox."""
