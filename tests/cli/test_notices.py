"""`allmende notices`: from a standing to the sentence a person reads; given-up deliveries as an operator finds and retries them."""

import asyncio
import os
import sys

import msgspec
import pytest
from typer.testing import CliRunner

from allmende.chassis.rpc import ask
from allmende.cli.app import app
from allmende.cli.commands import notices
from allmende.proto import subjects
from allmende.proto.notices import DeliveriesPage, DeliveriesQuery, Delivery, NoticesPage
from allmende.proto.permissions import UserRole
from tests.budget.receiver import SECRET_TEXT, receiving
from tests.budget.test_notices import WAIT_S, Told, say, serving, standing, told, until
from tests.cli.terminal import Said
from tests.cli.test_words import drawn
from tests.servers import Lab

__all__ = ["told"]


async def typed(lab: Lab, role: UserRole, user: str, *words: str) -> Said:
    """Run one command as a process, as somebody at another machine would."""
    account = await lab.user(role, user)
    ours = {
        "ALLMENDE_NATS_URL": lab.nats_url,
        "ALLMENDE_NATS_SEED_FILE": str(account.seed_file),
        "ALLMENDE_USER": user,
        "ALLMENDE_ROLE": role,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "allmende.cli", *words),
        env={**{key: value for key, value in os.environ.items() if not key.startswith("ALLMENDE_")}, **ours},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    return Said(process.returncode or 0, out.decode(), err.decode())


async def test_people_list_notices_and_operators_retry_what_was_given_up(told: Told) -> None:
    lab = told.lab
    with receiving(410, 204) as (url, receiver):
        async with serving(lab, webhook_url=url, webhook_secret=SECRET_TEXT):
            ledger, olga = await lab.bus("ledger"), await lab.bus("operator", "olga")
            await say(ledger, standing(1, 1_000))
            await until(lab, 1)
            await settled(lab, "given_up")
            listed = await typed(lab, "user", "bo", "notices", "--budget", "vision")
            assert listed.code == 0, listed
            assert listed.out.splitlines()[0] == "notices, newest first"
            assert "vision has used 100 % of its entitlement (1,000 of 1,000 GPU-hours) on c1" in listed.out
            assert (await typed(lab, "user", "bo", "notices", "--budget", "speech")).out == "no notices\n"
            page = (await typed(lab, "user", "bo", "notices", "--json")).json
            number = page["notices"][0]["number"]
            refused = await typed(lab, "user", "bo", "notices", "deliveries")
            assert (refused.code, "[not_permitted]" in refused.err) == (1, True), refused
            given_up = await typed(lab, "operator", "olga", "notices", "deliveries", "--state", "given_up")
            assert "given up" in given_up.out
            assert "the receiver answered 410" in given_up.out
            unknown = await typed(lab, "operator", "olga", "notices", "retry", str(number + 1))
            assert (unknown.code, "[not_given_up]" in unknown.err) == (1, True), unknown
            again = await typed(lab, "operator", "olga", "notices", "retry", str(number))
            assert again.out == "1 notice will be posted again\n"
            await settled(lab, "delivered")
            left = await typed(lab, "operator", "olga", "notices", "retry", "--all")
            assert left.out == "none was given up, so none is posted again\n"
            delivered: DeliveriesPage = await ask(olga, subjects.DELIVERIES, "olga", DeliveriesQuery())
            assert [each.state for each in delivered.deliveries] == ["delivered"]
    assert len({post.headers["webhook-id"] for post in receiver.posts}) == 1


async def settled(lab: Lab, state: str) -> None:
    """Until the one delivery is in a state."""
    olga = await lab.bus("operator", "olga")
    async with asyncio.timeout(WAIT_S):
        while True:
            page: DeliveriesPage = await ask(olga, subjects.DELIVERIES, "olga", DeliveriesQuery())
            if [each.state for each in page.deliveries] == [state]:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("sentence", "words", "fault"),
    [
        ("neither one nor all", ["notices", "retry"], "--all"),
        ("one and all", ["notices", "retry", "3", "--all"], "--all"),
        ("a state that there is not", ["notices", "deliveries", "--state", "lost"], "given_up"),
        ("what cannot be a name", ["notices", "--budget", "Ä"], "is not a name"),
    ],
)
def test_a_command_line_that_is_wrong_sends_nothing(sentence: str, words: list[str], fault: str) -> None:
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 2, sentence
    assert fault in said.output, sentence


def delivery(number: int, **more: object) -> Delivery:
    """One delivery, waiting for its second try."""
    fields = {
        "state": "waiting",
        "tries": 1,
        "problem": "the receiver answered 500",
        "next_try_at_ms": 9_000,
        "settled_at_ms": None,
    }
    return msgspec.convert({"number": number, "notice": "0" * 26, "budget": "vision", **fields, **more}, Delivery)


def test_tables_say_how_things_are() -> None:
    page = DeliveriesPage(
        sender="off",
        deliveries=(delivery(8), delivery(7, state="given_up", next_try_at_ms=None, settled_at_ms=4_000, problem="gone")),
        next_before=7,
    )
    lines = drawn(notices.deliveries_table(page, 5_000), 200)
    assert lines[0] == "deliveries, newest first; there is no webhook now, so nothing is sent; older ones with --before 7"
    assert lines[2].split()[0] == "8"
    assert "in 4s" in lines[2]
    assert "given up" in lines[3]
    assert "1s ago" in lines[3]
    assert drawn(notices.notices_table(NoticesPage(notices=()), 0), 80) == ["no notices"]
