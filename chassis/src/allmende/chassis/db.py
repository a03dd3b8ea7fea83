"""PostgreSQL: a pool for one role and schema, transactions, named queries.

Driver failures leave here as `Transient`, `Unknown` or `Misconfigured`. What the driver does not check is the caller's duty: it
turns True into 1 and takes 1.5 or a naive datetime in silence, so only typed values (strictly decoded messages, `model` values) are
passed as arguments. Never holds a word of the domain.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import asyncpg

from allmende.chassis.errors import Misconfigured, Transient, Unknown
from allmende.chassis.ports import Draft

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
T = TypeVar("T")

# Batches, relay, term and a few queries at once; a service needs no more, and PostgreSQL allows 100 connections in all.
POOL_SIZE = 8
# A free connection comes within milliseconds; after 5 s something holds them all.
ACQUIRE_S = 5.0
# Of the two that watch a statement the server's comes first, because its answer is certain.
STATEMENT_TIMEOUT_MS = 25_000
COMMAND_S = 30.0
# Writers of one schema wait for each other by milliseconds; a wait of 5 s is a deadlock that PostgreSQL cannot see.
LOCK_TIMEOUT_MS = 5_000
# Longer than the relay's sweep holds rows while it publishes.
IDLE_IN_TRANSACTION_MS = 30_000
CLOSE_S = 2.0

# SQLSTATE classes: connection, rollback (serialisation, deadlock), resources, operator intervention, system error.
_TRANSIENT_CLASSES = {"08", "40", "53", "57", "58"}
# Lock time-out, a primary that became a standby, idle and whole-transaction time-outs.
_TRANSIENT_STATES = {"55P03", "25006", "25P03", "25P04"}
# Wrong credentials, no such database or schema, and SQL that does not fit the schema: the same for every message.
_MISCONFIGURED_CLASSES = {"28", "3D", "3F", "42"}

_SAY = """
INSERT INTO outbox (id, subject, type, version, occurred_at_ms, cause, trace, body)
SELECT id, subject, type, version, occurred_at_ms, cause, trace, body
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::text[], $7::text[], $8::text[])
    WITH ORDINALITY AS said (id, subject, type, version, occurred_at_ms, cause, trace, body, place)
ORDER BY place
"""


class Transaction:
    """One transaction in progress. `connection` is for a service's store; it is void when the block ends."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self.connection = connection
        self.said: list[Draft] = []
        """Everything said in this transaction, in order; the worker's relay publishes it after the commit."""
        self._schema = schema

    async def say(self, drafts: Sequence[Draft]) -> None:
        """Put messages into the outbox; they are published in this order after the commit."""
        if not drafts:
            return
        columns = list(zip(*drafts, strict=True))
        subjects, ids, types, versions, instants, causes, traces, bodies = columns
        texts = [bytes(body).decode() for body in bodies]
        await self.connection.execute(_SAY, ids, subjects, types, versions, instants, causes, traces, texts)
        self.said.extend(drafts)

    async def lock(self, name: str) -> None:
        """Wait for the lock of this name, within this schema; the end of the transaction frees it.

        Raises:
            Transient: not free within 5 seconds.
        """
        with translated():
            await self.connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"{self._schema}:{name}")


