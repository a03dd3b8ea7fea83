"""Reads for the verification of the books."""

from allmende.chassis.db import Connection, load_queries
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.rules.books import Steps
from allmende.ledger.rules.verifying import Bucket, Interval, Terms
from allmende.proto.units import Ms

_SQL = load_queries("allmende.ledger", "verify.sql")


class VerifyStore:
    """The queries of a verification."""

    async def begin_ms(self, connection: Connection, cluster: str) -> Ms | None:
        """When anything was first kept of a cluster."""
        found: Ms | None = await connection.fetchval(_SQL["begin"], cluster)
        return found

    async def postings(self, connection: Connection, cluster: str, steps: Steps) -> int:
        """How many postings begin in the steps."""
        found: int = await connection.fetchval(_SQL["postings_of_span"], cluster, steps.from_ms, steps.to_ms)
        return found

    async def buckets(self, connection: Connection, cluster: str, steps: Steps) -> list[Bucket]:
        """Buckets that are not the sum of their postings."""
        rows = await connection.fetch(_SQL["differing_buckets"], cluster, steps.from_ms, steps.to_ms, BUCKET_MS)
        return [Bucket(*row.values()) for row in rows]

    async def intervals(self, connection: Connection, cluster: str, steps: Steps) -> list[Interval]:
        """Counters, of attempts granted in the steps, whose postings do not cover them exactly once."""
        return [
            Interval(*row.values())
            for row in await connection.fetch(_SQL["differing_intervals"], cluster, steps.from_ms, steps.to_ms)
        ]

    async def terms(self, connection: Connection, cluster: str, steps: Steps) -> list[Terms]:
        """Postings in the steps that are not on the terms of their attempt's grant."""
        return [
            Terms(*row.values()) for row in await connection.fetch(_SQL["differing_terms"], cluster, steps.from_ms, steps.to_ms)
        ]
