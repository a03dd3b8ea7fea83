"""Squatters and gamers: what who plays tricks gets, beside an honest twin in an equal sibling leaf."""

from collections.abc import Iterator
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


def gamers(kept: Kept) -> list[str]:
    """Delivered to the gamer against delivered to its twin."""
    rows = [_row(kept, "gamers", "`allmende`", False), _row(kept, "gamers-priority", "`priority`", True)]
    said = "Delivered to the gamer, in parts of what its honest twin got: above 1, the trick pays."
    return _section(said, [row for group in rows for row in group], "Gamer / twin (line: equal)", kept, "gamers")


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
