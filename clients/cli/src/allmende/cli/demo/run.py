"""Run the demo: start a lab and a load, watch, stop in order, and let the audit judge.

Decides nothing about the figures: `allmende.agent.audit` computes them from the cluster's own log, in a process of its own.
"""

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from rich.live import Live

from allmende.chassis import rpc
from allmende.chassis.accounts import User
from allmende.chassis.clock import RealClock, parse_clock
from allmende.chassis.errors import Transient
from allmende.chassis.ports import Bus, Clock
from allmende.cli import session
from allmende.cli.demo import live, summary
from allmende.cli.demo.plan import CLUSTER, GPUS_PER_NODE, DemoPlan, clock_setting
from allmende.cli.demo.record import Recorder
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.lab.command import start_synthetic
from allmende.cli.lab.processes import base_environment, python
from allmende.cli.lab.running import Lab, Plan, running
from allmende.cli.place import environment
from allmende.proto import subjects
from allmende.proto.admission import AttemptProtected, JobEnded, NodesPage, NodesQuery, QueuePage, QueueQuery
from allmende.proto.envelope import Refusal
from allmende.proto.ledger import LedgerState, LedgerStateQuery, PostingsPage, PostingsQuery
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.tree import leaves
from allmende.proto.tree_file import read_tree
from allmende.proto.units import HOUR_MS

# Until every service has heard of tree, nodes and standings. Much longer than it takes, so that a slow machine is no failure.
READY_S = 45.0
# After the cluster's power is off, the books close as soon as its last reports are in.
CLOSE_S = 30.0
LOOK_S = 1.0
LINE_EVERY_S = 5.0
# Occupancy is measured once the first hour has filled the machine (and in a shorter run from the start).
WARM_UP_MS = HOUR_MS

Say = Callable[[str], None]


async def run_demo(plan: DemoPlan) -> int:
    """Run one demo. Returns the exit code: 0, or 1 when a figure that must be zero is not."""
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    async with _folder(plan) as folder:
        real_ms = RealClock().now_ms()
        tree_file = await _write_tree(plan, folder)
        say = _sayer()
        where = f"logs: {folder / 'logs'}" if plan.folder else "its data and logs are removed at the end; --folder keeps them"
        say(f"starting NATS, PostgreSQL, four services and a synthetic cluster of {plan.gpus} GPUs ({where})")
        lab_plan = Plan(directory=folder, cluster=CLUSTER, clock=clock_setting(plan, real_ms), tree_file=tree_file, fast=True)
        async with running(lab_plan, say) as lab:
            bus = await lab.bus(lab.gateway)
            try:
                return await _Demo(plan, lab, bus, say, interrupted, tree_file).run()
            finally:
                await bus.close()


