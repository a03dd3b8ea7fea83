"""The programs as processes over a real NATS server, with an admission and a ledger driven by hand."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from allmende.agent.audit.history import read
from allmende.agent.synthetic.command import Command
from allmende.agent.synthetic.truth import from_lines
from allmende.agent.workload import log as workload
from allmende.chassis.clock import RealClock
from allmende.chassis.entropy import RandomIds
from allmende.proto.admission import JobEnded
from allmende.proto.agent import AttemptEnded, AttemptStarted, NodeReported, UsageTick
from allmende.proto.envelope import decode
from allmende.proto.units import HOUR_MS
from allmende.proto.user import JobSubmitted, Payload
from tests.agent.builders import attempt, grant
from tests.agent.hand import UNREACHABLE, Hand
from tests.servers import Lab


async def environment(lab: Lab, role: str, name: str, **settings: str) -> dict[str, str]:
    account = await lab.user(role, name)  # type: ignore[arg-type]
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "ALLMENDE_NATS_URL": lab.nats_url,
        "ALLMENDE_NATS_SEED_FILE": str(account.seed_file),
        "ALLMENDE_LOG_LEVEL": "warning",
        **settings,
    }


@asynccontextmanager
async def process(environment: dict[str, str], *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, env=environment)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def ended(it: asyncio.subprocess.Process) -> int:
    it.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        return await it.wait()


async def hand_of(lab: Lab) -> Hand:
    admission, ledger, watcher = [await lab.bus(role) for role in ("admission", "ledger", "dashboard")]  # type: ignore[arg-type]
    made = Hand(admission, RandomIds(), RealClock(), ledger=ledger, watcher=watcher)
    await made.open()
    return made


async def synthetic(lab: Lab, truth: Path) -> dict[str, str]:
    return await environment(
        lab,
        "agent",
        "c1",
        ALLMENDE_SYNTHETIC_CLUSTER="c1",
        ALLMENDE_SYNTHETIC_GPUS="20",
        ALLMENDE_SYNTHETIC_TRUTH_FILE=str(truth),
        ALLMENDE_SYNTHETIC_TICK_S="1",
        ALLMENDE_SYNTHETIC_MIN_TICK_MS="100",
        ALLMENDE_SYNTHETIC_NODE_FAILURES_PER_DAY="0",
    )


@pytest.mark.timeout(90)  # two processes and an outage of the server
async def test_a_synthetic_cluster_lives_through_an_outage_of_the_bus_and_ends_with_the_truth(lab: Lab) -> None:
    hand = await hand_of(lab)
    truth = lab.directory / "truth.jsonl"
    async with process(await synthetic(lab, truth), "allmende.agent.synthetic") as cluster:
        await hand.until(lambda: len(hand.heard(NodeReported)) == 3, "all three nodes are reported", 20)
        assert [each.installed_gpus for each in hand.heard(NodeReported)] == [8, 8, 4]
        hand.payloads[attempt(1)] = Payload(command=Command(1_500, startup_ms=0).line())
        hand.payloads[attempt(2)] = Payload(command=Command(HOUR_MS).line())
        await hand.says(grant(1, placement=(("n0001", 1),)))
        await hand.says(grant(2, placement=(("n0002", 2), ("n0003", 1)), gpus=4))
        await hand.until(lambda: len(hand.heard(AttemptStarted)) == 2, "both start", 20)
        await hand.until(lambda: any(tick.counters for tick in hand.heard(UsageTick)), "ticks count", 20)
        await lab.kill("nats")
        await asyncio.sleep(2.0)
        assert cluster.returncode is None
        await lab.restart("nats")
        await hand.until(lambda: hand.heard(AttemptEnded), "what ended in the outage is said", 30)
        first = hand.heard(AttemptEnded)[0]
        assert (first.attempt, first.counters[0].held_ms) == (attempt(1), 1_500)
        await hand.confirms(attempt(1))
        stopping = asyncio.ensure_future(ended(cluster))
        await hand.until(lambda: attempt(2) in [each.attempt for each in hand.heard(AttemptEnded)], "the other one ends", 20)
        await hand.confirms(attempt(1), attempt(2))
        assert await stopping == 0
    with truth.open("rb") as lines:
        history = read(from_lines(lines))
    assert history.unconfirmed == 0
    for end in hand.heard(AttemptEnded):
        ran = history.attempts[end.attempt]
        assert end.counters[0].held_ms == ran.ended_at_ms - ran.started_at_ms
    assert {name: ran.by for name, ran in history.attempts.items()} == {attempt(1): "itself", attempt(2): "power_off"}


async def restarted(lab: Lab, hand: Hand, number: int, truth: Path) -> AttemptEnded:
    """Start the cluster anew; the end that it says of an attempt."""
    async with process(await synthetic(lab, truth), "allmende.agent.synthetic"):
        await hand.until(lambda: attempt(number) in [each.attempt for each in hand.heard(AttemptEnded)], "the end is said", 15)
    (end,) = [each for each in hand.heard(AttemptEnded) if each.attempt == attempt(number)]
    return end


@pytest.mark.timeout(90)  # two processes and an outage of the server
@pytest.mark.parametrize("kept", [True, False], ids=["kept to be said", "killed before it was kept"])
async def test_an_end_that_was_not_said_before_the_cluster_was_killed_is_said_by_the_next_run(lab: Lab, kept: bool) -> None:
    """So a lab ends that is killed as a whole: its NATS first, and its cluster while it switches itself off.

    The truth has an end a moment before the agent keeps it. Killed in between, nobody knows the counters of that end any more.
    """
    hand = await hand_of(lab)
    truth = lab.directory / "truth.jsonl"
    ends = truth.with_name(f"{truth.name}.ends")
    async with process(await synthetic(lab, truth), "allmende.agent.synthetic") as cluster:
        await hand.until(lambda: len(hand.heard(NodeReported)) == 3, "all three nodes are reported", 20)
        hand.payloads[attempt(1)] = Payload(command=Command(HOUR_MS).line())
        await hand.says(grant(1, placement=(("n0001", 1),)))
        await hand.until(lambda: len(hand.heard(AttemptStarted)) == 1, "it starts", 20)
        await lab.kill("nats")
        cluster.send_signal(signal.SIGTERM)
        await hand.until(lambda: attempt(1) in ends.read_text(), "its end is kept, and nobody hears of it", 10)
        cluster.kill()
        await cluster.wait()
    assert '"ended"' in truth.read_text()
    if not kept:
        ends.unlink()
    await lab.restart("nats")
    end = await restarted(lab, hand, 1, truth)
    held = [counter.held_ms for counter in end.counters]
    assert (end.outcome, held) == ("node_lost", [end.ended_at_ms - end.counters[0].since_ms] if kept else [])


@pytest.mark.timeout(90)  # two processes
async def test_a_grant_that_was_not_answered_before_the_cluster_was_killed_comes_again(lab: Lab) -> None:
    hand = await hand_of(lab)
    truth = lab.directory / "truth.jsonl"
    hand.payloads[attempt(1)] = UNREACHABLE
    async with process(await synthetic(lab, truth), "allmende.agent.synthetic") as cluster:
        await hand.says(grant(1, placement=(("n0001", 1),)))
        await hand.until(lambda: len(hand.asked) > 1, "its payload is asked for", 20)
        cluster.kill()
        await cluster.wait()
    hand.payloads[attempt(1)] = Payload(command=Command(HOUR_MS).line())
    async with process(await synthetic(lab, truth), "allmende.agent.synthetic"):
        await hand.until(lambda: hand.heard(AttemptStarted), "it starts, and not only after the ack wait", 12)


async def test_the_workload_submits_as_its_people_and_wants_more_when_something_ends(lab: Lab) -> None:
    hand = await hand_of(lab)
    jobs: list[JobSubmitted] = []

    async def hear() -> None:
        subscription = hand.bus.subscribe("JOBS", "admission")
        while True:
            deliveries = await subscription.pull(256, 1.0)
            for delivery in deliveries:
                body = decode(delivery.data).body
                assert isinstance(body, JobSubmitted)
                assert delivery.subject.split(".")[3:] == [body.user, body.job]
                jobs.append(body)
            await subscription.ack(deliveries)

    hearing = asyncio.ensure_future(hear())
    log = lab.directory / "workload.jsonl"
    settings = await environment(lab, "gateway", "gateway", ALLMENDE_WORKLOAD_GPUS="64", ALLMENDE_WORKLOAD_LOG_FILE=str(log))
    async with process(settings, "allmende.agent.workload", "run") as running:
        await hand.until(lambda: len(jobs) >= 10, "the backlog is submitted", 20)
        await asyncio.sleep(0.3)
        backlog = len(jobs)
        for body in jobs[:backlog]:
            await hand.says(
                JobEnded(
                    user=body.user,
                    job=body.job,
                    budget=body.budget,
                    outcome="finished",
                    exit_code=0,
                    attempts=1,
                    submitted_at_ms=RealClock().now_ms(),
                    ended_at_ms=RealClock().now_ms(),
                )
            )
        await hand.until(lambda: len(jobs) > backlog + 5, "more is submitted", 20)
        assert await ended(running) == 0
    # What was published last is still on its way to us.
    with log.open("rb") as lines:
        asked = sum(isinstance(entry, workload.Submitted) for entry in workload.from_lines(lines))
    await hand.until(lambda: len(jobs) == asked, "all that was logged was submitted", 10)
    hearing.cancel()
    with log.open("rb") as lines:
        entries = list(workload.from_lines(lines))
    assert isinstance(entries[0], workload.Began)
    assert sum(isinstance(entry, workload.Ended) for entry in entries) == backlog


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ALLMENDE_SYNTHETIC_GPU": "8"}, "no setting gpu"),
        ({"ALLMENDE_SYNTHETIC_GPUS": "none"}, "ALLMENDE_SYNTHETIC_GPUS"),
        ({}, "truth_file is missing"),
        ({"ALLMENDE_SYNTHETIC_TRUTH_FILE": "t", "ALLMENDE_CLOCK": "fast"}, "clock"),
    ],
)
async def test_wrong_settings_are_named_and_end_the_program(settings: dict[str, str], sentence: str, tmp_path: Path) -> None:
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "allmende.agent.synthetic",
        env={"PATH": os.defpath, "ALLMENDE_NATS_URL": "nats://127.0.0.1:1", **settings},
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await started.communicate()
    assert started.returncode == 78
    assert sentence in errors.decode()
    assert len(errors.splitlines()) == 1
