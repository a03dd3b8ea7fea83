"""What a job of each kind looks like: size, runtime, slice, saves. docs/scenarios.md says where every number comes from.

Never says when a job is submitted nor how many there are.
"""

import random
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Ms, Ppm
from allmende.simulator.model import Job
from allmende.simulator.scenarios.draws import hit, picked, spread_ms, up_to

GPUS_A_NODE: Final = 8
SLICE_CAP_MS: Final = 8 * HOUR_MS

Sizes: TypeAlias = tuple[tuple[int, int], ...]

TRAINING_SIZES: Final[Sizes] = ((1, 40), (2, 10), (4, 10), (8, 24), (16, 8), (32, 5), (64, 3))
FREE_SIZES: Final = ((1, 40), (2, 10), (4, 10), (8, 24), (16, 8), (32, 5))
DEBUG_SIZES: Final = ((1, 45), (2, 15), (4, 15), (8, 25))
SESSION_SIZES: Final = ((1, 60), (2, 20), (4, 10), (8, 10))
GANG_SIZES: Final = ((128, 50), (256, 30), (512, 20))

RUNTIMES: Final[dict[int, tuple[Ms, Ms]]] = {
    1: (1 * HOUR_MS, 20 * HOUR_MS),
    2: (1 * HOUR_MS, 20 * HOUR_MS),
    4: (3 * HOUR_MS, 40 * HOUR_MS),
    8: (5 * HOUR_MS, 48 * HOUR_MS),
    16: (6 * HOUR_MS, 60 * HOUR_MS),
    32: (8 * HOUR_MS, 60 * HOUR_MS),
    64: (8 * HOUR_MS, 60 * HOUR_MS),
    128: (10 * HOUR_MS, 40 * HOUR_MS),
    256: (12 * HOUR_MS, 48 * HOUR_MS),
    512: (14 * HOUR_MS, 48 * HOUR_MS),
}
"""Median and 95th percentile of the runtime, by GPUs."""
SLICES: Final = ((30 * MINUTE_MS, 15), (HOUR_MS, 25), (2 * HOUR_MS, 30), (4 * HOUR_MS, 20), (8 * HOUR_MS, 10))
GANG_SLICES: Final = ((4 * HOUR_MS, 40), (8 * HOUR_MS, 60))
DEBUG_SLICES: Final = ((5 * MINUTE_MS, 20), (10 * MINUTE_MS, 30), (15 * MINUTE_MS, 50))
PRIORITIES: Final = ((0, 25), (1, 55), (2, 20))
"""Low, normal, high: orders jobs inside a leaf; between teams only in the old world."""

NOT_RESUMABLE_PPM: Final[Ppm] = 150_000
FAILS_PPM: Final[Ppm] = 150_000
DEBUG_FAILS_PPM: Final[Ppm] = 250_000


class Asked(NamedTuple):
    """What a job is made for."""

    job: str
    at_ms: Ms
    leaf: str
    users: tuple[str, ...]
    gpus_max: int
    """The largest job that its team submits."""
    turn: int
    """Its number in its team's stream, from 0."""


Recipe: TypeAlias = Callable[[random.Random, Asked], Job]


