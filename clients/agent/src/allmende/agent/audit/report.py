"""All figures of a run, from the cluster's own log, the postings, what was heard and what people asked for. Pure."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct

from allmende.agent.audit.books import audit_books
from allmende.agent.audit.evictions import audit_evictions
from allmende.agent.audit.figures import Held, Team, Wait, Waits, impact, quotient, waits
from allmende.agent.audit.history import History
from allmende.agent.audit.occupancy import amounts, available_by_hour
from allmende.agent.workload.log import AnyEntry, Began, Ended, Submitted
from allmende.proto.admission import AttemptProtected
from allmende.proto.ledger import Posting
from allmende.proto.preemptor import EvictionOrdered
from allmende.proto.units import PPM_WHOLE, Ms


class Report(Struct, frozen=True, kw_only=True):
    """The figures of contract §10, and those that must be 0. The names are stable."""

    jobs_submitted: int
    jobs_started: int
    jobs_finished: int
    evictions: int
    evictions_unexplained: int
    occupancy: float | None
    availability: float | None
    unallocated_share: float | None
    delivered_owed_plain: float | None
    delivered_owed_strict: float | None
    slice_violations: int
    ledger_difference_gpu_ms: int
    postings_lost: int
    postings_duplicated: int
    waits_s: dict[str, Waits]
    teams: tuple[Team, ...]
    lost_share: float | None
    """Work that was not saved when an attempt was ended, of what was occupied."""
    demand: float | None
    """GPUs that allocated jobs asked for, running or waiting, for each that was available."""
    ends_unconfirmed: int
    outcomes: dict[str, int]
    """How many jobs ended in which way; `open` have not."""
    simulated_ms: Ms


class Asked(NamedTuple):
    """One job of the workload's log, with its end where it has one."""

    submitted: Submitted
    ended: Ended | None


class Evidence(NamedTuple):
    """What a run left behind."""

    history: History
    postings: Sequence[Posting]
    protections: Sequence[AttemptProtected]
    orders: Sequence[EvictionOrdered]
    entries: Sequence[AnyEntry]


def report(evidence: Evidence, warmup_ms: Ms = 0) -> Report:
    """Compute everything. Occupancy, availability and shares are of the time after `warmup_ms`; all else of the whole run."""
    history = evidence.history
    books = audit_books(history, evidence.postings)
    evictions = audit_evictions(history, evidence.protections, evidence.orders)
    steady = amounts(history, min(history.from_ms + warmup_ms, history.to_ms), history.to_ms)
    jobs = asked(evidence.entries)
    demanded = list(_demanded(jobs, history))
    available = available_by_hour(history, history.from_ms, history.to_ms)
    figures = impact(_shares(evidence.entries), available, demanded, _delivered(evidence.postings, history.to_ms))
    outcomes: dict[str, int] = {}
    for job in jobs.values():
        outcome = job.ended.outcome if job.ended else "open"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return Report(
        jobs_submitted=len(jobs),
        jobs_started=len({ran.job for ran in history.attempts.values()}),
        jobs_finished=outcomes.get("finished", 0),
        evictions=evictions.evictions,
        evictions_unexplained=evictions.unexplained,
        occupancy=quotient(steady.occupied, steady.available),
        availability=quotient(steady.available, steady.installed),
        unallocated_share=quotient(steady.unallocated, steady.occupied),
        delivered_owed_plain=figures.plain,
        delivered_owed_strict=figures.strict,
        slice_violations=evictions.slice_violations,
        ledger_difference_gpu_ms=books.difference_gpu_ms,
        postings_lost=books.lost,
        postings_duplicated=books.duplicated,
        waits_s=waits(_waits(jobs, history)),
        teams=figures.teams,
        lost_share=quotient(steady.lost, steady.occupied),
        demand=quotient(sum(each.gpus * (each.to_ms - each.from_ms) for each in demanded), sum(available.values())),
        ends_unconfirmed=history.unconfirmed,
        outcomes=outcomes,
        simulated_ms=history.to_ms - history.from_ms,
    )


def asked(entries: Iterable[AnyEntry]) -> dict[str, Asked]:
    """The jobs of a workload's log, by id."""
    jobs: dict[str, Asked] = {}
    for entry in entries:
        if isinstance(entry, Submitted):
            jobs[entry.job] = Asked(entry, None)
        elif isinstance(entry, Ended) and entry.job in jobs:
            jobs[entry.job] = jobs[entry.job]._replace(ended=entry)
    return jobs


def _shares(entries: Iterable[AnyEntry]) -> dict[str, Fraction]:
    for entry in entries:
        if isinstance(entry, Began):
            return {team.budget: Fraction(team.effective_share_ppm, PPM_WHOLE) for team in entry.teams}
    return {}


def _demanded(jobs: dict[str, Asked], history: History) -> Iterable[Held]:
    """Allocated jobs from their submission until their end, or until the cluster was switched off."""
    for job in jobs.values():
        budget = job.submitted.budget
        if budget is None or (job.ended is not None and job.ended.outcome == "refused"):
            continue
        from_ms = max(job.submitted.at_ms, history.from_ms)
        to_ms = min(job.ended.at_ms if job.ended else history.to_ms, history.to_ms)
        if from_ms < to_ms:
            yield Held(budget, job.submitted.gpus, from_ms, to_ms)


def _delivered(postings: Iterable[Posting], to_ms: Ms) -> Iterable[Held]:
    for posting in postings:
        if posting.budget is not None:
            yield Held(posting.budget, posting.gpus, posting.from_ms, min(posting.to_ms, to_ms))


def _waits(jobs: dict[str, Asked], history: History) -> Iterable[Wait]:
    """How long each job waited for its first start, by the cluster's own log; those that still wait, until now."""
    first: dict[str, Ms] = {}
    for ran in history.attempts.values():
        first[ran.job] = min(ran.started_at_ms, first.get(ran.job, ran.started_at_ms))
    for name, job in jobs.items():
        if job.ended is not None and job.ended.outcome == "refused":
            continue
        until_ms = first.get(name, job.ended.at_ms if job.ended else history.to_ms)
        yield Wait(job.submitted.gpus, job.submitted.slice_ms, max(0, until_ms - job.submitted.at_ms))
