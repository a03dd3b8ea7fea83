"""A correction becomes entries: one a bucket, as what the giving account has there allows (decision 0035).

Pure; no bucket falls below zero, and the entries sum to the amount.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from allmende.ledger.rules.books import Books
from allmende.proto.units import GpuMs, Ms

Room: TypeAlias = Mapping[Ms, GpuMs]
"""What an account can give, by the beginning of the bucket."""


class Entry(NamedTuple):
    """So much moved in the bucket that begins at `bucket_ms`."""

    bucket_ms: Ms
    amount_gpu_ms: GpuMs


def spread(amount_gpu_ms: GpuMs, room: Room) -> Sequence[Entry]:
    """Entries in the proportion of the room, exact by running sums: each is the growth of floor(amount x room so far / whole room).

    The amount is at most the whole room, so no entry is more than its bucket's.
    """
    whole = sum(room.values())
    assert 0 < amount_gpu_ms <= whole, "the caller has compared"
    entries: list[Entry] = []
    so_far = moved = 0
    for bucket_ms in sorted(room):
        so_far += room[bucket_ms]
        upto = amount_gpu_ms * so_far // whole
        if upto > moved:
            entries.append(Entry(bucket_ms, upto - moved))
        moved = upto
    return entries


def uncharged(books: Sequence[Books], charged: Room) -> Room:
    """What of the capacity is charged to nobody at all, by bucket: no correction charges more than there was."""
    left = {row.from_ms: row.available - charged.get(row.from_ms, 0) for row in books}
    return {bucket_ms: gpu_ms for bucket_ms, gpu_ms in left.items() if gpu_ms > 0}
