"""Cordons and drains: what operators ask, what goes on by itself in every batch, and where each node stands.

Decides nothing itself (`rules.draining` does), and never touches what runs on a node but by an order in the outbox.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from allmende.chassis import trace
from allmende.chassis.db import Connection, Database, Transaction
from allmende.chassis.log import get_logger
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Draft, Ids
from allmende.chassis.worker import Outcome
from allmende.preemptor import wire
from allmende.preemptor.model import Cordon, Drain, Ended, OrderedOut, Policy, Word
from allmende.preemptor.ports import Rows, Writer
from allmende.preemptor.rules import draining
from allmende.proto.envelope import Refusal
from allmende.proto.preemptor import CordonNodes, DrainPage, DrainQuery, UncordonNodes
from allmende.proto.units import Ms

_NOBODY: Mapping[str, Ended] = {}

_log = get_logger(__name__)
_drained = trace.meter.create_counter("allmende_preemptor_nodes_drained", description="nodes that are empty for a repair")
_orders = trace.meter.create_counter("allmende_preemptor_drain_orders", description="attempts told to leave a drained node")


def lock_of(cluster: str) -> str:
    """Whoever touches the rows of a cluster holds this lock until the commit."""
    return f"cluster {cluster}"


def earliest(*instants: Ms | None) -> Ms | None:
    """The first of those that are set."""
    return min((each for each in instants if each is not None), default=None)


async def standing(store: Rows, cluster: str, nodes: Sequence[str] | None = None) -> list[Drain]:
    """Where nodes stand, as the cluster's mode has it (`Rows.drains`)."""
    drains = await store.drains(cluster, nodes)
    evicts = await store.evicts(cluster) if drains else True
    return [draining.in_mode(drain, evicts=evicts) for drain in drains]


class Drains:
    """The cordoned nodes of all clusters."""

    def __init__(self, ids: Ids, policy: Policy) -> None:
        self.policy = policy
        self._ids = ids

    async def go_on(
        self, store: Rows, cluster: str, now_ms: Ms, ended: Mapping[str, Ended] = _NOBODY
    ) -> tuple[list[Draft], Ms | None]:
        """Say what has become true of the cordoned nodes of a cluster and order out whoever must leave now.

        `ended`: by node, who has just ended a cordon and why. Returns the messages, and the next instant at which a cordon begins
        or ends by itself.
        """
        drains = await standing(store, cluster)
        if not drains:
            return [], None
        attempts = await store.occupants(cluster, [drain.node for drain in drains])
        progress = await store.progress(cluster, None)
        drafts: list[Draft] = []
        for drain in drains:
            occupied = any(name == drain.node and gpus for attempt in attempts for name, gpus in attempt.held)
            words = draining.words(drain, occupied, progress.grants_heard, now_ms, ended.get(drain.node))
            drafts += [await self._say(store, cluster, drain, word, now_ms) for word in words]
        leaving = draining.leaving(drains, attempts, self.policy, now_ms)
        if leaving:
            drafts += await self._order_out(store, cluster, leaving, progress.usage_revision or 0, now_ms)
        return drafts, draining.next_change_ms(drains, now_ms)

    async def _say(self, store: Rows, cluster: str, drain: Drain, word: Word, now_ms: Ms) -> Draft:
        await store.said(cluster, drain, word)
        if word.kind == draining.DRAINED:
            _drained.add(1)
        _log.info("a node", cluster=cluster, node=drain.node, is_=word.kind, by=word.terms.by, reason=word.terms.reason)
        return draft(wire.node_word(cluster, drain, word, now_ms), ids=self._ids, now_ms=now_ms)

    async def _order_out(
        self, store: Rows, cluster: str, leaving: Sequence[OrderedOut], usage_revision: int, now_ms: Ms
    ) -> list[Draft]:
        plan = self._ids.new(now_ms)
        tree = await store.tree_in_force()
        revisions = (0 if tree is None else tree[0], usage_revision)
        orders = [wire.ordered_out(cluster, each, plan, now_ms, revisions) for each in leaving]
        await store.keep_drain_plan(plan, cluster, now_ms, revisions, wire.texts(orders), [order.attempt for order in orders])
        await store.expect([wire.departure(order, self.policy.leave_allowance_ms) for order in orders])
        _orders.add(len(orders))
        return [draft(body, ids=self._ids, now_ms=now_ms) for body in orders]


