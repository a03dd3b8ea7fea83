"""Bad input over the whole core: each is answered with a stable code, nothing is lost, nothing else is disturbed.

A job runs through all of it, and another is submitted right after it; both live as if nothing had been said.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import asyncpg
import pytest

from allmende.chassis.errors import Refused
from allmende.proto import subjects
from allmende.proto.admission import AttemptProtected, JobEnded, JobRefused, JobsQuery, QueueQuery
from allmende.proto.agent import Counter, UsageTick
from allmende.proto.budget import Budget, ChildShare, SetShares, TreePage, TreeQuery, UploadPiece, WriteReply
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal, decode
from allmende.proto.ledger import UsageStanding
from allmende.proto.message import MessageRefused
from allmende.proto.permissions import UserRole
from allmende.proto.subjects import Role
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.servers import Lab
from tests.system.whole import CLUSTER, GPUS, Whole, whole

pytestmark = pytest.mark.timeout(200)  # five processes, and a job that outlives all that is said badly

HALF = GPUS // 2
TICK = f"agent.usage_tick.v1.{CLUSTER}.n0001"


class Bad(NamedTuple):
    """Bytes on a subject, and how each of `services` refuses them."""

    sentence: str
    subject: str
    data: bytes
    code: str
    services: Sequence[Role]


def changed(data: bytes, **fields: Any) -> bytes:
    """A message with other fields in its envelope; `body` is merged into the body."""
    envelope = json.loads(data)
    envelope["body"] |= fields.pop("body", {})
    return json.dumps(envelope | fields).encode()


def bad_submissions(it: Whole) -> list[Bad]:
    """What a person might send: only admission hears it."""
    job = it.job("alice", "a", MINUTE_MS, MINUTE_MS)
    good, subject = it.sealed(job), f"user.job_submitted.v1.alice.{job.job}"
    rows = [
        ("JSON that breaks off", good[:-20], "malformed_json"),
        ("bytes that are no text", b"\xff\xfe\x00", "malformed_json"),
        ("nothing at all", b"", "malformed_json"),
        ("JSON nested too deep", b'{"more":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nested_too_deep"),
        ("no envelope", b"{}", "wrong_type"),
        ("text for a number", changed(good, body={"replicas": "2"}), "wrong_type"),
        ("a number out of range", changed(good, body={"replicas": 0}), "wrong_type"),
        ("a fraction for a length", changed(good, body={"slice_ms": 1.5}), "wrong_type"),
        ("a misspelt field", changed(good, body={"slise_ms": 1}), "wrong_type"),
        ("a message that nobody knows", changed(good, type="job.conjured"), "unknown_message"),
        ("a version that nobody knows", changed(good, version=99), "unknown_message"),
        ("another person's job", changed(good, body={"user": "bob"}), "user_mismatch"),
        ("another job's id", changed(good, body={"job": it.new_id()}), "job_mismatch"),
        ("a usage tick where jobs belong", it.sealed(tick(it)), "type_mismatch"),
        ("one byte too many", good[:-1] + b" " * (MAX_MESSAGE_BYTES + 1 - len(good)) + b"}", "message_too_large"),
    ]
    return [Bad(sentence, subject, data, code, ("admission",)) for sentence, data, code in rows]


def bad_ticks(it: Whole) -> list[Bad]:
    """What an agent might send: three services hear it, and each refuses it by itself."""
    good = it.sealed(tick(it))
    rows = [
        ("JSON that breaks off", good[:-20], "malformed_json"),
        ("text for a list", changed(good, body={"counters": "none"}), "wrong_type"),
        ("a message that nobody knows", changed(good, type="usage.guess"), "unknown_message"),
        ("a tick of another cluster", changed(good, body={"cluster": "c2"}), "cluster_mismatch"),
        ("a tick of another node", changed(good, body={"node": "n0002"}), "node_mismatch"),
        ("one byte too many", good[:-1] + b" " * (MAX_MESSAGE_BYTES + 1 - len(good)) + b"}", "message_too_large"),
    ]
    return [Bad(sentence, TICK, data, code, ("ledger", "admission", "preemptor")) for sentence, data, code in rows]


def tick(it: Whole, *counters: Counter) -> UsageTick:
    """A tick of the only node."""
    return UsageTick(cluster=CLUSTER, node="n0001", at_ms=it.clock.now_ms(), counters=counters)


class Ear:
    """What one publisher hears about messages of his own."""

    def __init__(self, it: Whole) -> None:
        self._it = it
        self.refusals: list[MessageRefused] = []

    async def open(self, role: UserRole, name: str) -> None:
        """Listen with the publisher's own credentials."""
        bus = await self._it.bus(role, name)
        await bus.watch(f"refusal.message_refused.v1.*.{name}", self._hear)

    def _hear(self, _subject: str, data: bytes) -> None:
        body = decode(data).body
        assert isinstance(body, MessageRefused)
        self.refusals.append(body)


