"""What everybody may rely on of a bus: the one in memory and NATS answer the same suite."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest
import pytest_asyncio

from allmende.chassis.clock import real_seconds
from allmende.chassis.errors import Misconfigured, Refused, Transient
from allmende.chassis.fakes.bus import FakeBus, FakeServer
from allmende.chassis.ports import Bus, Delivery, Endpoint, Subscription
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.permissions import UserRole
from tests.servers import NAMES, Lab

TICK = "agent.usage_tick.v1.c1.node-1"
STANDING = "ledger.usage_standing.v1.c1.team"


class Side(NamedTuple):
    """One of the two busses."""

    bus: Callable[[UserRole], Awaitable[Bus]]
    cut: Callable[[], Awaitable[None]]
    mend: Callable[[], Awaitable[None]]


@pytest_asyncio.fixture(params=["fake", "nats"])
async def side(request: pytest.FixtureRequest, nats_lab: Lab | None) -> AsyncIterator[Side]:
    """Both busses, one after the other."""
    if nats_lab is not None:

        async def cut() -> None:
            await nats_lab.kill("nats")

        async def mend() -> None:
            await nats_lab.restart("nats")

        yield Side(nats_lab.bus, cut, mend)
        return
    server = FakeServer()

    async def fake(role: UserRole) -> Bus:
        return FakeBus(server, role, NAMES.get(role, role))

    async def switch_off() -> None:
        server.running = False

    async def switch_on() -> None:
        server.running = True

    yield Side(fake, switch_off, switch_on)


@pytest.fixture
def nats_lab(request: pytest.FixtureRequest) -> Lab | None:
    """A lab, only where the real bus is asked for: the fake's tests start no server."""
    wanted = request.node.callspec.params["side"] == "nats"
    found: Lab | None = request.getfixturevalue("lab") if wanted else None
    return found


async def pulled(subscription: Subscription, number: int, within_s: float = 10.0) -> list[Delivery]:
    """Pull until so many have come."""
    found: list[Delivery] = []
    until = real_seconds() + within_s
    while len(found) < number and real_seconds() < until:
        try:
            found += await subscription.pull(256, 0.5)
        except Transient:
            await asyncio.sleep(0.05)
    return found


def many(number: int, subject: str = TICK) -> list[tuple[str, str, bytes, str | None]]:
    """Messages that can be told apart."""
    return [(subject, f"id-{index}", f"{index}".encode(), None) for index in range(number)]


async def test_messages_come_in_the_order_in_which_they_were_said(side: Side) -> None:
    agent, ledger = await side.bus("agent"), await side.bus("ledger")
    assert await agent.publish_many(many(700)) == [None] * 700
    found = await pulled(ledger.subscribe("USAGE", "ledger"), 700)
    assert [delivery.data for delivery in found] == [f"{index}".encode() for index in range(700)]
    assert [delivery.stream_seq for delivery in found] == list(range(1, 701))
    assert {(delivery.subject, delivery.stream) for delivery in found} == {(TICK, "USAGE")}


async def test_an_id_said_twice_is_stored_once(side: Side) -> None:
    agent, ledger = await side.bus("agent"), await side.bus("ledger")
    for _ in range(2):
        await agent.publish(TICK, "same", b"once")
    await agent.publish(TICK, "other", b"twice")
    assert [delivery.data for delivery in await pulled(ledger.subscribe("USAGE", "ledger"), 2)] == [b"once", b"twice"]


async def test_a_waiting_pull_returns_with_the_first_message_and_does_not_linger(side: Side) -> None:
    agent, ledger = await side.bus("agent"), await side.bus("ledger")
    subscription = ledger.subscribe("USAGE", "ledger")
    assert await subscription.pull(256, 0.05) == ()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(subscription.pull(256, 20.0))
        await asyncio.sleep(0)
        began = real_seconds()
        await agent.publish(TICK, "one", b"1")
        assert [delivery.data for delivery in await waiting] == [b"1"]
    assert real_seconds() - began < 2.0


async def test_a_pull_takes_at_most_what_was_asked_for(side: Side) -> None:
    agent, ledger = await side.bus("agent"), await side.bus("ledger")
    await agent.publish_many(many(5))
    subscription = ledger.subscribe("USAGE", "ledger")
    sizes: list[int] = []
    while sum(sizes) < 5:
        sizes.append(len(await subscription.pull(2, 1.0)))
    assert max(sizes) <= 2


async def test_a_role_hears_only_what_its_consumer_is_for(side: Side) -> None:
    agent, admission = await side.bus("agent"), await side.bus("admission")
    orders = agent.subscribe("DECISIONS", "agent-c1")
    await admission.publish("admission.job_granted.v1.c2.attempt", "for-c2", b"not ours")
    await admission.publish("admission.job_granted.v1.c1.attempt", "for-c1", b"ours")
    assert [delivery.data for delivery in await pulled(orders, 1)] == [b"ours"]


