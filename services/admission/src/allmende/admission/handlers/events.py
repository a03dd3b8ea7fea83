"""What admission hears, one batch a transaction. Decides nothing itself; a message about something unknown changes nothing."""

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from allmende.admission.handlers.desk import Desk
from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change
from allmende.admission.model.values import Reason
from allmende.admission.ports import Owner, Store
from allmende.admission.rules import closing, cordons, life, policies, trees
from allmende.admission.wire import heard
from allmende.admission.wire.said import problem
from allmende.chassis.db import Transaction
from allmende.chassis.log import get_logger
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Draft, Event, Ids
from allmende.chassis.worker import Outcome
from allmende.proto.admission import JobRefused
from allmende.proto.agent import AttemptEnded, AttemptStarted, GpuFreed, NodeReported, UsageTick
from allmende.proto.budget import BudgetChanged, RevisionComplete
from allmende.proto.ledger import UsageStanding
from allmende.proto.preemptor import ClaimAnswered, EvictionOrdered, EvictionOverdue, NodeCordoned, NodeReturned, SliceExpired
from allmende.proto.units import Ms
from allmende.proto.user import ARRAY_VARIABLES, MAX_VARIABLES, JobSubmitted

_log = get_logger(__name__)

# A node's last sign of life is written this many times within the time after which it counts as silent.
_SEEN_WRITES = 3


