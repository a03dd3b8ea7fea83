"""Who asks the preemptor for room, and what becomes of the answer: contract §5 and §7."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Claimed, Withdrawn
from allmende.admission.model.values import Attempt, Job, Reason
from allmende.admission.rules import life
from allmende.admission.rules.passing import Passed, may_pass
from allmende.admission.wire import said
from allmende.proto.admission import ClaimRaised
from allmende.proto.placement import NodeReplicas
from allmende.proto.units import HOUR_MS, SECOND_MS
from tests.admission.builders import CLUSTER, NOW, OWED, TERMS, an_id, attempt, claim, granted_jobs, job, lab, node, run_pass

LONG = 4 * HOUR_MS


class Row(NamedTuple):
    """One node of 8 GPUs, all held by `victim` but for `free`; `claimants` wait. Those expected raise a claim, in this order."""

    victim: Job
    claimants: list[Job]
    standings: dict[str, int]
    expected: list[int]
    held: int = 8
    fields: Mapping[str, object] = MappingProxyType({})


def victim(**fields: object) -> Job:
    return job(90, **{"budget": "b", "user": "u2", "state": "running"} | fields)


ROWS: dict[str, Row] = {
    "who is owed time may claim from a leaf that stands above it by more than the margin": Row(
        victim(), [job(1)], {"a": 50, "b": 70}, [1]
    ),
    "within the margin nobody claims": Row(victim(), [job(1)], {"a": 50, "b": 60}, []),
    "the claimant's own hold counts": Row(victim(), [job(1, slice_ms=OWED // 10)], {"a": 50, "b": 70}, []),
    "a protected attempt is nobody's room": Row(victim(slice_ms=LONG), [job(1)], {"a": 10, "b": 90}, []),
    "an unallocated attempt is room for every allocated job": Row(victim(slice_ms=0), [job(1)], {"a": 900, "b": 0}, [1]),
    "an unallocated job claims nothing": Row(victim(slice_ms=0), [job(1, slice_ms=0, budget=None)], {}, []),
    "what is leaving already is not claimed again": Row(victim(), [job(1)], {"a": 10, "b": 90}, [], fields={"plan": an_id(4)}),
    "what was told to stop is not claimed": Row(victim(), [job(1)], {"a": 10, "b": 90}, [], fields={"stop": "cancel"}),
    "what has not started is not claimed": Row(
        victim(slice_ms=0), [job(1)], {}, [], fields={"state": "starting", "started_at_ms": None, "protected_until_ms": None}
    ),
    "a gang that could not fit even then does not claim": Row(victim(), [job(1, replicas=2, gpus_per_replica=8)], {"b": 90}, []),
    "a surplus claimant may displace a surplus leaf that stands higher": Row(victim(), [job(1)], {"a": 110, "b": 150}, [1]),
    "a surplus claimant may not displace a guaranteed leaf": Row(victim(), [job(1)], {"a": 110, "b": 99}, []),
    "inside one leaf a higher priority claims from a lower one": Row(victim(), [job(1, budget="b", priority=1)], {"b": 50}, [1]),
    "inside one leaf equal priorities do not": Row(victim(), [job(1, budget="b")], {"b": 50}, []),
    "past its slice an attempt of a closed budget is room for every allocated job": Row(
        victim(budget="gone"), [job(1)], {"a": 900}, [1]
    ),
    "inside its slice it is nobody's": Row(victim(budget="gone", slice_ms=LONG), [job(1)], {"a": 10}, []),
    "two jobs do not count on the same GPUs": Row(
        victim(), [job(1, gpus_per_replica=8), job(2, gpus_per_replica=8)], {"b": 90}, [1]
    ),
    "two jobs that both fit both claim": Row(victim(), [job(1, gpus_per_replica=4), job(2, gpus_per_replica=4)], {"b": 90}, [1, 2]),
    "a claim's hold counts for those behind it": Row(
        victim(), [job(1, slice_ms=OWED // 10), job(2, slice_ms=OWED // 10)], {"a": 50, "b": 75}, [1]
    ),
    "a job that waits out an infeasible claim raises none": Row(victim(), [job(1, claim_after_ms=NOW + 1)], {"b": 90}, []),
    "nor does one for which nothing has changed": Row(victim(), [job(1, claims_failed=1, claim_signature=(1, 0))], {"b": 90}, []),
    "but once something has changed it does": Row(victim(), [job(1, claims_failed=1, claim_signature=(0, 0))], {"b": 90}, [1]),
}


def full_node(row: Row) -> Books:
    holder = replace(row.victim, gpus_per_replica=row.held)
    running: Attempt = attempt(1, holder, {"n001": 1}, **row.fields)
    return lab([holder, *row.claimants], [node(1)], row.standings, attempts=[running])


def check(row: Row) -> None:
    passed = run_pass(full_node(row))
    assert [each.job for each in passed.change.claims] == [an_id(number) for number in row.expected]
    assert granted_jobs(passed.change) == []


@pytest.mark.parametrize("sentence", ROWS)
def test_claims(sentence: str) -> None:
    check(ROWS[sentence])


def test_a_claim_names_the_nodes_that_did_not_start_the_job_so_that_nobody_is_evicted_there_for_it() -> None:
    holders = [replace(victim(), job=an_id(90 + n), gpus_per_replica=8) for n in range(2)]
    running = [attempt(n + 1, holder, {f"n{n + 1:03d}": 1}) for n, holder in enumerate(holders)]
    failed_once = job(1, avoid=("n001",), avoid_until_ms=NOW + HOUR_MS)
    books = lab([*holders, failed_once], [node(1), node(2)], {"b": 90}, attempts=running)
    (raised,) = run_pass(books).change.claims
    assert raised.avoid == ("n001",)
    told = said.message(Claimed(raised), 1, NOW, 0)
    assert isinstance(told, ClaimRaised)
    assert told.avoid_nodes == ("n001",)


def test_at_most_so_many_claims_are_open_on_a_cluster() -> None:
    holders = [replace(victim(), job=an_id(100 + n), gpus_per_replica=8) for n in range(20)]
    running = [attempt(n + 1, holder, {f"n{n + 1:03d}": 1}) for n, holder in enumerate(holders)]
    queue = [job(n) for n in range(1, 60)]
    books = lab([*holders, *queue], [node(n + 1) for n in range(20)], {"b": 90}, attempts=running)
    terms = replace(TERMS, claims_max=8)
    books.apply(run_pass(books, terms=terms).change)
    assert len(books.claims) == 8
    later = NOW + 10 * SECOND_MS
    assert run_pass(books, now_ms=later, terms=terms).change.claims == ()


def planned(books: Books, of: Job, victims: tuple[str, ...] = ()) -> None:
    """The preemptor has answered the job's claim: it fits on n001."""
    open_claim = books.claims[books.jobs[of.job].claim or ""]
    answer = replace(open_claim, plan=an_id(77), placement=(NodeReplicas("n001", of.replicas),), victims=victims)
    books.apply(life.answered(books, open_claim.claim, answer, NOW, TERMS))


