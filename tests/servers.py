"""Real servers for tests: one `lab` a test, on random ports, gone afterwards.

    async def test_something(lab: Lab) -> None:
        agent = await lab.bus("agent", "c1")            # connected with that user's own credentials
        await agent.publish("agent.usage_tick.v1.c1.n1", "id-1", data)
        ledger = await lab.bus("ledger")                # a service is known by its own word
        db = await lab.database("ledger")               # its schema, migrated; closed with the lab
        url = lab.dsn("ledger")                         # a URL, for a connection of your own
        process = start(env=lab.env("ledger"))          # ALLMENDE_* for a service as a process of its own
        await lab.kill("nats"); await lab.restart("nats")   # the same port, the same data

The NATS server is started for each test (0.3 s), with the streams and consumers of `topology.apply` for clusters c1 and c2. Users
are the topology command, the services, the two agents, and whomever a test asks for: `await lab.bus("user", "zoe")` makes zoe.
PostgreSQL runs once a session; a test gets a database of its own when it first asks for one. Neither server syncs its disk. Nothing
is shared between tests. A test that cannot have servers here skips and says why.

`lab.clock` is a ManualClock, and `lab.ids` CountingIds, for what runs inside the test; a process of its own gets the real clock, or
what `lab.env(service, clock=...)` says.
"""

import itertools
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from allmende.chassis import accounts, topology
from allmende.chassis.accounts import User
from allmende.chassis.bus import NatsBus, connect
from allmende.chassis.embedded import NatsServer, PostgresServer, start_nats
from allmende.chassis.fakes import CountingIds, ManualClock
from allmende.proto.permissions import UserRole
from allmende.proto.streams import ACK_WAIT_MS
from allmende.proto.subjects import SERVICES
from allmende.proto.units import Ms

if TYPE_CHECKING:
    from allmende.chassis.db import Database

CLUSTERS = ("c1", "c2")
# Who a role is when a test does not say.
NAMES: Mapping[str, str] = {
    "admin": "topology",
    "agent": "c1",
    "user": "alice",
    "gateway": "front",
    "operator": "olga",
    "dashboard": "wall",
}
# A database with every service's role and schema: the tests' are copies of it.
TEMPLATE = "allmende_template"
_numbers = itertools.count(1)


