"""The whole core over a lab's servers: four services and one synthetic cluster, each a process of its own, on one scaled clock.

People and agents speak through their own credentials. What is said is overheard in the order in which the server took it.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from allmende.agent.audit.books import BooksAudit, audit_books
from allmende.agent.audit.history import History, read
from allmende.agent.synthetic.truth import from_lines
from allmende.chassis import rpc
from allmende.chassis.bus import NatsBus
from allmende.chassis.clock import parse_clock
from allmende.chassis.errors import Transient
from allmende.proto import subjects
from allmende.proto.admission import QueueQuery
from allmende.proto.envelope import Envelope, Refusal, decode, encode
from allmende.proto.ids import make_id
from allmende.proto.ledger import LedgerState, LedgerStateQuery, Posting, PostingsQuery
from allmende.proto.message import Message
from allmende.proto.permissions import UserRole
from allmende.proto.subjects import SERVICES, SUBJECTS, Request, subject_of
from allmende.proto.units import HOUR_MS
from allmende.proto.user import JobSubmitted, Payload
from tests.servers import NAMES, Lab

M = TypeVar("M", bound=Message)

CLUSTER = "c1"
GPUS = 8
TREE = """\
[org]
[org.a]
share = "50%"
members = ["alice"]
[org.b]
share = "50%"
members = ["bob"]
"""
# Six hours of slice would make a quarter of an hour on eight GPUs a trifle: with one hour a team is soon owed time, or has had it.
SLICE_CAP_MS = HOUR_MS
# Ten clock minutes a second.
RATE = 600
# Everything here takes a second or two on an idle machine.
PATIENCE_S = 40.0
LOOK_S = 0.02


class Heard(NamedTuple):
    """One message as it came by."""

    subject: str
    envelope: Envelope[Message]


class Whole:
    """Everybody. `heard` is what was said, oldest first."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.clock_text = f"{time.time_ns() // 1_000_000}:{time.time_ns() // 1_000_000}:{RATE}"
        self.clock = parse_clock(self.clock_text)
        self.heard: list[Heard] = []
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self._busses: dict[tuple[UserRole, str], NatsBus] = {}

    # ------------------------------------------------------------------------------------------------------------- processes

    async def open(self) -> None:
        """Listen, start everybody, and wait until admission decides."""
        wall = await self.bus("dashboard")
        for row in SUBJECTS:
            if "dashboard" in row.hears:
                await wall.watch(row.pattern, self._hear)
        tree_file = self.lab.directory / "budgets.toml"
        tree_file.write_text(TREE)
        for service in SERVICES:
            env = self.lab.env(service, self.clock_text)
            if service == "budget":
                env |= {"ALLMENDE_BUDGET_TREE_FILE": str(tree_file), "ALLMENDE_BUDGET_OPERATORS": json.dumps([NAMES["operator"]])}
            env |= {f"ALLMENDE_{service.upper()}_SLICE_CAP_MS": str(SLICE_CAP_MS)} if service in ("ledger", "admission") else {}
            await self._start(service, f"allmende.{service}", env)
        await self.start_cluster()
        await self.until(self._is_ready, "admission knows tree, standings and nodes")

    async def start_cluster(self, cluster: str = CLUSTER) -> None:
        """Start a synthetic cluster; every test has the first."""
        account = await self.lab.user("agent", cluster)
        settings = {"CLUSTER": cluster, "GPUS": str(GPUS), "NODE_FAILURES_PER_DAY": "0", "MIN_TICK_MS": "200"}
        settings["TRUTH_FILE"] = str(self._truth(cluster))
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "ALLMENDE_NATS_URL": self.lab.nats_url,
            "ALLMENDE_NATS_SEED_FILE": str(account.seed_file),
            "ALLMENDE_CLOCK": self.clock_text,
        }
        env |= {f"ALLMENDE_SYNTHETIC_{key}": value for key, value in settings.items()}
        await self._start(_process_of(cluster), "allmende.agent.synthetic", env)

    def _truth(self, cluster: str) -> Path:
        return self.lab.directory / f"truth-{cluster}.jsonl"

    async def _start(self, name: str, module: str, env: Mapping[str, str]) -> None:
        with (self.lab.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, env=env, stdout=log, stderr=log
            )

    async def _is_ready(self) -> bool:
        try:
            page = await self.ask(subjects.QUEUE, QueueQuery(limit=1))
        except (Transient, Refusal):
            return False
        return bool(page.ready)

    async def power_off(self, cluster: str = CLUSTER) -> tuple[BooksAudit, History, list[Posting]]:
        """End the cluster and hold the books against its own log, once the ledger has closed every attempt."""
        name = _process_of(cluster)
        self.processes[name].send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await self.processes[name].wait() == 0, self.log(name)

        async def is_closed() -> bool:
            state = await self.state(cluster)
            return state.open_attempts == 0 and state.unattributed_counters == 0

        await self.until(is_closed, "the ledger has closed every attempt")
        with self._truth(cluster).open("rb") as lines:
            history = read(from_lines(lines))
        postings: list[Posting] = []
        after: int | None = 0
        while after is not None:
            page = await self.ask(subjects.POSTINGS, PostingsQuery(cluster=cluster, after=after))
            postings += page.postings
            after = page.next_after
        return audit_books(history, postings), history, postings

    async def state(self, cluster: str = CLUSTER) -> LedgerState:
        """How complete the books are."""
        found: LedgerState = await self.ask(subjects.LEDGER_STATE, LedgerStateQuery(cluster=cluster))
        return found

    def check_alive(self) -> None:
        """Nobody has died of anything."""
        dead = {name: self.log(name) for name, process in self.processes.items() if process.returncode is not None}
        assert not dead, dead

    async def close(self) -> None:
        """End everybody; each leaves cleanly."""
        for process in self.processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        codes: dict[str, int | None] = {}
        for name, process in self.processes.items():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    codes[name] = await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
                codes[name] = None
        assert codes == dict.fromkeys(codes, 0), "not everybody left cleanly"

    def log(self, name: str) -> str:
        """The end of a process's log."""
        return (self.lab.directory / f"{name}.log").read_text()[-3_000:]

    # ---------------------------------------------------------------------------------------------------------------- saying

    async def bus(self, role: UserRole, name: str | None = None) -> NatsBus:
        """The connection of somebody with his own credentials; made once."""
        who = (role, name or NAMES.get(role, role))
        if who not in self._busses:
            self._busses[who] = await self.lab.bus(*who)
        return self._busses[who]

    def new_id(self) -> str:
        """An id that nobody has used."""
        return make_id(self.clock.now_ms(), os.urandom(10))

    def sealed(self, body: Message) -> bytes:
        """A body in an envelope, as its publisher sends it."""
        now_ms = self.clock.now_ms()
        opened = Envelope(
            id=self.new_id(), type=body.TYPE, version=body.VERSION, occurred_at_ms=now_ms, sent_at_ms=now_ms, body=body
        )
        return encode(opened)

    def job(self, user: str, budget: str, runtime_ms: int, slice_ms: int, **fields: Any) -> JobSubmitted:
        """A job for the whole cluster that saves its progress every clock minute."""
        command = ("synthetic-job", "--runtime-ms", str(runtime_ms), "--checkpoint-ms", "60000")
        values: dict[str, Any] = {"gpus_per_replica": GPUS, "payload": Payload(command=command)} | fields
        return JobSubmitted(user=user, job=self.new_id(), budget=budget, slice_ms=slice_ms, **values)

    async def submit(self, job: JobSubmitted) -> str:
        """A person submits a job with his own credentials; returns its id."""
        bus = await self.bus("user", job.user)
        await bus.publish(subject_of(job), self.new_id(), self.sealed(job))
        return job.job

    async def ask(self, row: Request, request: Any) -> Any:
        """Ask a service as the operator."""
        return await rpc.ask(await self.bus("operator"), row, NAMES["operator"], request)

    # --------------------------------------------------------------------------------------------------------------- hearing

    def _hear(self, subject: str, data: bytes) -> None:
        try:
            self.heard.append(Heard(subject, decode(data)))
        except Refusal:
            # What tests say badly is heard here too.
            return

    def said(self, kind: type[M], which: Callable[[M], bool] = lambda _body: True) -> list[M]:
        """All bodies of a kind so far."""
        return [each.envelope.body for each in self.heard if isinstance(each.envelope.body, kind) and which(each.envelope.body)]

    def when(self, kind: type[M], which: Callable[[M], bool] = lambda _body: True) -> int:
        """The position in `heard` of the first message of a kind."""
        return next(n for n, each in enumerate(self.heard) if isinstance(each.envelope.body, kind) and which(each.envelope.body))

    async def hears(self, kind: type[M], which: Callable[[M], bool] = lambda _body: True) -> M:
        """Wait for the first message of a kind."""
        await self.until(lambda: self.said(kind, which), f"somebody says {kind.TYPE}")
        return self.said(kind, which)[0]

    async def until(self, fact: Callable[[], Any], what: str) -> None:
        """Wait for a fact, with a bound: `fact` returns something true, or an awaitable of it."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    found = fact()
                    if await found if asyncio.iscoroutine(found) else found:
                        return
                    self.check_alive_but_clusters()
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            logs = "\n".join(f"--- {name}\n{self.log(name)}" for name in self.processes)
            kinds = [each.envelope.type for each in self.heard[-60:]]
            raise AssertionError(f"within {PATIENCE_S:g} s this did not come about: {what}; heard last {kinds}\n{logs}") from None

    def check_alive_but_clusters(self) -> None:
        """No service has died."""
        dead = {each: self.log(each) for each in SERVICES if self.processes[each].returncode is not None}
        assert not dead, dead


def _process_of(cluster: str) -> str:
    return "synthetic" if cluster == CLUSTER else f"synthetic-{cluster}"


@asynccontextmanager
async def whole(lab: Lab) -> AsyncIterator[Whole]:
    """Everybody, running; ended afterwards."""
    everybody = Whole(lab)
    try:
        await everybody.open()
        yield everybody
    except BaseException:
        for process in everybody.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()
        raise
    await everybody.close()
