"""What admission answers: the queue, jobs, the past, why, nodes, and to agents what an attempt runs. Changes nothing.

Lists come from rows; the queue, places and blockers from the books and from what the last pass saw.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from allmende.admission.handlers.desk import Desk
from allmende.admission.model.values import Attempt, Job, Reason
from allmende.admission.ports import JobFilter, PastFilter, Store
from allmende.admission.rules import explaining, policies
from allmende.admission.rules.explaining import Waiting
from allmende.admission.rules.passing import not_ready
from allmende.admission.wire import heard, replies, said
from allmende.chassis.db import Database
from allmende.chassis.ports import Clock
from allmende.proto import admission
from allmende.proto.envelope import Refusal
from allmende.proto.payload import PayloadQuery, PayloadReply
from allmende.proto.policy import PolicyHistoryPage, PolicyHistoryQuery, PolicyQuery, PolicyReply
from allmende.proto.units import SECOND_MS, Ms

V = TypeVar("V", bound=Struct)

# A reply has at most 64 KiB; the rest is for the frame around the entries.
REPLY_BYTES = 56 * 1024
DECISIONS_MAX = 100
AHEAD_MAX = 10
# Working out the order of 2,000 jobs takes some 30 ms, so who looks at a long queue again within a second gets the same page.
ORDER_KEPT_MS = SECOND_MS
LONG_QUEUE = 200

_encode = msgspec.json.Encoder().encode


class _Order(NamedTuple):
    at_ms: Ms
    waiting: list[Waiting]


class Queries:
    """Answers to requests that change nothing."""

    def __init__(self, desk: Desk, store: Store, db: Database, clock: Clock) -> None:
        self._desk, self._store, self._db, self._clock = desk, store, db, clock
        self._orders: dict[str | None, _Order] = {}

    async def queue(self, caller: str, query: admission.QueueQuery) -> admission.QueuePage:
        """Waiting jobs in the order of the queue, with the numbers that sort them and all their blockers."""
        books, now_ms = self._desk.known(), self._clock.now_ms()
        waiting = self._order(query.cluster)
        entries = []
        for position, each in enumerate(waiting[query.offset : query.offset + query.limit], start=query.offset):
            reasons = explaining.blockers(each.job, books, self._desk.outlooks, now_ms, self._desk.terms)
            entries.append(replies.queue_entry(position, each, reasons))
        missing = not_ready(books)
        shown = tuple(fitting(entries))
        return admission.QueuePage(ready=not missing, not_ready=missing, waiting=len(waiting), entries=shown)

    async def jobs(self, caller: str, query: admission.JobsQuery) -> admission.JobsPage:
        """Jobs, newest first.

        Raises:
            Refusal: `unknown_job` or `ambiguous_job`: no array can be found by it.
        """
        wanted = JobFilter(query.user, query.budget, tuple(query.states), query.before, query.limit + 1)
        async with self._db.reading() as connection:
            if query.array is not None:
                named = one_of(await self._store.jobs_by_suffix(connection, query.array), query.array)
                wanted = wanted._replace(array=named.job if named.array is None else named.array.first)
            rows = await self._store.page_of_jobs(connection, wanted)
        shown = fitting([replies.job_summary(job, latest) for job, latest in rows[: query.limit]])
        more = len(rows) > len(shown)
        return admission.JobsPage(jobs=tuple(shown), next_before=shown[-1].job if more and shown else None)

    async def history(self, caller: str, query: admission.HistoryQuery) -> admission.HistoryPage:
        """What lived in a span, by job and attempt: as many attempts as fit a reply, and where to go on."""
        after = query.after
        behind = ("", "") if after is None else (after.job, after.attempt or "")
        async with self._db.reading() as connection:
            rows = await self._store.page_of_past(connection, PastFilter(query.from_ms, *behind, query.limit + 1))
        told = rows[: query.limit]
        jobs, count = _past(told, query.to_ms)
        more = len(rows) > count
        return admission.HistoryPage(jobs=jobs, next_after=_mark(*told[count - 1]) if more and count else None)

    async def why(self, caller: str, query: admission.WhyQuery) -> admission.WhyReply:
        """The story of a job out of the stored decisions, with what keeps it waiting now.

        Raises:
            Refusal: `unknown_job` or `ambiguous_job`.
        """
        async with self._db.reading() as connection:
            job = one_of(await self._store.jobs_by_suffix(connection, query.job), query.job)
            attempts = await self._store.attempts_of_job(connection, job.job)
            decisions = await self._store.decisions_of_job(connection, job.job, DECISIONS_MAX)
        books, position = self._desk.known(), None
        reasons: tuple[Reason, ...] = ()
        order: list[Waiting] = []
        live = books.jobs.get(job.job)
        if live is not None and live.state == "queued":
            order = self._order(None)
            position = next((place for place, each in enumerate(order) if each.job.job == job.job), None)
            reasons = explaining.blockers(live, books, self._desk.outlooks, self._clock.now_ms(), self._desk.terms)
        mine = order[position] if position is not None else None
        ahead: list[admission.Ahead] = []
        if position is not None and mine is not None and mine.tier != "unknown":
            nearest = range(position - 1, max(-1, position - 1 - AHEAD_MAX), -1)
            ahead = [replies.ahead(place, order[place], mine) for place in nearest]
        standing = None if mine is None else mine.standing
        # The newest are the ones that matter where not all fit.
        told = fitting([replies.decision(each) for each in reversed(decisions)], REPLY_BYTES // 2)
        shown = fitting([replies.attempt_summary(each) for each in reversed(attempts)], REPLY_BYTES // 4)
        return admission.WhyReply(
            job=replies.job_summary(job, attempts[-1] if attempts else None),
            attempts=tuple(reversed(shown)),
            decisions=tuple(reversed(told)),
            blockers=said.blockers(reasons),
            position=position,
            tier=None if mine is None else mine.tier,
            used_gpu_ms=None if standing is None else standing.used,
            entitlement_gpu_ms=None if standing is None else standing.entitlement,
            ahead=tuple(ahead),
        )

    async def nodes(self, caller: str, query: admission.NodesQuery) -> admission.NodesPage:
        """Nodes by cluster and name."""
        books, now_ms = self._desk.known(), self._clock.now_ms()
        keys = sorted(key for key in books.nodes if query.cluster is None or key[0] == query.cluster)
        if query.after is not None:
            keys = [key for key in keys if key > query.after]
        marks: dict[tuple[str, str], int] = {}
        for claim in books.claims.values():
            for node, gpus in claim.earmarks().items():
                marks[claim.cluster, node] = marks.get((claim.cluster, node), 0) + gpus
        silent_after_ms = self._desk.terms.silent_after_ms
        views = [
            replies.node_view(books.nodes[key], books, marks.get(key, 0), now_ms, silent_after_ms) for key in keys[: query.limit]
        ]
        shown = fitting(views)
        more = len(shown) < len(keys) and bool(shown)
        return admission.NodesPage(nodes=tuple(shown), next_after=(shown[-1].cluster, shown[-1].node) if more else None)

    async def policy(self, caller: str, query: PolicyQuery) -> PolicyReply:
        """A cluster's policy in force, or the one that holds where nobody has set any."""
        books = self._desk.known()
        document, had = books.policy(query.cluster), books.policies.get(query.cluster)
        return PolicyReply(
            cluster=query.cluster,
            known=query.cluster in books.cluster_names(),
            revision=0 if had is None else had.revision,
            policy=document,
            author=None if had is None else had.author,
            reason="" if had is None else had.reason,
            from_ms=None if had is None else had.from_ms,
            slice_cap_ms=policies.slice_cap_ms(document, self._desk.terms),
        )

    async def policy_history(self, caller: str, query: PolicyHistoryQuery) -> PolicyHistoryPage:
        """A cluster's policies, newest first, and when each held."""
        async with self._db.reading() as connection:
            # One more on either side: when the newest of them ended, and whether there are older ones.
            before = None if query.before is None else query.before + 1
            rows = await self._store.policies_of(connection, query.cluster, before, query.limit + 2)
        newer = rows[0] if query.before is not None and rows and rows[0].revision == query.before else None
        rows = rows[1:] if newer is not None else rows
        ends_ms = [None if newer is None else newer.from_ms, *(each.from_ms for each in rows)]
        told = [replies.past_policy(each, until_ms) for each, until_ms in zip(rows[: query.limit], ends_ms, strict=False)]
        shown = fitting(told)
        more = len(rows) > len(shown) and bool(shown)
        return PolicyHistoryPage(policies=tuple(shown), next_before=shown[-1].revision if more else None)

    async def payload(self, caller: str, query: PayloadQuery) -> PayloadReply:
        """What a granted attempt runs: for the agent of its own cluster, while it has not ended.

        Raises:
            Refusal: `unknown_attempt`, also when it is another cluster's: an agent learns nothing about those.
        """
        attempt = self._desk.known().attempts.get(query.attempt)
        if attempt is None or attempt.cluster != caller:
            raise Refusal("unknown_attempt", f"no live attempt {query.attempt} was granted to cluster {caller}")
        job = self._desk.known().jobs.get(attempt.job)
        array = None if job is None else job.array
        async with self._db.glancing() as connection:
            kept = await self._store.payload_of_job(connection, attempt.job if array is None else array.first)
        if kept is None:
            raise Refusal("unknown_attempt", f"attempt {query.attempt} has no payload any more")
        return PayloadReply(attempt=attempt.attempt, job=attempt.job, payload=heard.payload_of(kept, array))

    def _order(self, cluster: str | None) -> list[Waiting]:
        books, now_ms = self._desk.known(), self._clock.now_ms()
        kept = self._orders.get(cluster)
        fresh = kept is not None and kept.at_ms <= now_ms <= kept.at_ms + ORDER_KEPT_MS * self._clock.rate
        if kept is None or not fresh or len(kept.waiting) < LONG_QUEUE:
            kept = _Order(now_ms, explaining.queue(books, self._desk.outlooks, cluster))
            if len(self._orders) > _CLUSTERS_KEPT:
                self._orders.clear()
            self._orders[cluster] = kept
        # Who has started since is not waiting any more.
        return [each for each in kept.waiting if (job := books.jobs.get(each.job.job)) is not None and job.state == "queued"]


