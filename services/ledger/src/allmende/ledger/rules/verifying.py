"""What does not agree in a cluster's books, named one by one (contract §3). Pure; never repairs anything."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from allmende.ledger.model import BUCKET_MS, Level
from allmende.ledger.rules.books import Books
from allmende.proto.units import GpuMs, Ms


class Difference(NamedTuple):
    """`recomputed` against `kept`, in GPU-ms (bucket, conservation, posting), ms (interval, counter) or GPUs (terms).

    `of` names the thing.
    """

    what: Literal["bucket", "interval", "terms", "conservation", "posting", "counter"]
    of: str
    at_ms: Ms
    recomputed: int
    kept: int
    sentence: str


class Bucket(NamedTuple):
    """A bucket whose sum is not that of its postings. `budget` '': unallocated."""

    bucket_ms: Ms
    budget: str
    posted_gpu_ms: GpuMs
    kept_gpu_ms: GpuMs


class Interval(NamedTuple):
    """A counter whose posted part the postings do not cover exactly once; None: there is no such counter, or no posting."""

    attempt: str
    replica: int
    epoch: int
    from_ms: Ms | None
    posted_until_ms: Ms | None
    first_ms: Ms | None
    last_ms: Ms | None
    length_ms: Ms
    overlaps: int


class Terms(NamedTuple):
    """A posting that is not on the terms of its attempt's grant. `granted_gpus` None: nobody granted it."""

    number: int
    attempt: str
    from_ms: Ms
    gpus: int
    granted_gpus: int | None
    account: str
    granted_account: str


def buckets(rows: Iterable[Bucket]) -> Iterator[Difference]:
    """Balances: every bucket is the sum of its postings."""
    for row in rows:
        who = row.budget or "unallocated"
        sentence = (
            f"the postings of {who} in the bucket {row.bucket_ms} are {row.posted_gpu_ms} GPU-ms, the bucket says {row.kept_gpu_ms}"
        )
        yield Difference("bucket", who, row.bucket_ms, row.posted_gpu_ms, row.kept_gpu_ms, sentence)


def intervals(rows: Iterable[Interval]) -> Iterator[Difference]:
    """Intervals: the postings of a counter cover what it says is posted, once and without a gap."""
    for row in rows:
        of = f"{row.attempt}/{row.replica}/{row.epoch}"
        kept = 0 if row.from_ms is None or row.posted_until_ms is None else row.posted_until_ms - row.from_ms
        sentence = (
            f"replica {row.replica}, epoch {row.epoch} of attempt {row.attempt} is said to be posted from {row.from_ms} to "
            f"{row.posted_until_ms}; its postings run from {row.first_ms} to {row.last_ms}, {row.length_ms} ms in all, "
            f"{row.overlaps} of them into another one"
        )
        at_ms = next(at for at in (row.from_ms, row.first_ms, 0) if at is not None)
        yield Difference("interval", of, at_ms, row.length_ms, kept, sentence)


def terms(rows: Iterable[Terms]) -> Iterator[Difference]:
    """Terms: a posting has the GPUs, the account and a replica of its attempt's grant."""
    for row in rows:
        granted = "nobody granted it" if row.granted_gpus is None else f"granted were {row.granted_gpus} for {row.granted_account}"
        sentence = f"posting {row.number} of attempt {row.attempt} is of {row.gpus} GPUs a replica for {row.account}; {granted}"
        yield Difference("terms", f"posting/{row.number}", row.from_ms, row.granted_gpus or 0, row.gpus, sentence)


def conservation(rows: Iterable[Books], known_from_ms: Ms | None) -> Iterator[Difference]:
    """Conservation: allocated + unallocated + starting + unknown are never more than was available, where that is known."""
    for row in rows:
        if known_from_ms is not None and row.from_ms >= known_from_ms and row.idle < 0:
            used = row.available - row.idle
            sentence = (
                f"in the bucket {row.from_ms} {row.allocated} GPU-ms were allocated, {row.unallocated} unallocated, {row.starting} "
                f"starting and {row.unknown} unknown: {used} in all, of {row.available} available"
            )
            yield Difference("conservation", "capacity", row.from_ms, used, row.available, sentence)


def known_from(levels: Sequence[Level]) -> Ms | None:
    """The first bucket of which the capacity is known from its beginning; None: no capacity was reported."""
    return -(-levels[0].from_ms // BUCKET_MS) * BUCKET_MS if levels else None
