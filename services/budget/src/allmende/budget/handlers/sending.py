"""The sender of notices: rows that are due, posted one after another. Beside the service's own work, in no transaction of its.

What it cannot do it writes into the row and the log; nothing that a receiver does ends the service or holds it up.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Protocol

from allmende.budget import wire
from allmende.budget.handlers.posting import TIMEOUT_S, Undelivered
from allmende.budget.model import Parcel
from allmende.budget.ports import Deliveries
from allmende.budget.rules.delivering import is_taken, retry_after_ms, signed
from allmende.chassis.db import Database
from allmende.chassis.errors import Transient
from allmende.chassis.log import get_logger
from allmende.proto.units import PPM_WHOLE

# How soon a new notice is looked for: one query on an index of what waits.
LOOK_EVERY_S = 1.0
# Longer than a try takes with everything around it; another replica then takes it for a try that died.
OUT_OF_THE_WAY_S = 3 * TIMEOUT_S

_log = get_logger(__name__)


class Post(Protocol):
    """Where a notice is posted."""

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Post once; returns the status.

        Raises:
            Undelivered: no status came.
        """


class Sender:
    """Posts what waits. Any number of replicas: each row is taken by one."""

    def __init__(self, db: Database, store: Deliveries, receiver: Post, secret: bytes, chance: random.Random) -> None:
        self._db, self._store, self._receiver, self._secret, self._chance = db, store, receiver, secret, chance

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            try:
                while await self.one():
                    pass
            except Transient as error:
                _log.warning("notices cannot be sent now", why=str(error))
            except Exception as error:  # noqa: BLE001 the tree of budgets must not stand still for a chat message
                _log.error("the sender of notices failed and goes on", exc_info=error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def one(self) -> bool:
        """Try one delivery that is due; False: none is. The line to PostgreSQL is free while the receiver thinks."""
        async with self._db.transaction() as tx:
            parcel = await self._store.take_due(tx, OUT_OF_THE_WAY_S)
        if parcel is None:
            return False
        status, problem = await self._try(parcel)
        async with self._db.transaction() as tx:
            if problem is None:
                await self._store.delivered(tx, parcel.number)
            else:
                await self._store.failed(tx, parcel, problem, self._again_in_s(parcel, status, problem))
        return True

    async def _try(self, parcel: Parcel) -> tuple[int | None, str | None]:
        """The status that came, and what is wrong; None: nothing."""
        body = wire.post_of(parcel.notice)
        try:
            status = await self._receiver.post(body, signed(parcel.notice.notice, parcel.now_s, body, self._secret))
        except Undelivered as error:
            return None, str(error)
        return status, None if is_taken(status) else f"the receiver answered {status}"

    def _again_in_s(self, parcel: Parcel, status: int | None, problem: str) -> float | None:
        delay_ms = retry_after_ms(parcel.tries, status, self._chance.randint(0, PPM_WHOLE))
        if delay_ms is None:
            _log.warning("a notice could not be delivered and is given up", number=parcel.number, tries=parcel.tries, why=problem)
            return None
        _log.info("a notice could not be delivered yet", number=parcel.number, tries=parcel.tries, why=problem)
        return delay_ms / 1_000
