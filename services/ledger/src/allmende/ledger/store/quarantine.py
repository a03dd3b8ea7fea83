"""The quarantine in PostgreSQL: what waits, and what was released by whom."""

import msgspec
from asyncpg import Record

from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.ledger.model import Claim
from allmende.ledger.rules.quarantine import Held
from allmende.proto.quarantine import QuarantineItem, QuarantineQuery, Released, ReleaseItem
from allmende.proto.units import GpuMs, Ms

_SQL = load_queries("allmende.ledger", "quarantine.sql")
_encode = msgspec.json.Encoder().encode
_claim = msgspec.json.Decoder(Claim)


def encode_claim(claim: Claim) -> str:
    """A claim for the table."""
    return _encode(claim).decode()


class QuarantineStore:
    """The queries of the quarantine."""

    async def page(self, connection: Connection, query: QuarantineQuery, limit: int) -> list[QuarantineItem]:
        """Items by what and code, behind the pair that the query names."""
        asked = (query.cluster, query.code, query.also_released, query.after_what, query.after_code, limit)
        return [_item(query.cluster, row) for row in await connection.fetch(_SQL["page"], *asked)]

    async def held(self, tx: Transaction, cluster: str, what: str, code: str) -> Held | None:
        """An item that waits; None: there is none, or it was released."""
        row = await tx.connection.fetchrow(_SQL["item"], cluster, what, code)
        if row is None or row["released_at_ms"] is not None:
            return None
        return Held(what, code, row["excess_gpu_ms"], None if row["claim"] is None else _claim.decode(row["claim"]))

    async def is_unknown(self, tx: Transaction, cluster: str, what: str) -> bool:
        """True when a counter waits for the grant of its attempt."""
        found: bool = await tx.connection.fetchval(_SQL["unknown"], cluster, what)
        return found

    async def released(self, tx: Transaction, release: str) -> Released | None:
        """The release of an id, if it was made."""
        row = await tx.connection.fetchrow(_SQL["release"], release)
        return None if row is None else Released(release=release, **dict(row))

    async def add(
        self, tx: Transaction, request: ReleaseItem, author: str, claim: Claim, counted_gpu_ms: GpuMs, now_ms: Ms
    ) -> None:
        """Keep a release; the item waits no longer."""
        item = (request.cluster, request.what, request.code)
        rest = (encode_claim(claim), counted_gpu_ms, author, request.reason, now_ms)
        await tx.connection.execute(_SQL["add_release"], request.release, *item, *rest)
        await tx.connection.execute(_SQL["mark_released"], *item, now_ms)


def _item(cluster: str, row: Record) -> QuarantineItem:
    released = None
    if row["id"] is not None:
        released = Released(
            release=row["id"],
            cluster=cluster,
            what=row["what"],
            code=row["code"],
            counted_gpu_ms=row["counted_gpu_ms"],
            author=row["author"],
            reason=row["reason"],
            at_ms=row["at_ms"],
        )
    return QuarantineItem(
        what=row["what"],
        code=row["code"],
        sentence=row["sentence"],
        excess_gpu_ms=row["excess_gpu_ms"],
        most_excess_gpu_ms=row["most_excess_gpu_ms"],
        times=row["times"],
        first_at_ms=row["first_at_ms"],
        last_at_ms=row["last_at_ms"],
        last_message=row["last_event"],
        released=released,
    )
