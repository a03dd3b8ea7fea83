"""The inbox's third reader: device activity of the counters that the books believe. It informs and never bills.

A counter's activity is read when it enters another 5-minute bucket, and at its end: most ticks cost a look into memory. What is
remembered there is a hint; the rows decide, so any number of replicas may run.
"""

from collections.abc import Iterable, Iterator, Sequence

from allmende.chassis.db import Transaction
from allmende.chassis.ports import Event
from allmende.chassis.worker import Handler, Outcome
from allmende.ledger import wire
from allmende.ledger.model import BUCKET_MS, CounterKey
from allmende.ledger.ports import Activities
from allmende.ledger.rules.activity import Activity, is_believed, parts
from allmende.proto.agent import AttemptEnded, Counter, UsageTick
from allmende.proto.units import Ms

# Hints of attempts whose end another replica heard are never asked for again. Forgetting all costs one read a running counter.
HINTS_MAX = 65_536


class ActivityHearing:
    """Lets `books` handle a batch, and keeps what its counters say of their devices."""

    def __init__(self, books: Handler, store: Activities) -> None:
        self._books, self._store = books, store
        self._read: dict[CounterKey, Ms] = {}

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Take in a batch, and then the activity of its counters: the books hold their clusters' locks."""
        outcome = await self._books(tx, events)
        said, ended = self._due(events)
        if said:
            known = await self._store.known(tx, said)
            read = [each for each in said.values() if each.key in known and is_believed(each, known[each.key])]
            await self._store.save(tx, read, [part for each in read for part in parts(each, known[each.key])])
            if len(self._read) > HINTS_MAX:
                self._read.clear()
            self._read |= {key: _bucket(said[key]) for key in known if key not in ended}
        return outcome

    def _due(self, events: Iterable[Event]) -> tuple[dict[CounterKey, Activity], set[CounterKey]]:
        """The newest reading of each counter that is final, or in another bucket than the last that was read; and the finals."""
        due: dict[CounterKey, Activity] = {}
        ended: set[CounterKey] = set()
        for cluster, counter, final in _told(events):
            key = (cluster, counter.attempt, counter.replica, counter.epoch)
            if final:
                ended.add(key)
                self._read.pop(key, None)
            elif self._read.get(key) == (counter.since_ms + counter.held_ms) // BUCKET_MS:
                continue
            newest = due.get(key)
            if newest is None or newest.held_ms < counter.held_ms:
                due[key] = wire.activity(key, counter)
        return due, ended


def _bucket(reading: Activity) -> Ms:
    return (reading.since_ms + reading.held_ms) // BUCKET_MS


def _told(events: Iterable[Event]) -> Iterator[tuple[str, Counter, bool]]:
    """The counters that tell of their devices, with their cluster, and whether they are final."""
    for event in events:
        body = event.body
        if isinstance(body, UsageTick | AttemptEnded):
            # Asked this way round because an isinstance of a tick is cheap when it holds, and most messages are ticks.
            final = not isinstance(body, UsageTick)
            for counter in body.counters:
                if counter.busy_gpu_ms is not None:
                    yield body.cluster, counter, final
