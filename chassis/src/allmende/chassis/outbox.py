"""The outbox: what a transaction decided to say, and the relay that says it after the commit, in the order of the commits.

The relay publishes from memory; what fails, or was left by a process that died, is read from the table again by a sweep. A message
may be said twice (its id is the same), never not at all. Publishes nothing that was not committed.
"""

import asyncio
import random
from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from allmende.chassis import trace
from allmende.chassis.clock import real_seconds
from allmende.chassis.db import Database, backoff_s
from allmende.chassis.errors import Poison, Refused, Transient
from allmende.chassis.health import Health
from allmende.chassis.log import get_logger
from allmende.chassis.ports import Bus, Clock, Draft, Ids
from allmende.proto import envelope
from allmende.proto.message import Message
from allmende.proto.subjects import subject_of
from allmende.proto.units import LATEST_INSTANT_MS, Ms

# How many the server may have in flight from us; 35,000 a second were measured so, and a batch makes a few hundred.
PUBLISH_MOST = 512
# A worker that is this far ahead of its relay waits: memory is bounded, and the table has everything anyway.
AHEAD_MOST = 8 * PUBLISH_MOST
SWEEP_EVERY_S = 1.0
# Younger rows are being published from memory, perhaps by another replica.
SWEEP_AGE_S = 5.0

_log = get_logger(__name__)
_encode = msgspec.json.Encoder().encode
_published = trace.meter.create_counter("allmende_messages_published", description="messages stored by the server")


class _Sealed(Struct, frozen=True, kw_only=True):
    """`envelope.Envelope` with the body as it was encoded when it was decided."""

    id: str
    type: str
    version: int
    occurred_at_ms: Ms
    sent_at_ms: Ms
    cause: str | None
    trace: str | None
    body: msgspec.Raw


def draft(body: Message, *, ids: Ids, now_ms: Ms, occurred_at_ms: Ms | None = None, cause: str | None = None) -> Draft:
    """Make a message ready to be said: its id, its subject from the table, the current trace.

    `occurred_at_ms`: when the fact arose, if not now; `cause`: the id of the message that this one answers.

    Raises:
        Poison: `unsayable`, when nobody could read it: a field out of its bounds, no token for a subject, too large.
    """
    try:
        made = Draft(
            subject=subject_of(body),
            id=ids.new(now_ms),
            type=body.TYPE,
            version=body.VERSION,
            occurred_at_ms=now_ms if occurred_at_ms is None else occurred_at_ms,
            cause=cause,
            trace=trace.current_trace(),
            body=_encode(body),
        )
        # Constructors do not validate. Found out here, it is the fault of one message; found out by the readers, of them all.
        envelope.decode(seal(made, LATEST_INSTANT_MS))
    except (envelope.Refusal, ValueError) as error:
        raise Poison("unsayable", f"{body.TYPE} cannot be said: {error}") from error
    return made


def seal(made: Draft, now_ms: Ms) -> bytes:
    """The bytes that travel, with the instant of transmission."""
    return _encode(
        _Sealed(
            id=made.id,
            type=made.type,
            version=made.version,
            occurred_at_ms=made.occurred_at_ms,
            sent_at_ms=now_ms,
            cause=made.cause,
            trace=made.trace,
            body=msgspec.Raw(made.body),
        )
    )


# Losing this delete in a power cut only says a message again, so it need not wait for the disk.
_SAID = """
WITH lazily AS (SELECT set_config('synchronous_commit', 'off', true))
DELETE FROM outbox USING lazily WHERE id = ANY($1::text[])
"""
_REFUSED = """
UPDATE outbox SET problem = refused.problem FROM unnest($1::text[], $2::text[]) AS refused (id, problem)
WHERE outbox.id = refused.id
"""
_LEFT_BEHIND = """
SELECT subject, id, type, version, occurred_at_ms, cause, trace, body FROM outbox
WHERE written_at <= clock_timestamp() - make_interval(secs => $1) AND (problem IS NULL OR $2) AND id <> ALL($3::text[])
ORDER BY seq LIMIT $4 FOR UPDATE SKIP LOCKED
"""


