"""The ledger's postings against what the cluster's processes really held. Pure, exact."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from allmende.agent.audit.history import History
from allmende.proto.ledger import Posting
from allmende.proto.units import GpuMs, Ms


class BooksAudit(NamedTuple):
    """All three must be 0. `difference_gpu_ms` is the sum over all replicas of |posted - held|, so errors never cancel out."""

    difference_gpu_ms: GpuMs
    lost: int
    """Stretches of time that a replica held its GPUs and no posting covers."""
    duplicated: int
    """Postings that were there before: same number, or time of the same replica that is posted already."""


def audit_books(history: History, postings: Iterable[Posting]) -> BooksAudit:
    """Compare, replica by replica. A posting for what never ran, or with the wrong number of GPUs, is a difference too."""
    by_replica: dict[tuple[str, int], list[Posting]] = defaultdict(list)
    numbers: set[int] = set()
    duplicated = 0
    for posting in postings:
        duplicated += posting.number in numbers
        numbers.add(posting.number)
        by_replica[posting.attempt, posting.replica].append(posting)
    difference = lost = 0
    for attempt, ran in history.attempts.items():
        for replica in range(ran.replicas):
            mine = by_replica.pop((attempt, replica), [])
            held = ran.gpus_per_replica * (ran.ended_at_ms - ran.started_at_ms)
            difference += abs(sum(each.amount_gpu_ms for each in mine) - held)
            gaps, repeats = _coverage(mine, ran.started_at_ms, ran.ended_at_ms)
            lost += gaps
            duplicated += repeats
    unknown = sum(each.amount_gpu_ms for rest in by_replica.values() for each in rest)
    return BooksAudit(difference + unknown, lost, duplicated)


def _coverage(postings: Iterable[Posting], from_ms: Ms, to_ms: Ms) -> tuple[int, int]:
    """Gaps in `[from_ms, to_ms)`, and postings that begin before the one ahead of them has ended."""
    gaps = repeats = 0
    reached = from_ms
    seen: set[int] = set()
    for posting in sorted(postings, key=lambda each: (each.from_ms, each.to_ms)):
        gaps += posting.from_ms > reached
        # The same number twice is counted where numbers are compared.
        repeats += posting.number not in seen and posting.from_ms < reached and bool(seen)
        seen.add(posting.number)
        reached = max(reached, posting.to_ms)
    return gaps + (reached < to_ms), repeats
