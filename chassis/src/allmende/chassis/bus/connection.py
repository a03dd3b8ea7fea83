"""The connection: reconnects for ever, tells each caller what the server refused, and says when it is gone for good."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nkeys import NkeysError  # type: ignore[import-untyped]

from allmende.chassis.bus import asking, picture, publishing
from allmende.chassis.bus.calls import NO_RESPONDERS, Calls, read_violation, settle, status_of
from allmende.chassis.bus.pull import PullSubscription
from allmende.chassis.errors import Misconfigured, Refused, Transient
from allmende.chassis.ports import Endpoint
from allmende.proto.permissions import USER_INFO, UserRole, allows, inbox_prefix, permissions

_log = structlog.get_logger(__name__)

# A server that starts is tried again this often; one that is down costs a connection attempt each time.
RECONNECT_WAIT_S = 0.25
CONNECT_TIMEOUT_S = 2
# Bus-and-store rule 9: a silent connection is found out within two pings.
PING_INTERVAL_S = 10
FLUSH_TIMEOUT_S = 5
_AUTHORIZATION = "authorization violation"


class _Allowed(Struct):
    allow: tuple[str, ...] = ()


class _UserPermissions(Struct):
    publish: _Allowed | None = None
    subscribe: _Allowed | None = None


class _User(Struct):
    permissions: _UserPermissions | None = None


class _UserInfo(Struct):
    data: _User = msgspec.field(default_factory=_User)


class NatsBus:
    """One connection of one user. See `ports.Bus` for what callers may rely on."""

    def __init__(self, client: Client, role: UserRole, identity: str) -> None:
        self._client = client
        self._role = role
        self._identity = identity
        self._calls = Calls(client)
        self._subscriptions: list[PullSubscription] = []
        self._denied: set[str] = set()
        self._connected = asyncio.Event()
        self._gone = asyncio.Event()
        self._started = False
        self._closing = False
        self._last_error: Exception | None = None

    @property
    def client(self) -> Client:
        """The library's client, for `topology` alone."""
        return self._client

    @property
    def server_name(self) -> str:
        """The name that the server gave itself: a test asserts it before it touches the server."""
        return str(self._client._server_info.get("server_name", ""))

    @property
    def is_connected(self) -> bool:
        """True while the server answers. Health should measure progress instead: a socket can be open and useless."""
        return bool(self._client.is_connected)

    async def publish(self, subject: str, message_id: str, data: bytes, trace: str | None = None) -> None:
        """Store one message; returns when the server has it on disk.

        Raises:
            Transient: unknown whether it was stored; say it again with the same id.
            Refused: `message_too_large` or `not_permitted`.
        """
        result = (await self.publish_many([(subject, message_id, data, trace)]))[0]
        if result is not None:
            raise result

    async def publish_many(self, messages: Sequence[publishing.Outgoing]) -> Sequence[Exception | None]:
        """Store many, in order, many in flight: (subject, id, data, trace). One result a message, None: stored.

        Waits a while for a lost connection first, so that a caller who tries again does not spin.
        """
        with contextlib.suppress(Transient):
            await self._until_connected(publishing.STORE_TIMEOUT_S)
        return await publishing.publish_many(self._calls, lambda: self.is_connected, messages)

    def subscribe(self, stream: str, durable: str) -> PullSubscription:
        """Bind to a consumer that the topology command made. Does not touch the server yet."""
        subscription = PullSubscription(self._client, self._calls, lambda: self.is_connected, stream, durable)
        self._subscriptions.append(subscription)
        return subscription

    async def watch(self, pattern: str, hear: Callable[[str, bytes], None]) -> Callable[[], Awaitable[None]]:
        """Hear live messages of a pattern without storage (core NATS); returns what stops it. Missed ones do not come again.

        Raises:
            Refused: `not_permitted`.
            Transient: the connection is lost.
        """
        await self._until_connected(FLUSH_TIMEOUT_S)

        async def heard(message: Msg) -> None:
            hear(message.subject, message.data)

        try:
            subscription = await self._client.subscribe(pattern, cb=heard)
            # The server's objection comes before its answer to this.
            await settle(self._client, FLUSH_TIMEOUT_S)
        except (NatsError, OSError) as error:
            raise Transient(f"could not subscribe to {pattern!r}: {error!r}") from error

        async def stop() -> None:
            with contextlib.suppress(NatsError, OSError):
                await subscription.unsubscribe()

        if pattern.lower() in self._denied:
            await stop()
            raise Refused("not_permitted", f"these credentials may not hear {pattern!r}")
        return stop

    async def last_values(self, stream: str, patterns: Sequence[str], timeout_s: float = 5.0) -> list[tuple[str, bytes]]:
        """See `ports.Bus`. The server answers from its store.

        Raises:
            Refused: `too_many_subjects`.
            Transient: no answer in time, which is also what a question without permission gets; or the connection is lost.
        """
        await self._until_connected(timeout_s)
        try:
            return await picture.last_values(self._client, stream, patterns, timeout_s)
        except (NatsError, OSError) as error:
            raise Transient(f"could not ask for the last values of {stream!r}: {error!r}") from error

    async def ask(self, subject: str, data: bytes, timeout_s: float = 5.0) -> bytes:
        """Ask a service.

        Raises:
            Refusal: the service answered with a problem, or the server does not permit the question (`not_permitted`).
            Transient: nobody answered in time, or the connection is lost.
        """
        await self._until_connected(timeout_s)
        try:
            return await asking.ask(self._calls, subject, data, timeout_s)
        except (NatsError, OSError) as error:
            raise Transient(f"could not ask {subject!r}: {error!r}") from error

    async def answer(self, service: str, version: str, endpoints: Sequence[Endpoint]) -> Callable[[], Awaitable[None]]:
        """Answer requests as a discoverable NATS micro service; returns what stops it.

        Raises:
            Misconfigured: these credentials may not hear one of the endpoints.
        """

        def report(verb: str, error: Exception) -> None:
            if isinstance(error, Transient):
                _log.info("a request has to be asked again", service=service, verb=verb, why=str(error))
            else:
                _log.error("a request could not be answered", service=service, verb=verb, exc_info=error)

        await self._until_connected(FLUSH_TIMEOUT_S)
        stop = await asking.answer(self._client, service, version, endpoints, report)
        await settle(self._client, FLUSH_TIMEOUT_S)
        denied = [endpoint.subject for endpoint in endpoints if endpoint.subject.lower() in self._denied]
        if denied:
            await stop()
            raise Misconfigured(f"{self._role} {self._identity!r} may not answer {', '.join(denied)}: make its credentials anew")
        return stop

    async def probe(self) -> Sequence[str]:
        """What this user should be permitted by the subject table and is not, such as `publish agent.usage_tick.v1.c1.*`.

        Asked of the server in one request, so nothing is published on trial. Also tried for truth by tests/chassis/test_forging.py.

        Raises:
            Transient: the server did not answer.
        """
        await self._until_connected(FLUSH_TIMEOUT_S)
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                reply = await (await self._calls.send(USER_INFO, b""))
        except (TimeoutError, NatsError, OSError) as error:
            raise Transient(f"the server does not tell what its users may do: {error!r}") from error
        if status_of(reply) == NO_RESPONDERS:
            raise Transient("the server does not tell what its users may do")
        found = msgspec.json.decode(reply.data, type=_UserInfo).data.permissions
        wanted = permissions(self._role, self._identity)
        if found is None:
            return ()
        missing: list[str] = []
        for verb, patterns, allowed in (
            ("publish", wanted.publish, found.publish),
            ("hear", wanted.subscribe, found.subscribe),
        ):
            if allowed is not None:
                missing += [f"{verb} {pattern}" for pattern in patterns if not allows(allowed.allow, pattern)]
        return missing

    async def until_closed(self) -> None:
        """Return after `close`. Run it in the service's task group: it ends the process when the connection is gone for good.

        Raises:
            Misconfigured: the server closed the connection because of these credentials.
            Transient: the connection was closed for another reason; a new process may have a better one.
        """
        await self._gone.wait()
        if self._closing:
            return
        if _AUTHORIZATION in str(self._last_error).lower():
            raise Misconfigured(f"NATS no longer accepts the credentials of {self._role} {self._identity!r}")
        raise Transient(f"the connection to NATS was closed for good: {self._last_error!r}")

    async def close(self) -> None:
        """Flush and leave."""
        self._closing = True
        if self.is_connected:
            with contextlib.suppress(NatsError, OSError, TimeoutError):
                await self._client.flush(1)
        await self._client.close()
        self._calls.lose("the connection was closed")

    async def _until_connected(self, wait_s: float) -> None:
        if self.is_connected:
            return
        if self._gone.is_set():
            raise Transient("the connection to NATS is closed")
        try:
            async with asyncio.timeout(wait_s):
                await self._connected.wait()
        except TimeoutError as error:
            raise Transient("no connection to NATS") from error

    # What the library calls.

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        violation = read_violation(error)
        if _AUTHORIZATION in str(error).lower():
            # The user was taken away. The library would try again for ever; a new process says clearly what is wrong.
            self._gone.set()
        if violation is None:
            if self._connected.is_set():
                _log.info("nats reports", error=repr(error))
            return
        _log.warning("nats does not permit", verb=violation.verb, subject=violation.subject, user=f"{self._role}.{self._identity}")
        if violation.verb == "subscription":
            self._denied.add(violation.subject)
            return
        self._calls.refuse(violation.subject)
        for subscription in self._subscriptions:
            if subscription.next_subject.lower() == violation.subject:
                subscription.refused()

    async def _on_disconnected(self) -> None:
        self._connected.clear()
        self._calls.lose("the connection to NATS was lost; whether the message arrived is unknown")
        for subscription in self._subscriptions:
            subscription.lost()
        if not self._closing:
            _log.warning("nats connection lost", error=repr(self._last_error))

    async def _on_reconnected(self) -> None:
        # The server may have other permissions now, and says again what it refuses.
        self._denied.clear()
        self._connected.set()
        _log.info("nats connection is back", server=self.server_name)

    async def _on_closed(self) -> None:
        self._gone.set()


