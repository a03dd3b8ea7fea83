"""What rolling standings cost: microseconds of CPU for a fact and for a reading of all budgets, with 20 and with 1,000 leaves.

Attempts come and go so that about two a leaf are live; capacity changes every hour. The look-back holds a week: figures after 8
days and after 40 show that a fact costs the same. A bucket's edge is in the cost of the fact that crosses it.
"""

import random
from collections import deque
from time import process_time

from allmende.ledger.rules.rolling import Rolling
from allmende.proto.budget import Budget
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS, PPM_WHOLE, SECOND_MS, Ms
from tests.ledger.builders import START_MS

FACTS, READS = 20_000, 200_000
FACT_EVERY_MS: Ms = 20 * SECOND_MS
"""About the events of a cluster of 1,024 GPUs."""
GROUPS = 4


def bench() -> dict[str, float]:
    """CPU microseconds: a fact after a short and after a long history, and a reading of all budgets after every fact."""
    figures: dict[str, float] = {}
    for leaves in (20, 1_000):
        lab = _Lab(leaves)
        lab.pass_time(8 * DAY_MS)
        figures[f"fact_us_{leaves}_leaves_8_days"] = lab.measure(FACTS, reads=False)
        lab.pass_time(32 * DAY_MS)
        figures[f"fact_us_{leaves}_leaves_40_days"] = lab.measure(FACTS, reads=False)
        lab.measure(1, reads=True)  # the first reading takes in all history at once
        both = lab.measure(READS // leaves, reads=True)
        figures[f"read_all_us_{leaves}_leaves"] = round(both - figures[f"fact_us_{leaves}_leaves_40_days"], 2)
    return figures


class _Lab:
    """A tree of three levels, and attempts that begin, start and end in turn."""

    def __init__(self, leaves: int) -> None:
        self.rolling = Rolling(slice_cap_ms=8 * HOUR_MS)
        self.chance = random.Random(leaves)
        self.leaves = [f"leaf-{number}" for number in range(leaves)]
        self.live: deque[str] = deque()
        self.now_ms = START_MS
        self.count = 0
        groups = [Budget(budget=f"group-{number}", parent="org", share_ppm=PPM_WHOLE // GROUPS) for number in range(GROUPS)]
        teams = [
            Budget(budget=name, parent=f"group-{number % GROUPS}", share_ppm=PPM_WHOLE * GROUPS // leaves)
            for number, name in enumerate(self.leaves)
        ]
        self.rolling.tree({each.budget: each for each in (Budget(budget="org"), *groups, *teams)}, 1, START_MS)
        self.rolling.capacity(1_024, 1_024, START_MS)

    def pass_time(self, length_ms: Ms) -> None:
        """History with a fact a minute."""
        until_ms = self.now_ms + length_ms
        while self.now_ms < until_ms:
            self._fact(MINUTE_MS)

    def measure(self, facts: int, *, reads: bool) -> float:
        """CPU microseconds a fact."""
        start = process_time()
        for _ in range(facts):
            self._fact(FACT_EVERY_MS)
            if reads:
                self.rolling.standings(self.now_ms)
        return round((process_time() - start) * 1e6 / facts, 2)

    def _fact(self, later_ms: Ms) -> None:
        self.now_ms += later_ms
        self.count += 1
        rolling, chance = self.rolling, self.chance
        if self.count % 180 == 0:
            rolling.capacity(1_024, 1_024 - 8 * chance.randrange(6), self.now_ms)
        elif len(self.live) > 2 * len(self.leaves):
            rolling.ended(self.live.popleft(), self.now_ms)
        else:
            name = f"a{self.count}"
            rolling.began(name, chance.choice(self.leaves), 8, chance.choice((15 * MINUTE_MS, HOUR_MS, 8 * HOUR_MS)), self.now_ms)
            rolling.started(name, self.now_ms)
            self.live.append(name)
