"""Two clusters, and a share that is another one on the second: every service judges by what holds where the GPUs are."""

import pytest

from allmende.agent.audit.evictions import audit_evictions
from allmende.chassis.errors import Transient
from allmende.proto import subjects
from allmende.proto.admission import AttemptProtected, JobGranted, JobQueued
from allmende.proto.budget import ChildShare, SetShares, WriteReply
from allmende.proto.envelope import Refusal
from allmende.proto.ledger import StandingsQuery, StandingsReply, UsageStanding
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.servers import Lab
from tests.system.whole import CLUSTER, GPUS, Whole, whole

pytestmark = pytest.mark.timeout(240)  # six processes, and half a minute of life

OTHER = "c2"
LONG_MS, SLICE_MS = 4 * HOUR_MS, 30 * MINUTE_MS
SHORT_MS, SHORT_SLICE_MS = 20 * MINUTE_MS, 10 * MINUTE_MS
# On each cluster a runs on six GPUs and b on two. Half to each, a has had more than its part; 90 % to a, and b has.
RUNNING = (("alice", "a", GPUS - 2), ("bob", "b", 2))


async def test_the_same_use_is_too_much_on_one_cluster_and_too_little_on_the_other(lab: Lab) -> None:
    async with whole(lab) as it:
        await divide(it)
        await it.start_cluster(OTHER)
        await it.until(lambda: knows(it, OTHER), "the ledger says standings of the other cluster")
        for cluster in (CLUSTER, OTHER):
            for user, budget, gpus in RUNNING:
                await it.submit(it.job(user, budget, LONG_MS, SLICE_MS, gpus_per_replica=gpus, clusters=(cluster,)))
        await it.until(lambda: len(it.said(JobGranted)) == 4, "both clusters are full")
        wanting = {}
        for cluster in (CLUSTER, OTHER):
            for user, budget, _gpus in RUNNING:
                job = it.job(user, budget, SHORT_MS, SHORT_SLICE_MS, gpus_per_replica=2, clusters=(cluster,))
                wanting[await it.submit(job)] = budget
        await it.until(lambda: len(it.said(JobQueued)) >= 8, "all wait")

        for cluster, claimant, victim in ((CLUSTER, "b", "a"), (OTHER, "a", "b")):
            order = await it.hears(EvictionOrdered, lambda body, cluster=cluster: body.cluster == cluster)
            assert order.compared is not None, order
            assert (order.compared.claimant_budget, order.compared.victim_budget) == (claimant, victim), order.sentence
            assert wanting[order.claimant_job or ""] == claimant
            assert order.tree_revision == 2
            await it.hears(JobGranted, lambda body, order=order: body.job == order.claimant_job)
        await check_books(it)


async def divide(it: Whole) -> None:
    """90 % of the other cluster for a and 10 % for b, before it exists."""
    children = (ChildShare(budget="a", share_ppm=900_000), ChildShare(budget="b", share_ppm=100_000))
    request = SetShares(parent="org", children=children, expected_revision=1, reason="a has bought most of it", cluster=OTHER)
    reply: WriteReply = await it.ask(subjects.SET_SHARES, request)
    assert reply.committed is not None, reply


async def standings(it: Whole, cluster: str) -> dict[str, UsageStanding]:
    reply: StandingsReply = await it.ask(subjects.STANDINGS, StandingsQuery(cluster=cluster))
    return {each.budget: each for each in reply.standings}


async def knows(it: Whole, cluster: str) -> bool:
    try:
        found = await standings(it, cluster)
    except (Transient, Refusal):
        return False
    return {each.tree_revision for each in found.values()} == {2}


async def check_books(it: Whole) -> None:
    """Each cluster owes by its own shares, what was charged is what ran there, and nobody was evicted inside a slice."""
    for cluster, part_of_ten in ((CLUSTER, 5), (OTHER, 9)):
        of = await standings(it, cluster)
        whole_of_it = of["org"].entitlement_gpu_ms
        assert abs(10 * of["a"].entitlement_gpu_ms - part_of_ten * whole_of_it) <= 10
        assert abs(10 * of["b"].entitlement_gpu_ms - (10 - part_of_ten) * whole_of_it) <= 10
        assert of["org"].charged_gpu_ms == of["a"].charged_gpu_ms + of["b"].charged_gpu_ms > 0
    for cluster in (CLUSTER, OTHER):
        books, history, _postings = await it.power_off(cluster)
        assert books == (0, 0, 0)
        theirs = [each for each in it.said(EvictionOrdered) if each.cluster == cluster]
        found = audit_evictions(history, [each for each in it.said(AttemptProtected) if each.cluster == cluster], theirs)
        assert found[1:] == (0, 0), found
