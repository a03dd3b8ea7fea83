"""Reads for standings, books and audits, and the row of a cluster's newest round."""

from collections.abc import Sequence

from asyncpg import Record

from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.ledger.model import BUCKET_MS, ClusterRow, FaultRow, Kind, Life, Live, NodeStep, Piece, Posting, Run, StateRow
from allmende.ledger.rules.aging import Weights
from allmende.ledger.rules.books import Steps
from allmende.ledger.rules.standings import Window
from allmende.proto.units import GpuMs, Ms

_SQL = load_queries("allmende.ledger")


class ReadingStore:
    """The queries of standings and answers."""

    async def clusters(self, connection: Connection) -> list[ClusterRow]:
        """All clusters that have ever said anything, by name."""
        return [ClusterRow(*row.values()) for row in await connection.fetch(_SQL["clusters"])]

    async def one_cluster(self, connection: Connection, cluster: str) -> ClusterRow | None:
        """One of them."""
        row = await connection.fetchrow(_SQL["one_cluster"], cluster)
        return None if row is None else ClusterRow(*row.values())

    async def counted_grants(self, connection: Connection, cluster: str, before: int) -> int:
        """The greatest grant_seq up to which all grants are known, at least `before`."""
        found: int = await connection.fetchval(_SQL["counted_grants"], cluster, before)
        return found

    async def save_round(self, tx: Transaction, row: ClusterRow) -> None:
        """Remember a round as the newest."""
        await tx.connection.execute(_SQL["save_round"], *row)

    async def steps(self, connection: Connection, cluster: str, window: Window) -> list[NodeStep]:
        """The nodes' reports that say the capacity of a window."""
        return [NodeStep(*row.values()) for row in await connection.fetch(_SQL["steps"], cluster, *window)]

    async def charged(
        self, connection: Connection, cluster: str, from_ms: Ms, to_ms: Ms, weights: Weights | None
    ) -> dict[str, int]:
        """What was posted to each budget in buckets `[from_ms, to_ms)`; each bucket times its weight where there are weights."""
        span = (cluster, from_ms, to_ms)
        if weights is None:
            rows = await connection.fetch(_SQL["charged"], *span)
        else:
            rows = await connection.fetch(_SQL["charged_by_age"], *span, weights.by_age, weights.bucket_ms, BUCKET_MS)
        return {row["budget"]: int(row["gpu_ms"]) for row in rows}

    async def settled(self, connection: Connection, cluster: str) -> tuple[Ms, int]:
        """Until when sums may be kept in memory, and the transaction that last moved that or booked before it."""
        row = await connection.fetchrow(_SQL["settled"], cluster)
        return (0, 0) if row is None else (row["settled_ms"], row["settled_by"])

    async def settle(self, tx: Transaction, cluster: str, until_ms: Ms) -> None:
        """Sums until then may be kept from now on. The caller holds the cluster's lock."""
        await tx.connection.execute(_SQL["settle"], cluster, until_ms)

    async def live(self, connection: Connection, cluster: str, from_ms: Ms, weights: Weights | None) -> list[Live]:
        """Granted attempts that have not ended; their rests from `from_ms` on, by the weights of their buckets."""
        if weights is None:
            rows = await connection.fetch(_SQL["live"], cluster, from_ms)
        else:
            rows = await connection.fetch(_SQL["live_by_age"], cluster, from_ms, weights.by_age, weights.bucket_ms, BUCKET_MS)
        return [Live(*row.values()) for row in rows]

    async def postings(self, connection: Connection, cluster: str, after: int, limit: int) -> list[tuple[int, Posting]]:
        """Postings in the order of their numbers, those behind `after`."""
        rows = await connection.fetch(_SQL["postings_page"], cluster, after, limit)
        return [(row["number"], _posting(cluster, row)) for row in rows]

    async def posted_by_step(self, connection: Connection, cluster: str, steps: Steps) -> dict[tuple[int, str], GpuMs]:
        """GPU-ms of postings in each step."""
        rows = await connection.fetch(_SQL["posted_by_step"], cluster, steps.from_ms, steps.step_ms, steps.total, BUCKET_MS)
        return {(row["number"], "unallocated" if row["unallocated"] else "allocated"): row["gpu_ms"] for row in rows}

    async def lives(self, connection: Connection, cluster: str, steps: Steps) -> tuple[Sequence[Life], Sequence[Piece]]:
        """The attempts that touch the steps, and what their counters hold beyond their postings."""
        rows = await connection.fetch(_SQL["lives"], cluster, steps.from_ms, steps.to_ms)
        counters = await connection.fetch(_SQL["counted_of_attempts"], cluster, [row["attempt"] for row in rows])
        counted: dict[tuple[str, int], list[tuple[Ms, Ms]]] = {}
        rests: dict[str, list[tuple[Ms, Ms]]] = {}
        for row in counters:
            counted.setdefault((row["attempt"], row["replica"]), []).append((row["from_ms"], row["to_ms"]))
            if row["posted_until_ms"] < row["to_ms"]:
                rests.setdefault(row["attempt"], []).append((row["posted_until_ms"], row["to_ms"]))
        lives = [_life(row, counted) for row in rows]
        kinds: dict[str, Kind] = {row["attempt"]: "unallocated" if row["budget"] is None else "allocated" for row in rows}
        gpus = {row["attempt"]: row["gpus"] for row in rows}
        pieces = [Piece(kinds[attempt], *rest, gpus[attempt]) for attempt, each in rests.items() for rest in each]
        return lives, pieces

    async def state(self, connection: Connection, cluster: str) -> StateRow:
        """Counts over the books."""
        row = await connection.fetchrow(_SQL["state"], cluster)
        assert row is not None, "an aggregate has one row"
        return StateRow(*row.values())

    async def faults(self, connection: Connection, cluster: str, after: tuple[str, str], limit: int) -> list[FaultRow]:
        """What is not counted, in the order of what and code, those behind `after`."""
        return [FaultRow(*row.values()) for row in await connection.fetch(_SQL["faults_page"], cluster, *after, limit)]

    async def last_sign_ms(self, connection: Connection, cluster: str) -> Ms | None:
        """When the replica that is silent for longest was last heard of; None when nothing runs."""
        found: Ms | None = await connection.fetchval(_SQL["last_signs"], cluster)
        return found


def _posting(cluster: str, row: Record) -> Posting:
    account = row["credit_account"]
    budget = None if account is None else account.removeprefix("budget/")
    return Posting(
        cluster, row["attempt"], row["replica"], row["epoch"], row["from_ms"], row["to_ms"], row["gpus"], budget, event=""
    )


def _life(row: Record, counted: dict[tuple[str, int], list[tuple[Ms, Ms]]]) -> Life:
    runs = tuple(Run(row["gpus"], tuple(sorted(counted.get((row["attempt"], replica), ())))) for replica in range(row["replicas"]))
    return Life(row["granted_at_ms"], row["started_at_ms"], row["ended_at_ms"], runs)
