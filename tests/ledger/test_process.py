"""The ledger as a process: bad messages are refused one by one with a code, told to their publisher, and disturb nothing."""

import asyncio
import json
import time
from typing import Any

from allmende.proto.envelope import MAX_MESSAGE_BYTES, decode
from allmende.proto.message import MessageRefused
from allmende.proto.units import DAY_MS, HOUR_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, tick, tree
from tests.ledger.gauges import Parcel, parcel
from tests.ledger.theatre import scaled, theatre
from tests.servers import Lab

DEEP = b'{"body":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
assert len(DEEP) < MAX_MESSAGE_BYTES, "it is its depth that is refused"


def raw(subject: str, data: bytes, number: int) -> Parcel:
    """Bytes that are no message of ours."""
    return Parcel("agent", (subject, f"raw-{number}", data, None))


def changed(good: Parcel, number: int, **fields: Any) -> Parcel:
    """A message with fields of its envelope changed."""
    subject, _, data, _ = good.outgoing
    return raw(subject, json.dumps(json.loads(data) | fields).encode(), number)


async def test_bad_messages_between_good_ones(lab: Lab) -> None:
    now_ms = START_MS + HOUR_MS
    good = [*tree(), node(), granted(1), granted(2), tick(counter(1, 600_000, 5))]
    backwards = tick(counter(1, 300_000, 6), counter(2, 450_000, 1))
    end = ended(1, START_MS + 900_000, counter(1, 900_000, 9))
    tick_on = "agent.usage_tick.v1.c1.n1"
    heard: list[MessageRefused] = []
    async with theatre(lab, scaled(now_ms, 1)) as play:
        agent = await lab.bus("agent", "c1")
        stop = await agent.watch(
            "refusal.message_refused.v1.ledger.c1",
            lambda _, data: heard.append(decode(data).body),  # type: ignore[arg-type]
        )
        play.start()
        await play.publish(parcel(body, number, now_ms) for number, body in enumerate(good, start=1))
        sound = parcel(tick(counter(2, 60_000, 1)), 50, now_ms)
        await play.publish(
            [
                raw(tick_on, b"{nonsense", 1),
                raw(tick_on, DEEP, 2),
                changed(sound, 3, body={"cluster": "c1", "node": "n1", "at_ms": "noon", "counters": []}),
                changed(sound, 4, type="usage.tock"),
                changed(sound, 5, body=json.loads(sound.outgoing[2])["body"] | {"cluster": "c2"}),
                parcel(backwards, 60, now_ms),
                parcel(tick(counter(2, DAY_MS, 3)), 61, now_ms),
                parcel(end, 62, now_ms),
            ]
        )
        until = time.monotonic() + 30
        while len(heard) < 7 or (await play.state()).posted_gpu_ms < 900_000 + HOUR_MS:
            assert time.monotonic() < until, (heard, await play.state())
            await asyncio.sleep(0.1)
        await stop()
        state = await play.state()
    assert sorted(word.problem.code for word in heard) == [
        "ahead_of_clock",
        "cluster_mismatch",
        "counter_backwards",
        "malformed_json",
        "nested_too_deep",
        "unknown_message",
        "wrong_type",
    ]
    assert (state.quarantined, state.open_attempts, state.unattributed_counters) == (2, 1, 0)
    assert {word.message for word in heard} >= {id_of(60), id_of(61)}
