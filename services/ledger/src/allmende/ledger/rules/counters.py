"""One counter: what a reading changes, and how far a replica's counters are counted and posted.

Contract §3. Counters are cumulative, so every rule here gives the same books for any order, repetition or loss of honest readings.
Never knows about batches: `posting` does.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from allmende.ledger import errors
from allmende.ledger.model import BUCKET_MS, Attempt, Claim, Counter, CounterKey, Fault, Grant, Limits, Posting, Reading, Runs
from allmende.proto.units import GpuMs, Ms


def by_counter(readings: Iterable[Reading]) -> Runs:
    """The readings of a batch by what they are of; the order within each stays."""
    runs: dict[CounterKey, list[Reading]] = defaultdict(list)
    for reading in readings:
        runs[reading.cluster, reading.attempt, reading.replica, reading.epoch].append(reading)
    return runs


class Judged(NamedTuple):
    """A counter after all that a batch says of it, and the faults of what was not believed."""

    counter: Counter | None
    faults: Sequence[Fault]


def hear(known: Counter | None, run: Iterable[Reading], grant: Grant | None, limits: Limits) -> Judged:
    """Hear the readings of one counter, in their order.

    A reading that only goes on needs no counter of its own, when a longer one follows: in a backlog most are so.
    """
    counter, faults = known, []
    newest: Reading | None = None
    for reading in run:
        before = counter if newest is None else newest
        if before is not None and _goes_on(before, reading, grant, limits):
            newest = reading
            continue
        if newest is not None:
            counter, newest = _advanced(counter, newest, newest.held_ms), None
        counter, fault = _judged(counter, reading, grant, limits)
        if fault is not None:
            faults.append(fault)
    if newest is not None:
        counter = _advanced(counter, newest, newest.held_ms)
    return Judged(counter, faults)


def _goes_on(before: Counter | Reading, reading: Reading, grant: Grant | None, limits: Limits) -> bool:
    """The common case, a third of a microsecond: a later seq with a longer counter, in which nothing is wrong.

    The bound is judged by `sent_at_ms`, when this copy left the agent: what was spooled in an outage stays valid, and a replay
    judges as the first time. A clock that runs ahead cannot lift the bound above the ledger's own.
    """
    end_ms = reading.since_ms + reading.held_ms - limits.allowance_ms
    return (
        reading.seq > before.seq
        and reading.held_ms >= before.held_ms
        and reading.since_ms == before.since_ms
        and end_ms <= reading.sent_at_ms
        and end_ms <= limits.now_ms
        and not reading.final
        and -limits.skew_ms <= reading.off_ms <= limits.skew_ms
        and (grant is None or (reading.used_gpu_ms == reading.held_ms * grant.gpus and reading.replica < grant.replicas))
    )


def _judged(known: Counter | None, reading: Reading, grant: Grant | None, limits: Limits) -> tuple[Counter | None, Fault | None]:
    if abs(reading.off_ms) > limits.skew_ms:
        claimed = reading.used_gpu_ms - (known.used_gpu_ms if known is not None else 0)
        return known, fault_of(reading, errors.CLOCK_OFF, how_far_off(reading.off_ms), max(claimed, 0))
    gpus = grant.gpus if grant is not None else 1
    if grant is not None and reading.replica >= grant.replicas:
        sentence = f"the grant has {grant.replicas} replicas, so there is no replica {reading.replica}"
        return known, fault_of(reading, errors.UNKNOWN_REPLICA, sentence, reading.used_gpu_ms)
    if grant is not None and reading.used_gpu_ms != reading.held_ms * gpus:
        return known, mismatch_of(reading, gpus)
    if known is not None and reading.since_ms != known.since_ms:
        sentence = f"epoch {reading.epoch} began at {known.since_ms}, not at {reading.since_ms}; a new beginning needs a new epoch"
        return known, fault_of(reading, errors.SINCE_CHANGED, sentence, reading.used_gpu_ms)
    bound_ms = min(limits.now_ms, reading.sent_at_ms) + limits.allowance_ms
    ahead_ms = reading.since_ms + reading.held_ms - bound_ms
    if ahead_ms > 0:
        believed_ms = max(reading.held_ms - ahead_ms, 0)
        sentence = f"the counter says {ahead_ms} ms more than can have passed when it was sent"
        fault = fault_of(reading, errors.AHEAD_OF_CLOCK, sentence, min(ahead_ms, reading.held_ms) * gpus)
        # Not final: the agent says it again until it is confirmed, and once the time has passed it is believed whole.
        cut = replace(reading, held_ms=believed_ms, used_gpu_ms=believed_ms * gpus, final=False)
        if known is None or cut.held_ms > known.held_ms:
            return _advanced(known, cut, believed_ms), fault
        return known, fault
    return _ordered(known, reading, gpus)


def _ordered(known: Counter | None, reading: Reading, gpus: int) -> tuple[Counter | None, Fault | None]:
    """Judge by seq. Where two readings contradict one another the larger counter stands, whichever came first."""
    if known is None:
        return _advanced(None, reading, reading.held_ms), None
    if reading.held_ms == known.held_ms:
        if reading.seq <= known.seq and known.final >= reading.final:
            return known, None
        return _advanced(known, replace(reading, seq=max(known.seq, reading.seq)), known.held_ms), None
    if reading.held_ms < known.held_ms:
        if reading.seq < known.seq:
            return known, None
        sentence = f"seq {reading.seq} says {reading.held_ms} ms held, but seq {known.seq} said {known.held_ms} ms"
        return known, fault_of(reading, errors.COUNTER_BACKWARDS, sentence, (known.held_ms - reading.held_ms) * gpus)
    if reading.seq >= known.seq:
        return _advanced(known, reading, reading.held_ms), None
    sentence = f"seq {known.seq} said {known.held_ms} ms held, but the earlier seq {reading.seq} says {reading.held_ms} ms"
    fault = fault_of(reading, errors.COUNTER_BACKWARDS, sentence, (reading.held_ms - known.held_ms) * gpus)
    return _advanced(known, reading, reading.held_ms), fault


def _advanced(known: Counter | None, reading: Reading, held_ms: Ms) -> Counter:
    since_ms = reading.since_ms
    from_ms, to_ms, posted_until_ms, final = None, since_ms, since_ms, reading.final
    if known is not None:
        from_ms, to_ms, posted_until_ms = known.from_ms, known.to_ms, known.posted_until_ms
        # A longer final voids a shorter one only by replacing it: once the last word was said, it stays said.
        final = final or known.final
    return Counter(
        reading.cluster,
        reading.attempt,
        reading.replica,
        reading.epoch,
        reading.seq,
        since_ms,
        held_ms,
        reading.used_gpu_ms,
        from_ms,
        to_ms,
        posted_until_ms,
        final,
        reading.event,
    )


def how_far_off(off_ms: Ms) -> str:
    """The sentence about a clock that is not believed."""
    side = "ahead of" if off_ms > 0 else "behind"
    return f"the sender's clock was {abs(off_ms)} ms {side} ours when it was sent: nothing that it says is believed"


def fault_of(reading: Reading | Counter, code: str, sentence: str, excess_gpu_ms: GpuMs) -> Fault:
    """A fault of one counter; `what` reads `attempt/replica/epoch`."""
    what = f"{reading.attempt}/{reading.replica}/{reading.epoch}"
    said = reading if isinstance(reading, Reading) else _said(reading)
    return Fault(reading.event, reading.cluster, what, code, f"{what}: {sentence}", excess_gpu_ms, Claim((said,)))


def _said(counter: Counter) -> Reading:
    """The reading that a counter is, for the quarantine; when it was sent is not kept, so it is as old as what it says."""
    return Reading(
        counter.event,
        counter.cluster,
        counter.attempt,
        counter.replica,
        counter.epoch,
        counter.seq,
        counter.since_ms,
        counter.held_ms,
        counter.used_gpu_ms,
        counter.since_ms + counter.held_ms,
        counter.final,
    )


def mismatch_of(reading: Reading | Counter, gpus: int) -> Fault:
    """The fault of an amount that is not the held time of all GPUs."""
    sentence = f"{reading.held_ms} ms of {gpus} GPUs are {reading.held_ms * gpus} GPU-ms, not {reading.used_gpu_ms}"
    return fault_of(reading, errors.AMOUNT_MISMATCH, sentence, reading.used_gpu_ms)


class Settled(NamedTuple):
    """The counters of one replica after counting and posting, in order of their epochs."""

    counters: Sequence[Counter]
    postings: Sequence[Posting]
    faults: Sequence[Fault]


def settle(attempt: Attempt, counters: Sequence[Counter], limits: Limits) -> Settled:
    """Count and post one replica of a granted attempt. `counters`: all its epochs, ascending.

    Each epoch counts `[since, since + held)`, cut so that no instant counts twice: it begins where earlier epochs have come to and
    ends where a later one begins; not before the grant (less the allowance) and not after the end. What is cut is a fault.
    """
    grant = attempt.grant
    assert grant is not None, "only a granted attempt has a price"
    ceilings = _ceilings(counters, attempt.ended_at_ms)
    reached_ms = 0
    settled: list[Counter] = []
    postings: list[Posting] = []
    faults: list[Fault] = []
    for counter, ceiling_ms in zip(counters, ceilings, strict=True):
        opened = counter if counter.from_ms is not None else _opened(counter, grant, reached_ms, limits, faults)
        counted = _counted(opened, grant, ceiling_ms, attempt.ended_at_ms, faults)
        target_ms = counted.to_ms if attempt.ended_at_ms is not None else counted.to_ms - counted.to_ms % BUCKET_MS
        if target_ms > counted.posted_until_ms:
            postings.extend(_split(counted, target_ms, grant))
            counted = replace(counted, posted_until_ms=target_ms)
        reached_ms = max(reached_ms, counted.to_ms)
        settled.append(counted)
    return Settled(settled, postings, faults)


def _ceilings(counters: Sequence[Counter], ended_at_ms: Ms | None) -> list[Ms | None]:
    """For each epoch the instant it may not pass: where a later epoch is already counted from, or the attempt's end."""
    ceiling_ms = ended_at_ms
    ceilings: list[Ms | None] = []
    for counter in reversed(counters):
        ceilings.append(ceiling_ms)
        if counter.from_ms is not None:
            ceiling_ms = counter.from_ms if ceiling_ms is None else min(ceiling_ms, counter.from_ms)
    ceilings.reverse()
    return ceilings


