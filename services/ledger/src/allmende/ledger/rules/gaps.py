"""Which stretches without a counter closed exactly in a batch: the same counter came back and counted them (contract §3).

Never judges what is missing: of these nothing is.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from allmende.ledger.model import Counter, Reading
from allmende.proto.units import Ms

_Key: TypeAlias = tuple[str, str, int, int]
"""Cluster, attempt, replica, epoch."""


class ClosedGap(NamedTuple):
    """`[from_ms, to_ms)` of one replica, counted at once when the counter came back."""

    attempt: str
    cluster: str
    replica: int
    from_ms: Ms
    to_ms: Ms


def closed(before: Iterable[Counter], after: Iterable[Counter], readings: Sequence[Reading], silence_ms: Ms) -> Iterator[ClosedGap]:
    """Stretches longer than the silence over which a counter advanced without one reading that ends inside.

    What waited for us in the bus was no silence: the readings of one batch are looked at one by one.
    """
    was = {_key(each): each.to_ms for each in before if each.from_ms is not None}
    leapt = {key: each.to_ms for each in after if (key := _key(each)) in was and each.to_ms - was[key] > silence_ms}
    ends: dict[_Key, set[Ms]] = {key: set() for key in _suspects({key: was[key] for key in leapt}, readings, silence_ms)}
    if not ends:
        return
    for reading in readings:
        if (key := _key(reading)) in ends:
            ends[key].add(reading.since_ms + reading.held_ms)
    for key, inside in ends.items():
        cluster, attempt, replica, _ = key
        for from_ms, to_ms in pairwise(sorted({was[key], leapt[key], *(end for end in inside if was[key] < end < leapt[key])})):
            if to_ms - from_ms > silence_ms:
                yield ClosedGap(attempt, cluster, replica, from_ms, to_ms)


def _suspects(reached_ms: dict[_Key, Ms], readings: Iterable[Reading], silence_ms: Ms) -> list[_Key]:
    """Counters that leap over a silence in the order in which they were heard: mostly that of time, and then no doubt is left.

    A backlog has thousands of readings, each for a microsecond, and hardly ever a gap.
    """
    suspects: dict[_Key, None] = {}
    for reading in readings:
        key = (reading.cluster, reading.attempt, reading.replica, reading.epoch)
        before_ms = reached_ms.get(key)
        if before_ms is None:
            continue
        end_ms = reading.since_ms + reading.held_ms
        if end_ms > before_ms:
            reached_ms[key] = end_ms
            if end_ms - before_ms > silence_ms:
                suspects[key] = None
    return list(suspects)


def _key(counter: Counter | Reading) -> _Key:
    return counter.cluster, counter.attempt, counter.replica, counter.epoch
