"""A batch of facts and readings of some clusters goes into the books: load, decide, write, inside the caller's transaction.

Whoever calls holds the clusters' locks. Never reads a clock and never says anything.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allmende.chassis.db import Transaction
from allmende.ledger.model import Attempt, AttemptKey, Ended, Fact, Fault, Limits, Reading
from allmende.ledger.ports import Bookings, Gaps, Heard
from allmende.ledger.rules.attempts import Learnt, first_grants, learn
from allmende.ledger.rules.counters import by_counter
from allmende.ledger.rules.gaps import closed
from allmende.ledger.rules.posting import Entries, Loaded, completed, post
from allmende.ledger.rules.replay import words_by_cluster
from allmende.proto.units import Ms


class Booked(NamedTuple):
    """Attempts that are complete now, what was not counted, and what was decided on which state."""

    confirmed: tuple[AttemptKey, ...]
    faults: Sequence[Fault]
    loaded: Loaded
    entries: Entries


class Booking:
    """Books batches."""

    def __init__(self, store: Bookings, gaps: Gaps, heard: Heard, silence_ms: Ms) -> None:
        """`silence_ms`: after how long without a counter a gap is one, in clock milliseconds."""
        self._store, self._gaps, self._heard, self._silence_ms = store, gaps, heard, silence_ms

    async def book(self, tx: Transaction, facts: Sequence[Fact], readings: Sequence[Reading], limits: Limits) -> Booked:
        """Take in what was said of attempts."""
        runs = by_counter(readings)
        said = words_by_cluster(facts, runs, limits)
        await self._heard.begin(tx, said, limits.now_ms)
        names = {fact.attempt for fact in facts} | {attempt for _, attempt, _, _ in runs}
        known = await self._store.attempts(tx, names)
        learnt = learn(known, facts)
        counters = await self._store.counters_of_attempts(tx, learnt.priced)
        rest = {key[:3] for key in runs if key[:2] not in learnt.priced}
        counters += await self._store.counters_of_replicas(tx, sorted(rest))
        loaded = Loaded(learnt.attempts, counters, learnt.priced)
        entries = post(loaded, runs, limits)
        # A counter's attempt has a row even before anybody granted it: the state of the books shows it as unattributed.
        strangers = {(each.cluster, each.attempt) for each in entries.counters} - learnt.attempts.keys()
        changed = [learnt.attempts[key] for key in learnt.changed]
        await self._store.save_attempts(tx, [*changed, *(Attempt(*key) for key in strangers)])
        await self._store.add_placed(tx, first_grants(known, facts))
        await self._store.save_counters(tx, entries.counters)
        await self._store.add_postings(tx, entries.postings, entries.buckets)
        await self._gaps.add(tx, closed(counters, entries.counters, runs, self._silence_ms), limits.now_ms)
        await self._heard.add(tx, said.items(), limits.now_ms)
        confirmed = await self._complete(tx, learnt, facts, entries)
        return Booked(confirmed, [*learnt.faults, *entries.faults], loaded, entries)

    async def _complete(self, tx: Transaction, learnt: Learnt, facts: Sequence[Fact], entries: Entries) -> tuple[AttemptKey, ...]:
        """The complete ones of the attempts that ended or advanced; one whose end is said again is confirmed again."""
        spoken = {(fact.cluster, fact.attempt) for fact in facts if isinstance(fact, Ended)} | learnt.priced
        spoken |= {(counter.cluster, counter.attempt) for counter in entries.counters}
        asked = {key for key in spoken if _is_ended(learnt.attempts, key)}
        # Of most attempts every replica is at hand already.
        partly = sorted(key for key in asked if not entries.has_all_of(learnt.attempts[key]))
        counters = [*entries.at_hand, *await self._store.counters_of_attempts(tx, partly)]
        return completed(learnt.attempts, counters, asked)


def _is_ended(attempts: Mapping[AttemptKey, Attempt], key: AttemptKey) -> bool:
    attempt = attempts.get(key)
    return attempt is not None and attempt.ended_at_ms is not None
