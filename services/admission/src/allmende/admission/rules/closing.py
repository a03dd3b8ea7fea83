"""What becomes of the jobs of a budget that was closed (decision 0029): those that wait go where its manager said, what runs stays.

Pure. Never ends an attempt, and never touches its slice or what it is charged to.
"""

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import NOTHING, Altered, Change, Fact, Withdrawn, together
from allmende.admission.model.values import Decided, Job, Reason, Tree
from allmende.admission.rules.policies import promise_void
from allmende.proto.units import Ms

# Who has changed a job that went to another budget, as `job.changed` names him.
_AUTHOR = "budget"


def heir(books: Books, budget: str) -> str | None:
    """The budget in force that a budget's jobs belong to: itself; where it is gone, the one that they were sent to, which may be
    gone since and have sent them on. None: nobody has said where they go."""
    passed: set[str] = set()
    while books.tree is None or budget not in books.tree.budgets:
        known = books.known.get(budget)
        if known is None or known.jobs_to is None or budget in passed:
            return None
        passed.add(budget)
        budget = known.jobs_to
    return budget


def switched(books: Books, before: Tree | None, now_ms: Ms) -> Change:
    """After a switch to another tree: what waits for a closed budget goes where that has sent it; `why` of what runs is told.

    `before`: the tree until now, so that what runs is told once.
    """
    assert books.tree is not None
    changes = []
    for job in books.jobs.values():
        if job.budget is None or job.budget in books.tree.budgets or (to := heir(books, job.budget)) is None:
            continue
        if job.state == "queued":
            # One that nobody has judged yet would have been accepted from a member.
            if job.accepted or job.user in books.known[job.budget].members:
                changes.append(_moved(books, job, now_ms))
        elif job.state in ("starting", "running") and before is not None and job.budget in before.budgets:
            sentence = (
                f"its budget {job.budget} was closed: this attempt keeps its slice and what it is charged to; if the job comes "
                f"back, it waits under {to}"
            )
            changes.append(Change(decisions=(_told(books, job, sentence, now_ms),)))
    return together(changes) if changes else NOTHING


def raced(books: Books, job: Job, received_at_ms: Ms, now_ms: Ms) -> tuple[Job, Change]:
    """A new job that was on its way while its budget was closed, as if it had waited there; every other one as it is.

    `received_at_ms`: when the bus had it. What the submitter says of the time does not count: he could say anything.
    """
    known = books.known.get(job.budget or "")
    if known is None or known.gone_at_ms is None or received_at_ms >= known.gone_at_ms or job.user not in known.members:
        return job, NOTHING
    return sent_on(books, job, now_ms)


def sent_on(books: Books, job: Job, now_ms: Ms) -> tuple[Job, Change]:
    """A job under the budget that those of its own, which is closed, went to, and what `why` says of it; any other as it is."""
    to = None if job.budget is None else heir(books, job.budget)
    if to is None or to == job.budget:
        return job, NOTHING
    sentence = f"its budget {job.budget} was closed: it waits under {to}, with its priority and its first submission time"
    return replace(job, budget=to, moved=True), Change(decisions=(_told(books, job, sentence, now_ms),))


def closed(books: Books, budget: str) -> Reason | None:
    """Why nothing new is charged to a budget that was closed; None: it was not, or nobody has said where its jobs went."""
    to = heir(books, budget)
    if to is None or to == budget:
        return None
    return Reason("budget_closed", f"budget {budget} was closed and its jobs went to {to}; name that one, or another of yours")


def not_charged(budget: str | None, tree: Tree) -> str:
    """Why nothing is charged to the budget of a job that waits, and what to do."""
    revision = tree.revision
    if budget is not None and budget not in tree.budgets:
        why = f"budget {budget} is not in revision {revision} of the tree, and nobody said where its jobs go"
    elif budget is not None and budget not in tree.leaves:
        why = f"budget {budget} has budgets below it in revision {revision} of the tree, and only leaves are charged"
    else:
        return f"budget {budget} covers no slice in revision {revision} of the tree; restore it, or cancel the job"
    return f"{why}; cancel the job and submit it to another budget"


def _moved(books: Books, job: Job, now_ms: Ms) -> Change:
    new, told = sent_on(books, job, now_ms)
    if job.reserved is not None:
        void = promise_void(job.job, "nodes were gathered for it under its budget of before", now_ms)
        told = told._replace(decisions=(*told.decisions, void))
    # Its claim and its reservation were for the standing of the other leaf.
    new = replace(new, claim=None, reserved=None)
    claim = books.claims.get(job.claim) if job.claim is not None else None
    facts: tuple[Fact, ...] = (Altered(new, _AUTHOR),)
    if claim is None:
        return told._replace(jobs=(new,), facts=facts)
    return told._replace(jobs=(new,), claims=(replace(claim, ended="cancelled"),), facts=(Withdrawn(claim, "cancelled"), *facts))


def _told(books: Books, job: Job, sentence: str, now_ms: Ms) -> Decided:
    revision = None if books.tree is None else books.tree.revision
    return Decided(job=job.job, at_ms=now_ms, kind="changed", sentence=sentence, tree_revision=revision)
