"""Waiting for the preemptor's answers costs idle GPUs, so claims rest between the rounds; over real servers."""

from allmende.admission.handlers.desk import CLAIMS_REST
from allmende.proto.admission import AttemptProtected, ClaimRaised, JobGranted
from tests.admission.scene import Scene
from tests.admission.test_service import furnish


async def test_after_a_round_of_answers_claims_rest_in_proportion_and_then_come_by_themselves(scene: Scene) -> None:
    await scene.start()
    await furnish(scene, a=10, b=90)
    await scene.submit(user="bob", budget="b", gpus_per_replica=8, slice_ms=1)
    held = await scene.hears(JobGranted)
    await scene.started(held)
    await scene.hears(AttemptProtected)
    await scene.submit(gpus_per_replica=8)
    first = await scene.hears(ClaimRaised)
    waited_ms = scene.now_ms() - first.raised_at_ms
    await scene.answer(first, code="slices_running")
    second_job = await scene.submit(gpus_per_replica=8)
    # Nothing else is said: the timer alone brings the second claim.
    second = await scene.hears(ClaimRaised, lambda body: body.job == second_job)
    assert second.raised_at_ms - first.raised_at_ms >= (1 + CLAIMS_REST) * waited_ms