async def connect(
    url: str,
    *,
    role: UserRole,
    identity: str,
    seed_file: Path | str | None = None,
    seed: str | None = None,
    wait_s: float = 30.0,
) -> NatsBus:
    """Connect as one user, waiting up to `wait_s` real seconds for a server that starts. Without a seed: to a server without users.

    Raises:
        Misconfigured: the server does not accept the seed, or the seed file cannot be read.
        Transient: no server answered in time.
    """
    client = Client()
    bus = NatsBus(client, role, identity)
    errors: list[Exception] = []

    async def on_error(error: Exception) -> None:
        if bus._started:
            await bus._on_error(error)
            return
        errors.append(error)
        if _AUTHORIZATION in str(error).lower():
            # Raised through the library's connect, which would try the same seed for ever.
            raise Misconfigured(f"NATS at {url} does not accept the credentials of {role} {identity!r}")

    try:
        async with asyncio.timeout(wait_s):
            await client.connect(
                servers=[url],
                name=f"allmende {role} {identity}",
                error_cb=on_error,
                disconnected_cb=bus._on_disconnected,
                reconnected_cb=bus._on_reconnected,
                closed_cb=bus._on_closed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]
                connect_timeout=CONNECT_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                allow_reconnect=True,
                nkeys_seed=None if seed_file is None else str(seed_file),
                nkeys_seed_str=seed,
                inbox_prefix=inbox_prefix(role, identity),
            )
            bus._started = True
            bus._connected.set()
            await bus._calls.start()
            await settle(client, FLUSH_TIMEOUT_S)
            if bus._denied:
                raise Misconfigured(
                    f"the credentials given for {role} {identity!r} are somebody else's: they may not hear its replies"
                )
    except TimeoutError as error:
        await _give_up(client)
        raise Transient(f"no NATS at {url} within {wait_s:g} s: {errors[-1] if errors else error!r}") from error
    except Misconfigured:
        await _give_up(client)
        raise
    except (OSError, ValueError, NatsError, NkeysError) as error:
        await _give_up(client)
        raise Misconfigured(f"cannot connect to NATS at {url} as {role} {identity!r}: {error}") from error
    return bus


async def _give_up(client: Client) -> None:
    with contextlib.suppress(Exception):
        await client.close()
