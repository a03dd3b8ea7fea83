"""A scene over real servers: admission as a process, and everybody else played by hand."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from allmende.chassis import rpc
from allmende.chassis.bus import NatsBus
from allmende.proto.admission import Placed
from allmende.proto.agent import AttemptEnded, AttemptStarted, FreedGpus, GpuFreed, NodeReported, UsageTick
from allmende.proto.budget import Budget, BudgetChanged, RevisionComplete
from allmende.proto.envelope import Envelope, decode, encode
from allmende.proto.ids import make_id
from allmende.proto.ledger import UsageStanding
from allmende.proto.message import Message
from allmende.proto.preemptor import ClaimAnswered, Victim
from allmende.proto.subjects import SUBJECTS, Request, subject_of
from allmende.proto.tree import digest
from allmende.proto.units import HOUR_MS
from allmende.proto.user import JobSubmitted, Payload
from tests.servers import Lab

M = TypeVar("M", bound=Message)

# Everything here takes milliseconds; a machine that is busy with other tests may take seconds.
PATIENCE_S = 20.0


class Scene:
    """Who plays: budget, ledger, preemptor, the agent of c1, and people."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.heard: list[Message] = []
        self.envelopes: list[Envelope[Message]] = []
        self._stirred = asyncio.Event()
        self._processes: list[asyncio.subprocess.Process] = []
        self._revisions = 0
        self._budgets: list[Budget] = []
        self._usage = 0
        self._ids = 0

    async def open(self) -> None:
        """Connect everybody and listen to all that admission says."""
        self._busses: dict[str, NatsBus] = {
            role: await self.lab.bus(role)
            for role in ("budget", "ledger", "preemptor", "gateway", "dashboard", "operator")  # type: ignore[arg-type]
        }
        self._busses["agent"] = await self.lab.bus("agent", "c1")
        self.others = await self.lab.bus("agent", "c2")
        for row in SUBJECTS:
            if row.owner in ("admission", "refusal"):
                await self._busses["dashboard"].watch(row.pattern, self._hear)

    def _hear(self, subject: str, data: bytes) -> None:
        opened = decode(data)
        self.envelopes.append(opened)
        self.heard.append(opened.body)
        self._stirred.set()

    async def close(self) -> None:
        """End all processes that are left."""
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await process.wait()

    # ------------------------------------------------------------------------------------------------------------------- process

    async def start(self, name: str = "admission", **settings: object) -> asyncio.subprocess.Process:
        """Start the service. `settings` are its own."""
        port_file = self.lab.directory / f"{name}.port"
        port_file.unlink(missing_ok=True)
        env = self.lab.env("admission") | {f"ALLMENDE_ADMISSION_{key.upper()}": str(value) for key, value in settings.items()}
        env |= {"ALLMENDE_PORT_FILE": str(port_file), "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.lab.directory / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "allmende.admission", env=env, stderr=log, stdout=log
            )
        self._processes.append(process)
        await eventually(port_file.exists, "the service opens its port")
        return process

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """End it as a power cut would."""
        process.send_signal(signal.SIGKILL)
        await process.wait()

    def log(self, name: str = "admission") -> str:
        """What the service has logged."""
        return Path(self.lab.directory / f"{name}.log").read_text()

    # -------------------------------------------------------------------------------------------------------------------- saying

    def new_id(self) -> str:
        """An id of our own. Later ones sort behind earlier ones: jobs of one millisecond stand in line by their ids."""
        self._ids += 1
        return make_id(self.now_ms(), self._ids.to_bytes(4, "big") + os.urandom(6))

    async def say(self, role: str, body: Message, *, envelope: str | None = None, bus: NatsBus | None = None) -> str:
        """Publish a message as a role; returns its id."""
        name, now_ms = envelope or self.new_id(), self.now_ms()
        made = Envelope(id=name, type=body.TYPE, version=body.VERSION, occurred_at_ms=now_ms, sent_at_ms=now_ms, body=body)
        await (bus or self._busses[role]).publish(subject_of(body), self.new_id(), encode(made))
        return name

    def now_ms(self) -> int:
        """The real time, which is the service's clock here."""
        return int(time.time() * 1_000)

    async def tree(self, budgets: Sequence[Budget]) -> None:
        """Publish a revision of the tree."""
        self._budgets = list(budgets)
        await self._revision([BudgetChanged(budget=each.budget, revision=1, definition=each) for each in budgets])

    async def closes(self, budget: str, jobs_to: str) -> None:
        """Publish the revision in which a budget is closed."""
        self._budgets = [each for each in self._budgets if each.budget != budget]
        await self._revision([BudgetChanged(budget=budget, revision=1, definition=None, jobs_to=jobs_to)])

    async def _revision(self, changes: Sequence[BudgetChanged]) -> None:
        self._revisions += 1
        for each in changes:
            await self.say("budget", replace(each, revision=self._revisions))
        complete = RevisionComplete(
            revision=self._revisions,
            effective_from_ms=self.now_ms(),
            budgets=len(self._budgets),
            digest=digest(self._budgets),
            author="olga",
        )
        await self.say("budget", complete)

    async def nodes(self, count: int, gpus: int = 8, cluster: str = "c1", seq: int = 1) -> None:
        """The agent reports nodes n001, n002, ..."""
        bus = self.others if cluster == "c2" else None
        for number in range(1, count + 1):
            body = NodeReported(
                cluster=cluster, node=f"n{number:03d}", at_ms=self.now_ms(), seq=seq, installed_gpus=gpus, healthy_gpus=gpus
            )
            await self.say("agent", body, bus=bus)

    async def tick(self, node: str = "n001") -> None:
        """A sign of life."""
        await self.say("agent", UsageTick(cluster="c1", node=node, at_ms=self.now_ms(), counters=()))

    async def standings(self, cluster: str = "c1", counted_grants: int = 0, **percents: int) -> None:
        """The ledger publishes a round: budgets in percent of 1,000 GPU-hours."""
        self._usage += 1
        for budget, percent in percents.items():
            body = UsageStanding(
                cluster=cluster,
                budget=budget,
                as_of_ms=self.now_ms(),
                usage_revision=self._usage,
                tree_revision=self._revisions,
                counted_grants=counted_grants,
                charged_gpu_ms=1_000 * HOUR_MS * percent // 100,
                held_gpu_ms=0,
                entitlement_gpu_ms=1_000 * HOUR_MS,
                available_gpus=8,
            )
            await self.say("ledger", body)

    async def submit(self, user: str = "alice", **fields: object) -> str:
        """A person submits a job; returns its id."""
        values: dict[str, object] = {
            "job": self.new_id(),
            "budget": "a",
            "slice_ms": HOUR_MS,
            "payload": Payload(command=("train", user)),
        } | fields
        await self.say("gateway", JobSubmitted(user=user, **values))  # type: ignore[arg-type]
        return str(values["job"])

    async def started(self, grant: object, at_ms: int | None = None) -> None:
        """The agent says that a granted attempt runs."""
        at_ms = self.now_ms() if at_ms is None else at_ms
        await self.say("agent", AttemptStarted(cluster="c1", attempt=grant.attempt, job=grant.job, started_at_ms=at_ms))  # type: ignore[attr-defined]

    async def ended(self, grant: object, outcome: str = "finished", **fields: object) -> None:
        """The agent says that an attempt is over."""
        values: dict[str, object] = {"ended_at_ms": self.now_ms(), "outcome": outcome} | fields
        await self.say("agent", AttemptEnded(cluster="c1", attempt=grant.attempt, job=grant.job, **values))  # type: ignore[attr-defined, arg-type]

    async def freed(self, grant: object, node: str, gpus: int) -> None:
        """The agent says that GPUs are free."""
        nodes = (FreedGpus(node=node, gpus=gpus),)
        await self.say("agent", GpuFreed(cluster="c1", attempt=grant.attempt, freed_at_ms=self.now_ms(), nodes=nodes))  # type: ignore[attr-defined]

    async def answer(self, claim: object, victims: Sequence[object] = (), node: str = "n001", code: str = "planned") -> None:
        """The preemptor answers a claim: a plan on one node, or infeasible with this code."""
        planned = code == "planned"
        body = ClaimAnswered(
            cluster="c1",
            claim=claim.claim,  # type: ignore[attr-defined]
            job=claim.job,  # type: ignore[attr-defined]
            outcome="planned" if planned else "infeasible",
            code=code,
            sentence="as planned" if planned else "no room can be made",
            plan=self.new_id() if planned else None,
            victims=tuple(
                Victim(attempt=each.attempt, job=each.job, budget=each.budget, gpus=1, lost_gpu_ms=0)  # type: ignore[attr-defined]
                for each in victims
            ),
            placement=(Placed(node=node, replicas=1),) if planned else (),
            tree_revision=1,
            usage_revision=1,
        )
        await self.say("preemptor", body)

    # ------------------------------------------------------------------------------------------------------------------- hearing

    async def hears(self, kind: type[M], which: Callable[[M], bool] = lambda _body: True) -> M:
        """Wait for a message of admission."""
        found = await self.all(kind, 1, which)
        return found[0]

    async def all(self, kind: type[M], count: int, which: Callable[[M], bool] = lambda _body: True) -> list[M]:
        """Wait for so many messages."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = self.said(kind, which)
                if len(found) >= count:
                    return found
                self._stirred.clear()
                await self._stirred.wait()

    def said(self, kind: type[M], which: Callable[[M], bool] = lambda _body: True) -> list[M]:
        """What admission has said so far."""
        return [body for body in self.heard if isinstance(body, kind) and which(body)]

    async def ask(self, row: Request, request: object, caller: str = "front", role: str = "gateway") -> object:
        """Ask admission as somebody."""
        return await rpc.ask(self._busses[role], row, caller, request)  # type: ignore[arg-type]


async def eventually(fact: Callable[[], bool], what: str) -> None:
    """Wait for a fact, with a bound."""
    async with asyncio.timeout(PATIENCE_S):
        while not fact():  # noqa: ASYNC110 - a file that another process writes has no event
            await asyncio.sleep(0.02)
    assert fact(), what
