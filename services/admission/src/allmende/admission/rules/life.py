"""An attempt's life after its grant: started, evicted, ended, freed, stopped, in whatever order the messages come (§5 to §7).

Pure. What is heard of an attempt that is not known, or no longer, changes nothing: agents repeat themselves until it is booked.
"""

from typing import NamedTuple

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import (
    NOTHING,
    Change,
    Ended,
    Fact,
    Protected,
    Queued,
    Refused,
    StopOrdered,
    Withdrawn,
    together,
)
from allmende.admission.model.values import Attempt, AttemptOutcome, Claim, Decided, Job, JobOutcome, Reason, StopReason, Terms
from allmende.admission.rules import closing
from allmende.proto.units import Ms, format_duration


def started(books: Books, name: str, started_at_ms: Ms, received_at_ms: Ms) -> Change:
    """All replicas run: the slice begins. Said once; a repeat changes nothing."""
    attempt = books.attempts.get(name)
    if attempt is None or attempt.started_at_ms is not None or attempt.is_lost:
        return NOTHING
    at_ms = max(attempt.granted_at_ms, min(started_at_ms, received_at_ms))
    # One that is to stop has started all the same: who reads its slice must find it, but it does not become `running` again.
    running = replace(
        attempt,
        state="running" if attempt.state == "starting" else attempt.state,
        started_at_ms=at_ms,
        protected_until_ms=at_ms + attempt.slice_ms,
    )
    if attempt.budget is None:
        sentence = f"started on {attempt.cluster}, unallocated: interruptible from the first second"
    else:
        sentence = f"started on {attempt.cluster}; nobody may evict it for its slice of {format_duration(attempt.slice_ms)}"
    decided = Decided(
        job=attempt.job,
        at_ms=received_at_ms,
        kind="started",
        sentence=sentence,
        numbers={"started_at_ms": at_ms, "protected_until_ms": at_ms + attempt.slice_ms},
    )
    jobs: tuple[Job, ...] = ()
    if (job := books.jobs.get(attempt.job)) is not None and job.attempt == name:
        state = "running" if job.state == "starting" else job.state
        first_ms = at_ms if job.first_started_at_ms is None else job.first_started_at_ms
        jobs = (replace(job, state=state, first_started_at_ms=first_ms, start_failures=0),)
    # An unallocated start makes GPUs that a claim may name, without any slice having to pass.
    stirred = (attempt.cluster,) if attempt.budget is None else ()
    return Change(jobs=jobs, attempts=(running,), facts=(Protected(running),), decisions=(decided,), stirred=stirred)


def freed(books: Books, name: str, nodes: tuple[tuple[str, int], ...]) -> Change:
    """The agent has GPUs back. A repeat under another message id says the same again, so the larger number holds, not the sum."""
    attempt = books.attempts.get(name)
    if attempt is None:
        return NOTHING
    had = dict(attempt.freed)
    placed = {part.node: part.replicas * attempt.gpus_per_replica for part in attempt.placement}
    now = dict(had)
    for node, gpus in nodes:
        if node in placed:
            now[node] = min(placed[node], max(had.get(node, 0), gpus))
    if now == had:
        return NOTHING
    return Change(attempts=(replace(attempt, freed=tuple(sorted(now.items()))),), stirred=(attempt.cluster,))


class End(NamedTuple):
    """What the agent says about an attempt's end, without its counters, which are the ledger's."""

    outcome: AttemptOutcome
    at_ms: Ms
    exit_code: int | None = None
    plan: str | None = None
    checkpoint_at_ms: Ms | None = None
    detail: str = ""
    """The agent's own sentence, where it has one."""


def ended(books: Books, name: str, end: End, now_ms: Ms, terms: Terms) -> Change:
    """No replica runs any more: its GPUs are free, and the job ends or goes back to its place."""
    attempt = books.attempts.get(name)
    if attempt is None:
        return NOTHING
    if attempt.is_lost:
        # Its end was declared, and its job went on then: what is new is that the GPUs are free.
        return Change(attempts=(replace(attempt, state="ended"),), stirred=(attempt.cluster,))
    over = replace(attempt, state="ended", ended_at_ms=end.at_ms, outcome=end.outcome, plan=attempt.plan or end.plan)
    return _over(books, over, end, now_ms, terms)


