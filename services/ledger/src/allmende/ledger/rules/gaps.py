"""Which stretches without a counter closed exactly in a batch: the same counter came back and counted them (contract §3).

Never judges what is missing: of these nothing is.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from allmende.ledger.model import Counter, Runs
from allmende.proto.units import Ms


class ClosedGap(NamedTuple):
    """`[from_ms, to_ms)` of one replica, counted at once when the counter came back."""

    attempt: str
    cluster: str
    replica: int
    from_ms: Ms
    to_ms: Ms


def closed(before: Iterable[Counter], after: Iterable[Counter], runs: Runs, silence_ms: Ms) -> Iterator[ClosedGap]:
    """Stretches longer than the silence over which a counter advanced without one reading that ends inside.

    What waited for us in the bus was no silence: all readings of a counter are looked at.
    """
    was = {each.key: each.to_ms for each in before if each.from_ms is not None}
    for counter in after:
        from_ms = was.get(counter.key)
        if from_ms is None or counter.to_ms - from_ms <= silence_ms:
            continue
        ends = {reading.since_ms + reading.held_ms for reading in runs.get(counter.key, ())}
        inside = {end_ms for end_ms in ends if from_ms < end_ms < counter.to_ms}
        for left_ms, back_ms in pairwise(sorted({from_ms, *inside, counter.to_ms})):
            if back_ms - left_ms > silence_ms:
                yield ClosedGap(counter.attempt, counter.cluster, counter.replica, left_ms, back_ms)
