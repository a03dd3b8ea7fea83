"""Levels of priority, as Ai2 describes the world before: whoever says "high" displaces whoever did not, unless that one opted out.

Three levels by a job's own number (0 low, 1 normal, 2 and more high). A job of a higher level displaces work of lower ones at once,
the lowest level first, then as few as possible and those that began last. Protected from that is what can't resume, sessions, and
what its owner parks; protected GPUs count against a limit for each team at once. Inside a level first in, first out, with backfill.
What is protected is decided by the job alone: no fairness between teams. Never looks at slices.

Where the description is silent, the choice favours this world: estimates are perfect (`backfill`); room that victims leave is kept
for whom they left for; a job at its team's limit delays nobody; and one that is larger than the limit runs unprotected instead of
never, and ends as preempted if it is displaced and can't resume.
"""

from math import prod

from msgspec import Struct

from allmende.proto.tree import effective_share, paths
from allmende.proto.units import MINUTE_MS, PPM_WHOLE, Ms, Ppm
from allmende.simulator.model import Cluster, Job, TreeChange
from allmende.simulator.policies.backfill import Backfill
from allmende.simulator.policies.queue import Kind

NO_TEAM = ""
"""Who charges no leaf of the tree: all of them together are one team without a share."""

PARKED = "parked"
"""The tag of jobs that are there to keep GPUs."""


class Settings(Struct, frozen=True, kw_only=True):
    """What may be set. Lengths in milliseconds."""

    levels: int = 3
    """Levels of priority: a job's number, at least 0 and at most one less than this."""
    grace_ms: Ms = 2 * MINUTE_MS
    """Notice of a displaced job, and of one that reached its maximum runtime."""
    limit_factor_ppm: Ppm = PPM_WHOLE
    """A team's protected GPUs at once, in parts per million of its share of all installed GPUs; rounded up to whole nodes, at least
    one."""
    backfill_depth: int = 1_000
    """How many jobs from the head of the queue may be started before their turn; twice the default of Slurm's `bf_max_job_test`."""


class Priority(Backfill):
    """Levels of priority on one cluster."""

    name = "priority"

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self._settings, self._cluster = settings, cluster.cluster
        self._node_gpus = max((node.gpus for node in cluster.nodes), default=1)
        self._limits: dict[str, int] = {NO_TEAM: self._node_gpus}
        super().__init__(cluster, settings.levels, settings.backfill_depth, settings.grace_ms)

    def tree(self, change: TreeChange) -> None:
        """A tree of budgets is in force from now on, and with it other limits. Whom they meet keeps what it has."""
        budgets = {each.budget: each for each in change.budgets}
        self._limits = {NO_TEAM: self._node_gpus}
        for name, path in paths(budgets).items():
            shares, is_set = effective_share(path, budgets, self._cluster)
            self._limits[name] = self._limit(shares if is_set else (0,))
        super().tree(change)

    def kind_of(self, job: Job) -> Kind:
        """Its level, and the team that answers for it where it is protected."""
        level = min(max(job.priority, 0), self._settings.levels - 1)
        team = job.budget if job.budget is not None and job.budget in self.leaves else NO_TEAM
        opts_out = not job.resumable or job.kind == "session" or job.tag == PARKED
        return Kind(level, team if opts_out and job.gpus <= self.limit_of(team) else None)

    def limit_of(self, team: str) -> int:
        """GPUs that the team's protected work may hold at once."""
        return self._limits.get(team, self._node_gpus)

    def _limit(self, shares: tuple[Ppm, ...]) -> int:
        whole = PPM_WHOLE ** (len(shares) + 1) * self._node_gpus
        gpus = self.cluster.gpus * prod(shares) * self._settings.limit_factor_ppm
        nodes: int = -(-gpus // whole)
        return max(1, nodes) * self._node_gpus
