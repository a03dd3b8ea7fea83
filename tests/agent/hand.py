"""An admission and a ledger driven by hand: they say what a test wants, and keep what the agent said."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from allmende.chassis import rpc
from allmende.chassis.errors import Transient
from allmende.chassis.outbox import draft, seal
from allmende.chassis.ports import Bus, Clock, Ids
from allmende.proto.envelope import Envelope, Refusal, decode
from allmende.proto.ledger import UsageConfirmed
from allmende.proto.message import Message
from allmende.proto.payload import PayloadQuery, PayloadReply
from allmende.proto.subjects import PAYLOAD, SUBJECTS
from allmende.proto.user import Payload
from tests.agent.builders import job

M = TypeVar("M", bound=Message)


class Hand:
    """`says` and `confirms` for the services, `heard` for what came from agents. `payloads` decides what a grant runs."""

    def __init__(self, services: Bus, ids: Ids, clock: Clock, ledger: Bus | None = None, watcher: Bus | None = None) -> None:
        self.bus = services
        self._ledger = ledger or services
        self._watcher = watcher or services
        self._ids = ids
        self._clock = clock
        self.payloads: dict[str, Payload | Exception] = {}
        self.asked: list[str] = []
        # Kept: the bus in memory stops listening when nobody can stop it any more.
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self.envelopes: list[Envelope[Message]] = []

    async def open(self) -> None:
        """Answer payloads and listen to agents."""
        await self.bus.answer("admission", "1.0.0", [rpc.endpoint(PAYLOAD, self._payload)])
        for row in SUBJECTS:
            if row.owner == "agent":
                self._stops.append(await self._watcher.watch(row.pattern, lambda _, data: self.envelopes.append(decode(data))))

    async def _payload(self, caller: str, query: PayloadQuery) -> PayloadReply:
        self.asked.append(query.attempt)
        given = self.payloads.get(query.attempt, Refusal("unknown_attempt", "no such attempt"))
        if isinstance(given, Exception):
            raise given
        return PayloadReply(attempt=query.attempt, job=job(), payload=given)

    async def says(self, body: Message, message_id: str | None = None) -> str:
        """Say an order; returns its id."""
        made = draft(body, ids=self._ids, now_ms=self._clock.now_ms())
        made = made._replace(id=message_id or made.id)
        bus = self._ledger if isinstance(body, UsageConfirmed) else self.bus
        await bus.publish(made.subject, made.id, seal(made, self._clock.now_ms()))
        return made.id

    async def confirms(self, *attempts: str) -> None:
        """The ledger has these ends."""
        await self.says(UsageConfirmed(cluster="c1", attempts=attempts))

    def heard(self, kind: type[M]) -> list[M]:
        """All bodies of a kind, oldest first."""
        return [each.body for each in self.envelopes if isinstance(each.body, kind)]

    async def until(self, true: Callable[[], object], what: str, wait_s: float = 5.0) -> None:
        """Wait for a fact, bounded."""
        try:
            async with asyncio.timeout(wait_s):
                while not true():  # noqa: ASYNC110 the fact may be anywhere; nothing announces it
                    await asyncio.sleep(0.005)
        except TimeoutError:
            seen = [each.type for each in self.envelopes]
            raise AssertionError(f"{what}: did not come about within {wait_s:g} s; heard {seen}") from None


UNREACHABLE = Transient("admission is being started again")
