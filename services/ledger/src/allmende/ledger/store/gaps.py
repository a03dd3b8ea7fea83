"""Gaps in PostgreSQL: those that closed exactly are kept, all others are computed from the counters."""

from collections.abc import Iterable

from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.ledger.rules.gaps import ClosedGap
from allmende.proto.gaps import Gap, GapsQuery
from allmende.proto.units import Ms

_SQL = load_queries("allmende.ledger", "gaps.sql")


class GapStore:
    """The queries of gaps."""

    async def add(self, tx: Transaction, gaps: Iterable[ClosedGap], now_ms: Ms) -> None:
        """Keep gaps that closed."""
        columns = [list(column) for column in zip(*gaps, strict=True)]
        if columns:
            await tx.connection.execute(_SQL["add"], *columns, now_ms)

    async def page(self, connection: Connection, query: GapsQuery, now_ms: Ms, silence_ms: Ms, limit: int) -> list[Gap]:
        """Gaps by their beginning."""
        after = (-1, "", -1) if query.after is None else (query.after.from_ms, query.after.attempt, query.after.replica)
        span = (query.cluster, query.from_ms, query.to_ms, now_ms, silence_ms, query.open_only)
        return [Gap(**dict(row)) for row in await connection.fetch(_SQL["page"], *span, *after, limit)]
