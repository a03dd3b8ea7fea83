"""Cumulative counters of an attempt's replicas: what ticks and ends carry. Pure.

Never holds a delta: a lost, repeated or reordered tick is harmless (contract §3).
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from allmende.agent.sdk.backend import ReplicaPlace, Vitals
from allmende.proto.agent import Counter, UsageTick
from allmende.proto.units import Ms

# A counter is at most about 280 bytes of JSON: 200 of them stay below the 64 KiB that a stream takes, with room for the envelope.
COUNTERS_A_MESSAGE = 200


def counters_of(
    attempt: str,
    places: Iterable[ReplicaPlace],
    *,
    epoch: int,
    seq: int,
    since_ms: Ms,
    held_ms: Ms,
    gpus_per_replica: int,
    vitals: Vitals,
) -> tuple[Counter, ...]:
    """One counter a replica. `used_gpu_ms` is exactly `held_ms` x GPUs of the replica: held time is what is billed."""
    return tuple(
        Counter(
            attempt=attempt,
            replica=place.replica,
            epoch=epoch,
            seq=seq,
            since_ms=since_ms,
            held_ms=held_ms,
            used_gpu_ms=held_ms * gpus_per_replica,
            busy_gpu_ms=vitals.busy_gpu_ms,
            checkpoint_at_ms=vitals.checkpoint_at_ms,
        )
        for place in places
    )


def tick_messages(cluster: str, node: str, at_ms: Ms, counters: Iterable[Counter]) -> Iterator[UsageTick]:
    """The ticks of one node: one message, more where it would be too large, one without counters when nothing runs."""
    rest = iter(counters)
    first = tuple(islice(rest, COUNTERS_A_MESSAGE))
    yield UsageTick(cluster=cluster, node=node, at_ms=at_ms, counters=first)
    while more := tuple(islice(rest, COUNTERS_A_MESSAGE)):
        yield UsageTick(cluster=cluster, node=node, at_ms=at_ms, counters=more)
