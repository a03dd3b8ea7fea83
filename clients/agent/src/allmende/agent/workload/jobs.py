"""What one job looks like: size, run time, slice, habits. Pure: a `random.Random` is an argument.

Sizes and run times follow what public GPU traces (Philly 2017, Helios 2020) have in common: most jobs use one GPU and end within
the hour, a few use hundreds, run times are lognormal with a tail of days, and most GPU time goes to few jobs.
"""

from random import Random
from typing import NamedTuple

from allmende.agent.synthetic.chance import lognormal_ms
from allmende.agent.synthetic.command import Command
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Ms
from allmende.proto.user import DEFAULT_SLICE_CAP_MS, JobSubmitted, Kind, Payload

GPUS_PER_NODE = 8
# (GPUs, jobs in 10,000, median and 95th percentile of the run time): larger jobs run longer, but less unevenly.
_SIZES: tuple[tuple[int, int, Ms, Ms], ...] = (
    (1, 6_865, 50 * MINUTE_MS, 8 * HOUR_MS),
    (2, 1_150, 50 * MINUTE_MS, 8 * HOUR_MS),
    (4, 850, 60 * MINUTE_MS, 10 * HOUR_MS),
    (8, 800, 90 * MINUTE_MS, 10 * HOUR_MS),
    (16, 160, 2 * HOUR_MS, 12 * HOUR_MS),
    (32, 80, 3 * HOUR_MS, 16 * HOUR_MS),
    (64, 45, 3 * HOUR_MS, 16 * HOUR_MS),
    (128, 25, 4 * HOUR_MS, 24 * HOUR_MS),
    (256, 25, 4 * HOUR_MS, 24 * HOUR_MS),
)
_LONGEST_MS: Ms = 5 * DAY_MS
_SHORTEST_MS: Ms = 30 * SECOND_MS

# Contract §10: debug = at most 8 GPUs and a slice of at most 15 minutes.
DEBUG_GPUS = 8
DEBUG_SLICE_MS: Ms = 15 * MINUTE_MS
_DEBUG_IN_100 = 20
_DEBUG_SIZES = ((1, 70), (2, 15), (4, 8), (8, 7))

# What people ask for, in jobs of 100: an hour is the usual advice.
_SLICES = ((30 * MINUTE_MS, 30), (HOUR_MS, 40), (2 * HOUR_MS, 20), (4 * HOUR_MS, 8), (8 * HOUR_MS, 2))
_NOT_RESUMABLE_IN_100 = 12
_SESSIONS_IN_100 = 3
_CRASHING_IN_100 = 4
_OVERRUNNING_IN_100 = 2
_SAVING_ON_SIGTERM_IN_100 = 50
_PRIORITIES = ((0, 80), (10, 15), (-10, 5))


class Shape(NamedTuple):
    """A job that nobody has submitted yet. All lengths are clock time."""

    replicas: int
    gpus_per_replica: int
    slice_ms: Ms
    stated_runtime_ms: Ms
    max_runtime_ms: Ms | None
    resumable: bool
    priority: int
    kind: Kind
    command: Command

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.gpus_per_replica

    @property
    def debug(self) -> bool:
        """True for what contract §10 calls debug."""
        return self.gpus <= DEBUG_GPUS and 0 < self.slice_ms <= DEBUG_SLICE_MS


def split(gpus: int, gpus_per_node: int = GPUS_PER_NODE) -> tuple[int, int]:
    """Replicas and GPUs of each: one replica where it fits a node, else the largest equal parts that do (12 GPUs: 2 x 6)."""
    if gpus <= gpus_per_node:
        return 1, gpus
    each = next(size for size in range(gpus_per_node, 0, -1) if gpus % size == 0)
    return gpus // each, each


