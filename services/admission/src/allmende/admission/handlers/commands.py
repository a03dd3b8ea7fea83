"""What people command: end, hold or change a job, set a cluster's policy. Runs between the batches, in a transaction of its own."""

from typing import Literal

from msgspec.structs import replace

from allmende.admission.handlers.desk import Desk
from allmende.admission.handlers.queries import one_of
from allmende.admission.model.arrays import Unfolding
from allmende.admission.model.books import Books
from allmende.admission.model.values import Job, KnownPolicy, Reason
from allmende.admission.ports import Store, Writer
from allmende.admission.rules import changing, life, losing, policies
from allmende.admission.wire.said import lost_attempts
from allmende.chassis.db import Database, Transaction
from allmende.chassis.ports import Clock
from allmende.chassis.worker import Outcome
from allmende.proto.commands import CancelJob, Cancelled, Changed, ChangeJob
from allmende.proto.envelope import Refusal
from allmende.proto.ids import following
from allmende.proto.lost import DeclaredLost, DeclareLost
from allmende.proto.policy import PolicySet, SetPolicy
from allmende.proto.units import format_duration

# Jobs of an array that one command deals with: what it takes is well below what a caller waits.
MOST_AT_ONCE = 500

# Budgets that one refusal names: a policy may name thousands.
_MOST_NAMED = 10


