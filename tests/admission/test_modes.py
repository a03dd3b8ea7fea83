"""Policies as operators set them, over real NATS and PostgreSQL: the three modes, the three answers to over budget, and the rows.

All others are played by hand (tests/admission/scene.py).
"""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from allmende.proto import subjects
from allmende.proto.admission import (
    AttemptProtected,
    AttemptStopOrdered,
    ClaimRaised,
    ClaimWithdrawn,
    JobEnded,
    JobGranted,
    JobQueued,
    JobRefused,
    QueueQuery,
    WhyQuery,
)
from allmende.proto.envelope import Refusal
from allmende.proto.policy import (
    Policy,
    PolicyChanged,
    PolicyHistoryPage,
    PolicyHistoryQuery,
    PolicyQuery,
    PolicyReply,
    PolicySet,
    SetPolicy,
)
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.admission.scene import PATIENCE_S, Scene
from tests.admission.test_service import answering, furnish
from tests.servers import Lab


@pytest_asyncio.fixture
async def scene(scene: Scene) -> Scene:
    """Admission runs, with a tree, one node of 8 GPUs and standings to be said."""
    await scene.start()
    await answering(scene)
    return scene


async def decree(scene: Scene, revision: int, cluster: str = "c1", **fields: Any) -> PolicySet:
    """The operator sets a policy; returns the answer."""
    request = SetPolicy(cluster=cluster, expected_revision=revision, reason="a test", policy=Policy(**fields))
    reply = await scene.ask(subjects.SET_POLICY, request, caller="olga", role="operator")
    assert isinstance(reply, PolicySet)
    return reply


async def kinds(scene: Scene, job: str) -> list[str]:
    return [decision.kind for decision in (await scene.ask(subjects.WHY, WhyQuery(job=job))).decisions]  # type: ignore[attr-defined]


async def waits_for(scene: Scene, job: str) -> list[str]:
    """The blockers of a waiting job."""
    return [blocker.code for blocker in (await scene.ask(subjects.WHY, WhyQuery(job=job))).blockers]  # type: ignore[attr-defined]


