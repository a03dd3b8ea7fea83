"""The generated lab and its closed loop: the same for a seed, in the proportions promised."""

from collections import Counter
from heapq import heappop, heappush
from random import Random

import msgspec
import pytest

from allmende.agent.synthetic.command import Command, parse
from allmende.agent.workload.jobs import DEBUG_GPUS, Shape, draw_allocated, draw_unallocated, split
from allmende.agent.workload.lab import PEOPLE, Lab, generate, largest_remainder
from allmende.agent.workload.log import Ended, from_lines, to_line
from allmende.agent.workload.loop import Loop
from allmende.proto.tree import leaves
from allmende.proto.tree_file import read_tree, write_tree
from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE
from allmende.proto.user import DEFAULT_SLICE_CAP_MS, JobSubmitted
from tests.agent.builders import T0

GPUS = 1_024


@pytest.mark.parametrize("seed", range(5))
def test_the_lab_is_a_valid_tree_of_15_unequal_teams(seed: int) -> None:
    lab = generate(seed)
    assert read_tree(write_tree(lab.budgets)).faults == ()
    shares = [team.effective_ppm for team in lab.teams]
    assert (len(shares), sum(shares), min(shares), max(shares)) == (15, PPM_WHOLE, 20_000, 180_000)
    assert leaves({each.budget: each for each in lab.budgets}) == {team.budget for team in lab.teams}
    people = [user for team in lab.teams for user in team.users]
    assert len(people) == len(set(people)) == PEOPLE


def test_the_same_seed_makes_the_same_lab() -> None:
    assert generate(3) == generate(3)
    assert generate(3) != generate(4)


@pytest.mark.parametrize(
    ("weights", "whole", "parts"),
    [([1, 1, 1], 100, [34, 33, 33]), ([0, 1], 10, [0, 10]), ([64, 32, 16], PPM_WHOLE, [571_429, 285_714, 142_857])],
)
def test_largest_remainder_adds_up(weights: list[int], whole: int, parts: list[int]) -> None:
    assert largest_remainder(weights, whole) == parts


@pytest.mark.parametrize(
    ("gpus", "parts"), [(1, (1, 1)), (8, (1, 8)), (12, (2, 6)), (16, (2, 8)), (24, (3, 8)), (13, (13, 1)), (256, (32, 8))]
)
def test_gangs_are_split_into_equal_replicas_that_fit_a_node(gpus: int, parts: tuple[int, int]) -> None:
    assert split(gpus) == parts


def drawn(count: int) -> list[Shape]:
    chance = Random(1)
    return [draw_allocated(chance, 256) for _ in range(count)]


def command_of(shape: Shape) -> Command:
    found = parse(shape.command.line())
    assert isinstance(found, Command)
    return found


def test_every_job_keeps_the_rules_of_the_lab() -> None:
    for shape in drawn(5_000):
        command = command_of(shape)
        assert 0 < shape.slice_ms <= DEFAULT_SLICE_CAP_MS
        assert shape.gpus_per_replica <= 8
        assert command.runtime_ms <= shape.stated_runtime_ms
        if shape.resumable:
            assert command.checkpoint_ms is not None
            assert 2 * command.checkpoint_ms <= shape.slice_ms
        else:
            assert shape.slice_ms >= command.runtime_ms
    for shape in (draw_unallocated(Random(number), 256) for number in range(500)):
        assert (shape.slice_ms, shape.resumable) == (0, True)


