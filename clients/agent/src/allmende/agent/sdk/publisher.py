"""Says what the agent has to say: one task, in batches, in order; a spool while the bus is away. Never blocks who speaks.

What waits is bounded by what can be: counters of a node replace older ones that still wait, and without the bus no grant comes, so
that starts and ends are at most those of the attempts that run. Nothing is lost while the process lives.
"""

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from allmende.chassis.clock import real_seconds
from allmende.chassis.errors import Transient
from allmende.chassis.log import get_logger
from allmende.chassis.ports import Bus, Clock, Ids
from allmende.proto.envelope import Envelope, Refusal, encode
from allmende.proto.message import Message
from allmende.proto.subjects import subject_of
from allmende.proto.units import Ms

# A round of ticks of 128 nodes and what ended meanwhile: one batch.
BATCH = 256
FIRST_PAUSE_S = 0.05
# Short: the bus itself waits for a reconnection, and what is spooled should be out soon after it.
LONGEST_PAUSE_S = 1.0
# Starts, ends and node changes of the largest cluster we know come to some thousands.
SPOOL_ALARM = 20_000

_log = get_logger(__name__)


class _Item(NamedTuple):
    subject: str
    id: str
    body: Message
    occurred_at_ms: Ms
    cause: str | None
    trace: str | None


class Publisher:
    """One a process. `say` may be called from anywhere on the loop."""

    def __init__(self, *, bus: Bus, clock: Clock, ids: Ids) -> None:
        self._bus, self._clock, self._ids = bus, clock, ids
        self._waiting: OrderedDict[str, _Item] = OrderedDict()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def spooled(self) -> int:
        """Messages that the bus has not confirmed yet."""
        return len(self._waiting)

    def say(
        self,
        body: Message,
        occurred_at_ms: Ms,
        *,
        cause: str | None = None,
        trace: str | None = None,
        replaces: str | None = None,
    ) -> None:
        """Say this soon. `replaces`: one that waits under the same key need not be said any more."""
        made = self._ids.new(self._clock.now_ms())
        key = made if replaces is None else replaces
        self._waiting.pop(key, None)
        self._waiting[key] = _Item(subject_of(body), made, body, occurred_at_ms, cause, trace)
        self._idle.clear()
        self._work.set()
        if len(self._waiting) % SPOOL_ALARM == 0:
            _log.error("the bus takes nothing; what was to be said is kept in memory", spooled=len(self._waiting))

    async def run(self) -> None:
        """Publish until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._work.wait()
            self._work.clear()
            while self._waiting:
                if await self._publish_some():
                    pause_s = FIRST_PAUSE_S
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._idle.set()

    async def flush(self, wait_s: float) -> bool:
        """Wait, for at most so many real seconds, until all is said; False when something is left."""
        try:
            async with asyncio.timeout(wait_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _publish_some(self) -> bool:
        """Publish the oldest; False when one of them may not have been stored and stays, under its own id."""
        some: list[tuple[str, _Item]] = []
        outgoing: list[tuple[str, str, bytes, str | None]] = []
        for key, item in list(islice(self._waiting.items(), BATCH)):
            data = self._seal(item)
            if data is None:
                del self._waiting[key]
            else:
                some.append((key, item))
                outgoing.append((item.subject, item.id, data, item.trace))
        began_s = real_seconds()
        results = await self._bus.publish_many(outgoing) if outgoing else []
        stored = True
        for (key, item), result in zip(some, results, strict=True):
            if isinstance(result, Transient):
                stored = False
                continue
            if result is not None:
                _log.error("the bus will never take a message", subject=item.subject, id=item.id, why=repr(result))
            # While it travelled, a newer one may have taken its place.
            if self._waiting.get(key) is item:
                del self._waiting[key]
        if not stored:
            _log.warning("the bus did not take all", spooled=len(self._waiting), after_s=round(real_seconds() - began_s, 3))
        return stored

    def _seal(self, item: _Item) -> bytes | None:
        """The bytes that travel, with the instant of transmission; None for what could not be stored."""
        try:
            return encode(
                Envelope(
                    id=item.id,
                    type=item.body.TYPE,
                    version=item.body.VERSION,
                    occurred_at_ms=item.occurred_at_ms,
                    sent_at_ms=self._clock.now_ms(),
                    cause=item.cause,
                    trace=item.trace,
                    body=item.body,
                )
            )
        except Refusal as refusal:
            _log.error("a message cannot be said", subject=item.subject, id=item.id, why=str(refusal))
            return None
