"""Reservations of the running service, over real servers: kept through a kill and a fail-over, asked for once, void aloud."""

import asyncio

from allmende.chassis.errors import Transient
from allmende.proto import subjects
from allmende.proto.admission import (
    AttemptProtected,
    ClaimRaised,
    JobGranted,
    JobQueued,
    QueueEntry,
    QueueQuery,
    WhyQuery,
)
from allmende.proto.agent import NodeReported
from allmende.proto.envelope import Refusal
from allmende.proto.units import HOUR_MS
from tests.admission.scene import PATIENCE_S, Scene
from tests.admission.test_modes import decree
from tests.admission.test_service import answering, furnish


async def full(scene: Scene, slice_ms: int) -> list[JobGranted]:
    """Two nodes, each held by a job of `b` that runs, and a policy that gathers nodes; nobody is over-served."""
    await answering(scene)
    await decree(scene, 0, reservations=1, reserve_from_gpus=16)
    await furnish(scene, nodes=2)
    for _each in range(2):
        await scene.submit(user="bob", budget="b", gpus_per_replica=8, slice_ms=slice_ms)
    grants = await scene.all(JobGranted, 2)
    for grant in grants:
        await scene.started(grant)
    await scene.all(AttemptProtected, 2)
    return grants


async def gang(scene: Scene) -> str:
    job = await scene.submit(replicas=2, gpus_per_replica=8)
    await scene.hears(JobQueued, lambda body: body.job == job)
    return job


async def entry(scene: Scene, job: str, starts_by_ms: int | None = None) -> QueueEntry:
    """The job in the queue, once something is promised to it; something else than `starts_by_ms`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                page = await scene.ask(subjects.QUEUE, QueueQuery())
            except (Transient, Refusal):
                await asyncio.sleep(0.02)
                continue
            for each in page.entries:  # type: ignore[attr-defined]
                if each.job == job and each.starts_by_ms not in (None, starts_by_ms):
                    assert isinstance(each, QueueEntry)
                    return each
            await asyncio.sleep(0.02)


async def sentences(scene: Scene, job: str) -> list[str]:
    return [each.sentence for each in (await scene.ask(subjects.WHY, WhyQuery(job=job))).decisions]  # type: ignore[attr-defined]


async def test_a_promise_outlives_a_kill_and_the_replica_that_takes_over_says_the_same(scene: Scene) -> None:
    first = await scene.start("first")
    await full(scene, HOUR_MS)
    job = await gang(scene)
    before = await entry(scene, job)
    assert "reserved" in [blocker.code for blocker in before.blockers]
    assert before.starts_by_ms is not None
    assert before.starts_by_ms > scene.now_ms() + HOUR_MS // 2
    await scene.start("second")
    await scene.kill(first)
    await answering(scene)
    await scene.tick()
    after = await entry(scene, job)
    assert after.starts_by_ms == before.starts_by_ms
    said = [
        each
        for each in await sentences(scene, job)
        if each.startswith("2 nodes are gathered for it on c1: it starts no later than")
    ]
    assert len(said) == 1, "it was promised once"


async def test_what_is_due_is_asked_for_once_on_the_nodes_by_name_and_starts_there(scene: Scene) -> None:
    """Nobody is over-served: without the reservation nobody could be told to leave. A fail-over asks no second time."""
    first = await scene.start("first")
    grants = await full(scene, 1)
    job = await gang(scene)
    claim = await scene.hears(ClaimRaised)
    assert (claim.job, sorted(claim.reserved_nodes)) == (job, ["n001", "n002"])
    await scene.start("second")
    await scene.kill(first)
    await answering(scene)
    for node in ("n001", "n002"):
        await scene.tick(node)
    for grant in grants:
        await scene.ended(grant, exit_code=0)
    started = await scene.hears(JobGranted, lambda body: body.job == job)
    assert sorted(part.node for part in started.placement) == ["n001", "n002"]
    assert len({each.claim for each in scene.said(ClaimRaised)}) == 1
    assert any("before the promised instant" in each for each in await sentences(scene, job))


async def test_a_node_that_fails_moves_the_promise_or_ends_it_and_both_are_said(scene: Scene) -> None:
    await scene.start()
    await full(scene, HOUR_MS)
    job = await gang(scene)
    await entry(scene, job)
    failed = NodeReported(cluster="c1", node="n001", at_ms=scene.now_ms(), seq=9, installed_gpus=8, healthy_gpus=7)
    await scene.say("agent", failed)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if any("void: a node that was gathered failed" in each for each in await sentences(scene, job)):
                break
            await asyncio.sleep(0.02)
    page = await scene.ask(subjects.QUEUE, QueueQuery())
    assert [each.starts_by_ms for each in page.entries] == [None]  # type: ignore[attr-defined]
