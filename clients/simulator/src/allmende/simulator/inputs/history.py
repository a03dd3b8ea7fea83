"""What every importer makes of a history: all that `listed.scenario_from` wants. Decides nothing."""

from typing import NamedTuple

from allmende.proto.budget import Budget
from allmende.simulator.model import Cluster, Job


class History(NamedTuple):
    """A history, ready to be run."""

    cluster: Cluster
    budgets: tuple[Budget, ...]
    jobs: list[Job]
    """In the order of submission, at the history's own instants."""
