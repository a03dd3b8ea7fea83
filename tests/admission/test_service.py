"""Admission as a process over real NATS and PostgreSQL; all others are played by hand."""

import asyncio

import pytest

from allmende.chassis.errors import Transient
from allmende.proto import subjects
from allmende.proto.admission import (
    AttemptProtected,
    ClaimRaised,
    ClaimWithdrawn,
    JobEnded,
    JobGranted,
    JobQueued,
    JobRefused,
    JobsQuery,
    NodesQuery,
    QueueQuery,
    WhyQuery,
)
from allmende.proto.budget import Budget
from allmende.proto.commands import CancelJob
from allmende.proto.envelope import Refusal
from allmende.proto.message import MessageRefused
from allmende.proto.payload import PayloadQuery
from allmende.proto.units import HOUR_MS
from tests.admission.scene import PATIENCE_S, Scene

PEOPLE = ("alice", "bob")
TREE = [
    Budget(budget="org"),
    Budget(budget="a", parent="org", share_ppm=400_000, members=PEOPLE),
    Budget(budget="b", parent="org", share_ppm=400_000, members=PEOPLE),
]


async def furnish(scene: Scene, nodes: int = 1, gpus: int = 8, a: int = 0, b: int = 0) -> None:
    """A tree, nodes and standings."""
    await scene.tree(TREE)
    await scene.nodes(nodes, gpus)
    await scene.standings(org=a, a=a, b=b)


