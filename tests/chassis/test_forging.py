"""Who may say and hear what, tried over the real server with each user's own credentials."""

import asyncio

import pytest

from allmende.chassis.errors import Misconfigured, Refused
from allmende.chassis.ports import Endpoint
from allmende.proto.envelope import Refusal
from allmende.proto.permissions import UserRole
from allmende.proto.streams import STREAMS
from allmende.proto.subjects import REQUESTS, SUBJECTS, Role, Subject
from tests.servers import NAMES, Lab

Who = tuple[UserRole, str]
AGENT: Who = ("agent", "c1")
ALICE: Who = ("user", "alice")
WALL: Who = ("dashboard", "wall")
LEDGER: Who = ("ledger", "ledger")


@pytest.mark.parametrize(
    ("sentence", "who", "subject"),
    [
        ("an agent does not report usage of another cluster", AGENT, "agent.usage_tick.v1.c2.n1"),
        ("an agent does not end another cluster's attempts", AGENT, "agent.attempt_ended.v1.c2.a1"),
        ("an agent does not submit as a user", AGENT, "user.job_submitted.v1.alice.j1"),
        ("an agent does not submit under its own name", AGENT, "user.job_submitted.v1.c1.j1"),
        ("an agent does not grant itself a job", AGENT, "admission.job_granted.v1.c1.a1"),
        ("an agent does not confirm its own usage", AGENT, "ledger.usage_confirmed.v1.c1"),
        ("a user does not submit as another user", ALICE, "user.job_submitted.v1.bob.j1"),
        ("a user does not report usage", ALICE, "agent.usage_tick.v1.c1.n1"),
        ("a user does not decide", ALICE, "admission.job_ended.v1.alice.j1"),
        ("a user does not refuse", ALICE, "refusal.message_refused.v1.ledger.c1"),
        ("a dashboard does not submit under its own name", WALL, "user.job_submitted.v1.wall.j1"),
        ("a dashboard does not report usage", WALL, "agent.usage_tick.v1.c1.n1"),
        ("the ledger does not grant", LEDGER, "admission.job_granted.v1.c1.a1"),
        ("the ledger does not change shares", LEDGER, "budget.budget_changed.v1.team"),
        ("the ledger does not refuse in another service's name", LEDGER, "refusal.message_refused.v1.admission.c1"),
        ("the ledger does not submit", LEDGER, "user.job_submitted.v1.ledger.j1"),
        ("an operator does not submit as another", ("operator", "olga"), "user.job_submitted.v1.alice.j1"),
        ("the topology command says no event", ("admin", "topology"), "agent.usage_tick.v1.c1.n1"),
    ],
)
async def test_nobody_says_what_is_not_his_to_say(lab: Lab, sentence: str, who: Who, subject: str) -> None:
    """BR-054: who speaks is known from the credential, on every path."""
    with pytest.raises(Refused) as refused:
        await (await lab.bus(*who)).publish(subject, "forged", b"{}")
    assert refused.value.code == "not_permitted", sentence
    admin = await lab.bus("admin")
    for stream in STREAMS:
        reply = await admin.client.request(f"$JS.API.STREAM.INFO.{stream.name}", b"", timeout=5)
        assert b'"messages":0' in reply.data, f"{sentence}, and nothing is stored"


async def test_no_role_says_any_event_that_the_table_does_not_let_it_say(lab: Lab) -> None:
    for role, name in NAMES.items():
        bus = await lab.bus(role)  # type: ignore[arg-type]
        rows = [row for row in SUBJECTS if role not in row.says]
        results = await bus.publish_many([(_example(row, name), f"{role}-{row.prefix}", b"{}", None) for row in rows])
        codes = {row.prefix: getattr(result, "code", None) for row, result in zip(rows, results, strict=True)}
        assert codes == dict.fromkeys(codes, "not_permitted"), role


def _example(row: Subject, name: str) -> str:
    return ".".join((row.prefix, *(name for _ in row.tokens)))


@pytest.mark.parametrize(
    ("sentence", "who", "pattern"),
    [
        ("a user does not hear another's replies", ALICE, "_INBOX.user.bob.>"),
        ("a user does not hear all inboxes", ALICE, "_INBOX.>"),
        ("a user does not hear everything", ALICE, ">"),
        ("a user does not hear a service's replies", ALICE, "_INBOX.admission.admission.>"),
        ("an agent does not hear another agent's replies", AGENT, "_INBOX.agent.c2.>"),
        ("a dashboard does not hear a user's replies", WALL, "_INBOX.user.alice.>"),
        ("a service does not hear another's replies", LEDGER, "_INBOX.admission.admission.>"),
        ("a user does not hear what others submit", ALICE, "user.job_submitted.v1.bob.*"),
        ("a user does not even hear what he submits himself", ALICE, "user.job_submitted.v1.alice.*"),
        ("an agent does not hear what users submit", AGENT, "user.job_submitted.>"),
        ("a dashboard does not hear what users submit", WALL, "user.>"),
        ("a gateway does not hear what users submit", ("gateway", "front"), "user.job_submitted.v1.*.*"),
        ("an operator does not hear what users submit", ("operator", "olga"), "user.job_submitted.v1.*.*"),
        ("the ledger does not hear what users submit", LEDGER, "user.job_submitted.v1.*.*"),
        ("the topology command does not hear what users submit", ("admin", "topology"), "user.job_submitted.v1.*.*"),
        ("an agent does not hear another cluster's orders", AGENT, "admission.job_granted.v1.c2.*"),
        ("an agent does not answer for a service", AGENT, "rpc.ledger.books.v1.*"),
        ("a service does not answer for another", LEDGER, "rpc.admission.cancel.v1.*"),
        ("a user does not hear another's refusals", ALICE, "refusal.message_refused.v1.*.bob"),
        ("an agent does not hear the server's advice about streams", AGENT, "$JS.EVENT.>"),
    ],
)
async def test_nobody_hears_what_is_not_his_to_hear(lab: Lab, sentence: str, who: Who, pattern: str) -> None:
    with pytest.raises(Refused) as refused:
        await (await lab.bus(*who)).watch(pattern, lambda *_: None)
    assert refused.value.code == "not_permitted", sentence


