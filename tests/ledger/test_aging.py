"""Half-life: the integer table, and standings that decay alike in the rules and in the database."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.chassis.errors import Misconfigured
from allmende.chassis.settings import load
from allmende.ledger.config import Settings
from allmende.ledger.model import BUCKET_MS, Level, Share
from allmende.ledger.rules.aging import WEIGHT_ONE, aging, weights
from allmende.ledger.rules.entitlement import entitlements
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS
from tests.ledger.builders import START_MS, counter, ended, granted, node, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab

T = START_MS


def test_a_weight_halves_with_each_half_life_and_the_table_never_rises() -> None:
    table = weights(DAY_MS, 2_017)
    assert [table[288 * days] for days in range(8)] == [WEIGHT_ONE >> days for days in range(8)]
    assert all(later <= earlier for earlier, later in pairwise(table))
    assert all(abs(table[n] ** 288 * 2**n - WEIGHT_ONE**288) * WEIGHT_ONE < WEIGHT_ONE**288 * 600 for n in (1, 5, 100))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1_024)), min_size=1, max_size=5), st.integers(0, BUCKET_MS - 1))
@settings(max_examples=100, deadline=None)
def test_entitlement_weighs_every_bucket_by_its_age(pieces: list[tuple[int, int]], over_ms: int) -> None:
    levels, at_ms = [], T
    for buckets, gpus in pieces:
        levels.append(Level(at_ms, at_ms + buckets * BUCKET_MS + over_ms, gpus, gpus))
        at_ms = levels[-1].to_ms
    if at_ms == T:
        return
    table = aging(HOUR_MS, 40 * BUCKET_MS)
    share = Share("x", ("x",), (333_333,), True, T + 7, None, 1)
    owed = 0
    for bucket_ms in range(T, at_ms, BUCKET_MS):
        ends = [(max(level.from_ms, bucket_ms, T + 7), min(level.to_ms, bucket_ms + BUCKET_MS)) for level in levels]
        amount = sum(level.available * max(0, b - a) for level, (a, b) in zip(levels, ends, strict=True))
        age = (at_ms - at_ms % BUCKET_MS - bucket_ms) // BUCKET_MS
        owed += amount * 333_333 // 10**6 * table.weights[age]
    assert entitlements({"x": [share]}, levels, T, at_ms, table) == {"x": owed // WEIGHT_ONE}


async def test_standings_decay_on_both_sides_though_nothing_happens(lab: Lab) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(1), slice_cap_ms=0, half_life_ms=6 * HOUR_MS)
    await desk.hear(*tree(), node(gpus=8), granted(1, gpus=8), ended(1, T + HOUR_MS, counter(1, HOUR_MS, 1, gpus=8)))
    fresh = (await desk.standings())["nlp"]
    table = weights(6 * HOUR_MS, 2_017)
    assert fresh.charged_gpu_ms == sum(8 * BUCKET_MS * table[age] for age in range(1, 13)) // WEIGHT_ONE
    desk.clock.advance(6 * HOUR_MS)
    later = (await desk.standings())["nlp"]
    assert abs(2 * later.charged_gpu_ms - fresh.charged_gpu_ms) <= 2, "half of it, floored"
    whole = (await desk.standings())["org"]
    bound = Fraction(1, 2**20)
    assert abs(Fraction(whole.charged_gpu_ms, whole.entitlement_gpu_ms) - Fraction(sum(table[73:85]), sum(table[1:85]))) < bound


async def test_a_rest_has_the_weight_of_its_bucket(lab: Lab) -> None:
    """The counter fell silent 7 minutes in: 5 are posted, 2 are a rest of the second bucket."""
    desk = Desk(await lab.database("ledger"), clock_at(0.5), slice_cap_ms=0, half_life_ms=HOUR_MS)
    await desk.hear(*tree(), node(gpus=8), granted(1, gpus=8), tick(counter(1, 7 * MINUTE_MS, 1, gpus=8)))
    table = weights(HOUR_MS, 7)
    posted, rest = 8 * BUCKET_MS * table[6] // WEIGHT_ONE, 8 * (2 * MINUTE_MS * table[5] // WEIGHT_ONE)
    assert (await desk.standings())["nlp"].charged_gpu_ms == posted + rest


def test_under_every_half_life_that_may_be_set_usage_is_seen() -> None:
    """BR-059: a half-life of nothing, which would forget all usage at once, is refused by name; left out, nothing decays."""
    names = {"ALLMENDE_NATS_URL": "nats://x:1", "ALLMENDE_DATABASE_URL": "postgresql://x/y"}
    assert load("ledger", Settings, names, None)[0].half_life_ms is None
    for refused_ms in (0, -1, HOUR_MS - 1, 366 * DAY_MS + 1):
        with pytest.raises(Misconfigured, match="HALF_LIFE_MS"):
            load("ledger", Settings, names | {"ALLMENDE_LEDGER_HALF_LIFE_MS": str(refused_ms)}, None)
    for allowed_ms in (HOUR_MS, DAY_MS, 366 * DAY_MS):
        set_to = names | {"ALLMENDE_LEDGER_HALF_LIFE_MS": str(allowed_ms)}
        assert load("ledger", Settings, set_to, None)[0].half_life_ms == allowed_ms
        assert weights(allowed_ms, 13)[12] >= WEIGHT_ONE // 2, "an hour ago counts at least half"
