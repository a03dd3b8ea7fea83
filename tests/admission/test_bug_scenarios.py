"""Public bug reports about admission, as scenarios with the right outcome. Named by their number in bug_scenarios.jsonl.

Each test is about the kind of fault, not the one instance. Where our contract decides otherwise, tests/bug_scenarios.toml says so.
"""

import random

import pytest
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.values import Attempt, AttemptOutcome, Job
from allmende.admission.rules import life
from allmende.admission.rules.passing import decide
from allmende.admission.rules.standings import Standings
from allmende.admission.rules.vetting import vet
from allmende.proto.budget import Budget
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.admission.builders import (
    CLUSTER,
    NOW,
    TERMS,
    an_id,
    attempt,
    counting,
    free_gpus,
    granted_jobs,
    job,
    lab,
    node,
    order,
    run_pass,
    tree,
)

LONG = 4 * HOUR_MS


def key(number: int) -> tuple[str, str]:
    return CLUSTER, f"n{number:03d}"


def used(books: Books, budget: str) -> int:
    """What counts against a budget: the ledger's figure, and the holds of grants that it has not counted yet."""
    return Standings(books, CLUSTER).now[budget].used


def uncounted(books: Books) -> Books:
    """The ledger has counted no grant yet."""
    books.counted[CLUSTER] = {name: replace(each, counted_grants=0) for name, each in books.counted[CLUSTER].items()}
    return books


def held(books: Books) -> int:
    return sum(sum(here.values()) for here in books.on_node.values())


def alive(books: Books, now_ms: int) -> None:
    """Every node has just been heard of."""
    books.seen |= dict.fromkeys(books.nodes, now_ms)


def ends(books: Books, name: str, outcome: AttemptOutcome, at_ms: int = NOW, **fields: object) -> None:
    books.apply(life.ended(books, name, life.End(outcome, at_ms, **fields), at_ms, TERMS))  # type: ignore[arg-type]


def granted(books: Books, now_ms: int = NOW, first_id: int = 1_000_000) -> list[Attempt]:
    """One pass, carried out."""
    passed = decide(books, CLUSTER, now_ms, TERMS, counting(first_id))
    books.apply(passed.change)
    return list(passed.change.attempts)


def one_running(of: Job, *nodes: int, **fields: object) -> tuple[Job, Attempt]:
    """A job and its attempt, one replica on each of the nodes."""
    it = attempt(1, of, {f"n{number:03d}": 1 for number in nodes}, **fields)
    return replace(of, state="running", attempts=1, attempt=it.attempt), it


@pytest.mark.parametrize("percent", [0, 99, 100, 101, 300])
def test_br_003_the_verdict_does_not_depend_on_which_member_asks(percent: int) -> None:
    """What is counted is the budget's, so what it is held against is the budget's too; limits on GPUs at once are issue 6."""
    answers = []
    for user in ("u1", "u2", "u3"):
        mine = job(2, user=user, gpus_per_replica=8)
        books = lab([mine, job(1, budget="b", gpus_per_replica=8)], [node(1)], {"a": percent, "b": 100})
        answers.append((vet(mine, books, NOW, TERMS), granted_jobs(run_pass(books).change)))
    assert answers[1:] == answers[:-1]
    # At 100 the two stand equal, and the id decides.
    assert answers[0][1] == [an_id(2 if percent <= 100 else 1)]


def test_br_007_a_gang_killed_in_mid_start_gives_back_everything_once() -> None:
    gang = job(1, replicas=8)
    starting = attempt(1, gang, {"n001": 4, "n002": 4}, state="starting", started_at_ms=None, protected_until_ms=None)
    books = uncounted(lab([replace(gang, state="starting", attempt=starting.attempt)], [node(1), node(2)], attempts=[starting]))
    assert used(books, "a") == 8 * HOUR_MS
    books.apply(life.cancel(books, books.jobs[gang.job], NOW))
    for _ in range(2):
        books.apply(life.freed(books, starting.attempt, (("n001", 2),)))
        assert (free_gpus(books, key(1)), free_gpus(books, key(2))) == (6, 4), "the same word again frees no more"
    for _ in range(2):
        ends(books, starting.attempt, "stopped")
        assert (held(books), used(books, "a")) == (0, 0)
    books.apply(life.freed(books, starting.attempt, (("n002", 4),)))
    assert (free_gpus(books, key(1)), free_gpus(books, key(2))) == (8, 8)


