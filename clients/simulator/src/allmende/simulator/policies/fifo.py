"""First in, first out with EASY backfill, as most clusters run today: the plainest world to compare with.

All jobs are alike: no levels, no teams, no evictions; only a maximum runtime ends a job before it is done. It is better than the
real thing in one respect: it knows exactly how long each job will work, where real ones know time limits that people set too high
(`backfill`). A job that needs more than what is healthy stands aside until nodes return, as Slurm lets it. Never displaces anybody.
"""

from msgspec import Struct

from allmende.proto.units import MINUTE_MS, Ms
from allmende.simulator.model import Cluster
from allmende.simulator.policies.backfill import Backfill


class Settings(Struct, frozen=True, kw_only=True):
    """What may be set. Lengths in milliseconds."""

    backfill_depth: int = 1_000
    """How many jobs from the head of the queue may be started before their turn; twice the default of Slurm's `bf_max_job_test`."""
    grace_ms: Ms = 2 * MINUTE_MS
    """Notice of a job that reached its maximum runtime."""


class Fifo(Backfill):
    """FIFO with backfill on one cluster."""

    name = "fifo"
    promises = True

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        super().__init__(cluster, 1, settings.backfill_depth, settings.grace_ms)
