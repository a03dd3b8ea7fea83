"""`allmende run`: a command as it would run here, on GPUs that the lab grants. Waits, shows its output, ends with its exit code."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from allmende.cli import render, session
from allmende.cli.commands.submit import LONGEST_NAME, duration, environment_of, hand_in, job_of
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.place import environment
from allmende.cli.session import LabOption, Session
from allmende.proto import subjects
from allmende.proto.admission import JobEnded, JobOutcome, JobRefused, WhyQuery, WhyReply
from allmende.proto.commands import CancelJob, Cancelled
from allmende.proto.envelope import Refusal, decode
from allmende.proto.subjects import BY_MESSAGE
from allmende.proto.user import MAX_GPUS_PER_REPLICA, Payload

# As quick as a person reads; a look is one listing of a folder.
LOOK_S = 0.05
# How often admission is asked besides: what it says in an outage of the bus is heard by nobody.
ASK_S = 5.0
# For so long an order to stop is said again while nobody answers: as long as a service takes that is started anew.
STOP_FOR_S = 60.0
# Nobody is told that a job waits which starts at once.
QUIET_S = 2.0
PIECE_BYTES = 65_536
# timeout(1), sysexits.h's EX_TEMPFAIL, and a shell's word for Ctrl-C.
TIMED_OUT, TRY_AGAIN, INTERRUPTED = 124, 75, 130
# What a command needs to be found and to speak as it does here. Everything else may be a secret, and travels only when asked to.
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH")


class Ran(Struct, frozen=True, kw_only=True):
    """What `--json` prints on standard error at the end. `exit_code` is that of `allmende run`."""

    job: str
    outcome: JobOutcome
    exit_code: int


class Unread(Exception):
    """The output of the command is taken by nobody: the pipe or the terminal is closed, or a disk is full.

    A command that ran here would be ended by that (a pipe), or be told by its own write; so it is stopped.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"its output cannot be written ({error.strerror or error})")
        self.exit_code = Exit.UNREAD if isinstance(error, BrokenPipeError) else Exit.UNWRITTEN


class Output:
    """The output of a job's attempts, as the process agent of this machine writes it: a file an attempt."""

    def __init__(self, folder: Path | None, job: str, write: Callable[[bytes], object]) -> None:
        self._folder = folder / job if folder else None
        self._write = write
        self._read: dict[Path, int] = {}

    @property
    def seen(self) -> bool:
        """True once there is a file."""
        return bool(self._read)

    def copy(self) -> None:
        """Hand on what is new, in bounded pieces."""
        if self._folder is None or not self._folder.is_dir():
            return
        # Ids of attempts sort by their time.
        for path in sorted(self._folder.glob("*.log")):
            with path.open("rb") as log:
                log.seek(self._read.setdefault(path, 0))
                while piece := log.read(PIECE_BYTES):
                    self._read[path] += len(piece)
                    self._write(piece)


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, after `--`.", show_default=False)],
    budget: Annotated[
        str | None, session.name_option("The budget that pays. Without one the job runs unallocated.", "BUDGET")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, max=MAX_GPUS_PER_REPLICA, help="GPUs, on one node.")] = 1,
    slice_: Annotated[
        str, typer.Option("--slice", help="Minimum runtime, protected once started: 30m, 8h. 0 runs unallocated.")
    ] = "0",
    max_runtime: Annotated[str | None, typer.Option(help="Stop it after this long (exit code 124).")] = None,
    name: Annotated[str, typer.Option(help="A name for people.")] = "",
    cluster: Annotated[
        list[str] | None, session.name_option("Only on this cluster; may be given several times.", "CLUSTER")
    ] = None,
    model: Annotated[str | None, session.name_option("Only on GPUs of this model, as `allmende nodes` prints it.", "MODEL")] = None,
    priority: Annotated[int, typer.Option(min=-1000, max=1000, help="Orders jobs inside your budget only.")] = 0,
    resumable: Annotated[
        bool, typer.Option(help="Whether it can go on from a checkpoint after an eviction; else it ends then (exit code 75).")
    ] = False,
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for its environment; may be given several times.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Where it starts; here, if not given.")] = None,
    lab: LabOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="At the end, one line of JSON on standard error.")] = False,
) -> None:
    """Run a command on granted GPUs as if it ran here.

    Shows its output, passes Ctrl-C on, and ends with its exit code. For example: allmende run --gpus 1 --slice 1h --budget vision
    -- python train.py
    """
    if len(name) > LONGEST_NAME:
        raise typer.BadParameter(f"a name has at most {LONGEST_NAME} letters, this one {len(name)}", param_hint="--name")
    here = {key: value for key, value in environment().items() if key in PASSED_ON}
    payload = Payload(
        command=tuple(command), environment=here | environment_of(env or []), directory=str((directory or Path()).absolute())
    )
    job = {
        "name": name,
        "budget": budget,
        "clusters": cluster or [],
        "gpus_per_replica": gpus,
        "gpu_model": model,
        "priority": priority,
        "resumable": resumable,
        "payload": payload,
        "slice_ms": duration(slice_),
        "max_runtime_ms": None if max_runtime is None else duration(max_runtime),
    }
    ran = session.run(_run(lab, job))
    if as_json:
        typer.echo(msgspec.json.encode(ran), err=True)
    raise typer.Exit(ran.exit_code)


