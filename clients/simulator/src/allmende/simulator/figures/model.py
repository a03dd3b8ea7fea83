"""The figures' values: what `measure` returns, down to each hour, and what the run itself cost.

Amounts that people read are GPU-hours; all ratios and seconds are floats of six decimals, made by the last division. The hourly
part keeps exact GPU-milliseconds. None stands for a quotient without a divisor. Nothing is computed here.
"""

from msgspec import Struct

from allmende.proto.units import GpuMs, Ms


class Waits(Struct, frozen=True, kw_only=True):
    """Seconds from submission to the first start: nearest-rank percentiles over the jobs of a class. None: no such jobs."""

    p50: float | None
    p90: float | None
    max: float | None
    jobs: int
    never_started: int
    """Of `jobs`: those that had not started at the end. They count with what they have waited so far."""


class Team(Struct, frozen=True, kw_only=True):
    """One leaf. Ratios None: nothing was owed to it."""

    budget: str
    effective_share_ppm: int | None
    """At the end of the window; None: unset, or no leaf of that tree."""
    delivered_owed_plain: float | None
    delivered_owed_strict: float | None
    delivered_owed_weekly: float | None
    entitled_gpu_hours: float
    demand_gpu_hours: float
    owed_gpu_hours: float
    delivered_gpu_hours: float
    busy_gpu_hours: float
    lost_gpu_hours: float
    evictions: int
    waits_s: Waits


class Fragmentation(Struct, frozen=True, kw_only=True):
    """Means over the samples of room. `broken_share`: part of the free GPUs that lies on nodes which are not wholly free."""

    samples: int
    free_gpus_mean: float | None
    free_on_empty_nodes_mean: float | None
    broken_share: float | None
    waiting_jobs_mean: float | None
    waiting_gpus_mean: float | None
    waiting_gpus_max: int | None


class NeverStarted(Struct, frozen=True, kw_only=True):
    """A large allocated job that had not started at the end, with the numbers that say why.

    `why`: `promise overdue`, `promised` (and not yet due), `over budget` (its leaf's ratio is at least 1), or `waiting`.
    """

    job: str
    budget: str
    gpus: int
    waited_s: float
    promised_by_ms: Ms | None
    charged_gpu_hours: float | None
    entitled_gpu_hours: float | None
    ratio: float | None
    why: str


class Tagged(Struct, frozen=True, kw_only=True):
    """What the jobs of one kind of a scenario got, allocated or not."""

    tag: str
    jobs: int
    held_gpu_hours: float
    busy_gpu_hours: float
    evictions: int


class TeamHours(Struct, frozen=True, kw_only=True):
    """One leaf's hours, exact. `past_slice` is the part of `delivered` after `protected_until`."""

    budget: str
    entitled: tuple[GpuMs, ...]
    demand: tuple[GpuMs, ...]
    owed: tuple[GpuMs, ...]
    delivered: tuple[GpuMs, ...]
    past_slice: tuple[GpuMs, ...]


class Hourly(Struct, frozen=True, kw_only=True):
    """Hour by hour, counted from `from_ms`; the last may be shorter. Amounts in GPU-milliseconds."""

    from_ms: Ms
    to_ms: Ms
    available: tuple[GpuMs, ...]
    unallocated: tuple[GpuMs, ...]
    starting: tuple[GpuMs, ...]
    evictions: tuple[int, ...]
    teams: tuple[TeamHours, ...]


class Figures(Struct, frozen=True, kw_only=True):
    """The figures of contract §10 over `[measured_from_ms, measured_to_ms)`. Names that the demo has too mean the same."""

    policy: str
    window_from_ms: Ms
    window_to_ms: Ms
    measured_to_ms: Ms
    """Earlier than `window_to_ms` where the run was cut short."""
    gpus: int

    jobs_submitted: int
    jobs_started: int
    jobs_finished: int
    outcomes: dict[str, int]
    """How many jobs ended in which way; `open` had not ended."""

    availability: float | None
    occupancy: float | None
    utilisation: float | None
    unallocated_share: float | None
    demand: float | None
    """GPU time that allocated jobs asked for, running or waiting, for each that was available."""
    delivered_owed_plain: float | None
    delivered_owed_strict: float | None
    delivered_owed_weekly: float | None
    teams_owed: int
    teams_at_95: int
    worst_team: float | None
    worst_team_name: str | None
    teams_without_owed: tuple[str, ...]

    delivered_gpu_hours: float
    unallocated_gpu_hours: float
    starting_gpu_hours: float
    lost_gpu_hours: float
    lost_fraction: float | None
    lost_fraction_allocated: float | None
    lost_fraction_unallocated: float | None
    lost_to_failures_fraction: float | None
    goodput_gpu_hours: float
    goodput: float | None

    evictions: int
    evictions_allocated: int
    evictions_per_1000_gpu_hours: float | None
    evictions_per_1000_gpu_hours_allocated: float | None
    evictions_most: int
    evictions_most_allocated: int
    slice_violations: int

    promises_made: int
    promises_kept: int
    promises_broken: int
    promises_open: int
    promises_withdrawn: int
    promises_moved_by_failure: int

    waits_s: dict[str, Waits]
    teams: tuple[Team, ...]
    tags: tuple[Tagged, ...]
    fragmentation: Fragmentation
    large_never_started: tuple[NeverStarted, ...]
    events: int
    looks: int
    hourly: Hourly
    """Not in the JSON; the CSV and the page show it."""

    @property
    def partial(self) -> bool:
        """Whether the run was cut short."""
        return self.measured_to_ms < self.window_to_ms


class Cost(Struct, frozen=True, kw_only=True):
    """What the run cost on the machine it ran on: the only figures that differ between two runs of the same history."""

    runtime_s: float
    peak_mib: float
    events: int
    ms_per_event: float | None
