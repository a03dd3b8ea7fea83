"""Labs in which something changes: shares, a new project, a team that comes back. The lab is that of `ai2-lab`.

Never changes anything but what the scenario is about.
"""

from typing import Final

from allmende.proto.units import DAY_MS, PPM_WHOLE
from allmende.simulator.model import TreeChange, Window
from allmende.simulator.ports import Scenario
from allmende.simulator.scenarios import kinds
from allmende.simulator.scenarios.ai2_lab import NODES, PLANS, lab_scenario
from allmende.simulator.scenarios.demand import Burst
from allmende.simulator.scenarios.people import Plan, Season, Team, teams_of, tree_of
from allmende.simulator.scenarios.setting import window_of

MOVED: Final = {"language": 50_000, "science": 510_000}
"""35 % of the lab go from one programme to another: from 40 to 5 %, from 16 to 51 %."""

NEWCOMER: Final = "world-models"
WITH_NEWCOMER: Final = Plan(
    "multimodal",
    320_000,
    (
        ("vision-language", 398_438, 19),
        ("video", 187_500, 11),
        ("speech", 117_187, 9),
        ("documents", 46_875, 6),
        (NEWCOMER, 250_000, 8),
    ),
)
"""The programme when the new project has a quarter of it, 8 % of the lab, and the others three quarters of what they had."""

RETURNS: Final = "posttraining"
QUIET_MS: Final = 7 * DAY_MS
BURST_TIMES: Final = 3


def budget_change(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """35 % of the lab are moved between programmes in the middle of the window.

    Each team's demand has the weight of the mean of its two shares all the time, so that demand is not what changes, and losers and
    winners both want more than they are owed.
    """
    window = window_of(days)
    trees = (TreeChange(window.begin_ms, tree_of(PLANS)), TreeChange(_middle_ms(window), tree_of(PLANS, MOVED)))
    after = teams_of([plan._replace(share_ppm=MOVED.get(plan.programme, plan.share_ppm)) for plan in PLANS])
    pairs = zip(teams_of(PLANS), after, strict=True)
    teams = tuple(was._replace(weight_ppm=(was.weight_ppm + then.weight_ppm) // 2) for was, then in pairs)
    notes = ("35 % of the lab move from language (40 to 5 %) to science (16 to 51 %) in the middle; the demand stays as it was.",)
    return lab_scenario("budget-change", seed=seed, window=window, load_ppm=load_ppm, trees=trees, teams=teams, notes=notes)


def new_project(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """A leaf that did not exist gets 8 % of the lab in the middle of the window, and its users begin to submit."""
    window = window_of(days)
    at_ms = _middle_ms(window)
    plans = tuple(WITH_NEWCOMER if plan.programme == WITH_NEWCOMER.programme else plan for plan in PLANS)
    trees = (TreeChange(window.begin_ms, tree_of(PLANS)), TreeChange(at_ms, tree_of(plans)))
    newcomer = next(team for team in teams_of(plans) if team.leaf == NEWCOMER)
    seasons = {NEWCOMER: Season(((window.begin_ms, at_ms),))}
    notes = (f"{NEWCOMER} does not exist in the first half of the window and has 8 % of the lab in the second.",)
    teams = (*teams_of(PLANS), newcomer)
    return lab_scenario(
        "new-project", seed=seed, window=window, load_ppm=load_ppm, trees=trees, teams=teams, seasons=seasons, notes=notes
    )


def burst_after_quiet(*, seed: int, days: int, load_ppm: int | None) -> Scenario:
    """A team of 11 % is quiet for a week, then submits three times its share's GPUs at once, a quarter into the window.

    Two weeks of warm-up, so that it was active before.
    """
    window = window_of(days, 14 * DAY_MS)
    at_ms = window.from_ms + (window.to_ms - window.from_ms) // 4
    team = next(team for team in teams_of(PLANS) if team.leaf == RETURNS)
    burst = Burst(at_ms, RETURNS, BURST_TIMES * _gpus_of(team), kinds.training)
    seasons = {RETURNS: Season(((at_ms - QUIET_MS, at_ms),))}
    notes = (f"{RETURNS} submits nothing for a week, then {burst.gpus} GPUs of jobs at once, three times its share.",)
    trees = (TreeChange(window.begin_ms, tree_of(PLANS)),)
    return lab_scenario(
        "burst-after-quiet",
        seed=seed,
        window=window,
        load_ppm=load_ppm,
        trees=trees,
        teams=teams_of(PLANS),
        seasons=seasons,
        bursts=(burst,),
        notes=notes,
    )


def _middle_ms(window: Window) -> int:
    return (window.from_ms + window.to_ms) // 2


def _gpus_of(team: Team) -> int:
    return team.weight_ppm * NODES * kinds.GPUS_A_NODE // PPM_WHOLE
