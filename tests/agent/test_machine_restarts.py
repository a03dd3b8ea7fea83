"""The process agent as a process over a real NATS server: killed with -9 and started again, nothing is lost or doubled."""

import asyncio
import os
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from allmende.chassis.clock import RealClock
from allmende.chassis.entropy import RandomIds
from allmende.proto.agent import AttemptEnded, AttemptStarted, Counter, NodeReported, UsageTick
from allmende.proto.message import Message
from allmende.proto.user import Payload
from tests.agent.builders import PLAN, eviction, grant
from tests.agent.hand import Hand
from tests.agent.machine import attempt, job, marked, me, needs_linux
from tests.agent.test_process import ended, environment, hand_of, process
from tests.servers import Lab

pytestmark = needs_linux

T = TypeVar("T", bound=Message)
MODULE = "allmende.agent.process"


async def settings(lab: Lab, **more: str) -> dict[str, str]:
    ours = {"CLUSTER": "c1", "NODE": "n1", "GPUS": "8", "FOLDER": str(lab.directory / "machine"), "TICK_MS": "100"} | more
    return await environment(lab, "agent", "c1", **{f"ALLMENDE_PROCESS_{key}": value for key, value in ours.items()})


def ours(body: T, number: int, **changes: object) -> T:
    """An order for an attempt of this test process."""
    return msgspec.structs.replace(body, attempt=attempt(number), job=job(number), **changes)


async def runs(hand: Hand, number: int, script: str, gpus: int = 2) -> None:
    hand.payloads[attempt(number)] = Payload(command=("sh", "-c", script), environment={"PATH": os.environ["PATH"]}, directory="/")
    await hand.says(ours(grant(number, gpus=gpus), number, user=me()))


def counters(hand: Hand, number: int) -> list[Counter]:
    return [each for tick in hand.heard(UsageTick) for each in tick.counters if each.attempt == attempt(number)]


def end_of(hand: Hand, number: int) -> list[AttemptEnded]:
    return [each for each in hand.heard(AttemptEnded) if each.attempt == attempt(number)]


def starts(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.timeout(90)  # four agents one after the other
async def test_killed_and_started_again_its_jobs_go_on_and_their_counters_too(lab: Lab) -> None:
    """BR-043: the next agent finds what runs, what ended meanwhile and what was told to leave, and says each once."""
    hand = await hand_of(lab)
    began, go = lab.directory / "began", lab.directory / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
    async with process(await settings(lab), MODULE) as agent:
        await hand.until(lambda: hand.heard(NodeReported), "the machine is reported", 20)
        await runs(hand, 1, f"echo $$ >> {began}; trap '' TERM; {wait}; exit 6")
        await runs(hand, 2, f"echo $$ >> {began}; {wait}; exit 0")
        await runs(hand, 3, f"echo $$ >> {began}; trap '' TERM; while :; do sleep 300; done")
        await hand.until(lambda: len({each.attempt for each in hand.heard(AttemptStarted)}) == 3, "all start", 20)
        await hand.until(lambda: len(starts(began)) == 3 and len(counters(hand, 1)) > 1, "they run and are counted", 20)
        preemptor = Hand(await lab.bus("preemptor"), RandomIds(), RealClock())
        await preemptor.says(ours(eviction(3, grace_ms=1_500), 3))
        folder = lab.directory / "machine" / "attempts" / attempt(3)
        await hand.until(lambda: (folder / "notice").exists(), "the third is told to go, and does not", 10)
        agent.kill()
        await agent.wait()
    before = counters(hand, 1)[-1]
    async with process(await settings(lab), MODULE) as agent:
        await hand.until(lambda: counters(hand, 1)[-1].held_ms > before.held_ms, "the counter goes on", 20)
        after = counters(hand, 1)[-1]
        assert (after.epoch, after.since_ms) == (before.epoch, before.since_ms)
        assert after.seq > before.seq
        await hand.until(lambda: end_of(hand, 3), "its grace ends although its agent was killed in it", 20)
        assert (end_of(hand, 3)[0].outcome, end_of(hand, 3)[0].plan, end_of(hand, 3)[0].exit_code) == ("evicted", PLAN, 137)
        agent.kill()
        await agent.wait()
    go.touch()
    await hand.until(lambda: not marked(f"machine/attempts/{attempt(1)}"), "two end while there is no agent", 10)
    async with process(await settings(lab), MODULE):
        await hand.until(lambda: end_of(hand, 1) and end_of(hand, 2), "their ends are said", 20)
        one, two = end_of(hand, 1)[0], end_of(hand, 2)[0]
        assert [(each.outcome, each.exit_code) for each in (one, two)] == [("failed", 6), ("finished", 0)]
        assert one.counters[0].used_gpu_ms == 2 * one.counters[0].held_ms
        assert one.counters[0].epoch == before.epoch
        await hand.confirms(attempt(1), attempt(2), attempt(3))
        assert len(starts(began)) == 3, "nothing ran twice"
    assert list((lab.directory / "machine" / "attempts").iterdir()) == []


async def test_asked_to_end_it_leaves_its_jobs_or_ends_them_as_the_setting_says(lab: Lab) -> None:
    hand = await hand_of(lab)
    word = f"stays-{os.getpid()}"
    async with process(await settings(lab), MODULE) as agent:
        await hand.until(lambda: hand.heard(NodeReported), "the machine is reported", 20)
        await runs(hand, 1, f"sleep 300; : {word}")
        await hand.until(lambda: hand.heard(AttemptStarted), "it starts", 20)
        assert await ended(agent) == 0
    assert len(marked(f"sleep 300; : {word}")) == 1
    async with process(await settings(lab, AT_STOP="end"), MODULE) as agent:
        await hand.until(lambda: len(hand.heard(AttemptStarted)) == 2, "it is taken over, and said again", 20)
        stopping = asyncio.ensure_future(ended(agent))
        await hand.until(lambda: end_of(hand, 1), "its end is said", 20)
        await hand.confirms(attempt(1))
        assert await stopping == 0
    (end,) = end_of(hand, 1)
    assert (end.outcome, marked(word)) == ("node_lost", [])


async def test_a_job_of_a_stranger_is_answered_with_the_reason(lab: Lab) -> None:
    hand = await hand_of(lab)
    async with process(await settings(lab), MODULE):
        hand.payloads[attempt(1)] = Payload(command=("true",))
        await hand.says(ours(grant(1), 1, user="no-such-person"))
        await hand.until(lambda: end_of(hand, 1), "it is answered", 20)
    (end,) = end_of(hand, 1)
    assert end.outcome == "never_started"
    assert "no-such-person" in end.detail