@pytest.mark.parametrize("role", ["budget", "ledger", "preemptor", "agent", "user", "gateway", "operator", "dashboard"])
async def test_nobody_but_admission_reads_submissions_from_the_stream(lab: Lab, role: Role) -> None:
    await (await lab.bus("user")).publish("user.job_submitted.v1.alice.j1", "one", b"secret")
    with pytest.raises(Misconfigured):
        await (await lab.bus(role)).subscribe("JOBS", "admission").pull(1, 5.0)
    found = await (await lab.bus("admission")).subscribe("JOBS", "admission").pull(1, 5.0)
    assert [delivery.data for delivery in found] == [b"secret"]


_STREAMS_AND_CONSUMERS = (
    "$JS.API.STREAM.DELETE.USAGE",
    "$JS.API.STREAM.PURGE.USAGE",
    "$JS.API.STREAM.UPDATE.USAGE",
    "$JS.API.STREAM.MSG.DELETE.USAGE",
    "$JS.API.STREAM.MSG.GET.JOBS",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.LIST",
    "$JS.API.DIRECT.GET.JOBS",
    "$JS.API.CONSUMER.CREATE.JOBS",
    "$JS.API.CONSUMER.DELETE.DECISIONS.agent-c1",
    "$JS.API.CONSUMER.MSG.NEXT.DECISIONS.agent-c2",
    "$JS.API.CONSUMER.RESET.DECISIONS.agent-c2",
    "$JS.ACK.DECISIONS.agent-c2.1.1.1.1.1",
    "$JS.ACK._.hash.DECISIONS.agent-c2.1.1.1.1.1",
)


@pytest.mark.parametrize("who", [AGENT, ALICE, WALL, LEDGER, ("gateway", "front"), ("operator", "olga")])
async def test_nobody_but_the_topology_command_touches_streams_and_others_consumers(lab: Lab, who: Who) -> None:
    bus = await lab.bus(*who)
    for subject in _STREAMS_AND_CONSUMERS:
        with pytest.raises(Refusal) as refusal:
            await bus.ask(subject, b"{}")
        assert refusal.value.problem.code == "not_permitted", subject


async def test_nobody_asks_in_the_name_of_another_or_what_is_not_for_the_role(lab: Lab) -> None:
    for role, name in NAMES.items():
        bus = await lab.bus(role)  # type: ignore[arg-type]
        forbidden = [row.of(name) for row in REQUESTS if role not in row.asks]
        if role not in ("gateway", "admin"):
            forbidden += [row.of("somebody-else") for row in REQUESTS]
        for subject in forbidden:
            with pytest.raises(Refusal) as refusal:
                await bus.ask(subject, b"{}")
            assert refusal.value.problem.code == "not_permitted", (role, subject)


async def test_a_dashboard_asks_what_changes_nothing_and_nothing_else(lab: Lab) -> None:
    # Read-only requests below its own name are the one thing that a dashboard sends.
    wall = await lab.bus("dashboard")
    for row in REQUESTS:
        with pytest.raises(Exception) as failure:  # noqa: PT011 either of two kinds, told apart below
            await wall.ask(row.of("wall"), b"{}", 2.0)
        permitted = not isinstance(failure.value, Refusal)
        assert permitted == ("dashboard" in row.asks and not row.changes), row.prefix


async def test_a_gateway_speaks_for_the_people_whom_it_knows(lab: Lab) -> None:
    gateway = await lab.bus("gateway")
    await gateway.publish("user.job_submitted.v1.anybody.j1", "one", b"{}")

    async def who(caller: str, body: bytes) -> bytes:
        return caller.encode()

    await (await lab.bus("admission")).answer("admission", "1.0.0", [Endpoint("cancel", "rpc.admission.cancel.v1.*", who)])
    assert await gateway.ask("rpc.admission.cancel.v1.anybody", b"") == b"anybody"


async def test_replies_reach_their_asker_and_nobody_else(lab: Lab) -> None:
    async def secret(caller: str, body: bytes) -> bytes:
        return b"for " + caller.encode()

    await (await lab.bus("admission")).answer("admission", "1.0.0", [Endpoint("why", "rpc.admission.why.v1.*", secret)])
    alice, bob = await lab.bus("user", "alice"), await lab.bus("user", "bob")
    answers = await asyncio.gather(alice.ask("rpc.admission.why.v1.alice", b""), bob.ask("rpc.admission.why.v1.bob", b""))
    assert list(answers) == [b"for alice", b"for bob"]
