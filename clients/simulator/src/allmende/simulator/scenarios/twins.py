"""Labs of equal sibling leaves: an honest team and a twin that wants more than its share by some trick. Tags say who is who.

Twins have equal shares and equal demand in GPUs; only what their jobs look like differs. Never says which trick works.
"""

import random
from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE, SECOND_MS, Ppm
from allmende.simulator.model import Job, TreeChange
from allmende.simulator.ports import Scenario
from allmende.simulator.scenarios import kinds
from allmende.simulator.scenarios.demand import Demand, Lab, Pool
from allmende.simulator.scenarios.draws import picked
from allmende.simulator.scenarios.kinds import SLICE_CAP_MS, Asked, Recipe
from allmende.simulator.scenarios.people import Plan, Season, Team, teams_of, tree_of
from allmende.simulator.scenarios.setting import cluster_of, debug_flow, gpus_max_of, load_of, window_of

NODES: Final = 32
"""256 GPUs: enough for gangs of 64, small enough that a month is soon played."""

SQUATTERS: Final = (
    Plan("pair-a", 350_000, (("honest-a", 500_000, 8), ("parked-a", 500_000, 8))),
    Plan("pair-b", 350_000, (("honest-b", 500_000, 8), ("parked-b", 500_000, 8))),
    Plan("others", 300_000, (("others-a", 600_000, 8), ("others-b", 400_000, 6))),
)
GAMERS: Final = (
    Plan("pair-tiny", 250_000, (("honest-tiny", 500_000, 8), ("gamer-tiny", 500_000, 8))),
    Plan("pair-slices", 250_000, (("honest-slices", 500_000, 8), ("gamer-slices", 500_000, 8))),
    Plan("pair-renewals", 250_000, (("honest-renewals", 500_000, 8), ("gamer-renewals", 500_000, 8))),
    Plan("pair-splitting", 250_000, (("honest-splitting", 500_000, 8), ("gamer-splitting", 500_000, 32))),
)

SQUATTERS_DEMAND: Final[Mapping[str, Ppm]] = {
    "honest-a": 75_000,
    "parked-a": 75_000,
    "honest-b": 75_000,
    "parked-b": 75_000,
    "others-a": 420_000,
    "others-b": 280_000,
}
"""Of the lab's demand: at 2.5 times capacity twins want 19 % of it, a little more than they are owed, and the others nearly six
times theirs. Where all want the same part of their share, the limit of the old world gives whoever parks exactly what its queue
gives the honest, and nobody gains by parking but by chance: people park where others crowd them out."""

PARKED_SIZES: Final = ((1, 20), (4, 20), (8, 40), (16, 20))
SPLIT_GPUS: Final = 4
GANG_OF_THE_SPLITTERS: Final = ((32, 1),)


def honest(chance: random.Random, asked: Asked, sizes: kinds.Sizes = kinds.TRAINING_SIZES) -> Job:
    """What an honest team submits; its devices are busy all the time, so that its held time is its device-busy time."""
    return replace(kinds.training(chance, asked, sizes), busy_ppm=PPM_WHOLE, tag="honest")


def parked(chance: random.Random, asked: Asked) -> Job:
    """Holds GPUs for days and computes nothing: longest slice, high priority; comes back when evicted."""
    replicas, each = kinds.shaped(picked(chance, PARKED_SIZES))
    return replace(
        honest(chance, asked),
        replicas=replicas,
        gpus_per_replica=each,
        runtime_ms=chance.randrange(48 * HOUR_MS, 96 * HOUR_MS, MINUTE_MS),
        slice_ms=SLICE_CAP_MS,
        resumable=True,
        priority=2,
        save_every_ms=SLICE_CAP_MS,
        fails=False,
        busy_ppm=0,
        tag="parked",
    )


def tiny(chance: random.Random, asked: Asked) -> Job:
    """One GPU for about an hour, with a slice of 15 minutes: fits into every hole."""
    return replace(
        honest(chance, asked),
        replicas=1,
        gpus_per_replica=1,
        runtime_ms=chance.randrange(30 * MINUTE_MS, 90 * MINUTE_MS, SECOND_MS),
        slice_ms=15 * MINUTE_MS,
        resumable=True,
        save_every_ms=kinds.saves_ms(chance, 15 * MINUTE_MS),
        tag="tiny",
    )


