"""Corrections in PostgreSQL: the entries, and the buckets that they move between."""

from collections.abc import Sequence

from asyncpg import Record

from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.rules.corrections import Entry, Room
from allmende.proto.corrections import Correct, Correction, CorrectionsQuery
from allmende.proto.units import GpuMs, Ms

_SQL = load_queries("allmende.ledger", "corrections.sql")


class CorrectionStore:
    """The queries of corrections."""

    async def made(self, tx: Transaction, correction: str) -> tuple[Correction, GpuMs | None] | None:
        """The correction of an id and the amount that was asked for, if it was made."""
        row = await tx.connection.fetchrow(_SQL["one"], correction)
        return None if row is None else (_correction(row), row["asked_gpu_ms"])

    async def room(self, connection: Connection, cluster: str, budget: str, from_ms: Ms, to_ms: Ms) -> Room:
        """What a budget ('': unallocated) was charged by bucket."""
        return {row["bucket_ms"]: row["gpu_ms"] for row in await connection.fetch(_SQL["room"], cluster, budget, from_ms, to_ms)}

    async def charged(self, connection: Connection, cluster: str, from_ms: Ms, to_ms: Ms) -> Room:
        """What all were charged, and what was unallocated, by bucket."""
        return {row["bucket_ms"]: row["gpu_ms"] for row in await connection.fetch(_SQL["charged"], cluster, from_ms, to_ms)}

    async def add(self, tx: Transaction, request: Correct, author: str, entries: Sequence[Entry], now_ms: Ms) -> Correction:
        """Keep a correction, and move its entries between the buckets."""
        amount = sum(each.amount_gpu_ms for each in entries)
        cluster = request.cluster
        accounts = (_account(request.take_from, cluster), _account(request.charge_to, cluster))
        terms = (request.from_ms, request.to_ms, amount, request.amount_gpu_ms, author, request.reason, now_ms)
        number = await tx.connection.fetchval(_SQL["add"], request.correction, cluster, *accounts, *terms)
        columns = ([each.bucket_ms for each in entries], [each.amount_gpu_ms for each in entries])
        await tx.connection.execute(_SQL["add_entries"], request.correction, cluster, *accounts, *columns)
        for verb, account in (("take", request.take_from), ("charge", request.charge_to)):
            if account != "capacity":
                await tx.connection.execute(_SQL[verb], cluster, budget_of(account), *columns)
        return Correction(
            number=number,
            correction=request.correction,
            cluster=cluster,
            take_from=request.take_from,
            charge_to=request.charge_to,
            from_ms=request.from_ms,
            to_ms=request.to_ms,
            amount_gpu_ms=amount,
            within_gpu_ms=amount,
            author=author,
            reason=request.reason,
            at_ms=now_ms,
        )

    async def page(self, connection: Connection, query: CorrectionsQuery, limit: int) -> list[Correction]:
        """Corrections by number."""
        account = None if query.budget is None else f"budget/{query.budget}"
        span = (query.from_ms, query.to_ms, BUCKET_MS)
        return [_correction(row) for row in await connection.fetch(_SQL["page"], query.cluster, account, *span, query.after, limit)]


def budget_of(account: str) -> str:
    """The name under which an account's buckets are kept; '': unallocated."""
    return account.removeprefix("budget/") if account.startswith("budget/") else ""


def _account(account: str, cluster: str) -> str:
    return f"capacity/{cluster}" if account == "capacity" else account


def _short(account: str) -> str:
    return "capacity" if account.startswith("capacity/") else account


def _correction(row: Record) -> Correction:
    return Correction(
        number=row["number"],
        correction=row["id"],
        cluster=row["cluster"],
        take_from=_short(row["debit_account"]),
        charge_to=_short(row["credit_account"]),
        from_ms=row["from_ms"],
        to_ms=row["to_ms"],
        amount_gpu_ms=row["amount_gpu_ms"],
        within_gpu_ms=row["within_gpu_ms"],
        author=row["author"],
        reason=row["reason"],
        at_ms=row["at_ms"],
    )
