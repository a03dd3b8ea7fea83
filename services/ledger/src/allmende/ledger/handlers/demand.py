"""The inbox's second reader: what admission says of jobs becomes demand, in the transaction that books the rest of the batch."""

from collections.abc import Iterator, Sequence

from allmende.chassis.db import Transaction
from allmende.chassis.ports import Event
from allmende.chassis.worker import Handler, Outcome
from allmende.ledger import wire
from allmende.ledger.ports import Demands
from allmende.ledger.rules.demand import Word, learn
from allmende.proto.admission import JobChanged, JobEnded, JobGranted, JobQueued, JobRefused
from allmende.proto.agent import UsageTick


class DemandHearing:
    """Lets `books` handle a batch, and keeps what its jobs ask for."""

    def __init__(self, books: Handler, store: Demands) -> None:
        self._books, self._store = books, store

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Take in a batch. The books' locks come first, so that replicas never wait for one another in a circle."""
        outcome = await self._books(tx, events)
        words = list(_words(events))
        if words:
            await self._store.lock(tx)
            known = await self._store.demands(tx, {word.job for word in words})
            await self._store.save(tx, learn(known, words).values())
        return outcome


def _words(events: Sequence[Event]) -> Iterator[Word]:
    for event in events:
        body = event.body
        # Most messages are ticks, and five classes that they are not cost as much as a counter.
        if not isinstance(body, UsageTick) and isinstance(body, JobQueued | JobGranted | JobChanged | JobEnded | JobRefused):
            yield wire.word((event.envelope.occurred_at_ms, event.envelope.id), body)