class Commands:
    """Answers to requests that change something."""

    def __init__(self, desk: Desk, store: Store, db: Database, writer: Writer, clock: Clock, operators: tuple[str, ...]) -> None:
        self._desk, self._store, self._db, self._writer, self._clock = desk, store, db, writer, clock
        self._operators = operators

    async def cancel(self, caller: str, request: CancelJob) -> Cancelled:
        """End a job of the caller's own, or all of its array; an operator may end anybody's.

        Raises:
            Refusal: `unknown_job`, `ambiguous_job` or `not_your_job`.
        """

        job = await self._own(caller, request.job, "cancel it")

        async def work(tx: Transaction) -> tuple[Cancelled, Outcome]:
            books = await self._desk.open(tx)
            live = [books.jobs[each] for each in _meant(job, request.array) if each in books.jobs]
            coming = _coming(books, job) if request.array else None
            if not live and coming is None:
                return Cancelled(job=job.job, status="already_ended"), await self._desk.close(tx)
            if coming is not None:
                books.arrays.put(replace(coming, made=coming.size))
            rest = [each for each in live if not _is_told(books, each)]
            for each in rest[:MOST_AT_ONCE]:
                self._desk.apply(life.cancel(books, each, self._clock.now_ms()))
            self._desk.want(job.clusters or books.cluster_names())
            status: Literal["ending", "ended"] = "ending" if any(each.job in books.jobs for each in live) else "ended"
            count = min(len(rest), MOST_AT_ONCE) + (coming.size - coming.made if coming is not None else 0)
            reply = Cancelled(job=job.job, status=status, jobs=count, left=max(0, len(rest) - MOST_AT_ONCE))
            return reply, await self._desk.close(tx)

        return await self._writer.exclusively(work)

    async def change(self, caller: str, request: ChangeJob) -> Changed:
        """Hold, release or change a waiting job of the caller's own, or all that wait of its array; an operator may with anybody's.

        Raises:
            Refusal: `unknown_job`, `ambiguous_job`, `not_your_job`, `not_waiting`, or why a job of this slice would be refused.
        """
        job = await self._own(caller, request.job, "change it")
        wanted = changing.Wanted(request.held, request.priority, request.slice_ms)

        async def work(tx: Transaction) -> tuple[Changed | Refusal, Outcome]:
            books = await self._desk.open(tx)
            live = [books.jobs[each] for each in _meant(job, request.array) if each in books.jobs]
            waiting = [each for each in live if each.state == "queued"] if request.array else live
            if not waiting:
                what = f"of the array of {job.job} no job waits" if request.array else f"job {job.job} has ended"
                refusal = Refusal("not_waiting", f"{what}; only a job that waits can be held or changed")
                return refusal, await self._desk.close(tx)
            others = [each for each in waiting if not wanted.holds_of(each)]
            for each in others[:MOST_AT_ONCE]:
                change = changing.altered(books, each, wanted, caller, self._clock.now_ms(), self._desk.terms)
                if isinstance(change, Reason):
                    return Refusal(change.code, change.sentence), await self._desk.close(tx)
                self._desk.apply(change)
            self._desk.want(job.clusters or books.cluster_names())
            now = books.jobs[(others or waiting)[0].job]
            coming = _coming(books, job) if request.array else None
            if coming is not None:
                # Those that have not been made yet come as the others now are.
                alike = replace(
                    coming.template, held=now.held, priority=now.priority, slice_ms=now.slice_ms, next_slice_ms=now.slice_ms
                )
                books.arrays.put(replace(coming, template=alike))
            reply = Changed(
                job=job.job,
                status="changed" if others else "unchanged",
                held=now.held,
                priority=now.priority,
                slice_ms=now.slice_ms,
                jobs=min(len(others), MOST_AT_ONCE) if others else len(waiting),
                left=max(0, len(others) - MOST_AT_ONCE),
            )
            return reply, await self._desk.close(tx)

        answer = await self._writer.exclusively(work)
        if isinstance(answer, Refusal):
            raise answer
        return answer

    async def _own(self, caller: str, job: str, doing: str) -> Job:
        """A job that the caller may command, as it was stored.

        Raises:
            Refusal: `unknown_job`, `ambiguous_job` or `not_your_job`.
        """
        # Refused out here: a transaction that fails drops the books, and a stranger must not cause that.
        async with self._db.reading() as connection:
            stored = one_of(await self._store.jobs_by_suffix(connection, job), job)
        if stored.user != caller and caller not in self._operators:
            raise Refusal("not_your_job", f"job {stored.job} belongs to {stored.user}; only its owner or an operator may {doing}")
        return stored

    async def set_policy(self, caller: str, request: SetPolicy) -> PolicySet:
        """Replace a cluster's policy; a pass follows at once. What runs goes on.

        Raises:
            Refusal: `stale_policy`: another revision is in force than the one expected. `slice_bounds`: they leave nothing between.
                `unknown_budget`: it would limit a budget that is not in the tree.
        """
        document = request.policy
        least_ms, cap_ms = document.slice_min_ms, policies.slice_cap_ms(document, self._desk.terms)
        if least_ms is not None and 0 < cap_ms < least_ms:
            least, cap = format_duration(least_ms), format_duration(cap_ms)
            raise Refusal("slice_bounds", f"the least slice of {least} is above the cap of {cap}; change one of them")

        async def work(tx: Transaction) -> tuple[PolicySet | Refusal, Outcome]:
            books = await self._desk.open(tx)
            answer = self._decree(books, caller, request)
            return answer, await self._desk.close(tx)

        answer = await self._writer.exclusively(work)
        if isinstance(answer, Refusal):
            raise answer
        return answer

    async def declare_lost(self, caller: str, request: DeclareLost) -> DeclaredLost:
        """Declare a node dead: its attempts end at its last sign of life, and their jobs wait again.

        Raises:
            Refusal: `unknown_node`, or `node_not_silent` without `force`.
        """

        async def work(tx: Transaction) -> tuple[DeclaredLost | Refusal, Outcome]:
            books = await self._desk.open(tx)
            now_ms, key = self._clock.now_ms(), (request.cluster, request.node)
            fault = losing.fault_of(books, key, now_ms, self._desk.terms, force=request.force)
            if fault is not None:
                return Refusal(fault.code, fault.sentence), await self._desk.close(tx)
            node = books.nodes[key]
            if node.lost_at_ms is not None:
                return _declared(request, books.last_seen_ms(node), "already_lost"), await self._desk.close(tx)
            terms = policies.terms_on(books, request.cluster, self._desk.terms)
            change, fact = losing.declared(books, node, (caller, request.reason), now_ms, terms)
            self._desk.apply(change)
            self._desk.want(books.cluster_names())
            answer = _declared(request, fact.last_seen_ms, "declared")
            return replace(answer, attempts=lost_attempts(fact)), await self._desk.close(tx)

        answer = await self._writer.exclusively(work)
        if isinstance(answer, Refusal):
            raise answer
        return answer

    def _decree(self, books: Books, caller: str, request: SetPolicy) -> PolicySet | Refusal:
        cluster, had = request.cluster, books.policies.get(request.cluster)
        revision, is_known = 0 if had is None else had.revision, cluster in books.cluster_names()
        if request.expected_revision != revision:
            sentence = f"revision {revision} of the policy of {cluster} is in force, not {request.expected_revision}; read it again"
            return Refusal("stale_policy", sentence)
        if had is not None and had.policy == request.policy:
            return PolicySet(cluster=cluster, known=is_known, status="unchanged", revision=revision)
        if unknown := policies.strangers(books, cluster, request.policy):
            assert books.tree is not None
            names = ", ".join(unknown[:_MOST_NAMED]) + (
                f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
            )
            sentence = f"not in revision {books.tree.revision} of the tree: {names}; `allmende budgets` lists the budgets"
            return Refusal("unknown_budget", sentence)
        now_ms = self._clock.now_ms()
        # A clock that was set back must not make a policy begin before the one that it follows.
        from_ms = now_ms if had is None else max(now_ms, had.from_ms)
        known = KnownPolicy(
            cluster=cluster,
            revision=revision + 1,
            from_ms=from_ms,
            author=caller,
            reason=request.reason,
            policy=request.policy,
        )
        change = policies.decreed(books, known)
        books.put_policy(known)
        self._desk.apply(change)
        self._desk.want((cluster,))
        return PolicySet(cluster=cluster, known=is_known, status="committed", revision=revision + 1, claims=len(change.claims))


def _declared(request: DeclareLost, last_seen_ms: int, status: Literal["declared", "already_lost"]) -> DeclaredLost:
    return DeclaredLost(cluster=request.cluster, node=request.node, status=status, last_seen_ms=last_seen_ms)


def _coming(books: Books, job: Job) -> Unfolding | None:
    """The job's array, if not all of its jobs have been made yet."""
    return None if job.array is None else books.arrays.get(job.array.first)


def _meant(job: Job, array: bool) -> list[str]:
    """The ids of the jobs that a command is about."""
    if not array or job.array is None:
        return [job.job]
    return [following(job.array.first, step) for step in range(job.array.size)]


def _is_told(books: Books, job: Job) -> bool:
    """Whether the agent was told already to end it."""
    attempt = books.attempts.get(job.attempt) if job.attempt is not None else None
    return job.state != "queued" and attempt is not None and attempt.stop == "cancel"
