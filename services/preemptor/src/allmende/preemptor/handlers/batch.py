"""One batch: learn what is new, say which slices have passed, go on with drains, answer the claims that can be judged.

Holds nothing between batches that is not in the database, but the decoded tree, which is known by its digest. Whoever touches a
cluster holds that cluster's lock until the commit, so that several replicas answer each claim once and on the same facts.
"""

from collections.abc import Callable, Sequence

from allmende.chassis import trace
from allmende.chassis.clock import real_seconds
from allmende.chassis.db import Transaction
from allmende.chassis.health import Health
from allmende.chassis.log import get_logger
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Draft, Event, Ids
from allmende.chassis.worker import Outcome
from allmende.preemptor import wire
from allmende.preemptor.handlers.drains import Drains, earliest, lock_of
from allmende.preemptor.model import Claim, Decision, Heard, Infeasible, Planned, Policy, Snapshot
from allmende.preemptor.ports import Rows
from allmende.preemptor.rules.judge import assert_lawful, carried_on, judge
from allmende.preemptor.rules.ready import budget_readiness, readiness, standings_with_holds
from allmende.proto.budget import Budget
from allmende.proto.order import Path
from allmende.proto.tree import is_whole, paths
from allmende.proto.units import Ms

# Timers taken in one transaction. What is left is due at once in the next.
EXPIRED_MOST = 256
# Real seconds. Admission itself waits one for an answer.
PATIENCE_S = 5.0

_log = get_logger(__name__)
_claims = trace.meter.create_counter("allmende_preemptor_claims_answered", description="claims answered, by code")
_orders = trace.meter.create_counter("allmende_preemptor_evictions_ordered", description="evictions ordered, by rule")
_overdue = trace.meter.create_counter(
    "allmende_preemptor_evictions_overdue", description="evictions that no agent confirmed in time"
)
_expiries = trace.meter.create_counter("allmende_preemptor_slices_expired", description="slices that have passed")