async def test_what_a_process_did_not_acknowledge_comes_again_at_once_to_the_next_and_in_order(side: Side) -> None:
    agent, ledger = await side.bus("agent"), await side.bus("ledger")
    await agent.publish_many(many(6))
    first = ledger.subscribe("USAGE", "ledger")
    found = await pulled(first, 6)
    await first.ack(found[:2])
    await ledger.close()
    again = await pulled((await side.bus("ledger")).subscribe("USAGE", "ledger"), 4)
    assert [delivery.data for delivery in again] == [b"2", b"3", b"4", b"5"]


async def test_lag_counts_what_waits_and_what_is_not_acknowledged(side: Side) -> None:
    agent, ledger = await side.bus("agent"), await side.bus("ledger")
    subscription = ledger.subscribe("USAGE", "ledger")
    assert await subscription.lag() == 0
    await agent.publish_many(many(5))
    await lag_becomes(subscription, 5)
    found = await pulled(subscription, 5)
    await lag_becomes(subscription, 5)
    await subscription.ack(found)
    await lag_becomes(subscription, 0)


async def lag_becomes(subscription: Subscription, number: int) -> None:
    """A consumer counts what the stream has stored a moment after the stream has confirmed it."""
    async with asyncio.timeout(5):
        while await subscription.lag() != number:
            pass


async def test_a_stream_of_last_values_keeps_only_the_newest_of_each_subject(side: Side) -> None:
    ledger, admission = await side.bus("ledger"), await side.bus("admission")
    for number in range(3):
        await ledger.publish(STANDING, f"standing-{number}", f"{number}".encode())
    await ledger.publish(STANDING.replace("team", "other"), "other", b"9")
    found = await pulled(admission.subscribe("STANDINGS", "admission"), 2)
    assert [delivery.data for delivery in found] == [b"2", b"9"]


async def test_a_message_of_64_kib_is_stored_and_one_byte_more_is_refused_without_harm_to_its_neighbours(side: Side) -> None:
    agent, ledger = await side.bus("agent"), await side.bus("ledger")
    sizes = (1, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1, 2)
    results = await agent.publish_many([(TICK, f"size-{size}", b"x" * size, None) for size in sizes])
    assert [result is None for result in results] == [True, True, False, True]
    assert isinstance(results[2], Refused)
    assert results[2].code == "message_too_large"
    with pytest.raises(Refused) as refused:
        await agent.publish(TICK, "size-again", b"x" * (MAX_MESSAGE_BYTES + 1))
    assert refused.value.code == "message_too_large"
    found = await pulled(ledger.subscribe("USAGE", "ledger"), 3)
    assert [len(delivery.data) for delivery in found] == [1, MAX_MESSAGE_BYTES, 2]


async def test_what_is_not_permitted_is_told_as_that_and_at_once(side: Side) -> None:
    agent = await side.bus("agent")
    results = await agent.publish_many([*many(2), (TICK.replace("c1", "c2"), "forged", b"", None), (TICK, "after", b"", None)])
    assert [result is None for result in results] == [True, True, False, True]
    assert isinstance(results[2], Refused)
    assert results[2].code == "not_permitted"
    with pytest.raises(Refused) as heard:
        await agent.watch("user.job_submitted.v1.*.*", lambda *_: None)
    assert heard.value.code == "not_permitted"
    with pytest.raises(Refusal) as asked:
        await agent.ask("rpc.admission.payload.v1.c2", b"{}", 20.0)
    assert asked.value.problem.code == "not_permitted"
    with pytest.raises(Misconfigured):
        await agent.subscribe("USAGE", "ledger").pull(1, 20.0)
    with pytest.raises(Misconfigured):
        await agent.answer("ledger", "1.0.0", [Endpoint("books", "rpc.ledger.books.v1.*", _echo)])


async def _echo(caller: str, body: bytes) -> bytes:
    return caller.encode() + b":" + body


async def test_who_watches_hears_live_messages_until_he_stops(side: Side) -> None:
    agent, wall = await side.bus("agent"), await side.bus("dashboard")
    heard: list[tuple[str, bytes]] = []
    arrived = asyncio.Event()

    def hear(subject: str, data: bytes) -> None:
        heard.append((subject, data))
        arrived.set()

    stop = await wall.watch("agent.usage_tick.v1.*.*", hear)
    await agent.publish(TICK, "one", b"1")
    await asyncio.wait_for(arrived.wait(), 5.0)
    await stop()
    await agent.publish(TICK, "two", b"2")
    assert heard == [(TICK, b"1")]


async def test_a_service_learns_who_asks_and_answers(side: Side) -> None:
    ledger, alice, olga = await side.bus("ledger"), await side.bus("user"), await side.bus("operator")
    stop = await ledger.answer("ledger", "1.0.0", [Endpoint("books", "rpc.ledger.books.v1.*", _echo)])
    assert await alice.ask("rpc.ledger.books.v1.alice", b"1") == b"alice:1"
    assert await olga.ask("rpc.ledger.books.v1.olga", b"") == b"olga:"
    await stop()
    with pytest.raises(Transient):
        await alice.ask("rpc.ledger.books.v1.alice", b"1", 1.0)


