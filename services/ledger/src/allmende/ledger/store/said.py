"""What viewers were told last, in PostgreSQL: a change is what differs from it."""

from collections.abc import Sequence

from allmende.chassis.db import Transaction, load_queries
from allmende.ledger.model import InUse
from allmende.proto.units import DAY_MS, HOUR_MS, Ms

_SQL = load_queries("allmende.ledger", "said.sql")


class SaidStore:
    """The queries of what viewers hear."""

    async def turn(self, tx: Transaction, now_ms: Ms, every_ms: Ms) -> list[str]:
        """The clusters whose use nobody has looked at for so long; from now on it is this caller's to say."""
        return [row["cluster"] for row in await tx.connection.fetch(_SQL["turn"], now_ms, every_ms)]

    async def changed(self, tx: Transaction, clusters: Sequence[str], now_ms: Ms) -> list[InUse]:
        """The budgets whose use differs from what was said, which is remembered as said; hours and days are those of UTC."""
        hour_ms, day_ms = now_ms - now_ms % HOUR_MS, now_ms - now_ms % DAY_MS
        rows = await tx.connection.fetch(_SQL["changed_usage"], clusters, hour_ms, day_ms)
        return sorted(InUse(*row.values()) for row in rows)
