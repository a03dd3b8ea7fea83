"""Squatters and gamers: what who plays tricks gets, beside an honest twin in an equal sibling leaf."""

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import stdev
from typing import NamedTuple

from tests.experiments.page import marks
from tests.experiments.page.kept import Kept
from tests.experiments.results import Result

TRICKS = ("parked-", "gamer-")


class Pair(NamedTuple):
    """GPU-hours: what the trickster was given, and what the honest twin's devices were busy for (`squatters`) or was given."""

    trick: str
    got: float
    twin: float

    @property
    def gains(self) -> bool:
        """Whether the trick brought more."""
        return self.got > self.twin


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
    """Parked GPUs against the twin's device-busy time."""
    rows = [
        _row(kept, "squatters", "`allmende`", False),
        _row(kept, "squatters-idle-off", "`allmende`, idle attempts like any other (`idle_after_ms` 0)", None),
        _row(kept, "squatters-priority", "`priority`", True),
    ]
    said = "Given to the parked jobs' team, in parts of the device-busy time of its honest twin: above 1, parking pays."
    return _section(said, [row for group in rows for row in group], "Parked / twin's busy time (line: equal)", kept, "squatters")


_GAMERS_ASKED = (
    "Delivered to the gamer, in parts of what its honest twin got, all seeds together: above 1, the trick pays. "
    "Asked for: in none under `allmende`, in all under `priority`."
)


class Game(NamedTuple):
    """A trick over all seeds of an experiment."""

    trick: str
    pairs: Sequence[Pair]

    @property
    def ratio(self) -> float:
        """Delivered to the gamer with all seeds, in parts of what its twins got."""
        return sum(each.got for each in self.pairs) / sum(each.twin for each in self.pairs)


def games(results: Sequence[Result]) -> list[Game]:
    """The tricks of an experiment, in the order of its tree."""
    found: dict[str, list[Pair]] = {}
    for each in (pair for result in results for pair in pairs(result)):
        found.setdefault(each.trick, []).append(each)
    return [Game(trick, those) for trick, those in found.items()]


def chance(honest: Sequence[Result]) -> float | None:
    """How far two equal teams drift apart by chance in one run: the standard deviation of got / twin where nobody games."""
    ratios = [each.got / each.twin for result in honest for each in pairs(result) if each.twin]
    return stdev(ratios) if len(ratios) > 1 else None


def gamers(kept: Kept) -> list[str]:
    """Delivered to the gamer against delivered to its twin, all seeds together, beside the same lab where nobody games."""
    by_chance = chance(kept.of("gamers-honest"))
    rows = [
        *_games(games(kept.of("gamers")), "`allmende`", False, by_chance),
        *_games(games(kept.of("gamers-honest")), "`allmende`, nobody games", None, by_chance),
        *_games(games(kept.of("gamers-priority")), "`priority`", True, by_chance),
    ]
    if not rows:
        return ["Not measured yet."]
    said = [_GAMERS_ASKED]
    if by_chance is not None:
        said.append(
            f"Where nobody games one run drives twins apart by {by_chance:.2f} (one standard deviation): a leaf of 32 GPUs runs "
            "gangs of 64, and a single one decides a run. So no single seed says that a trick pays. 'Chance': above 1 by no more "
            "than two standard errors of what happens where nobody games."
        )
    heads = [
        "policy",
        "who",
        "seeds",
        "got, GPU-hours",
        "twin, GPU-hours",
        "got / twin",
        "lowest",
        "highest",
        "seeds above 1",
        "as asked",
    ]
    bars = [
        (f"{each.trick} {policy}", each.ratio)
        for policy, experiment in (("allmende", "gamers"), ("nobody games", "gamers-honest"), ("priority", "gamers-priority"))
        for each in games(kept.of(experiment))
    ]
    shown = marks.table(heads, rows, right=range(2, 9))
    return [*said, shown, marks.bars("Gamer / twin (line: equal), all seeds together", bars, "ratio", goal=1, flat=True)]


def _games(found: Sequence[Game], policy: str, gains: bool | None, by_chance: float | None) -> list[list[str]]:
    """`gains`: what was asked for; None: nothing."""
    rows = []
    for each in found:
        ratios = [pair.got / pair.twin for pair in each.pairs if pair.twin]
        rows.append(
            [
                policy,
                each.trick,
                str(len(each.pairs)),
                marks.whole(sum(pair.got for pair in each.pairs)),
                marks.whole(sum(pair.twin for pair in each.pairs)),
                marks.ratio(each.ratio),
                marks.ratio(min(ratios)),
                marks.ratio(max(ratios)),
                str(sum(pair.gains for pair in each.pairs)),
                "" if gains is None else _verdict(each, gains, by_chance),
            ]
        )
    return rows


def _verdict(game: Game, gains: bool, by_chance: float | None) -> str:
    if (game.ratio > 1) == gains:
        return "yes"
    error = 2 * by_chance / sqrt(len(game.pairs)) if by_chance is not None else 0
    return "chance" if not gains and game.ratio <= 1 + error else "**no**"


def _section(said: str, rows: list[list[str]], title: str, kept: Kept, name: str) -> list[str]:
    if not rows:
        return ["Not measured yet."]
    heads = ["policy", "seed", "who", "got, GPU-hours", "twin, GPU-hours", "got / twin", "as asked"]
    shown = [said, _counted(kept, name), marks.table(heads, rows, right=(1, 3, 4, 5))]
    bars = [
        (f"{each.trick} {policy}", each.got / each.twin if each.twin else None)
        for policy, experiment in (("allmende", name), ("priority", f"{name}-priority"))
        for result in kept.of(experiment)[:1]
        for each in pairs(result)
    ]
    return [*shown, marks.bars(f"{title}, the first seed", bars, "ratio", goal=1, flat=True)]


def _row(kept: Kept, experiment: str, policy: str, gains: bool | None) -> list[list[str]]:
    """`gains`: what was asked for; None: nothing."""
    return [
        [
            policy,
            str(result.seed),
            each.trick,
            marks.whole(each.got),
            marks.whole(each.twin),
            marks.ratio(each.got / each.twin if each.twin else None),
            "" if gains is None else "yes" if each.gains == gains else "**no**",
        ]
        for result in kept.of(experiment)
        for each in pairs(result)
    ]


def _counted(kept: Kept, name: str) -> str:
    said = []
    for policy, experiment in (("allmende", name), ("priority", f"{name}-priority")):
        found = [each for result in kept.of(experiment) for each in pairs(result)]
        if found:
            said.append(f"Under `{policy}` the trick pays in {sum(each.gains for each in found)} of {len(found)} pairs.")
    return " ".join([*said, "Asked for: in none under `allmende`, in all under `priority`."])