class Operators:
    """What operators ask. Who may ask what is the NATS server's business: it lets nobody else onto the writing subjects.

    `rows` opens the rows behind a connection.
    """

    def __init__(self, drains: Drains, db: Database, writer: Writer, clock: Clock, rows: Callable[[Connection], Rows]) -> None:
        self._drains, self._db, self._writer, self._clock, self._rows = drains, db, writer, clock, rows

    async def cordon(self, caller: str, request: CordonNodes) -> DrainPage:
        """Cordon or drain nodes, or change the terms.

        Raises:
            Refusal: `unknown_node` or `not_valid`; then nothing was changed.
        """
        now_ms = self._clock.now_ms()
        asked = wire.cordon_of(caller, request, now_ms)
        faults = draining.faults_of(asked, now_ms, request.from_ms)
        if faults:
            raise Refusal("not_valid", "; ".join(faults))

        async def write(store: Rows) -> None:
            for drain in await store.drains(request.cluster, request.nodes):
                await store.put_cordon(request.cluster, drain.node, "operator", begun(asked, drain.operator, request.from_ms))

        return await self._write(request.cluster, request.nodes, write)

    async def uncordon(self, caller: str, request: UncordonNodes) -> DrainPage:
        """End the operators' cordon. Nodes that have none are left as they are.

        Raises:
            Refusal: `unknown_node`.
        """
        ended = dict.fromkeys(request.nodes, Ended(caller, request.reason))

        async def write(store: Rows) -> None:
            for node in request.nodes:
                await store.put_cordon(request.cluster, node, "operator", None)

        return await self._write(request.cluster, request.nodes, write, ended)

    async def drains(self, caller: str, query: DrainQuery) -> DrainPage:
        """Where the cordoned nodes of a cluster stand, by name."""
        async with self._db.reading() as connection:
            return await self._page(self._rows(connection), query.cluster, None, query.after)

    async def _write(
        self,
        cluster: str,
        nodes: Sequence[str],
        write: Callable[[Rows], Awaitable[None]],
        ended: Mapping[str, Ended] = _NOBODY,
    ) -> DrainPage:
        async def work(tx: Transaction) -> tuple[DrainPage, Outcome]:
            await tx.lock(lock_of(cluster))
            store, now_ms = self._rows(tx.connection), self._clock.now_ms()
            unknown = await store.unknown_nodes(cluster, nodes)
            if unknown:
                sentence = f"cluster {cluster} has never reported {', '.join(unknown)}; `allmende nodes` lists what there is"
                raise Refusal("unknown_node", sentence)
            await write(store)
            drafts, _edge_ms = await self._drains.go_on(store, cluster, now_ms, ended)
            # The worker's own timer may lie behind a cordon that was just announced: it looks again at once.
            return await self._page(store, cluster, nodes), Outcome(drafts, now_ms)

        return await self._writer.exclusively(work)

    async def _page(self, store: Rows, cluster: str, nodes: Sequence[str] | None, after: str | None = None) -> DrainPage:
        now_ms = self._clock.now_ms()
        drains = [drain for drain in await standing(store, cluster, nodes) if after is None or drain.node > after]
        attempts = await store.occupants(cluster, [drain.node for drain in drains])
        return wire.drain_page(cluster, drains, attempts, self._drains.policy, now_ms)


def begun(asked: Cordon, had: Cordon | None, from_ms: Ms | None) -> Cordon:
    """A cordon that has begun goes on from where it began, unless somebody says another beginning."""
    return asked if had is None or from_ms is not None else asked._replace(from_ms=had.from_ms)
