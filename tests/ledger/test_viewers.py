"""Viewers over real servers: the picture first and then changes; whoever is slow, silent or gone costs the ledger nothing."""

import asyncio
import time
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from allmende.chassis import accounts
from allmende.chassis.accounts import User
from allmende.chassis.bus import NatsBus, connect
from allmende.cli.commands.ledger_follow import Newest, line, opening
from allmende.proto.envelope import decode
from allmende.proto.ledger import BudgetUsage, UsageStanding
from allmende.proto.streams import STREAMS
from allmende.proto.units import HOUR_MS, SECOND_MS
from tests.ledger.builders import START_MS, counter, granted, node, started, tick, tree
from tests.ledger.gauges import parcel
from tests.ledger.theatre import Theatre, scaled, theatre
from tests.servers import Lab

STANDINGS = "ledger.usage_standing.v1.c1.*"
USES = "ledger.budget_usage.v1.c1.*"
NOW_MS = START_MS + HOUR_MS
CONNECTS = 200
AT_ONCE = 10


class Scene:
    """A ledger with two running attempts, whose counters the test moves on."""

    def __init__(self, lab: Lab, play: Theatre) -> None:
        self.lab, self.play, self._said = lab, play, 0

    async def begin(self) -> None:
        self.play.start()
        story = [*tree(), node(), granted(1, gpus=2), granted(2, budget="vision"), started(1), started(2)]
        await self._publish(*story)
        await self.advance()

    async def advance(self) -> int:
        """A tick; returns what nlp is charged from then on, in GPU-ms."""
        held = self._said * SECOND_MS
        await self._publish(tick(counter(1, held, self._said, gpus=2)))
        return 2 * held

    async def _publish(self, *bodies: Any) -> None:
        parcels = []
        for body in bodies:
            self._said += 1
            parcels.append(parcel(body, self._said, NOW_MS))
        await self.play.publish(parcels)

    async def viewer(self) -> NatsBus:
        """A dashboard's connection of its own."""
        seed = accounts.seed_file(self.lab.directory / "keys", User("dashboard", "wall"))
        return await connect(self.lab.nats.url, role="dashboard", identity="wall", seed_file=seed, wait_s=10)

    async def until_used(self, bus: NatsBus, budgets: int) -> None:
        """Wait until the use of so many budgets was said."""
        began = time.monotonic()
        while len(found := await bus.last_values("STANDINGS", [USES])) < budgets:
            assert time.monotonic() - began < 30, found
            await asyncio.sleep(0.1)

    async def consumers(self) -> dict[str, list[str]]:
        """Every consumer of every stream."""
        manager = (await self.lab.bus("admin")).client.jsm()
        return {each.name: sorted(info.name for info in await manager.consumers_info(each.name)) for each in STREAMS}


async def picture(bus: NatsBus) -> dict[str, Any]:
    return {subject: decode(data).body for subject, data in await bus.last_values("STANDINGS", [STANDINGS])}


async def until_charged(bus: NatsBus, amount: int, within_s: float = 30) -> float:
    """Wait until nlp's standing has an amount; returns how long it took."""
    began = time.monotonic()
    while True:
        said = (await picture(bus)).get("ledger.usage_standing.v1.c1.nlp")
        if said is not None and said.charged_gpu_ms >= amount:
            return time.monotonic() - began
        assert time.monotonic() - began < within_s, said
        await asyncio.sleep(0.05)


