"""Demand in PostgreSQL: one row a job. Writers hold one lock, so what was read stays true until the commit."""

from collections.abc import Iterable
from typing import Any

from asyncpg import Record

from allmende.chassis.db import Transaction, load_queries
from allmende.ledger.rules.demand import Demand, JobEnd, Want

_SQL = load_queries("allmende.ledger", "demand.sql")


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


def _demand(row: Record) -> Demand:
    want = end = None
    want_said = end_said = (-1, "")
    if row["asked_said"] is not None:
        asked = (row["budget"], row["submitted_at_ms"], tuple(row["clusters"]), row["gpus"], row["gpu_model"], row["slice_ms"])
        want, want_said = Want(*asked), (row["asked_said_at_ms"], row["asked_said"])
    if row["ended_said"] is not None:
        end = JobEnd(row["ended_at_ms"], row["outcome"], row["first_started_at_ms"])
        end_said = (row["ended_said_at_ms"], row["ended_said"])
    return Demand(row["job"], want, want_said, row["known_from_ms"], end, end_said)


def _row(demand: Demand) -> tuple[Any, ...]:
    want = (None,) * 8 if demand.want is None else (*demand.want, *demand.want_said)
    end = (None,) * 5 if demand.end is None else (*demand.end, *demand.end_said)
    return (demand.job, *want, demand.known_from_ms, *end)
