"""A node that an operator declares lost (contract §3, record 0042): which may be, and what becomes of jobs, holds and GPUs."""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import DeclaredLost, Ended, Queued
from allmende.admission.rules import life, losing, policies
from allmende.admission.rules.standings import Standings
from allmende.proto.policy import Policy
from allmende.proto.units import HOUR_MS, SECOND_MS
from tests.admission.builders import CLUSTER, NOW, TERMS, attempt, counted, granted_jobs, job, lab, node, run_pass
from tests.admission.test_policies import ruled

SILENT = NOW - TERMS.silent_after_ms - 1


class Row(NamedTuple):
    """When n001 was last heard, whether the operator insists, and the code of the refusal."""

    seen_ms: int
    force: bool
    code: str | None
    known: bool = True
    lost_at_ms: int | None = None


ROWS: dict[str, Row] = {
    "a silent node": Row(SILENT, False, None),
    "a node at the very edge is not silent": Row(SILENT + 1, False, "node_not_silent"),
    "unless the operator insists": Row(NOW, True, None),
    "a node that nobody ever reported": Row(SILENT, True, "unknown_node", known=False),
    "one that is lost already, though its ticks come again": Row(NOW, False, None, lost_at_ms=NOW - 1),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_which_node_may_be_declared_lost(sentence: str) -> None:
    row = ROWS[sentence]
    made = lab([], [node(1, last_seen_ms=row.seen_ms, lost_at_ms=row.lost_at_ms)])
    fault = losing.fault_of(made, (CLUSTER, "n001" if row.known else "n009"), NOW, TERMS, force=row.force)
    assert (None if fault is None else fault.code) == row.code


def declare(made: Books) -> DeclaredLost:
    """Declare n001 lost and take it over."""
    change, fact = losing.declared(made, made.nodes[CLUSTER, "n001"], ("olga", "no power"), NOW, TERMS)
    assert change.facts[0] == fact
    made.apply(change)
    return fact


def furnished() -> Books:
    """A gang over n001 and n002, and a job on n002 alone, all protected."""
    gang = job(1, replicas=2, gpus_per_replica=4, state="running", attempts=1)
    other = job(2, gpus_per_replica=4, state="running", attempts=1)
    first = attempt(1, gang, {"n001": 1, "n002": 1}, protected_until_ms=NOW + HOUR_MS)
    second = attempt(2, other, {"n002": 1}, protected_until_ms=NOW + HOUR_MS)
    jobs = [replace(gang, attempt=first.attempt), replace(other, attempt=second.attempt)]
    return lab(jobs, [node(1, last_seen_ms=SILENT), node(2)], attempts=[first, second])


def test_a_gang_ends_whole_at_the_last_sign_of_life_and_its_job_is_back_in_its_place() -> None:
    made = furnished()
    [gang, other] = sorted(made.jobs.values(), key=lambda each: each.job)
    fact = declare(made)
    assert [(each.job, each.state, each.ended_at_ms) for each in fact.attempts] == [(gang.job, "lost", SILENT)]
    back = made.jobs[gang.job]
    assert (back.state, back.submitted_at_ms, back.next_slice_ms, back.evictions) == ("queued", gang.submitted_at_ms, HOUR_MS, 0)
    assert made.jobs[other.job].state == "running"


def test_its_gpus_are_free_nowhere_until_the_agent_says_so() -> None:
    made = furnished()
    fact = declare(made)
    [over] = fact.attempts
    assert granted_jobs(run_pass(made).change) == [], "n001 is no capacity, and n002 is still held"
    # The agent has reported the node, and not yet said that the gang is dead.
    made.apply(run_pass(made).change._replace(nodes=(node(1, seq=2, at_ms=NOW),)))
    assert granted_jobs(run_pass(made).change) == []
    made.apply(life.ended(made, over.attempt, life.End("node_lost", NOW + 1), NOW + 1, TERMS))
    assert granted_jobs(run_pass(made).change) == [over.job]


def test_its_hold_counts_no_more() -> None:
    made = furnished()
    made.put_counted(counted("a", 0, counted_grants=0))
    before = Standings(made, CLUSTER).now["a"].used
    declare(made)
    assert Standings(made, CLUSTER).now["a"].used == before - 8 * HOUR_MS


LIMITS: dict[str, Policy] = {
    "GPUs at once": Policy(gpus_at_once={"a": 8}),
    "sessions of one person": Policy(sessions_per_user=1),
    "the leaf's ratio": Policy(over_budget="refuse"),
}


@pytest.mark.parametrize("sentence", LIMITS)
def test_no_limit_counts_it_beside_the_job_that_waits_for_its_place(sentence: str) -> None:
    session = job(1, kind="session", gpus_per_replica=8, state="running", attempts=1)
    first = attempt(1, session, {"n001": 1}, protected_until_ms=NOW + HOUR_MS)
    jobs = [replace(session, attempt=first.attempt)]
    made = ruled(lab(jobs, [node(1, last_seen_ms=SILENT), node(2)], attempts=[first]), LIMITS[sentence])
    # With the hold of one slice the leaf is at 1, and a job more is refused.
    made.put_counted(counted("a", 0, counted_grants=0, entitlement_gpu_ms=first.hold_gpu_ms))
    other = job(2, kind="session", gpus_per_replica=8)
    assert (policies.over_budget(other, made) is None) == (sentence != "the leaf's ratio")
    declare(made)
    assert policies.over_budget(other, made) is None
    assert granted_jobs(run_pass(made).change) == [session.job]


def test_later_words_about_it_change_nothing_but_its_gpus() -> None:
    made = furnished()
    [over] = declare(made).attempts
    assert life.started(made, over.attempt, NOW, NOW) == life.NOTHING
    assert life.overdue(made, over.attempt, NOW + 100 * HOUR_MS) is None
    late = life.ended(made, over.attempt, life.End("finished", NOW + SECOND_MS, exit_code=0), NOW + SECOND_MS, TERMS)
    assert (late.jobs, late.facts) == ((), ())


def test_a_job_that_was_cancelled_meanwhile_has_ended_and_does_not_come_back() -> None:
    made = furnished()
    name = attempt_of(made)
    made.apply(life.stop(made, name, "cancel", NOW))
    change, _fact = losing.declared(made, made.nodes[CLUSTER, "n001"], ("olga", "no power"), NOW, TERMS)
    assert [type(each) for each in change.facts] == [DeclaredLost, Ended]


def test_the_story_of_the_job_says_who_declared_it_and_why() -> None:
    made = furnished()
    change, _fact = losing.declared(made, made.nodes[CLUSTER, "n001"], ("olga", "no power"), NOW, TERMS)
    [decided] = change.decisions
    assert decided.sentence == "node n001 was declared lost by olga (no power); losing GPUs is never the job's fault"
    assert [each.after_attempt for each in change.facts if isinstance(each, Queued)] == [attempt_of(made)]


def attempt_of(made: Books) -> str:
    """The gang's attempt."""
    return next(each for each in made.attempts.values() if len(each.placement) == 2).attempt


def test_a_loss_that_the_agent_tells_reads_as_ever() -> None:
    made = furnished()
    end = life.End("node_lost", NOW, detail="the last agent of the cluster was killed")
    [decided] = life.ended(made, attempt_of(made), end, NOW, TERMS).decisions
    assert decided.sentence == "a node was lost; losing GPUs is never the job's fault"
