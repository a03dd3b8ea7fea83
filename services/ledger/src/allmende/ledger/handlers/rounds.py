"""Rounds of standings: at most one a real second and cluster, and only when they say something new.

Decides nothing while the tree or the capacity of a cluster is unknown, and says so in the service's health.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from allmende.chassis.db import Connection, Transaction
from allmende.chassis.health import Health
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Draft, Ids
from allmende.ledger import wire
from allmende.ledger.handlers.charged import Charged
from allmende.ledger.model import ClusterRow, Live, Round
from allmende.ledger.ports import Readings, Trees
from allmende.ledger.rules.aging import Weights, aging
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.standings import Window, eras, take, window_at
from allmende.proto.units import SECOND_MS, Ms

_encode = msgspec.json.Encoder().encode


class Taken(NamedTuple):
    """A cluster's standings now, or None while something is unknown; and the row they would be remembered in."""

    standings: Round | None
    row: ClusterRow


class Rounds:
    """Takes and says rounds. `next_ms` is a hint of this process; the row of the cluster decides."""

    def __init__(
        self,
        store: Readings,
        trees: Trees,
        clock: Clock,
        ids: Ids,
        health: Health,
        *,
        window_ms: Ms,
        slice_cap_ms: Ms,
        half_life_ms: Ms | None = None,
    ) -> None:
        self._store, self._trees, self._ids, self._health = store, trees, ids, health
        # What is old today and what was old then are kept apart: one would push the other out.
        self._charged, self._charged_then = Charged(store), Charged(store)
        self._window_ms, self._slice_cap_ms = window_ms, slice_cap_ms
        self._aging = None if half_life_ms is None else aging(half_life_ms, window_ms)
        # At most once a second of real time: on a scaled clock that is longer.
        self._every_ms = SECOND_MS * clock.rate
        self.next_ms: Ms = 0
        health.ready("standings", False, "no capacity was reported yet")

    async def due(self, tx: Transaction, now_ms: Ms) -> set[str]:
        """The clusters whose last round is a second old."""
        if now_ms < self.next_ms:
            return set()
        rows = await self._store.clusters(tx.connection)
        if not rows:
            # Nothing is known, so nothing can be due; the first report comes with a batch of its own.
            self.next_ms = now_ms + self._every_ms
        return {row.cluster for row in rows if row.as_of_ms is None or row.as_of_ms + self._every_ms <= now_ms}

    async def take(self, tx: Transaction, due: Iterable[str], now_ms: Ms) -> list[Draft]:
        """Take the standings of due clusters, whose locks the caller holds, and say those that are new."""
        if now_ms < self.next_ms:
            return []
        drafts: list[Draft] = []
        unknown: list[str] = []
        for cluster in sorted(due):
            await self._charged.advance(tx, cluster, now_ms)
            taken = await self.now(tx.connection, cluster, now_ms)
            if taken is None or taken.standings is None:
                unknown.append(cluster)
            elif taken.row.as_of_ms is None or taken.row.as_of_ms + self._every_ms <= now_ms:
                drafts += await self._say(tx, taken.standings, taken.row)
        if due:
            why = f"no standings of {', '.join(unknown)}: the tree or the capacity is not known yet" if unknown else ""
            self._health.ready("standings", not unknown, why)
        self.next_ms = now_ms + self._every_ms
        return drafts

    async def _say(self, tx: Transaction, standings: Round, row: ClusterRow) -> list[Draft]:
        counted = await self._store.counted_grants(tx.connection, row.cluster, row.counted_grants)
        content = hashlib.sha256(_encode((standings[1:], counted))).digest()
        revision = row.usage_revision + (content != row.content)
        await self._store.save_round(tx, ClusterRow(row.cluster, revision, standings.as_of_ms, counted, content))
        if content == row.content:
            return []
        return [
            draft(wire.standing(row.cluster, standings, account, revision, counted), ids=self._ids, now_ms=standings.as_of_ms)
            for account in standings.accounts
        ]

    async def now(self, connection: Connection, cluster: str, now_ms: Ms) -> Taken | None:
        """The standings of a cluster at this instant; None: no such cluster."""
        row = await self._store.one_cluster(connection, cluster)
        if row is None:
            return None
        window = window_at(now_ms, self._window_ms)
        live = await self._store.live(connection, cluster, window.from_ms, self._weights(now_ms))
        return Taken(await self._taken(connection, cluster, window, live, self._charged), row)

    async def past(self, connection: Connection, cluster: str, edge_ms: Ms, live: Sequence[Live]) -> Round | None:
        """The standings at a bucket's edge of the past, with what lived then; None: tree or capacity was unknown.

        One millisecond before the edge, so that the bucket which begins there does not count.
        """
        return await self._taken(connection, cluster, window_at(edge_ms - 1, self._window_ms), live, self._charged_then)

    def _weights(self, at_ms: Ms) -> Weights | None:
        return None if self._aging is None else self._aging.at(at_ms)

    async def _taken(
        self, connection: Connection, cluster: str, window: Window, live: Sequence[Live], charged: Charged
    ) -> Round | None:
        tree = await self._trees.tree(connection, cluster, *window)
        capacity = levels(await self._store.steps(connection, cluster, window), *window)
        weights = self._weights(window.to_ms)
        charges = await charged.of(connection, cluster, eras(tree.shares, window), window.to_ms, weights)
        return take(tree, charges, live, capacity, window, self._slice_cap_ms, self._aging)
