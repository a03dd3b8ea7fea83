"""The handler of the inbox: a batch of messages becomes entries in the books, confirmations and refusals, in one transaction.

No state of its own but a hint when the next round is due: any number of replicas may run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from allmende.chassis.db import Transaction
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Draft, Event, Ids
from allmende.chassis.worker import Outcome
from allmende.ledger import wire
from allmende.ledger.handlers.rounds import Rounds
from allmende.ledger.handlers.tree import read_in
from allmende.ledger.model import Attempt, AttemptKey, Ended, Fact, Fault, Limits, NodeStep, Reading
from allmende.ledger.ports import Bookings, Trees
from allmende.ledger.rules.attempts import Learnt, clock_off, first_grants, learn
from allmende.ledger.rules.capacity import believed
from allmende.ledger.rules.posting import Entries, Loaded, completed, post
from allmende.ledger.rules.tree import Revision
from allmende.proto.admission import AttemptProtected, JobGranted
from allmende.proto.agent import AttemptEnded, AttemptStarted, NodeReported, UsageTick
from allmende.proto.budget import BudgetChanged, RevisionComplete
from allmende.proto.units import MINUTE_MS, Ms

# A clock that runs further ahead at sending, in real time, is not believed at all (contract §3).
SKEW_MS: Ms = 5 * MINUTE_MS


class Heard(NamedTuple):
    """A batch of messages by what they are about."""

    facts: list[Fact]
    readings: list[Reading]
    steps: list[tuple[str, Ms, NodeStep]]
    changes: list[BudgetChanged]
    revisions: list[Revision]

    @property
    def clusters(self) -> set[str]:
        """The clusters whose books change."""
        return {each.cluster for each in (*self.facts, *self.readings, *(step for _, _, step in self.steps))}


def sort_out(events: Iterable[Event]) -> Heard:
    """Sort a batch. What comes first in it does not matter."""
    heard = Heard([], [], [], [], [])
    for event in events:
        envelope = event.envelope
        match envelope.body:
            case UsageTick(cluster=cluster, counters=counters):
                heard.readings.extend(wire.readings(envelope.id, cluster, counters, envelope.sent_at_ms, final=False))
            case AttemptEnded(cluster=cluster, counters=counters) as body:
                heard.facts.append(wire.fact(envelope.id, body))
                heard.readings.extend(wire.readings(envelope.id, cluster, counters, envelope.sent_at_ms, final=True))
            case JobGranted() | AttemptStarted() | AttemptProtected() as body:
                heard.facts.append(wire.fact(envelope.id, body))
            case NodeReported() as body:
                heard.steps.append((envelope.id, envelope.sent_at_ms, wire.step(body)))
            case BudgetChanged() as body:
                heard.changes.append(body)
            case RevisionComplete() as body:
                heard.revisions.append(wire.revision(body))
    return heard


class Hearing:
    """The inbox's handler."""

    def __init__(self, store: Bookings, trees: Trees, rounds: Rounds, clock: Clock, ids: Ids, allowance_ms: Ms) -> None:
        self._store, self._trees, self._rounds = store, trees, rounds
        # Two clocks differ by real time: on a scaled clock that is more.
        self._allowance_ms = allowance_ms * clock.rate
        self._skew_ms = SKEW_MS * clock.rate
        self._clock, self._ids = clock, ids

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Take in a batch; then say the standings where they are due."""
        heard = sort_out(events)
        now_ms = self._clock.now_ms()
        if heard.changes or heard.revisions:
            await self._trees.lock(tx)
            await self._trees.keep(tx, heard.changes, heard.revisions)
            await read_in(tx, self._trees)
        due = await self._rounds.due(tx, now_ms)
        await self._store.lock(tx, heard.clusters | due)
        await self._store.know(tx, heard.clusters)
        limits = Limits(now_ms, self._allowance_ms, self._skew_ms)
        steps, faults = believed(heard.steps, limits)
        faults = [*faults, *_set_aside(heard, events, limits)]
        await self._store.add_steps(tx, steps)
        drafts: list[Draft] = []
        if heard.facts or heard.readings:
            confirmed, booking_faults = await self._book(tx, heard, limits)
            faults = [*faults, *booking_faults]
            drafts += [draft(body, ids=self._ids, now_ms=now_ms) for body in wire.confirmations(confirmed)]
        await self._store.add_faults(tx, faults, now_ms)
        drafts += self._refusals(events, faults, now_ms)
        drafts += await self._rounds.take(tx, due, now_ms)
        return Outcome(drafts, self._rounds.next_ms)

    async def _book(self, tx: Transaction, heard: Heard, limits: Limits) -> tuple[tuple[AttemptKey, ...], list[Fault]]:
        """Load, decide, write; returns the attempts that are complete now, and what was not counted."""
        names = {fact.attempt for fact in heard.facts} | {reading.attempt for reading in heard.readings}
        known = await self._store.attempts(tx, names)
        learnt = learn(known, heard.facts)
        replicas = {(reading.cluster, reading.attempt, reading.replica) for reading in heard.readings}
        counters = await self._store.counters_of_attempts(tx, learnt.priced)
        rest = {key for key in replicas if key[:2] not in learnt.priced}
        counters += await self._store.counters_of_replicas(tx, sorted(rest))
        entries = post(Loaded(learnt.attempts, counters, learnt.priced), heard.readings, limits)
        # A counter's attempt has a row even before anybody granted it: the state of the books shows it as unattributed.
        strangers = {(each.cluster, each.attempt) for each in entries.counters} - learnt.attempts.keys()
        changed = [learnt.attempts[key] for key in learnt.changed]
        await self._store.save_attempts(tx, [*changed, *(Attempt(*key) for key in strangers)])
        await self._store.add_placed(tx, first_grants(known, heard.facts))
        await self._store.save_counters(tx, entries.counters)
        await self._store.add_postings(tx, entries.postings, entries.buckets)
        confirmed = await self._complete(tx, learnt, heard, entries)
        return confirmed, [*learnt.faults, *entries.faults]

    async def _complete(self, tx: Transaction, learnt: Learnt, heard: Heard, entries: Entries) -> tuple[AttemptKey, ...]:
        """The complete ones of the attempts that ended or advanced; one whose end is said again is confirmed again."""
        spoken = {(fact.cluster, fact.attempt) for fact in heard.facts if isinstance(fact, Ended)} | learnt.priced
        spoken |= {(counter.cluster, counter.attempt) for counter in entries.counters}
        asked = {key for key in spoken if _is_ended(learnt.attempts, key)}
        # Of most attempts every replica is at hand already.
        partly = sorted(key for key in asked if not entries.has_all_of(learnt.attempts[key]))
        counters = [*entries.at_hand, *await self._store.counters_of_attempts(tx, partly)]
        return completed(learnt.attempts, counters, asked)

    def _refusals(self, events: Sequence[Event], faults: Iterable[Fault], now_ms: Ms) -> Iterator[Draft]:
        """One word a message, to its publisher. Faults of older messages are only kept."""
        by_event: dict[str, list[Fault]] = {}
        for fault in faults:
            by_event.setdefault(fault.event, []).append(fault)
        for event in events:
            found = by_event.get(event.envelope.id)
            if found:
                body = wire.refused(event.subject, event.stream, event.stream_seq, event.envelope.id, found)
                yield draft(body, ids=self._ids, now_ms=now_ms, cause=event.envelope.id)


def _set_aside(heard: Heard, events: Iterable[Event], limits: Limits) -> list[Fault]:
    """Take the facts of agents whose clock was too far off at sending out of a batch; their counters are judged one by one.

    An end whose finals are not believed must not be believed either: it would be confirmed, and the agent would forget them.
    """
    envelopes = (event.envelope for event in events if isinstance(event.body, AttemptStarted | AttemptEnded))
    early = {each.id: each.sent_at_ms - limits.now_ms for each in envelopes if each.sent_at_ms - limits.now_ms > limits.skew_ms}
    aside = [fact for fact in heard.facts if fact.event in early]
    heard.facts[:] = [fact for fact in heard.facts if fact.event not in early]
    return [clock_off(fact, early[fact.event]) for fact in aside]


def _is_ended(attempts: Mapping[AttemptKey, Attempt], key: AttemptKey) -> bool:
    attempt = attempts.get(key)
    return attempt is not None and attempt.ended_at_ms is not None
