"""A budget is closed over four service processes and a synthetic cluster, while one job of it runs and another waits."""

import pytest

from allmende.agent.audit.evictions import audit_evictions
from allmende.proto import subjects
from allmende.proto.admission import AttemptProtected, JobChanged, JobEnded, JobGranted, JobQueued, WhyQuery
from allmende.proto.budget import CloseBudget
from allmende.proto.ledger import StandingsQuery, StandingsReply
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.servers import Lab
from tests.system.whole import CLUSTER, Whole, whole

pytestmark = pytest.mark.timeout(200)  # five processes, and half a minute of life

LONG_MS, SLICE_MS = 2 * HOUR_MS, 30 * MINUTE_MS
SHORT_MS, SHORT_SLICE_MS = 8 * MINUTE_MS, 5 * MINUTE_MS


async def test_the_slice_is_honoured_then_what_waited_goes_first_and_both_end_under_the_other_budget(lab: Lab) -> None:
    async with whole(lab) as it:
        long = await it.submit(it.job("alice", "a", LONG_MS, SLICE_MS))
        first = await it.hears(JobGranted)
        protected = await it.hears(AttemptProtected)
        short = await it.submit(it.job("alice", "a", SHORT_MS, SHORT_SLICE_MS))
        await it.hears(JobQueued, lambda body: body.job == short)
        closing = CloseBudget(budget="a", jobs_to="b", expected_revision=1, reason="the project is over")
        reply = await it.ask(subjects.CLOSE_BUDGET, closing)
        assert reply.committed is not None, reply
        moved = await it.hears(JobChanged)
        assert (moved.job, moved.budget) == (short, "b")

        # Its slice over, nobody owes the closed budget anything: what waits under b, where alice is no member, has the GPUs.
        order = await it.hears(EvictionOrdered)
        assert (order.attempt, order.rule, order.claimant_job) == (first.attempt, "budget_closed", short)
        assert order.ordered_at_ms >= protected.protected_until_ms
        granted = await it.hears(JobGranted, lambda body: body.job == short)
        assert granted.budget == "b"
        back = await it.hears(JobQueued, lambda body: body.after_attempt == first.attempt)
        assert (back.job, back.budget) == (long, "b")
        again = await it.hears(JobGranted, lambda body: body.job == long and body != first)
        assert again.budget == "b"
        assert (await it.hears(JobEnded, lambda body: body.job == long)).outcome == "finished"
        told = [each for each in (await it.ask(subjects.WHY, WhyQuery(job=long))).decisions if each.kind == "changed"]
        assert [each.sentence.partition(":")[0] for each in told] == ["its budget a was closed"] * 2
        await check_books(it)


async def check_books(it: Whole) -> None:
    """What ran under the closed budget is charged to it and to those above it, and nobody was evicted inside a slice."""
    books, history, _postings = await it.power_off()
    assert books == (0, 0, 0)
    assert audit_evictions(history, it.said(AttemptProtected), it.said(EvictionOrdered)) == (1, 0, 0)
    reply: StandingsReply = await it.ask(subjects.STANDINGS, StandingsQuery(cluster=CLUSTER))
    charged = {each.budget: each.charged_gpu_ms for each in reply.standings}
    assert min(charged["a"], charged["b"]) > 0
    assert charged["org"] == charged["a"] + charged["b"]
