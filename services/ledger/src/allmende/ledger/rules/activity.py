"""Device activity by hour, out of cumulative readings: it informs and never bills (contract §3).

Readings are cumulative, so lost, repeated and late ones change nothing but how an advance over an hour's edge is divided: in
proportion. A reading without activity tells nothing, which is not the same as no activity.
"""

from collections.abc import Iterator
from typing import NamedTuple

from allmende.ledger.model import CounterKey
from allmende.proto.units import HOUR_MS, GpuMs, Ms


class Activity(NamedTuple):
    """What a counter's devices did in `[since_ms, since_ms + held_ms)`. `memory_gpu_ms` None: memory traffic is not known."""

    key: CounterKey
    since_ms: Ms
    held_ms: Ms
    used_gpu_ms: GpuMs
    busy_gpu_ms: GpuMs
    memory_gpu_ms: GpuMs | None


class Known(NamedTuple):
    """What the books say of a counter: its beginning, how far it is believed, and what was read of its activity before."""

    gpus: int
    since_ms: Ms
    held_ms: Ms
    read_ms: Ms
    busy_gpu_ms: GpuMs
    memory_gpu_ms: GpuMs | None


class Part(NamedTuple):
    """Activity of one attempt in the hour that begins at `hour_ms`."""

    cluster: str
    hour_ms: Ms
    attempt: str
    watched_gpu_ms: GpuMs
    busy_gpu_ms: GpuMs
    memory_gpu_ms: GpuMs | None


class Idle(NamedTuple):
    """An attempt that held GPUs without using them. `idle_gpu_ms`: in hours in which neither devices nor memory did anything."""

    attempt: str
    job: str
    user: str | None
    budget: str | None
    gpus: int
    granted_at_ms: Ms
    ended_at_ms: Ms | None
    watched_gpu_ms: GpuMs
    busy_gpu_ms: GpuMs
    idle_gpu_ms: GpuMs


def is_believed(said: Activity, known: Known) -> bool:
    """Whether a reading is new, agrees with the books, and says no more activity than there was time."""
    memory = said.memory_gpu_ms or 0
    return (
        said.since_ms == known.since_ms
        and known.read_ms < said.held_ms <= known.held_ms
        and said.used_gpu_ms == known.gpus * said.held_ms
        and known.busy_gpu_ms <= said.busy_gpu_ms <= said.used_gpu_ms
        and memory <= said.used_gpu_ms
        and (said.memory_gpu_ms is None or memory >= (known.memory_gpu_ms or 0))
    )


def parts(said: Activity, known: Known) -> Iterator[Part]:
    """A believed reading's advance, cut at hours; the parts add up to it exactly."""
    begin_ms, end_ms = said.since_ms + known.read_ms, said.since_ms + said.held_ms
    busy = said.busy_gpu_ms - known.busy_gpu_ms
    memory = None if said.memory_gpu_ms is None else said.memory_gpu_ms - (known.memory_gpu_ms or 0)
    at_ms = begin_ms
    while at_ms < end_ms:
        hour_ms = at_ms - at_ms % HOUR_MS
        until_ms = min(end_ms, hour_ms + HOUR_MS)
        before, after, whole = at_ms - begin_ms, until_ms - begin_ms, end_ms - begin_ms
        yield Part(
            said.key[0],
            hour_ms,
            said.key[1],
            known.gpus * (until_ms - at_ms),
            busy * after // whole - busy * before // whole,
            None if memory is None else memory * after // whole - memory * before // whole,
        )
        at_ms = until_ms