async def test_a_newcomer_gets_the_picture_and_then_what_changes(lab: Lab) -> None:
    async with theatre(lab, scaled(NOW_MS, 1)) as play:
        scene = Scene(lab, play)
        await scene.begin()
        wall = await scene.viewer()
        await until_charged(wall, await scene.advance())
        # Use is looked at every ten seconds, so the first look may have been before the tree.
        await scene.until_used(wall, budgets=3)
        newest = Newest()
        await opening(wall, "c1", newest)
        bodies = [decode(data).body for data in await newest.take()]
        assert {body.budget for body in bodies if isinstance(body, UsageStanding)} == {"org", "vision", "research", "nlp", "rl"}
        uses = {body.budget: body for body in bodies if isinstance(body, BudgetUsage)}
        assert set(uses) == {"nlp", "rl", "vision"}
        amount = await scene.advance()
        nlp: list[int] = []
        async with asyncio.timeout(20):
            while not nlp or nlp[-1] < amount:
                said = [decode(data).body for data in await newest.take()]
                nlp += [body.charged_gpu_ms for body in said if isinstance(body, UsageStanding) and body.budget == "nlp"]
        assert nlp == sorted(nlp)
        assert "attempt" in line(uses["nlp"])
        await wall.close()


async def test_a_viewer_cannot_make_a_consumer_so_there_is_nothing_that_it_could_leave_unacknowledged(lab: Lab) -> None:
    async with theatre(lab, scaled(NOW_MS, 1)) as play:
        scene = Scene(lab, play)
        await scene.begin()
        before, wall = await scene.consumers(), await scene.viewer()
        with pytest.raises(NatsError):
            await wall.client.jetstream(timeout=1).subscribe(STANDINGS, stream="STANDINGS", ordered_consumer=True)
        assert await scene.consumers() == before
        await wall.close()


async def test_a_viewer_that_reads_nothing_does_not_slow_the_ledger(lab: Lab) -> None:
    """It hears 24 MB and takes nothing off its socket; the server keeps its share for it, and in the end lets it go."""
    async with theatre(lab, scaled(NOW_MS, 1)) as play:
        scene = Scene(lab, play)
        await scene.begin()
        before, reader, deaf = await scene.consumers(), await scene.viewer(), await scene.viewer()
        await until_charged(reader, await scene.advance())
        await deaf.watch("ledger.usage_standing.v1.c2.*", lambda _subject, _data: None)
        await deaf.watch(STANDINGS, lambda _subject, _data: None)
        _stop_reading(deaf.client)
        ledger, large = await lab.bus("ledger"), b"x" * 60_000
        flood = [("ledger.usage_standing.v1.c2.flood", f"flood-{number}", large, None) for number in range(400)]
        assert await ledger.publish_many(flood) == [None] * 400
        waits = [await until_charged(reader, await scene.advance()) for _ in range(5)]
        assert max(waits) < 10, waits
        assert await scene.consumers() == before
        await _cut(deaf)
        await reader.close()


def _stop_reading(client: Client) -> None:
    task = client._reading_task
    assert task is not None
    task.cancel()


async def _come_and_go(scene: Scene, says_goodbye: bool) -> None:
    wall = await scene.viewer()
    await opening(wall, "c1", Newest())
    if says_goodbye:
        await wall.close()
    else:
        # As a laptop that is shut.
        _stop_reading(wall.client)
        await _cut(wall)


async def _cut(bus: NatsBus) -> None:
    """The server sees the line go dead; then the client's own tasks end."""
    bus.client.options["allow_reconnect"] = False
    transport: Any = bus.client._transport
    transport._io_writer.transport.abort()
    await bus.close()


@pytest.mark.timeout(180)  # 200 connections with their handshakes
async def test_a_viewer_that_comes_and_goes_200_times_leaves_nothing_behind(lab: Lab) -> None:
    async with theatre(lab, scaled(NOW_MS, 1)) as play:
        scene = Scene(lab, play)
        await scene.begin()
        before, reader = await scene.consumers(), await scene.viewer()
        await until_charged(reader, await scene.advance())
        waits: list[float] = []
        for _ in range(CONNECTS // AT_ONCE):
            await asyncio.gather(*(_come_and_go(scene, number % 2 == 0) for number in range(AT_ONCE)))
            waits.append(await until_charged(reader, await scene.advance()))
        assert max(waits) < 10, waits
        assert await scene.consumers() == before
        await reader.close()