async def answering(scene: Scene) -> None:
    """Wait until the service answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await scene.ask(subjects.QUEUE, QueueQuery())
            except (Transient, Refusal):
                await asyncio.sleep(0.05)
            else:
                return


async def test_the_life_of_a_job(scene: Scene) -> None:
    await scene.start()
    await furnish(scene)
    job = await scene.submit(gpus_per_replica=8, name="first")
    grant = await scene.hears(JobGranted)
    assert (grant.job, grant.budget, grant.grant_seq, grant.hold_gpu_ms) == (job, "a", 1, 8 * HOUR_MS)
    assert [(part.node, part.replicas) for part in grant.placement] == [("n001", 1)]
    payload = await scene.ask(subjects.PAYLOAD, PayloadQuery(attempt=grant.attempt), caller="c1", role="agent")
    assert payload.payload.command == ("train", "alice")
    second = await scene.submit(user="bob", budget="b")
    queued = await scene.hears(JobQueued, lambda body: body.job == second)
    assert [blocker.code for blocker in queued.blockers] == ["no_room"]
    await scene.started(grant)
    protected = await scene.hears(AttemptProtected)
    assert protected.protected_until_ms == protected.started_at_ms + HOUR_MS
    await scene.ended(grant, exit_code=0)
    ended = await scene.hears(JobEnded)
    assert (ended.job, ended.outcome, ended.attempts) == (job, "finished", 1)
    assert ended.first_started_at_ms == protected.started_at_ms
    assert (await scene.hears(JobGranted, lambda body: body.job == second)).grant_seq == 2
    why = await scene.ask(subjects.WHY, WhyQuery(job=job[-8:]))
    assert [decision.kind for decision in why.decisions] == ["queued", "granted", "started", "ended"]
    assert why.job.state == "ended"
    with pytest.raises(Refusal) as refused:
        await scene.ask(subjects.PAYLOAD, PayloadQuery(attempt=grant.attempt), caller="c1", role="agent")
    assert refused.value.problem.code == "unknown_attempt"


async def test_killed_in_mid_life_it_goes_on_where_it_was(scene: Scene) -> None:
    """BR-033: what runs counts after a restart as before, and no protection begins again."""
    process = await scene.start()
    await furnish(scene)
    running = await scene.submit(gpus_per_replica=8)
    grant = await scene.hears(JobGranted)
    await scene.started(grant)
    await scene.hears(AttemptProtected)
    waiting = await scene.submit(user="bob", budget="b", gpus_per_replica=8)
    await scene.hears(JobQueued, lambda body: body.job == waiting)
    await scene.kill(process)
    # Said while nobody hears.
    await scene.ended(grant)
    late = await scene.submit(user="bob", budget="b", gpus_per_replica=8)
    await scene.start()
    await scene.tick()
    second = await scene.hears(JobGranted, lambda body: body.job == waiting)
    assert (await scene.hears(JobEnded)).job == running
    assert second.grant_seq == 2
    assert second.fence > grant.fence
    await scene.hears(JobQueued, lambda body: body.job == late)
    assert len(scene.said(AttemptProtected)) == 1
    assert len(scene.said(JobGranted)) == 2


async def test_messages_repeated_and_out_of_order_change_nothing(scene: Scene) -> None:
    await scene.start()
    await furnish(scene)
    job = await scene.submit(gpus_per_replica=8)
    for _repeat in range(3):
        await scene.submit(job=job, gpus_per_replica=8)
    grant = await scene.hears(JobGranted)
    await scene.freed(grant, "n001", 4)
    await scene.freed(grant, "n001", 4)
    await scene.ended(grant)
    await scene.started(grant)
    await scene.ended(grant)
    await scene.freed(grant, "n001", 8)
    assert (await scene.hears(JobEnded)).outcome == "finished"
    after = await scene.submit(gpus_per_replica=8)
    await scene.hears(JobGranted, lambda body: body.job == after)
    page = await scene.ask(subjects.NODES, NodesQuery())
    assert [(node.node, node.held_gpus) for node in page.nodes] == [("n001", 8)]
    assert (len(scene.said(JobEnded)), len(scene.said(JobGranted)), scene.said(AttemptProtected)) == (1, 2, [])


async def test_two_replicas_one_stands_by_and_takes_over(scene: Scene) -> None:
    """BR-011 and BR-042: who stands by decides nothing, and begins with what is stored, in a term of its own."""
    first = await scene.start("first")
    await furnish(scene)
    job = await scene.submit(gpus_per_replica=8)
    grant = await scene.hears(JobGranted)
    await scene.start("second")
    await scene.kill(first)
    await scene.started(grant)
    protected = await scene.hears(AttemptProtected)
    assert protected.job == job
    await scene.ended(grant)
    after = await scene.submit(gpus_per_replica=8)
    await scene.tick()
    assert (await scene.hears(JobGranted, lambda body: body.job == after)).fence > grant.fence


async def test_what_can_never_run_is_refused_and_disturbs_nobody(scene: Scene) -> None:
    await scene.start(real_settle_ms=0)
    await furnish(scene)
    await answering(scene)
    jobs = {
        await scene.submit(budget="nowhere"): "unknown_budget",
        await scene.submit(budget="org"): "budget_not_leaf",
        await scene.submit(user="mallory"): "not_a_member",
        await scene.submit(budget=None): "no_covering_budget",
        await scene.submit(slice_ms=9 * HOUR_MS): "slice_above_cap",
        await scene.submit(max_runtime_ms=1): "max_runtime_below_slice",
        await scene.submit(gpus_per_replica=9): "never_fits",
        await scene.submit(clusters=("c9",)): "unknown_cluster",
        await scene.submit(gpu_model="abacus"): "unknown_gpu_model",
    }
    good = await scene.submit(name="good \x00 enough")
    refused = await scene.all(JobRefused, len(jobs))
    assert {each.job: each.problem.code for each in refused} == jobs
    assert (await scene.hears(JobGranted)).job == good
    taken = await scene.submit(user="bob", job=good)
    assert (await scene.hears(JobRefused, lambda body: body.user == "bob")).problem.code == "job_id_taken"
    assert taken == good
    why = await scene.ask(subjects.WHY, WhyQuery(job=next(iter(jobs))))
    assert why.decisions[-1].kind == "refused"
    assert why.decisions[-1].sentence.startswith("unknown_budget: ")
    page = await scene.ask(subjects.JOBS, JobsQuery(states=("ended",)))
    assert len(page.jobs) == len(jobs)
    # Bytes that are no message at all.
    gateway = await scene.lab.bus("gateway")
    await gateway.publish(f"user.job_submitted.v1.alice.{good}", "x", b"{not json")
    assert (await scene.hears(MessageRefused)).problem.code == "malformed_json"


async def test_until_everything_is_known_nothing_is_decided(scene: Scene) -> None:
    """BR-045 and BR-055: before tree, standings and capacity are known nobody is admitted, refused or evicted."""
    await scene.start()
    await answering(scene)
    early, stranger = await scene.submit(gpus_per_replica=8), await scene.submit(user="mallory")
    queued = await scene.hears(JobQueued, lambda body: body.job == early)
    assert [blocker.code for blocker in queued.blockers] == ["tree_unknown", "capacity_unknown"]
    # The two come in two batches where the machine is busy: the queue has both only once both are said.
    await scene.hears(JobQueued, lambda body: body.job == stranger)
    page = await scene.ask(subjects.QUEUE, QueueQuery())
    assert (page.ready, page.waiting, len(page.not_ready)) == (False, 2, 2)
    await scene.tree(TREE)
    assert (await scene.hears(JobRefused)).job == stranger
    await scene.nodes(1)
    await scene.tick()
    page = await scene.ask(subjects.QUEUE, QueueQuery())
    assert not page.ready
    assert scene.said(JobGranted) == []
    await scene.standings(org=0, a=0, b=0)
    assert (await scene.hears(JobGranted)).job == early
    page = await scene.ask(subjects.QUEUE, QueueQuery())
    assert page.ready


async def test_room_is_made_for_a_job_that_is_owed_time(scene: Scene) -> None:
    await scene.start()
    await furnish(scene, a=10, b=90)
    await scene.submit(user="bob", budget="b", gpus_per_replica=8, slice_ms=1)
    held = await scene.hears(JobGranted)
    await scene.started(held)
    await scene.hears(AttemptProtected)
    claimant = await scene.submit(gpus_per_replica=8)
    claim = await scene.hears(ClaimRaised)
    assert (claim.job, claim.budget, claim.newest_grant_seq, claim.hold_gpu_ms) == (claimant, "a", 1, 8 * HOUR_MS)
    await scene.answer(claim, victims=[held])
    await scene.freed(held, "n001", 8)
    await scene.ended(held, "evicted")
    grant = await scene.hears(JobGranted, lambda body: body.job == claimant)
    assert grant.claim == claim.claim
    assert (await scene.hears(ClaimWithdrawn)).reason == "started"
    back = await scene.hears(JobQueued, lambda body: body.after_attempt == held.attempt)
    assert back.submitted_at_ms <= held.granted_at_ms
    why = await scene.ask(subjects.WHY, WhyQuery(job=claimant))
    assert [decision.kind for decision in why.decisions] == ["queued", "claimed", "queued", "planned", "granted"]


async def test_a_job_is_cancelled_by_its_owner_or_an_operator_and_nobody_else(scene: Scene) -> None:
    await scene.start(operators='["olga"]')
    await furnish(scene)
    running, waiting = await scene.submit(gpus_per_replica=8), await scene.submit(gpus_per_replica=8)
    grant = await scene.hears(JobGranted)
    with pytest.raises(Refusal) as refused:
        await scene.ask(subjects.CANCEL, CancelJob(job=running), caller="bob")
    assert refused.value.problem.code == "not_your_job"
    with pytest.raises(Refusal) as refused:
        await scene.ask(subjects.CANCEL, CancelJob(job="0000"), caller="bob")
    assert refused.value.problem.code == "unknown_job"
    assert (await scene.ask(subjects.CANCEL, CancelJob(job=waiting), caller="olga", role="operator")).status == "ended"
    assert (await scene.ask(subjects.CANCEL, CancelJob(job=waiting), caller="alice")).status == "already_ended"
    assert (await scene.ask(subjects.CANCEL, CancelJob(job=running), caller="alice")).status == "ending"
    await scene.ended(grant, "stopped")
    ended = await scene.all(JobEnded, 2)
    assert {each.job: each.outcome for each in ended} == {running: "cancelled", waiting: "cancelled"}
