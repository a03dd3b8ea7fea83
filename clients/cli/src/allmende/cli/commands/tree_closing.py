"""`allmende budgets close`: one leaf leaves the tree for good, and its jobs go to another one (decision 0029)."""

from typing import Annotated

from msgspec import Struct

from allmende.cli import session
from allmende.cli.commands import writes
from allmende.cli.commands.tree import fetch_tree
from allmende.cli.commands.tree_writes import BudgetArgument, ExpectOption, ReasonOption
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session, name_option
from allmende.proto import subjects
from allmende.proto.admission import JobsPage, JobsQuery, JobState
from allmende.proto.budget import CloseBudget, WriteReply

# One reply lists no more; beyond that nobody needs to know exactly how many there are.
LISTED_MAX = 100
WAITING: tuple[JobState, ...] = ("queued",)
RUNNING: tuple[JobState, ...] = ("starting", "running", "ending")


class Jobs(Struct, frozen=True, kw_only=True):
    """The jobs of a budget, and the clusters on which some of them run. `more`: a reply did not list all of them."""

    waiting: int
    running: int
    clusters: tuple[str, ...]
    more: bool


class Closed(Struct, frozen=True, kw_only=True):
    """What `close --json` prints. `jobs`: those it had a moment before; None: admission did not say, and that is not zero."""

    revision: int
    budget: str
    jobs_to: str
    jobs: Jobs | None


def close(
    budget: BudgetArgument,
    reason: ReasonOption,
    jobs_to: Annotated[str | None, name_option("The leaf in which its waiting jobs go on. Refused without.", "BUDGET")] = None,
    expect: ExpectOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a leaf out of the tree for good, and say where its jobs go.

    What waits goes on under the other budget, in its place. What runs keeps its slice and is charged to the closed budget until it
    ends. The name is never given again.
    """

    async def work() -> None:
        async with session.opened(lab) as opened:
            expected = (await fetch_tree(opened)).revision if expect is None else expect
            jobs = await _jobs(opened, budget)
            request = CloseBudget(budget=budget, jobs_to=jobs_to, expected_revision=expected, reason=reason)
            reply = await opened.ask(subjects.CLOSE_BUDGET, request, WriteReply)
            try:
                revision = writes.committed(reply, expected).revision
            except CommandFailed as failed:
                if failed.code != "jobs_to_missing":
                    raise
                raise CommandFailed(failed.exit_code, f"{failed}; {now(budget, jobs)}", failed.code) from None
            assert jobs_to is not None, "refused without"
            closed = Closed(revision=revision, budget=budget, jobs_to=jobs_to, jobs=jobs)
            session.show(closed, "\n".join([f"revision {revision} is in force: {budget} is closed", afterwards(closed)]), as_json)

    session.run(work())


async def _jobs(opened: Session, budget: str) -> Jobs | None:
    try:
        waiting = await opened.ask(subjects.JOBS, _of(budget, WAITING), JobsPage)
        running = await opened.ask(subjects.JOBS, _of(budget, RUNNING), JobsPage)
    except CommandFailed as failed:
        # A budget may be closed although admission is away.
        if failed.exit_code in (Exit.REFUSED, Exit.UNREACHABLE):
            return None
        raise
    clusters = sorted({job.latest.cluster for job in running.jobs if job.latest is not None})
    more = any(page.next_before is not None for page in (waiting, running))
    return Jobs(waiting=len(waiting.jobs), running=len(running.jobs), clusters=tuple(clusters), more=more)


def _of(budget: str, states: tuple[JobState, ...]) -> JobsQuery:
    return JobsQuery(budget=budget, states=states, limit=LISTED_MAX)


def now(budget: str, jobs: Jobs | None) -> str:
    """How many jobs a budget has."""
    if jobs is None:
        return f"how many jobs {budget} has is not known, because admission does not answer"
    where = f" (on {', '.join(jobs.clusters)})" if jobs.clusters else ""
    return f"jobs of {budget} now: waiting {jobs.waiting}, running {jobs.running}{where}{', and more' if jobs.more else ''}"


def afterwards(closed: Closed) -> str:
    """What becomes of its jobs."""
    jobs = closed.jobs
    at_least = "at least " if jobs is not None and jobs.more else ""
    waiting, running = ("", "") if jobs is None else (f" ({at_least}{jobs.waiting})", f" ({at_least}{jobs.running})")
    return (
        f"its waiting jobs{waiting} go on in {closed.jobs_to}, each in its place; what runs{running} keeps its slice and is "
        f"charged to {closed.budget} until it ends"
    )
