"""The stage: a NATS server of its own, the services played by hand, and the agent under test as a process. Judges nothing."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from allmende.chassis import accounts, rpc, topology
from allmende.chassis.accounts import User
from allmende.chassis.bus import connect
from allmende.chassis.bus.connection import NatsBus
from allmende.chassis.clock import parse_clock, real_seconds
from allmende.chassis.embedded import NatsServer, start_nats
from allmende.chassis.entropy import RandomIds
from allmende.chassis.errors import Transient
from allmende.chassis.outbox import draft, seal
from allmende.proto.envelope import Refusal, decode
from allmende.proto.message import Message
from allmende.proto.payload import PayloadQuery, PayloadReply
from allmende.proto.permissions import UserRole
from allmende.proto.subjects import PAYLOAD
from allmende.proto.units import Ms
from allmende.proto.user import Payload

M = TypeVar("M", bound=Message)

CLUSTER = "c1"
AGENT = User("agent", CLUSTER)
# Stream and consumer of admission: it hears all that agents say.
HEARS = ("USAGE", "admission")
LOOK_S = 0.02
# Longer than any pause that an agent makes: a tick every 10 s, a repetition every 10 s, an ack wait of 20 s.
PATIENCE_S = 40.0
# What is asked of an agent that ends: `program.CLEAN_END_S`.
LEAVE_S = 30.0


class Failed(Exception):
    """The agent did not do what a sentence says."""


class Stage:
    """One scratch lab. `heard` is all that the agent said, oldest first; `fetched` the attempts whose payload was asked for."""

    def __init__(self, folder: Path, command: Sequence[str], environment: Mapping[str, str], clock: str) -> None:
        self._folder = folder
        self._command = [word.replace("{folder}", str(folder / "agent")) for word in command]
        self._environment, self._clock_text = environment, clock
        self.clock = parse_clock(clock)
        self.ids = RandomIds()
        self.heard: list[Message] = []
        self.fetched: list[str] = []
        self.payloads: dict[str, Payload | None] = {}
        self._nats: NatsServer | None = None
        self._busses: dict[UserRole, NatsBus] = {}
        self._agent: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def log(self) -> Path:
        """What the agent wrote."""
        return self._folder / "agent.log"

    async def open(self) -> None:
        """Start the server, and play admission.

        Raises:
            Misconfigured: there is no server to be started.
        """
        (self._folder / "agent").mkdir(parents=True)
        users = accounts.users_of((CLUSTER,), [], [], [], [])
        kept = tuple(accounts.keep(self._folder / "keys", user) for user in users)
        self._nats = await start_nats(self._folder / "nats", kept, server_name="allmende-conformance", sync_always=False)
        admin = await self._connect(accounts.ADMIN.role, accounts.ADMIN.identity)
        await topology.apply(admin, (CLUSTER,))
        await admin.close()
        for role in ("admission", "preemptor", "ledger"):
            self._busses[role] = await self._connect(role, role)
        await self._busses["admission"].answer("admission", "1.0.0", [rpc.endpoint(PAYLOAD, self._payload)])
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        """End everything."""
        await self.kill_agent()
        if self._listening is not None:
            self._listening.cancel()
        for bus in self._busses.values():
            await bus.close()
        if self._nats is not None:
            await self._nats.stop()

    async def _connect(self, role: UserRole, name: str) -> NatsBus:
        assert self._nats is not None, "the server is started first"
        seed = accounts.seed_file(self._folder / "keys", User(role, name))
        return await connect(self._nats.url, role=role, identity=name, seed_file=seed)

    async def _payload(self, caller: str, query: PayloadQuery) -> PayloadReply:
        self.fetched.append(query.attempt)
        if query.attempt not in self.payloads:
            raise Refusal("unknown_attempt", "no such attempt")
        payload = self.payloads[query.attempt]
        if payload is None:
            raise Transient("admission is being started again")
        return PayloadReply(attempt=query.attempt, job=query.attempt, payload=payload)

    async def _listen(self) -> None:
        """Hear what admission hears, through its stream: also what the agent says before we are back after an outage."""
        subscription = self._busses["admission"].subscribe(*HEARS)
        heard: set[str] = set()
        while True:
            try:
                deliveries = await subscription.pull(256, 1.0)
                for envelope in [decode(delivery.data) for delivery in deliveries]:
                    # Delivered again by the server is not said again by the agent.
                    if envelope.id not in heard:
                        heard.add(envelope.id)
                        self.heard.append(envelope.body)
                await subscription.ack(deliveries)
            except Transient:
                await asyncio.sleep(LOOK_S)

    # --------------------------------------------------------------------------------------------------------------- the agent

    async def start_agent(self) -> None:
        """Start the agent under test."""
        assert self._nats is not None, "the server is started first"
        ours = {
            "ALLMENDE_NATS_URL": self._nats.url,
            "ALLMENDE_NATS_SEED_FILE": str(accounts.seed_file(self._folder / "keys", AGENT)),
            "ALLMENDE_CLOCK": self._clock_text,
        }
        with self.log.open("ab") as log:
            self._agent = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self._environment) | ours,
                start_new_session=True,
            )

    async def kill_agent(self) -> None:
        """SIGKILL for the agent's own process, as the system does it when memory is short."""
        if self._agent is not None and self._agent.returncode is None:
            self._agent.kill()
            await self._agent.wait()

    async def end_agent(self) -> int:
        """SIGTERM; its exit code.

        Raises:
            Failed: it does not leave.
        """
        assert self._agent is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):
            self._agent.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(LEAVE_S):
                return await self._agent.wait()
        except TimeoutError:
            raise Failed(f"it is still there {LEAVE_S:.0f} s after SIGTERM") from None

    # ------------------------------------------------------------------------------------------------------------- the services

    async def kill_bus(self) -> None:
        """The bus goes away as in a power cut."""
        assert self._nats is not None, "the server is started first"
        await self._nats.kill()

    async def restart_bus(self) -> None:
        """The bus is back, with all that it had."""
        assert self._nats is not None, "the server is started first"
        await self._nats.start()

    async def say(self, role: UserRole, body: Message) -> None:
        """Say something as a service, until the bus has it."""
        made = draft(body, ids=self.ids, now_ms=self.now_ms())
        until_s = real_seconds() + PATIENCE_S
        while True:
            try:
                await self._busses[role].publish(made.subject, made.id, seal(made, self.now_ms()))
                return
            except Transient:
                if real_seconds() > until_s:
                    raise
                await asyncio.sleep(LOOK_S)

    def now_ms(self) -> Ms:
        """The clock of the lab."""
        return self.clock.now_ms()

    def all(self, kind: type[M], attempt: str | None = None) -> list[M]:
        """What was heard of a kind, oldest first; of one attempt, where one is given."""
        return [body for body in self.heard if isinstance(body, kind) and attempt in (None, getattr(body, "attempt", None))]

    async def until(self, true: Callable[[], object], what: str, wait_s: float = PATIENCE_S) -> None:
        """Wait for a fact.

        Raises:
            Failed: it did not come about; the sentence has `what`.
        """
        try:
            async with asyncio.timeout(wait_s):
                while not true():
                    if self._agent is not None and self._agent.returncode is not None:
                        raise Failed(f"{what}: the agent has ended with exit code {self._agent.returncode}")
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Failed(f"{what}: not within {wait_s:.0f} s") from None
