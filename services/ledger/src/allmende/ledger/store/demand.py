"""Demand in PostgreSQL: one row a job. Writers hold one lock, so what was read stays true until the commit."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from asyncpg import Record

from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.ledger.model import Live
from allmende.ledger.rules.demand import AskedJob, Demand, JobEnd, Placing, Want
from allmende.ledger.rules.figures import demand_from_ms
from allmende.ledger.rules.hours import Span
from allmende.proto.units import Ms

_SQL = load_queries("allmende.ledger", "demand.sql")
# Rows that are fetched at once: in between the service does its other work.
_FETCH = 500
_PLACING = ("cluster", "leaf", "granted_at_ms", "started_at_ms", "attempt_ended_at_ms", "attempt_outcome")


class DemandStore:
    """The queries that keep demand."""

    async def lock(self, tx: Transaction) -> None:
        """Only one replica takes in words about jobs at a time.

        Raises:
            Transient: another replica held it for too long.
        """
        await tx.lock("demand")

    async def demands(self, tx: Transaction, jobs: Iterable[str]) -> dict[str, Demand]:
        """What is known of some jobs."""
        return {row["job"]: _demand(row) for row in await tx.connection.fetch(_SQL["demands"], list(jobs))}

    async def save(self, tx: Transaction, demands: Iterable[Demand]) -> None:
        """Write demands as they are now known."""
        await tx.connection.executemany(_SQL["save_demand"], [_row(each) for each in demands])

    async def demand_from_ms(self, connection: Connection, cluster: str) -> Ms | None:
        """From when on a cluster's demand is known; None: it is not."""
        row = await connection.fetchrow(_SQL["first_demand"], cluster)
        assert row is not None, "two facts are one row"
        return demand_from_ms(*row.values())

    async def not_known(self, connection: Connection, from_ms: Ms) -> int:
        """How many jobs that had not ended at an instant never told what they ask for."""
        found: int = await connection.fetchval(_SQL["jobs_not_known"], from_ms)
        return found

    async def asked(self, connection: Connection, cluster: str, span: Span) -> AsyncIterator[AskedJob]:
        """The jobs that lived in a span and ran on a cluster, or may."""
        async for row in connection.cursor(_SQL["jobs_of_span"], cluster, *span, prefetch=_FETCH):
            yield _asked(row)

    async def live_at(self, connection: Connection, cluster: str, at_ms: Ms) -> list[Live]:
        """The attempts that lived at an instant, with what they had used by then."""
        return [Live(*row.values()) for row in await connection.fetch(_SQL["live_at"], cluster, at_ms)]


def _asked(row: Record) -> AskedJob:
    end = None if row["ended_at_ms"] is None else JobEnd(row["ended_at_ms"], row["outcome"], row["first_started_at_ms"])
    columns = [row[name] or () for name in _PLACING]
    return AskedJob(_want(row), end, tuple(Placing(*each) for each in zip(*columns, strict=True)))


def _want(row: Record) -> Want:
    clusters = tuple(row["clusters"])
    return Want(row["budget"], row["submitted_at_ms"], clusters, row["gpus"], row["gpu_model"], row["slice_ms"])


def _demand(row: Record) -> Demand:
    want = end = None
    want_said = end_said = (-1, "")
    if row["asked_said"] is not None:
        want, want_said = _want(row), (row["asked_said_at_ms"], row["asked_said"])
    if row["ended_said"] is not None:
        end = JobEnd(row["ended_at_ms"], row["outcome"], row["first_started_at_ms"])
        end_said = (row["ended_said_at_ms"], row["ended_said"])
    return Demand(row["job"], want, want_said, row["known_from_ms"], end, end_said)


def _row(demand: Demand) -> tuple[Any, ...]:
    want = (None,) * 8 if demand.want is None else (*demand.want, *demand.want_said)
    end = (None,) * 5 if demand.end is None else (*demand.end, *demand.end_said)
    return (demand.job, *want, demand.known_from_ms, *end)
