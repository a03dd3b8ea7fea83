"""Reads for reports: a budget's attempts, and usage by step."""

from asyncpg import Record

from allmende.chassis.db import Connection, load_queries
from allmende.ledger.model import BUCKET_MS, BudgetKnown, Charged, Live, Part, Used
from allmende.ledger.rules.standings import hold_of
from allmende.proto.reports import UsageByQuery, UsageQuery
from allmende.proto.units import GpuMs, Ms

_SQL = load_queries("allmende.ledger", "reports.sql")
_CORRECTED = load_queries("allmende.ledger", "corrections.sql")["corrected"]
_ONE_CLUSTER = load_queries("allmende.ledger")["one_cluster"]


class ReportStore:
    """The queries of reports."""

    async def known(self, connection: Connection, cluster: str, budget: str) -> BudgetKnown:
        """What kind of a budget it is."""
        row = await connection.fetchrow(_SQL["known_budget"], cluster, budget)
        assert row is not None, "two facts are one row"
        return BudgetKnown(*row.values())

    async def has_cluster(self, connection: Connection, cluster: str) -> bool:
        """True when anything was ever heard of the cluster."""
        return await connection.fetchrow(_ONE_CLUSTER, cluster) is not None

    async def charged(self, connection: Connection, cluster: str, budget: str, from_ms: Ms, to_ms: Ms) -> list[Charged]:
        """A budget's attempts that were granted before `to_ms`, by id."""
        return [_charged(row) for row in await connection.fetch(_SQL["charged_attempts"], cluster, budget, from_ms, to_ms)]

    async def corrected(self, connection: Connection, cluster: str, budget: str, from_ms: Ms, to_ms: Ms) -> tuple[GpuMs, GpuMs]:
        """What corrections charge to a budget before a span and in it; below 0: what they take off it."""
        row = await connection.fetchrow(_CORRECTED, cluster, budget, from_ms, to_ms, BUCKET_MS)
        assert row is not None, "an aggregate has one row"
        return row["before_gpu_ms"], row["within_gpu_ms"]

    async def used(self, connection: Connection, query: UsageQuery, limit: int) -> list[Used]:
        """Usage by step and budget, unallocated first."""
        # Nobody's rows have the empty name, which comes first; before the first step there is nothing.
        after = (-1, "") if query.after is None else (query.after.from_ms, query.after.budget or "")
        rows = await connection.fetch(_SQL["used"], query.cluster, query.from_ms, query.to_ms, query.step_ms, *after, limit)
        return [Used(row["step_ms"], row["budget"] or None, row["gpu_ms"]) for row in rows]

    async def used_by(self, connection: Connection, query: UsageByQuery, limit: int) -> list[Part]:
        """Usage by step and user or GPU model, those that are not known first."""
        after = (-1, "") if query.after is None else (query.after.from_ms, query.after.name or "")
        span = (query.from_ms, query.to_ms, query.step_ms)
        rows = await connection.fetch(_SQL["used_by"], query.cluster, *span, query.by == "user", *after, limit)
        return [Part(row["step_ms"], row["name"] or None, row["allocated_gpu_ms"], row["unallocated_gpu_ms"]) for row in rows]


def _charged(row: Record) -> Charged:
    gpus, replicas = row["gpus"], row["replicas"]
    running = row["ended_at_ms"] is None
    left = hold_of(Live(None, gpus, replicas, row["slice_ms"], row["counted_ms"], 0)) if running else 0
    return Charged(
        row["attempt"],
        row["job"],
        gpus * replicas,
        row["granted_at_ms"],
        row["ended_at_ms"],
        row["outcome"],
        gpus * row["before_ms"],
        gpus * row["within_ms"],
        left,
    )
