"""The scenarios by name. Never knows what is in one."""

from collections.abc import Mapping
from typing import Final, Protocol

from allmende.simulator.ports import Scenario
from allmende.simulator.scenarios.ai2_lab import ai2_lab, ai2_lab_joint
from allmende.simulator.scenarios.big_jobs import big_jobs
from allmende.simulator.scenarios.changes import budget_change, burst_after_quiet, new_project
from allmende.simulator.scenarios.twins import gamers, gamers_honest, squatters


class Maker(Protocol):
    """Makes a scenario."""

    def __call__(self, *, seed: int, days: int, load_ppm: int | None) -> Scenario:
        """`days` measured days; the warm-up comes before them."""


_MAKERS: Final[Mapping[str, tuple[str, Maker]]] = {
    "ai2-lab": ("1,024 GPUs, 15 teams, demand of 2.5 x capacity, work of slice 0 kept beside the allocated.", ai2_lab),
    "ai2-lab-joint": ("The same lab; starved work of slice 0 counts in its team's demand.", ai2_lab_joint),
    "squatters": ("Teams that park idle jobs beside their honest twins in equal sibling leaves.", squatters),
    "gamers": ("Four ways to game the rules, each beside an honest twin: tiny jobs, huge slices, renewals, splitting.", gamers),
    "gamers-honest": (
        "The lab of the gamers where nobody games: how far chance alone drives two equal teams apart.",
        gamers_honest,
    ),
    "big-jobs": ("Gangs of 64 to 512 GPUs beside small jobs: fragmentation.", big_jobs),
    "budget-change": ("35 % of the lab move from one programme to another in the middle of the window.", budget_change),
    "new-project": ("A leaf that did not exist gets 8 % of the lab in the middle of the window.", new_project),
    "burst-after-quiet": ("A team is quiet for a week, then submits three times its share at once.", burst_after_quiet),
}


def names() -> list[tuple[str, str]]:
    """(name, one sentence) of every scenario, in the order in which they are listed."""
    return [(name, sentence) for name, (sentence, _maker) in _MAKERS.items()]


def make(name: str, *, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """The scenario of that name, to be used for one run.

    `days` are measured, the warm-up is extra; `load_ppm` is running plus waiting demand against capacity, None: the scenario's own.

    Raises:
        KeyError: no scenario is called so.
        ValueError: fewer than 1 day, or a load of 0 or less.
    """
    if days < 1:
        raise ValueError(f"a scenario needs at least 1 measured day, not {days}")
    if load_ppm is not None and load_ppm <= 0:
        raise ValueError(f"the load must be above 0, not {load_ppm} ppm")
    return _MAKERS[name][1](seed=seed, days=days, load_ppm=load_ppm)