def with_claim() -> tuple[Books, Job]:
    """Job 1 wants the whole node n001, which b holds past its slice; the claim is raised."""
    claimant = job(1, gpus_per_replica=8)
    books = full_node(Row(victim(), [claimant], {"b": 90}, []))
    books.apply(run_pass(books).change)
    return books, claimant


def leave(books: Books, now_ms: int = NOW) -> None:
    """The victim has left n001."""
    running = next(iter(books.attempts))
    books.apply(life.ended(books, running, life.End("evicted", now_ms, plan=an_id(77)), now_ms, TERMS))


def test_nothing_is_granted_until_the_claim_is_answered_or_a_second_has_passed() -> None:
    books, _claimant = with_claim()
    assert not may_pass(books, CLUSTER, NOW + SECOND_MS - 1)
    assert may_pass(books, CLUSTER, NOW + SECOND_MS)


def test_freed_gpus_belong_to_the_claim_they_were_freed_for() -> None:
    books, claimant = with_claim()
    planned(books, claimant)
    leave(books)
    # Owed far more, and there is room, but it is not theirs.
    books.apply(run_pass(books).change._replace(jobs=(), attempts=(), claims=(), facts=()))
    books.put_counted(replace(books.counted[CLUSTER]["a"], used_gpu_ms=OWED * 9 // 10))
    rival = job(2, budget="c", gpus_per_replica=4)
    books.load([rival], (), (), (), (), ())
    passed = run_pass(books)
    assert granted_jobs(passed.change) == [claimant.job]
    assert passed.change.attempts[0].claim is not None
    assert [type(fact) for fact in passed.change.facts if isinstance(fact, Withdrawn)] == [Withdrawn]


def test_before_the_victims_have_left_nobody_takes_what_is_free_of_the_earmarked_node() -> None:
    claimant, rival = job(1, gpus_per_replica=8), job(2, budget="c", gpus_per_replica=2)
    books = full_node(Row(victim(), [claimant], {"b": 90}, [], held=6))
    books.apply(run_pass(books).change)
    planned(books, claimant)
    books.load([rival], (), (), (), (), ())
    assert granted_jobs(run_pass(books).change) == []


def test_a_claim_that_times_out_frees_its_earmarks_and_is_not_raised_again_at_once() -> None:
    books, claimant = with_claim()
    planned(books, claimant)
    open_claim = next(iter(books.claims.values()))
    later = open_claim.deadline_ms
    change = life.claim_timed_out(books, open_claim, later, TERMS)
    assert [fact.reason for fact in change.facts if isinstance(fact, Withdrawn)] == ["timed_out"]
    books.apply(change)
    assert books.claims == {}
    assert run_pass(books, now_ms=later).change.claims == ()


def test_infeasible_answers_never_make_a_hot_loop() -> None:
    books, claimant = with_claim()
    now_ms, raised = NOW, 1
    for second in range(120):
        now_ms = NOW + second * SECOND_MS // 2
        for open_claim in list(books.claims):
            books.apply(life.answered(books, open_claim, Reason("no_room", "no room"), now_ms, TERMS))
        # Everything changes all the time, and still the claims become rarer.
        books.put_counted(replace(books.counted[CLUSTER]["b"], usage_revision=2 + second))
        passed: Passed = run_pass(books, now_ms=now_ms)
        raised += len(passed.change.claims)
        books.apply(passed.change)
    assert claimant.job in books.jobs
    # 1 + 2 + 4 + 8 + 16 + 30 seconds: within one minute at most seven.
    assert 3 <= raised <= 7


def test_a_claim_is_answered_once_and_an_answer_to_a_closed_claim_changes_nothing() -> None:
    books, claimant = with_claim()
    name = next(iter(books.claims))
    planned(books, claimant)
    before = books.jobs[claimant.job]
    books.apply(life.answered(books, name, Reason("no_room", "no room"), NOW, TERMS))
    assert books.jobs[claimant.job] == before
    assert life.answered(books, an_id(1), Reason("no_room", "no room"), NOW, TERMS).jobs == ()


def test_a_cancelled_job_withdraws_its_claim() -> None:
    books, claimant = with_claim()
    change = life.cancel(books, books.jobs[claimant.job], NOW)
    assert [fact.reason for fact in change.facts if isinstance(fact, Withdrawn)] == ["cancelled"]
    books.apply(change)
    assert books.claims == {}


def test_a_claimant_that_fits_elsewhere_starts_there_and_gives_its_earmarks_back() -> None:
    books, claimant = with_claim()
    planned(books, claimant)
    books.load([], (), (), [node(2)], (), ())
    passed = run_pass(books)
    assert granted_jobs(passed.change) == [claimant.job]
    books.apply(passed.change)
    assert books.claims == {}
    assert claim(1, claimant).earmarks() == {}
