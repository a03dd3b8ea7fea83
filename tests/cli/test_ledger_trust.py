"""The commands of trust as people and operators type them, against a ledger of its own: lists, refusals and exit codes."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from allmende.proto.message import Message
from allmende.proto.units import HOUR_MS
from tests.cli.terminal import Said
from tests.cli.test_notices import typed
from tests.ledger.builders import START_MS, counter, granted, id_of, node, started, tick, tree
from tests.ledger.gauges import parcel
from tests.ledger.test_planted import tamper
from tests.ledger.theatre import Theatre, scaled, theatre
from tests.servers import Lab

ONE = f"{id_of(1)}/0/1"


class Trust:
    """A ledger that has heard an hour of attempt 1 on 2 GPUs, and what people type."""

    def __init__(self, lab: Lab, play: Theatre) -> None:
        self.lab, self.play, self._number = lab, play, 0

    async def say(self, *bodies: Message, off_ms: int = 0) -> None:
        """Publish, by a clock that is off by so much."""
        first = self._number + 1
        self._number += len(bodies)
        sent_at_ms = self.play.clock.now_ms() + off_ms
        await self.play.publish(parcel(body, number, sent_at_ms) for number, body in enumerate(bodies, start=first))

    async def typed(self, *words: str, role: str = "operator") -> Said:
        """One command."""
        return await typed(self.lab, "operator" if role == "operator" else "user", "olga" if role == "operator" else "ada", *words)

    async def until(self, *words: str, holds: str) -> Said:
        """Type a command until its answer has a word."""
        until = time.monotonic() + 30
        while True:
            said = await self.typed(*words)
            if holds in said.out:
                return said
            assert time.monotonic() < until, said
            await asyncio.sleep(0.2)


@pytest.fixture
async def trust(lab: Lab) -> AsyncIterator[Trust]:
    async with theatre(lab, scaled(START_MS + 2 * HOUR_MS, 1)) as play:
        play.start()
        it = Trust(lab, play)
        await it.say(*tree(), node(), granted(1, gpus=2), tick(counter(1, HOUR_MS, 1, gpus=2)))
        yield it


async def test_what_waits_is_listed_and_an_operator_lets_it_count(trust: Trust) -> None:
    c1 = ("--cluster", "c1")
    await trust.say(tick(counter(1, HOUR_MS + 60_000, 2, gpus=2)), off_ms=-301_000)
    listed = await trust.until("ledger", "quarantine", *c1, holds="clock_off")
    assert listed.code == 0
    assert "behind ours" in listed.out
    page = (await trust.typed("ledger", "quarantine", *c1, "--code", "clock_off", "--json")).json
    assert [(each["what"], each["most_excess_gpu_ms"], each["released"]) for each in page["items"]] == [(ONE, 120_000, None)]
    words = ("ledger", "release", ONE, "clock_off", *c1, "--reason", "NTP was down", "--id", id_of(77))
    refused = await trust.typed(*words, role="user")
    assert (refused.code, "[not_permitted]" in refused.err) == (1, True)
    done = await trust.typed(*words)
    assert (done.code, done.out) == (0, f"{ONE} (clock_off) is released by olga: 120000 GPU-ms more are counted\n")
    assert (await trust.typed(*words, "--json")).json["counted_gpu_ms"] == 120_000
    again = await trust.typed(*words[:-1], id_of(78))
    assert (again.code, "[nothing_held]" in again.err) == (1, True)
    assert "released by olga: NTP was down" in (await trust.typed("ledger", "quarantine", *c1, "--all")).out


async def test_an_operator_puts_right_and_everybody_reads_it(trust: Trust) -> None:
    c1 = ("--cluster", "c1")
    span = ("--from", "2023-11-14T22:10Z", "--until", "2023-11-14T23:10Z")
    words = ("ledger", "correct", "budget/nlp", "budget/rl", *c1, *span, "--reason", "the wrong budget")
    await trust.until("ledger", "usage", "--by", "all", *c1, *span, holds="2.0")
    made = await trust.typed(*words, "--amount", "30m")
    assert (made.code, made.out) == (0, "1800000 GPU-ms are taken off budget/nlp and charged to budget/rl\n"), made
    for extra, code, said in (
        (("--amount", "9h"), 1, "[more_than_there_is]"),
        (("--amount", "a lot"), 2, "--amount"),
        ((), 2, "--amount or --all"),
        (("--all", "--amount", "1h"), 2, "--amount or --all"),
    ):
        refused = await trust.typed(*words, *extra)
        assert (refused.code, said in refused.err) == (code, True), refused
    assert "[not_permitted]" in (await trust.typed(*words, "--all", role="user")).err
    told = (await trust.typed("ledger", "statement", "nlp", *c1, *span, "--json")).json
    assert (told["closing_gpu_ms"], told["corrected_gpu_ms"]) == (2 * HOUR_MS - 1_800_000, -1_800_000)
    assert [(each["author"], each["reason"]) for each in told["corrections"]] == [("olga", "the wrong budget")]
    assert "correction" in (await trust.typed("ledger", "statement", "rl", *c1, *span)).out
    listed = await trust.typed("ledger", "corrections", *c1, *span, "--budget", "rl", role="user")
    assert "olga: the wrong budget" in listed.out


async def test_a_silent_attempt_is_listed_as_an_open_gap(trust: Trust) -> None:
    await trust.say(started(1))
    words = ("ledger", "gaps", "--cluster", "c1", "--from", "2023-11-14T22:10Z", "--until", "2023-11-15T22:10Z")
    told = await trust.until(*words, "--open", holds="1 open")
    assert f"{id_of(1)}/0" in told.out
    (gap,) = (await trust.typed(*words, "--json", role="user")).json["gaps"]
    assert (gap["from_ms"], gap["to_ms"], gap["closed_by"]) == (START_MS + HOUR_MS, None, None)
    assert gap["missing_gpu_ms"] >= 2 * HOUR_MS


async def test_verify_leaves_with_1_where_the_books_differ_and_0_where_they_agree(trust: Trust) -> None:
    c1 = ("--cluster", "c1")
    await trust.until("ledger", "verify", *c1, holds="12 postings")
    for words, verdict in ((("ledger", "verify", *c1), "in all"), (("ledger", "verify", "--events", *c1), "12 postings from")):
        right = await trust.typed(*words, role="user")
        assert (right.code, verdict in right.out, right.err) == (0, True, "")
    await tamper(trust.lab, "DELETE FROM posting WHERE number = (SELECT max(number) FROM posting)")
    for words, what in ((("ledger", "verify", *c1), "bucket"), (("ledger", "verify", "--events", *c1), "posting")):
        wrong = await trust.typed(*words)
        assert (wrong.code, "[books_differ]" in wrong.err) == (1, True), wrong
        told = await trust.typed(*words, "--json")
        assert (told.code, what in {each["what"] for each in told.json["differences"]}) == (1, True)
        assert f"\n{what}," in (await trust.typed(*words, "--csv")).out
    usage = await trust.typed("ledger", "verify", "--events", *c1, "--from", "2023-11-14T22:10Z")
    assert (usage.code, "leave out --from" in usage.err) == (2, True)
