"""The sender of notices against a real HTTP server that fails, hangs, drips, redirects, answers 500 and 410."""

import asyncio
import base64
import hashlib
import hmac
import random
from contextlib import suppress
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allmende.budget import wire
from allmende.budget.handlers.posting import Poster, Undelivered
from allmende.budget.handlers.sending import Sender
from allmende.budget.rules.delivering import FIRST_DELAY_MS, LONGEST_DELAY_MS, TRIES_MOST, retry_after_ms, signed
from allmende.chassis.rpc import ask
from allmende.proto import subjects
from allmende.proto.envelope import Refusal
from allmende.proto.notices import DeliveriesPage, DeliveriesQuery, Delivery, Retried, RetryDeliveries
from tests.budget.receiver import SECRET, SECRET_TEXT, Post, Receiver, receiving
from tests.budget.test_notices import WAIT_S, Told, say, serving, standing, told

__all__ = ["told"]

SHORT_S = 0.3


def is_signed(post: Post, secret: bytes = SECRET) -> bool:
    """As the specification says it, not as our code does."""
    signed_text = f"{post.headers['webhook-id']}.{post.headers['webhook-timestamp']}.".encode() + post.body
    wanted = base64.b64encode(hmac.new(secret, signed_text, hashlib.sha256).digest()).decode()
    return post.headers["webhook-signature"] == f"v1,{wanted}"


async def deliveries(told: Told) -> list[Delivery]:
    """All deliveries, newest first."""
    return list((await told.answers.deliveries("olga", DeliveriesQuery())).deliveries)


async def make_due(told: Told) -> None:
    """Let the time until the next try pass."""
    async with told.db.transaction() as tx:
        await tx.connection.execute("UPDATE delivery SET next_try_at = clock_timestamp() WHERE state = 'waiting'")


@pytest.fixture
def sending(told: Told) -> Told:
    """Notices that are put on their way."""
    return Told(told.lab, told.db, deliver=True)


def sender(told: Told, url: str, timeout_s: float = WAIT_S) -> Sender:
    """A sender whose chance is a seed's."""
    return Sender(told.db, told.store, Poster(url, timeout_s), SECRET, random.Random(7))


async def test_a_notice_is_posted_once_signed_and_readable_by_chat(sending: Told) -> None:
    (notice,) = await sending.hear(standing(1, 1_000))
    with receiving(204) as (url, receiver):
        it = sender(sending, url)
        assert [await it.one(), await it.one()] == [True, False]
    (post,) = receiver.posts
    assert post.path == "/hooks/s3cret?room=7"
    assert post.headers["webhook-id"] == notice.notice
    assert post.headers["content-type"] == "application/json"
    assert is_signed(post)
    assert not is_signed(post, b"x" * 32)
    assert not is_signed(post._replace(body=post.body.replace(b"100", b"101")))
    body = msgspec.json.decode(post.body)
    assert (body["type"], body["text"], body["data"]["budget"]) == ("budget.notice", notice.sentence, "vision")
    (row,) = await deliveries(sending)
    assert (row.state, row.tries, row.problem, row.next_try_at_ms) == ("delivered", 1, "", None)


async def test_without_a_webhook_nothing_waits(told: Told) -> None:
    await told.hear(standing(1, 1_000))
    assert await deliveries(told) == []


class Try(NamedTuple):
    """How a receiver answers, and what stands in the list afterwards."""

    sentence: str
    answer: int
    state: str
    problem: str


TRIES = (
    Try("a failure is tried again", 500, "waiting", "answered 500"),
    Try("so is a refusal, which may be mended", 401, "waiting", "answered 401"),
    Try("a redirect is not followed", 302, "waiting", "answered 302"),
    Try("nobody wants it any more", 410, "given_up", "answered 410"),
    Try("a receiver that hangs is cut off", 0, "waiting", "no answer within 0.3 s"),
    Try("so is one that drips", -1, "waiting", "no answer within 0.3 s"),
    Try("what is no HTTP is no answer", -2, "waiting", "BadStatusLine"),
)


@pytest.mark.parametrize("row", TRIES, ids=lambda row: row.sentence)
async def test_a_try_that_fails(sending: Told, row: Try) -> None:
    await sending.hear(standing(1, 1_000))
    with receiving(row.answer) as (url, receiver):
        assert await sender(sending, url, SHORT_S).one()
        assert [post.path for post in receiver.posts] == ["/hooks/s3cret?room=7"]
    (found,) = await deliveries(sending)
    assert (found.state, found.tries) == (row.state, 1)
    assert row.problem in found.problem
    assert (found.next_try_at_ms is None) == (row.state == "given_up") == (found.settled_at_ms is not None)


async def test_nobody_there_is_a_failure_in_words_without_the_address(sending: Told) -> None:
    await sending.hear(standing(1, 1_000))
    with receiving(200) as (url, _):
        pass
    await sender(sending, url).one()
    (found,) = await deliveries(sending)
    assert found.problem.startswith("ConnectionRefusedError")
    assert "s3cret" not in found.problem


async def test_every_try_has_the_same_id_and_what_succeeds_is_settled(sending: Told) -> None:
    await sending.hear(standing(1, 1_000))
    with receiving(500, 503, 200) as (url, receiver):
        it = sender(sending, url)
        for _ in range(3):
            assert await it.one()
            # Not due yet: the next try waits.
            assert not await it.one()
            await make_due(sending)
    assert len({post.headers["webhook-id"] for post in receiver.posts}) == 1
    assert all(is_signed(post) for post in receiver.posts)
    (found,) = await deliveries(sending)
    assert (found.state, found.tries, found.problem) == ("delivered", 3, "")