class _Demo:
    """The parts of one run, in the order in which they happen."""

    def __init__(self, plan: DemoPlan, lab: Lab, bus: Bus, say: Say, interrupted: asyncio.Event, tree_file: Path) -> None:
        self.plan = plan
        self.lab = lab
        self.bus = bus
        self.say = say
        self.interrupted = interrupted
        self.clock: Clock = parse_clock(lab.plan.clock)
        self.folder = lab.plan.directory
        self.tree_file = tree_file
        self.leaves = sorted(leaves({each.budget: each for each in read_tree(tree_file.read_bytes()).budgets}))
        self.caller = lab.gateway.user

    async def run(self) -> int:
        with Recorder(self.folder) as recorder:
            await recorder.listen(self.bus)
            start_synthetic(self.lab, self._synthetic_settings())
            await self._wait_until_ready()
            if self.interrupted.is_set():
                self.say("interrupted before the load began: there is nothing to judge")
                return 0
            began_ms = self.clock.now_ms()
            self._start_workload()
            await self._watch(recorder, began_ms)
            lasted_ms = self.clock.now_ms() - began_ms
            self.say("stopping the load, then the cluster; closing the books")
            await self.lab.programs["workload"].stop()
            await self.lab.programs["synthetic"].stop(patience_s=CLOSE_S)
            await self._wait_until_closed()
            recorder.flush()
            figures = await self._audit(lasted_ms)
        figures |= {"seed": self.plan.seed, "seconds": self.plan.seconds, "rate": self.plan.rate}
        if self.plan.json_file:
            self.plan.json_file.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
        session.console().print(summary.drawn(figures, recorder.refusals))
        return summary.verdict(figures)

    def _synthetic_settings(self) -> dict[str, str]:
        return {
            "CLUSTER": CLUSTER,
            "GPUS": str(self.plan.gpus),
            "GPUS_PER_NODE": str(GPUS_PER_NODE),
            "SEED": str(self.plan.seed),
            "TRUTH_FILE": str(self.folder / "truth.jsonl"),
        }

    def _start_workload(self) -> None:
        settings = {
            "SEED": str(self.plan.seed),
            "GPUS": str(self.plan.gpus),
            "LOG_FILE": str(self.folder / "workload.jsonl"),
            "CALLER": self.caller,
        }
        if self.plan.trace:
            settings |= {"TRACE": str(self.plan.trace.absolute()), "TRACE_FROM": self.plan.trace_from}
        environment = self.lab.environment(User("gateway", self.caller))
        environment |= {f"ALLMENDE_WORKLOAD_{key}": value for key, value in settings.items()}
        self.lab.start("workload", "allmende.agent.workload", environment, "run")

    async def _wait_until_ready(self) -> None:
        """Until admission knows tree, standings and all GPUs of the cluster: from then on it decides."""
        loop = asyncio.get_running_loop()
        until = loop.time() + READY_S
        why = "it has not answered yet"
        while loop.time() < until and not self.interrupted.is_set():
            try:
                page = await rpc.ask(self.bus, subjects.QUEUE, self.caller, QueueQuery(limit=1))
                healthy = sum(view.healthy_gpus for view in (await self._nodes()).nodes)
                assert isinstance(page, QueuePage)
                if page.ready and healthy == self.plan.gpus:
                    return
                why = "; ".join(page.not_ready) or f"{healthy} of {self.plan.gpus} GPUs have reported"
            except (Transient, Refusal) as error:
                why = str(error)
            await asyncio.sleep(0.1)
        if not self.interrupted.is_set():
            raise CommandFailed(Exit.UNREACHABLE, f"admission was not ready after {READY_S:.0f} s: {why}")

    async def _nodes(self) -> NodesPage:
        found: list[NodesPage] = []
        after: tuple[str, str] | None = None
        while not found or after is not None:
            page = await rpc.ask(self.bus, subjects.NODES, self.caller, NodesQuery(cluster=CLUSTER, after=after))
            assert isinstance(page, NodesPage)
            found.append(page)
            after = page.next_after
        return NodesPage(nodes=tuple(view for page in found for view in page.nodes))

    async def _watch(self, recorder: Recorder, began_ms: int) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.plan.seconds
        console = session.console()
        last_line = loop.time() - LINE_EVERY_S
        with Live(console=console, auto_refresh=False, transient=True) as screen:
            while (left := ends - loop.time()) > 0 and not self.interrupted.is_set():
                moment = await self._moment(recorder, began_ms)
                if moment and sys.stdout.isatty():
                    screen.update(live.panel(moment), refresh=True)
                elif moment and loop.time() - last_line >= LINE_EVERY_S:
                    last_line = loop.time()
                    self.say(live.line(moment))
                await _sleep_or(self.interrupted, min(LOOK_S, left))

    async def _moment(self, recorder: Recorder, began_ms: int) -> live.Moment | None:
        try:
            nodes = (await self._nodes()).nodes
            page = await rpc.ask(self.bus, subjects.QUEUE, self.caller, QueueQuery(limit=1))
        except (Transient, Refusal):
            # A service that is just being restarted: the screen keeps its last picture.
            return None
        assert isinstance(page, QueuePage)
        return live.Moment(
            elapsed_ms=self.clock.now_ms() - began_ms,
            healthy=sum(view.healthy_gpus for view in nodes),
            held=sum(view.held_gpus for view in nodes),
            waiting=page.waiting,
            submitted=recorder.submitted,
            started=recorder.counts[AttemptProtected],
            ended=recorder.counts[JobEnded],
            evicted=recorder.counts[EvictionOrdered],
            standings=recorder.standings,
            leaves=self.leaves,
        )

    async def _wait_until_closed(self) -> None:
        """Until the ledger has posted every end. The audit finds what is missing, so a time-out here is not the end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_S
        while loop.time() < until:
            try:
                state = await rpc.ask(self.bus, subjects.LEDGER_STATE, self.caller, LedgerStateQuery(cluster=CLUSTER))
                assert isinstance(state, LedgerState)
                if state.open_attempts == 0 and state.unattributed_counters == 0:
                    return
            except (Transient, Refusal):
                pass
            await asyncio.sleep(0.1)
        self.say(f"the ledger still has open attempts after {CLOSE_S:.0f} s")

    async def _audit(self, lasted_ms: int) -> dict[str, object]:
        postings = self.folder / "postings.jsonl"
        await self._write_postings(postings)
        warm_up = str(WARM_UP_MS if lasted_ms > 2 * WARM_UP_MS else 0)
        files = {
            "--truth": self.folder / "truth.jsonl",
            "--postings": postings,
            "--protected": self.folder / "protected.jsonl",
            "--evictions": self.folder / "evictions.jsonl",
            "--workload": self.folder / "workload.jsonl",
        }
        # A load that was interrupted as it started has written nothing.
        arguments = [text for option, path in files.items() if path.exists() for text in (option, str(path))]
        output = await _output(python("allmende.agent.audit", *arguments, "--warmup-ms", warm_up), "the audit")
        return msgspec.json.decode(output, type=dict[str, object])

    async def _write_postings(self, path: Path) -> None:
        after: int | None = 0
        with path.open("wb") as file:
            while after is not None:
                page = await self._postings(after)
                file.writelines(msgspec.json.encode(posting) + b"\n" for posting in page.postings)
                after = page.next_after

    async def _postings(self, after: int) -> PostingsPage:
        """One page, patiently: the ledger may just be starting again.

        Raises:
            CommandFailed: it stayed away.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_S
        while True:
            try:
                page = await rpc.ask(self.bus, subjects.POSTINGS, self.caller, PostingsQuery(cluster=CLUSTER, after=after))
                assert isinstance(page, PostingsPage)
                return page
            except Transient as error:
                if loop.time() > until:
                    raise CommandFailed(Exit.UNREACHABLE, f"the ledger does not answer for its postings: {error}") from error
                await asyncio.sleep(0.1)


async def _write_tree(plan: DemoPlan, folder: Path) -> Path:
    trace = ("--trace", str(plan.trace)) if plan.trace else ()
    command = python("allmende.agent.workload", "tree", "--seed", str(plan.seed), *trace)
    output = await _output(command, "the workload's tree of shares", Exit.USAGE if trace else Exit.REFUSED)
    path = folder / "budgets.toml"
    path.write_bytes(output)
    return path


async def _output(command: Sequence[str], what: str, failed: Exit = Exit.REFUSED) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=base_environment(environment())
    )
    output, errors = await process.communicate()
    if process.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise CommandFailed(failed, f"{what} failed: {last}")
    return output


async def _sleep_or(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _sayer() -> Say:
    console = session.console()

    def say(words: str) -> None:
        console.print(words)

    return say


@asynccontextmanager
async def _folder(plan: DemoPlan) -> AsyncIterator[Path]:
    if plan.folder:
        if plan.folder.exists() and any(plan.folder.iterdir()):
            raise CommandFailed(Exit.USAGE, f"{plan.folder} is not empty: the demo keeps its data in a new folder")
        plan.folder.mkdir(parents=True, exist_ok=True)
        yield plan.folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="allmende-demo-") as folder:
        yield Path(folder)