# A caller may ask for clusters that do not exist; what is kept for them must stay bounded.
_CLUSTERS_KEPT = 64


def _past(rows: Sequence[tuple[Job, Attempt | None]], to_ms: Ms) -> tuple[tuple[admission.PastJob, ...], int]:
    """The jobs of as many of the first rows as fit a reply, and how many rows that are. Jobs of after `to_ms` are passed over."""
    left = REPLY_BYTES
    found: dict[str, tuple[admission.PastJob, list[admission.PastAttempt]]] = {}
    for count, (job, attempt) in enumerate(rows):
        if job.submitted_at_ms >= to_ms:
            continue
        told = found.get(job.job) or (replies.past_job(job), [])
        past = None if attempt is None else replies.past_attempt(attempt)
        left -= 0 if past is None else len(_encode(past)) + 1
        left -= 0 if job.job in found else len(_encode(told[0])) + 1
        if left < 0 and found:
            return _with_attempts(found.values()), count
        found[job.job] = told
        if past is not None:
            told[1].append(past)
    return _with_attempts(found.values()), len(rows)


def _mark(job: Job, attempt: Attempt | None) -> admission.PastMark:
    return admission.PastMark(job=job.job, attempt=None if attempt is None else attempt.attempt)


def _with_attempts(found: Iterable[tuple[admission.PastJob, list[admission.PastAttempt]]]) -> tuple[admission.PastJob, ...]:
    return tuple(replace(job, attempts=tuple(attempts)) for job, attempts in found)


def one_of(found: Sequence[Job], suffix: str) -> Job:
    """The one job that an end of an id names.

    Raises:
        Refusal: `unknown_job` or `ambiguous_job`.
    """
    if not found:
        raise Refusal("unknown_job", f"no job's id ends in {suffix}; `allmende jobs` lists them")
    if len(found) > 1:
        raise Refusal("ambiguous_job", f"several jobs' ids end in {suffix}; give more of it")
    return found[0]


def fitting(entries: Sequence[V], most_bytes: int = REPLY_BYTES) -> list[V]:
    """As many of the first entries as fit a reply; at least one, where there is one."""
    shown: list[V] = []
    for entry in entries:
        most_bytes -= len(_encode(entry)) + 1
        if most_bytes < 0 and shown:
            break
        shown.append(entry)
    return shown
