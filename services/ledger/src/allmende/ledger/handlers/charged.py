"""What was charged in a window, era by era: old buckets are summed once and kept, only the newest are read each time.

A kept sum is void as soon as anything was booked into one of its buckets: the database says so to all replicas (migration 020).
So the cost of a round follows the number of budgets, not the length of the window. Never reads a clock.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.chassis.db import Connection, Transaction
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.ports import Readings
from allmende.ledger.rules.aging import Weights
from allmende.ledger.rules.standings import Charges, Era, weighed
from allmende.proto.units import Ms

Sums: TypeAlias = Mapping[str, int]
"""GPU-ms by budget; with weights, each bucket times its own."""


class _Kept(NamedTuple):
    """Sums of parts of eras that end by `until_ms`, as the transaction `settled_by` has left these buckets."""

    until_ms: Ms
    settled_by: int
    weights_at_ms: Ms | None
    sums: dict[tuple[Ms, Ms], Sums]


class Charged:
    """Reads charges, and keeps what is old of them in memory."""

    def __init__(self, store: Readings) -> None:
        self._store = store
        self._kept: dict[str, _Kept] = {}

    async def advance(self, tx: Transaction, cluster: str, now_ms: Ms) -> None:
        """Let all buckets but the newest two be old. The caller holds the cluster's lock, so nobody is booking meanwhile."""
        await self._store.settle(tx, cluster, _old_until(now_ms))

    async def of(
        self, connection: Connection, cluster: str, spans: Sequence[Era], now_ms: Ms, weights: Weights | None
    ) -> list[Charges]:
        """The charges of each era."""
        settled_ms, settled_by = await self._store.settled(connection, cluster)
        until_ms = min(settled_ms, _old_until(now_ms))
        state = (until_ms, settled_by, None if weights is None else weights.bucket_ms)
        kept = self._kept.get(cluster)
        sums = kept.sums if kept is not None and kept[:3] == state else {}
        found: list[Charges] = []
        used: dict[tuple[Ms, Ms], Sums] = {}
        for era in spans:
            cut_ms = max(era.from_ms, min(era.to_ms, until_ms))
            total: dict[str, int] = {}
            if era.from_ms < cut_ms:
                span = (era.from_ms, cut_ms)
                old = sums[span] if span in sums else await self._store.charged(connection, cluster, *span, weights)
                used[span], total = old, dict(old)
            if cut_ms < era.to_ms:
                for budget, amount in (await self._store.charged(connection, cluster, cut_ms, era.to_ms, weights)).items():
                    total[budget] = total.get(budget, 0) + amount
            found.append(Charges(era, weighed(total) if weights is not None else total))
        self._kept[cluster] = _Kept(*state, used)
        return found


def _old_until(now_ms: Ms) -> Ms:
    # What counters held of a bucket is posted a moment after its edge, so the one before the current is not old yet.
    return now_ms - now_ms % BUCKET_MS - BUCKET_MS