async def published(it: Whole, role: UserRole, name: str, bad: Bad) -> int:
    """Publish bytes raw, past our own client's checks; returns their number in the stream."""
    bus = await it.bus(role, name)
    reply = await bus.client.request(bad.subject, bad.data, timeout=10)
    stored = json.loads(reply.data)
    assert "error" not in stored, f"{bad.sentence}: {stored}"
    return int(stored["seq"])


async def quarantined(lab: Lab, service: str) -> dict[int, tuple[str, str, bytes]]:
    """The rows of a service's quarantine by their number in the stream."""
    connection = await asyncpg.connect(lab.dsn(service))
    try:
        rows = await connection.fetch(f'SELECT stream_seq, subject, code, data FROM "{service}".quarantine')
    finally:
        await connection.close()
    return {row["stream_seq"]: (row["subject"], row["code"], row["data"]) for row in rows}


async def check(lab: Lab, it: Whole, role: UserRole, name: str, rows: Sequence[Bad]) -> None:
    """Each row is refused to its publisher with its code by every service that hears it, and kept byte for byte."""
    ear = Ear(it)
    await ear.open(role, name)
    numbers = {await published(it, role, name, bad): bad for bad in rows}
    expected = {(number, service, bad.code) for number, bad in numbers.items() for service in bad.services}
    await it.until(lambda: len(ear.refusals) >= len(expected), f"{len(expected)} refusals to {name}")
    told = {(each.stream_seq, each.service, each.problem.code) for each in ear.refusals}
    sentences = {number: bad.sentence for number, bad in numbers.items()}
    assert told == expected, [(sentences.get(number), service, code) for number, service, code in sorted(told ^ expected)]
    assert all(each.problem.sentence and each.publisher == name for each in ear.refusals)
    for service in rows[0].services:
        kept = await quarantined(lab, service)
        assert kept == {number: (bad.subject, bad.code, bad.data) for number, bad in numbers.items()}, service


async def undisturbed(lab: Lab, it: Whole, work: Callable[[], Awaitable[None]]) -> None:
    """A job runs before, during and after `work`; another lives its whole life afterwards; the books are exact."""
    through = await it.submit(it.job("bob", "b", HOUR_MS, MINUTE_MS, gpus_per_replica=HALF))
    await it.hears(AttemptProtected, lambda body: body.job == through)
    await it.hears(UsageTick, lambda body: any(each.held_ms for each in body.counters))
    await work()
    before = it.said(UsageStanding)[-1].usage_revision
    after = await it.submit(it.job("alice", "a", MINUTE_MS, MINUTE_MS, gpus_per_replica=HALF))
    for job in (after, through):
        assert (await it.hears(JobEnded, lambda body, job=job: body.job == job)).outcome == "finished"  # type: ignore[misc]
    await it.hears(UsageStanding, lambda body: body.usage_revision > before and body.budget == "a" and body.charged_gpu_ms > 0)
    it.check_alive()
    books, history, _postings = await it.power_off()
    assert books == (0, 0, 0)
    assert {each.job for each in history.attempts.values()} == {through, after}


async def test_bad_messages_of_a_person(lab: Lab) -> None:
    async with whole(lab) as it:

        async def work() -> None:
            await check(lab, it, "user", "alice", bad_submissions(it))
            alice = await it.bus("user", "alice")
            with pytest.raises(Refused) as refused:
                await alice.publish(f"user.job_submitted.v1.alice.{it.new_id()}", "large", b" " * (MAX_MESSAGE_BYTES + 1))
            assert refused.value.code == "message_too_large", "our own client does not even send it"
            job = await it.submit(it.job("alice", "nowhere", MINUTE_MS, MINUTE_MS))
            assert (await it.hears(JobRefused, lambda body: body.job == job)).problem.code == "unknown_budget"

        await undisturbed(lab, it, work)


async def test_bad_messages_of_an_agent(lab: Lab) -> None:
    async with whole(lab) as it:

        async def work() -> None:
            await check(lab, it, "agent", CLUSTER, bad_ticks(it))
            await backwards(it)

        await undisturbed(lab, it, work)


