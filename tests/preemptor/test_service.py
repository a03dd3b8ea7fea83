"""The preemptor as a process, over real servers: claims answered once and slices expired once, whatever dies in between."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from allmende.chassis.bus import NatsBus
from allmende.chassis.clock import RealClock
from allmende.chassis.entropy import RandomIds
from allmende.chassis.outbox import draft, seal
from allmende.proto.envelope import decode
from allmende.proto.message import Message
from allmende.proto.preemptor import ClaimAnswered, EvictionOrdered, SliceExpired
from allmende.proto.subjects import BY_MESSAGE, Role
from allmende.proto.units import HOUR_MS
from tests.preemptor.builders import id_of
from tests.preemptor.messages import ended, granted, node, protected, raised, standings, tick, tree, withdrawn
from tests.servers import Lab

# A process starts in about a second; on a busy machine several times that.
WAIT_S = 30.0
NODES = 6
FULL: list[Message] = [
    *tree(),
    *standings(),
    *(node(f"n{i}") for i in range(1, NODES + 1)),
    *(granted(i, {f"n{i}": 8}) for i in range(1, NODES + 1)),
    *(protected(i) for i in range(1, NODES + 1)),
]


class Stage:
    """Everybody but the preemptor: says what they would say, and hears as admission what it answers."""

    def __init__(self, lab: Lab, busses: dict[Role, NatsBus]) -> None:
        self.lab = lab
        self.clock, self.ids = RealClock(), RandomIds()
        self.heard: list[Any] = []
        self.message_ids: set[str] = set()
        self._busses = busses
        self._subscription = busses["admission"].subscribe("DECISIONS", "admission")
        self._processes: list[subprocess.Popen[bytes]] = []

    async def say(self, *bodies: Message) -> None:
        """Publish, each as whoever says it, in a new envelope."""
        for body in bodies:
            now_ms = self.clock.now_ms()
            made = draft(body, ids=self.ids, now_ms=now_ms)
            bus = self._busses[BY_MESSAGE[type(body)].says[0]]
            await bus.publish(made.subject, made.id, seal(made, now_ms))

    async def hear_until(self, enough: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Hear until enough was heard, or fail; a repeat of a message that was heard does not count."""
        until = time.monotonic() + wait_s
        while not enough():
            assert time.monotonic() < until, f"heard only {self.heard}"
            deliveries = await self._subscription.pull(256, 0.2)
            for delivery in deliveries:
                envelope = decode(delivery.data)
                if envelope.id not in self.message_ids:
                    self.message_ids.add(envelope.id)
                    self.heard.append(envelope.body)
            await self._subscription.ack(deliveries)

    async def hear_for(self, seconds: float) -> None:
        """Hear what comes within a time: for what must not come."""
        until = time.monotonic() + seconds
        await self.hear_until(lambda: time.monotonic() > until, wait_s=seconds + 5)

    def of(self, kind: type[Message]) -> list[Any]:
        """What was heard of one kind."""
        return [body for body in self.heard if isinstance(body, kind)]

    def start(self) -> subprocess.Popen[bytes]:
        """One more replica of the preemptor."""
        environment = self.lab.env("preemptor")
        process = subprocess.Popen([sys.executable, "-m", "allmende.preemptor"], env=environment, stdout=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def end(self) -> None:
        """End every process."""
        for process in self._processes:
            process.kill()
            process.wait()


@asynccontextmanager
async def staged(lab: Lab) -> AsyncIterator[Stage]:
    roles: tuple[Role, ...] = ("budget", "ledger", "admission", "agent")
    stage = Stage(lab, {role: await lab.bus(role) for role in roles})
    try:
        yield stage
    finally:
        stage.end()


async def test_a_claims_whole_life(lab: Lab) -> None:
    async with staged(lab) as stage:
        process = stage.start()
        await stage.say(*FULL, raised(1, newest=NODES))
        await stage.hear_until(lambda: len(stage.of(EvictionOrdered)) == 1)
        [answer], [order] = stage.of(ClaimAnswered), stage.of(EvictionOrdered)
        assert (answer.code, order.plan, order.attempt) == ("makes_room", answer.plan, id_of(1))
        # The victim leaves, the claimant starts, and the next claim finds the books in order.
        await stage.say(ended(1, plan=answer.plan), granted(NODES + 1, {"n1": 8}, budget="vision", claim=answer.claim))
        await stage.say(raised(2, newest=NODES + 1))
        await stage.hear_until(lambda: len(stage.of(EvictionOrdered)) >= 2)
        assert [it.attempt for it in stage.of(EvictionOrdered)] == [id_of(1), id_of(2)]
        process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0


async def test_a_claim_before_the_grants_it_knows_waits_for_them(lab: Lab) -> None:
    async with staged(lab) as stage:
        stage.start()
        late = [it for it in FULL if it.TYPE == "job.granted"]
        await stage.say(*(it for it in FULL if it not in late), raised(1, newest=NODES), *late[:-1])
        await stage.say(tick("n1", {}))
        await stage.hear_for(1.0)
        assert stage.of(ClaimAnswered) == []
        await stage.say(late[-1])
        await stage.hear_until(lambda: len(stage.of(ClaimAnswered)) == 1)


async def test_everything_said_twice_is_answered_once(lab: Lab) -> None:
    async with staged(lab) as stage:
        stage.start()
        await stage.say(*FULL, raised(1, newest=NODES), *FULL, raised(1, newest=NODES), raised(2, newest=NODES))
        await stage.hear_until(lambda: len(stage.of(ClaimAnswered)) == 2)
        await stage.hear_for(1.0)
        assert sorted(it.claim for it in stage.of(ClaimAnswered)) == [id_of(5_001), id_of(5_002)]
        assert sorted(it.attempt for it in stage.of(EvictionOrdered)) == [id_of(1), id_of(2)]


async def test_a_withdrawn_claim_gets_no_answer(lab: Lab) -> None:
    async with staged(lab) as stage:
        await stage.say(*FULL, raised(1, newest=NODES), withdrawn(1), raised(2, newest=NODES))
        stage.start()
        await stage.hear_until(lambda: len(stage.of(ClaimAnswered)) == 1)
        assert [it.claim for it in stage.of(ClaimAnswered)] == [id_of(5_002)]


@pytest.mark.timeout(120)  # six processes are started one after the other
async def test_killed_again_and_again_it_answers_each_claim_once(lab: Lab) -> None:
    async with staged(lab) as stage:
        await stage.say(*FULL)
        for number in range(1, NODES + 1):
            process = stage.start()
            await stage.say(raised(number, newest=NODES))
            if number % 2:
                # Anywhere between the first pull and the last acknowledgement.
                await stage.hear_for(0.6 + number / 10)
            else:
                await stage.hear_until(lambda wanted=number: len(stage.of(ClaimAnswered)) >= wanted)
            process.kill()
            process.wait()
        stage.start()
        await stage.hear_until(lambda: len(stage.of(ClaimAnswered)) >= NODES and len(stage.of(EvictionOrdered)) >= NODES)
        await stage.hear_for(1.0)
        assert sorted(it.claim for it in stage.of(ClaimAnswered)) == [id_of(5_000 + i) for i in range(1, NODES + 1)]
        assert sorted(it.attempt for it in stage.of(EvictionOrdered)) == [id_of(i) for i in range(1, NODES + 1)]


async def test_two_replicas_answer_each_claim_once(lab: Lab) -> None:
    async with staged(lab) as stage:
        stage.start(), stage.start()
        await stage.say(*FULL, *(raised(number, newest=NODES) for number in range(1, NODES + 3)))
        await stage.hear_until(lambda: len(stage.of(ClaimAnswered)) >= NODES + 2)
        await stage.hear_for(1.0)
        assert sorted(it.outcome for it in stage.of(ClaimAnswered)) == ["infeasible"] * 2 + ["planned"] * NODES
        assert sorted(it.attempt for it in stage.of(EvictionOrdered)) == [id_of(i) for i in range(1, NODES + 1)]


async def test_a_slice_expires_once_over_a_restart_and_two_replicas(lab: Lab) -> None:
    async with staged(lab) as stage:
        first = stage.start()
        soon_ms = stage.clock.now_ms() + 4_000
        await stage.say(granted(1, {"n1": 8}), protected(1, stage.clock.now_ms() - HOUR_MS))
        await stage.hear_until(lambda: len(stage.of(SliceExpired)) == 1)
        await stage.say(granted(2, {"n2": 8}), protected(2, soon_ms), granted(3, {"n3": 8}), protected(3, soon_ms))
        await stage.hear_for(0.5)
        first.kill()
        first.wait()
        stage.start(), stage.start()
        await stage.hear_until(lambda: len(stage.of(SliceExpired)) >= 3)
        assert stage.clock.now_ms() >= soon_ms
        await stage.hear_for(1.0)
        assert sorted(it.attempt for it in stage.of(SliceExpired)) == [id_of(1), id_of(2), id_of(3)]