def some_user(chance: random.Random, users: tuple[str, ...]) -> str:
    """One of the users; the n-th submits 1/n as much as the first (a few submit most, as in every trace)."""
    return picked(chance, [(user, 5_040 // rank) for rank, user in enumerate(users, 1)])


def shaped(gpus: int) -> tuple[int, int]:
    """(replicas, GPUs of each): whole nodes from 8 GPUs on."""
    return (1, gpus) if gpus <= GPUS_A_NODE else (gpus // GPUS_A_NODE, GPUS_A_NODE)


def _size(chance: random.Random, sizes: Sizes, gpus_max: int) -> int:
    gpus = picked(chance, sizes)
    while gpus > gpus_max:
        gpus //= 2
    return gpus


def saves_ms(chance: random.Random, slice_ms: Ms) -> Ms:
    """Work between two saves: between a third of the slice and the whole of it."""
    return chance.randrange(slice_ms // 3, slice_ms + 1) // SECOND_MS * SECOND_MS


def training(chance: random.Random, asked: Asked, sizes: Sizes = TRAINING_SIZES) -> Job:
    """A batch job of up to 64 GPUs. One in seven up to 16 GPUs cannot resume: its slice is as long as it runs, at most 8 h."""
    gpus = _size(chance, sizes, asked.gpus_max)
    replicas, each = shaped(gpus)
    runtime_ms = spread_ms(chance, *RUNTIMES[gpus], least_ms=20 * MINUTE_MS, most_ms=4 * DAY_MS)
    slice_ms = min(picked(chance, SLICES), max(30 * MINUTE_MS, up_to(runtime_ms, 30 * MINUTE_MS)))
    resumable = gpus > 16 or not hit(chance, NOT_RESUMABLE_PPM)
    if not resumable:
        runtime_ms = min(runtime_ms, SLICE_CAP_MS)
        slice_ms = up_to(runtime_ms, 5 * MINUTE_MS)
    return Job(
        job=asked.job,
        submitted_at_ms=asked.at_ms,
        user=some_user(chance, asked.users),
        budget=asked.leaf,
        replicas=replicas,
        gpus_per_replica=each,
        runtime_ms=runtime_ms,
        slice_ms=slice_ms,
        resumable=resumable,
        priority=picked(chance, PRIORITIES),
        save_every_ms=saves_ms(chance, slice_ms) if resumable else None,
        fails=hit(chance, FAILS_PPM),
        busy_ppm=chance.randrange(900_000, 1_000_001),
        tag="training",
    )


def gang(chance: random.Random, asked: Asked, sizes: Sizes = GANG_SIZES) -> Job:
    """A job of many whole nodes, 128 to 512 GPUs; always resumable, with long slices."""
    gpus = _size(chance, sizes, asked.gpus_max)
    slice_ms = picked(chance, GANG_SLICES)
    replicas, each = shaped(gpus)
    return Job(
        job=asked.job,
        submitted_at_ms=asked.at_ms,
        user=some_user(chance, asked.users),
        budget=asked.leaf,
        replicas=replicas,
        gpus_per_replica=each,
        runtime_ms=spread_ms(chance, *RUNTIMES[gpus], least_ms=HOUR_MS, most_ms=3 * DAY_MS),
        slice_ms=slice_ms,
        priority=picked(chance, ((1, 50), (2, 50))),
        save_every_ms=saves_ms(chance, slice_ms),
        fails=hit(chance, FAILS_PPM),
        busy_ppm=chance.randrange(900_000, 1_000_001),
        tag="gang",
    )


def free(chance: random.Random, asked: Asked) -> Job:
    """Slice 0, up to 32 GPUs: charged to nobody, interruptible at any time; saves every 10 to 30 minutes."""
    gpus = _size(chance, FREE_SIZES, asked.gpus_max)
    replicas, each = shaped(gpus)
    return Job(
        job=asked.job,
        submitted_at_ms=asked.at_ms,
        user=some_user(chance, asked.users),
        budget=None,
        replicas=replicas,
        gpus_per_replica=each,
        runtime_ms=spread_ms(chance, *RUNTIMES[gpus], least_ms=20 * MINUTE_MS, most_ms=4 * DAY_MS),
        slice_ms=0,
        priority=0,
        save_every_ms=chance.randrange(10 * MINUTE_MS, 30 * MINUTE_MS + 1, SECOND_MS),
        fails=hit(chance, FAILS_PPM),
        busy_ppm=chance.randrange(900_000, 1_000_001),
        tag="free",
    )


def debug(chance: random.Random, asked: Asked) -> Job:
    """At most 8 GPUs, slice at most 15 minutes: a try, a test, a short evaluation. Seven in ten cannot resume: done in one."""
    gpus = _size(chance, DEBUG_SIZES, asked.gpus_max)
    slice_ms = picked(chance, DEBUG_SLICES)
    resumable = hit(chance, 300_000)
    runtime_ms = spread_ms(chance, 4 * MINUTE_MS, 20 * MINUTE_MS, least_ms=30 * SECOND_MS, most_ms=60 * MINUTE_MS)
    if not resumable:
        runtime_ms = min(runtime_ms, slice_ms)
    return Job(
        job=asked.job,
        submitted_at_ms=asked.at_ms,
        user=some_user(chance, asked.users),
        budget=asked.leaf,
        replicas=1,
        gpus_per_replica=gpus,
        runtime_ms=runtime_ms,
        slice_ms=slice_ms,
        resumable=resumable,
        priority=1,
        save_every_ms=saves_ms(chance, slice_ms) if resumable else None,
        fails=hit(chance, DEBUG_FAILS_PPM),
        busy_ppm=chance.randrange(300_000, 900_001),
        tag="debug",
    )


def session(chance: random.Random, asked: Asked) -> Job:
    """Somebody at a keyboard for some hours; cannot resume, so its slice is as long as it runs. Its devices are mostly idle."""
    runtime_ms = spread_ms(chance, 3 * HOUR_MS, 8 * HOUR_MS, least_ms=20 * MINUTE_MS, most_ms=SLICE_CAP_MS)
    return Job(
        job=asked.job,
        submitted_at_ms=asked.at_ms,
        user=some_user(chance, asked.users),
        budget=asked.leaf,
        replicas=1,
        gpus_per_replica=_size(chance, SESSION_SIZES, asked.gpus_max),
        runtime_ms=runtime_ms,
        slice_ms=up_to(runtime_ms, 5 * MINUTE_MS),
        resumable=False,
        priority=2,
        kind="session",
        busy_ppm=chance.randrange(50_000, 400_001),
        tag="session",
    )