def test_br_010_an_evicted_job_holds_nothing_and_waits_where_it_stood() -> None:
    j, j_runs = one_running(job(1, gpus_per_replica=8), 1)
    later = job(2, gpus_per_replica=8)
    books = uncounted(lab([j, later], [node(1)], attempts=[j_runs]))
    books.apply(life.ordered(books, j_runs.attempt, order(an_id(9))))
    assert granted(books) == [], "GPUs are free when the agent says so"
    ends(books, j_runs.attempt, "evicted", plan=an_id(9))
    assert (held(books), used(books, "a"), books.jobs[j.job].state) == (0, 0, "queued")
    assert [each.job for each in granted(books)] == [j.job], "it was submitted first"
    assert held(books) == 8


def test_br_011_the_last_free_place_is_given_once() -> None:
    """A second look sees what the first one gave. That there is one writer is held by the term's tests."""
    books = uncounted(lab([job(1, gpus_per_replica=8), job(2, user="u2", gpus_per_replica=8)], [node(1)]))
    assert len(granted(books)) == 1
    assert granted(books) == []
    assert (held(books), used(books, "a")) == (8, 8 * HOUR_MS)


def test_br_014_what_a_waiting_gang_cannot_use_is_lent_and_comes_back_after_the_slice() -> None:
    g, g_runs = one_running(job(1, gpus_per_replica=8, slice_ms=LONG), 1)
    gang, small = job(2, replicas=2, gpus_per_replica=8), job(3, budget="e", gpus_per_replica=8, slice_ms=10 * MINUTE_MS)
    books = lab([g, gang, small], [node(1), node(2)], {"a": 50}, tree("a", "e"), attempts=[g_runs])
    books.counted[CLUSTER]["e"] = replace(books.counted[CLUSTER]["e"], entitlement_gpu_ms=0)
    (lent,) = granted(books)
    assert lent.job == small.job
    books.apply(life.started(books, lent.attempt, NOW, NOW))
    for minutes, claims in ((4, []), (10, [gang.job])):
        at_ms = NOW + minutes * MINUTE_MS
        alive(books, at_ms)
        if minutes == 4:
            ends(books, g_runs.attempt, "finished", at_ms)
        assert granted(books, at_ms) == []
        assert [each.job for each in books.claims_on(CLUSTER)] == claims, minutes


def test_br_015_a_long_backlog_that_fits_nowhere_takes_nothing_from_those_who_fit() -> None:
    full, full_runs = one_running(job(9_000, budget="b", replicas=4, gpus_per_replica=8, slice_ms=LONG), 1, 2, 3, 4)
    backlog = [job(number, gpu_model="h100", priority=10) for number in range(1, 201)]
    fitting = [job(number, gpu_model="b200") for number in range(1_001, 1_021)]
    nodes = [node(number, gpu_model="h100" if number <= 4 else "b200") for number in range(1, 9)]
    passed = run_pass(lab([full, *backlog, *fitting], nodes, attempts=[full_runs]))
    assert granted_jobs(passed.change) == [each.job for each in fitting]
    assert passed.outlook.standings.now["a"].used == 20 * HOUR_MS, "who waits holds nothing"


def test_br_016_a_model_is_a_property_of_the_gpus_and_no_addition() -> None:
    """Our jobs cannot say a total beside a typed number: `replicas x gpus_per_replica` is all."""
    for model in (None, "h100"):
        books = lab([job(1, gpus_per_replica=4, gpu_model=model)], [node(1, gpu_model="h100")])
        (it,) = granted(books)
        assert (it.hold_gpu_ms, held(books), free_gpus(books, key(1))) == (4 * HOUR_MS, 4, 4)