def _opened(counter: Counter, grant: Grant, reached_ms: Ms, limits: Limits, faults: list[Fault]) -> Counter:
    """The first time a counter meets its grant: where it begins to count."""
    if counter.replica >= grant.replicas:
        sentence = f"the grant has {grant.replicas} replicas, so there is no replica {counter.replica}"
        faults.append(fault_of(counter, errors.UNKNOWN_REPLICA, sentence, counter.used_gpu_ms))
        counter = replace(counter, held_ms=0, used_gpu_ms=0, final=False)
    if counter.used_gpu_ms != counter.held_ms * grant.gpus:
        faults.append(mismatch_of(counter, grant.gpus))
        # As if never said: whatever the agent says next may count, whichever seq it has.
        counter = replace(counter, seq=0, held_ms=0, used_gpu_ms=0, final=False)
    floor_ms = grant.granted_at_ms - limits.allowance_ms
    from_ms = max(counter.since_ms, floor_ms, reached_ms)
    lost_ms = min(from_ms, counter.since_ms + counter.held_ms) - counter.since_ms
    if lost_ms > 0:
        early = floor_ms >= reached_ms
        code = errors.BEFORE_GRANT if early else errors.EPOCHS_OVERLAP
        sentence = f"{lost_ms} ms lie before " + ("the grant" if early else "what an earlier epoch has counted")
        faults.append(fault_of(counter, code, sentence, lost_ms * grant.gpus))
    return replace(counter, from_ms=from_ms, to_ms=from_ms, posted_until_ms=from_ms)


