"""The tree in PostgreSQL: revisions and definitions, append-only, and the waiting room of uploads. Decides nothing."""

from collections.abc import Mapping, Sequence

import msgspec
from asyncpg import Record

from allmende.budget.model import Change, Commit, PastRevision, Piece, Revision, Since, Tree
from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.proto.budget import MAX_BUDGETS, Budget
from allmende.proto.tree import is_whole
from allmende.proto.units import Ms

_SQL = load_queries("allmende.budget")
_encoder = msgspec.json.Encoder(order="deterministic")
_budget = msgspec.json.Decoder(Budget)
_budgets = msgspec.json.Decoder(tuple[Budget, ...])

# Writers of all replicas take turns on it; the expected revision is judged behind it.
_LOCK = "tree"
# An upload takes seconds. A day leaves an operator time to find out why one did not end.
_UPLOAD_KEPT_H = 24


class TreeStore:
    """The queries. Remembers the tree that was read last, and believes it only where the digest in the database says so."""

    def __init__(self) -> None:
        self._read: tuple[Revision, Mapping[str, Budget]] | None = None

    async def tree_for_writing(self, tx: Transaction) -> Tree:
        """The tree in force, locked against other writers until the transaction ends.

        Raises:
            Transient: another writer held the lock for too long.
        """
        await tx.lock(_LOCK)
        newest = await self.newest_revision(tx.connection)
        if newest is None:
            return Tree(0, {})
        budgets = await self._caught_up(tx.connection, newest)
        if budgets is None:
            rows = await self.page_as_of(tx.connection, newest.number, after="", limit=MAX_BUDGETS)
            budgets = {row.budget: row for row in rows}
        self._read = newest, budgets
        return Tree(newest.number, budgets)

    async def _caught_up(self, connection: Connection, newest: Revision) -> Mapping[str, Budget] | None:
        """The budgets of the newest revision from what is remembered and what was written since; None where that is not all.

        It is not where the revision that was read has been rolled back, or the database is another one.
        """
        if self._read is None:
            return None
        read, budgets = self._read
        if read.digest == newest.digest:
            return budgets
        since = await self.changed_between(connection, read.number, newest.number, 2 * MAX_BUDGETS)
        gone = {change.budget for change in since.changes if change.after is None}
        written = {change.budget: change.after for change in since.changes if change.after is not None}
        # In the order of the names, as a page is: faults are told in it.
        budgets = {name: row for name, row in sorted({**budgets, **written}.items()) if name not in gone}
        return budgets if is_whole(budgets, newest.budgets, newest.digest) else None

    async def names_used(self, tx: Transaction, names: Sequence[str]) -> frozenset[str]:
        """Those of the names that a budget has, or once had."""
        return frozenset(row["budget"] for row in await tx.connection.fetch(_SQL["names_used"], list(names)))

    async def newest_revision(self, connection: Connection) -> Revision | None:
        """The revision in force; None before the first."""
        return _revision(await connection.fetchrow(_SQL["newest_revision"]))

    async def one_revision(self, connection: Connection, number: int) -> Revision | None:
        """A revision by its number; None where there is none."""
        return _revision(await connection.fetchrow(_SQL["one_revision"], number))

    async def revision_at(self, connection: Connection, at_ms: Ms) -> Revision | None:
        """The revision that was in force at an instant; None before the first."""
        return _revision(await connection.fetchrow(_SQL["revision_at"], at_ms))

    async def revisions_before(
        self, connection: Connection, before: int | None, budget: str | None, limit: int
    ) -> Sequence[PastRevision]:
        """Up to `limit` revisions, newest first; with a budget, only those that wrote it."""
        rows = await connection.fetch(_SQL["revisions_before"], before, budget, limit)
        return [PastRevision(Revision(*list(row.values())[:-2]), row["changed"], row["jobs_to"]) for row in rows]

    async def page_as_of(
        self, connection: Connection, revision: int, after: str, limit: int, differs_from: int | None = None
    ) -> Sequence[Budget]:
        """Up to `limit` budgets of a revision in the order of their names, those behind `after`.

        `differs_from`: only those that were written in a revision between that one and this one.
        """
        if differs_from is None:
            rows = await connection.fetch(_SQL["page_as_of"], revision, after, limit)
        else:
            rows = await connection.fetch(_SQL["changed_page_as_of"], revision, after, limit, differs_from)
        return [_budget.decode(row["definition"]) for row in rows]

    async def changed_between(self, connection: Connection, older: int, newer: int, limit: int) -> Since:
        """The budgets that stand otherwise in the newer revision, up to `limit` of them by name, and their number."""
        rows = await connection.fetch(_SQL["changed_between"], older, newer, limit)
        changes = [Change(row["budget"], _definition(row["before"]), _definition(row["after"])) for row in rows]
        return Since(changes, rows[0]["total"] if rows else 0)

    async def add(self, tx: Transaction, commit: Commit, upload: str | None = None) -> None:
        """Write a revision and the budgets that differ in it."""
        row = commit.revision
        await tx.connection.execute(
            _SQL["add_revision"], row.number, row.effective_from_ms, row.author, row.reason, row.budgets, row.digest, upload
        )
        definitions = [None if each is None else _encoder.encode(each).decode() for each in commit.changed.values()]
        jobs_to = [commit.jobs_to.get(name) for name in commit.changed]
        await tx.connection.execute(_SQL["add_definitions"], row.number, list(commit.changed), definitions, jobs_to)

    async def revision_of_upload(self, tx: Transaction, upload: str) -> Revision | None:
        """The revision that an upload has become; None while it has not."""
        return _revision(await tx.connection.fetchrow(_SQL["revision_of_upload"], upload))

    async def stage(self, tx: Transaction, upload: str, author: str, piece: Piece) -> Sequence[Piece]:
        """Keep a piece and return all pieces of its upload. The first copy of a piece counts; what is a day old is forgotten."""
        await tx.connection.execute(_SQL["forget_old_uploads"], _UPLOAD_KEPT_H)
        content = _encoder.encode(piece.budgets).decode()
        await tx.connection.execute(_SQL["stage_piece"], upload, author, piece.number, piece.last, content)
        rows = await tx.connection.fetch(_SQL["staged_pieces"], upload, author)
        return [Piece(row["piece"], row["last"], _budgets.decode(row["content"])) for row in rows]


def _revision(row: Record | None) -> Revision | None:
    return None if row is None else Revision(*row.values())


def _definition(text: str | None) -> Budget | None:
    return None if text is None else _budget.decode(text)
