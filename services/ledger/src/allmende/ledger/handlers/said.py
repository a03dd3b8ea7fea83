"""What viewers hear of each budget's use: now, this hour and today, said when it changes, at most every ten real seconds a cluster.

The stream keeps the last value of each subject, so whoever comes gets the picture from the server. Never knows who listens.
"""

from collections.abc import Sequence

from allmende.chassis.db import Transaction
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Event, Ids
from allmende.chassis.worker import Handler, Outcome
from allmende.ledger import wire
from allmende.ledger.ports import Said
from allmende.proto.units import SECOND_MS, Ms

# Agents tick every ten seconds: more often there is nothing new to say.
EVERY_MS: Ms = 10 * SECOND_MS


class UsageSaying:
    """Lets `books` handle a batch, and says use where it is due. Called at least once a real second by the books' own timer."""

    def __init__(self, books: Handler, store: Said, clock: Clock, ids: Ids) -> None:
        self._books, self._store, self._clock, self._ids = books, store, clock, ids
        self._every_ms = EVERY_MS * clock.rate
        # A hint of this process; the rows decide.
        self._next_ms: Ms = 0

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Take in a batch; then say what has changed."""
        outcome = await self._books(tx, events)
        now_ms = self._clock.now_ms()
        if now_ms < self._next_ms:
            return outcome
        self._next_ms = now_ms + self._every_ms
        due = await self._store.turn(tx, now_ms, self._every_ms)
        if not due:
            return outcome
        changed = await self._store.changed(tx, due, now_ms)
        drafts = [draft(wire.budget_usage(each, now_ms), ids=self._ids, now_ms=now_ms) for each in changed]
        return Outcome([*outcome.drafts, *drafts], outcome.wake_at_ms)