class Hearing:
    """The worker's handler."""

    def __init__(self, desk: Desk, store: Store, clock: Clock, ids: Ids) -> None:
        self._desk, self._store, self._clock, self._ids = desk, store, clock, ids

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Hear a batch, then pass over the queue once."""
        books = await self._desk.open(tx)
        submitted = [name for event in events if isinstance(event.body, JobSubmitted) for name in heard.names(event.body)]
        owners = dict(await self._store.owners(tx, submitted)) if submitted else {}
        refused: list[Draft] = []
        for event in events:
            if isinstance(event.body, JobSubmitted):
                refused.extend(self._submitted(books, owners, event, event.body))
            else:
                self._hear(books, event)
        outcome = await self._desk.close(tx)
        return outcome._replace(drafts=[*refused, *outcome.drafts])

    async def forget(self) -> None:
        """After a transaction that failed."""
        self._desk.drop()

    def _submitted(self, books: Books, owners: dict[str, Owner], event: Event, said: JobSubmitted) -> list[Draft]:
        owner = owners.get(said.job)
        taken = next((name for name in heard.names(said) if name in owners or books.arrays.keeps(name)), None)
        room = MAX_VARIABLES - len(said.payload.environment)
        if said.array is not UNSET and room < len(ARRAY_VARIABLES):
            sentence = f"an array's jobs get {len(ARRAY_VARIABLES)} variables more, and there may be {MAX_VARIABLES}: set fewer"
            return [self._refusal(said, Reason("too_many_variables", sentence), event)]
        if taken is None:
            self._take_in(books, owners, event, said)
            return []
        # Nothing is stored of what is refused here: the row, and its story, are those of the first submission.
        if owner is None:
            reason = Reason("job_id_taken", f"job id {taken}, which the array would use, is taken; make a new id")
        elif owner.user != said.user:
            reason = Reason("job_id_taken", f"job id {said.job} is taken by another user; make a new one")
        elif owner.digest is not None and owner.digest != heard.digest(said):
            sentence = f"job {said.job} was submitted before and said something else; it goes on as it was, make a new id"
            reason = Reason("job_id_reused", sentence)
        else:
            return []
        return [self._refusal(said, reason, event)]

    def _refusal(self, said: JobSubmitted, reason: Reason, event: Event) -> Draft:
        body = JobRefused(user=said.user, job=said.job, problem=problem(reason))
        return draft(body, ids=self._ids, now_ms=self._clock.now_ms(), cause=event.envelope.id)

    def _take_in(self, books: Books, owners: dict[str, Owner], event: Event, said: JobSubmitted) -> None:
        """The job, or the first jobs of its array."""
        occurred_at_ms, received_at_ms = event.envelope.occurred_at_ms, event.received_at_ms
        owner = Owner(said.user, heard.digest(said))
        owners.update(dict.fromkeys(heard.names(said), owner))
        if said.array is UNSET:
            self._desk.take_in(heard.job(said, occurred_at_ms, received_at_ms), received_at_ms, event.envelope.id)
        else:
            self._desk.unfold(heard.unfolding(said, occurred_at_ms, received_at_ms), event.envelope.id)
        if said.job in books.jobs:
            books.put_payload(said.job, heard.payload(said))

    def _hear(self, books: Books, event: Event) -> None:
        body = event.body
        match body:
            case UsageTick():
                self._sign_of_life(books, body.cluster, body.node, event.received_at_ms)
            case NodeReported():
                self._node(books, body, event.received_at_ms)
            case AttemptStarted() | AttemptEnded() | GpuFreed() | EvictionOrdered():
                self._attempt(books, body, event)
            case UsageStanding():
                self._standing(books, body)
            case BudgetChanged():
                trees.heard_budget(books, heard.known_budget(body, event.received_at_ms))
                self._tree(books)
            case RevisionComplete():
                trees.heard_revision(books, heard.known_revision(body))
                self._tree(books)
            case NodeCordoned() | NodeReturned():
                self._desk.apply(cordons.heard(books, heard.cordon(body), self._clock.now_ms()), event.envelope.id)
                self._desk.want((body.cluster,))
            case ClaimAnswered():
                self._answered(books, body, event.envelope.id)
            case EvictionOverdue():
                self._desk.apply(life.overdue_to_leave(books, body.attempt, body.sentence, self._clock.now_ms()), event.envelope.id)
            case SliceExpired():
                self._desk.apply(Change(stirred=(body.cluster,)), event.envelope.id)
                self._desk.want((body.cluster,))
            case _:
                raise AssertionError(f"admission hears {type(body).__name__} and does not know what to do with it")

    def _attempt(self, books: Books, body: AttemptStarted | AttemptEnded | GpuFreed | EvictionOrdered, event: Event) -> None:
        attempt = books.attempts.get(body.attempt)
        if attempt is None or attempt.cluster != body.cluster:
            # A repeat after the end, or an attempt that was never granted there: either way nothing of ours changes.
            _log.info("heard of an attempt that is not live", type=body.TYPE, attempt=body.attempt, cluster=body.cluster)
            return
        match body:
            case AttemptStarted():
                change = life.started(books, body.attempt, body.started_at_ms, event.received_at_ms)
            case AttemptEnded():
                terms = policies.terms_on(books, body.cluster, self._desk.terms)
                change = life.ended(books, body.attempt, heard.end(body), self._clock.now_ms(), terms)
            case GpuFreed():
                change = life.freed(books, body.attempt, tuple((part.node, part.gpus) for part in body.nodes))
            case _:
                change = life.ordered(books, body.attempt, heard.order(body))
        self._desk.apply(change, event.envelope.id)
        if change.stirred:
            self._desk.want((body.cluster,))
            # A job that came back may run on other clusters as well.
            for job in change.jobs:
                if job.state == "queued":
                    self._desk.want(job.clusters or books.cluster_names())

    def _sign_of_life(self, books: Books, cluster: str, name: str, at_ms: Ms) -> None:
        node = books.nodes.get((cluster, name))
        if node is None:
            return
        silent_after_ms = self._desk.terms.silent_after_ms
        if books.last_seen_ms(node) + silent_after_ms < at_ms:
            self._desk.want((cluster,))
        books.seen[node.key] = max(at_ms, books.seen.get(node.key, 0))
        if node.last_seen_ms + silent_after_ms // _SEEN_WRITES < at_ms:
            self._desk.apply(Change(nodes=(replace(node, last_seen_ms=at_ms),)))

    def _node(self, books: Books, said: NodeReported, at_ms: Ms) -> None:
        had = books.nodes.get((said.cluster, said.node))
        # A restarted agent counts anew and a clock may be set back, but not both at once: older in both is a straggler.
        if had is not None and said.seq <= had.seq and said.at_ms <= had.at_ms:
            self._sign_of_life(books, said.cluster, said.node, at_ms)
            return
        node = heard.node(said, had, at_ms)
        self._desk.apply(Change(nodes=(node,), stirred=(said.cluster,)))
        self._desk.want((said.cluster,))
        if had is None:
            books.set_timer(at_ms + self._desk.terms.settle_ms, "settle", "")
            if len(books.nodes) == 1:
                self._desk.judge_again()

    def _standing(self, books: Books, said: UsageStanding) -> None:
        had = books.counted.get(said.cluster, {}).get(said.budget)
        if had is None or had.usage_revision < said.usage_revision:
            books.put_counted(heard.counted(said))
            self._desk.want((said.cluster,))

    def _tree(self, books: Books) -> None:
        tree = trees.switch(books)
        if tree is not None:
            _log.info("the tree has changed", revision=tree.revision, budgets=len(tree.budgets))
            before = books.tree
            books.put_tree(tree)
            self._desk.apply(closing.switched(books, before, self._clock.now_ms()))
            self._desk.judge_again()
            self._desk.want(books.cluster_names())

    def _answered(self, books: Books, said: ClaimAnswered, cause: str) -> None:
        claim = books.claims.get(said.claim)
        if claim is None or claim.cluster != said.cluster:
            return
        self._desk.apply(life.answered(books, said.claim, heard.answer(said, claim), self._clock.now_ms(), self._desk.terms), cause)
        self._desk.want((said.cluster,))
