"""Hold and release, change of priority and slice, and the same id again: as rules, and as a story over real servers."""

from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Altered, Change, Withdrawn
from allmende.admission.model.values import Job, Reason
from allmende.admission.rules import explaining
from allmende.admission.rules.changing import Wanted, altered
from allmende.proto import subjects
from allmende.proto.admission import JobChanged, JobEnded, JobGranted, JobQueued, JobRefused, JobsQuery, WhyQuery
from allmende.proto.commands import CancelJob, Changed, ChangeJob
from allmende.proto.envelope import Refusal
from allmende.proto.units import HOUR_MS, MINUTE_MS
from allmende.proto.user import Payload
from tests.admission.builders import NOW, TERMS, an_id, claim, granted_jobs, job, lab, node, run_pass
from tests.admission.scene import Scene
from tests.admission.test_service import answering, furnish


class Row(NamedTuple):
    """A sentence, the job as it is, what is wanted; then who starts, and what the job is."""

    sentence: str
    of: Job
    wanted: Wanted
    starts: list[int]
    becomes: dict[str, Any]


OTHER = job(2)
ROWS = (
    Row("held, it does not start, and others do", job(1), Wanted(held=True), [2], {"held": True}),
    Row("released, it starts in its place", job(1, held=True), Wanted(held=False), [1, 2], {"held": False}),
    Row("a priority moves it inside its leaf", job(1), Wanted(priority=-1), [2, 1], {"priority": -1}),
    Row("a slice is that of the next attempt", job(1), Wanted(slice_ms=MINUTE_MS), [1, 2], {"slice_ms": MINUTE_MS}),
    Row(
        "a slice that had grown is given up for the one wanted",
        job(1, next_slice_ms=8 * HOUR_MS),
        Wanted(slice_ms=MINUTE_MS),
        [1, 2],
        {"next_slice_ms": MINUTE_MS},
    ),
    Row("slice 0 is unallocated, behind all allocated", job(1), Wanted(slice_ms=0), [2, 1], {"slice_ms": 0}),
    Row("several at once", job(1, held=True), Wanted(held=False, priority=-1), [2, 1], {"held": False, "priority": -1}),
    Row("what is so already changes nothing", job(1, held=True), Wanted(held=True), [2], {"version": 0}),
)


def apply(books: Books, of: Job, wanted: Wanted) -> Change:
    change = altered(books, of, wanted, "u1", NOW, TERMS)
    assert isinstance(change, Change)
    books.apply(change)
    return change


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_what_is_wanted_holds_at_once(row: Row) -> None:
    books = lab([row.of, OTHER], [node(1)])
    apply(books, row.of, row.wanted)
    assert granted_jobs(run_pass(books).change) == [an_id(number) for number in row.starts]
    now = books.jobs[row.of.job]
    assert {key: getattr(now, key) for key in row.becomes} == row.becomes
    assert now.submitted_at_ms == row.of.submitted_at_ms


REFUSED = (
    ("above the cap", job(1), Wanted(slice_ms=8 * HOUR_MS + 1), "slice_above_cap"),
    (
        "longer than its maximum runtime",
        job(1, max_runtime_ms=2 * HOUR_MS),
        Wanted(slice_ms=3 * HOUR_MS),
        "max_runtime_below_slice",
    ),
    ("a slice that nobody pays", job(1, budget=None, slice_ms=0), Wanted(slice_ms=HOUR_MS), "no_covering_budget"),
    ("it starts already", job(1, state="starting"), Wanted(held=True), "not_waiting"),
    ("it runs", job(1, state="running"), Wanted(priority=1), "not_waiting"),
    ("it is leaving", job(1, state="ending"), Wanted(slice_ms=0), "not_waiting"),
)


