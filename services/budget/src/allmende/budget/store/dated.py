"""Dated changes and their steps in PostgreSQL, append-only. Decides nothing: whether one is open is which steps there are."""

from collections.abc import Mapping, Sequence

import msgspec
from asyncpg import Record

from allmende.budget.model import OpenChange
from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.proto.dated import DatedQuery, DatedShares, DatedState, DatedStep, PlannedShares
from allmende.proto.units import Ms, Ppm

_SQL = load_queries("allmende.budget", "dated.sql")
_encode = msgspec.json.Encoder().encode
_planned = msgspec.json.Decoder(PlannedShares)
_step = msgspec.json.Decoder(DatedStep)
_base = msgspec.json.Decoder(dict[str, Ppm | None])


class DatedStore:
    """The queries. Whoever writes holds the lock of the tree (`TreeStore.tree_for_writing`)."""

    async def add(self, tx: Transaction, planned: PlannedShares) -> None:
        """Keep a plan."""
        row = (planned.change, planned.parent, planned.from_ms, planned.until_ms, _encode(planned).decode())
        await tx.connection.execute(_SQL["add_dated"], *row)

    async def add_step(self, tx: Transaction, change: str, step: DatedStep, base: Mapping[str, Ppm | None] | None = None) -> None:
        """Keep what became of a change; `base`: of a beginning, the shares that come back at the end."""
        kept = None if base is None else _encode(base).decode()
        await tx.connection.execute(_SQL["add_dated_step"], change, step.step, step.until_ms, kept, _encode(step).decode())

    async def open(self, connection: Connection) -> Sequence[OpenChange]:
        """What is planned or running, oldest first."""
        return [_open(row) for row in await connection.fetch(_SQL["open_dated"])]

    async def one(self, connection: Connection, change: str) -> DatedShares | None:
        """A change by its whole id; None where there is none."""
        found = await self.before(connection, DatedQuery(change=change), 1)
        return found[0] if found else None

    async def before(self, connection: Connection, query: DatedQuery, limit: int) -> Sequence[DatedShares]:
        """Up to `limit` of the changes that a query means, newest first."""
        row = (query.before, query.change, query.parent, query.open_only, limit)
        return [_dated(each) for each in await connection.fetch(_SQL["dated_before"], *row)]


def _open(row: Record) -> OpenChange:
    base = None if row["base"] is None else _base.decode(row["base"])
    return OpenChange(row["number"], _planned.decode(row["planned"]), row["until_ms"], base, row["renewal"])


def _dated(row: Record) -> DatedShares:
    planned, steps = _planned.decode(row["planned"]), tuple(_step.decode(each) for each in row["steps"])
    state = _state(planned.until_ms, steps)
    renewal = row["renewal"] if state in ("planned", "running") else None
    return DatedShares(number=row["number"], planned=planned, state=state, until_ms=row["until_ms"], renewal=renewal, steps=steps)


def _state(until_ms: Ms | None, steps: Sequence[DatedStep]) -> DatedState:
    taken = {each.step for each in steps}
    if "withdrawn" in taken:
        return "withdrawn"
    if "ended" in taken or ("begun" in taken and until_ms is None):
        return "done"
    return "running" if "begun" in taken else "planned"