async def is_told(scene: Scene, job: str, codes: list[str]) -> None:
    """Wait until a waiting job has these blockers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await waits_for(scene, job) == codes:
                return
            await asyncio.sleep(0.02)


async def test_observe_then_admit_then_enforce(scene: Scene) -> None:
    """A lab adopts us step by step: what would be done is said, then grants, then evictions; nothing that runs is ever touched."""
    await decree(scene, 0, mode="observe")
    await furnish(scene, b=50)
    held = await scene.submit(user="bob", budget="b", gpus_per_replica=8, slice_ms=1)
    await scene.hears(JobQueued, lambda body: body.job == held)
    assert await waits_for(scene, held) == ["observed"]
    why = await scene.ask(subjects.WHY, WhyQuery(job=held))
    (would,) = [decision for decision in why.decisions if decision.kind == "would"]  # type: ignore[attr-defined]
    assert would.sentence.startswith("mode observe: would have been granted 1 x 8 GPUs on 1 node of c1")
    # Said once, however often is looked.
    await scene.tick()
    await scene.standings(org=0, a=0, b=50)
    assert (await kinds(scene, held)).count("would") == 1
    assert scene.said(JobGranted) == []

    await decree(scene, 1, mode="admit")
    grant = await scene.hears(JobGranted)
    assert grant.job == held
    await scene.started(grant)
    await scene.hears(AttemptProtected)
    # Owed time, and whoever runs is past his slice: enough for a claim, were there evictions.
    owed = await scene.submit(gpus_per_replica=8)
    await scene.hears(JobQueued, lambda body: body.job == owed)
    await scene.standings(org=10, a=0, b=120)
    assert (await scene.ask(subjects.QUEUE, QueueQuery())).waiting == 1  # type: ignore[attr-defined]
    assert scene.said(ClaimRaised) == []

    await decree(scene, 2, mode="enforce")
    claim = await scene.hears(ClaimRaised)
    assert claim.job == owed

    answer = await decree(scene, 3, mode="observe")
    assert answer.claims == 1
    withdrawn = await scene.hears(ClaimWithdrawn)
    assert (withdrawn.claim, withdrawn.reason) == (claim.claim, "cancelled")
    # What runs goes on, and its end is booked as ever.
    assert scene.said(AttemptStopOrdered) == []
    await scene.ended(grant, exit_code=0)
    assert (await scene.hears(JobEnded)).outcome == "finished"
    assert await waits_for(scene, owed) == ["observed"]
    assert len(scene.said(JobGranted)) == 1


async def test_paused_and_resumed(scene: Scene) -> None:
    await furnish(scene)
    await decree(scene, 0, paused=True)
    job = await scene.submit()
    await scene.hears(JobQueued)
    assert await waits_for(scene, job) == ["paused"]
    assert "would" not in await kinds(scene, job)
    await decree(scene, 1, paused=False)
    assert (await scene.hears(JobGranted)).job == job


async def test_over_budget_queue(scene: Scene) -> None:
    """Behind everyone within budget, charged and protected as any other."""
    await decree(scene, 0, over_budget="queue")
    await scene.nodes(1, 4)
    over = await scene.submit(gpus_per_replica=4)
    owed = await scene.submit(user="bob", budget="b", gpus_per_replica=4)
    await furnish(scene, gpus=4, a=100, b=50)
    grant = await scene.hears(JobGranted)
    assert (grant.job, grant.budget) == (owed, "b")
    await scene.ended(grant)
    second = await scene.hears(JobGranted, lambda body: body.job == over)
    assert (second.budget, second.slice_ms) == ("a", HOUR_MS)


async def test_over_budget_unallocated(scene: Scene) -> None:
    """It may start now, uncharged and interruptible; back within budget its next attempt is charged again."""
    await decree(scene, 0, over_budget="unallocated")
    await furnish(scene, a=100)
    over = await scene.submit(gpus_per_replica=4)
    grant = await scene.hears(JobGranted)
    assert (grant.job, grant.budget, grant.slice_ms, grant.hold_gpu_ms) == (over, None, 0, 0)
    await scene.started(grant)
    protected = await scene.hears(AttemptProtected)
    assert protected.protected_until_ms == protected.started_at_ms
    await scene.standings(org=0, a=50, b=0)
    within = await scene.submit(gpus_per_replica=4)
    assert (await scene.hears(JobGranted, lambda body: body.job == within)).budget == "a"


async def test_over_budget_refuse(scene: Scene) -> None:
    """Refused at once and in numbers; whoever was accepted before waits, and starts once its leaf is below 1."""
    await decree(scene, 0, over_budget="refuse")
    await furnish(scene, gpus=4, a=50)
    first = await scene.submit(gpus_per_replica=4)
    grant = await scene.hears(JobGranted)
    waits = await scene.submit(gpus_per_replica=4)
    await scene.hears(JobQueued, lambda body: body.job == waits)
    await scene.standings(org=0, a=100, b=0)
    # The standing and the submission come on different streams.
    await is_told(scene, waits, ["over_budget"])
    refused = await scene.submit()
    no = await scene.hears(JobRefused)
    assert (no.job, no.problem.code) == (refused, "over_budget")
    await scene.ended(grant)
    assert (await scene.hears(JobEnded)).job == first
    assert await waits_for(scene, waits) == ["over_budget"]
    await scene.standings(org=0, a=99, b=0)
    assert (await scene.hears(JobGranted, lambda body: body.job == waits)).budget == "a"


async def test_limits_hold_and_a_raised_one_acts_at_once(scene: Scene) -> None:
    await decree(scene, 0, gpus_at_once={"a": 4})
    await furnish(scene)
    first, second = [await scene.submit(gpus_per_replica=4) for _each in range(2)]
    assert (await scene.hears(JobGranted)).job == first
    await scene.hears(JobQueued, lambda body: body.job == second)
    assert await waits_for(scene, second) == ["gpu_limit"]
    await decree(scene, 1, gpus_at_once={"a": 8})
    assert (await scene.hears(JobGranted, lambda body: body.job == second)).grant_seq == 2
    # Cut below what is held: nobody is stopped.
    await decree(scene, 2, gpus_at_once={"a": 0})
    assert scene.said(AttemptStopOrdered) == []


async def test_a_limit_of_a_budget_that_is_not_in_the_tree_is_refused_by_name(scene: Scene) -> None:
    await furnish(scene)
    await scene.submit()
    # Whoever grants has a tree: before that no name is judged.
    await scene.hears(JobGranted)
    with pytest.raises(Refusal) as unknown:
        await decree(scene, 0, gpus_at_once={"a": 4, **{f"vison-{number:02}": 8 for number in range(12)}})
    problem = unknown.value.problem
    assert problem.code == "unknown_budget"
    assert "vison-00, vison-01," in problem.sentence
    assert "vison-09 and 2 more;" in problem.sentence
    assert " a," not in problem.sentence
    assert (await decree(scene, 0, gpus_at_once={"a": 4, "org": 8})).status == "committed"


async def test_a_policy_is_written_once_told_to_all_and_kept(scene: Scene) -> None:
    await scene.tree([])
    reply = await scene.ask(subjects.POLICY, PolicyQuery(cluster="c1"))
    assert reply == PolicyReply(cluster="c1", known=False, revision=0, policy=Policy(), slice_cap_ms=8 * HOUR_MS)
    assert (await decree(scene, 0, slice_cap_ms=4 * HOUR_MS)).status == "committed"
    changed = await scene.hears(PolicyChanged)
    assert (changed.cluster, changed.revision, changed.author, changed.policy.slice_cap_ms) == ("c1", 1, "olga", 4 * HOUR_MS)
    assert (await decree(scene, 1, slice_cap_ms=4 * HOUR_MS)).status == "unchanged"
    with pytest.raises(Refusal) as stale:
        await decree(scene, 0, mode="admit")
    assert stale.value.problem.code == "stale_policy"
    with pytest.raises(Refusal) as bounds:
        await decree(scene, 1, slice_min_ms=2 * MINUTE_MS, slice_cap_ms=MINUTE_MS)
    assert bounds.value.problem.code == "slice_bounds"
    with pytest.raises(Refusal):
        # People without the operator's role cannot even ask: the server refuses it.
        await scene.ask(subjects.SET_POLICY, SetPolicy(cluster="c1", expected_revision=1, reason="mine", policy=Policy()))
    assert (await decree(scene, 1, mode="admit")).revision == 2
    await decree(scene, 0, cluster="c2", paused=True)
    page = await scene.ask(subjects.POLICY_HISTORY, PolicyHistoryQuery(cluster="c1"))
    assert isinstance(page, PolicyHistoryPage)
    assert [(each.revision, each.policy.mode) for each in page.policies] == [(2, "admit"), (1, "enforce")]
    newest, first = page.policies
    assert (newest.until_ms, first.until_ms, page.next_before) == (None, newest.from_ms, None)
    assert [each.type for each in scene.envelopes if isinstance(each.body, PolicyChanged)] == ["policy.changed"] * 3


async def test_the_history_is_paged_and_says_when_each_held(scene: Scene) -> None:
    for revision in range(5):
        await decree(scene, revision, sessions_per_user=revision)
    whole = await scene.ask(subjects.POLICY_HISTORY, PolicyHistoryQuery(cluster="c1"))
    found, before = [], None
    while True:
        page = await scene.ask(subjects.POLICY_HISTORY, PolicyHistoryQuery(cluster="c1", before=before, limit=2))
        found += page.policies  # type: ignore[attr-defined]
        before = page.next_before  # type: ignore[attr-defined]
        if before is None:
            break
    assert tuple(found) == whole.policies  # type: ignore[attr-defined]
    assert [each.revision for each in found] == [5, 4, 3, 2, 1]


async def test_a_restart_goes_on_with_the_policy(lab: Lab) -> None:
    scene = Scene(lab)
    await scene.open()
    process = await scene.start()
    await answering(scene)
    await decree(scene, 0, paused=True)
    await furnish(scene)
    job = await scene.submit()
    await scene.hears(JobQueued)
    await scene.kill(process)
    await scene.start()
    await answering(scene)
    await scene.tick()
    reply = await scene.ask(subjects.POLICY, PolicyQuery(cluster="c1"))
    assert (reply.revision, reply.policy.paused) == (1, True)  # type: ignore[attr-defined]
    assert scene.said(JobGranted) == []
    await decree(scene, 1)
    assert (await scene.hears(JobGranted)).job == job
    await scene.close()
