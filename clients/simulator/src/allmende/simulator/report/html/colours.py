"""A colour for each team, the same in every plot and in every report on the same trees.

Eight colours that the colour-blind can tell apart (Okabe and Ito's, without red, which marks evictions, and with its pale yellow
darkened so that it shows on white); where there are more teams, the next eight are paler and dashed, then darker and dotted.
"""

from collections.abc import Iterable
from typing import NamedTuple

HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#a6a018", "#7b61b5", "#9c6644")
# Mixed with white, not at all, with black: the same hue three times.
MIXES = ((0, 0.0), (255, 0.45), (0, 0.4))
DASHES = ("solid", "dash", "dot")
UNALLOCATED = "#8d8d8d"
EVICTED = "#d62728"


class Ink(NamedTuple):
    """How a team is drawn: fills by colour, lines by colour and dash."""

    colour: str
    dash: str


def inks(teams: Iterable[str]) -> dict[str, Ink]:
    """By position: a team that joins later changes nobody's colour."""
    return {team: _ink(number) for number, team in enumerate(teams)}


def _ink(number: int) -> Ink:
    round_number = number // len(HUES) % len(MIXES)
    towards, part = MIXES[round_number]
    hue = HUES[number % len(HUES)]
    channels = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    mixed = "".join(f"{round(channel + (towards - channel) * part):02x}" for channel in channels)
    return Ink(f"#{mixed}", DASHES[round_number])