class Lab:
    """Servers of one test."""

    def __init__(self, directory: Path, postgres: PostgresServer) -> None:
        self.directory = directory
        self.postgres = postgres
        self.clock = ManualClock()
        self.ids = CountingIds()
        self.name = f"lab-{os.getpid()}-{secrets.token_hex(4)}"
        self._users: dict[User, accounts.Account] = {}
        self._nats: NatsServer | None = None
        self._busses: list[NatsBus] = []
        self._databases: list[Database] = []
        self._database_name: str | None = None

    @property
    def nats(self) -> NatsServer:
        """The NATS server."""
        assert self._nats is not None, "the lab is not open"
        return self._nats

    @property
    def nats_url(self) -> str:
        """Where the NATS server is."""
        return self.nats.url

    async def open(self, ack_wait_ms: Ms = ACK_WAIT_MS) -> None:
        """Start the server and make streams and consumers."""
        for user in accounts.users_of(CLUSTERS, ["alice", "bob"], [NAMES["gateway"]], [NAMES["operator"]], [NAMES["dashboard"]]):
            self._users[user] = accounts.keep(self.directory / "keys", user)
        self._nats = await start_nats(
            self.directory / "nats", tuple(self._users.values()), server_name=self.name, sync_always=False
        )
        admin = await self.bus("admin")
        await topology.apply(admin, CLUSTERS, ack_wait_ms=ack_wait_ms)

    async def user(self, role: UserRole, name: str | None = None) -> accounts.Account:
        """The account of a user, made when the server does not know it yet."""
        user = User(role, name or (role if role in SERVICES else NAMES[role]))
        if user not in self._users:
            self._users[user] = accounts.keep(self.directory / "keys", user)
            self.nats.set_users(tuple(self._users.values()))
        return self._users[user]

    async def remove_user(self, role: UserRole, name: str) -> None:
        """Take a user away from the running server."""
        del self._users[User(role, name)]
        self.nats.set_users(tuple(self._users.values()))

    async def bus(self, role: UserRole, name: str | None = None) -> NatsBus:
        """A connection as a user; closed with the lab."""
        fresh = User(role, name or (role if role in SERVICES else NAMES[role])) not in self._users
        account = await self.user(role, name)
        bus = await self._connect(account, tries=50 if fresh else 1)
        assert bus.server_name == self.name, f"this is another server: {bus.server_name}"
        self._busses.append(bus)
        return bus

    async def _connect(self, account: accounts.Account, tries: int) -> NatsBus:
        """A user who was just made is known to the server a moment later: it reads its file on a signal."""
        while True:
            try:
                return await connect(
                    self.nats.url, role=account.user.role, identity=account.user.identity, seed_file=account.seed_file
                )
            except Exception:
                tries -= 1
                if tries <= 0:
                    raise

    def dsn(self, service: str) -> str:
        """The URL of this test's database for a service's role, or for `postgres`, the superuser. Blocks 0.1 s the first time."""
        if self._database_name is None:
            name = f"lab_{next(_numbers)}"
            roles = ", ".join(f'"{role}"' for role in SERVICES)
            self.postgres.psql(f'CREATE DATABASE "{name}" TEMPLATE "{TEMPLATE}"')
            # Who may connect is not copied from the template.
            self.postgres.psql(f'REVOKE ALL ON DATABASE "{name}" FROM PUBLIC; GRANT CONNECT ON DATABASE "{name}" TO {roles}')
            self._database_name = name
        return self.postgres.dsn(self._database_name, service)

    async def database(self, service: str) -> "Database":
        """A service's migrated database, as its own role; closed with the lab."""
        from allmende.chassis.db import Database
        from allmende.chassis.migrate import migrate

        database = await Database.connect(self.dsn(service), service, application_name=f"test-{service}")
        self._databases.append(database)
        await migrate(database, service)
        return database

    def env(self, service: UserRole, clock: str = "real") -> dict[str, str]:
        """The environment of a service's process: `[sys.executable, "-m", f"allmende.{service}"]`."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "ALLMENDE_NATS_URL": self.nats.url,
            "ALLMENDE_NATS_SEED_FILE": str(accounts.seed_file(self.directory / "keys", User(service, service))),
            "ALLMENDE_DATABASE_URL": self.dsn(service),
            "ALLMENDE_CLOCK": clock,
            "ALLMENDE_PORT_FILE": str(self.directory / f"{service}.port"),
        }

    async def kill(self, server: Literal["nats", "postgres"]) -> None:
        """End a server as a power cut would. PostgreSQL is shared by the session: restart it before the test ends."""
        await (self.nats if server == "nats" else self.postgres).kill()

    async def restart(self, server: Literal["nats", "postgres"]) -> None:
        """Start it again where it was (after `kill`), or stop it cleanly and start it."""
        found = self.nats if server == "nats" else self.postgres
        if found.running:
            await found.stop()
        await found.start()

    async def close(self) -> None:
        """Close all connections and end the server."""
        for bus in self._busses:
            await bus.close()
        for database in self._databases:
            await database.close()
        if self._nats is not None:
            await self._nats.stop()
        if self._database_name is not None:
            await self.postgres.drop_database(self._database_name)


async def start_session_postgres(directory: Path) -> PostgresServer:
    """A PostgreSQL server for many tests, with the template that their databases are copied from. Not durable, but quick."""
    server = PostgresServer(
        directory, settings={"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}
    )
    await server.start()
    await server.create_database(TEMPLATE)
    await server.create_roles(TEMPLATE)
    return server
