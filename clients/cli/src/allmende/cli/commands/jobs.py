"""`allmende queue`, `jobs`, `why`, `cancel`, `hold`, `release` and `change`: what waits, what runs, and for which reason."""

from pathlib import Path
from typing import Annotated, TypeVar, get_args

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType

from allmende.cli import render, session
from allmende.cli.commands.paging import SHORTEST_END
from allmende.cli.commands.submit import duration
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session, WatchOption
from allmende.proto import subjects
from allmende.proto.admission import (
    Ahead,
    AttemptSummary,
    Decision,
    JobsPage,
    JobsQuery,
    JobState,
    JobSummary,
    QueueEntry,
    QueuePage,
    QueueQuery,
    WhyQuery,
    WhyReply,
)
from allmende.proto.commands import CancelJob, Cancelled, Changed, ChangeJob
from allmende.proto.subjects import Request
from allmende.proto.units import Ms, format_duration

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job's id, or its end as the tables print it.", show_default=False)
]
ArrayOption = Annotated[bool, typer.Option("--array", help="And all others of its array.")]
# The whole name stands in `why` and in --json.
LONGEST_NAME = 30

OfMany = TypeVar("OfMany", Cancelled, Changed)


def queue(
    cluster: Annotated[str | None, session.name_option("Only jobs that this cluster may start.", "CLUSTER")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many from the head of the queue.")] = 30,
    explain: Annotated[bool, typer.Option("--explain", help="All that each job waits for, not only the first.")] = False,
    lab: LabOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """Show who waits, in the order of service. RATIO is the number that sorts the queue: the least served come first."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            opened.check_cluster(cluster)

            async def fetch() -> tuple[Struct, RenderableType]:
                page = await opened.ask(subjects.QUEUE, QueueQuery(cluster=cluster, limit=limit), QueuePage)
                return page, _queue_table(page, opened.now_ms(), explain)

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


def _queue_table(page: QueuePage, now_ms: Ms, explain: bool) -> RenderableType:
    title = "1 job waits" if page.waiting == 1 else f"{page.waiting or 'no'} jobs wait"
    if len(page.entries) < page.waiting:
        title += f"; the first {len(page.entries)}:"
    if not page.ready:
        title += "; admission decides nothing yet: " + "; ".join(page.not_ready)
    columns = ("PLACE#", "JOB", "BUDGET", "RATIO#", "TIER?", "USER?", "GPUS#", "SLICE#?", "WAITS#", "BECAUSE~")
    return render.table(title, columns, (_queue_row(entry, now_ms, explain) for entry in page.entries))


def _queue_row(entry: QueueEntry, now_ms: Ms, explain: bool) -> tuple[str, ...]:
    told = entry.blockers if explain else entry.blockers[:1]
    return (
        str(entry.position + 1),
        render.short(entry.job),
        entry.budget or "(unallocated)",
        render.ratio(entry.used_gpu_ms, entry.entitlement_gpu_ms),
        entry.tier,
        entry.user,
        str(entry.gpus),
        format_duration(entry.slice_ms),
        format_duration(max(0, now_ms - entry.submitted_at_ms)),
        "; ".join(blocker.sentence for blocker in told) or "next in line",
    )


def jobs(
    user: Annotated[str | None, session.name_option("Only this person's jobs.", "USER")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only your own jobs.")] = False,
    budget: Annotated[str | None, session.name_option("Only jobs of this budget.", "BUDGET")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help=f"Only this state: {', '.join(get_args(JobState))}, whatever the outcome; repeatable."),
    ] = None,
    array: Annotated[
        str | None, typer.Option("--array", metavar="JOB", help="Only the jobs of this job's array.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many, newest first.")] = 30,
    lab: LabOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """List jobs, newest first."""
    states = tuple(state or ())
    if unknown := [each for each in states if each not in get_args(JobState)]:
        raise typer.BadParameter(f"{unknown[0]!r} is not a state; there are {', '.join(get_args(JobState))}", param_hint="--state")

    async def work() -> None:
        async with session.opened(lab) as opened:
            whose = opened.place.user if mine else user
            of = None if array is None else _checked(array)
            query = JobsQuery(user=whose, budget=budget, array=of, states=states, limit=limit)  # type: ignore[arg-type]  # checked above

            async def fetch() -> tuple[Struct, RenderableType]:
                page = await opened.ask(subjects.JOBS, query, JobsPage)
                return page, _jobs_table(page, opened.now_ms())

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


def _jobs_table(page: JobsPage, now_ms: Ms) -> RenderableType:
    columns = ("JOB", "STATE", "BUDGET", "GPUS#", "SUBMITTED", "USER?", "PROTECTED?", "SLICE#?", "ON?", "ATTEMPTS#?", "NAME?")
    title = "jobs, newest first" if page.jobs else "no such jobs"
    if page.next_before:
        title += f"; the newest {len(page.jobs)}, more with --limit"
    return render.table(title, columns, (_job_row(job, now_ms) for job in page.jobs))


def _job_row(job: JobSummary, now_ms: Ms) -> tuple[str, ...]:
    latest = job.latest
    return (
        render.short(job.job),
        job.outcome or ("held" if job.held else job.state),
        job.budget or "(unallocated)",
        str(job.gpus),
        render.ago(job.submitted_at_ms, now_ms),
        job.user,
        _protection(latest, job.state, now_ms),
        format_duration(job.slice_ms),
        _nodes(latest) if latest and job.state != "queued" else "-",
        str(job.attempts),
        _cut(job.name, LONGEST_NAME) + _place(job) or "-",
    )


def _place(job: JobSummary) -> str:
    return "" if job.array is None else f" [{job.array.index} of {job.array.size}]"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _protection(attempt: AttemptSummary | None, state: str, now_ms: Ms) -> str:
    if attempt is None or attempt.protected_until_ms is None or state != "running":
        return "-"
    if attempt.protected_until_ms <= now_ms:
        return "interruptible"
    return f"for {format_duration(attempt.protected_until_ms - now_ms)}"


def _nodes(attempt: AttemptSummary) -> str:
    first = attempt.placement[0].node
    return f"{attempt.cluster}/{first}" + (f" +{len(attempt.placement) - 1}" if len(attempt.placement) > 1 else "")


def why(job: JobArgument, lab: LabOption = None, as_json: JsonOption = False, watch: WatchOption = False) -> None:
    """Tell why a job waits, runs or ended. Shows the stored decisions with their numbers."""
    _check_end(job)

    async def work() -> None:
        async with session.opened(lab) as opened:

            async def fetch() -> tuple[Struct, RenderableType]:
                reply = await opened.ask(subjects.WHY, WhyQuery(job=job), WhyReply)
                return reply, _story(reply, opened.now_ms())

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


def _story(reply: WhyReply, now_ms: Ms) -> RenderableType:
    job = reply.job
    head = [
        f"{job.job} {job.name}{_place(job)}".rstrip(),
        f"{job.user} asked for {_shape(job)}, {render.ago(job.submitted_at_ms, now_ms)}",
        f"slice {format_duration(job.slice_ms)}, {'budget ' + job.budget if job.budget else 'unallocated'}",
        _state_line(reply, now_ms),
    ]
    parts: list[RenderableType] = ["\n".join(head)]
    if reply.blockers:
        rows = [(blocker.code, blocker.sentence) for blocker in reply.blockers]
        parts += ["", render.table("what it waits for", ("BLOCKER", "IN NUMBERS~"), rows)]
    if reply.ahead:
        columns = ("PLACE#", "JOB", "BUDGET", "RATIO#", "BY WHICH RULE~")
        parts += ["", render.table("who stands before it, nearest first", columns, map(_ahead_row, reply.ahead))]
    if reply.decisions:
        rows_of = (_decision_row(decision, now_ms) for decision in reply.decisions)
        parts += ["", render.table("what was decided, oldest first", ("WHEN", "WHAT", "WHY~", "REVISIONS?"), rows_of)]
    return Group(*parts)


def _ahead_row(before: Ahead) -> tuple[str, ...]:
    ratio = render.ratio(before.used_gpu_ms, before.entitlement_gpu_ms)
    return str(before.position + 1), render.short(before.job), before.budget or "(unallocated)", ratio, before.sentence


def _shape(job: JobSummary) -> str:
    gpus = render.count(job.gpus, "GPU")
    return gpus if job.replicas == 1 else f"{gpus} (replicas: {job.replicas} x {job.gpus // job.replicas})"


def _state_line(reply: WhyReply, now_ms: Ms) -> str:
    job = reply.job
    if job.state == "queued":
        place = f"place {reply.position + 1} in the queue" if reply.position is not None else "not in the order yet"
        if reply.used_gpu_ms is None:
            return f"waits: {place}"
        return f"waits: {place}, its budget at {render.ratio(reply.used_gpu_ms, reply.entitlement_gpu_ms)} of what it is owed"
    if job.state == "ended":
        return f"ended: {job.outcome}"
    where = f" on {_nodes(job.latest)}" if job.latest else ""
    protection = _protection(job.latest, job.state, now_ms)
    said = {"-": "", "interruptible": ", may be interrupted now"}.get(protection, f", protected {protection}")
    return f"{job.state}{where}{said}"


def _decision_row(decision: Decision, now_ms: Ms) -> tuple[str, ...]:
    tree, usage = decision.tree_revision, decision.usage_revision
    revisions = f"tree {tree}, usage {usage}" if tree is not None and usage is not None else ""
    return (render.ago(decision.at_ms, now_ms), decision.kind, decision.sentence, revisions)


_OF_ONE = {
    "ended": "{job} is cancelled",
    "ending": "{job} was told to stop; it has its grace to leave",
    "already_ended": "{job} had already ended",
}
_OF_ARRAY = {
    "ended": "{jobs} of the array of {job} cancelled",
    "ending": "{jobs} of the array of {job} cancelled; what runs has its grace to leave",
    "already_ended": "all jobs of the array of {job} had already ended",
}


def cancel(job: JobArgument, array: ArrayOption = False, lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Cancel one of your jobs, waiting or running."""
    _check_end(job)

    async def work() -> None:
        async with session.opened(lab) as opened:
            request = CancelJob(job=job, array=array)
            reply = await _to_the_last(opened, subjects.CANCEL, request, Cancelled)
            words = _OF_ARRAY if array else _OF_ONE
            session.show(reply, words[reply.status].format(job=reply.job, jobs=render.count(reply.jobs, "job")), as_json)

    session.run(work())


def hold(job: JobArgument, array: ArrayOption = False, lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Keep one of your waiting jobs from starting. It keeps its place."""
    _change(ChangeJob(job=_checked(job), array=array, held=True), lab, as_json)


def release(job: JobArgument, array: ArrayOption = False, lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Let a job that is held start again, in its place."""
    _change(ChangeJob(job=_checked(job), array=array, held=False), lab, as_json)


def change(
    job: JobArgument,
    priority: Annotated[int | None, typer.Option(min=-1000, max=1000, help="Orders jobs inside your budget only.")] = None,
    slice_: Annotated[str | None, typer.Option("--slice", help="Minimum runtime: 30m, 8h. 0 runs unallocated.")] = None,
    array: ArrayOption = False,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the priority or the slice of one of your waiting jobs."""
    if priority is None and slice_ is None:
        raise typer.BadParameter("say what to change: --priority or --slice")
    slice_ms = None if slice_ is None else duration(slice_)
    _change(ChangeJob(job=_checked(job), array=array, priority=priority, slice_ms=slice_ms), lab, as_json)


def _change(request: ChangeJob, lab: Path | None, as_json: bool) -> None:
    async def work() -> None:
        async with session.opened(lab) as opened:
            reply = await _to_the_last(opened, subjects.CHANGE, request, Changed)
            held = ", held" if reply.held else ""
            now = f"priority {reply.priority}, slice {format_duration(reply.slice_ms)}{held}"
            who = reply.job if not request.array else f"{render.count(reply.jobs, 'waiting job')} of the array of {reply.job}"
            is_now = "was already" if reply.status == "unchanged" else "is" if reply.jobs == 1 else "are"
            session.show(reply, f"{who} {is_now}: {now}", as_json)

    session.run(work())


async def _to_the_last(opened: Session, row: Request, request: CancelJob | ChangeJob, reply: type[OfMany]) -> OfMany:
    """The last answer, with the jobs of all: it is asked again while jobs of an array are left."""
    told = await opened.ask(row, request, reply)
    while told.left:
        more = await opened.ask(row, request, reply)
        told = replace(more, jobs=told.jobs + more.jobs)
    return told


def _checked(job: str) -> str:
    _check_end(job)
    return job


def _check_end(job: str) -> None:
    if len(job) < SHORTEST_END:
        sentence = f"{job!r} is too short: give at least the last {SHORTEST_END} letters of a job's id; `allmende jobs` lists them"
        session.fail(CommandFailed(Exit.USAGE, sentence))