@pytest.mark.parametrize("budget", ["a", None])
def test_br_022_evictions_never_count_as_failures(budget: str | None) -> None:
    once_failed = job(1, budget=budget, slice_ms=HOUR_MS if budget else 0, start_failures=TERMS.start_failures_max - 1)
    books = lab([once_failed], [node(1)])
    now_ms = NOW
    for number in range(1, 21):
        alive(books, now_ms)
        (it,) = granted(books, now_ms, 1_000_000 + number)
        ends(books, it.attempt, "evicted", now_ms)
        now_ms += TERMS.requeue_backoff_max_ms
    after = books.jobs[once_failed.job]
    assert (after.state, after.attempts, after.start_failures) == ("queued", 20, once_failed.start_failures)
    assert after.submitted_at_ms == once_failed.submitted_at_ms
    alive(books, now_ms)
    assert len(granted(books, now_ms, 2_000_000)) == 1, "and it may run again"


def test_br_022_a_job_that_crashes_is_not_tried_for_ever() -> None:
    crashing, never = job(1), job(2)
    books = lab([crashing, never], [node(1), node(2), node(3), node(4)])
    for turn in range(TERMS.start_failures_max):
        for it in granted(books, NOW, 1_000_000 + 10 * turn):
            if it.job == crashing.job:
                books.apply(life.started(books, it.attempt, NOW, NOW))
            ends(books, it.attempt, "failed" if it.job == crashing.job else "never_started")
    assert books.jobs == {}
    outcomes = {each.job: each.outcome for each in books.drain().jobs}
    assert outcomes == {crashing.job: "failed", never.job: "refused"}


def test_br_025_of_two_gangs_one_gets_all_and_the_other_nothing() -> None:
    for step in (1, -1):
        gangs = [job(1, replicas=100), job(2, replicas=100, budget="b")]
        books = uncounted(lab(gangs[::step], [node(number, installed=1, healthy=1) for number in range(1, 101)]))
        (it,) = granted(books)
        assert (it.job, held(books)) == (gangs[0].job, 100)
        assert used(books, "b") == 0
        # A node stops answering while the gang starts: after the time-out all of it is given back in one step.
        assert life.overdue(books, it.attempt, it.start_by_ms - 1) is None
        assert life.overdue(books, it.attempt, it.start_by_ms) == "start_timeout"
        books.apply(life.stop(books, it.attempt, "start_timeout", it.start_by_ms))
        assert held(books) == 100, "until the agent says so"
        ends(books, it.attempt, "never_started", it.start_by_ms)
        assert (held(books), used(books, "a")) == (0, 0)


def test_br_028_what_a_run_gave_back_is_no_credit_for_the_next_run() -> None:
    j, j_runs = one_running(job(1, replicas=3, gpus_per_replica=16), 1, 2, 3)
    books = uncounted(lab([j], [node(number, installed=16, healthy=16) for number in (1, 2, 3)], attempts=[j_runs]))
    finished = (("n001", 16), ("n002", 16))
    books.apply(life.freed(books, j_runs.attempt, finished))
    assert held(books) == 16
    ends(books, j_runs.attempt, "node_lost")
    (again,) = granted(books)
    assert (held(books), used(books, "a")) == (48, 48 * HOUR_MS)
    books.apply(life.freed(books, j_runs.attempt, finished))
    ends(books, j_runs.attempt, "node_lost")
    assert held(books) == 48, "old words about the first run change nothing for the second"
    assert books.jobs[j.job].attempt == again.attempt