def declared_lost(books: Books, name: str, end: End, now_ms: Ms, terms: Terms) -> Change:
    """An operator says that it is dead: its job goes on as after any loss of a node, and its GPUs stay held (contract §3)."""
    attempt = books.attempts[name]
    over = replace(attempt, state="lost", ended_at_ms=end.at_ms, outcome=end.outcome)
    return _over(books, over, end, now_ms, terms)


def _over(books: Books, over: Attempt, end: End, now_ms: Ms, terms: Terms) -> Change:
    """What an attempt's end means for its job."""
    name = over.attempt
    change = Change(attempts=(over,), stirred=(over.cluster,))
    job = books.jobs.get(over.job)
    if job is None or job.attempt != name or job.state == "queued":
        return change
    final = _final(over, job, end)
    job = replace(job, idled=name in books.idle)
    if final is None:
        job, sent_on = closing.sent_on(books, job, now_ms)
        change = together((change, sent_on))
    if final is not None:
        settled = finish(job, final, end.at_ms, _why_ended(final, end), end.exit_code)
    elif end.outcome == "evicted":
        settled = _evicted(job, over, end, now_ms, terms)
    elif end.outcome == "node_lost":
        lost = end.detail if over.is_lost else "a node was lost"
        settled = _requeue(job, over, now_ms, f"{lost[:_DETAIL_MAX]}; losing GPUs is never the job's fault")
    else:
        settled = _not_started(job, over, now_ms, terms)
    return together((change, settled))


def _final(attempt: Attempt, job: Job, end: End) -> JobOutcome | None:
    """How the job ends with this attempt, or None when it goes back to the queue."""
    if end.outcome == "finished":
        return "finished"
    if attempt.stop == "cancel":
        return "cancelled"
    if end.outcome == "failed":
        return "failed"
    if end.outcome == "stopped" and attempt.stop != "start_timeout":
        # Stopped without an order of ours: somebody with access to the cluster ended it.
        return "max_runtime" if attempt.stop == "max_runtime" else "cancelled"
    if end.outcome == "evicted" and not job.resumable:
        return "preempted"
    return None


# A decision's sentence has room for 1,000 characters; an agent's may be as long by itself.
_DETAIL_MAX = 800


def _why_ended(outcome: JobOutcome, end: End) -> str:
    code = "" if end.exit_code is None else f" with exit code {end.exit_code}"
    detail = f": {end.detail[:_DETAIL_MAX]}" if end.detail else ""
    return {
        "finished": f"finished{code}{detail}",
        "failed": f"failed{code}{detail}",
        "cancelled": "cancelled",
        "max_runtime": "stopped: it reached its maximum runtime",
        "preempted": "evicted after its slice, and not resumable: starting it again would repeat the same lost work",
        "refused": "refused",
    }[outcome]


def finish(job: Job, outcome: JobOutcome, at_ms: Ms, why: str, exit_code: int | None = None) -> Change:
    """Nothing more will happen to the job."""
    done = replace(job, state="ended", outcome=outcome, ended_at_ms=at_ms, claim=None, reserved=None)
    decided = Decided(job=job.job, at_ms=at_ms, kind="ended", sentence=why, numbers={"attempts": job.attempts})
    return Change(jobs=(done,), facts=(Ended(done, exit_code),), decisions=(decided,))


