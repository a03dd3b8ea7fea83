"""`ai2-lab`: 1,024 H100, 15 teams, 150 users, demand of 2.5 x capacity in a closed loop. Sources: docs/scenarios.md.

Chosen before any policy was measured on it. Never tuned to what a policy makes of it.
"""

import random
from collections.abc import Mapping
from typing import Final

from allmende.proto.units import DAY_MS, PPM_WHOLE, Ppm
from allmende.simulator.model import Job, TreeChange, Window
from allmende.simulator.ports import Scenario
from allmende.simulator.scenarios import kinds
from allmende.simulator.scenarios.demand import Burst, Demand, Flow, Lab, Pool
from allmende.simulator.scenarios.draws import WORKING_DAYS_A_WEEK, hit, mean_ms
from allmende.simulator.scenarios.people import Plan, Season, Team, drawn_season, teams_of, tree_of
from allmende.simulator.scenarios.setting import cluster_of, debug_flow, gpus_max_of, load_of, split_pools, window_of

NODES: Final = 128
PLANS: Final = (
    Plan(
        "language",
        400_000,
        (("pretraining", 450_000, 20), ("posttraining", 275_000, 14), ("agents", 175_000, 10), ("datasets", 100_000, 8)),
    ),
    Plan(
        "multimodal",
        320_000,
        (("vision-language", 531_250, 19), ("video", 250_000, 11), ("speech", 156_250, 9), ("documents", 62_500, 6)),
    ),
    Plan(
        "science",
        160_000,
        (("biology", 437_500, 10), ("climate", 312_500, 8), ("chemistry", 125_000, 6), ("materials", 125_000, 6)),
    ),
    Plan("foundations", 120_000, (("robotics", 500_000, 9), ("interpretability", 250_000, 7), ("safety", 250_000, 7))),
)
"""4 programmes, 15 teams of 2 to 18 % of the lab, 150 users."""

SESSIONS_A_DAY: Final = 0.15
"""Sessions of a user on a working day."""
GANG_PART: Final = 0.4
"""Of an active team's share, what its gangs would use up if none had to wait."""
FREE_JOB_PPM: Final[Ppm] = 310_000
"""`ai2-lab-joint`: the loop's jobs that have slice 0; by the sizes and runtimes of all kinds a fifth of submitted GPU-hours."""


def flows_of(gpus: int) -> tuple[Flow, ...]:
    """The open streams of a lab: debug jobs, sessions, gangs."""
    gpus_max = gpus_max_of(gpus)

    def gangs(team: Team) -> float:
        sizes = [(size, weight) for size, weight in kinds.GANG_SIZES if size <= gpus_max(team)]
        if not sizes:
            return 0.0
        # Larger ones are halved until they are small enough, as the recipe does.
        largest = sizes[-1][0]
        each = [(min(size, largest), weight) for size, weight in kinds.GANG_SIZES]
        work = sum(weight * size * mean_ms(*kinds.RUNTIMES[size]) for size, weight in each) / sum(weight for _size, weight in each)
        a_week = GANG_PART * team.weight_ppm / PPM_WHOLE * gpus * 7 * DAY_MS / work
        return a_week / WORKING_DAYS_A_WEEK

    return (
        debug_flow(),
        Flow("session", kinds.session, 0, lambda team: SESSIONS_A_DAY * len(team.users)),
        Flow("gang", kinds.gang, 0, gangs, outstanding_max=gpus_max, gangs=True),
    )


def _either(chance: random.Random, asked: kinds.Asked) -> Job:
    return kinds.free(chance, asked) if hit(chance, FREE_JOB_PPM) else kinds.training(chance, asked)


def pools_of(gpus: int, load_ppm: Ppm | None, *, joint: bool) -> tuple[Pool, ...]:
    """What is kept full. `joint`: waiting jobs of slice 0 count in their team's outstanding demand; if not, each kind by itself."""
    whole = load_of(gpus, load_ppm)
    return (Pool("loop", whole, {"": _either}),) if joint else split_pools(whole, kinds.training)


def lab_scenario(
    name: str,
    *,
    seed: int,
    window: Window,
    load_ppm: int | None,
    trees: tuple[TreeChange, ...],
    teams: tuple[Team, ...],
    seasons: Mapping[str, Season] | None = None,
    joint: bool = False,
    bursts: tuple[Burst, ...] = (),
    notes: tuple[str, ...] = (),
) -> Scenario:
    """A lab of 1,024 GPUs with these trees and teams; `seasons` replace the drawn ones of their teams."""
    cluster = cluster_of(NODES)
    drawn = {team.leaf: drawn_season(seed, team.leaf, window) for team in teams}
    lab = Lab(
        seed=seed,
        teams=teams,
        seasons=drawn | dict(seasons or {}),
        pools=pools_of(cluster.gpus, load_ppm, joint=joint),
        flows=flows_of(cluster.gpus),
        window=window,
        gpus_max=gpus_max_of(cluster.gpus),
        bursts=bursts,
    )
    return Scenario(name, cluster, trees, Demand(lab), window, notes)


def ai2_lab(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """The lab; jobs with slice 0 are kept at a fifth of the demand by themselves."""
    return _lab("ai2-lab", seed, days, load_ppm, joint=False)


def ai2_lab_joint(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """The same lab; starved jobs with slice 0 count in their team's outstanding demand."""
    return _lab("ai2-lab-joint", seed, days, load_ppm, joint=True)


def _lab(name: str, seed: int, days: int, load_ppm: int | None, *, joint: bool) -> Scenario:
    window = window_of(days)
    trees = (TreeChange(window.begin_ms, tree_of(PLANS)),)
    how = "count in" if joint else "are kept beside"
    notes = (f"Closed loop; waiting jobs with slice 0 {how} their team's allocated demand.",)
    return lab_scenario(
        name, seed=seed, window=window, load_ppm=load_ppm, trees=trees, teams=teams_of(PLANS), joint=joint, notes=notes
    )