class Preemptor:
    """The handler of the preemptor's batches. `rows` opens the rows of a transaction; `silent_after_ms` is real time."""

    def __init__(
        self,
        *,
        clock: Clock,
        ids: Ids,
        health: Health,
        rows: Callable[[Transaction], Rows],
        policy: Policy,
        silent_after_ms: Ms,
        drains: Drains,
    ) -> None:
        self._clock, self._ids, self._health, self._drains = clock, ids, health, drains
        self._rows, self._policy, self._silent_after_ms = rows, policy, silent_after_ms
        self._tree: tuple[str, dict[str, Path]] | None = None
        # For health alone: since when, in real seconds, claims wait.
        self._waiting_since_s: dict[str, float] = {}

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Handle a batch; with no events, only timers and claims that waited."""
        heard = wire.hear((event.envelope, event.stream_seq) for event in events)
        store = self._rows(tx)
        clusters = sorted(heard.clusters | await store.clusters_with_waiting_claims() | await store.clusters_with_cordons())
        # Always in this order, so that two replicas cannot wait for each other.
        for cluster in clusters:
            await tx.lock(lock_of(cluster))
        if heard.tree:
            await tx.lock("tree")
            await self._switch_tree(store, heard)
        now_ms = self._clock.now_ms()
        await store.learn(heard, now_ms, self._clock.rate)
        drafts = [*await self._expire(store, now_ms), *await self._alarm(store, now_ms)]
        waiting: dict[str, str] = {}
        edges = []
        for cluster in clusters:
            # Before claims: whoever leaves a node that is drained is room to come for nobody.
            said, edge_ms = await self._drains.go_on(store, cluster, now_ms)
            drafts.extend(said)
            edges.append(edge_ms)
            drafts.extend(await self._answer(store, cluster, now_ms, waiting))
        self._report(waiting)
        return Outcome(drafts, earliest(*edges, await store.next_due()))

    def _report(self, waiting: dict[str, str]) -> None:
        """Tell health which claim has waited too long, and for what. Most wait a few milliseconds, for a grant under way."""
        now_s = real_seconds()
        self._waiting_since_s = {claim: self._waiting_since_s.get(claim, now_s) for claim in waiting}
        late = [claim for claim, since_s in self._waiting_since_s.items() if now_s - since_s > PATIENCE_S]
        self._health.ready("claims", not late, f"{len(late)} without an answer; {late[0]}: {waiting[late[0]]}" if late else "")

    async def _switch_tree(self, store: Rows, heard: Heard) -> None:
        """Put the newest revision in force that is announced and wholly heard."""
        await store.add_tree(heard)
        for revision, count, expected in await store.announced_revisions():
            budgets = wire.budgets_of(await store.definitions(revision))
            if is_whole(budgets, count, expected):
                await store.put_in_force(revision)
                return

    async def _expire(self, store: Rows, now_ms: Ms) -> list[Draft]:
        due = await store.take_due(now_ms, EXPIRED_MOST)
        _expiries.add(len(due))
        return [draft(wire.expired(it), ids=self._ids, now_ms=now_ms, occurred_at_ms=it.due_at_ms) for it in due]

    async def _alarm(self, store: Rows, now_ms: Ms) -> list[Draft]:
        """Name those who were told to leave and are still there."""
        stuck = await store.take_overdue(now_ms, EXPIRED_MOST, self._silent_after_ms)
        _overdue.add(len(stuck))
        for each in stuck:
            _log.warning(
                "an eviction is overdue", cluster=each.departure.cluster, attempt=each.departure.attempt, silent=each.silent
            )
        return [draft(wire.overdue(each, now_ms), ids=self._ids, now_ms=now_ms) for each in stuck]

    async def _answer(self, store: Rows, cluster: str, now_ms: Ms, waiting: dict[str, str]) -> list[Draft]:
        """Answer the claims of a cluster that can be judged; the others go into `waiting`, each with what it waits for."""
        claims = await store.waiting_claims(cluster)
        if not claims:
            return []
        tree = await store.tree_in_force()
        progress = await store.progress(cluster, None if tree is None else tree[0])
        snapshot: Snapshot | None = None
        drafts: list[Draft] = []
        for claim, message in claims:
            ready = readiness(claim, progress)
            if ready.verdict == "judge" and tree is not None:
                snapshot = snapshot or await self._snapshot(store, cluster, now_ms, tree, progress.usage_revision or 0)
                ready = budget_readiness(claim, snapshot)
            if ready.verdict == "judge" and snapshot is not None:
                said, snapshot = await self._settle(store, claim, snapshot, judge(snapshot, claim, self._policy), message)
                drafts.extend(said)
            elif ready.verdict == "void":
                # Of an older term, so that nobody waits for its answer.
                _log.info("a claim is void", cluster=cluster, claim=claim.claim, why=ready.sentence)
                await store.settle(claim, "void")
            else:
                waiting[claim.claim] = ready.sentence
        return drafts

    async def _snapshot(self, store: Rows, cluster: str, now_ms: Ms, tree: tuple[int, str], usage_revision: int) -> Snapshot:
        facts = await store.facts(cluster, self._silent_after_ms)
        paths_ = await self._paths(store, tree)
        return Snapshot(
            cluster=cluster,
            now_ms=now_ms,
            nodes=facts.nodes,
            attempts=facts.attempts,
            promised=facts.promised,
            paths=paths_,
            standings=standings_with_holds(facts.published, paths_, facts.grants, facts.planned),
            tree_revision=tree[0],
            usage_revision=usage_revision,
        )

    async def _paths(self, store: Rows, tree: tuple[int, str]) -> dict[str, Path]:
        revision, expected = tree
        if self._tree is None or self._tree[0] != expected:
            budgets: dict[str, Budget] = wire.budgets_of(await store.definitions(revision))
            self._tree = (expected, paths(budgets))
        return self._tree[1]

    async def _settle(
        self, store: Rows, claim: Claim, snapshot: Snapshot, decision: Decision, message: str
    ) -> tuple[list[Draft], Snapshot]:
        """Keep a decision and turn it into messages: the answer, then the orders. Returns the snapshot for the next claim."""
        now_ms = snapshot.now_ms
        plan = self._ids.new(now_ms) if isinstance(decision, Planned) else None
        answer = wire.answered(snapshot, claim, decision, plan)
        if not wire.fits(answer):
            plan, decision = None, Infeasible("answer_too_large", "the plan names more nodes and victims than one message can hold")
            answer = wire.answered(snapshot, claim, decision, None)
        orders = []
        if isinstance(decision, Planned) and plan is not None:
            assert_lawful(decision, ordered_at_ms=now_ms, now_ms=self._clock.now_ms())
            orders = [wire.ordered(snapshot, claim, victim, plan) for victim in decision.victims]
            revisions = (snapshot.tree_revision, snapshot.usage_revision)
            texts = wire.texts([answer, *orders])
            await store.keep_plan(plan, claim, decision, now_ms, revisions, texts[0], texts[1:])
            await store.expect([wire.departure(order, self._policy.leave_allowance_ms) for order in orders])
            snapshot = carried_on(snapshot, claim, decision)
        await store.settle(claim, answer.outcome)
        _claims.add(1, {"code": answer.code})
        for order in orders:
            _orders.add(1, {"rule": order.rule})
        return [draft(body, ids=self._ids, now_ms=now_ms, cause=message) for body in (answer, *orders)], snapshot