def draw_allocated(chance: Random, largest_gpus: int) -> Shape:
    """A job with a slice, of at most so many GPUs; a fifth of them debug jobs."""
    if chance.randrange(100) < _DEBUG_IN_100:
        return _draw_debug(chance, largest_gpus)
    gpus, runtime_ms = _draw_size(chance, largest_gpus)
    stated_ms = _up_to(runtime_ms * chance.randint(100, 160) // 100, MINUTE_MS)
    session = gpus == 1 and chance.randrange(100) < _SESSIONS_IN_100
    whole_slice_ms = _up_to(stated_ms, 15 * MINUTE_MS)
    # A job that cannot resume loses everything at an eviction: its slice covers it all, as far as slices go.
    resumable = whole_slice_ms > DEFAULT_SLICE_CAP_MS or not (session or chance.randrange(100) < _NOT_RESUMABLE_IN_100)
    slice_ms = min(_pick(chance, _SLICES), whole_slice_ms) if resumable else whole_slice_ms
    # Twice a slice at least, so that every slice saves something in spite of its start.
    checkpoint_ms = min(slice_ms // 2, 30 * MINUTE_MS) if resumable else None
    return _shape(chance, gpus, runtime_ms, stated_ms, slice_ms, checkpoint_ms, "session" if session else "batch")


def draw_unallocated(chance: Random, largest_gpus: int) -> Shape:
    """A job with slice 0: interruptible from its first second, so it saves often."""
    gpus, runtime_ms = _draw_size(chance, min(largest_gpus, GPUS_PER_NODE))
    stated_ms = _up_to(runtime_ms * chance.randint(100, 160) // 100, MINUTE_MS)
    return _shape(chance, gpus, runtime_ms, stated_ms, 0, 10 * MINUTE_MS, "batch")


def submission(shape: Shape, *, user: str, job: str, budget: str | None, name: str) -> JobSubmitted:
    """The message that submits a job."""
    return JobSubmitted(
        user=user,
        job=job,
        name=name,
        budget=budget,
        replicas=shape.replicas,
        gpus_per_replica=shape.gpus_per_replica,
        slice_ms=shape.slice_ms,
        stated_runtime_ms=shape.stated_runtime_ms,
        max_runtime_ms=shape.max_runtime_ms,
        resumable=shape.resumable,
        priority=shape.priority,
        kind=shape.kind,
        payload=Payload(command=shape.command.line()),
    )


def _draw_debug(chance: Random, largest_gpus: int) -> Shape:
    gpus = min(_pick(chance, _DEBUG_SIZES), largest_gpus)
    runtime_ms = lognormal_ms(_open_uniform(chance), median_ms=4 * MINUTE_MS, p95_ms=13 * MINUTE_MS)
    runtime_ms = min(max(runtime_ms, _SHORTEST_MS), DEBUG_SLICE_MS - MINUTE_MS)
    return _shape(chance, gpus, runtime_ms, DEBUG_SLICE_MS, DEBUG_SLICE_MS, None, "batch")


def _draw_size(chance: Random, largest_gpus: int) -> tuple[int, Ms]:
    sizes = [row for row in _SIZES if row[0] <= largest_gpus] or [_SIZES[0]]
    gpus, _, median_ms, p95_ms = chance.choices(sizes, weights=[row[1] for row in sizes])[0]
    runtime_ms = lognormal_ms(_open_uniform(chance), median_ms=median_ms, p95_ms=p95_ms)
    return gpus, min(max(runtime_ms, _SHORTEST_MS), _LONGEST_MS)


def _shape(chance: Random, gpus: int, runtime_ms: Ms, stated_ms: Ms, slice_ms: Ms, checkpoint_ms: Ms | None, kind: Kind) -> Shape:
    crash_after_ms = runtime_ms * chance.randint(1, 99) // 100 if chance.randrange(100) < _CRASHING_IN_100 else None
    overruns = kind == "batch" and slice_ms != 0 and chance.randrange(100) < _OVERRUNNING_IN_100
    replicas, gpus_per_replica = split(gpus)
    return Shape(
        replicas=replicas,
        gpus_per_replica=gpus_per_replica,
        slice_ms=slice_ms,
        stated_runtime_ms=stated_ms,
        max_runtime_ms=max(runtime_ms * 7 // 10, slice_ms) if overruns else None,
        resumable=checkpoint_ms is not None,
        priority=_pick(chance, _PRIORITIES),
        kind=kind,
        command=Command(
            runtime_ms=runtime_ms,
            checkpoint_ms=checkpoint_ms,
            crash_after_ms=crash_after_ms,
            save_on_sigterm=checkpoint_ms is not None and chance.randrange(100) < _SAVING_ON_SIGTERM_IN_100,
        ),
    )


def _pick(chance: Random, table: tuple[tuple[int, int], ...]) -> int:
    return chance.choices([value for value, _ in table], weights=[weight for _, weight in table])[0]


def _open_uniform(chance: Random) -> float:
    """Strictly between 0 and 1, where quantiles are finite."""
    return (chance.getrandbits(48) + 0.5) / (1 << 48)


def _up_to(length_ms: Ms, step_ms: Ms) -> Ms:
    return -(-length_ms // step_ms) * step_ms
