"""`big-jobs`: gangs of 64 to 512 GPUs beside many small jobs, for what fragmentation does. Never has anything of medium size."""

from functools import partial
from typing import Final

from allmende.simulator.model import TreeChange
from allmende.simulator.ports import Scenario
from allmende.simulator.scenarios import kinds
from allmende.simulator.scenarios.demand import Demand, Lab
from allmende.simulator.scenarios.people import Plan, Season, teams_of, tree_of
from allmende.simulator.scenarios.setting import cluster_of, debug_flow, gpus_max_of, load_of, split_pools, window_of

NODES: Final = 128

PLANS: Final = (
    Plan("giants", 600_000, (("giant-a", 400_000, 10), ("giant-b", 350_000, 10), ("giant-c", 250_000, 10))),
    Plan("crowd", 400_000, (("crowd-a", 400_000, 20), ("crowd-b", 350_000, 20), ("crowd-c", 250_000, 20))),
)
GIANT_SIZES: Final[kinds.Sizes] = ((64, 40), (128, 30), (256, 20), (512, 10))
CROWD_SIZES: Final[kinds.Sizes] = ((1, 45), (2, 15), (4, 15), (8, 25))


def big_jobs(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """Three teams with 60 % submit gangs only, three with 40 % jobs of at most a node."""
    window, cluster, teams = window_of(days), cluster_of(NODES), teams_of(PLANS)
    giant, small = partial(kinds.gang, sizes=GIANT_SIZES), partial(kinds.training, sizes=CROWD_SIZES)
    giants = {team.leaf: giant for team in teams if team.leaf.startswith("giant")}
    lab = Lab(
        seed=seed,
        teams=teams,
        seasons={team.leaf: Season() for team in teams},
        pools=split_pools(load_of(cluster.gpus, load_ppm), small, giants),
        flows=(debug_flow(lambda team: team.leaf.startswith("crowd")),),
        window=window,
        gpus_max=gpus_max_of(cluster.gpus),
    )
    notes = ("The giants submit gangs of 64 to 512 GPUs only, the crowd jobs of at most one node.",)
    return Scenario("big-jobs", cluster, (TreeChange(window.begin_ms, tree_of(PLANS)),), Demand(lab), window, notes)
