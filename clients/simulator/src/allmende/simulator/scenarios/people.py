"""Who is in a lab: programmes, teams and users, the tree of their shares, and when teams are quiet. Never says what they submit."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allmende.proto.budget import Budget
from allmende.proto.units import DAY_MS, PPM_WHOLE, Ms, Ppm
from allmende.simulator.model import Window
from allmende.simulator.scenarios.draws import stream

ROOT = "lab"


class Team(NamedTuple):
    """A team and the leaf that it charges."""

    leaf: str
    weight_ppm: Ppm
    """Its part of the lab's demand; where nothing else is said its share of the lab."""
    users: tuple[str, ...]
    """The first submit most."""


class Plan(NamedTuple):
    """A programme: its share of the lab, and the leaves in it with share of the programme and number of users."""

    programme: str
    share_ppm: Ppm
    leaves: tuple[tuple[str, Ppm, int], ...]


def users_of(leaf: str, number: int) -> tuple[str, ...]:
    """The users of a team."""
    return tuple(f"{leaf}-{which:02d}" for which in range(1, number + 1))


def teams_of(plans: Sequence[Plan]) -> tuple[Team, ...]:
    """Every leaf as a team whose demand has the weight of its share. Shares are chosen so that the products are whole."""
    return tuple(
        Team(leaf, plan.share_ppm * share_ppm // PPM_WHOLE, users_of(leaf, number))
        for plan in plans
        for leaf, share_ppm, number in plan.leaves
    )


def tree_of(plans: Sequence[Plan], moved: Mapping[str, Ppm] | None = None) -> tuple[Budget, ...]:
    """The tree lab > programme > team; `moved`: other shares for some of its budgets."""
    other = moved or {}
    tree = [Budget(budget=ROOT, title="Lab")]
    for plan in plans:
        share_ppm = other.get(plan.programme, plan.share_ppm)
        tree.append(Budget(budget=plan.programme, parent=ROOT, title=plan.programme, share_ppm=share_ppm))
        for leaf, part_ppm, number in plan.leaves:
            share_ppm = other.get(leaf, part_ppm)
            members = users_of(leaf, number)
            tree.append(Budget(budget=leaf, parent=plan.programme, title=leaf, share_ppm=share_ppm, members=members))
    return tuple(tree)


class Season(NamedTuple):
    """When a team submits nothing: half-open spans, in order, apart from each other."""

    quiet: tuple[tuple[Ms, Ms], ...] = ()

    def active(self, at_ms: Ms) -> bool:
        """Whether the team submits at that instant."""
        at = bisect_right(self.quiet, at_ms, key=lambda span: span[0]) - 1
        return at < 0 or at_ms >= self.quiet[at][1]

    def changes(self) -> tuple[Ms, ...]:
        """The instants at which it changes."""
        return tuple(at_ms for span in self.quiet for at_ms in span)


def drawn_season(seed: int, leaf: str, window: Window) -> Season:
    """Active for 8 to 21 days, then quiet for 2 to 7 (a conference, or after a deadline), and so on: quiet a quarter of the time.

    Lengths are uniform. The first active phase began up to 21 days ago.
    """
    chance = stream(seed, leaf, "season")
    at_ms = window.begin_ms - chance.randrange(21 * DAY_MS)
    quiet: list[tuple[Ms, Ms]] = []
    while at_ms < window.to_ms:
        from_ms = at_ms + chance.randrange(8 * DAY_MS, 21 * DAY_MS)
        at_ms = from_ms + chance.randrange(2 * DAY_MS, 7 * DAY_MS)
        if at_ms > window.begin_ms and from_ms < window.to_ms:
            quiet.append((from_ms, at_ms))
    return Season(tuple(quiet))
