"""How much a team wants at an instant: quiet spells, ordinary days, deadlines. Pure: a seed and the team's name decide."""

from random import Random

from allmende.agent.synthetic.chance import lognormal_ms, uniform
from allmende.proto.units import HOUR_MS, Ms

# In thousandths of what the team's share alone would make it ask for. About a fifth of the time is quiet.
_QUIET = (50, 250)
_BUSY = (600, 1_700)
_QUIET_SPELL_MS: tuple[Ms, Ms] = (HOUR_MS, 3 * HOUR_MS)
_BUSY_SPELL_MS: tuple[Ms, Ms] = (4 * HOUR_MS, 12 * HOUR_MS)
_QUIET_FIRST_IN_100 = 20


class Moods:
    """The moods of one team from an instant on: quiet and busy spells in turn, each with a level of its own."""

    def __init__(self, seed: int, team: str, from_ms: Ms) -> None:
        self._seed = seed
        self._chance = Random(f"{seed}/mood/{team}")
        self._quiet = self._chance.randrange(100) < _QUIET_FIRST_IN_100
        # Somewhere in the middle of the first spell: not all teams turn at once.
        self._until_ms = from_ms + self._length_ms() * self._chance.randint(1, 100) // 100
        self._level = self._draw_level()

    def at(self, now_ms: Ms) -> int:
        """The level at an instant, in thousandths. Calls must not go back in time."""
        while now_ms >= self._until_ms:
            self._quiet = not self._quiet
            self._until_ms += self._length_ms()
            self._level = self._draw_level()
        return self._level

    def _length_ms(self) -> Ms:
        median_ms, p95_ms = _QUIET_SPELL_MS if self._quiet else _BUSY_SPELL_MS
        at = uniform(self._seed, "spell", self._chance.getrandbits(64))
        return max(1, lognormal_ms(at, median_ms=median_ms, p95_ms=p95_ms))

    def _draw_level(self) -> int:
        return self._chance.randint(*(_QUIET if self._quiet else _BUSY))
