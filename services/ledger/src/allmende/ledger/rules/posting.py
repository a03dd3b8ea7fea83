"""A batch of readings becomes postings: contract §3, in one call on what was loaded, to one value that is committed whole.

Double entry: a posting debits the cluster's capacity and credits a budget, or `unallocated`. Never reads a table or a clock.
"""

from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.ledger import errors
from allmende.ledger.model import (
    BUCKET_MS,
    Attempt,
    AttemptKey,
    Counter,
    CounterKey,
    Fault,
    Limits,
    Posting,
    ReplicaKey,
    Runs,
)
from allmende.ledger.rules.attempts import is_complete
from allmende.ledger.rules.counters import fault_of, hear, settle
from allmende.proto.units import GpuMs, Ms

BucketKey: TypeAlias = tuple[str, str | None, Ms]
"""Cluster, budget (None: unallocated), beginning of the bucket."""


class Loaded(NamedTuple):
    """What the decision needs: the attempts that the batch names, on whichever cluster, and counters of the touched replicas.

    `priced`: attempts that got their grant or end in this batch; of those all counters are there.
    """

    attempts: Mapping[AttemptKey, Attempt]
    counters: Iterable[Counter]
    priced: frozenset[AttemptKey]


class Entries(NamedTuple):
    """What a batch writes. `at_hand`: all counters that were loaded or written, as they now stand."""

    counters: Sequence[Counter]
    postings: Sequence[Posting]
    buckets: Mapping[BucketKey, GpuMs]
    faults: Sequence[Fault]
    at_hand: Sequence[Counter]
    replicas: Mapping[AttemptKey, int]

    def has_all_of(self, attempt: Attempt) -> bool:
        """True when the counters of every granted replica are at hand."""
        return attempt.grant is not None and self.replicas.get(attempt.key, 0) >= attempt.grant.replicas


def post(loaded: Loaded, runs: Runs, limits: Limits) -> Entries:
    """Hear all readings, then settle every replica that was touched or priced. The result does not depend on the batch's order."""
    shelf = _shelve(loaded.counters)
    changed, faults = _hear_all(loaded.attempts, shelf, runs, limits)
    # What advanced these counters, each by its newest reading.
    events = {shelf[key[:3]][key[3]].event for key in changed}
    postings: list[Posting] = []
    touched = {key[:3] for key in changed}
    if loaded.priced:
        touched |= {key for key in shelf if key[:2] in loaded.priced}
    for replica in touched:
        attempt = loaded.attempts.get(replica[:2])
        if attempt is None or attempt.grant is None:
            continue
        epochs = shelf[replica]
        settled = settle(attempt, [epochs[epoch] for epoch in sorted(epochs)], limits)
        postings.extend(settled.postings)
        priced = replica[:2] in loaded.priced
        # An older epoch that was cut before is cut again on every advance of the newer one: said once is enough.
        faults.extend(fault for fault in settled.faults if priced or fault.event in events)
        for counter in settled.counters:
            if counter is not epochs[counter.epoch]:
                epochs[counter.epoch] = counter
                changed.add((*replica, counter.epoch))
    counters = [shelf[key[:3]][key[3]] for key in sorted(changed)]
    at_hand = [counter for epochs in shelf.values() for counter in epochs.values()]
    replicas = Multiset(key[:2] for key, epochs in shelf.items() if epochs)
    return Entries(counters, postings, _buckets(postings), faults, at_hand, replicas)


def _shelve(counters: Iterable[Counter]) -> dict[ReplicaKey, dict[int, Counter]]:
    shelf: dict[ReplicaKey, dict[int, Counter]] = defaultdict(dict)
    for counter in counters:
        shelf[counter.cluster, counter.attempt, counter.replica][counter.epoch] = counter
    return shelf


def _hear_all(
    attempts: Mapping[AttemptKey, Attempt], shelf: dict[ReplicaKey, dict[int, Counter]], runs: Runs, limits: Limits
) -> tuple[set[CounterKey], list[Fault]]:
    """Put every reading on the shelf; returns the keys of the counters that changed, and what was not believed."""
    owners = {attempt: cluster for (cluster, attempt), known in attempts.items() if known.grant is not None}
    changed: set[CounterKey] = set()
    faults: list[Fault] = []
    for key, run in runs.items():
        cluster, name, replica, epoch = key
        if owners.get(name, cluster) != cluster:
            sentence = "the attempt was granted to another cluster"
            faults.extend(fault_of(reading, errors.FOREIGN_ATTEMPT, sentence, 0) for reading in run)
            continue
        attempt = attempts.get((cluster, name))
        epochs = shelf[cluster, name, replica]
        known = epochs.get(epoch)
        counter, not_believed = hear(known, run, attempt.grant if attempt is not None else None, limits)
        faults.extend(not_believed)
        if counter is not None and counter is not known:
            epochs[epoch] = counter
            changed.add(key)
    return changed, faults


def advanced_gpu_ms(loaded: Loaded, entries: Entries) -> GpuMs:
    """By how much more is counted than before, posted or not."""
    before = sum(_counted_gpu_ms(loaded.attempts, each) for each in loaded.counters)
    return sum(_counted_gpu_ms(loaded.attempts, each) for each in entries.at_hand) - before


def _counted_gpu_ms(attempts: Mapping[AttemptKey, Attempt], counter: Counter) -> GpuMs:
    attempt = attempts.get((counter.cluster, counter.attempt))
    if counter.from_ms is None or attempt is None or attempt.grant is None:
        return 0
    return attempt.grant.gpus * (counter.to_ms - counter.from_ms)


def _buckets(postings: Iterable[Posting]) -> dict[BucketKey, GpuMs]:
    buckets: dict[BucketKey, GpuMs] = defaultdict(int)
    for posting in postings:
        buckets[posting.cluster, posting.budget, posting.from_ms - posting.from_ms % BUCKET_MS] += posting.amount_gpu_ms
    return buckets


def completed(
    attempts: Mapping[AttemptKey, Attempt], counters: Iterable[Counter], asked: Iterable[AttemptKey]
) -> tuple[AttemptKey, ...]:
    """Those of the asked attempts whose end and final counters are all in the books, sorted. `counters`: all of theirs."""
    by_attempt: dict[AttemptKey, list[Counter]] = defaultdict(list)
    for counter in counters:
        by_attempt[counter.cluster, counter.attempt].append(counter)
    return tuple(key for key in sorted(asked) if key in attempts and is_complete(attempts[key], by_attempt[key]))
