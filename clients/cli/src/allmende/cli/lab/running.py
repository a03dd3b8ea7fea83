"""Start and stop a lab in one directory: NATS, PostgreSQL, topology, the four services, and whatever agents are asked for.

Services and agents are processes of their own, started by their module's name: nothing of them is imported.
"""

import asyncio
import fcntl
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from allmende.chassis import accounts, topology
from allmende.chassis.accounts import User
from allmende.chassis.boot import EXIT_MISCONFIGURED
from allmende.chassis.bus import connect
from allmende.chassis.embedded import NatsServer, PostgresServer, start_nats, start_postgres
from allmende.chassis.errors import Misconfigured
from allmende.chassis.ports import Bus
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.lab.processes import Program, Running, base_environment, python
from allmende.cli.place import LAB_FILE, Place, environment, person, write
from allmende.proto.subjects import SERVICES

DATABASE = "allmende"
# A service starts in about a second; half a minute means that it does not start at all.
START_S = 30.0
_POLL_S = 0.05
LOOK_S = 0.5
# What a service is itself, by the names of its health page: until all of it is ready nobody gets an answer from it. Its other parts
# wait for what agents and other services say.
OWN_PARTS = frozenset({"start", "database", "bus", "term", "requests", "inbox"})
# Not `synchronous_commit = off`: where one of its processes is killed, PostgreSQL would lose what was committed in the last moments
# and has been said on the bus already, a grant with its number among it.
FAST_POSTGRES: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}
# Ended in this order: first who asks, then who decides, then who keeps the books.
STOP_ORDER = ("workload", "synthetic", "process", "admission", "preemptor", "budget", "ledger")

Say = Callable[[str], None]


class Plan(Struct, frozen=True, kw_only=True):
    """What to start. `clock` as the setting of the services; `tree_file` is loaded when the lab has no tree yet."""

    directory: Path
    cluster: str
    people: tuple[str, ...] = ()
    """Who may use the lab beside the person who runs it."""
    clock: str = "real"
    tree_file: Path
    fast: bool = False
    """No fsync in PostgreSQL and NATS: for runs whose data nobody keeps. A power cut then loses them; a killed process does not."""
    settings: Mapping[str, Mapping[str, str]] = {}
    """Additional settings by service, as environment variables."""
    real: bool = False
    """Jobs run on this machine, so commands on it can read what they write."""


