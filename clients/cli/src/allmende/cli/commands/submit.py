"""`allmende submit`: hand in a job and say what became of it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from allmende.chassis.errors import Refused, Transient
from allmende.cli import render, session
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto.admission import JobQueued, JobRefused
from allmende.proto.envelope import Envelope, Refusal, decode, encode
from allmende.proto.message import Message, MessageRefused, Problem
from allmende.proto.misfit import in_words
from allmende.proto.subjects import BY_MESSAGE, subject_of
from allmende.proto.units import Ms, format_duration, parse_duration
from allmende.proto.user import MAX_ARRAY, MAX_GPUS_PER_REPLICA, MAX_REPLICAS, JobSubmitted, Payload

# As in the message: `JobSubmitted.name`.
LONGEST_NAME = 200


class Submitted(Struct, frozen=True, kw_only=True):
    """What `--json` prints. `budget` is who pays, None for nobody.

    `answer` is `queued`, `refused`, or `stored` while nobody has answered: the job is not lost, admission is late.
    """

    job: str
    answer: str
    budget: str | None = None
    problem: Problem | None = None
    warnings: tuple[Problem, ...] = ()


def duration(text: str) -> Ms:
    """Read a duration of the command line."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def submit(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, after `--`.", show_default=False)],
    budget: Annotated[
        str | None, session.name_option("The budget that pays. Without one the job runs unallocated.", "BUDGET")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, max=MAX_GPUS_PER_REPLICA, help="GPUs per replica; one replica runs on one node.")] = 1,
    replicas: Annotated[int, typer.Option(min=1, max=MAX_REPLICAS, help="Replicas; they start together or not at all.")] = 1,
    slice_: Annotated[
        str, typer.Option("--slice", help="Minimum runtime, protected once started: 30m, 8h. 0 runs unallocated.")
    ] = "0",
    runtime: Annotated[str | None, typer.Option(help="How long you expect it to run; used for warnings and estimates.")] = None,
    max_runtime: Annotated[str | None, typer.Option(help="Stop it after this long.")] = None,
    name: Annotated[str, typer.Option(help="A name for people.")] = "",
    cluster: Annotated[
        list[str] | None, session.name_option("Only on this cluster; may be given several times.", "CLUSTER")
    ] = None,
    model: Annotated[str | None, session.name_option("Only on GPUs of this model, as `allmende nodes` prints it.", "MODEL")] = None,
    priority: Annotated[int, typer.Option(min=-1000, max=1000, help="Orders jobs inside your budget only.")] = 0,
    resumable: Annotated[bool, typer.Option(help="Whether the job can go on from a checkpoint after an eviction.")] = True,
    session_kind: Annotated[bool, typer.Option("--session", help="Interactive work rather than a batch job.")] = False,
    unallocated_ok: Annotated[bool, typer.Option(help="Run unallocated if no budget covers it, instead of a refusal.")] = False,
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for the job's environment; may be given several times.")] = None,
    array: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_ARRAY, metavar="N", help="N such jobs; each finds its number, from 0, in ALLMENDE_ARRAY_INDEX."
        ),
    ] = None,
    directory: Annotated[Path | None, typer.Option(help="Where the command starts.")] = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Submit a job, and say whether it was accepted.

    For example: allmende submit --budget vision --gpus 8 --slice 2h -- python train.py
    """
    if len(name) > LONGEST_NAME:
        raise typer.BadParameter(f"a name has at most {LONGEST_NAME} letters, this one {len(name)}", param_hint="--name")
    payload = Payload(
        command=tuple(command), environment=environment_of(env or []), directory=str(directory) if directory else None
    )
    protected_ms = duration(slice_)
    job: dict[str, object] = {
        "name": name,
        "budget": budget,
        "clusters": cluster or [],
        "replicas": replicas,
        "gpus_per_replica": gpus,
        "gpu_model": model,
        "priority": priority,
        "resumable": resumable,
        "kind": "session" if session_kind else "batch",
        "may_run_unallocated": unallocated_ok,
        "payload": payload,
        "slice_ms": protected_ms,
        "stated_runtime_ms": None if runtime is None else duration(runtime),
        "max_runtime_ms": None if max_runtime is None else duration(max_runtime),
    }
    if array is not None:
        job["array"] = array
    outcome = session.run(_submit(lab, job))
    words = _in_words(outcome, protected_ms if outcome.budget else 0, array)
    session.show(outcome, words, as_json)
    if outcome.problem:
        raise typer.Exit(int(Exit.REFUSED))


async def _submit(lab: Path | None, job: Mapping[str, object]) -> Submitted:
    async with session.opened(lab) as lab_session:
        return await hand_in(lab_session, job_of(lab_session, job), lab_session.now_ms())


def job_of(lab_session: Session, job: Mapping[str, object]) -> JobSubmitted:
    """A new job of this user, of the fields of `JobSubmitted`.

    Raises:
        CommandFailed: it breaks the wire's own rules: what they refuse here would be refused there, only later.
    """
    fields = dict(job) | {"user": lab_session.place.user, "job": lab_session.ids.new(lab_session.now_ms())}
    try:
        return msgspec.convert(fields, JobSubmitted)
    except msgspec.ValidationError as error:
        raise CommandFailed(Exit.USAGE, f"the job cannot be submitted like this: {in_words(error)}") from None


async def hand_in(lab_session: Session, body: JobSubmitted, now_ms: Ms) -> Submitted:
    """Submit a job, and wait for admission's answer.

    Raises:
        CommandFailed: it was not stored, or nobody knows.
    """
    answer: asyncio.Future[Submitted] = asyncio.get_running_loop().create_future()

    def hear(_subject: str, data: bytes) -> None:
        heard = _read(data, body.job, envelope.id)
        if heard and not answer.done():
            answer.set_result(heard)

    envelope: Envelope[Message] = Envelope(
        id=lab_session.ids.new(now_ms),
        type=body.TYPE,
        version=body.VERSION,
        occurred_at_ms=now_ms,
        sent_at_ms=now_ms,
        body=body,
    )
    # Listening starts before the job is said, or a quick answer would be missed.
    for message in (JobQueued, JobRefused):
        await lab_session.bus.watch(f"{BY_MESSAGE[message].prefix}.{body.user}.{body.job}", hear)
    await lab_session.bus.watch(f"{BY_MESSAGE[MessageRefused].prefix}.*.{body.user}", hear)
    try:
        await lab_session.bus.publish(subject_of(body), envelope.id, encode(envelope))
        return await asyncio.wait_for(answer, session.PATIENCE_S)
    except Refused as refused:
        raise CommandFailed(Exit.REFUSED, str(refused), refused.code) from None
    except Refusal as refusal:
        raise CommandFailed(Exit.USAGE, refusal.problem.sentence, refusal.problem.code) from None
    except Transient:
        raise CommandFailed(
            Exit.UNREACHABLE, f"it is unknown whether job {body.job} was stored: look with `allmende jobs`"
        ) from None
    except TimeoutError:
        return Submitted(job=body.job, answer="stored")


def _read(data: bytes, job: str, message: str) -> Submitted | None:
    try:
        body = decode(data).body
    except Refusal:
        return None
    if isinstance(body, JobQueued) and body.job == job:
        return Submitted(job=job, answer="queued", budget=body.budget, warnings=body.warnings)
    if isinstance(body, JobRefused) and body.job == job:
        return Submitted(job=job, answer="refused", problem=body.problem)
    if isinstance(body, MessageRefused) and body.message == message:
        return Submitted(job=job, answer="refused", problem=body.problem)
    return None


def _in_words(outcome: Submitted, protected_ms: Ms, array: int | None = None) -> str:
    lines = []
    if outcome.problem:
        lines.append(f"refused: {outcome.problem.sentence} [{outcome.problem.code}]")
    elif outcome.answer == "stored":
        lines.append(f"{outcome.job} is stored, but admission has not answered yet. It is not lost: `allmende why {outcome.job}`")
    else:
        promise = "unallocated: may be interrupted at any time"
        if protected_ms:
            promise = f"protected for {format_duration(protected_ms)} once it starts"
        jobs = "" if array is None else f", the first of {array} jobs: `allmende jobs --array {render.short(outcome.job)}`"
        lines.append(f"{outcome.job} queued ({promise}){jobs}")
    lines.extend(f"warning: {warning.sentence}" for warning in outcome.warnings)
    return "\n".join(lines)


def environment_of(pairs: list[str]) -> dict[str, str]:
    """The variables of KEY=VALUE options."""
    environment = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE")
        environment[key] = value
    return environment
