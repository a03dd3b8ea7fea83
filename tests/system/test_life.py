"""One job's whole life, and another's that is owed time, over four service processes and a synthetic cluster."""

import pytest

from allmende.agent.audit.evictions import audit_evictions
from allmende.agent.audit.history import held_gpu_ms
from allmende.proto import subjects
from allmende.proto.admission import (
    AttemptProtected,
    ClaimRaised,
    ClaimWithdrawn,
    JobEnded,
    JobGranted,
    JobQueued,
    WhyQuery,
)
from allmende.proto.agent import AttemptEnded, AttemptStarted, GpuFreed, UsageTick
from allmende.proto.ledger import StandingsQuery, StandingsReply, UsageStanding
from allmende.proto.preemptor import ClaimAnswered, EvictionOrdered, SliceExpired
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.servers import Lab
from tests.system.whole import CLUSTER, GPUS, Whole, whole

pytestmark = pytest.mark.timeout(200)  # five processes, and half a minute of life: the first job has to outlive its eviction

# At ten minutes a second its slice has passed after a second, and it would end by itself after 18: time enough to evict it.
LONG_MS, SLICE_MS = 3 * HOUR_MS, 10 * MINUTE_MS
SHORT_MS, SHORT_SLICE_MS = 8 * MINUTE_MS, 5 * MINUTE_MS


async def first_life(it: Whole) -> tuple[str, JobGranted]:
    """Submitted, queued, granted, started, protected, ticks, the standing grows, the slice passes."""
    job = await it.submit(it.job("bob", "b", LONG_MS, SLICE_MS))
    grant = await it.hears(JobGranted)
    protected = await it.hears(AttemptProtected)
    assert (grant.job, grant.budget, grant.grant_seq, grant.hold_gpu_ms) == (job, "b", 1, GPUS * SLICE_MS)
    assert (protected.attempt, protected.protected_until_ms) == (grant.attempt, protected.started_at_ms + SLICE_MS)
    await it.hears(UsageTick, lambda body: any(each.attempt == grant.attempt for each in body.counters))
    grown = await it.hears(UsageStanding, lambda body: body.budget == "b" and body.charged_gpu_ms > GPUS * SLICE_MS // 2)
    assert grown.counted_grants == 1
    above = it.said(UsageStanding, lambda body: body.budget == "org" and body.usage_revision == grown.usage_revision)
    assert [each.charged_gpu_ms for each in above] == [grown.charged_gpu_ms]
    expired = await it.hears(SliceExpired)
    assert (expired.attempt, expired.expired_at_ms) == (grant.attempt, protected.protected_until_ms)
    return job, grant


async def eviction(it: Whole, victim: JobGranted) -> str:
    """Another team is owed time: claim, plan, order, end, room, grant."""
    job = await it.submit(it.job("alice", "a", SHORT_MS, SHORT_SLICE_MS))
    claim = await it.hears(ClaimRaised, lambda body: body.job == job)
    answer = await it.hears(ClaimAnswered, lambda body: body.claim == claim.claim)
    assert (answer.outcome, [each.attempt for each in answer.victims]) == ("planned", [victim.attempt])
    order = await it.hears(EvictionOrdered)
    assert (order.attempt, order.plan, order.claim, order.claimant_job) == (victim.attempt, answer.plan, claim.claim, job)
    assert order.protected_until_ms is not None
    assert order.protected_until_ms <= order.ordered_at_ms
    assert order.compared is not None
    assert (order.compared.claimant_budget, order.compared.victim_budget) == ("a", "b")
    end = await it.hears(AttemptEnded)
    assert (end.attempt, end.outcome, end.plan) == (victim.attempt, "evicted", answer.plan)
    grant = await it.hears(JobGranted, lambda body: body.job == job)
    assert (grant.claim, grant.grant_seq) == (claim.claim, 2)
    assert (await it.hears(ClaimWithdrawn)).reason == "started"
    return job


async def test_the_whole_life_of_a_job_that_is_evicted_for_a_team_that_is_owed_time(lab: Lab) -> None:
    async with whole(lab) as it:
        long, first = await first_life(it)
        short = await eviction(it, first)
        assert (await it.hears(JobEnded, lambda body: body.job == short)).outcome == "finished"
        back = await it.hears(JobQueued, lambda body: body.job == long and body.after_attempt == first.attempt)
        again = await it.hears(JobGranted, lambda body: body.job == long and body.attempt != first.attempt)
        end = await it.hears(JobEnded, lambda body: body.job == long)
        assert (end.outcome, end.attempts, end.submitted_at_ms) == ("finished", 2, back.submitted_at_ms)
        why = await it.ask(subjects.WHY, WhyQuery(job=long[-10:]))
        kinds = [decision.kind for decision in why.decisions]
        assert [kind for kind in kinds if kind not in ("claimed", "infeasible")] == TOLD, kinds
        assert [each.outcome for each in why.attempts] == ["evicted", "finished"]
        check_order(it, long, short, first, again)
        await check_books(it)


# Evicted twice: told to leave, for whom and why; then gone.
TOLD = ["queued", "granted", "started", "evicted", "evicted", "requeued", "granted", "started", "ended"]


def check_order(it: Whole, long: str, short: str, first: JobGranted, again: JobGranted) -> None:
    """Every cause before its effect, as the server took them."""
    story = [
        it.when(JobGranted),
        it.when(AttemptStarted),
        it.when(AttemptProtected),
        it.when(SliceExpired),
        it.when(JobQueued, lambda body: body.job == short),
        it.when(ClaimRaised),
        it.when(EvictionOrdered),
        it.when(GpuFreed, lambda body: body.attempt == first.attempt),
        it.when(JobGranted, lambda body: body.job == short),
        it.when(JobEnded, lambda body: body.job == short),
        it.when(JobGranted, lambda body: body.attempt == again.attempt),
        it.when(JobEnded, lambda body: body.job == long),
    ]
    assert story == sorted(story)


async def check_books(it: Whole) -> None:
    """The ledger's postings and standings against what the cluster did."""
    books, history, postings = await it.power_off()
    assert books == (0, 0, 0)
    assert len(history.attempts) == 3
    assert audit_evictions(history, it.said(AttemptProtected), it.said(EvictionOrdered)) == (1, 0, 0)
    reply: StandingsReply = await it.ask(subjects.STANDINGS, StandingsQuery(cluster=CLUSTER))
    charged = {each.budget: each.charged_gpu_ms for each in reply.standings}
    ran = {budget: [each for each in history.attempts.values() if each.budget == budget] for budget in "ab"}
    held = {budget: sum(held_gpu_ms(each, history.from_ms, history.to_ms) for each in runs) for budget, runs in ran.items()}
    assert charged == held | {"org": sum(held.values())}
    assert sum(posting.amount_gpu_ms for posting in postings) == charged["org"]
    assert {each.held_gpu_ms for each in reply.standings} == {0}
    assert charged["b"] > GPUS * LONG_MS, "progress that was not saved, and starting twice, are paid too"
