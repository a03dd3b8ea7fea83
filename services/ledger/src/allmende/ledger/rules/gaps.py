"""Which stretches without a counter closed exactly in a batch: the same counter came back and counted them (contract §3).

Never judges what is missing: of these nothing is.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from allmende.ledger.model import Counter, Reading
from allmende.proto.units import Ms


class ClosedGap(NamedTuple):
    """`[from_ms, to_ms)` of one replica, counted at once when the counter came back."""

    attempt: str
    cluster: str
    replica: int
    from_ms: Ms
    to_ms: Ms


def closed(before: Iterable[Counter], after: Iterable[Counter], readings: Iterable[Reading], silence_ms: Ms) -> Iterator[ClosedGap]:
    """Stretches longer than the silence over which a counter advanced without one reading that ends inside.

    What waited for us in the bus was no silence: the readings of one batch are looked at one by one.
    """
    was = {_key(each): each for each in before if each.from_ms is not None}
    leaps = [(was[key], each) for each in after if (key := _key(each)) in was and each.to_ms - was[key].to_ms > silence_ms]
    if not leaps:
        return
    ends: dict[tuple[str, str, int, int], list[Ms]] = defaultdict(list)
    for reading in readings:
        ends[reading.cluster, reading.attempt, reading.replica, reading.epoch].append(reading.since_ms + reading.held_ms)
    for old, new in leaps:
        inside = [end_ms for end_ms in ends[_key(new)] if old.to_ms < end_ms < new.to_ms]
        for from_ms, to_ms in pairwise(sorted({old.to_ms, new.to_ms, *inside})):
            if to_ms - from_ms > silence_ms:
                yield ClosedGap(new.attempt, new.cluster, new.replica, from_ms, to_ms)


def _key(counter: Counter) -> tuple[str, str, int, int]:
    return counter.cluster, counter.attempt, counter.replica, counter.epoch