class Database:
    """A pool of connections of one role whose search_path is one schema."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", schema: str) -> None:
        self._pool = pool
        self.schema = schema

    @classmethod
    async def connect(cls, url: str, schema: str, *, application_name: str = "", size: int = POOL_SIZE) -> "Database":
        """Open a pool.

        Raises:
            Transient: the server does not answer (yet).
            Misconfigured: the URL, the credentials or the database's name are wrong.
        """
        settings = {
            "search_path": f'"{schema}"',
            "timezone": "UTC",
            "application_name": application_name or schema,
            "lock_timeout": str(LOCK_TIMEOUT_MS),
            "statement_timeout": str(STATEMENT_TIMEOUT_MS),
            "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
        }
        with translated():
            pool = await asyncpg.create_pool(
                url, min_size=1, max_size=size, timeout=ACQUIRE_S, command_timeout=COMMAND_S, server_settings=settings, reset=_reset
            )
        return cls(pool, schema)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A READ COMMITTED transaction: committed at the end of the block, rolled back when it raises. Never nested.

        Raises:
            Transient: roll-back for a passing reason; `Unknown` when the answer to COMMIT was lost.
            Misconfigured: the SQL does not fit the schema.
        """
        async with self._connection() as connection:
            transaction = connection.transaction()
            with translated():
                await transaction.start()
            try:
                with translated():
                    yield Transaction(connection, self.schema)
            except BaseException:
                # The first failure is the one to tell. A connection that cannot roll back is closed when it is released.
                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
                    await transaction.rollback()
                raise
            with translated(committing=True):
                await transaction.commit()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """One snapshot for several queries: REPEATABLE READ, read only.

        Raises:
            Transient, Misconfigured: as `transaction`.
        """
        async with self._connection() as connection:
            with translated():
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    yield connection

    @asynccontextmanager
    async def glancing(self) -> AsyncIterator[Connection]:
        """For one query by itself: no transaction, so one round trip instead of three.

        Raises:
            Transient, Misconfigured: as `transaction`.
        """
        async with self._connection() as connection:
            with translated():
                yield connection

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with translated():
            connection = await self._pool.acquire(timeout=ACQUIRE_S)
        try:
            yield connection
        finally:
            # A connection that broke is dropped from the pool; its failure has been told already.
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
                await self._pool.release(connection, timeout=CLOSE_S)

    async def close(self) -> None:
        """Close the pool within 2 seconds, whoever still holds a connection."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


async def _reset(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    # The driver's own reset costs a round trip for each transaction. We keep nothing in a session, so only a left-over transaction
    # needs it.
    if connection.is_in_transaction():
        await connection.reset()


@contextmanager
def translated(*, committing: bool = False) -> Iterator[None]:
    """Let the driver's failures leave as ours; everything else passes.

    Raises:
        Transient, Unknown, Misconfigured: for the driver's failures.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        state = error.sqlstate or ""
        if state[:2] in _TRANSIENT_CLASSES or state in _TRANSIENT_STATES:
            # A roll-back is certain; whatever else breaks a COMMIT may have come after it.
            kind = Unknown if committing and state[:2] != "40" else Transient
            raise kind(f"PostgreSQL: {error} ({state})") from error
        if state[:2] in _MISCONFIGURED_CLASSES:
            raise Misconfigured(f"PostgreSQL does not fit this service: {error} ({state})") from error
        raise
    except asyncpg.exceptions.ClientConfigurationError as error:
        raise Misconfigured(f"database_url cannot be used: {error}") from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise (Unknown if committing else Transient)(f"PostgreSQL: {str(error) or type(error).__name__}") from error


_ATTEMPTS = 6
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0


def backoff_s(attempt: int, chance: random.Random) -> float:
    """Real seconds to wait before attempt 1, 2, ...: doubling from 50 ms to 2 s, half of it by chance, so that rivals part."""
    longest: float = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** min(attempt - 1, 16))
    return chance.uniform(longest / 2, longest)


async def retrying(work: Callable[[], Awaitable[T]]) -> T:
    """Do work again while it fails for a passing reason: six times in about 3 seconds, each on a fresh connection.

    The work must bear being done twice, because a lost answer to COMMIT counts as passing.

    Raises:
        Transient: it failed the sixth time as well.
    """
    chance = random.Random()
    for attempt in range(1, _ATTEMPTS):
        try:
            with translated():
                return await work()
        except Transient:
            await asyncio.sleep(backoff_s(attempt, chance))
    with translated():
        return await work()


_NAME = re.compile(r"--\s*name:\s*([a-z][a-z0-9_]*)\s*\Z")


def load_queries(package: str, file: str = "queries.sql") -> Mapping[str, str]:
    """The named queries of a package's SQL file: each begins with a line `-- name: what_it_does`.

    Raises:
        ValueError: a name is used twice, a block is empty, or SQL stands before the first name.
    """
    return parse_queries((files(package) / file).read_text(encoding="utf-8"), f"{package}/{file}")


def parse_queries(text: str, origin: str) -> Mapping[str, str]:
    """Cut a file into its named queries (see `load_queries`)."""
    blocks: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _NAME.match(line.strip()):
            if match[1] in blocks:
                raise ValueError(f"{origin}:{number}: query {match[1]} is there twice")
            current = blocks[match[1]] = []
        elif current is not None:
            current.append(line)
        elif line.strip() and not line.strip().startswith("--"):
            raise ValueError(f"{origin}:{number}: SQL before the first `-- name:`")
    queries = {name: "\n".join(lines).strip() for name, lines in blocks.items()}
    for name, query in queries.items():
        if not query:
            raise ValueError(f"{origin}: query {name} is empty")
    return queries
