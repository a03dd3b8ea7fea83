"""A node is drained for a repair and comes back, over four service processes and a synthetic cluster: nobody watches it."""

import pytest

from allmende.agent.audit.evictions import audit_evictions
from allmende.chassis import rpc
from allmende.proto import subjects
from allmende.proto.admission import AttemptProtected, JobGranted, JobQueued, WhyQuery
from allmende.proto.agent import AttemptEnded
from allmende.proto.envelope import Refusal
from allmende.proto.preemptor import CordonNodes, EvictionOrdered, NodeDrained, NodeReturned, UncordonNodes
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.servers import Lab
from tests.system.whole import CLUSTER, GPUS, whole

pytestmark = pytest.mark.timeout(200)  # five processes, and a slice of two seconds

SLICE_MS = 20 * MINUTE_MS


async def test_a_drained_node_keeps_the_slice_then_is_empty_and_takes_work_again_once_it_returns(lab: Lab) -> None:
    async with whole(lab) as it:
        job = await it.submit(it.job("bob", "b", 3 * HOUR_MS, SLICE_MS))
        first = await it.hears(JobGranted)
        protected = await it.hears(AttemptProtected)
        node = first.placement[0].node
        asked = CordonNodes(cluster=CLUSTER, nodes=(node,), reason="new firmware", drain=True)
        alice = await it.bus("user", "alice")
        with pytest.raises(Refusal, match="may not publish"):
            await rpc.ask(alice, subjects.CORDON, "alice", asked)
        page = await it.ask(subjects.CORDON, asked)
        assert [(each.node, each.state) for each in page.nodes] == [(node, "draining")]
        order = await it.hears(EvictionOrdered)
        assert (order.attempt, order.rule, order.claim) == (first.attempt, "drain", None)
        assert order.ordered_at_ms >= protected.protected_until_ms
        assert (await it.hears(AttemptEnded)).plan == order.plan
        assert (await it.hears(NodeDrained)).node == node
        await it.hears(JobQueued, lambda body: body.after_attempt == first.attempt)
        why = await it.ask(subjects.WHY, WhyQuery(job=job))
        assert "nodes_cordoned" in [each.code for each in why.blockers]
        assert any("is drained by" in each.sentence for each in why.decisions)
        assert len(it.said(JobGranted)) == 1
        await it.ask(subjects.UNCORDON, UncordonNodes(cluster=CLUSTER, nodes=(node,), reason="done"))
        again = await it.hears(JobGranted, lambda body: body.attempt != first.attempt)
        assert (again.job, sum(part.replicas for part in again.placement) * again.gpus_per_replica) == (job, GPUS)
        assert it.when(NodeDrained) < it.when(NodeReturned)
        books, history, _postings = await it.power_off()
        assert books == (0, 0, 0)
        assert audit_evictions(history, it.said(AttemptProtected), it.said(EvictionOrdered)) == (1, 0, 0)
