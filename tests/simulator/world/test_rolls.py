"""What is drawn by chance has streams of its own, repeats, and has the distribution that it says."""

import random
from statistics import quantiles

from hypothesis import given, settings
from hypothesis import strategies as st

from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE, SECOND_MS
from allmende.simulator.model import Failures, Leaving
from allmende.simulator.world.rolls import Trouble, leaving_ms, lognormal_ms

NOTICE = 2 * MINUTE_MS
MANY = 4_000


def near(found: float, expected: float, part: float = 0.1) -> bool:
    return abs(found - expected) <= part * expected


def test_leaving_has_the_median_and_the_95th_percentile_that_it_says_and_some_ignore_it() -> None:
    leaving = Leaving(median_ms=3 * SECOND_MS, p95_ms=20 * SECOND_MS, ignore_ppm=0)
    times = sorted(leaving_ms(1, f"j{number}", 1, leaving, 1_000 * NOTICE) for number in range(MANY))
    assert near(times[MANY // 2], 3 * SECOND_MS)
    assert near(times[MANY * 95 // 100], 20 * SECOND_MS, 0.15)
    stubborn = leaving._replace(ignore_ppm=PPM_WHOLE // 5)
    ignored = sum(leaving_ms(1, f"j{number}", 1, stubborn, HOUR_MS) == HOUR_MS for number in range(MANY))
    assert near(ignored, MANY / 5)


@settings(max_examples=50)
@given(st.integers(0, 99), st.sampled_from(["j", "", "é"]), st.integers(1, 9), st.integers(0, 3_000), st.integers(0, PPM_WHOLE))
def test_nobody_takes_longer_than_his_notice_and_the_same_draw_is_the_same(
    seed: int, job: str, time: int, grace_ms: int, ignore_ppm: int
) -> None:
    leaving = Leaving(median_ms=1_000, p95_ms=2_000, ignore_ppm=ignore_ppm)
    drawn = leaving_ms(seed, job, time, leaving, grace_ms)
    assert 0 <= drawn <= grace_ms
    assert drawn == leaving_ms(seed, job, time, leaving, grace_ms)
    # A longer notice never makes who heeds it slower: the draw itself does not depend on the notice.
    assert drawn in (grace_ms, leaving_ms(seed, job, time, leaving, grace_ms + 1))


def test_each_end_of_a_job_is_drawn_anew() -> None:
    leaving = Leaving(ignore_ppm=0)
    assert len({leaving_ms(1, "j", time, leaving, HOUR_MS) for time in range(20)}) > 15
    assert len({leaving_ms(seed, "j", 1, leaving, HOUR_MS) for seed in range(20)}) > 15


RARE = Failures(100 * HOUR_MS, HOUR_MS, 5 * HOUR_MS)


def story(seed: int, node: str, turns: int = 5) -> list[int]:
    trouble = Trouble(seed, node, RARE)
    return [length for _turn in range(turns) for length in (trouble.up_ms(), trouble.down_ms())]


def test_a_nodes_failures_are_its_own_whatever_other_nodes_and_policies_do() -> None:
    alone = story(1, "n1")
    ours, theirs = Trouble(1, "n1", RARE), Trouble(1, "n2", RARE)
    beside = []
    for _turn in range(5):
        theirs.up_ms()
        beside += [ours.up_ms(), ours.down_ms()]
    assert beside == alone
    assert story(1, "n2") != alone
    assert story(2, "n1") != alone


def test_failures_have_the_mean_and_repairs_the_quantiles_that_they_say() -> None:
    trouble = Trouble(3, "n1", RARE)
    ups, downs = zip(*((trouble.up_ms(), trouble.down_ms()) for _turn in range(MANY)), strict=True)
    assert near(sum(ups) / MANY, RARE.mean_between_ms, 0.05)
    cuts = quantiles(downs, n=20)
    assert near(cuts[9], RARE.repair_median_ms)
    assert near(cuts[18], RARE.repair_p95_ms, 0.15)
    assert min(ups) >= 1
    assert min(downs) >= 1


def test_a_percentile_below_the_median_is_not_taken_literally() -> None:
    chance = random.Random("edge")
    assert all(1 <= lognormal_ms(chance, 1, 1) <= 20 for _time in range(200))
    assert {lognormal_ms(chance, 60_000, 1) for _time in range(200)} <= set(range(59_990, 60_011))
