"""The handler of the inbox: a batch of messages becomes entries in the books, confirmations and refusals, in one transaction.

No state of its own but a hint when the next round is due: any number of replicas may run.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from allmende.chassis.db import Transaction
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Draft, Event, Ids
from allmende.chassis.worker import Outcome
from allmende.ledger import wire
from allmende.ledger.handlers.booking import Booking
from allmende.ledger.handlers.rounds import Rounds
from allmende.ledger.handlers.tree import read_in
from allmende.ledger.model import Fact, Fault, Limits, Reading
from allmende.ledger.ports import Bookings, Trees
from allmende.ledger.rules.quarantine import Report, believed_facts, believed_reports
from allmende.ledger.rules.tree import Revision
from allmende.proto.admission import AttemptProtected, JobGranted
from allmende.proto.agent import AttemptEnded, AttemptStarted, NodeReported, UsageTick
from allmende.proto.budget import BudgetChanged, RevisionComplete
from allmende.proto.lost import NodeDeclaredLost
from allmende.proto.units import MINUTE_MS, Ms

# A clock that is further off at sending, in real time, is not believed at all (contract §3).
SKEW_MS: Ms = 5 * MINUTE_MS


class Heard(NamedTuple):
    """A batch of messages by what they are about.

    `off_ms`: by how much the clock of a message's sender was ahead of ours; `clusters`: those whose books change.
    """

    facts: list[Fact]
    readings: list[Reading]
    reports: list[Report]
    changes: list[BudgetChanged]
    revisions: list[Revision]
    off_ms: dict[str, Ms]
    clusters: set[str]


def sort_out(events: Iterable[Event]) -> Heard:
    """Sort a batch. What comes first in it does not matter."""
    heard = Heard([], [], [], [], [], {}, set())
    for event in events:
        envelope = event.envelope
        off_ms = heard.off_ms[envelope.id] = envelope.sent_at_ms - event.stored_at_ms
        match envelope.body:
            case UsageTick(cluster=cluster, counters=counters):
                heard.clusters.add(cluster)
                heard.readings.extend(wire.readings(envelope.id, cluster, counters, envelope.sent_at_ms, off_ms=off_ms))
            case AttemptEnded(cluster=cluster, counters=counters) as body:
                heard.clusters.add(cluster)
                heard.facts.append(wire.fact(envelope.id, body))
                heard.readings.extend(wire.readings(envelope.id, cluster, counters, envelope.sent_at_ms, off_ms=off_ms, final=True))
            case JobGranted() | AttemptStarted() | AttemptProtected() as body:
                heard.clusters.add(body.cluster)
                heard.facts.append(wire.fact(envelope.id, body))
            case NodeReported() as body:
                heard.clusters.add(body.cluster)
                heard.reports.append(Report(envelope.id, envelope.sent_at_ms, off_ms, wire.step(body)))
            case NodeDeclaredLost() as body:
                heard.facts.extend(wire.declared_ends(envelope.id, body))
                heard.reports.append(Report(envelope.id, envelope.sent_at_ms, off_ms, wire.dead_step(body)))
            case BudgetChanged() as body:
                heard.changes.append(body)
            case RevisionComplete() as body:
                heard.revisions.append(wire.revision(body))
    return heard


class Hearing:
    """The inbox's handler."""

    def __init__(
        self, store: Bookings, booking: Booking, trees: Trees, rounds: Rounds, clock: Clock, ids: Ids, allowance_ms: Ms
    ) -> None:
        self._store, self._booking, self._trees, self._rounds = store, booking, trees, rounds
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
        steps, faults = believed_reports(heard.reports, limits)
        await self._store.add_steps(tx, steps)
        facts, not_believed = believed_facts(heard.facts, heard.readings, heard.off_ms, limits)
        faults = [*faults, *not_believed]
        drafts: list[Draft] = []
        if facts or heard.readings:
            booked = await self._booking.book(tx, facts, heard.readings, limits)
            faults += booked.faults
            drafts += [draft(body, ids=self._ids, now_ms=now_ms) for body in wire.confirmations(booked.confirmed)]
        await self._store.add_faults(tx, faults, now_ms)
        drafts += self._refusals(events, faults, now_ms)
        drafts += await self._rounds.take(tx, due, now_ms)
        return Outcome(drafts, self._rounds.next_ms)

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
