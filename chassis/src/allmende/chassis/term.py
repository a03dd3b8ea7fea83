"""Single writer: a lease says who tries, a fence in PostgreSQL says who may. Safety never rests on a clock.

Every take-over raises the fence; a transaction that carries an old fence is refused, however late it comes. Knows nothing of what
is written.
"""

import asyncio
from datetime import timedelta

from allmende.chassis.db import Database, Transaction
from allmende.chassis.errors import StaleTerm, Transient
from allmende.chassis.log import get_logger

# How long nobody writes after the writer's machine died. Real time, and PostgreSQL's own: no two clocks are compared.
LEASE_S = 3.0
_LOOK_AGAIN_S = 0.5

_log = get_logger(__name__)

_ACQUIRE = """
INSERT INTO term AS held (name, fence, holder, expires_at) VALUES ($1, 1, $2, clock_timestamp() + $3::interval)
ON CONFLICT (name) DO UPDATE SET fence = held.fence + 1, holder = excluded.holder, expires_at = excluded.expires_at
WHERE held.expires_at <= clock_timestamp()
RETURNING fence
"""
_RENEW = "UPDATE term SET expires_at = clock_timestamp() + $3::interval WHERE name = $1 AND fence = $2 RETURNING fence"
_RELEASE = "UPDATE term SET expires_at = clock_timestamp() WHERE name = $1 AND fence = $2"
# Shared by this writer's own transactions, but a take-over waits until they have ended.
_CHECK = "SELECT fence FROM term WHERE name = $1 FOR SHARE"


class Term:
    """The right to be the single writer of `name` in this schema. `holder` is for people who look into the table."""

    def __init__(self, db: Database, name: str, *, holder: str = "", lease_s: float = LEASE_S) -> None:
        self._db, self._name, self._holder = db, name, holder
        self._lease_s = lease_s
        self._lease = timedelta(seconds=lease_s)
        self.fence: int | None = None
        """Set while held."""

    async def try_acquire(self) -> int | None:
        """Take the term if it is free or has lapsed; returns the fence, or None when another holds it.

        Raises:
            Transient: the database cannot be reached.
        """
        async with self._db.transaction() as tx:
            fence = await tx.connection.fetchval(_ACQUIRE, self._name, self._holder, self._lease)
        self.fence = None if fence is None else int(fence)
        return self.fence

    async def acquire(self) -> int:
        """Wait, as a stand-by, until the term is ours; returns the fence."""
        while True:
            try:
                fence = await self.try_acquire()
            except Transient as error:
                _log.warning("the term cannot be asked for", term=self._name, why=str(error))
                fence = None
            if fence is not None:
                _log.info("became the writer", term=self._name, fence=fence)
                return fence
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def check(self, tx: Transaction) -> None:
        """Hold the term until the end of a transaction. First thing in every transaction that writes.

        Raises:
            StaleTerm: somebody else has taken over.
        """
        fence = await tx.connection.fetchval(_CHECK, self._name)
        if self.fence is None or fence != self.fence:
            raise StaleTerm(f"the term {self._name} has fence {fence}, ours is {self.fence}")

    async def run(self) -> None:
        """Renew until cancelled. An outage of the database is no reason to stop: nobody else can take over without it either.

        Raises:
            StaleTerm: somebody else has taken over.
        """
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                async with self._db.transaction() as tx:
                    renewed = await tx.connection.fetchval(_RENEW, self._name, self.fence, self._lease)
            except Transient as error:
                _log.warning("the term could not be renewed", term=self._name, why=str(error))
                continue
            if renewed is None:
                raise StaleTerm(f"the term {self._name} was taken over")

    async def release(self) -> None:
        """Let a stand-by take over at once. A failure only means that it waits for the lease."""
        fence, self.fence = self.fence, None
        if fence is None:
            return
        try:
            async with self._db.transaction() as tx:
                await tx.connection.execute(_RELEASE, self._name, fence)
        except Transient as error:
            _log.warning("the term could not be released; it lapses by itself", term=self._name, why=str(error))
