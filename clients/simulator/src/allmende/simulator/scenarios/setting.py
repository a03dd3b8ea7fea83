"""What all made-up labs have in common: nodes, failures, warm-up, load, largest jobs, debug jobs. Sources: docs/scenarios.md.

Never decides how many teams there are nor what they submit beside debug jobs.
"""

from collections.abc import Callable, Mapping
from typing import Final

from allmende.proto.units import DAY_MS, HOUR_MS, PPM_WHOLE, Ms, Ppm
from allmende.simulator.model import ORIGIN_MS, Cluster, Failures, NodeSpec, Window
from allmende.simulator.scenarios import kinds
from allmende.simulator.scenarios.demand import Flow, Pool
from allmende.simulator.scenarios.kinds import Recipe
from allmende.simulator.scenarios.people import Team

LOAD_PPM: Final[Ppm] = 2_500_000
ALLOCATED_PPM: Final[Ppm] = 800_000
"""Of the demand; the rest has slice 0."""
WARM_UP_MS: Final[Ms] = 7 * DAY_MS

# One node in 154 days: 6.5 failures in 1,000 node-days. Repairs: median 3 h, 95 % within two days.
FAILURES: Final = Failures(mean_between_ms=1_000 * DAY_MS * 10 // 65, repair_median_ms=3 * HOUR_MS, repair_p95_ms=48 * HOUR_MS)

DEBUG_A_DAY: Final = 4.0
"""Debug jobs of a user on a working day."""
DEBUG_GPUS_A_USER: Final = 2
"""GPUs of debug jobs that a team has running or waiting at most, by user: who waits for one does not submit three more."""
GANG_SHARES: Final = 3
"""A team submits jobs of at most so many times the GPUs of its share: for 8 h that is a seventh of its week."""


def cluster_of(nodes: int) -> Cluster:
    """A cluster of nodes with 8 H100 each."""
    specs = tuple(NodeSpec(f"node-{number:03d}", kinds.GPUS_A_NODE, "h100") for number in range(1, nodes + 1))
    return Cluster("lab", specs, FAILURES)


def window_of(days: int, warm_up_ms: Ms = WARM_UP_MS) -> Window:
    """`days` measured days after the warm-up."""
    from_ms = ORIGIN_MS + warm_up_ms
    return Window(ORIGIN_MS, from_ms, from_ms + days * DAY_MS)


def gpus_max_of(gpus: int) -> Callable[[Team], int]:
    """The largest job of a team on a cluster of so many GPUs: see `GANG_SHARES`."""
    return lambda team: GANG_SHARES * team.weight_ppm * gpus // PPM_WHOLE


def load_of(gpus: int, load_ppm: Ppm | None) -> int:
    """GPUs of running and waiting jobs."""
    return gpus * (LOAD_PPM if load_ppm is None else load_ppm) // PPM_WHOLE


def split_pools(whole: int, allocated: Recipe, by_leaf: Mapping[str, Recipe] | None = None) -> tuple[Pool, Pool]:
    """Two loops, each kept by itself: allocated work, and work of slice 0. `by_leaf`: recipes of some teams' allocated work."""
    part = whole * ALLOCATED_PPM // PPM_WHOLE
    return (Pool("loop", part, {"": allocated, **(by_leaf or {})}), Pool("free", whole - part, {"": kinds.free}))


def debug_flow(submits: Callable[[Team], bool] = lambda _team: True) -> Flow:
    """The debug jobs of the teams that submit any."""
    return Flow(
        "debug",
        kinds.debug,
        0,
        lambda team: DEBUG_A_DAY * len(team.users) if submits(team) else 0.0,
        lambda team: DEBUG_GPUS_A_USER * len(team.users),
    )
