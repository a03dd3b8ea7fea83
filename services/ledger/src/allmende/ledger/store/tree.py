"""The tree's history in PostgreSQL: what was said, which revisions are whole, and the shares with their validity."""

from collections.abc import Iterable, Sequence

import msgspec
from asyncpg import Record

from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.ledger.model import Share
from allmende.ledger.rules.standings import Tree
from allmende.ledger.rules.tree import Revision, Succession, on_cluster
from allmende.proto.budget import Budget, BudgetChanged
from allmende.proto.units import Ms

_SQL = load_queries("allmende.ledger")
_encode = msgspec.json.Encoder(order="deterministic").encode
_budget = msgspec.json.Decoder(Budget)


class TreeStore:
    """The queries of the tree."""

    async def lock(self, tx: Transaction) -> None:
        """Only one replica reads in revisions at a time."""
        await tx.lock("tree")

    async def keep(self, tx: Transaction, changes: Iterable[BudgetChanged], revisions: Iterable[Revision]) -> None:
        """Keep what was said of the tree; what is known already stays."""
        rows = [
            (each.budget, each.revision, None if each.definition is None else _encode(each.definition).decode()) for each in changes
        ]
        if rows:
            await tx.connection.execute(_SQL["add_changes"], *(list(column) for column in zip(*rows, strict=True)))
        for revision in revisions:
            await tx.connection.execute(_SQL["add_revision"], *revision)

    async def pending(self, tx: Transaction) -> list[Revision]:
        """Announced revisions that are not read in yet, oldest first."""
        return [Revision(*row.values()) for row in await tx.connection.fetch(_SQL["pending_revisions"])]

    async def applied(self, tx: Transaction) -> list[Revision]:
        """Revisions that were read in, oldest first."""
        return [Revision(*row.values()) for row in await tx.connection.fetch(_SQL["applied_revisions"])]

    async def definitions(self, tx: Transaction, revision: int) -> dict[str, Budget]:
        """The budgets of a revision, as far as they were said."""
        rows = await tx.connection.fetch(_SQL["definitions"], revision)
        found = [_budget.decode(row["definition"]) for row in rows]
        return {each.budget: each for each in found}

    async def last_in_force(self, tx: Transaction) -> tuple[int, Ms] | None:
        """The newest revision read in, and since when it holds."""
        row = await tx.connection.fetchrow(_SQL["last_in_force"])
        return None if row is None else (row["revision"], row["in_force_from_ms"])

    async def open_shares(self, tx: Transaction) -> dict[str, dict[str, Share]]:
        """The shares without an end, by cluster (empty: the general ones) and budget."""
        found: dict[str, dict[str, Share]] = {}
        for share in _shares(await tx.connection.fetch(_SQL["open_shares"])):
            found.setdefault(share.cluster, {})[share.budget] = share
        return found

    async def forget_shares(self, tx: Transaction) -> None:
        """Drop the derived history, to derive it anew."""
        await tx.connection.execute(_SQL["forget_shares"])

    async def apply(self, tx: Transaction, cluster: str, change: Succession) -> None:
        """Let a revision's shares of a cluster (empty: the general ones) succeed those in force.

        A share that would have held for no time at all is not kept.
        """
        await tx.connection.execute(_SQL["forget_empty_shares"], change.ended, change.at_ms, cluster)
        await tx.connection.execute(_SQL["end_shares"], change.ended, change.at_ms, cluster)
        rows = [(each.budget, each.path, each.ppm, each.covers, each.from_ms, each.revision, cluster) for each in change.begun]
        await tx.connection.executemany(_SQL["begin_share"], rows)

    async def mark_applied(self, tx: Transaction, revision: int, at_ms: Ms) -> None:
        """The revision has been read in and is in force from an instant on."""
        await tx.connection.execute(_SQL["mark_applied"], revision, at_ms)

    async def tree(self, connection: Connection, cluster: str, from_ms: Ms, now_ms: Ms) -> Tree:
        """The revision in force at `now_ms` and the shares of `[from_ms, now_ms]` on a cluster."""
        revision = await connection.fetchval(_SQL["revision_in_force"], now_ms)
        shares = _shares(await connection.fetch(_SQL["shares"], from_ms, cluster))
        own = [share for share in shares if share.cluster]
        return Tree(revision, on_cluster([share for share in shares if not share.cluster], own))


def _shares(rows: Iterable[Record]) -> Sequence[Share]:
    return [
        Share(budget, tuple(path), tuple(ppm), covers, from_ms, until_ms, revision, cluster)
        for budget, path, ppm, covers, from_ms, until_ms, revision, cluster in (row.values() for row in rows)
    ]