class Lab:
    """A running lab. `programs` are its processes by name."""

    def __init__(self, plan: Plan, nats: NatsServer, postgres: PostgresServer, say: Say) -> None:
        self.plan = plan
        self.nats = nats
        self.postgres = postgres
        self.programs: dict[str, Running] = {}
        self._say = say
        self._keepers: set[asyncio.Task[None]] = set()

    @property
    def place(self) -> Place:
        """How commands reach the lab: as the person who runs it, who is its operator."""
        return self._place("operator", person())

    @property
    def gateway(self) -> Place:
        """How the demo reaches it: as a front door that speaks for its 150 people."""
        return self._place("gateway", "demo")

    def _place(self, role: str, identity: str) -> Place:
        seed = accounts.seed_file(self._seeds, User(role, identity))  # type: ignore[arg-type]  # only roles of `Place` come here
        return Place(
            nats_url=self.nats.url,
            seed_file=str(seed),
            user=identity,
            role=role,  # type: ignore[arg-type]
            clock=self.plan.clock,
            clusters=(self.plan.cluster,),
            output=str(self.machine / "logs") if self.plan.real else None,
        )

    @property
    def machine(self) -> Path:
        """Where the process agent of a real lab keeps its things."""
        return self.plan.directory / "machine"

    @property
    def _seeds(self) -> Path:
        return self.plan.directory / "seeds"

    async def bus(self, place: Place) -> Bus:
        """A connection of its own for one of this lab's users."""
        return await connect(place.nats_url, role=place.role, identity=place.user, seed_file=place.seed_file)

    def environment(self, user: User) -> dict[str, str]:
        """The settings that every process of the lab needs, for one user of the bus."""
        return base_environment(environment()) | {
            "ALLMENDE_NATS_URL": self.nats.url,
            "ALLMENDE_NATS_SEED_FILE": str(accounts.seed_file(self._seeds, user)),
            "ALLMENDE_CLOCK": self.plan.clock,
            "ALLMENDE_PORT_FILE": str(self._port_file(user.role if user.role in SERVICES else f"{user.role}-{user.identity}")),
        }

    def _port_file(self, name: str) -> Path:
        return self.plan.directory / "ports" / name

    def start(self, name: str, module: str, environment: Mapping[str, str], *arguments: str, restart: bool = True) -> Running:
        """Start a Python module as a process of the lab. Its log is logs/NAME.log."""
        program = Program(
            name=name,
            command=python(module, *arguments),
            environment=environment,
            log=self.plan.directory / "logs" / f"{name}.log",
            restart=restart,
        )
        running = Running(program, self._say)
        self.programs[name] = running
        keeper = asyncio.get_running_loop().create_task(running.keep(), name=f"keep {name}")
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)
        return running

    async def start_services(self) -> None:
        """Start the four services and wait until each answers what it is asked.

        Raises:
            CommandFailed: one did not come up.
        """
        (self.plan.directory / "ports").mkdir(exist_ok=True)
        for service in SERVICES:
            environment = self.environment(User(service, service)) | {
                "ALLMENDE_DATABASE_URL": self.postgres.dsn(DATABASE, service),
                **self.plan.settings.get(service, {}),
            }
            if service == "budget":
                environment["ALLMENDE_BUDGET_OPERATORS"] = msgspec.json.encode([person()]).decode()
                environment["ALLMENDE_BUDGET_TREE_FILE"] = str(self.plan.tree_file)
            if service == "admission":
                # Who runs a lab may end anybody's job in it.
                environment["ALLMENDE_ADMISSION_OPERATORS"] = msgspec.json.encode([person()]).decode()
            self._port_file(service).unlink(missing_ok=True)
            self.start(service, f"allmende.{service}", environment)
        for service in SERVICES:
            await self._wait_for(service)

    async def _wait_for(self, service: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + START_S
        while not await asyncio.to_thread(serves, self._port_file(service)):
            log = self.programs[service].program.log
            if self.programs[service].exit_code == EXIT_MISCONFIGURED:
                # It has said in its last line what to change; started again, it would only say so again.
                raise CommandFailed(Exit.USAGE, f"{log.read_text(errors='replace').splitlines()[-1]}; its log: {log}")
            if loop.time() > until:
                raise CommandFailed(Exit.UNREACHABLE, f"the {service} service did not come up in {START_S:.0f} s; its log: {log}")
            await asyncio.sleep(_POLL_S)

    async def watch_servers(self) -> None:
        """Start NATS or PostgreSQL again when it has ended by itself, and say so. Until cancelled."""
        servers: tuple[tuple[str, NatsServer | PostgresServer], ...] = (("NATS", self.nats), ("PostgreSQL", self.postgres))
        while True:
            await asyncio.sleep(LOOK_S)
            for name, server in servers:
                if server.running:
                    continue
                self._say(f"{name} ended and is started again; its log: {server.directory}")
                try:
                    if server is self.postgres:
                        await _collected(server.directory / "data" / "postmaster.pid")
                    await server.start()
                except Misconfigured as error:
                    self._say(f"{name} does not start: {error}")

    async def stop(self) -> None:
        """End all processes, in order; the data stay."""
        names = [name for name in STOP_ORDER if name in self.programs]
        names += [name for name in self.programs if name not in names]
        for name in names:
            await self.programs[name].stop()
        await asyncio.gather(*self._keepers, return_exceptions=True)


def serves(port_file: Path) -> bool:
    """Whether a service is there for whoever asks. It may still lack what others have to tell it, as a lab without agents does."""
    try:
        return OWN_PARTS.isdisjoint(_why_not_ready(int(port_file.read_text())))
    except (OSError, ValueError):
        return False


def _why_not_ready(port: int) -> dict[str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return dict(json.load(answer)["why"])
    except urllib.error.HTTPError as not_ready:
        with not_ready:
            return dict(json.load(not_ready)["why"])


@asynccontextmanager
async def running(plan: Plan, say: Say) -> AsyncIterator[Lab]:
    """A lab with its servers and services, until the block is left. lab.json tells other commands how to reach it.

    Raises:
        CommandFailed: another `up` holds the directory, or something did not start.
    """
    plan.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with AsyncExitStack() as stack:
        _hold(plan.directory, stack)
        try:
            await _collected(plan.directory / "postgres" / "data" / "postmaster.pid")
            postgres = await start_postgres(plan.directory / "postgres", settings=_postgres_settings(plan.fast))
            stack.push_async_callback(postgres.stop)
            await _prepare_database(postgres)
            keys = _keys(plan)
            name = f"allmende-{plan.directory.name.strip('.')}"
            nats = await start_nats(plan.directory / "nats", keys, server_name=name, sync_always=not plan.fast)
            stack.push_async_callback(nats.stop)
            await _shape(nats, plan)
        except Misconfigured as error:
            raise CommandFailed(Exit.UNREACHABLE, f"{error} (data and logs are in {plan.directory})") from error
        lab = Lab(plan, nats, postgres, say)
        stack.push_async_callback(lab.stop)
        await lab.start_services()
        stack.push_async_callback(_ended, asyncio.get_running_loop().create_task(lab.watch_servers()))
        write(plan.directory, lab.place)
        stack.callback((plan.directory / LAB_FILE).unlink, missing_ok=True)
        yield lab


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _hold(directory: Path, stack: AsyncExitStack) -> None:
    # The lock goes with the process, however it ends; a file that only names a process would have to be believed.
    holder = stack.enter_context((directory / "up.lock").open("w"))
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise CommandFailed(Exit.USAGE, f"another `allmende up` runs in {directory}: stop it, or choose another folder") from None


def _keys(plan: Plan) -> tuple[accounts.Account, ...]:
    people = [name for name in plan.people if name != person()]
    users = accounts.users_of(
        clusters=(plan.cluster,), people=people, operators=(person(),), gateways=("demo",), dashboards=("screen",)
    )
    for user in users:
        accounts.keep(plan.directory / "seeds", user)
    # Also those of earlier starts: a person who was let in once does not lose the key.
    return accounts.kept(plan.directory / "seeds")


def _postgres_settings(fast: bool) -> Mapping[str, str]:
    return FAST_POSTGRES if fast else {}


async def _collected(pid_file: Path) -> None:
    """Wait while the last server is dead but still listed as a process (a zombie): PostgreSQL would take it for alive."""
    loop = asyncio.get_running_loop()
    until = loop.time() + START_S
    while loop.time() < until:
        if not _is_zombie(pid_file):
            return
        await asyncio.sleep(_POLL_S)


def _is_zombie(pid_file: Path) -> bool:
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, ValueError):
        return False


async def _prepare_database(postgres: PostgresServer) -> None:
    if DATABASE not in postgres.psql("SELECT datname FROM pg_database").split():
        await postgres.create_database(DATABASE)
    await postgres.create_roles(DATABASE)


async def _shape(nats: NatsServer, plan: Plan) -> None:
    seed = accounts.seed_file(plan.directory / "seeds", accounts.ADMIN)
    admin = await connect(nats.url, role="admin", identity=accounts.ADMIN.identity, seed_file=seed)
    try:
        await topology.apply(admin, (plan.cluster,))
    finally:
        await admin.close()