def test_br_030_a_gpu_that_drops_out_stops_nobody() -> None:
    whole, runs = one_running(job(1, gpus_per_replica=8, slice_ms=LONG), 1)
    books = lab([whole, job(2, budget="b", gpus_per_replica=8)], [node(1, healthy=7), node(2)], attempts=[runs])
    assert [(each.job, each.placement[0].node) for each in granted(books)] == [(an_id(2), "n002")]
    assert books.attempts[runs.attempt] == runs, "what runs goes on"
    assert books.tree is not None
    assert books.tree.budgets == tree("a", "b", "c"), "shares are parts, so no tree becomes wrong by what hardware does"


def test_br_033_after_a_cut_and_a_restart_all_that_runs_still_counts() -> None:
    """A share cut below use stops nobody; in which order it is all told again, and how often, changes nothing."""
    jobs = [job(number, gpus_per_replica=4, slice_ms=LONG) for number in range(1, 11)]
    runs = [attempt(number, each, {f"n{(number + 1) // 2:03d}": 1}) for number, each in enumerate(jobs, start=1)]
    jobs = [replace(each, state="running", attempt=it.attempt) for each, it in zip(jobs, runs, strict=True)]
    nodes = [node(number) for number in range(1, 6)]
    for seed in range(20):
        told = [*runs, *random.Random(seed).sample(runs, 2)]
        random.Random(seed).shuffle(told)
        books = lab([*jobs, job(11)], nodes, {"a": 200}, attempts=told)
        assert held(books) == 40
        passed = run_pass(books)
        assert (passed.change.attempts, passed.change.claims, passed.change.facts) == ((), (), ())
        assert {it.protected_until_ms for it in books.attempts.values()} == {NOW - HOUR_MS + LONG}, "stored, and never made longer"


def test_br_043_a_silent_agents_gpus_are_not_given_to_others() -> None:
    lost, runs = one_running(job(1, gpus_per_replica=4, slice_ms=LONG), 1)
    silent = node(1, last_seen_ms=NOW - TERMS.silent_after_ms - 1)
    books = lab([lost, job(2, gpus_per_replica=4)], [silent, node(2, installed=1, healthy=1)], attempts=[runs])
    assert granted(books) == []
    assert (held(books), books.jobs[lost.job].state) == (4, "running"), "silence never means death"
    alive(books, NOW + SECOND_MS)
    assert [each.job for each in granted(books, NOW + SECOND_MS)] == [an_id(2)]
    assert held(books) == 8


@pytest.mark.parametrize("slice_ms", [0, HOUR_MS])
@pytest.mark.parametrize("may_run_unallocated", [False, True])
def test_br_054_only_members_may_name_a_budget(slice_ms: int, may_run_unallocated: bool) -> None:
    """Whatever is asked for. That nobody can write another's name on it is held by the forging tests of the bus."""
    budgets = tree("a") | {"b": Budget(budget="b", parent="org", share_ppm=500_000, members=("u9",))}
    wish = job(1, budget="b", slice_ms=slice_ms, may_run_unallocated=may_run_unallocated)
    verdict = vet(wish, lab(nodes=[node(1)], budgets=budgets), NOW, TERMS)
    assert verdict.refusal is not None
    assert (verdict.refusal.code, verdict.accepted) == ("not_a_member", False)


def test_br_055_leaving_the_budget_out_opens_nothing() -> None:
    """No default, no guess. Without a slice a job may run for nobody, and whoever has a budget may displace it (contract §1)."""
    books = lab(nodes=[node(1)])
    for user in ("w", "u1"):
        refusal = vet(job(1, user=user, budget=None), books, NOW, TERMS).refusal
        assert refusal is not None
        assert refusal.code == "no_covering_budget"
    books.tree = None
    for slice_ms in (0, HOUR_MS):
        assert not vet(job(1, user="w", budget=None, slice_ms=slice_ms), books, NOW, TERMS).accepted
    free, runs = one_running(job(1, user="w", budget=None, slice_ms=0, gpus_per_replica=8), 1)
    over = lab([free, job(2, gpus_per_replica=8)], [node(1)], {"a": 900}, attempts=[runs])
    assert [each.job for each in run_pass(over).change.claims] == [an_id(2)]