async def _run(lab: Path | None, job: Mapping[str, object]) -> Ran:
    async with session.opened(lab) as opened:
        body = job_of(opened, job)
        waiting = _Waiting(opened, body.job)
        for message in (JobEnded, JobRefused):
            await opened.bus.watch(f"{BY_MESSAGE[message].prefix}.{body.user}.{body.job}", waiting.hear)
        # Whoever starts it with nohup wants it to outlive the terminal.
        hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
            asyncio.get_running_loop().add_signal_handler(number, waiting.interrupt)
        outcome = await hand_in(opened, body, opened.now_ms())
        for warning in outcome.warnings:
            _tell(f"warning: {warning.sentence}")
        if outcome.problem:
            raise CommandFailed(Exit.REFUSED, outcome.problem.sentence, outcome.problem.code)
        return await waiting.until_ended()


class _Waiting:
    """One job that somebody waits for at a terminal."""

    def __init__(self, opened: Session, job: str, stop_for_s: float = STOP_FOR_S) -> None:
        self._opened, self._job, self._stop_for_s = opened, job, stop_for_s
        folder = opened.place.output
        self._output = Output(Path(folder) if folder else None, job, _show)
        self._ended: tuple[JobOutcome, int | None] | None = None
        self._refused: CommandFailed | None = None
        self._stir = asyncio.Event()
        self._interrupts = 0
        self._cancelled = False
        self._cancel_again_at: float | None = None
        self._cancel_until = 0.0
        self._told = False

    def hear(self, _subject: str, data: bytes) -> None:
        """The end of the job, from the bus."""
        try:
            body = decode(data).body
        except Refusal:
            return
        if isinstance(body, JobRefused) and body.job == self._job:
            self._refused = CommandFailed(Exit.REFUSED, body.problem.sentence, body.problem.code)
        elif isinstance(body, JobEnded) and body.job == self._job:
            self._ended = body.outcome, body.exit_code
        self._stir.set()

    def interrupt(self) -> None:
        """Ctrl-C: once cancels the job, twice leaves it to end alone."""
        self._interrupts += 1
        self._stir.set()

    async def until_ended(self) -> Ran:
        """Show its output until it has ended."""
        loop = asyncio.get_running_loop()
        began = asked = loop.time()
        while self._ended is None:
            if self._refused is not None:
                # It had been queued: what it asks for was known to be impossible only later.
                raise self._refused
            try:
                self._output.copy()
            except Unread as unread:
                await self._cancel(loop.time())
                raise self._left(unread.exit_code) from None
            if self._interrupts:
                await self._cancel(loop.time())
                if self._interrupts > 1 or (not self._cancelled and loop.time() > self._cancel_until):
                    raise self._left(Exit.UNREACHABLE)
            if loop.time() - asked > ASK_S or (not self._told and not self._output.seen and loop.time() - began > QUIET_S):
                asked = loop.time()
                await self._ask()
            await self._pause()
        outcome, code = self._ended
        try:
            self._output.copy()
        except Unread as unread:
            raise CommandFailed(unread.exit_code, f"job {self._job} has ended, but {unread}") from None
        self._explain(outcome)
        return Ran(job=self._job, outcome=outcome, exit_code=exit_code(outcome, code))

    async def _pause(self) -> None:
        self._stir.clear()
        try:
            async with asyncio.timeout(LOOK_S):
                await self._stir.wait()
        except TimeoutError:
            return

    async def _cancel(self, now_s: float) -> None:
        """Tell it to stop, for a while again where nobody has heard it: a job that runs on unseen is worse than a late end."""
        if self._cancelled or (self._cancel_again_at is not None and now_s < self._cancel_again_at):
            return
        first = self._cancel_again_at is None
        if first:
            self._cancel_until = now_s + self._stop_for_s
            _tell("telling it to stop; Ctrl-C once more leaves it to its grace")
        self._cancel_again_at = now_s + ASK_S
        try:
            await self._opened.ask(subjects.CANCEL, CancelJob(job=self._job), Cancelled)
            self._cancelled = True
        except CommandFailed as failed:
            if first:
                _tell(str(failed))

    def _left(self, code: Exit) -> CommandFailed:
        if self._cancelled:
            return CommandFailed(code, f"left job {self._job}, which was told to stop and has its grace")
        return CommandFailed(code, f"left job {self._job}, which may run on: stop it with `allmende cancel {self._job}`")

    async def _ask(self) -> None:
        """What became of it, from admission: the bus may have been away when it said so. And, once, what it waits for."""
        try:
            reply = await self._opened.ask(subjects.WHY, WhyQuery(job=self._job), WhyReply)
        except CommandFailed:
            return
        if reply.job.outcome == "refused":
            self._refused = CommandFailed(Exit.REFUSED, reply.decisions[-1].sentence if reply.decisions else "it was refused")
        elif reply.job.state == "ended" and reply.job.outcome is not None and self._ended is None:
            self._ended = reply.job.outcome, None
            if reply.job.outcome == "failed" and reply.decisions:
                # Only its end says the code as a number, and that was missed: a laptop that slept, a bus that was away.
                _tell(f"{self._job} ended, and its exit code was missed: {reply.decisions[-1].sentence}")
        elif reply.job.state == "queued" and not self._told:
            self._told = True
            _tell(f"{self._job} waits: {reply.blockers[0].sentence if reply.blockers else 'it is next in line'}")
        elif reply.job.state == "running" and reply.job.latest is not None and not self._told and not self._output.seen:
            self._told = True
            where = f"{reply.job.latest.cluster}/{reply.job.latest.placement[0].node}"
            _tell(f"{self._job} runs on {where}, and its output stays there: this is another machine, or its agent keeps none")

    def _explain(self, outcome: JobOutcome) -> None:
        words = {
            "preempted": "it was evicted; with --resumable it would start again",
            "max_runtime": "it was stopped at its maximum runtime",
            "cancelled": "it was cancelled",
        }
        if outcome in words:
            _tell(f"{self._job} ended: {words[outcome]}")


def exit_code(outcome: JobOutcome, code: int | None) -> int:
    """What `allmende run` ends with."""
    special: dict[JobOutcome, int] = {"cancelled": INTERRUPTED, "preempted": TRY_AGAIN, "max_runtime": TIMED_OUT}
    if outcome in special:
        return special[outcome]
    return code if code is not None else int(outcome != "finished")


def _show(piece: bytes) -> None:
    """Hand output on.

    Raises:
        Unread: nobody takes it any more.
    """
    try:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except OSError as error:
        # What is left in the buffer would fail once more at the end of this process, and with a traceback.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise Unread(error) from None


def _tell(words: str) -> None:
    # The terminal may be gone, and what is on its way, such as an order to stop, is not to fail with it.
    with suppress(OSError):
        typer.echo(render.harmless(f"allmende: {words}"), err=True)