def _counted(counter: Counter, grant: Grant, ceiling_ms: Ms | None, ended_at_ms: Ms | None, faults: list[Fault]) -> Counter:
    """Count as far as the counter goes and the ceiling allows; never less than is posted: postings are for ever."""
    end_ms = counter.since_ms + counter.held_ms
    to_ms = end_ms
    if ceiling_ms is not None and end_ms > ceiling_ms:
        to_ms = ceiling_ms
        beyond = ceiling_ms == ended_at_ms
        code = errors.BEYOND_END if beyond else errors.EPOCHS_OVERLAP
        sentence = f"{end_ms - ceiling_ms} ms lie after " + ("the attempt's end" if beyond else "the beginning of a later epoch")
        faults.append(fault_of(counter, code, sentence, (end_ms - ceiling_ms) * grant.gpus))
    to_ms = max(to_ms, counter.posted_until_ms)
    return counter if to_ms == counter.to_ms else replace(counter, to_ms=to_ms)


def _split(counter: Counter, until_ms: Ms, grant: Grant) -> Iterator[Posting]:
    """Postings from where the counter is posted to `until_ms`, split at bucket edges, so that each lies in one bucket."""
    cluster, attempt, replica, epoch, event = counter.cluster, counter.attempt, counter.replica, counter.epoch, counter.event
    from_ms = counter.posted_until_ms
    while from_ms < until_ms:
        to_ms = min(from_ms - from_ms % BUCKET_MS + BUCKET_MS, until_ms)
        yield Posting(cluster, attempt, replica, epoch, from_ms, to_ms, grant.gpus, grant.budget, event)
        from_ms = to_ms