async def backwards(it: Whole) -> None:
    """A counter that says less than it did: only the ledger counts, so only the ledger minds."""
    known = it.said(UsageTick, lambda body: any(each.held_ms for each in body.counters))[-1].counters[0]
    less = Counter(
        attempt=known.attempt,
        replica=known.replica,
        epoch=known.epoch,
        seq=known.seq + 1_000_000,
        since_ms=known.since_ms,
        held_ms=known.held_ms - 1,
        used_gpu_ms=(known.held_ms - 1) * HALF,
    )
    quarantined_before = (await it.state()).quarantined
    agent = await it.bus("agent", CLUSTER)
    await agent.publish(TICK, it.new_id(), it.sealed(tick(it, less)))
    refusal = await it.hears(MessageRefused, lambda body: body.problem.code == "counter_backwards")
    assert (refusal.service, refusal.publisher, refusal.subject) == ("ledger", CLUSTER, TICK)
    assert known.attempt in refusal.problem.sentence
    assert (await it.state()).quarantined == quarantined_before + 1


async def test_bad_requests_and_bad_trees(lab: Lab) -> None:
    async with whole(lab) as it:

        async def work() -> None:
            before: TreePage = await it.ask(subjects.TREE, TreeQuery())
            await bad_requests(it)
            await bad_trees(it)
            assert await it.ask(subjects.TREE, TreeQuery()) == before

        await undisturbed(lab, it, work)


async def bad_requests(it: Whole) -> None:
    """Requests that cannot be read or answered."""
    olga = await it.bus("operator")
    rows = [
        ("JSON that breaks off", subjects.QUEUE, b'{"limit":', "malformed_json"),
        ("text for a number", subjects.QUEUE, b'{"limit":"all"}', "wrong_type"),
        ("more than a page", subjects.JOBS, b'{"limit":101}', "wrong_type"),
        ("a misspelt field of a command", subjects.CANCEL, b'{"jobb":"0123456789"}', "wrong_type"),
        ("a job that nobody knows", subjects.WHY, b'{"job":"0123456789"}', "unknown_job"),
        ("a cluster that nobody knows", subjects.STANDINGS, b'{"cluster":"c9"}', "unknown_cluster"),
        ("a revision that nobody knows", subjects.TREE, b'{"revision":99}', "unknown_revision"),
        ("a share above the whole", subjects.SET_SHARES, _shares(1_000_001, 0), "wrong_type"),
        ("one byte too many", subjects.QUEUE, b" " * (MAX_MESSAGE_BYTES + 1), "message_too_large"),
    ]
    for sentence, row, data, code in rows:
        with pytest.raises(Refusal) as refused:
            await olga.ask(row.of("olga"), data, 10.0)
        assert refused.value.problem.code == code, f"{sentence}: {refused.value.problem}"
    assert (await it.ask(subjects.QUEUE, QueueQuery())).ready
    assert len((await it.ask(subjects.JOBS, JobsQuery())).jobs) == 1


def _shares(a: int, b: int) -> bytes:
    children = [{"budget": "a", "share_ppm": a}, {"budget": "b", "share_ppm": b}]
    return json.dumps({"parent": "org", "children": children, "expected_revision": 1, "reason": "a try"}).encode()


async def bad_trees(it: Whole) -> None:
    """Trees that can be read and may not come into force."""
    children = (ChildShare(budget="a", share_ppm=500_000), ChildShare(budget="b", share_ppm=500_001))
    above = SetShares(parent="org", children=children, expected_revision=1, reason="a try")
    loop = (Budget(budget="org"), Budget(budget="a", parent="b"), Budget(budget="b", parent="a"))
    orphan = (Budget(budget="org"), Budget(budget="a", parent="gone"))
    rows: list[tuple[str, subjects.Request, Any, str]] = [
        ("shares that sum to 1,000,001 ppm", subjects.SET_SHARES, above, "shares_exceed_parent"),
        ("a tree that loops", subjects.LOAD_TREE, _upload(it, loop), "tree_loop"),
        ("a budget without its parent", subjects.LOAD_TREE, _upload(it, orphan), "orphan"),
        ("a change of an older tree", subjects.SET_SHARES, _older(above), "stale_revision"),
    ]
    for sentence, row, request, code in rows:
        reply: WriteReply = await it.ask(row, request)
        assert reply.rejected is not None, sentence
        assert code in [fault.code for fault in reply.rejected.faults], f"{sentence}: {reply.rejected}"
        assert reply.rejected.revision == 1


def _upload(it: Whole, budgets: tuple[Budget, ...]) -> UploadPiece:
    return UploadPiece(upload=it.new_id(), piece=0, last=True, expected_revision=1, reason="a try", budgets=budgets)


def _older(request: SetShares) -> SetShares:
    return SetShares(parent=request.parent, children=request.children, expected_revision=0, reason=request.reason)
