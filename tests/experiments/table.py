"""The experiments as data: what is run, with what changed, and why. Settings are written as `allmende simulate --set` takes them.

Order matters twice: it is the order of running, so what was asked for comes first, and the order on the page. All of it must cost
less than 90 minutes of one core (`weight`): two cores are done in 45 minutes. Never says what came out.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple


class Watch(NamedTuple):
    """Teams whose days are looked at, and the part of the window after which something changes for them, in percent."""

    title: str
    teams: tuple[str, ...]
    change_percent: int


class Experiment(NamedTuple):
    """One row. `base`: what it is held against."""

    name: str
    why: str
    scenario: str
    days: int
    seeds: tuple[int, ...]
    policy: str = "allmende"
    sets: tuple[str, ...] = ()
    base: str = ""
    watch: tuple[Watch, ...] = ()

    @property
    def weight(self) -> float:
        """Minutes of one core for one seed, as measured once; only for plans and for the estimate of what is left."""
        warm_up, day = MINUTES.get((self.scenario, self.policy), MINUTES["", self.policy])
        return warm_up + self.days * day


# Minutes of one core for the warm-up, whose first days are the hardest, and for a measured day; "": any other scenario.
MINUTES: Final = {
    ("", "allmende"): (1.1, 0.1),
    ("", "priority"): (0.07, 0.01),
    ("", "fifo"): (0.04, 0.007),
    ("squatters", "allmende"): (0.14, 0.02),
    ("squatters", "priority"): (0.01, 0.002),
    ("gamers", "allmende"): (0.12, 0.017),
    ("gamers", "priority"): (0.04, 0.008),
    ("gamers-honest", "allmende"): (0.02, 0.003),
}

SEEDS: Final = (1, 2, 3, 4, 5)
MONTH: Final = 30
SIDE_DAYS: Final = 7
"""Two seeds of a week tell chance from effect better than one of two weeks, for the same time."""
SIDE_SEEDS: Final = (1, 2)
GAME_SEEDS: Final = SEEDS
"""A leaf of 32 GPUs runs gangs of 64, so a single one decides a run: two seeds say nothing (`gamers-honest`)."""

MAIN: Final = "ai2-lab"
OFFLINE_LIMITS: Final = (20, None)
"""Most evictions of one unallocated job in the offline answers of `MAIN` under `allmende`; None: as many as needed."""
JOINT: Final = "ai2-lab-joint"
BASE: Final = "as-it-is"

ASKED: Final = (
    Experiment(MAIN, "what issue 3 asks for", "ai2-lab", MONTH, SEEDS),
    Experiment(f"{MAIN}-fifo", "first in, first out with backfill on the same seeds", "ai2-lab", MONTH, SEEDS, "fifo"),
    Experiment(f"{MAIN}-priority", "the world as Ai2 describes it before", "ai2-lab", MONTH, SEEDS, "priority"),
    Experiment(JOINT, "starved work of slice 0 counts in its team's demand", "ai2-lab-joint", MONTH, (1,)),
    Experiment(f"{JOINT}-fifo", "its measure for large jobs", "ai2-lab-joint", MONTH, (1,), "fifo"),
)

TWINS: Final = (
    Experiment("squatters", "idle parking beside an honest twin", "squatters", 14, SIDE_SEEDS),
    Experiment("squatters-priority", "the same in the old world", "squatters", 14, SIDE_SEEDS, "priority"),
    Experiment("squatters-idle-off", "an idle attempt is like any other", "squatters", 14, SIDE_SEEDS, sets=("idle_after_ms=0s",)),
    Experiment("gamers", "four ways to game the rules, each beside an honest twin", "gamers", 14, GAME_SEEDS),
    Experiment("gamers-honest", "the same lab where nobody games: chance", "gamers-honest", 14, GAME_SEEDS),
    Experiment("gamers-priority", "the same in the old world", "gamers", 14, GAME_SEEDS, "priority"),
)


def _knob(name: str, why: str, *sets: str) -> Experiment:
    return Experiment(name, why, "ai2-lab", SIDE_DAYS, SIDE_SEEDS, sets=sets, base=BASE)


KNOBS: Final = (
    Experiment(BASE, "nothing changed: what the others are held against", "ai2-lab", SIDE_DAYS, SIDE_SEEDS),
    _knob("margin-0", "near-equal teams may displace one another", "margin_ppm=0%"),
    _knob("window-7d", "a longer look-back", "window_ms=7d"),
    _knob("waste-any", "an eviction may lose any amount of work", "waste_ppm=0%"),
    _knob("loss-last", "most over-served leaf before least lost work", "loss_first=false"),
    _knob("patience-0", "evictions buy no longer slice", "patience=0"),
    _knob("no-reservations", "no nodes are gathered for large jobs", "reservations_max=0"),
    _knob("gang-budget", "nodes are gathered only for leaves within budget", "gang_ratio_ppm=100%"),
    _knob("quick-0", "no nodes are kept for short work", "quick_ppm=0%"),
    _knob("backoff-short", "evicted unallocated work is back in line after a minute each time", "requeue_backoff_max_ms=1m"),
    _knob(
        "all-off",
        "together: the contract as it was before decision 0015",
        *("waste_ppm=0%", "loss_first=false", "patience=0", "reservations_max=0", "quick_ppm=0%", "window_ms=7d"),
    ),
)

_SCIENCE: Final = ("biology", "climate", "chemistry", "materials")
_LANGUAGE: Final = ("pretraining", "posttraining", "agents", "datasets")

CHANGES: Final = (
    Experiment("big-jobs", "gangs of 64 to 512 GPUs beside small jobs", "big-jobs", SIDE_DAYS, (1,)),
    Experiment("big-jobs-fifo", "its measure", "big-jobs", SIDE_DAYS, (1,), "fifo"),
    Experiment(
        "budget-change",
        "35 % of the lab move from language to science in mid-window",
        "budget-change",
        14,
        (1,),
        watch=(Watch("science (16, then 51 %)", _SCIENCE, 50), Watch("language (40, then 5 %)", _LANGUAGE, 50)),
    ),
    Experiment(
        "new-project",
        "a leaf with 8 % of the lab is founded in mid-window",
        "new-project",
        14,
        (1,),
        watch=(Watch("world-models (nothing, then 8 %)", ("world-models",), 50),),
    ),
    Experiment(
        "burst-after-quiet",
        "a team of 11 % is quiet for a week, then submits three times its share at once",
        "burst-after-quiet",
        14,
        (1,),
        watch=(Watch("posttraining (quiet, then a burst)", ("posttraining",), 25),),
    ),
)

EXPERIMENTS: Final[Sequence[Experiment]] = (*ASKED, *TWINS, *KNOBS, *CHANGES)
BY_NAME: Final = {each.name: each for each in EXPERIMENTS}
