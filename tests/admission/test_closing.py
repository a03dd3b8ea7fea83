"""A budget is closed: where its jobs go and what `why` says of it, as rules, and as a story over real servers."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Altered, Change, Queued, Withdrawn
from allmende.admission.model.values import Attempt, Job, KnownBudget, KnownRevision, Reserved
from allmende.admission.rules import closing, explaining, life, trees, vetting
from allmende.proto import subjects
from allmende.proto.admission import JobChanged, JobGranted, JobQueued, JobRefused, WhyQuery, WhyReply
from allmende.proto.budget import Budget
from allmende.proto.placement import NodeReplicas
from allmende.proto.tree import digest
from allmende.proto.units import HOUR_MS
from tests.admission.builders import CLUSTER, NOW, TERMS, an_id, attempt, claim, granted_jobs, job, lab, node, run_pass, tree
from tests.admission.scene import Scene, eventually
from tests.admission.test_service import furnish

BUDGETS = tree("a", "b", "c")


def heard(books: Books, changes: Mapping[str, Budget | KnownBudget], gone_at_ms: int = NOW) -> Change:
    """A revision as the handler hears it: definitions that are new, or what is said of a budget that is gone."""
    revision = 1 if books.tree is None else books.tree.revision + 1
    for name, said in changes.items():
        known = KnownBudget(budget=name, revision=revision, definition=said) if isinstance(said, Budget) else said
        trees.heard_budget(books, replace(known, revision=revision))
    now = {name: known.definition for name, known in books.known.items() if known.definition is not None}
    trees.heard_revision(books, KnownRevision(revision=revision, budgets=len(now), digest=digest(now.values())))
    before, after = books.tree, trees.switch(books)
    assert after is not None
    books.put_tree(after)
    change = closing.switched(books, before, gone_at_ms)
    books.apply(change)
    return change


def gone(budget: str, jobs_to: str | None, at_ms: int = NOW) -> dict[str, KnownBudget]:
    """A budget is gone, and its jobs go somewhere or nobody knows where."""
    return {budget: KnownBudget(budget=budget, revision=0, definition=None, jobs_to=jobs_to, gone_at_ms=at_ms)}


def books_of(*jobs: Job, attempts: tuple[Attempt, ...] = (), budgets: Mapping[str, Budget] = BUDGETS) -> Books:
    """A lab of one node whose tree was heard budget by budget."""
    books = lab(jobs, [node(1)], budgets=budgets, attempts=attempts)
    books.known = {name: KnownBudget(budget=name, revision=1, definition=each) for name, each in budgets.items()}
    return books


class Row(NamedTuple):
    """A job as it is when its budget `a` is closed and sends its jobs to `b`; then where it belongs, and whether he is told."""

    of: Job
    budget: str | None
    told: bool


ROWS = {
    "who waits goes there": Row(job(1), "b", True),
    "held or not": Row(job(1, held=True), "b", True),
    "unallocated or not": Row(job(1, slice_ms=0), "b", True),
    "who is not a member there goes too: a manager has decided it": Row(job(1, user="u3"), "b", True),
    "who came back from an attempt": Row(job(1, attempts=2, evictions=1), "b", True),
    "a member's job that nobody has judged yet": Row(job(1, accepted=False), "b", True),
    "not that of somebody who might not charge it": Row(job(1, accepted=False, user="eve"), "a", False),
    "what starts stays": Row(job(1, state="starting"), "a", True),
    "what runs stays": Row(job(1, state="running"), "a", True),
    "what is leaving for good stays, and nobody needs to be told": Row(job(1, state="ending"), "a", False),
    "other budgets are not touched": Row(job(1, budget="c"), "c", False),
    "nor is who has none": Row(job(1, budget=None, slice_ms=0), None, False),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_when_a_budget_is_closed(sentence: str) -> None:
    of, budget, told = ROWS[sentence]
    few = {name: replace(each, members=("u1",)) if name == "b" else each for name, each in BUDGETS.items()}
    books = books_of(of, budgets=few)
    change = heard(books, gone("a", "b"))
    now = books.jobs[of.job]
    assert (now.budget, now.priority, now.submitted_at_ms) == (budget, of.priority, of.submitted_at_ms)
    assert [decided.kind for decided in change.decisions] == ["changed"] * told
    assert [fact.job.budget for fact in change.facts if isinstance(fact, Altered)] == ["b"] * (now != of and budget == "b")
    assert all("its budget a was closed" in decided.sentence and " b" in decided.sentence for decided in change.decisions)
    # Said once: the next revision finds nothing left to say.
    assert heard(books, {"c": replace(BUDGETS["c"], title="another")}).decisions == ()


def test_they_stand_in_line_by_their_first_submission() -> None:
    books = books_of(
        job(1, gpus_per_replica=8),
        job(2, budget="b", gpus_per_replica=8),
        job(3, gpus_per_replica=8, priority=1),
        job(4, budget="b"),
    )
    heard(books, gone("a", "b"))
    started: list[str] = []
    while found := run_pass(books).change:
        if not found.attempts:
            break
        started += granted_jobs(found)
        books.apply(found)
        for each in found.attempts:
            books.apply(life.ended(books, each.attempt, life.End("finished", NOW), NOW, TERMS))
    assert started == [an_id(3), an_id(1), an_id(2), an_id(4)]


def test_what_was_asked_and_gathered_for_the_closed_budget_is_void() -> None:
    of = job(1, gpus_per_replica=8, reserved=Reserved(CLUSTER, (NodeReplicas("n001", 1),), NOW, NOW, NOW))
    raised = claim(1, of)
    books = books_of(replace(of, claim=raised.claim))
    books.apply(Change(claims=(raised,)))
    change = heard(books, gone("a", "b"))
    assert [type(fact) for fact in change.facts] == [Withdrawn, Altered]
    assert (books.claims, books.reserved[CLUSTER]) == ({}, {})
    assert (books.jobs[of.job].claim, books.jobs[of.job].reserved) == (None, None)
    sentence = "the promise to start is void: nodes were gathered for it under its budget of before"
    assert [each.sentence for each in change.decisions if each.kind == "queued"] == [sentence]


def running(**fields: object) -> tuple[Job, Attempt]:
    """A job of `a` that runs inside its slice."""
    of = job(1, **{"state": "running", "slice_ms": 8 * HOUR_MS, "attempts": 1} | fields)
    now = attempt(1, of, {"n001": 1})
    return replace(of, attempt=now.attempt), now


def test_a_running_attempt_keeps_slice_and_path_and_its_job_comes_back_where_the_others_went() -> None:
    of, runs = running()
    books = books_of(of, attempts=(runs,))
    heard(books, gone("a", "b"))
    assert books.attempts[runs.attempt] == runs
    # That one is closed too, while the attempt runs.
    heard(books, gone("b", "c"))
    assert books.attempts[runs.attempt] == runs
    change = life.ended(books, runs.attempt, life.End("node_lost", NOW), NOW, TERMS)
    books.apply(change)
    assert books.jobs[of.job].budget == "c"
    assert [decided.kind for decided in change.decisions] == ["changed", "requeued"]
    assert "its budget a was closed: it waits under c" in change.decisions[0].sentence
    assert [fact.job.budget for fact in change.facts if isinstance(fact, Queued)] == ["c"]


def test_a_job_that_ends_with_its_attempt_ends_under_the_closed_budget() -> None:
    of, runs = running()
    books = books_of(of, attempts=(runs,))
    heard(books, gone("a", "b"))
    change = life.ended(books, runs.attempt, life.End("finished", NOW, exit_code=0), NOW, TERMS)
    assert [each.budget for each in change.jobs] == ["a"]
    assert [decided.kind for decided in change.decisions] == ["ended"]


class New(NamedTuple):
    """A submission to `a`, which was closed at NOW, and when the bus had it; then its budget, or the code of its refusal."""

    of: Job
    received_at_ms: int
    becomes: str


NEW = {
    "a millisecond before the closing it was on its way": New(job(1), NOW - 1, "b"),
    "at the closing it is too late": New(job(1), NOW, "budget_closed"),
    "and later": New(job(1), NOW + HOUR_MS, "budget_closed"),
    "whenever its submitter says that he sent it": New(job(1, submitted_at_ms=NOW - HOUR_MS), NOW, "budget_closed"),
    "somebody who might not charge it had no way in": New(job(1, user="eve"), NOW - 1, "budget_closed"),
    "a budget that never was": New(job(1, budget="z"), NOW - 1, "unknown_budget"),
}


@pytest.mark.parametrize("sentence", NEW)
def test_a_job_that_is_submitted_about_then(sentence: str) -> None:
    of, received_at_ms, becomes = NEW[sentence]
    books = books_of()
    heard(books, gone("a", "b"))
    new, told = closing.raced(books, of, received_at_ms, NOW)
    refusal = vetting.vet(new, books, NOW, TERMS).refusal
    assert (new.budget if refusal is None else refusal.code) == becomes
    assert len(told.decisions) == (refusal is None)
    if becomes == "budget_closed":
        assert refusal is not None
        assert "its jobs went to b" in refusal.sentence


def test_until_the_whole_revision_is_known_the_budget_takes_jobs_and_they_go_along() -> None:
    books = books_of()
    trees.heard_budget(books, replace(gone("a", "b")["a"], revision=2))
    new, told = closing.raced(books, job(1), NOW + 1, NOW + 1)
    assert (new, told.decisions) == (job(1), ())
    assert vetting.vet(new, books, NOW, TERMS).refusal is None
    books.apply(Change(jobs=(new,)))
    heard(books, {})
    assert books.jobs[new.job].budget == "b"


CIRCLES = {
    "to one that was closed and went on": ({**gone("b", "c"), **gone("a", "b")}, "c"),
    "to one that is gone without a word": ({**gone("b", None), **gone("a", "b")}, None),
    "in a circle, which nobody can write and anybody could send": ({**gone("b", "a"), **gone("a", "b")}, None),
}


@pytest.mark.parametrize("sentence", CIRCLES)
def test_jobs_are_sent(sentence: str) -> None:
    changes, heir = CIRCLES[sentence]
    books = books_of(job(1))
    heard(books, changes)
    assert closing.heir(books, "a") == heir
    assert books.jobs[an_id(1)].budget == (heir or "a")


STRANDED: dict[str, tuple[dict[str, Budget | KnownBudget], str]] = {
    "its budget is gone, and nobody said where its jobs go": (dict(gone("a", None)), "nobody said where its jobs go"),
    "its budget has budgets below it now": (
        {"a": replace(BUDGETS["a"], members=()), "below": Budget(budget="below", parent="a")},
        "only leaves are charged",
    ),
    "its budget has no share any more": ({"a": replace(BUDGETS["a"], share_ppm=None)}, "restore it"),
    "it was sent to one that has budgets below it now": (
        {**gone("a", "b"), "b": replace(BUDGETS["b"], members=()), "below": Budget(budget="below", parent="b")},
        "budget b has budgets below it",
    ),
}


@pytest.mark.parametrize("sentence", STRANDED)
def test_a_job_waits_and_why_says_what_to_do(sentence: str) -> None:
    changes, says = STRANDED[sentence]
    books = books_of(job(1))
    heard(books, changes)
    assert granted_jobs(run_pass(books).change) == []
    reasons = explaining.blockers(books.jobs[an_id(1)], books, {}, NOW, TERMS)
    assert [reason.code for reason in reasons if reason.code != "not_ready"] == ["budget_not_valid"]
    assert any(says in reason.sentence and "cancel the job" in reason.sentence for reason in reasons)


# ----------------------------------------------------------------------------------------------------------------------- as a story


async def why(scene: Scene, name: str) -> WhyReply:
    reply = await scene.ask(subjects.WHY, WhyQuery(job=name))
    assert isinstance(reply, WhyReply)
    return reply


async def test_a_budget_is_closed_while_its_jobs_run_and_wait(scene: Scene) -> None:
    process = await scene.start()
    await furnish(scene)
    runs = await scene.submit(gpus_per_replica=8)
    grant = await scene.hears(JobGranted)
    await scene.started(grant)
    waits = await scene.submit(gpus_per_replica=8, priority=3)
    await scene.hears(JobQueued, lambda body: body.job == waits)

    await scene.closes("a", "b")
    moved = await scene.hears(JobChanged)
    assert (moved.job, moved.budget, moved.priority, moved.author) == (waits, "b", 3, "budget")
    assert "keeps its slice" in (await why(scene, runs)).decisions[-1].sentence
    late = await scene.submit(gpus_per_replica=8)
    no = await scene.hears(JobRefused)
    assert (no.job, no.problem.code) == (late, "budget_closed")
    assert scene.said(JobGranted) == [grant]
    await scene.kill(process)
    await scene.start()

    # What ran is lost, and comes back under the other budget. There the priority of who was moved counts as it did before.
    await scene.ended(grant, "node_lost")
    back = await scene.hears(JobQueued, lambda body: body.after_attempt is not None)
    assert (back.job, back.budget) == (runs, "b")
    second = await scene.hears(JobGranted, lambda body: body != grant)
    assert (second.job, second.budget) == (waits, "b")
    told = await why(scene, runs)
    assert told.job.budget == "b"
    assert [each.sentence for each in told.decisions if each.kind == "changed"][-1].startswith("its budget a was closed: it waits")


async def test_jobs_on_their_way_while_admission_is_down_go_along(scene: Scene) -> None:
    process = await scene.start()
    await furnish(scene)
    await scene.submit(gpus_per_replica=8)
    first = await scene.hears(JobGranted)
    await scene.kill(process)
    on_its_way = await scene.submit(gpus_per_replica=8)
    # The bus's time counts, in milliseconds.
    submitted_ms = scene.now_ms()
    await eventually(lambda: scene.now_ms() > submitted_ms, "a millisecond passes")
    await scene.closes("a", "b")
    await scene.start()
    await scene.hears(JobQueued, lambda body: body.job == on_its_way)
    await scene.ended(first, "finished")
    grant = await scene.hears(JobGranted, lambda body: body.job == on_its_way)
    assert grant.budget == "b"
    assert any("its budget a was closed" in each.sentence for each in (await why(scene, on_its_way)).decisions)
    late = await scene.submit(gpus_per_replica=8)
    assert (await scene.hears(JobRefused)).job == late