def test_most_jobs_are_small_few_are_very_large_and_the_tail_is_heavy() -> None:
    shapes = drawn(20_000)
    sizes = Counter(shape.gpus for shape in shapes)
    assert sizes[1] > 0.6 * len(shapes)
    assert 0 < sizes[256] < 0.01 * len(shapes)
    debug = [shape for shape in shapes if shape.debug]
    # A fifth is drawn as debug; short jobs of few GPUs are as well, by the definition.
    assert 0.2 < len(debug) / len(shapes) < 0.35
    assert max(shape.gpus for shape in debug) <= DEBUG_GPUS
    runtimes = sorted(shape.command.runtime_ms for shape in shapes)
    assert runtimes[len(runtimes) // 2] < HOUR_MS < 8 * HOUR_MS < runtimes[len(runtimes) * 97 // 100]
    work = sorted((shape.gpus * shape.command.runtime_ms for shape in shapes), reverse=True)
    assert sum(work[: len(work) // 20]) > 0.5 * sum(work)


def test_a_team_is_never_given_a_job_larger_than_it_may_hope_for() -> None:
    chance = Random(2)
    assert max(draw_allocated(chance, 40).gpus for _ in range(5_000)) == 32


def simulate(lab: Lab, seed: int, hours: int) -> tuple[list[int], list[JobSubmitted], Loop]:
    """Run the loop against the simplest cluster there is: whoever fits starts; nobody is evicted."""
    loop = Loop(lab, GPUS, seed, T0)
    free, waiting, running = GPUS, list[tuple[JobSubmitted, int]](), list[tuple[int, str, int]]()
    asked, jobs = list[int](), list[JobSubmitted]()
    for now_ms in range(T0, T0 + hours * HOUR_MS, MINUTE_MS):
        while running and running[0][0] <= now_ms:
            _, job, gpus = heappop(running)
            free += gpus
            loop.ended(job)
        for request in loop.wanted(now_ms):
            jobs.append(request.body)
            waiting.append((request.body, request.gpus))
        still = []
        for body, gpus in waiting:
            command = parse(body.payload.command)
            assert isinstance(command, Command)
            if gpus <= free:
                free -= gpus
                heappush(running, (now_ms + command.startup_ms + command.runtime_ms, body.job, gpus))
            else:
                still.append((body, gpus))
        waiting = still
        asked.append(loop.asked_gpus)
    return asked, jobs, loop


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_closed_loop_asks_for_two_and_a_half_clusters_all_day(seed: int) -> None:
    lab = generate(seed)
    asked, jobs, loop = simulate(lab, seed, 6)
    assert len(jobs) >= 2_000
    assert min(asked) >= 2.3 * GPUS
    assert max(asked) <= 2.7 * GPUS
    assert abs(sum(asked) / len(asked) - 2.5 * GPUS) < 0.05 * GPUS
    members = {team.budget: set(team.users) for team in lab.teams}
    assert all(body.user in members[body.budget] for body in jobs if body.budget is not None)
    without = sum(body.budget is None for body in jobs) / len(jobs)
    assert 0.08 < without < 0.25
    assert len(loop.open) == len(set(loop.open))


def test_teams_have_quiet_spells() -> None:
    _, jobs, _ = simulate(generate(1), 1, 24)
    hours: dict[str, Counter[int]] = {}
    for body in jobs:
        if body.budget:
            hours.setdefault(body.budget, Counter())[(_instant_of(body.job) - T0) // (3 * HOUR_MS)] += 1
    # Somewhere in the day some team submits next to nothing for three hours, after its backlog of the first ones.
    assert any(min(counts[part] for part in range(1, 8)) <= 2 for counts in hours.values())


def _instant_of(job: str) -> int:
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    value = 0
    for letter in job[:10]:
        value = value * 32 + alphabet.index(letter)
    return value


def test_the_loop_repeats_for_a_seed_and_forgets_what_ended_once() -> None:
    first, second = (Loop(generate(1), 64, 1, T0).wanted(T0) for _ in range(2))
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    loop = Loop(generate(1), 64, 1, T0)
    job = loop.wanted(T0)[0].body.job
    assert (loop.ended(job), loop.ended(job), loop.ended("unknown")) == (True, False, False)


def test_the_log_reads_back() -> None:
    entry = Ended(at_ms=T0, job="j", outcome="finished", first_started_at_ms=T0)
    assert list(from_lines([to_line(entry), b'{"what":"end'])) == [entry]
    with pytest.raises(ValueError, match="line 1"):
        list(from_lines([b"{}\n"]))