@pytest.mark.parametrize(("sentence", "of", "wanted", "code"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_may_not_be_is_refused_as_at_submission(sentence: str, of: Job, wanted: Wanted, code: str) -> None:
    # Together with a change that would be right: all or nothing.
    found = altered(lab([of], [node(1)]), of, replace_priority(wanted), "u1", NOW, TERMS)
    assert isinstance(found, Reason), sentence
    assert found.code == code


def replace_priority(wanted: Wanted) -> Wanted:
    return wanted._replace(priority=5)


@pytest.mark.parametrize("wanted", [Wanted(held=True), Wanted(slice_ms=MINUTE_MS), Wanted(priority=3)])
def test_an_open_claim_was_for_what_the_job_was(wanted: Wanted) -> None:
    of = job(1, gpus_per_replica=8)
    raised = claim(1, of)
    books = lab([replace(of, claim=raised.claim)], [node(1)], claims=[raised])
    change = apply(books, books.jobs[of.job], wanted)
    assert books.claims == {}
    assert books.jobs[of.job].claim is None
    assert [type(fact) for fact in change.facts] == [Withdrawn, Altered]


def test_whoever_is_held_reads_so_and_nothing_else() -> None:
    books = lab([job(1, held=True, gpus_per_replica=64)], [node(1)])
    outlook = run_pass(books).outlook
    reasons = explaining.blockers(books.jobs[an_id(1)], books, {"c1": outlook}, NOW, TERMS)
    assert [reason.code for reason in reasons] == ["held"]


# ----------------------------------------------------------------------------------------------------------------------- as a story


@pytest_asyncio.fixture
async def scene(scene: Scene) -> Scene:
    """Admission runs, with a tree, a node of 8 GPUs and standings."""
    await scene.start(operators='["olga"]')
    await answering(scene)
    await furnish(scene)
    return scene


async def changes(scene: Scene, caller: str, role: str = "gateway", **fields: Any) -> Changed:
    reply = await scene.ask(subjects.CHANGE, ChangeJob(**fields), caller=caller, role=role)
    assert isinstance(reply, Changed)
    return reply


async def refused(scene: Scene, caller: str, **fields: Any) -> str:
    """The code with which a change is refused."""
    with pytest.raises(Refusal) as found:
        await changes(scene, caller, **fields)
    return found.value.problem.code


async def test_held_and_released_by_owner_and_operator(scene: Scene) -> None:
    """BR-054: a job that is there is changed by its owner alone, and never charged to anybody else."""
    first = await scene.submit(gpus_per_replica=8)
    grant = await scene.hears(JobGranted)
    waits = await scene.submit(gpus_per_replica=8)
    other = await scene.submit(user="bob", budget="b", gpus_per_replica=8)
    await scene.hears(JobQueued, lambda body: body.job == other)
    assert await refused(scene, "bob", job=waits, held=True) == "not_your_job"
    assert await refused(scene, "alice", job=first, held=True) == "not_waiting"
    assert await refused(scene, "alice", job=waits, slice_ms=9 * HOUR_MS) == "slice_above_cap"
    # There is no field that names a budget.
    assert "budget" not in ChangeJob.__struct_fields__
    held = await changes(scene, "alice", job=waits, held=True)
    assert (held.status, held.held, held.slice_ms) == ("changed", True, HOUR_MS)
    said = await scene.hears(JobChanged)
    assert (said.job, said.held, said.author, said.user) == (waits, True, "alice", "alice")
    assert (await changes(scene, "alice", job=waits, held=True)).status == "unchanged"
    page = await scene.ask(subjects.JOBS, JobsQuery(states=("queued",)))
    assert {each.job: each.held for each in page.jobs} == {waits: True, other: False}  # type: ignore[attr-defined]
    await scene.ended(grant)
    second = await scene.hears(JobGranted, lambda body: body.job == other)
    await scene.ended(second)
    assert (await changes(scene, "olga", "operator", job=waits, held=False)).held is False
    assert (await scene.hears(JobGranted, lambda body: body.job == waits)).slice_ms == HOUR_MS
    kinds = [each.kind for each in (await scene.ask(subjects.WHY, WhyQuery(job=waits))).decisions]  # type: ignore[attr-defined]
    assert kinds.count("changed") == 2


async def test_the_same_submission_again_changes_nothing_and_another_one_is_refused(scene: Scene) -> None:
    name = await scene.submit(gpus_per_replica=8)
    grant = await scene.hears(JobGranted)
    await scene.submit(job=name, gpus_per_replica=8)
    await scene.submit(job=name, gpus_per_replica=4)
    no = await scene.hears(JobRefused)
    assert (no.job, no.user, no.problem.code) == (name, "alice", "job_id_reused")
    # What it runs counts too.
    await scene.submit(job=name, gpus_per_replica=8, payload=Payload(command=("rm", "everything")))
    await scene.all(JobRefused, 2)
    await scene.ended(grant)
    await scene.hears(JobEnded)
    # Nor after its end.
    await scene.submit(job=name, gpus_per_replica=8)
    await scene.submit(job=name, gpus_per_replica=2)
    await scene.all(JobRefused, 3)
    assert len(scene.said(JobGranted)) == 1
    assert {body.problem.code for body in scene.said(JobRefused)} == {"job_id_reused"}


async def test_a_submission_is_the_same_after_a_change_of_the_job(scene: Scene) -> None:
    await scene.submit(gpus_per_replica=8)
    await scene.hears(JobGranted)
    waits = await scene.submit(gpus_per_replica=8)
    await scene.hears(JobQueued, lambda body: body.job == waits)
    await changes(scene, "alice", job=waits, priority=3, slice_ms=MINUTE_MS)
    await scene.submit(job=waits, gpus_per_replica=8)
    after = await scene.submit(slice_ms=9 * HOUR_MS)
    assert (await scene.hears(JobRefused)).job == after
    assert (await changes(scene, "alice", job=waits)).priority == 3


async def test_cancelled_before_the_agent_has_started_it(scene: Scene) -> None:
    """Granted and not running yet: the agent is told, and what it then says about the end is the end."""
    name = await scene.submit(gpus_per_replica=8)
    grant = await scene.hears(JobGranted)
    assert (await scene.ask(subjects.CANCEL, CancelJob(job=name), caller="alice")).status == "ending"  # type: ignore[attr-defined]
    await scene.ended(grant, "never_started")
    assert (await scene.hears(JobEnded)).outcome == "cancelled"
    after = await scene.submit(gpus_per_replica=8)
    assert (await scene.hears(JobGranted, lambda body: body.job == after)).grant_seq == 2
