"""A node is declared lost while its agent is away, over four service processes and a synthetic cluster; then the agent is back."""

import signal

import pytest

from allmende.chassis import rpc
from allmende.proto import subjects
from allmende.proto.admission import AttemptProtected, JobGranted, JobQueued, NodesQuery, WhyQuery
from allmende.proto.agent import AttemptEnded, NodeReported, UsageTick
from allmende.proto.envelope import Refusal
from allmende.proto.ledger import StandingsQuery
from allmende.proto.lost import DeclareLost, NodeDeclaredLost
from allmende.proto.units import HOUR_MS
from tests.servers import Lab
from tests.system.whole import CLUSTER, GPUS, whole

pytestmark = pytest.mark.timeout(200)  # five processes


async def test_what_was_declared_lost_is_killed_by_the_agent_that_returns_and_its_late_counters_open_no_books(lab: Lab) -> None:
    async with whole(lab) as it:
        job = await it.submit(it.job("bob", "b", 30 * HOUR_MS, HOUR_MS))
        first = await it.hears(JobGranted)
        await it.hears(AttemptProtected)
        await it.hears(UsageTick, lambda body: any(each.attempt == first.attempt for each in body.counters))
        node = first.placement[0].node
        asked = DeclareLost(cluster=CLUSTER, node=node, reason="no power")
        with pytest.raises(Refusal, match="may not publish"):
            await rpc.ask(await it.bus("user", "alice"), subjects.DECLARE_LOST, "alice", asked)
        with pytest.raises(Refusal) as refused:
            await it.ask(subjects.DECLARE_LOST, asked)
        assert refused.value.problem.code == "node_not_silent"
        it.processes["synthetic"].send_signal(signal.SIGSTOP)
        done = await it.ask(subjects.DECLARE_LOST, DeclareLost(cluster=CLUSTER, node=node, reason="no power", force=True))
        assert (done.status, [each.attempt for each in done.attempts]) == ("declared", [first.attempt])
        word = await it.hears(NodeDeclaredLost)
        await it.hears(JobQueued, lambda body: body.after_attempt == first.attempt)
        [view] = (await it.ask(subjects.NODES, NodesQuery())).nodes
        assert (view.healthy_gpus, view.held_gpus, view.lost_reason) == (0, GPUS, "olga: no power")
        again = await it.ask(subjects.DECLARE_LOST, DeclareLost(cluster=CLUSTER, node=node, reason="no power", force=True))
        assert (again.status, again.attempts) == ("already_lost", ())
        assert len(it.said(JobGranted)) == 1
        it.processes["synthetic"].send_signal(signal.SIGCONT)
        end = await it.hears(AttemptEnded)
        assert (end.attempt, end.outcome) == (first.attempt, "node_lost")
        assert end.ended_at_ms > word.last_seen_ms
        second = await it.hears(JobGranted, lambda body: body.attempt != first.attempt)
        assert (second.job, second.placement) == (job, first.placement)
        back = it.when(NodeReported, lambda body: body.seq > word.reported_seq)
        assert it.when(AttemptEnded) < back < it.when(JobGranted, lambda body: body.attempt == second.attempt)
        assert "declared lost by olga" in " ".join(
            each.sentence for each in (await it.ask(subjects.WHY, WhyQuery(job=job))).decisions
        )
        _books, _history, postings = await it.power_off()
        charged = sum(each.amount_gpu_ms for each in postings if each.attempt == first.attempt)
        assert 0 < charged <= GPUS * (word.last_seen_ms - first.granted_at_ms)
        assert all(each.to_ms <= word.last_seen_ms for each in postings if each.attempt == first.attempt)
        standings = (await it.ask(subjects.STANDINGS, StandingsQuery(cluster=CLUSTER))).standings
        assert {each.held_gpu_ms for each in standings} == {0}
