"""Device activity in PostgreSQL. Writers hold the cluster's lock, so what was read stays true until the commit."""

from collections.abc import Collection, Iterable, Sequence

from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.ledger.model import CounterKey
from allmende.ledger.rules.activity import Activity, Idle, Known, Part
from allmende.ledger.rules.figures import Busy
from allmende.ledger.rules.hours import Span

_SQL = load_queries("allmende.ledger", "activity.sql")


class ActivityStore:
    """The queries of activity."""

    async def known(self, tx: Transaction, keys: Iterable[CounterKey]) -> dict[CounterKey, Known]:
        """Of counters that are in the books, how far they are, and what of their activity was read before."""
        columns = [list(column) for column in zip(*keys, strict=True)]
        rows = [tuple(row.values()) for row in await tx.connection.fetch(_SQL["known"], *columns)]
        return {row[:4]: Known(*row[4:]) for row in rows}

    async def save(self, tx: Transaction, read: Sequence[Activity], parts: Sequence[Part]) -> None:
        """Remember what was read, and add what it comes to to its hours."""
        if not read:
            return
        rows = [(*each.key, each.held_ms, each.busy_gpu_ms, each.memory_gpu_ms) for each in read]
        await tx.connection.execute(_SQL["save_read"], *(list(column) for column in zip(*rows, strict=True)))
        await tx.connection.execute(_SQL["add_to_hours"], *(list(column) for column in zip(*parts, strict=True)))

    async def by_budget(self, connection: Connection, cluster: str, span: Span) -> dict[str | None, Busy]:
        """What of each budget's held time has known activity, and how much of it was busy; None: unallocated."""
        rows = await connection.fetch(_SQL["by_budget"], cluster, *span)
        return {row["budget"]: Busy(row["watched_gpu_ms"], row["busy_gpu_ms"]) for row in rows}

    async def idle(
        self, connection: Connection, cluster: str, span: Span, budgets: Collection[str] | None, offset: int, limit: int
    ) -> list[Idle]:
        """Attempts that were idle in a span, most idle first; `budgets` None: of everybody."""
        chosen = None if budgets is None else sorted(budgets)
        rows = await connection.fetch(_SQL["idle"], cluster, *span, chosen, offset, limit)
        return [Idle(*row.values()) for row in rows]