def _evicted(job: Job, attempt: Attempt, end: End, now_ms: Ms, terms: Terms) -> Change:
    decided = Decided(
        job=job.job, at_ms=end.at_ms, kind="evicted", sentence=f"left {attempt.cluster}, evicted by plan {attempt.plan}", numbers={}
    )
    if attempt.budget is None:
        # Contract §7: 1 minute, doubling to 30. In the prototype one job was evicted 800 times.
        wait_ms = min(terms.requeue_backoff_max_ms, terms.requeue_backoff_ms << min(job.evictions, 20))
        job = replace(job, evictions=job.evictions + 1, not_before_ms=now_ms + wait_ms)
        why = f"back in its place; unallocated, so it waits {format_duration(wait_ms)} before it may start again"
    else:
        started_ms = attempt.granted_at_ms if attempt.started_at_ms is None else attempt.started_at_ms
        saved = end.checkpoint_at_ms is not None and end.checkpoint_at_ms > started_ms
        evictions = job.evictions + 1
        if not saved:
            # Protection grows with bad luck (contract §7), up to the cap.
            slice_ms = max(job.next_slice_ms, min(terms.slice_cap_ms, 2 * max(attempt.slice_ms, 1)))
            why = f"back in its place; it had saved nothing new, so its next slice is {format_duration(slice_ms)}"
        elif terms.patience and evictions >= terms.patience:
            slice_ms = max(job.slice_ms, min(terms.slice_cap_ms, job.slice_ms << min(evictions // terms.patience, 20)))
            why = f"back in its place; evicted {evictions} times, so its next slice is {format_duration(slice_ms)}"
        else:
            slice_ms = job.slice_ms
            why = "back in its place, with its first submission time"
        if job.idled and terms.idle_slice_ms and slice_ms > terms.idle_slice_ms:
            slice_ms = terms.idle_slice_ms
            why = f"back in its place; its GPUs were idle, so its next slice is {format_duration(slice_ms)}"
        job = replace(job, evictions=evictions, next_slice_ms=slice_ms)
    change = _requeue(job, attempt, now_ms, why)
    return change._replace(decisions=(decided, *change.decisions))


def _requeue(job: Job, attempt: Attempt, now_ms: Ms, why: str) -> Change:
    back = replace(job, state="queued")
    decided = Decided(job=job.job, at_ms=now_ms, kind="requeued", sentence=why, numbers={"next_slice_ms": back.next_slice_ms})
    return Change(jobs=(back,), facts=(Queued(back, attempt.attempt, (), ()),), decisions=(decided,))


def _not_started(job: Job, attempt: Attempt, now_ms: Ms, terms: Terms) -> Change:
    failures = job.start_failures + 1
    nodes = tuple(part.node for part in attempt.placement)
    if failures >= terms.start_failures_max:
        sentence = f"the job could not be started {failures} times, last on {_some(nodes)} of {attempt.cluster}"
        return refuse(replace(job, start_failures=failures), Reason("cannot_start", sentence), now_ms)
    back = replace(job, start_failures=failures, avoid=nodes, avoid_until_ms=now_ms + terms.avoid_ms)
    why = f"it could not be started on {_some(nodes)} of {attempt.cluster}; these are avoided for a while"
    return _requeue(back, attempt, now_ms, why)


def _some(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def refuse(job: Job, reason: Reason, now_ms: Ms) -> Change:
    """The job can never run as it was submitted."""
    refused = replace(job, state="ended", outcome="refused", ended_at_ms=now_ms, claim=None, reserved=None)
    decided = Decided(job=job.job, at_ms=now_ms, kind="refused", sentence=f"{reason.code}: {reason.sentence}")
    return Change(jobs=(refused,), facts=(Refused(job.user, job.job, reason),), decisions=(decided,))


def stop(books: Books, name: str, reason: StopReason, now_ms: Ms) -> Change:
    """Order the agent to end an attempt; once, whatever the reason. A cancellation overrides the other reasons' outcome."""
    attempt = books.attempts[name]
    if attempt.stop == reason or attempt.stop == "cancel":
        return NOTHING
    stopping = replace(attempt, state="ending", stop=reason)
    job = books.jobs.get(attempt.job)
    why = {
        "cancel": "its owner cancelled it",
        "max_runtime": "it reached its maximum runtime",
        "start_timeout": "it did not start in time",
    }[reason]
    decided = Decided(job=attempt.job, at_ms=now_ms, kind="stopped", sentence=f"the agent was told to end it: {why}")
    jobs = (replace(job, state="ending"),) if job is not None and job.attempt == name else ()
    return Change(jobs=jobs, attempts=(stopping,), facts=(StopOrdered(stopping, reason),), decisions=(decided,))


def cancel(books: Books, job: Job, now_ms: Ms) -> Change:
    """The owner wants it to end: at once when it waits, by the agent when it has GPUs."""
    if job.state != "queued":
        assert job.attempt is not None
        return stop(books, job.attempt, "cancel", now_ms)
    change = finish(job, "cancelled", now_ms, "cancelled while it waited")
    claim = books.claims.get(job.claim) if job.claim is not None else None
    if claim is None:
        return change
    facts: tuple[Fact, ...] = (Withdrawn(claim, "cancelled"), *change.facts)
    return change._replace(claims=(replace(claim, ended="cancelled"),), facts=facts)


class Order(NamedTuple):
    """The preemptor's order to evict an attempt: for whom (None: its node is drained), and what made it lawful (contract §9)."""

    plan: str
    claimant_job: str | None
    at_ms: Ms
    grace_ms: Ms
    sentence: str
    numbers: dict[str, int]
    tree_revision: int
    usage_revision: int


def ordered(books: Books, name: str, order: Order) -> Change:
    """The preemptor has ordered an eviction: the attempt is leaving, and its owner may read for whom and why."""
    attempt = books.attempts.get(name)
    if attempt is None or attempt.plan is not None or attempt.is_lost:
        return NOTHING
    notice = format_duration(order.grace_ms)
    whom = "" if order.claimant_job is None else f" for job {order.claimant_job}"
    decided = Decided(
        job=attempt.job,
        at_ms=order.at_ms,
        kind="evicted",
        sentence=f"told to leave within {notice}{whom} (plan {order.plan}): {order.sentence}"[:1_000],
        tree_revision=order.tree_revision,
        usage_revision=order.usage_revision,
        numbers=order.numbers,
    )
    return Change(attempts=(replace(attempt, plan=order.plan),), decisions=(decided,))


def overdue_to_leave(books: Books, name: str, sentence: str, now_ms: Ms) -> Change:
    """Nobody has confirmed an eviction in time. Its GPUs stay held; its owner, and whoever waits for them, may read why."""
    attempt = books.attempts.get(name)
    if attempt is None:
        return NOTHING
    return Change(decisions=(Decided(job=attempt.job, at_ms=now_ms, kind="overdue", sentence=sentence),))


def answered(books: Books, name: str, answer: Claim | Reason, now_ms: Ms, terms: Terms) -> Change:
    """The preemptor's answer: a plan (the claim with plan, placement and victims filled in), or why room cannot be made."""
    claim = books.claims.get(name)
    if claim is None or claim.plan is not None:
        return NOTHING
    if isinstance(answer, Reason):
        return _failed(books, claim, "infeasible", answer.sentence, now_ms, terms)
    victims = len(answer.victims)
    leave = "1 attempt leaves after its notice" if victims == 1 else f"{victims} attempts leave after their notice"
    decided = Decided(
        job=claim.job,
        at_ms=now_ms,
        kind="planned",
        sentence=f"room will be made by plan {answer.plan}: {leave}",
        tree_revision=answer.tree_revision,
        usage_revision=answer.usage_revision,
        numbers={"victims": victims},
    )
    return Change(claims=(answer,), decisions=(decided,))


def claim_timed_out(books: Books, claim: Claim, now_ms: Ms, terms: Terms) -> Change:
    """Room was not made in time; the claim and its earmarks are void."""
    change = _failed(books, claim, "timed_out", "the room that was asked for did not come in time", now_ms, terms)
    return change._replace(facts=(Withdrawn(claim, "timed_out"),))


def _failed(books: Books, claim: Claim, how: str, why: str, now_ms: Ms, terms: Terms) -> Change:
    assert how in ("infeasible", "timed_out")
    over = replace(claim, ended="infeasible" if how == "infeasible" else "timed_out")
    job = books.jobs[claim.job]
    wait_ms = min(terms.claim_backoff_max_ms, terms.claim_backoff_ms << min(job.claims_failed, 20))
    tried = replace(
        job,
        claim=None,
        claims_failed=job.claims_failed + 1,
        claim_after_ms=now_ms + wait_ms,
        claim_signature=(claim.usage_revision, claim.stirrings),
    )
    decided = Decided(
        job=job.job,
        at_ms=now_ms,
        kind="infeasible",
        sentence=why,
        tree_revision=claim.tree_revision,
        usage_revision=claim.usage_revision,
        numbers={"claims_failed": tried.claims_failed},
    )
    return Change(jobs=(tried,), claims=(over,), decisions=(decided,))


def rested(books: Books, name: str, now_ms: Ms) -> Change:
    """A job's waiting time has passed: nodes that failed to start it may be tried again."""
    job = books.jobs.get(name)
    if job is None or not job.avoid or job.avoid_until_ms > now_ms:
        return NOTHING
    return Change(jobs=(replace(job, avoid=(), avoid_until_ms=0),))


def overdue(books: Books, name: str, now_ms: Ms) -> StopReason | None:
    """Is an attempt past its start time-out or its maximum runtime?"""
    attempt = books.attempts.get(name)
    if attempt is None or attempt.stop is not None or attempt.is_lost:
        return None
    if attempt.state == "starting" and attempt.start_by_ms <= now_ms:
        return "start_timeout"
    if attempt.started_at_ms is not None and attempt.max_runtime_ms is not None:
        return "max_runtime" if attempt.started_at_ms + attempt.max_runtime_ms <= now_ms else None
    return None
