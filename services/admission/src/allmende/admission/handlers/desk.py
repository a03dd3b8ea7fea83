"""The desk: the books of this term in memory, the passes over them, and the one way in which a batch ends.

One transaction at a time works at the desk (the worker sees to that). When one fails, the books are dropped and loaded anew, so
memory never holds what was not committed. Decides nothing itself: rules do.
"""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from allmende.admission.model.arrays import Unfolding
from allmende.admission.model.books import Books, Timer
from allmende.admission.model.facts import NOTHING, Change, Claimed, Ended, Fact, Granted, Protected, Queued, Refused
from allmende.admission.model.values import Decided, Job, Reason, Terms
from allmende.admission.ports import Store, Term
from allmende.admission.rules import closing, cordons, explaining, life, policies, vetting
from allmende.admission.rules.passing import Outlook, decide, may_pass, not_ready
from allmende.admission.wire import said
from allmende.chassis import trace
from allmende.chassis.db import Transaction
from allmende.chassis.errors import Transient
from allmende.chassis.health import Health
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Draft, Ids
from allmende.chassis.worker import Outcome
from allmende.proto.units import Ms

# Jobs of an array that are made at a time: about a tenth of a second.
UNFOLD_MOST = 250
# Earmarks that fall in a pass give a second one something to do; more rounds than this wait for the next batch.
ROUNDS_MAX = 4
# While claims are answered nothing is granted. After that the cluster is left alone for so many times as long, so that at most a
# fifth of the time goes to waiting: when jobs end by the dozen a second, most claimants fit without anybody leaving.
CLAIMS_REST = 4

_refused = trace.meter.create_counter("allmende_jobs_refused", description="jobs refused")
_queued = trace.meter.create_counter("allmende_jobs_queued", description="jobs queued, those that came back included")
_granted = trace.meter.create_counter("allmende_attempts_granted", description="grants")
_started = trace.meter.create_counter("allmende_attempts_started", description="starts that agents confirmed")
_ended = trace.meter.create_counter("allmende_jobs_ended", description="jobs that ended, refused ones not counted")
_claims = trace.meter.create_counter("allmende_claims_raised", description="claims raised")
_COUNTERS = {Refused: _refused, Queued: _queued, Granted: _granted, Protected: _started, Ended: _ended, Claimed: _claims}


class _New(NamedTuple):
    """A job that came in with this batch: what is said of it waits for the pass, so that it carries the blockers."""

    job: str
    cause: str | None
    warnings: tuple[Reason, ...]


