"""The agent over a bus in memory: orders in, facts out, nothing lost while the bus is away. test_process has the real one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from allmende.agent.sdk.agent import Agent, Pace
from allmende.agent.sdk.backend import Launch, Running
from allmende.agent.synthetic.backend import SyntheticBackend
from allmende.agent.synthetic.cluster import Cluster, nodes_of
from allmende.agent.synthetic.command import Command
from allmende.agent.synthetic.failures import Failure
from allmende.agent.synthetic.truth import AnyRecord, Started
from allmende.chassis.fakes import CountingIds, FakeBus, ManualClock
from allmende.chassis.fakes.bus import FakeServer
from allmende.proto.agent import AttemptEnded, AttemptStarted, GpuFreed, NodeReported, UsageTick
from allmende.proto.envelope import Refusal
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from allmende.proto.user import Payload
from tests.agent.builders import PAYLOAD, PLAN, T0, attempt, eviction, grant, launch, stop
from tests.agent.hand import UNREACHABLE, Hand
from tests.agent.test_fencing import word as lost

NODE = "n0001"
QUICK = Pace(tick_ms=10 * SECOND_MS, tick_real_ms=1, resend_s=0.05, start_deadline_s=0.3)


class Scene(NamedTuple):
    server: FakeServer
    clock: ManualClock
    agent: Agent
    backend: SyntheticBackend
    hand: Hand
    log: list[AnyRecord]


@asynccontextmanager
async def scene(*failing: Failure, pace: Pace = QUICK, backend: type[SyntheticBackend] = SyntheticBackend) -> AsyncIterator[Scene]:
    server, clock, ids = FakeServer(), ManualClock(T0), CountingIds()
    log: list[AnyRecord] = []
    cluster = Cluster("c1", nodes_of(16, 8), 1, iter(failing), T0, log.append)
    made = backend(cluster, clock)
    agent = Agent(cluster="c1", bus=FakeBus(server, "agent", "c1"), clock=clock, ids=ids, backend=made, pace=pace)
    hand = Hand(FakeBus(server), ids, clock)
    await hand.open()
    running = asyncio.ensure_future(agent.run())
    try:
        await hand.until(lambda: len(hand.heard(NodeReported)) >= 2, "both nodes are reported")
        yield Scene(server, clock, agent, made, hand, log)
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def started(it: Scene, number: int = 1, command: Command | None = None) -> None:
    it.hand.payloads[attempt(number)] = Payload(command=command.line()) if command else PAYLOAD
    await it.hand.says(grant(number, placement=((NODE, 1),)))
    await it.hand.until(lambda: attempt(number) in [each.attempt for each in it.hand.heard(AttemptStarted)], "it starts")


async def test_a_job_starts_ticks_ends_and_is_confirmed() -> None:
    async with scene() as it:
        await started(it, command=Command(MINUTE_MS, startup_ms=0))
        it.clock.advance(30 * SECOND_MS)
        await it.hand.until(lambda: [tick for tick in it.hand.heard(UsageTick) if tick.counters], "a tick counts")
        it.clock.advance(MINUTE_MS)
        await it.hand.until(lambda: it.hand.heard(GpuFreed), "it ends")
        end = it.hand.heard(AttemptEnded)[0]
        assert (end.outcome, end.counters[0].held_ms, end.counters[0].used_gpu_ms) == ("finished", MINUTE_MS, 2 * MINUTE_MS)
        await it.hand.confirms(attempt())
        assert await it.agent.settle(2.0)


async def test_facts_name_the_order_that_caused_them() -> None:
    async with scene() as it:
        it.hand.payloads[attempt()] = PAYLOAD
        order = await it.hand.says(grant(placement=((NODE, 1),)))
        await it.hand.until(lambda: it.hand.heard(AttemptStarted), "it starts")
        assert [each.cause for each in it.hand.envelopes if each.type == "attempt.started"] == [order]


async def test_a_grant_said_again_under_another_id_starts_nothing() -> None:
    async with scene() as it:
        await started(it)
        await it.hand.says(grant(placement=((NODE, 1),)))
        await started(it, 2)
        assert [record.attempt for record in it.log if isinstance(record, Started)] == [attempt(1), attempt(2)]


async def test_the_payload_is_asked_for_until_admission_answers() -> None:
    async with scene(pace=QUICK._replace(start_deadline_s=10.0)) as it:
        it.hand.payloads[attempt()] = UNREACHABLE
        await it.hand.says(grant(placement=((NODE, 1),)))
        await it.hand.until(lambda: it.hand.asked, "it is asked for")
        it.hand.payloads[attempt()] = PAYLOAD
        await it.hand.until(lambda: it.hand.heard(AttemptStarted), "it starts")


@pytest.mark.parametrize("why", [UNREACHABLE, Refusal("unknown_attempt", "no such attempt")])
async def test_without_a_payload_it_never_started(why: Exception) -> None:
    async with scene() as it:
        it.hand.payloads[attempt()] = why
        await it.hand.says(grant(placement=((NODE, 1),)))
        await it.hand.until(lambda: it.hand.heard(AttemptEnded), "it is answered")
        end = it.hand.heard(AttemptEnded)[0]
        assert (end.outcome, "payload" in end.detail) == ("never_started", True)


async def test_a_backend_that_fails_at_one_attempt_does_not_take_down_the_others() -> None:
    class Clumsy(SyntheticBackend):
        async def start(self, launch: Launch) -> int:
            if launch.attempt == attempt(1):
                raise RuntimeError("a mistake of the author's")
            return await super().start(launch)

    async with scene(backend=Clumsy) as it:
        it.hand.payloads[attempt(1)] = PAYLOAD
        await it.hand.says(grant(1, placement=((NODE, 1),)))
        await started(it, 2)
        await it.hand.until(lambda: it.hand.heard(AttemptEnded), "the first is answered")
        assert it.hand.heard(AttemptEnded)[0].outcome == "never_started"


async def test_an_order_of_an_older_term_is_refused_with_a_reason() -> None:
    """BR-042: what a writer said in a term that is over commands nobody."""
    async with scene() as it:
        await started(it)
        await it.hand.says(grant(2, placement=((NODE, 1),), fence=2))
        await it.hand.until(lambda: it.hand.heard(AttemptEnded), "it is answered")
        assert "term 2" in it.hand.heard(AttemptEnded)[0].detail


async def test_eviction_goes_through_term_and_kill_to_freed_gpus() -> None:
    async with scene() as it:
        await started(it, command=Command(HOUR_MS, ignore_sigterm=True))
        it.clock.advance(10 * MINUTE_MS)
        await it.hand.says(eviction(grace_ms=2 * MINUTE_MS))
        await it.hand.until(lambda: any(getattr(record, "signal", "") == "TERM" for record in it.log), "SIGTERM is sent")
        it.clock.advance(2 * MINUTE_MS)
        await it.hand.until(lambda: it.hand.heard(GpuFreed), "its GPUs are freed")
        end = it.hand.heard(AttemptEnded)[0]
        assert (end.outcome, end.plan, end.counters[0].held_ms) == ("evicted", PLAN, 12 * MINUTE_MS)


async def test_a_stop_before_the_payload_came_never_started() -> None:
    async with scene() as it:
        it.hand.payloads[attempt()] = UNREACHABLE
        await it.hand.says(grant(placement=((NODE, 1),)))
        await it.hand.says(stop())
        await it.hand.until(lambda: it.hand.heard(AttemptEnded), "it is answered")
        assert it.hand.heard(AttemptEnded)[0].outcome == "never_started"
        assert it.hand.heard(AttemptStarted) == []


async def test_ends_are_said_again_under_new_ids_until_confirmed_and_then_no_more() -> None:
    async with scene() as it:
        await started(it, command=Command(SECOND_MS, startup_ms=0))
        it.clock.advance(MINUTE_MS)
        await it.hand.until(lambda: len(it.hand.heard(AttemptEnded)) >= 3, "it is said again")
        ends = [each for each in it.hand.envelopes if each.type == "attempt.ended"]
        assert len({each.id for each in ends}) == len(ends)
        assert all(each.body == ends[0].body for each in ends)
        await it.hand.confirms(attempt())
        await it.hand.until(lambda: it.agent.unconfirmed == 0, "the confirmation is heard")
        count = len(it.hand.heard(AttemptEnded))
        await asyncio.sleep(0.2)
        assert len(it.hand.heard(AttemptEnded)) <= count + 1


async def test_what_happens_while_the_bus_is_away_is_said_afterwards_and_ticks_do_not_pile_up() -> None:
    async with scene() as it:
        await started(it, 1, Command(5 * MINUTE_MS, startup_ms=0))
        await started(it, 2, Command(2 * HOUR_MS, startup_ms=0))
        it.server.running = False
        for _ in range(50):
            it.clock.advance(MINUTE_MS)
            await asyncio.sleep(0.002)
        # One end, its freed GPUs, and the last tick of either node.
        assert 3 <= it.agent.spooled <= 6
        assert it.hand.heard(AttemptEnded) == []
        it.server.running = True
        await it.hand.until(lambda: it.agent.spooled == 0 and it.hand.heard(GpuFreed), "the spool is drained")
        late = next(each for each in it.hand.envelopes if each.type == "attempt.ended")
        assert late.occurred_at_ms < late.sent_at_ms == it.clock.now_ms()
        assert late.body.counters[0].held_ms == 5 * MINUTE_MS  # type: ignore[attr-defined]


async def test_a_lost_node_is_reported_with_its_instant_and_its_attempts_end() -> None:
    async with scene(Failure(T0 + MINUTE_MS, 0, HOUR_MS)) as it:
        await started(it)
        it.clock.advance(10 * MINUTE_MS)
        await it.hand.until(lambda: it.hand.heard(AttemptEnded), "it ends")
        assert it.hand.heard(AttemptEnded)[0].outcome == "node_lost"
        down = [each for each in it.hand.heard(NodeReported) if not each.healthy_gpus]
        assert [(each.node, each.at_ms) for each in down] == [(NODE, T0 + MINUTE_MS)]


async def test_power_off_ends_and_reports_everything() -> None:
    async with scene() as it:
        await started(it)
        it.clock.advance(MINUTE_MS)
        off_at_ms = it.backend.power_off()
        await it.hand.until(lambda: it.hand.heard(AttemptEnded), "it ends")
        end = it.hand.heard(AttemptEnded)[0]
        assert (end.outcome, end.ended_at_ms) == ("node_lost", off_at_ms)
        assert not await it.agent.settle(0.05)
        await it.hand.confirms(attempt())
        assert await it.agent.settle(2.0)


async def test_a_message_nobody_can_read_does_not_stop_the_orders() -> None:
    async with scene() as it:
        good = grant(placement=((NODE, 1),))
        it.server.store(f"admission.job_granted.v1.c1.{good.attempt}", "x", b"{", None)
        await started(it)


async def test_what_was_declared_lost_while_no_agent_was_there_is_killed_before_anything_is_said_of_it_or_its_node() -> None:
    async with scene() as it:
        await started(it)
    before = len(it.hand.envelopes)
    await it.hand.says(lost(1, node=NODE))
    ids = CountingIds(50_000)
    bus = FakeBus(it.server, "agent", "c1")
    successor = Agent(cluster="c1", bus=bus, clock=it.clock, ids=ids, backend=it.backend, pace=QUICK)
    successor.adopt(Running(launch(1, nodes=(NODE,), gpus=2), T0, 500))
    running = asyncio.ensure_future(successor.run())
    try:
        await it.hand.until(lambda: reported(it, before), "the node is reported")
        told = [each.body for each in it.hand.envelopes[before:]]
        about = [body for body in told if getattr(body, "node", NODE) == NODE]
        assert [body.TYPE for body in about[:3]] == ["attempt.ended", "gpu.freed", "node.reported"]
        assert isinstance(about[0], AttemptEnded)
        assert (about[0].attempt, about[0].outcome) == (attempt(1), "node_lost")
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


def reported(it: Scene, after: int) -> bool:
    """The node was reported after so many messages."""
    return any(isinstance(each.body, NodeReported) and each.body.node == NODE for each in it.hand.envelopes[after:])
