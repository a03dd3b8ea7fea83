"""A lab with unequal teams: 4 programs, 15 teams with 2 to 18 %, about 150 people. Pure: a seed decides who is where.

The shares are the same for every seed, so that figures of different seeds can be compared.
"""

from random import Random
from typing import NamedTuple

from allmende.proto.budget import Budget
from allmende.proto.units import PPM_WHOLE, Ppm

PEOPLE = 150
# A team of two would make `who has received least` inside a leaf trivial.
SMALLEST_TEAM = 4

# (program, its share of the lab, its teams with their shares of the program); chosen so that every product is a whole percent.
_PROGRAMS: tuple[tuple[str, Ppm, tuple[tuple[str, Ppm], ...]], ...] = (
    ("language", 400_000, (("pretraining", 450_000), ("alignment", 300_000), ("retrieval", 150_000), ("speech", 100_000))),
    ("vision", 300_000, (("video", 400_000), ("robotics", 300_000), ("generation", 200_000), ("medical", 100_000))),
    ("science", 200_000, (("climate", 400_000), ("proteins", 300_000), ("materials", 200_000), ("astronomy", 100_000))),
    ("systems", 100_000, (("compilers", 500_000), ("evaluation", 300_000), ("serving", 200_000))),
)
ROOT = "lab"

# fmt: off
_GIVEN = (
    "ada", "alan", "alma", "amir", "anna", "arun", "bela", "boris", "carla", "chen", "clara", "dana", "david", "edith",
    "elif", "emil", "emma", "enzo", "erika", "fatma", "felix", "finn", "frida", "gita", "grace", "greta", "hana", "hugo",
    "ida", "igor", "ines", "iris", "ivan", "jana", "jonas", "jun", "kai", "karl", "kira", "lars", "leila", "lena", "lev",
    "lin", "luca", "maja", "marie", "maya", "milan", "mina", "nadia", "nils", "nina", "noor", "olga", "omar", "otto",
    "paul", "petra", "rana", "rosa", "ruth", "sara", "selma", "sven", "tara", "theo", "tove", "vera", "viktor", "wanda",
    "yara", "yusuf", "zoe",
)
# fmt: on


class Team(NamedTuple):
    """One leaf and its people. `effective_ppm` is its part of the whole lab."""

    budget: str
    effective_ppm: Ppm
    users: tuple[str, ...]


class Lab(NamedTuple):
    """The tree of shares, parents before children, and its leaves."""

    budgets: tuple[Budget, ...]
    teams: tuple[Team, ...]


def generate(seed: int) -> Lab:
    """The lab of a seed. Team sizes follow shares, with luck; the first of a team manages it."""
    chance = Random(f"{seed}/lab")
    names = _names(chance)
    leaves = [(program, team, whole * part // PPM_WHOLE, part) for program, whole, teams in _PROGRAMS for team, part in teams]
    sizes = _sizes(chance, [effective for _, _, effective, _ in leaves])
    budgets = [Budget(budget=ROOT, title="The whole lab")]
    budgets += [Budget(budget=program, parent=ROOT, share_ppm=whole) for program, whole, _ in _PROGRAMS]
    teams: list[Team] = []
    for (program, team, effective, part), size in zip(leaves, sizes, strict=True):
        users = tuple(sorted(names.pop() for _ in range(size)))
        budgets.append(Budget(budget=team, parent=program, share_ppm=part, managers=users[:1], members=users))
        teams.append(Team(team, effective, users))
    return Lab(tuple(budgets), tuple(teams))


def largest_remainder(weights: list[int], whole: int) -> list[int]:
    """Split a whole number in proportion to weights: floors first, the rest to the largest remainders (earlier first among equals).

    Raises:
        ValueError: all weights are 0.
    """
    total = sum(weights)
    if total <= 0:
        raise ValueError("nothing has a weight, so nothing can be split by it")
    parts = [weight * whole // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda at: (-(weights[at] * whole % total), at))
    for at in by_remainder[: whole - sum(parts)]:
        parts[at] += 1
    return parts


def _names(chance: Random) -> list[str]:
    names = [f"{given}-{letter}" for given in _GIVEN for letter in "abdfhklmnprstvw"]
    return chance.sample(names, PEOPLE)


def _sizes(chance: Random, shares: list[Ppm]) -> list[int]:
    # Luck of a factor of two either way: a small team may have a large share.
    lucky = [share * chance.randint(50, 200) for share in shares]
    extra = largest_remainder(lucky, PEOPLE - SMALLEST_TEAM * len(shares))
    return [SMALLEST_TEAM + each for each in extra]