async def test_a_slow_answer_does_not_hold_up_the_next_one_of_the_same_endpoint(side: Side) -> None:
    ledger, alice, olga = await side.bus("ledger"), await side.bus("user"), await side.bus("operator")
    asked, free = asyncio.Event(), asyncio.Event()

    async def answer(caller: str, body: bytes) -> bytes:
        if body == b"slow":
            asked.set()
            await free.wait()
        return body

    stop = await ledger.answer("ledger", "1.0.0", [Endpoint("books", "rpc.ledger.books.v1.*", answer)])
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(alice.ask("rpc.ledger.books.v1.alice", b"slow"))
        await asyncio.wait_for(asked.wait(), 5.0)
        assert await olga.ask("rpc.ledger.books.v1.olga", b"quick") == b"quick"
        assert not slow.done()
        free.set()
        assert await slow == b"slow"
    await stop()


async def _broken(caller: str, body: bytes) -> bytes:
    raise ZeroDivisionError(body)


async def _refusing(caller: str, body: bytes) -> bytes:
    raise Refusal("unknown_budget", "there is no budget 'schön'\nat all")


async def _waiting(caller: str, body: bytes) -> bytes:
    raise Transient("the database is away")


async def _endless(caller: str, body: bytes) -> bytes:
    return b"x" * (MAX_MESSAGE_BYTES + 1)


async def _never(caller: str, body: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


@pytest.mark.parametrize(
    ("sentence", "answer", "code"),
    [
        ("a refusal reaches the asker with its code and sentence", _refusing, "unknown_budget"),
        ("an unforeseen failure is told without its details", _broken, "internal_error"),
        ("a reply that is too large is told as that", _endless, "reply_too_large"),
        ("a service that cannot answer just now may be asked again", _waiting, None),
        ("silence ends with the time that the asker has", _never, None),
    ],
)
async def test_problems(side: Side, sentence: str, answer: Callable[[str, bytes], Awaitable[bytes]], code: str | None) -> None:
    ledger, alice = await side.bus("ledger"), await side.bus("user")
    await ledger.answer(
        "ledger", "1.0.0", [Endpoint("books", "rpc.ledger.books.v1.*", answer), Endpoint("state", "rpc.ledger.state.v1.*", _echo)]
    )
    if code is None:
        with pytest.raises(Transient):
            await alice.ask("rpc.ledger.books.v1.alice", b"1", 0.5)
    else:
        with pytest.raises(Refusal) as refusal:
            await alice.ask("rpc.ledger.books.v1.alice", b"1")
        assert refusal.value.problem.code == code
        assert code != "unknown_budget" or refusal.value.problem.sentence == "there is no budget 'schön'\nat all"
    assert await alice.ask("rpc.ledger.state.v1.alice", b"2") == b"alice:2", "others are answered as before"


async def test_after_an_outage_everything_goes_on_and_nothing_stored_is_lost(side: Side) -> None:
    agent, ledger = await side.bus("agent"), await side.bus("ledger")
    subscription = ledger.subscribe("USAGE", "ledger")
    await agent.publish_many(many(10))
    await subscription.ack(await pulled(subscription, 10))
    assert await agent.publish_many(many(20)) == [None] * 20
    await side.cut()
    await side.mend()
    late = [(TICK, f"late-{index}", f"late-{index}".encode(), None) for index in range(5)]
    results: list[Exception | None] = [Transient("not yet")]
    async with asyncio.timeout(20):
        while any(results):
            results = list(await agent.publish_many(late))
    wanted = {b"%d" % index for index in range(10, 20)} | {b"late-%d" % index for index in range(5)}
    found: set[bytes] = set()
    # A server that was killed may have forgotten what was delivered and acknowledged: that comes again, and the inbox knows it.
    async with asyncio.timeout(20):
        while not wanted <= found:
            found |= {delivery.data for delivery in await pulled(subscription, 1)}


async def test_last_values_are_one_a_subject_and_need_permission(side: Side) -> None:
    ledger, wall, agent = await side.bus("ledger"), await side.bus("dashboard"), await side.bus("agent")
    pattern = "ledger.usage_standing.v1.c1.*"
    assert await wall.last_values("STANDINGS", [pattern]) == []
    for subject, text in ((STANDING, "1"), (f"{STANDING}-2", "2"), (STANDING, "3"), (STANDING.replace("c1", "c2"), "4")):
        await ledger.publish(subject, f"id-{text}", text.encode())
    assert sorted(await wall.last_values("STANDINGS", [pattern])) == [(STANDING, b"3"), (f"{STANDING}-2", b"2")]
    with pytest.raises(Transient):
        await agent.last_values("STANDINGS", [pattern], 0.5)
    with pytest.raises(Transient):
        await wall.last_values("USAGE", ["agent.usage_tick.v1.c1.*"], 0.5)
