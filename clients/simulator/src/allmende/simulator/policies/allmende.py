"""Allmende itself: admission's, preemptor's and ledger's own rules, on the virtual clock. No decision is made here.

What messages carry between the services is handed over at once: the rules see what they would have heard. Never a copy of a rule.
"""

import heapq
from collections.abc import Sequence
from itertools import count

from msgspec.structs import replace

from allmende.admission.model.books import Books, Timer
from allmende.admission.model.facts import Change, Claimed, Ended, Granted, Refused, StopOrdered
from allmende.admission.model.values import Attempt, Claim, Counted, Node, Reason, Reserved, Saves
from allmende.admission.model.values import Job as Waiting
from allmende.admission.rules import explaining, life, passing, trees, vetting
from allmende.ledger.rules.rolling import Rolling
from allmende.preemptor import model as preemptor
from allmende.preemptor.rules import gather
from allmende.preemptor.rules.judge import assert_lawful, carried_on, judge
from allmende.proto.units import Ms
from allmende.simulator.model import Cluster, Job, RunEnd, StandingSample, TreeChange
from allmende.simulator.policies.handover import claim_of, snapshot_of
from allmende.simulator.policies.settings import Settings
from allmende.simulator.ports import Action, Close, Evict, Grant, Promised, Refuse, Stop


