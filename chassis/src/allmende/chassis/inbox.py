"""The inbox: the gates before a message is believed, and the rows that say it was handled. Runs inside the caller's transaction.

`Nats-Msg-Id` is no guard (it has a time window and can be poisoned): a message is handled once because its row is in
the same commit.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from allmende.chassis.db import Database, Transaction
from allmende.chassis.errors import Poison
from allmende.chassis.log import get_logger
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Delivery, Draft, Event, Ids
from allmende.proto import envelope, subjects
from allmende.proto.ids import is_id
from allmende.proto.message import MessageRefused, Problem
from allmende.proto.units import Ms

# As long as any stream that ages keeps a message: what is pruned here cannot come again from there.
KEEP = timedelta(days=30)
PRUNE_EVERY_S = 60.0
# A few milliseconds of work, so that nobody waits behind it.
PRUNE_MOST = 2_000

_log = get_logger(__name__)


class Bad(NamedTuple):
    """A message that goes into quarantine, and why. `message` is its id, where it could be read."""

    subject: str
    stream: str
    stream_seq: int
    data: bytes
    message: str | None
    problem: Problem


def admit(delivery: Delivery, received_at_ms: Ms, rate: int = 1) -> Event | Bad:
    """Let a delivery through the gates: decoded strictly, and in agreement with its subject. `rate`: that of the clock."""
    try:
        opened = envelope.decode(delivery.data)
        subjects.check(delivery.subject, opened)
    except envelope.Refusal as refusal:
        return bad(delivery, refusal.message, refusal.problem)
    waited_ms = delivery.waited_ms * rate
    return Event(opened, delivery.subject, delivery.stream, delivery.stream_seq, received_at_ms, waited_ms)


def bad(delivery: Delivery, message: str | None, problem: Problem) -> Bad:
    """A delivery for the quarantine."""
    return Bad(delivery.subject, delivery.stream, delivery.stream_seq, bytes(delivery.data), message, problem)


_FRESH = """
INSERT INTO inbox (publisher, id) SELECT publisher, id FROM unnest($1::text[], $2::text[]) AS come (publisher, id)
ORDER BY publisher, id
ON CONFLICT DO NOTHING RETURNING publisher, id
"""


async def fresh(tx: Transaction, events: Sequence[Event]) -> Sequence[Event]:
    """The events that were never handled, each once, in order; from now on they count as handled."""
    if not events:
        return []
    # The first of several copies in one batch stands for all.
    by_key: dict[tuple[str, str], Event] = {}
    for event in events:
        by_key.setdefault((subjects.origin_of(event.subject), event.envelope.id), event)
    publishers, ids = zip(*by_key, strict=True)
    rows = await tx.connection.fetch(_FRESH, publishers, ids)
    new = {(row["publisher"], row["id"]) for row in rows}
    return [event for key, event in by_key.items() if key in new]


_QUARANTINE = """
INSERT INTO quarantine (stream, stream_seq, subject, message, code, sentence, data, digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING seq
"""


async def quarantine(tx: Transaction, service: str, refused: Sequence[Bad], ids: Ids, now_ms: Ms) -> Sequence[Draft]:
    """Keep bad messages byte for byte; returns the word to the publisher of each that was not here before."""
    drafts = []
    for it in refused:
        code, sentence = it.problem.code, it.problem.sentence
        # PostgreSQL's text has no NUL; the bytes are in `data`.
        texts = [text.replace("\0", "?") for text in (it.subject, code, sentence)]
        digest = hashlib.sha256(it.data).digest()
        args = (it.stream, it.stream_seq, texts[0], it.message, texts[1], texts[2], it.data, digest)
        if await tx.connection.fetchval(_QUARANTINE, *args) is None:
            continue
        _log.warning("a message was refused", subject=it.subject, stream_seq=it.stream_seq, code=code, why=sentence)
        drafts.append(_word_to_publisher(service, it, ids, now_ms))
    return drafts


def _word_to_publisher(service: str, it: Bad, ids: Ids, now_ms: Ms) -> Draft:
    message = it.message if it.message and is_id(it.message) else None
    body = MessageRefused(
        service=service,
        publisher=subjects.publisher_of(it.subject),
        subject=it.subject[:512],
        stream=it.stream,
        stream_seq=it.stream_seq,
        message=message,
        problem=it.problem,
    )
    return draft(body, ids=ids, now_ms=now_ms, cause=message)


def problem_of(error: Exception) -> Problem:
    """What to tell the publisher of a message that the handler failed on. An unforeseen failure keeps its details to the log."""
    if isinstance(error, Poison):
        return Problem(code=error.code, sentence=error.sentence[:1_000])
    if isinstance(error, envelope.Refusal):
        return error.problem
    return Problem(code="poison", sentence="the service failed on this message; its operator finds it in the quarantine")


_PRUNE = """
DELETE FROM inbox WHERE ctid IN (SELECT ctid FROM inbox WHERE received_at < clock_timestamp() - $1::interval LIMIT $2)
"""


async def prune(db: Database, keep: timedelta = KEEP, most: int = PRUNE_MOST) -> bool:
    """Forget up to `most` messages handled longer ago than `keep` (real time); True when there may be more."""
    async with db.transaction() as tx:
        tag = await tx.connection.execute(_PRUNE, keep, most)
    return int(tag.rpartition(" ")[2]) >= most


async def prune_for_ever(db: Database) -> None:
    """Prune until cancelled, in small steps."""
    while True:  # noqa: ASYNC110 age is no event
        await asyncio.sleep(0.1 if await prune(db) else PRUNE_EVERY_S)