async def test_it_is_given_up_after_the_last_try_seen_and_tried_again_when_told(sending: Told) -> None:
    await sending.hear(standing(1, 1_000))
    with receiving(*[500] * TRIES_MOST, 200) as (url, receiver):
        it = sender(sending, url)
        for _ in range(TRIES_MOST):
            assert await it.one()
            await make_due(sending)
        assert not await it.one()
        (found,) = await deliveries(sending)
        assert (found.state, found.tries, found.problem) == ("given_up", TRIES_MOST, "the receiver answered 500")
        with pytest.raises(Refusal) as caught:
            await sending.answers.retry("olga", RetryDeliveries(number=found.number + 1))
        assert caught.value.problem.code == "not_given_up"
        assert (await sending.answers.retry("olga", RetryDeliveries(number=found.number))).deliveries == 1
        assert (await sending.answers.retry("olga", RetryDeliveries())).deliveries == 0
        assert await it.one()
        assert len(receiver.posts) == TRIES_MOST + 1
    (found,) = await deliveries(sending)
    assert found.state == "delivered"


async def test_two_senders_do_not_post_the_same_notice_at_once(sending: Told) -> None:
    await sending.hear(*(standing(1, 1_000, budget) for budget in ("lab", "vision", "speech")))
    with receiving(200) as (url, receiver):

        async def all_of_them(it: Sender) -> None:
            while await it.one():
                pass

        await asyncio.gather(*(all_of_them(sender(sending, url)) for _ in range(3)))
    assert len(receiver.posts) == 3
    assert len({post.headers["webhook-id"] for post in receiver.posts}) == 3


async def test_a_try_whose_sender_died_is_taken_up_again_and_its_late_word_does_not_count(sending: Told) -> None:
    await sending.hear(standing(1, 1_000))
    async with sending.db.transaction() as tx:
        died = await sending.store.take_due(tx, 0.0)
    assert died is not None
    with receiving(200) as (url, _):
        assert await sender(sending, url).one()
    async with sending.db.transaction() as tx:
        await sending.store.failed(tx, died, "too late", None)
    (found,) = await deliveries(sending)
    assert (found.state, found.tries, found.problem) == ("delivered", 2, "")


async def test_a_hanging_receiver_leaves_the_service_as_quick_as_ever(told: Told) -> None:
    with receiving(0) as (url, receiver):
        async with serving(told.lab, webhook_url=url, webhook_secret=SECRET_TEXT):
            ledger, olga = await told.lab.bus("ledger"), await told.lab.bus("operator", "olga")
            await say(ledger, standing(1, 1_000))
            await _until_posted(receiver)
            # It has the first one in its hands and does not let go; all else goes on.
            await say(ledger, standing(1, 1_000, "speech"))
            async with asyncio.timeout(WAIT_S):
                while len(await deliveries(told)) < 2:  # noqa: ASYNC110 a row is no event
                    await asyncio.sleep(0.02)
            page: DeliveriesPage = await ask(olga, subjects.DELIVERIES, "olga", DeliveriesQuery(state="waiting"))
            assert (page.sender, len(page.deliveries)) == ("on", 2)
            retried: Retried = await ask(olga, subjects.RETRY_DELIVERIES, "olga", RetryDeliveries())
            assert retried.deliveries == 0
        assert len(receiver.posts) == 1


async def _until_posted(receiver: Receiver) -> None:
    async with asyncio.timeout(WAIT_S):
        while not receiver.posts:  # noqa: ASYNC110 the receiver is a thread
            await asyncio.sleep(0.02)


async def test_a_sender_goes_on_after_whatever_fails(sending: Told) -> None:
    class Broken:
        def __init__(self) -> None:
            self.calls = 0
            self.again = asyncio.Event()

        async def post(self, body: bytes, headers: object) -> int:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("nobody foresaw this")
            self.again.set()
            return 200

    await sending.hear(standing(1, 1_000), standing(1, 1_000, "speech"))
    broken = Broken()
    it = Sender(sending.db, sending.store, broken, SECRET, random.Random(7))
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(it.run())
        await broken.again.wait()
        running.cancel()


async def test_posts_that_were_cut_off_leave_no_thread_that_waits() -> None:
    with receiving(0, 0, 200) as (url, receiver):
        poster = Poster(url, SHORT_S)
        for _ in range(2):
            with pytest.raises(Undelivered):
                await poster.post(b"{}", {})
        # One thread posts: were it still waiting, this would time out too.
        assert await poster.post(b"{}", {}) == 200
        with suppress(Undelivered):
            assert len(receiver.posts) == 3


# -------------------------------------------------------------------------------------------------------------------- pure rules


@given(st.integers(1, TRIES_MOST - 1), st.integers(0, 1_000_000))
def test_waits_grow_to_their_bound_and_half_of_each_is_chance(tries: int, chance_ppm: int) -> None:
    least, found, most = (retry_after_ms(tries, None, chance) for chance in (0, chance_ppm, 1_000_000))
    assert least is not None
    assert found is not None
    assert most is not None
    assert least <= found <= most == min(FIRST_DELAY_MS * 4 ** (tries - 1), LONGEST_DELAY_MS)
    assert least == most // 2


def test_all_tries_together_take_a_night() -> None:
    shortest, longest = (
        sum(retry_after_ms(tries, 500, chance) or 0 for tries in range(1, TRIES_MOST)) for chance in (0, 1_000_000)
    )
    assert 9 < shortest / 3_600_000 < 10
    assert 18 < longest / 3_600_000 < 19
    assert retry_after_ms(TRIES_MOST, 500, 0) is None


def test_the_signature_is_the_example_of_standard_webhooks() -> None:
    """Their reference vector: https://github.com/standard-webhooks/standard-webhooks, as every library of theirs tests it."""
    body = b'{"test": 2432232314}'
    headers = signed("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body, wire.secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
