"""What only a real server can get wrong: it dies, forgets, changes its users. What both busses do is in tests/ports."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from allmende.chassis import accounts, topology
from allmende.chassis.bus import NatsBus, connect
from allmende.chassis.bus.calls import read_violation
from allmende.chassis.bus.pull import PullSubscription, read_delivery
from allmende.chassis.errors import Misconfigured, Transient
from allmende.chassis.ports import Endpoint
from allmende.proto.streams import ACK_WAIT_MS
from tests.servers import CLUSTERS, Lab

TICK = "agent.usage_tick.v1.c1.node-1"
# Half of the ack wait: what came sooner did not wait for it, on however slow a machine.
QUICK_S = ACK_WAIT_MS / 2_000
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def collect(subscription: PullSubscription, wanted: set[bytes], within_s: float = 20.0) -> list[bytes]:
    """Pull and acknowledge until all of `wanted` have come, through whatever failures."""
    found: list[bytes] = []
    async with asyncio.timeout(within_s):
        while not wanted <= set(found):
            try:
                deliveries = await subscription.pull(64, 0.5)
            except Transient:
                await asyncio.sleep(0.05)
                continue
            await subscription.ack(deliveries)
            found += [delivery.data for delivery in deliveries]
    return found


async def say_all(bus: NatsBus, bodies: list[bytes]) -> None:
    """Publish until each is confirmed, with the same ids."""
    left = [(TICK, body.decode(), body, None) for body in bodies]
    async with asyncio.timeout(20):
        while left:
            results = await bus.publish_many(left)
            left = [message for message, result in zip(left, results, strict=True) if result is not None]


async def test_a_pull_that_waits_lives_through_kill_9_of_the_server_and_nothing_is_lost(lab: Lab) -> None:
    """BR-044: after an outage of the broker the flow goes on by itself."""
    agent, ledger = await lab.bus("agent"), await lab.bus("ledger")
    before, meanwhile = [b"before-%d" % i for i in range(300)], [b"meanwhile-%d" % i for i in range(300)]
    async with asyncio.TaskGroup() as tasks:
        collecting = tasks.create_task(collect(ledger.subscribe("USAGE", "ledger"), {*before, *meanwhile}))
        await say_all(agent, before)
        saying = tasks.create_task(say_all(agent, meanwhile))
        await lab.kill("nats")
        await lab.restart("nats")
        await saying
        found = await collecting
    assert set(found) == {*before, *meanwhile}
    assert ledger.is_connected


async def test_a_pull_goes_on_after_its_consumer_was_deleted_and_made_again(lab: Lab) -> None:
    """BR-044: also when the consumer itself was lost in the outage."""
    agent, ledger, admin = await lab.bus("agent"), await lab.bus("ledger"), await lab.bus("admin")
    subscription = ledger.subscribe("USAGE", "ledger")
    await say_all(agent, [b"one"])
    await collect(subscription, {b"one"})
    async with asyncio.TaskGroup() as tasks:
        collecting = tasks.create_task(collect(subscription, {b"two"}))
        await admin.client.request("$JS.API.CONSUMER.DELETE.USAGE.ledger", b"")
        await say_all(agent, [b"two"])
        await topology.apply(admin, CLUSTERS)
        found = await collecting
    assert b"two" in found


async def test_a_killed_process_does_not_keep_its_messages_from_the_next_for_the_ack_wait(lab: Lab) -> None:
    agent = await lab.bus("agent")
    bodies = [b"%d" % i for i in range(100)]
    await say_all(agent, bodies)
    dead = await lab.bus("ledger")
    assert await dead.subscribe("USAGE", "ledger").pull(64, 5.0)
    await dead.close()
    began = asyncio.get_running_loop().time()
    found = await collect((await lab.bus("ledger")).subscribe("USAGE", "ledger"), set(bodies))
    assert asyncio.get_running_loop().time() - began < QUICK_S
    assert found[:100] == bodies, "in order"


async def test_what_was_delivered_to_a_connection_that_is_gone_comes_again_at_once(lab: Lab) -> None:
    """The process lives on, and its server was killed: what was on the way to it need not wait for the ack wait either."""
    agent, ledger = await lab.bus("agent"), await lab.bus("ledger")
    subscription = ledger.subscribe("USAGE", "ledger")
    assert await subscription.pull(64, 0.5) == ()
    bodies = [b"%d" % i for i in range(100)]
    await say_all(agent, bodies)
    assert len(await subscription.pull(100, 5.0)) > 0, "taken, and never handled"
    await lab.kill("nats")
    await lab.restart("nats")
    began = asyncio.get_running_loop().time()
    await collect(subscription, set(bodies))
    assert asyncio.get_running_loop().time() - began < QUICK_S


async def test_a_rewind_that_nobody_answered_is_asked_for_again(lab: Lab) -> None:
    """A service that is up before the consumers are: JetStream is starting, or they are being made."""
    agent, admin = await lab.bus("agent"), await lab.bus("admin")
    await say_all(agent, [b"one"])
    dead = await lab.bus("ledger")
    await admin.client.request("$JS.API.CONSUMER.DELETE.USAGE.ledger", b"")
    waiting = (await lab.bus("ledger")).subscribe("USAGE", "ledger")
    with pytest.raises(Transient):
        await waiting.pull(64, 5.0)
    await topology.apply(admin, CLUSTERS)
    assert [each.data for each in await dead.subscribe("USAGE", "ledger").pull(64, 5.0)] == [b"one"]
    await dead.close()
    began = asyncio.get_running_loop().time()
    await collect(waiting, {b"one"})
    assert asyncio.get_running_loop().time() - began < QUICK_S


async def test_a_replica_that_starts_may_repeat_another_ones_messages_and_loses_none(lab: Lab) -> None:
    agent = await lab.bus("agent")
    bodies = [b"%d" % i for i in range(100)]
    await say_all(agent, bodies)
    first = (await lab.bus("ledger")).subscribe("USAGE", "ledger")
    in_hand = await first.pull(64, 5.0)
    assert in_hand
    second = (await lab.bus("ledger")).subscribe("USAGE", "ledger")
    repeated = await second.pull(64, 5.0)
    assert repeated, "at once, though the first one lives: nobody can tell a slow replica from a dead one"
    await first.ack(in_hand)
    await second.ack(repeated)
    more = {b"more-%d" % i for i in range(100)}
    async with asyncio.TaskGroup() as tasks:
        # Either may get the rest, so neither can wait for all of it.
        found = [tasks.create_task(_drain(each)) for each in (first, second)]
        await say_all(agent, sorted(more))
    handled = [delivery.data for delivery in (*in_hand, *repeated)] + [data for task in found for data in task.result()]
    assert set(handled) == {*bodies, *more}
    assert await second.lag() == 0


async def _drain(subscription: PullSubscription) -> list[bytes]:
    """Pull and acknowledge until nothing has come for a while."""
    found: list[bytes] = []
    while deliveries := await subscription.pull(64, 3.0):
        await subscription.ack(deliveries)
        found += [delivery.data for delivery in deliveries]
    return found


async def test_the_trace_travels_with_messages_and_requests(lab: Lab) -> None:
    agent, ledger, alice = await lab.bus("agent"), await lab.bus("ledger"), await lab.bus("user")
    await agent.publish(TICK, "one", b"1", TRACE)
    await agent.publish(TICK, "two", b"2")
    subscription = ledger.subscribe("USAGE", "ledger")
    traces: list[str | None] = []
    while len(traces) < 2:
        traces += [delivery.trace for delivery in await subscription.pull(2, 5.0)]
    assert traces == [TRACE, None]

    async def tell(caller: str, body: bytes) -> bytes:
        return f"{trace.get_current_span().get_span_context().trace_id:032x}".encode()

    await ledger.answer("ledger", "1.0.0", [Endpoint("books", "rpc.ledger.books.v1.*", tell)])
    with TracerProvider().get_tracer("test").start_as_current_span("ask") as span:
        answer = await alice.ask("rpc.ledger.books.v1.alice", b"")
    assert answer.decode() == f"{span.get_span_context().trace_id:032x}"


async def test_a_service_can_be_discovered_with_its_verbs(lab: Lab) -> None:
    ledger = await lab.bus("ledger")

    async def nothing(caller: str, body: bytes) -> bytes:
        return b""

    await ledger.answer("ledger", "1.2.3", [Endpoint("books", "rpc.ledger.books.v1.*", nothing)])
    reply = await (await lab.bus("admin")).client.request("$SRV.INFO.ledger", b"", timeout=5)
    info = msgspec.json.decode(reply.data)
    assert (info["name"], info["version"]) == ("ledger", "1.2.3")
    assert [(endpoint["name"], endpoint["subject"]) for endpoint in info["endpoints"]] == [("books", "rpc.ledger.books.v1.*")]


async def test_every_user_has_what_the_table_grants_and_a_probe_names_what_is_missing(lab: Lab) -> None:
    for role in ("budget", "ledger", "admission", "preemptor", "agent", "user", "gateway", "operator", "dashboard", "admin"):
        assert await (await lab.bus(role)).probe() == [], role
    ledger = await lab.bus("ledger")
    conf = lab.nats.directory / "nats.conf"
    conf.write_text(conf.read_text().replace('"rpc.ledger.books.v1.*"', '"rpc.ledger.bucks.v1.*"'))
    accounts.reload(lab.nats.pid)
    missing: Sequence[str] = ()
    async with asyncio.timeout(10):
        while not missing:
            # The server closes connections whose permissions changed; ours come back.
            with contextlib.suppress(Transient):
                missing = await ledger.probe()
    assert missing == ["hear rpc.ledger.books.v1.*"]


async def test_the_credentials_of_somebody_else_are_refused_at_the_start(lab: Lab) -> None:
    alice = await lab.user("user", "alice")
    with pytest.raises(Misconfigured, match="somebody else's"):
        await connect(lab.nats_url, role="user", identity="bob", seed_file=alice.seed_file)


async def test_a_user_who_is_taken_away_learns_that_it_is_over(lab: Lab) -> None:
    bus = await lab.bus("user", "mallory")
    await lab.remove_user("user", "mallory")
    with pytest.raises(Misconfigured):
        await asyncio.wait_for(bus.until_closed(), 20)


async def test_a_wrong_seed_is_told_and_not_tried_for_ever(lab: Lab) -> None:
    stranger = accounts.keep(lab.directory / "other", accounts.User("user", "stranger"))
    with pytest.raises(Misconfigured, match="does not accept the credentials of user 'stranger'"):
        await connect(lab.nats_url, role="user", identity="stranger", seed_file=stranger.seed_file)


@pytest.mark.parametrize("content", [b"", b"root:x:0:0", b"SU", b"\xff" * 58, b"A" * 58, b"SUAM" + b"A" * 54])
async def test_a_file_that_holds_no_seed_is_told(lab: Lab, content: bytes) -> None:
    seed_file = lab.directory / "spoilt.nk"
    seed_file.write_bytes(content)
    with pytest.raises(Misconfigured, match="user 'alice'"):
        await connect(lab.nats_url, role="user", identity="alice", seed_file=seed_file)


async def test_no_server_is_told_in_time(unused_tcp_port: int) -> None:
    with pytest.raises(Transient, match="no NATS at"):
        await connect(f"nats://127.0.0.1:{unused_tcp_port}", role="user", identity="alice", wait_s=0.5)


async def test_closing_ends_the_wait_for_the_end(lab: Lab) -> None:
    bus = await connect(lab.nats_url, role="user", identity="alice", seed_file=(await lab.user("user", "alice")).seed_file)
    await bus.close()
    await asyncio.wait_for(bus.until_closed(), 5)
    with pytest.raises(Transient):
        await bus.publish("user.job_submitted.v1.alice.j", "x", b"")


@pytest.mark.parametrize(
    ("reply", "stream", "sequence"),
    [
        ("$JS.ACK.USAGE.ledger.1.17.3.1700000000000000000.5", "USAGE", 17),
        ("$JS.ACK._.BC7ZTM4P.USAGE.ledger.1.18.3.1700000000000000000.5", "USAGE", 18),
        ("$JS.ACK.hub.BC7ZTM4P.USAGE.ledger.1.19.3.1700000000000000000.5.token", "USAGE", 19),
    ],
)
def test_both_forms_of_acknowledgement_subject_are_read(reply: str, stream: str, sequence: int) -> None:
    delivery = read_delivery(Msg(_client=Client(), subject=TICK, reply=reply, data=b""))
    assert delivery is not None
    assert (delivery.stream, delivery.stream_seq) == (stream, sequence)
    # Stored on 14 November 2023, as the token of nanoseconds says.
    assert abs(delivery.waited_ms - (time.time_ns() // 10**6 - 1_700_000_000_000)) < 60_000


@pytest.mark.parametrize("reply", ["", "_INBOX.x", "$JS.ACK.USAGE.ledger", "$JS.ACK.a.b.c.d.e.f.g"])
def test_what_no_consumer_sent_is_no_delivery(reply: str) -> None:
    assert read_delivery(Msg(_client=Client(), subject=TICK, reply=reply, data=b"")) is None


def test_a_violation_is_read_with_its_subject() -> None:
    error = Exception('nats: permissions violation for publish to "agent.usage_tick.v1.c2.n"')
    assert read_violation(error) == ("publish", "agent.usage_tick.v1.c2.n")
    error = Exception('nats: permissions violation for subscription to "user.>" using queue "q"')
    assert read_violation(error) == ("subscription", "user.>")
    assert read_violation(Exception("nats: stale connection")) is None
