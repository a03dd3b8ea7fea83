"""A cluster's own log, read into intervals: who held which GPUs when, and when they were there to be held. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from allmende.agent.synthetic.truth import AnyRecord, Closed, Ended, NodeWas, Opened, Signalled, Started
from allmende.proto.units import GpuMs, Ms


class Ran(NamedTuple):
    """One attempt as it really was. `replicas` x `gpus_per_replica` GPUs were held in `[started_at_ms, ended_at_ms)`."""

    attempt: str
    job: str
    budget: str | None
    slice_ms: Ms
    replicas: int
    gpus_per_replica: int
    started_at_ms: Ms
    ended_at_ms: Ms
    signals: tuple[Signalled, ...]
    by: str
    exit_code: int | None
    lost_ms: Ms
    """Productive time that was not saved when it ended; 0 where the job ended by itself."""

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.gpus_per_replica


class Capacity(NamedTuple):
    """A node's GPUs in `[from_ms, to_ms)`."""

    from_ms: Ms
    to_ms: Ms
    installed_gpus: int
    healthy_gpus: int


class History(NamedTuple):
    """All of a cluster's log, from `from_ms` until `to_ms`. An attempt without end in the log held its GPUs until `to_ms`."""

    from_ms: Ms
    to_ms: Ms
    attempts: dict[str, Ran]
    capacity: tuple[Capacity, ...]
    unconfirmed: int


def read(records: Iterable[AnyRecord]) -> History:
    """Read a log.

    Raises:
        ValueError: the log contradicts itself (an attempt starts twice, or ends without start), or is empty.
    """
    all_records = list(records)
    if not all_records or not isinstance(all_records[0], Opened):
        raise ValueError("the log does not begin with the opening of its cluster")
    starts: dict[str, Started] = {}
    ends: dict[str, Ended] = {}
    signals: dict[str, list[Signalled]] = defaultdict(list)
    unconfirmed = 0
    for record in all_records:
        match record:
            case Started():
                if record.attempt in starts:
                    raise ValueError(f"attempt {record.attempt} starts twice")
                starts[record.attempt] = record
            case Ended():
                if record.attempt not in starts or record.attempt in ends:
                    raise ValueError(f"attempt {record.attempt} ends without a start, or twice")
                ends[record.attempt] = record
            case Signalled():
                signals[record.attempt].append(record)
            case Closed():
                unconfirmed = record.unconfirmed
            case _:
                pass
    to_ms = max(record.at_ms for record in all_records)
    attempts = {name: _ran(start, ends.get(name), tuple(signals[name]), to_ms) for name, start in starts.items()}
    return History(all_records[0].at_ms, to_ms, attempts, tuple(_capacity(all_records, to_ms)), unconfirmed)


def overlap_ms(from_ms: Ms, to_ms: Ms, since_ms: Ms, until_ms: Ms) -> Ms:
    """How much of `[from_ms, to_ms)` lies in `[since_ms, until_ms)`."""
    return max(0, min(to_ms, until_ms) - max(from_ms, since_ms))


def held_gpu_ms(ran: Ran, since_ms: Ms, until_ms: Ms) -> GpuMs:
    """What an attempt held in an interval, in GPU-ms."""
    return ran.gpus * overlap_ms(ran.started_at_ms, ran.ended_at_ms, since_ms, until_ms)


def _ran(start: Started, end: Ended | None, signals: tuple[Signalled, ...], to_ms: Ms) -> Ran:
    return Ran(
        attempt=start.attempt,
        job=start.job,
        budget=start.budget,
        slice_ms=start.slice_ms,
        replicas=len(start.nodes),
        gpus_per_replica=start.gpus_per_replica,
        started_at_ms=start.at_ms,
        ended_at_ms=to_ms if end is None else end.at_ms,
        signals=signals,
        by="" if end is None else end.by,
        exit_code=None if end is None else end.exit_code,
        lost_ms=0 if end is None or end.by == "itself" else end.progress_ms - end.saved_ms,
    )


def _capacity(records: Iterable[AnyRecord], to_ms: Ms) -> Iterable[Capacity]:
    last: dict[str, NodeWas] = {}
    for record in records:
        if isinstance(record, NodeWas):
            if before := last.get(record.node):
                yield Capacity(before.at_ms, record.at_ms, before.installed_gpus, before.healthy_gpus)
            last[record.node] = record
    for before in last.values():
        yield Capacity(before.at_ms, to_ms, before.installed_gpus, before.healthy_gpus)
