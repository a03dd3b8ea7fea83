"""What its owner, or an operator, may still change of a job that waits: hold and release, priority, slice (decision 0023).

Pure. Never changes what a job is charged to, how large it is or what it runs; and never a job that has GPUs.
"""

from typing import NamedTuple

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import NOTHING, Altered, Change, Fact, Withdrawn
from allmende.admission.model.values import Decided, Job, Reason, Terms
from allmende.admission.rules.policies import promise_void
from allmende.admission.rules.vetting import vet
from allmende.proto.units import Ms, format_duration


class Wanted(NamedTuple):
    """What shall be different; None: as it is."""

    held: bool | None = None
    priority: int | None = None
    slice_ms: Ms | None = None

    def holds_of(self, job: Job) -> bool:
        """Whether the job is so already."""
        pairs = ((self.held, job.held), (self.priority, job.priority), (self.slice_ms, job.slice_ms))
        return all(wanted is None or wanted == now for wanted, now in pairs)


def altered(books: Books, job: Job, wanted: Wanted, author: str, now_ms: Ms, terms: Terms) -> Change | Reason:
    """The job with what is wanted; a reason where it may not be so, and then nothing changes."""
    if job.state != "queued":
        return Reason("not_waiting", f"job {job.job} is {job.state}; only a job that waits can be held or changed")
    new = replace(
        job,
        held=job.held if wanted.held is None else wanted.held,
        priority=job.priority if wanted.priority is None else wanted.priority,
        slice_ms=job.slice_ms if wanted.slice_ms is None else wanted.slice_ms,
    )
    if new == job:
        return NOTHING
    # Nodes were gathered for what it was.
    new = replace(new, reserved=None)
    if new.slice_ms != job.slice_ms:
        verdict = vet(new, books, now_ms, terms)
        if verdict.refusal is not None:
            return verdict.refusal
        new = replace(new, next_slice_ms=new.slice_ms, accepted=verdict.accepted)
    void = books.claims.get(job.claim) if job.claim is not None else None
    facts: list[Fact] = [Altered(new, author)]
    if void is not None and (new.held or new.slice_ms != job.slice_ms or new.priority != job.priority):
        # It was raised for another hold and priority.
        new = replace(new, claim=None)
        facts.insert(0, Withdrawn(void, "cancelled"))
    decided = Decided(
        job=job.job,
        at_ms=now_ms,
        kind="changed",
        sentence=f"{author} {_said(job, new)}",
        numbers={"priority": new.priority, "slice_ms": new.slice_ms},
    )
    return Change(
        jobs=(new,),
        claims=() if new.claim == job.claim or void is None else (replace(void, ended="cancelled"),),
        facts=tuple(facts),
        decisions=(decided,)
        if job.reserved is None
        else (decided, promise_void(job.job, "nodes were gathered for the job as it was", now_ms)),
    )


def _said(job: Job, new: Job) -> str:
    said = []
    if new.held != job.held:
        said.append("holds it: it waits until it is released" if new.held else "released it")
    if new.priority != job.priority:
        said.append(f"changed its priority from {job.priority} to {new.priority}")
    if new.slice_ms != job.slice_ms:
        said.append(f"changed its slice from {format_duration(job.slice_ms)} to {format_duration(new.slice_ms)}")
    return "; ".join(said)