class Relay:
    """Publishes what was committed. One task does all the publishing, so order holds and nothing is said twice at once."""

    def __init__(self, *, bus: Bus, db: Database, clock: Clock, health: Health) -> None:
        self._bus, self._db, self._clock, self._health = bus, db, clock, health
        self._queue: deque[Draft] = deque()
        # Ids that memory will publish, from before their commit: the sweep leaves them alone.
        self._expected: set[str] = set()
        self._behind = True
        self._next_sweep_s = 0.0
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._running = False

    def expect(self, drafts: Sequence[Draft]) -> None:
        """Before the commit: these will come through `publish` or `forget`."""
        self._expected.update(made.id for made in drafts)

    def forget(self, drafts: Sequence[Draft]) -> None:
        """The commit failed, or nobody knows: if they are in the table, the sweep says them."""
        self._expected.difference_update(made.id for made in drafts)
        if drafts:
            self._fall_behind()

    async def publish(self, drafts: Sequence[Draft]) -> None:
        """After the commit: say these next. Returns at once, unless too much waits already; before `run`, always."""
        self._queue.extend(drafts)
        if drafts:
            self._work.set()
        if self._running and len(self._queue) > AHEAD_MOST:
            self._room.clear()
        await self._room.wait()

    async def run(self) -> None:
        """Publish until cancelled. At the start everything in the table is tried, also what was refused before."""
        self._running = True
        chance, failures, first = random.Random(), 0, True
        while True:
            try:
                await self._step(first)
            except Transient as error:
                failures += 1
                self._fall_behind()
                self._health.ready("outbox", False, f"what was decided cannot be published: {error}")
                _log.warning("publishing failed; it is tried again", why=str(error), failures=failures)
                await asyncio.sleep(backoff_s(failures, chance))
            else:
                failures, first = 0, False
                self._health.ready("outbox", True)
                await self._wait()

    async def flush(self) -> None:
        """Say what waits in memory, once: for a clean end. What fails stays in the table."""
        while self._queue:
            await self._publish_queued()

    async def _step(self, first: bool) -> None:
        if self._behind:
            # From here on new drafts wait in memory, and those of the table, which are older, go first.
            self._behind = False
            await self._sweep(0.0, also_refused=first)
        while self._queue:
            await self._publish_queued()
        if real_seconds() >= self._next_sweep_s:
            self._next_sweep_s = real_seconds() + SWEEP_EVERY_S
            await self._sweep(SWEEP_AGE_S, also_refused=False)

    async def _wait(self) -> None:
        if self._queue or self._behind:
            return
        try:
            async with asyncio.timeout(SWEEP_EVERY_S):
                await self._work.wait()
        except TimeoutError:
            pass
        finally:
            self._work.clear()

    def _fall_behind(self) -> None:
        # The table has all that memory has, in order.
        self._expected.difference_update(made.id for made in self._queue)
        self._queue.clear()
        self._behind = True
        self._room.set()
        self._work.set()

    async def _publish_queued(self) -> None:
        some = [self._queue.popleft() for _ in range(min(PUBLISH_MOST, len(self._queue)))]
        if len(self._queue) <= AHEAD_MOST // 2:
            self._room.set()
        try:
            said, refused, failure = await self._say(some)
            async with self._db.transaction() as tx:
                await tx.connection.execute(_SAID, said)
                if refused:
                    await tx.connection.execute(_REFUSED, list(refused), list(refused.values()))
        except asyncio.CancelledError:
            # The end of the service: `flush` says them, with the same ids.
            self._queue.extendleft(reversed(some))
            raise
        finally:
            self._expected.difference_update(made.id for made in some)
        if failure:
            raise failure

    async def _sweep(self, age_s: float, *, also_refused: bool) -> None:
        while True:
            async with self._db.transaction() as tx:
                rows = await tx.connection.fetch(_LEFT_BEHIND, age_s, also_refused, list(self._expected), PUBLISH_MOST)
                if not rows:
                    return
                some = [Draft._make((*list(row.values())[:-1], row["body"].encode())) for row in rows]
                said, refused, failure = await self._say(some)
                await tx.connection.execute(_SAID, said)
                if refused:
                    await tx.connection.execute(_REFUSED, list(refused), list(refused.values()))
            if failure:
                raise failure
            # Refused rows would be found again and again by a sweep that does not mind them.
            also_refused = False

    async def _say(self, drafts: Sequence[Draft]) -> tuple[list[str], dict[str, str], Transient | None]:
        """Publish; returns the ids that are stored, the problems of those that never will be, and why others failed."""
        now_ms = self._clock.now_ms()
        results = await self._bus.publish_many([(it.subject, it.id, seal(it, now_ms), it.trace) for it in drafts])
        said, refused, failure = [], {}, None
        for made, result in zip(drafts, results, strict=True):
            if result is None:
                said.append(made.id)
            elif isinstance(result, Refused):
                refused[made.id] = f"{result.code}: {result}"
                _log.error("the server will never take this message", subject=made.subject, id=made.id, why=str(result))
            else:
                failure = result if isinstance(result, Transient) else Transient(str(result))
        _published.add(len(said))
        return said, refused, failure
