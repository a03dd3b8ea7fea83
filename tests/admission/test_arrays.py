"""Job arrays (decision 0037): one submission, many jobs, over real servers; ids that follow one another."""

import asyncio

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from allmende.proto import subjects
from allmende.proto.admission import JobEnded, JobGranted, JobQueued, JobRefused, JobsPage, JobsQuery, QueuePage, QueueQuery
from allmende.proto.commands import CancelJob, Cancelled, Changed, ChangeJob
from allmende.proto.envelope import Refusal
from allmende.proto.ids import ENTROPY_BYTES, following, is_id, make_id
from allmende.proto.payload import PayloadQuery, PayloadReply
from allmende.proto.user import MAX_ARRAY, MAX_VARIABLES, Payload
from tests.admission.scene import PATIENCE_S, Scene
from tests.admission.test_service import answering, furnish
from tests.servers import Lab

# Ten thousand take the same way, three times as long.
MANY = 3_000


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=ENTROPY_BYTES, max_size=ENTROPY_BYTES), st.integers(0, MAX_ARRAY - 1))
def test_ids_that_follow_are_ids_in_order(now_ms: int, entropy: bytes, steps: int) -> None:
    first = make_id(now_ms, entropy)
    try:
        found = following(first, steps)
    except ValueError:
        assert (now_ms << 80 | int.from_bytes(entropy, "big")) + steps >= 1 << 128
        return
    assert is_id(found)
    assert (found > first) == (steps > 0)
    assert following(following(first, steps // 2), steps - steps // 2) == found


def test_the_last_id_of_all_has_none_behind_it() -> None:
    with pytest.raises(ValueError, match="there is no id"):
        following("7" + "z" * 25, 1)


@pytest_asyncio.fixture
async def scene(scene: Scene) -> Scene:
    """Admission with a tree, a node of 8 GPUs and standings."""
    await scene.start()
    await furnish(scene)
    await answering(scene)
    return scene


async def cancelled(scene: Scene, job: str) -> int:
    """Cancel a whole array, however often one must ask; returns how many jobs it were."""
    count, left = 0, 1
    while left:
        reply = await scene.ask(subjects.CANCEL, CancelJob(job=job, array=True), caller="alice")
        assert isinstance(reply, Cancelled)
        count, left = count + reply.jobs, reply.left
    return count


async def jobs_of(scene: Scene, array: str) -> list[tuple[int, str]]:
    """Of each job of the array its index and state."""
    page = await scene.ask(subjects.JOBS, JobsQuery(array=array, limit=100))
    assert isinstance(page, JobsPage)
    return sorted((each.array.index, each.state) for each in page.jobs if each.array is not None)


async def test_each_job_of_an_array_starts_by_itself_and_finds_its_number(scene: Scene) -> None:
    first = await scene.submit(array=3, gpus_per_replica=4, payload=Payload(command=("train",), environment={"A": "1"}))
    queued = await scene.all(JobQueued, 3)
    names = [following(first, step) for step in range(3)]
    assert sorted(each.job for each in queued) == names
    grants = await scene.all(JobGranted, 2)
    assert [each.job for each in grants] == names[:2]
    reply = await scene.ask(subjects.PAYLOAD, PayloadQuery(attempt=grants[1].attempt), caller="c1", role="agent")
    assert isinstance(reply, PayloadReply)
    place = {"ALLMENDE_ARRAY_JOB": first, "ALLMENDE_ARRAY_INDEX": "1", "ALLMENDE_ARRAY_SIZE": "3"}
    assert reply.payload.environment == {"A": "1", **place}
    await scene.started(grants[0])
    await scene.ended(grants[0])
    await scene.all(JobGranted, 3)
    assert await jobs_of(scene, names[2][-8:]) == [(0, "ended"), (1, "starting"), (2, "starting")]


async def test_it_is_one_submission_repeated_or_not(scene: Scene) -> None:
    first = await scene.submit(array=3, gpus_per_replica=8)
    await scene.all(JobQueued, 3)
    await scene.submit(job=first, array=3, gpus_per_replica=8)
    await scene.submit(job=first, array=4, gpus_per_replica=8)
    refused = await scene.hears(JobRefused)
    assert (refused.job, refused.problem.code) == (first, "job_id_reused")
    # An id in the middle of another array is taken too, whoever asks.
    await scene.submit(job=following(first, 2), array=2, gpus_per_replica=8)
    refused = await scene.hears(JobRefused, lambda each: each.job == following(first, 2))
    assert refused.problem.code == "job_id_reused"
    before = following(first, -1)
    await scene.submit(job=before, array=2, gpus_per_replica=8)
    refused = await scene.hears(JobRefused, lambda each: each.job == before)
    assert refused.problem.code == "job_id_taken"
    assert await jobs_of(scene, first) == [(0, "starting"), (1, "queued"), (2, "queued")]


async def test_what_can_never_run_is_refused_once(scene: Scene) -> None:
    first = await scene.submit(array=500, budget="nobody")
    refused = await scene.hears(JobRefused)
    assert (refused.job, refused.problem.code) == (first, "unknown_budget")
    crowded = Payload(command=("x",), environment={f"V{number}": "" for number in range(MAX_VARIABLES - 2)})
    second = await scene.submit(array=2, payload=crowded)
    refused = await scene.hears(JobRefused, lambda each: each.job == second)
    assert refused.problem.code == "too_many_variables"
    page = await scene.ask(subjects.JOBS, JobsQuery())
    assert isinstance(page, JobsPage)
    assert [(each.job, each.outcome) for each in page.jobs] == [(first, "refused")]


async def test_all_of_an_array_are_held_released_changed_and_cancelled_at_once(scene: Scene) -> None:
    first = await scene.submit(array=4, gpus_per_replica=8)
    await scene.all(JobQueued, 4)
    await scene.hears(JobGranted)
    held = await scene.ask(subjects.CHANGE, ChangeJob(job=first, array=True, held=True), caller="alice")
    assert isinstance(held, Changed)
    assert (held.status, held.jobs, held.held) == ("changed", 3, True)
    changed = await scene.ask(subjects.CHANGE, ChangeJob(job=first, array=True, priority=5), caller="alice")
    assert isinstance(changed, Changed)
    assert (changed.jobs, changed.priority) == (3, 5)
    with pytest.raises(Refusal) as caught:
        await scene.ask(subjects.CANCEL, CancelJob(job=first, array=True), caller="bob")
    assert caught.value.problem.code == "not_your_job"
    assert await cancelled(scene, following(first, 3)) == 4
    await scene.all(JobEnded, 3)
    with pytest.raises(Refusal) as caught:
        await scene.ask(subjects.CHANGE, ChangeJob(job=first, array=True, held=False), caller="alice")
    assert caught.value.problem.code == "not_waiting"


async def waiting(scene: Scene, count: int) -> None:
    """Wait until so many jobs wait; admission answers all the while."""
    async with asyncio.timeout(6 * PATIENCE_S):
        while True:
            page = await scene.ask(subjects.QUEUE, QueueQuery(limit=1))
            assert isinstance(page, QueuePage)
            if page.waiting == count:
                return
            await asyncio.sleep(0.1)


async def test_thousands_of_jobs_are_made_though_admission_is_killed_in_between(lab: Lab) -> None:
    scene = Scene(lab)
    await scene.open()
    try:
        killed = await scene.start()
        await furnish(scene)
        await answering(scene)
        first = await scene.submit(array=MANY, gpus_per_replica=8)
        await scene.all(JobQueued, 300)
        await scene.submit(job=following(first, MANY - 1))
        refused = await scene.hears(JobRefused)
        assert refused.problem.code == "job_id_taken", "an id that one of them will have"
        await scene.kill(killed)
        await scene.start()
        await answering(scene)
        await waiting(scene, MANY - 1)
        page = await scene.ask(subjects.QUEUE, QueueQuery(limit=1))
        assert isinstance(page, QueuePage)
        assert page.entries[0].job == following(first, 1)
        assert await cancelled(scene, first) == MANY
    finally:
        await scene.close()


async def test_what_is_cancelled_while_it_is_made_is_made_no_further(scene: Scene) -> None:
    first = await scene.submit(array=MAX_ARRAY, gpus_per_replica=8)
    await scene.hears(JobGranted)
    assert await cancelled(scene, first) == MAX_ARRAY
    made = len(scene.said(JobQueued))
    assert made < MAX_ARRAY
    await waiting(scene, 0)
    await scene.submit(gpus_per_replica=8, budget="b")
    await waiting(scene, 1)


async def test_what_is_held_while_it_is_made_comes_held(scene: Scene) -> None:
    await scene.submit(gpus_per_replica=8, budget="b")
    await scene.hears(JobGranted)
    first = await scene.submit(array=2_000, gpus_per_replica=8)
    await scene.hears(JobQueued, lambda each: each.job == first)
    left = 1
    while left:
        held = await scene.ask(subjects.CHANGE, ChangeJob(job=first, array=True, held=True, priority=7), caller="alice")
        assert isinstance(held, Changed)
        left = held.left
    await waiting(scene, 2_000)
    page = await scene.ask(subjects.QUEUE, QueueQuery(limit=100, offset=1_900))
    assert isinstance(page, QueuePage)
    assert {blocker.code for each in page.entries for blocker in each.blockers} >= {"held"}