class Allmende:
    """The services' own rules for one cluster."""

    name = "allmende"

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self._settings, self._cluster = settings, cluster.cluster
        self._terms = settings.terms()
        self._policy = settings.preemptor()
        self._books = Books()
        self._rolling = Rolling(length_ms=settings.window_ms, slice_cap_ms=settings.slice_cap_ms, cluster=cluster.cluster)
        self._numbers = count(1)
        self._nodes_seq = count(1)
        self._revision = 0
        self._usage_revision = 0
        self._wanted = False
        self._actions: list[Action] = []
        self._expiries: list[tuple[Ms, str]] = []
        self._paces: dict[str, Ms] = {}
        # When each attempt saves next.
        self._saving: list[tuple[Ms, str]] = []
        # Jobs whose devices are never busy: what agents would report. Looked at only once an attempt has lived long enough.
        self._parked: set[str] = set()
        self._leaving: list[tuple[Ms, str, str]] = []
        self._promised: dict[str, Reserved] = {}
        # Jobs that still wait and whose promise a failing node has made void, and when that said they would start.
        self._voided: dict[str, Ms] = {}

    # ------------------------------------------------------------------------------------------------------- what is taken note of

    def tree(self, change: TreeChange) -> None:
        """A tree of budgets is in force from now on."""
        self._revision += 1
        budgets = {each.budget: each for each in change.budgets}
        self._books.put_tree(trees.made(self._revision, budgets))
        self._rolling.tree(budgets, self._revision, change.at_ms)
        self._wanted = True

    def node(self, node: str, gpus: int, healthy: int, gpu_model: str | None, now_ms: Ms) -> None:
        """A node reports."""
        known = self._books.nodes.get((self._cluster, node))
        report = Node(
            cluster=self._cluster,
            node=node,
            gpu_model=gpu_model,
            installed=gpus,
            healthy=healthy,
            at_ms=now_ms,
            seq=next(self._nodes_seq),
            # Known from the beginning: nobody is kept undecided because nodes are told one by one.
            first_seen_ms=now_ms - self._terms.settle_ms if known is None else known.first_seen_ms,
            last_seen_ms=now_ms,
        )
        self._apply(Change(nodes=(report,), stirred=(self._cluster,)))
        nodes = self._books.nodes.values()
        self._rolling.capacity(sum(each.installed for each in nodes), sum(each.healthy for each in nodes), now_ms)
        self._wanted = True

    def submitted(self, job: Job, now_ms: Ms) -> None:
        """A job came in: refuse it, or let it wait."""
        waiting = Waiting(
            job=job.job,
            user=job.user,
            name=job.tag,
            budget=job.budget,
            clusters=(),
            replicas=job.replicas,
            gpus_per_replica=job.gpus_per_replica,
            gpu_model=job.gpu_model,
            slice_ms=job.slice_ms,
            stated_runtime_ms=None,
            max_runtime_ms=job.max_runtime_ms,
            resumable=job.resumable,
            priority=job.priority,
            kind=job.kind,
            may_run_unallocated=job.may_run_unallocated,
            submitted_at_ms=now_ms,
            next_slice_ms=job.slice_ms,
        )
        verdict = vetting.vet(waiting, self._books, now_ms, self._terms)
        if verdict.refusal is not None:
            self._apply(life.refuse(waiting, verdict.refusal, now_ms))
            return
        self._apply(Change(jobs=(explaining.accepted(waiting, verdict.accepted),)))
        if not job.busy_ppm:
            self._parked.add(job.job)
        self._wanted = True

    def started(self, attempt: str, now_ms: Ms) -> Ms:
        """All replicas run."""
        self._rolling.started(attempt, now_ms)
        self._apply(life.started(self._books, attempt, now_ms, now_ms))
        running = self._books.attempts[attempt]
        assert running.protected_until_ms is not None
        if running.budget is not None:
            heapq.heappush(self._expiries, (running.protected_until_ms, attempt))
        else:
            self._wanted = True
        return running.protected_until_ms

    def saves(self, attempt: str, every_ms: Ms, now_ms: Ms) -> None:
        """The attempt saves its work at this pace."""
        self._paces[attempt] = every_ms
        heapq.heappush(self._saving, (now_ms + every_ms, attempt))
        self._books.saves[attempt] = Saves(now_ms, every_ms)

    def ended(self, attempt: str, end: RunEnd, now_ms: Ms, saved_at_ms: Ms | None) -> None:
        """No replica runs any more."""
        assert end != "still_running"
        self._rolling.ended(attempt, now_ms)
        said = life.End(outcome=end, at_ms=now_ms, checkpoint_at_ms=saved_at_ms)
        self._apply(life.ended(self._books, attempt, said, now_ms, self._terms))
        self._paces.pop(attempt, None)
        self._wanted = True

    # -------------------------------------------------------------------------------------------------------------------- deciding

    def due_ms(self) -> Ms | None:
        """The earliest timer."""
        timers = [heap[0][0] for heap in (self._expiries, self._leaving) if heap]
        if (timer_ms := self._books.next_timer_ms()) is not None:
            timers.append(timer_ms)
        return min(timers, default=None)

    def decide(self, now_ms: Ms) -> Sequence[Action]:
        """Timers, then a pass if anything changed that it may make use of."""
        for timer in self._books.due(now_ms):
            self._ring(timer, now_ms)
        while self._expiries and self._expiries[0][0] <= now_ms:
            _at_ms, attempt = heapq.heappop(self._expiries)
            if attempt in self._books.attempts:
                self._apply(Change(stirred=(self._cluster,)))
                self._wanted = True
        while self._leaving and self._leaving[0][0] <= now_ms:
            _at_ms, job, attempt = heapq.heappop(self._leaving)
            self._leave_gathered(job, attempt, now_ms)
        if self._wanted and self._books.tree is not None:
            self._pass(now_ms)
        self._books.forget()
        actions, self._actions = self._actions, []
        return actions

    def _ring(self, timer: Timer, now_ms: Ms) -> None:
        _at_ms, kind, about = timer
        if kind == "runtime":
            reason = life.overdue(self._books, about, now_ms)
            if reason is not None:
                self._apply(life.stop(self._books, about, reason, now_ms))
        elif kind == "claim":
            claim = self._books.claims.get(about)
            if claim is not None and claim.deadline_ms <= now_ms:
                self._apply(life.claim_timed_out(self._books, claim, now_ms, self._terms))
                self._wanted = True
        elif kind == "reserved":
            self._wanted = True
        elif kind == "job" and about in self._books.jobs:
            self._apply(life.rested(self._books, about, now_ms))
            self._wanted = True

    def _pass(self, now_ms: Ms) -> None:
        self._hear_standings(now_ms)
        if not passing.may_pass(self._books, self._cluster, now_ms):
            if self._usage_revision == 1:
                # At the very beginning no time has passed that anybody could be owed: the ledger speaks a moment later.
                self._books.set_timer(now_ms + 1, "settle", self._cluster)
            return
        self._books.loosen(now_ms)
        self._hear_saves(now_ms)
        passed = passing.decide(self._books, self._cluster, now_ms, self._terms, self._new_id)
        self._apply(passed.change)
        self._promise(now_ms)
        claims = [fact.claim for fact in passed.change.facts if isinstance(fact, Claimed)]
        self._wanted = passed.again or bool(claims)
        if claims:
            self._answer(claims, now_ms)

    def _hear_saves(self, now_ms: Ms) -> None:
        """What ticks say: who has saved since, and who has been idle for too long of those who may be told to leave."""
        while self._saving and self._saving[0][0] <= now_ms:
            _at_ms, name = heapq.heappop(self._saving)
            attempt = self._books.attempts.get(name)
            saved_ms = None if attempt is None else self.saved_at_ms(attempt, now_ms)
            if saved_ms is not None:
                self._books.saves[name] = Saves(saved_ms, self._paces[name])
                heapq.heappush(self._saving, (saved_ms + self._paces[name], name))
        after_ms = self._settings.idle_after_ms
        if after_ms and self._parked:
            for leaf in self._books.loose.get(self._cluster, {}).values():
                for name, loose in leaf.items():
                    started_ms = loose.attempt.started_at_ms
                    if loose.attempt.job in self._parked and started_ms is not None and started_ms + after_ms <= now_ms:
                        self._books.idle.add(name)

    def _promise(self, now_ms: Ms) -> None:
        """Make new reservations known: to those who wait, and to the preemptor, who lets attempts go after their saves."""
        reservations = self._books.reserved[self._cluster]
        for job in [job for job in self._promised if job not in reservations]:
            reserved = self._promised.pop(job)
            if self._failed(job, reserved):
                self._voided.setdefault(job, reserved.by_ms)
        for job in [job for job in self._voided if not self._waits(job)]:
            # It started as any other does: if that is late, the failure is why.
            if self._voided.pop(job) < now_ms and job in self._books.jobs:
                self._actions.append(Promised(job, now_ms, True))
        for job, reserved in reservations.items():
            former = self._promised.get(job)
            if former == reserved:
                continue
            moved = job in self._voided or (former is not None and self._failed(job, former))
            self._voided.pop(job, None)
            self._promised[job] = reserved
            self._actions.append(Promised(job, reserved.by_ms, moved))
            for part in reserved.placement:
                for name in self._books.on_node.get((self._cluster, part.node), {}):
                    self._plan_leaving(job, name, reserved)

    def _waits(self, job: str) -> bool:
        waiting = self._books.jobs.get(job)
        return waiting is not None and waiting.state == "queued"

    def _failed(self, job: str, reserved: Reserved) -> bool:
        """Has a node of a waiting job's reservation fewer GPUs than were promised there?"""
        if not self._waits(job):
            return False
        gpus = reserved.gpus(self._books.jobs[job].gpus_per_replica)
        return any(self._books.nodes[self._cluster, node].healthy < promised for node, promised in gpus.items())

    def _plan_leaving(self, job: str, name: str, reserved: Reserved) -> None:
        attempt = self._books.attempts[name]
        # Unallocated work stays until its GPUs are needed: it leaves at once.
        if attempt.budget is not None:
            until_ms = attempt.protected_until_ms or attempt.granted_at_ms + attempt.slice_ms
            started_ms, pace_ms = attempt.started_at_ms, self._paces.get(name)
            at_ms = gather.leaves_at_ms(until_ms, started_ms, pace_ms, reserved.order_ms)
            heapq.heappush(self._leaving, (at_ms, job, name))

    def _leave_gathered(self, job: str, name: str, now_ms: Ms) -> None:
        attempt, reserved = self._books.attempts.get(name), self._books.reserved[self._cluster].get(job)
        if attempt is None or reserved is None or not attempt.interruptible(now_ms) or now_ms >= reserved.order_ms:
            return
        if any(part.node in attempt.held() for part in reserved.placement):
            self._order(attempt, job, self._new_id(), self._settings.grace_ms, "its nodes are gathered", now_ms)

    def _new_id(self) -> str:
        return f"{next(self._numbers):09d}"

    def _hear_standings(self, now_ms: Ms) -> None:
        """What the ledger says: standings that count every grant so far."""
        grant_seq = self._books.cluster(self._cluster).grant_seq
        self._usage_revision += 1
        for budget, standing in self._rolling.standings(now_ms).items():
            self._books.put_counted(
                Counted(
                    cluster=self._cluster,
                    budget=budget,
                    usage_revision=self._usage_revision,
                    tree_revision=self._revision,
                    counted_grants=grant_seq,
                    used_gpu_ms=standing.used,
                    entitlement_gpu_ms=standing.entitlement,
                )
            )

    def _answer(self, claims: Sequence[Claim], now_ms: Ms) -> None:
        """What the preemptor says to claims, and the orders that follow."""
        snapshot = snapshot_of(
            self._books, self._cluster, now_ms, self._usage_revision, lambda attempt: self.saved_at_ms(attempt, now_ms)
        )
        for claim in claims:
            asked = claim_of(claim)
            decision = judge(snapshot, asked, self._policy)
            if isinstance(decision, preemptor.Infeasible):
                reason = Reason(decision.code, decision.sentence)
                self._apply(life.answered(self._books, claim.claim, reason, now_ms, self._terms))
                continue
            assert_lawful(decision, now_ms, now_ms)
            plan = self._new_id()
            victims = tuple(victim.attempt.attempt for victim in decision.victims)
            planned = replace(claim, plan=plan, placement=decision.placement, victims=victims)
            self._apply(life.answered(self._books, claim.claim, planned, now_ms, self._terms))
            for victim in decision.victims:
                self._order(self._books.attempts[victim.attempt.attempt], claim.job, plan, victim.grace_ms, victim.sentence, now_ms)
            snapshot = carried_on(snapshot, asked, decision)

    def _order(self, attempt: Attempt, claimant: str, plan: str, grace_ms: Ms, sentence: str, now_ms: Ms) -> None:
        order = life.Order(
            plan=plan,
            claimant_job=claimant,
            at_ms=now_ms,
            grace_ms=grace_ms,
            sentence=sentence,
            numbers={},
            tree_revision=self._revision,
            usage_revision=self._usage_revision,
        )
        self._apply(life.ordered(self._books, attempt.attempt, order))
        self._actions.append(Evict(attempt.attempt, grace_ms, claimant))

    def saved_at_ms(self, attempt: Attempt, now_ms: Ms) -> Ms | None:
        """The last save that the agent has reported by now."""
        every_ms = self._paces.get(attempt.attempt)
        if every_ms is None or attempt.started_at_ms is None:
            return None
        saves = (now_ms - attempt.started_at_ms) // every_ms
        return attempt.started_at_ms + saves * every_ms if saves else None

    def _apply(self, change: Change) -> None:
        self._books.apply(change)
        for fact in change.facts:
            match fact:
                case Granted():
                    attempt = fact.attempt
                    self._rolling.began(attempt.attempt, attempt.budget, attempt.gpus, attempt.slice_ms, attempt.granted_at_ms)
                    self._actions.append(Grant(attempt.attempt, attempt.job, attempt.budget, attempt.placement, attempt.slice_ms))
                case StopOrdered():
                    self._actions.append(Stop(fact.attempt.attempt, self._terms.stop_grace_ms))
                case Refused():
                    self._actions.append(Refuse(fact.job, fact.reason.code, fact.reason.sentence))
                case Ended():
                    assert fact.job.outcome is not None
                    self._actions.append(Close(fact.job.job, fact.job.outcome))
                case _:
                    pass

    # --------------------------------------------------------------------------------------------------------------------- reading

    def standings(self, now_ms: Ms) -> StandingSample:
        """How the budgets stand."""
        read = self._rolling.standings(now_ms)
        return StandingSample(now_ms, {budget: (each.used, each.entitlement) for budget, each in sorted(read.items())})

    def waiting(self) -> tuple[int, int]:
        """Jobs and GPUs that wait."""
        jobs = [job for job in self._books.jobs.values() if job.state == "queued"]
        return len(jobs), sum(job.gpus for job in jobs)