def huge_slices(chance: random.Random, asked: Asked) -> Job:
    """The honest team's sizes, but the longest slice for everything, and work for at least that long."""
    job = honest(chance, asked)
    return replace(
        job,
        runtime_ms=max(job.runtime_ms, chance.randrange(SLICE_CAP_MS, 6 * SLICE_CAP_MS, MINUTE_MS)),
        slice_ms=SLICE_CAP_MS,
        resumable=True,
        save_every_ms=kinds.saves_ms(chance, SLICE_CAP_MS),
        tag="huge-slice",
    )


def renewals(chance: random.Random, asked: Asked) -> Job:
    """Training dressed up as a session, which lives for days by having its slice of an hour renewed."""
    return replace(
        honest(chance, asked),
        replicas=1,
        gpus_per_replica=picked(chance, ((4, 50), (8, 50))),
        runtime_ms=chance.randrange(48 * HOUR_MS, 120 * HOUR_MS, MINUTE_MS),
        slice_ms=HOUR_MS,
        resumable=False,
        priority=2,
        kind="session",
        save_every_ms=None,
        tag="renewal",
    )


def split(chance: random.Random, asked: Asked) -> Job:
    """A gang of 32 GPUs in pieces of 4, each under another user's name."""
    job = honest(chance, asked, GANG_OF_THE_SPLITTERS)
    return replace(job, replicas=1, gpus_per_replica=SPLIT_GPUS, user=asked.users[asked.turn % len(asked.users)], tag="split")


def squatters(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """Two pairs of twins, one of each parks idle jobs; two other teams beside them."""
    recipes = {"parked-a": parked, "parked-b": parked, "others-a": kinds.training, "others-b": kinds.training, "": honest}
    notes = ("parked-a and parked-b hold GPUs without computing; honest-a and honest-b are their twins.",)
    teams = tuple(team._replace(weight_ppm=SQUATTERS_DEMAND[team.leaf]) for team in teams_of(SQUATTERS))
    return _twins("squatters", SQUATTERS, teams, recipes, notes, seed=seed, days=days, load_ppm=load_ppm)


def gamers(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """Four pairs of twins, one of each games: many tiny jobs, huge slices, renewed sessions, a gang split over jobs and users."""
    recipes: dict[str, Recipe] = {
        "gamer-tiny": tiny,
        "gamer-slices": huge_slices,
        "gamer-renewals": renewals,
        "gamer-splitting": split,
        "honest-splitting": partial(honest, sizes=GANG_OF_THE_SPLITTERS),
        "": honest,
    }
    notes = ("Each gamer has an honest twin in an equal sibling leaf: gamer-X and honest-X.",)
    return _twins("gamers", GAMERS, teams_of(GAMERS), recipes, notes, seed=seed, days=days, load_ppm=load_ppm)


def gamers_honest(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """The same lab where nobody games, whatever the leaves are called: how far chance alone drives two equal teams apart."""
    gang = partial(honest, sizes=GANG_OF_THE_SPLITTERS)
    recipes: dict[str, Recipe] = {"gamer-splitting": gang, "honest-splitting": gang, "": honest}
    notes = ("Nobody games here, also in the leaves called gamer-X: what separates them from honest-X is chance.",)
    return _twins("gamers-honest", GAMERS, teams_of(GAMERS), recipes, notes, seed=seed, days=days, load_ppm=load_ppm)


def _twins(
    name: str,
    plans: tuple[Plan, ...],
    teams: tuple[Team, ...],
    recipes: Mapping[str, Recipe],
    notes: tuple[str, ...],
    *,
    seed: int,
    days: int,
    load_ppm: int | None,
) -> Scenario:
    window, cluster = window_of(days), cluster_of(NODES)
    lab = Lab(
        seed=seed,
        teams=teams,
        seasons={team.leaf: Season() for team in teams},
        pools=(Pool("loop", load_of(cluster.gpus, load_ppm), recipes),),
        # Twins submit nothing but what is compared.
        flows=(debug_flow(lambda team: team.leaf.startswith("others")),),
        window=window,
        gpus_max=gpus_max_of(cluster.gpus),
    )
    return Scenario(name, cluster, (TreeChange(window.begin_ms, tree_of(plans)),), Demand(lab), window, notes)
