"""What becomes of the jobs of a budget that was closed (decision 0029): those that wait go where its manager said, what runs stays.

Pure. Never ends an attempt and never touches its slice or what it is charged to.
"""

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import NOTHING, Change, Withdrawn, together
from allmende.admission.model.values import Decided, Job, Reason, Tree
from allmende.proto.units import Ms


def heir(books: Books, budget: str) -> str | None:
    """The budget in force to which the jobs of one that is gone go, if anybody has said; that one may have been closed since, too."""
    passed: set[str] = set()
    while books.tree is not None and budget not in books.tree.budgets and budget not in passed:
        passed.add(budget)
        known = books.known.get(budget)
        if known is None or known.jobs_to is None:
            return None
        budget = known.jobs_to
    return budget if books.tree is not None and budget in books.tree.budgets else None


def moved(books: Books, before: Tree | None, now_ms: Ms) -> Change:
    """After a switch to another tree: waiting jobs of closed budgets stand where these have sent them, all else as they were.

    `before`: the tree until now; what runs is told once, when its budget goes.
    """
    assert books.tree is not None
    changes = []
    for job in list(books.jobs.values()):
        if job.budget is None or job.budget in books.tree.budgets or (to := heir(books, job.budget)) is None:
            continue
        if job.state == "queued":
            if job.accepted or _in_time(books, job, job.submitted_at_ms):
                changes.append(_moved(books, job, to, now_ms))
        elif before is not None and job.budget in before.budgets:
            changes.append(Change(decisions=(_runs_on(job, to, books.tree.revision, now_ms),)))
    return together(changes) if changes else NOTHING


def raced(books: Books, job: Job, received_at_ms: Ms, now_ms: Ms) -> tuple[Job, Change]:
    """A new job that was on its way to its budget while that was closed, as if it had waited there; every other one unchanged."""
    if job.budget is None or books.tree is None or job.budget in books.tree.budgets:
        return job, NOTHING
    to = heir(books, job.budget)
    if to is None or not _in_time(books, job, received_at_ms):
        return job, NOTHING
    return replace(job, budget=to, moved=True), Change(decisions=(_went(job, to, books.tree.revision, now_ms),))


def back(books: Books, job: Job) -> Job:
    """A job that comes back from an attempt, under the budget that its own one's jobs went to."""
    if job.budget is None or (to := heir(books, job.budget)) is None or to == job.budget:
        return job
    return replace(job, budget=to, moved=True)


def closed(budget: str, books: Books) -> Reason | None:
    """Why a new job cannot be charged to a budget that was closed; None: it was not, or nobody has said where its jobs went."""
    to = heir(books, budget)
    if to is None:
        return None
    return Reason("budget_closed", f"budget {budget} was closed, and its jobs went to {to}; name that one, or another of yours")


def not_charged(budget: str | None, tree: Tree) -> str:
    """Why nothing can be charged to the budget of a job that waits, and what to do."""
    revision = tree.revision
    if budget is not None and budget not in tree.budgets:
        sentence = f"budget {budget} is gone since revision {revision} of the tree or before, and nobody said where its jobs go"
    elif budget is not None and budget not in tree.leaves:
        sentence = f"budget {budget} has budgets below it in revision {revision} of the tree, so nothing is charged to it itself"
    else:
        return f"budget {budget} covers no slice in revision {revision} of the tree; restore it, or cancel the job"
    return f"{sentence}; cancel the job and submit it to another budget"


def _in_time(books: Books, job: Job, at_ms: Ms) -> bool:
    known = books.known.get(job.budget or "")
    return known is not None and known.closed_at_ms is not None and at_ms < known.closed_at_ms and job.user in known.members


def _moved(books: Books, job: Job, to: str, now_ms: Ms) -> Change:
    assert books.tree is not None
    # Its claim and its reservation were made for the other budget's standing.
    new = replace(job, budget=to, moved=True, claim=None, reserved=None)
    decided = _went(job, to, books.tree.revision, now_ms)
    void = books.claims.get(job.claim) if job.claim is not None else None
    if void is None:
        return Change(jobs=(new,), decisions=(decided,))
    ended = replace(void, ended="cancelled")
    return Change(jobs=(new,), claims=(ended,), facts=(Withdrawn(void, "cancelled"),), decisions=(decided,))


def _went(job: Job, to: str, revision: int, now_ms: Ms) -> Decided:
    sentence = f"its budget {job.budget} was closed; it waits under {to}, with its priority and first submission time"
    return Decided(job=job.job, at_ms=now_ms, kind="changed", sentence=sentence, tree_revision=revision)


def _runs_on(job: Job, to: str, revision: int, now_ms: Ms) -> Decided:
    sentence = f"its budget {job.budget} was closed; this attempt keeps its slice and stays charged to it; if it comes back, then to {to}"
    return Decided(job=job.job, at_ms=now_ms, kind="changed", sentence=sentence, tree_revision=revision)