class Desk:
    """The books and what is being decided on them."""

    def __init__(self, store: Store, term: Term, clock: Clock, ids: Ids, health: Health, terms: Terms) -> None:
        self.terms = terms
        self.outlooks: dict[str, Outlook] = {}
        self.books: Books | None = None
        self._store, self._term, self._clock, self._ids, self._health = store, term, clock, ids, health
        self._loaded_at_ms = 0
        self._wanted: set[str] = set()
        self._asked_at_ms: dict[str, Ms] = {}
        self._claims_from_ms: dict[str, Ms] = {}
        self._begin()

    def _begin(self) -> None:
        self._said: list[tuple[Fact, str | None]] = []
        self._new: list[_New] = []

    # ------------------------------------------------------------------------------------------------------------ for every batch

    async def open(self, tx: Transaction) -> Books:
        """Begin a batch: hold the term, and have the books.

        Raises:
            StaleTerm: somebody else is the writer now.
        """
        await self._term.check(tx)
        self._begin()
        if self.books is None:
            books = await self._store.load(tx)
            self._loaded_at_ms = self._clock.now_ms()
            newest_ms = max((node.first_seen_ms for node in books.nodes.values()), default=0)
            books.set_timer(newest_ms + self.terms.settle_ms, "settle", "")
            self._wanted.update(books.cluster_names())
            self.books = books
        return self.books

    def drop(self) -> None:
        """Forget the books: a transaction failed, so memory may be ahead of the rows."""
        self.books = None
        self.outlooks.clear()

    def apply(self, change: Change, cause: str | None = None) -> None:
        """Take a decision over: into memory, into the rows of this transaction and into what will be said."""
        if change is NOTHING:
            return
        assert self.books is not None
        self.books.apply(change)
        self._said.extend((fact, cause) for fact in change.facts)
        for kind in map(type, change.facts):
            if kind in _COUNTERS:
                _COUNTERS[kind].add(1)

    def unfold(self, array: Unfolding, cause: str | None) -> None:
        """Make the next jobs of an array. Where its first can never run none of the others is made."""
        assert self.books is not None
        made = array.next(UNFOLD_MOST)
        for job in made:
            self.take_in(job, array.received_at_ms, cause)
            if job.job == array.first and job.job not in self.books.jobs:
                return
        array = replace(array, made=array.made + len(made))
        self.books.arrays.put(array)
        if not array.is_whole:
            # Behind what has come meanwhile: nobody waits for a whole array.
            self.books.set_timer(self._clock.now_ms() + 1, "array", array.first)

    def take_in(self, job: Job, received_at_ms: Ms, cause: str | None) -> None:
        """A job that was not known: refuse it, or let it wait."""
        assert self.books is not None
        now_ms = self._clock.now_ms()
        job, moved = closing.raced(self.books, job, received_at_ms, now_ms)
        verdict = vetting.vet(job, self.books, now_ms, self.terms)
        refusal = verdict.refusal
        if refusal is None and verdict.accepted:
            refusal = policies.over_budget(job, self.books)
        if refusal is not None:
            self.apply(life.refuse(job, refusal, now_ms), cause)
            return
        warnings = vetting.warnings(job)
        decided = explaining.submitted(job, now_ms, warnings)
        self.apply(Change(jobs=(explaining.accepted(job, verdict.accepted),), decisions=(decided,)), cause)
        self._new.append(_New(job.job, cause, warnings))
        self.apply(moved, cause)
        self.want(job.clusters or self.books.cluster_names())

    def judge_again(self) -> None:
        """The tree or the capacity has become known: settle what was kept undecided, and what turns out never to fit."""
        assert self.books is not None
        now_ms = self._clock.now_ms()
        for job in [each for each in self.books.jobs.values() if each.state == "queued" and each.attempts == 0]:
            if not job.accepted:
                verdict = vetting.vet(job, self.books, now_ms, self.terms)
                if verdict.accepted:
                    self.apply(Change(jobs=(explaining.accepted(job, True),)))
                refusal = verdict.refusal
            else:
                refusal = vetting.outgrown(job, self.books, now_ms, self.terms) if job.claim is None else None
            if refusal is not None:
                self._new = [new for new in self._new if new.job != job.job]
                self.apply(life.refuse(job, refusal, now_ms))

    def want(self, clusters: Iterable[str]) -> None:
        """Something changed there that a pass may make use of."""
        self._wanted.update(clusters)

    async def close(self, tx: Transaction) -> Outcome:
        """End a batch: timers, passes, rows; returns what to say and when to wake."""
        books = self.books
        assert books is not None
        now_ms = self._clock.now_ms()
        for timer in books.due(now_ms):
            self._ring(timer, now_ms)
        self._pass(now_ms)
        queued = self._queued(now_ms)
        missing = not_ready(books)
        self._health.ready("books", not missing, "; ".join(missing))
        await self._store.write(tx, books.drain())
        # Newly queued jobs first: nobody hears of a grant before the job.
        drafts = [*queued, *(self._draft(fact, cause, now_ms) for fact, cause in self._said)]
        # A cluster that could be passed over at once but was not waits for no message: more rounds than allowed, or earmarks that
        # fell there because the job started elsewhere.
        at_once = any(may_pass(books, cluster, now_ms) for cluster in self._wanted)
        return Outcome(drafts, now_ms if at_once else books.next_timer_ms())

    # -------------------------------------------------------------------------------------------------------------------- inside

    def _ring(self, timer: Timer, now_ms: Ms) -> None:
        books = self.books
        assert books is not None
        _at_ms, kind, about = timer
        # What happened while nobody was here still waits in the streams: no time-out may be judged before it was heard.
        patient_ms = self._loaded_at_ms + self.terms.start_timeout_ms
        if kind in ("start", "claim") and now_ms < patient_ms and (about in books.attempts or about in books.claims):
            books.set_timer(patient_ms, kind, about)
        elif kind in ("start", "runtime"):
            reason = life.overdue(books, about, now_ms)
            if reason is not None:
                self.apply(life.stop(books, about, reason, now_ms))
        elif kind == "claim":
            claim = books.claims.get(about)
            if claim is not None and claim.deadline_ms <= now_ms:
                self.apply(life.claim_timed_out(books, claim, now_ms, self.terms))
                self.want((claim.cluster,))
        elif kind == "job":
            self.apply(life.rested(books, about, now_ms))
            if about in books.jobs:
                self.want(books.jobs[about].clusters or books.cluster_names())
        elif kind == "claims":
            self.want((about,))
        elif kind == "reserved" and about in books.jobs:
            self.want(books.jobs[about].clusters or books.cluster_names())
        elif kind == "cordon":
            cluster, _, node = about.partition("/")
            self.apply(cordons.begun(books, cluster, node, now_ms))
        elif kind == "array":
            if (array := books.arrays.get(about)) is not None:
                self.unfold(array, None)
        elif kind == "settle":
            self.judge_again()

    def _pass(self, now_ms: Ms) -> None:
        books = self.books
        assert books is not None
        for cluster in sorted(self._wanted):
            for _round in range(ROUNDS_MAX):
                if not may_pass(books, cluster, now_ms):
                    # Still wanted: what is missing, or the answer, or its time-out brings us back.
                    break
                self._wanted.discard(cluster)
                may_claim = self._may_claim(cluster, now_ms)
                passed = decide(books, cluster, now_ms, self.terms, lambda: self._ids.new(now_ms), may_claim=may_claim)
                self.apply(passed.change)
                self.outlooks[cluster] = passed.outlook
                self.want(claim.cluster for claim in passed.change.claims if claim.ended == "elsewhere")
                if any(claim.ended is None for claim in passed.change.claims):
                    self._asked_at_ms[cluster] = now_ms
                if not passed.again:
                    break
                self._wanted.add(cluster)

    def _may_claim(self, cluster: str, now_ms: Ms) -> bool:
        """May claims be raised in a pass now? The last ones have all been answered, or nobody waits for their answer any more."""
        asked_at_ms = self._asked_at_ms.pop(cluster, None)
        if asked_at_ms is not None:
            self._claims_from_ms[cluster] = now_ms + CLAIMS_REST * (now_ms - asked_at_ms)
        from_ms = self._claims_from_ms.get(cluster, 0)
        if now_ms < from_ms:
            assert self.books is not None
            self.books.set_timer(from_ms, "claims", cluster)
        return now_ms >= from_ms

    def _queued(self, now_ms: Ms) -> list[Draft]:
        books = self.books
        assert books is not None
        drafts: list[Draft] = []
        for new in self._new:
            job = books.jobs.get(new.job)
            if job is None:
                continue
            reasons = explaining.blockers(job, books, self.outlooks, now_ms, self.terms)
            if reasons:
                sentence = "waits: " + "; ".join(reason.sentence for reason in reasons)
                waits = Decided(job=job.job, at_ms=now_ms, kind="queued", sentence=sentence[:1_000])
                self.apply(Change(decisions=(waits,)))
            _queued.add(1)
            drafts.append(self._draft(Queued(job, None, new.warnings, reasons), new.cause, now_ms))
        return drafts

    def _draft(self, fact: Fact, cause: str | None, now_ms: Ms) -> Draft:
        fence = self._term.fence
        assert fence is not None
        message = said.message(fact, fence, now_ms, self.terms.stop_grace_ms)
        return draft(message, ids=self._ids, now_ms=now_ms, cause=cause)

    # ------------------------------------------------------------------------------------------------------------------- reading

    def known(self) -> Books:
        """The books, for a query.

        Raises:
            Transient: they are just being loaded.
        """
        if self.books is None:
            raise Transient("admission is loading; ask again in a moment")
        return self.books
