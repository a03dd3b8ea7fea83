"""Squatters and gamers: what who plays tricks gets, beside an honest twin in an equal sibling leaf."""

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import stdev
from typing import NamedTuple

from tests.experiments.page import marks
from tests.experiments.page.kept import Kept
from tests.experiments.results import Result

TRICKS = ("parked-", "gamer-")
_NOT_YET = "Not measured yet."


class Pair(NamedTuple):
    """GPU-hours: what the trickster was given, and what the honest twin's devices were busy for (`squatters`) or was given."""

    trick: str
    got: float
    twin: float

    @property
    def gains(self) -> bool:
        """Whether the trick brought more."""
        return self.got > self.twin

    @property
    def ratio(self) -> float | None:
        """`got / twin`; None where the twin got nothing."""
        return self.got / self.twin if self.twin else None


def pairs(result: Result) -> Iterator[Pair]:
    """The pairs of a run, in the order of its tree."""
    for name, team in result.teams.items():
        trick = next((each for each in TRICKS if name.startswith(each)), None)
        if trick is None:
            continue
        honest = result.teams[f"honest-{name.removeprefix(trick)}"]
        twin = honest.busy_gpu_hours if trick == "parked-" else honest.delivered_gpu_hours
        yield Pair(name, team.delivered_gpu_hours, twin)


def squatters(kept: Kept) -> list[str]:
    """Parked GPUs against the twin's device-busy time, seed by seed."""
    rows = [
        *_parked(kept, "squatters", "`allmende`", False),
        *_parked(kept, "squatters-idle-off", "`allmende`, idle attempts like any other (`idle_after_ms` 0)", None),
        *_parked(kept, "squatters-priority", "`priority`", True),
    ]
    if not rows:
        return [_NOT_YET]
    said = "Given to the parked jobs' team, in parts of the device-busy time of its honest twin: above 1, parking pays."
    heads = ["policy", "seed", "who", "got, GPU-hours", "twin, GPU-hours", "got / twin", "as asked"]
    worlds = [("allmende", kept.of("squatters")), ("priority", kept.of("squatters-priority"))]
    bars = [
        (f"{each.trick} {policy}", each.ratio) for policy, results in worlds for result in results[:1] for each in pairs(result)
    ]
    return [
        said,
        _counted(worlds),
        marks.table(heads, rows, right=(1, 3, 4, 5)),
        marks.bars("Parked / twin's busy time (line: equal), the first seed", bars, "ratio", goal=1, flat=True),
    ]


def _parked(kept: Kept, experiment: str, policy: str, gains: bool | None) -> list[list[str]]:
    """`gains`: what was asked for; None: nothing."""
    return [
        [
            policy,
            str(result.seed),
            each.trick,
            marks.whole(each.got),
            marks.whole(each.twin),
            marks.ratio(each.ratio),
            "" if gains is None else "yes" if each.gains == gains else "**no**",
        ]
        for result in kept.of(experiment)
        for each in pairs(result)
    ]


def _counted(worlds: Sequence[tuple[str, Sequence[Result]]]) -> str:
    said = []
    for policy, results in worlds:
        found = [each for result in results for each in pairs(result)]
        if found:
            said.append(f"Under `{policy}` the trick pays in {sum(each.gains for each in found)} of {len(found)} pairs.")
    return " ".join([*said, "Asked for: in none under `allmende`, in all under `priority`."])


_GAMERS_ASKED = (
    "Delivered to the gamer, in parts of what its honest twin got, all seeds together: above 1, the trick pays. "
    "Asked for: in none under `allmende`, in all under `priority`."
)


class Game(NamedTuple):
    """A trick over all seeds of an experiment: its runs, and all of them together."""

    runs: Sequence[Pair]
    together: Pair

    @property
    def ratios(self) -> list[float]:
        """Of each run; those whose twin got nothing have none."""
        return [each.ratio for each in self.runs if each.ratio is not None]


def games(results: Sequence[Result]) -> list[Game]:
    """The tricks of an experiment, in the order of its tree."""
    found: dict[str, list[Pair]] = {}
    for each in (pair for result in results for pair in pairs(result)):
        found.setdefault(each.trick, []).append(each)
    return [
        Game(runs, Pair(trick, sum(each.got for each in runs), sum(each.twin for each in runs))) for trick, runs in found.items()
    ]


def chance(honest: Sequence[Game]) -> float | None:
    """How far two equal teams drift apart by chance in one run: the standard deviation of got / twin where nobody games."""
    ratios = [ratio for each in honest for ratio in each.ratios]
    return stdev(ratios) if len(ratios) > 1 else None


def gamers(kept: Kept) -> list[str]:
    """Delivered to the gamer against delivered to its twin, all seeds together, beside the same lab where nobody games."""
    gamed, honest, old = (games(kept.of(each)) for each in ("gamers", "gamers-honest", "gamers-priority"))
    by_chance = chance(honest)
    rows = [
        *(_gamed(each, "`allmende`", _verdict(each, by_chance)) for each in gamed),
        *(_gamed(each, "`allmende`, nobody games", "") for each in honest),
        *(_gamed(each, "`priority`", "yes" if each.together.gains else "**no**") for each in old),
    ]
    if not rows:
        return [_NOT_YET]
    said = [_GAMERS_ASKED]
    if by_chance is not None:
        said.append(
            f"Where nobody games one run drives twins apart by {by_chance:.2f} (one standard deviation): a leaf of 32 GPUs runs "
            "gangs of 64, and a single one decides a run. So no single seed says that a trick pays. 'Chance': above 1 by no more "
            "than two standard errors of what happens where nobody games."
        )
    bars = [
        (f"{each.together.trick} {policy}", each.together.ratio)
        for policy, those in (("allmende", gamed), ("nobody games", honest), ("priority", old))
        for each in those
    ]
    heads = ["policy", "who", "seeds", "got, GPU-hours", "twin, GPU-hours", "got / twin", "lowest", "highest", "seeds above 1"]
    shown = marks.table([*heads, "as asked"], rows, right=range(2, 9))
    return [*said, shown, marks.bars("Gamer / twin (line: equal), all seeds together", bars, "ratio", goal=1, flat=True)]


def _gamed(game: Game, policy: str, verdict: str) -> list[str]:
    whole, ratios = game.together, game.ratios
    return [
        policy,
        whole.trick,
        str(len(game.runs)),
        marks.whole(whole.got),
        marks.whole(whole.twin),
        marks.ratio(whole.ratio),
        marks.ratio(min(ratios, default=None)),
        marks.ratio(max(ratios, default=None)),
        str(sum(each.gains for each in game.runs)),
        verdict,
    ]


def _verdict(game: Game, by_chance: float | None) -> str:
    """Under `allmende`, where nothing may be gained."""
    if not game.together.gains:
        return "yes"
    error = 2 * by_chance / sqrt(len(game.runs)) if by_chance is not None else 0
    return "chance" if game.together.ratio is not None and game.together.ratio <= 1 + error else "**no**"
