"""The preemptor's rows, read and written inside a transaction that somebody else opened. Never decides.

Every method is one or two statements whatever the size of the batch.
"""

from collections.abc import Collection, Sequence
from typing import Any

import asyncpg
import msgspec

from allmende.chassis.db import Connection, load_queries
from allmende.preemptor.model import (
    Attempt,
    Claim,
    ClaimRow,
    Closed,
    Cordon,
    Counted,
    Departure,
    Drain,
    Expired,
    Facts,
    Granted,
    Heard,
    Node,
    NodeGpus,
    Planned,
    Progress,
    Stuck,
    Waiting,
    Word,
)
from allmende.preemptor.rules.draining import RETURNED, agents_wish
from allmende.proto.standing import Standing
from allmende.proto.units import DAY_MS, Ms

_SQL = load_queries(__package__)
_encode = msgspec.json.Encoder().encode
_cordon = msgspec.json.Decoder(Cordon)
# As long as the streams keep messages: what is forgotten here cannot be said again from there.
KEEP_MS = 30 * DAY_MS


def _columns(rows: Collection[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


class Store:
    """`ports.Rows` in PostgreSQL, through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _write(self, query: str, rows: Collection[Sequence[Any]], *more: object) -> None:
        if rows:
            await self._connection.execute(_SQL[query], *_columns(rows), *more)

    async def clusters_with_waiting_claims(self) -> set[str]:
        """Clusters where somebody waits for an answer."""
        return {row["cluster"] for row in await self._connection.fetch(_SQL["clusters_with_waiting_claims"])}

    async def learn(self, heard: Heard, now_ms: Ms, rate: int) -> None:
        """Write what a batch says. Whatever was known already, or has been overtaken, changes nothing."""
        await self._write("add_clusters", [(cluster, heard.fences.get(cluster, 0)) for cluster in sorted(heard.clusters)])
        await self._write("set_modes", [(cluster, mode.evicts, mode.revision) for cluster, mode in heard.modes.items()])
        await self._write("add_grants", list(heard.grants.values()))
        await self._write("protect", list(heard.protected.values()))
        await self._write("add_held", [(*key, gpus) for key, gpus in heard.held.items()])
        if heard.grants:
            await self._connection.execute(_SQL["advance_grants"], sorted({row.cluster for row in heard.grants.values()}))
        await self._write("free_gpus", [(*key, gpus) for key, gpus in heard.freed.items()])
        await self._write("lose_attempts", sorted(heard.lost))
        if heard.ended:
            await self._write("end_attempts", [(*key, now_ms) for key in sorted(heard.ended)])
            await self._write("forget_ended", sorted(heard.ended))
            await self._connection.execute(_SQL["prune_attempts"], now_ms - KEEP_MS)
        await self._hear_nodes(heard, now_ms, rate)
        await self._write("save_checkpoints", [(*key, at_ms) for key, at_ms in heard.checkpoints.items()])
        await self._write("set_standings", list(heard.standings.values()))
        await self._write("add_claims", [_claim_row(row) for row in heard.claims.values()])
        if heard.ended_claims:
            await self._write("end_claims", sorted(heard.ended_claims), now_ms)
            await self._connection.execute(_SQL["prune_claims"], now_ms - KEEP_MS)

    async def _hear_nodes(self, heard: Heard, now_ms: Ms, rate: int) -> None:
        # Liveness is real time: the age of a sign of life on a scaled clock is that much younger.
        rows = [(*row[:-1], max(0, now_ms - row.sent_at_ms) // rate) for row in heard.nodes.values()]
        await self._write("report_nodes", rows)
        await self._write("lose_nodes", [(*key, *last) for key, last in heard.lost_nodes.items()])
        await self._write("hear_nodes", [(*key, max(0, now_ms - sent) // rate) for key, sent in heard.signs.items()])
        await self._write("close_nodes", [(*key, *closed) for key, closed in heard.closed.items()])
        if rows:
            wishes = await self._connection.fetch(_SQL["agents_cordons"], *_columns(sorted(heard.nodes)))
            for row in wishes:
                had = _cordon_of(row["terms"])
                wish = agents_wish(row["cluster"], row["cordon"], row["at_ms"], had)
                if wish != had:
                    await self.put_cordon(row["cluster"], row["node"], "agent", wish)

    async def add_tree(self, heard: Heard) -> None:
        """Write what a batch says about the tree; nothing of it is in force yet."""
        await self._write("add_budget_changes", [(*key, definition) for key, definition in heard.changes.items()])
        await self._write("add_revisions", [(revision, *it) for revision, it in heard.revisions.items()])

    async def announced_revisions(self) -> list[tuple[int, int, str]]:
        """Complete revisions that are not in force: (revision, budgets, digest), newest first."""
        rows = await self._connection.fetch(_SQL["announced_revisions"])
        return [(row["revision"], row["budgets"], row["digest"]) for row in rows]

    async def tree_in_force(self) -> tuple[int, str] | None:
        """Revision and digest of the tree in force."""
        row = await self._connection.fetchrow(_SQL["tree_in_force"])
        return None if row is None else (row["revision"], row["digest"])

    async def definitions(self, revision: int) -> list[str]:
        """The budgets of a revision, as far as they were heard, as JSON."""
        return [row["definition"] for row in await self._connection.fetch(_SQL["definitions"], revision)]

    async def put_in_force(self, revision: int) -> None:
        """Switch to a revision and drop what it replaces."""
        await self._connection.execute(_SQL["drop_older_revisions"], revision)
        await self._connection.execute(_SQL["put_in_force"], revision)
        await self._connection.execute(_SQL["drop_replaced_definitions"], revision)

    async def waiting_claims(self, cluster: str) -> list[Waiting]:
        """Claims without an answer, in the order in which admission raised them."""
        rows = await self._connection.fetch(_SQL["waiting_claims"], cluster)
        claims = (Claim(**{name: row[name] for name in Claim._fields}) for row in rows)
        return [
            Waiting(
                claim._replace(avoid_nodes=tuple(row["avoid_nodes"].split()), reserved_nodes=tuple(row["reserved_nodes"].split())),
                row["message"],
            )
            for claim, row in zip(claims, rows, strict=True)
        ]

    async def progress(self, cluster: str, tree_revision: int | None) -> Progress:
        """How far the cluster has been heard."""
        row = await self._connection.fetchrow(_SQL["progress"], cluster)
        assert row is not None, "a select without a table has a row"
        return Progress(row["grants_heard"], row["fence"], tree_revision, row["usage_revision"], row["nodes"])

    async def facts(self, cluster: str, silent_after_ms: Ms) -> Facts:
        """All that a snapshot needs. `silent_after_ms`: real milliseconds without a sign of life."""
        fetch = self._connection.fetch
        nodes = await fetch(_SQL["nodes"], cluster, silent_after_ms)
        attempts = await fetch(_SQL["attempts"], cluster)
        held = {row["attempt"]: tuple(zip(row["nodes"], row["gpus"], strict=True)) for row in await fetch(_SQL["held"], cluster)}
        saved = {row["attempt"]: tuple(row["saved"]) for row in await fetch(_SQL["checkpoints"], cluster)}
        promised = await fetch(_SQL["promised"], cluster)
        standings = await fetch(_SQL["standings"], cluster)
        planned = await fetch(_SQL["planned_holds"], cluster)
        return Facts(
            tuple(Node(*row) for row in nodes),
            tuple(_attempt(row, held.get(row["attempt"], ()), saved.get(row["attempt"], ())) for row in attempts),
            tuple(Granted(row["budget"], row["hold_gpu_ms"], row["grant_seq"]) for row in attempts if row["budget"] is not None),
            {row["node"]: row["gpus"] for row in promised},
            {row[0]: Counted(Standing(row[1], row[2]), row[3]) for row in standings},
            tuple((row["budget"], row["hold_gpu_ms"]) for row in planned),
        )

    async def settle(self, claim: Claim, state: str) -> None:
        """The claim is answered, or void."""
        await self._connection.execute(_SQL["settle_claim"], claim.cluster, claim.claim, state)

    async def keep_plan(
        self, plan: str, claim: Claim, planned: Planned, made_at_ms: Ms, revisions: tuple[int, int], answer: str, orders: list[str]
    ) -> None:
        """Keep a plan for ever, promise its room, and mark its victims as leaving. `revisions`: of tree and usage."""
        cluster, name = claim.cluster, claim.claim
        await self._connection.execute(_SQL["add_plan"], plan, cluster, name, made_at_ms, *revisions, answer, orders)
        nodes = [it.node for it in planned.placement]
        gpus = [it.replicas * claim.gpus_per_replica for it in planned.placement]
        await self._connection.execute(_SQL["add_promises"], cluster, name, nodes, gpus)
        victims = [victim.attempt.attempt for victim in planned.victims]
        if victims:
            await self._connection.execute(_SQL["send_away"], cluster, victims, plan)

    async def take_due(self, now_ms: Ms, most: int) -> list[Expired]:
        """Take the timers that are due, earliest first; no other replica gets them."""
        rows = await self._connection.fetch(_SQL["take_due"], now_ms, most)
        return sorted((Expired(*row) for row in rows), key=lambda it: (it.due_at_ms, it.attempt))

    async def expect(self, departures: Sequence[Departure]) -> None:
        """Set a timer for each attempt that was told to leave."""
        await self._write("add_departures", departures)

    async def take_overdue(self, now_ms: Ms, most: int, silent_after_ms: Ms) -> list[Stuck]:
        """Take those that should be gone, earliest first, and mark them; who holds nothing any more is left out."""
        rows = await self._connection.fetch(_SQL["take_overdue"], now_ms, most)
        found = []
        for late in sorted((Departure(*row) for row in rows), key=lambda it: (it.due_at_ms, it.attempt)):
            held = await self._connection.fetch(_SQL["still_held"], late.cluster, late.attempt, silent_after_ms)
            silent = tuple(row["node"] for row in held if row["silent"])
            if held:
                found.append(Stuck(late, tuple((row["node"], row["gpus"]) for row in held), silent))
        return found

    async def next_due(self) -> Ms | None:
        """The earliest timer."""
        due: Ms | None = await self._connection.fetchval(_SQL["next_due"])
        return due

    async def clusters_with_cordons(self) -> set[str]:
        """Clusters where somebody wants a node cordoned, or where a node's return was not said yet."""
        return {row["cluster"] for row in await self._connection.fetch(_SQL["clusters_with_cordons"])}

    async def evicts(self, cluster: str) -> bool:
        """Whether the cluster's policy lets anybody be evicted unless an operator says so; so it is where nobody has set one."""
        found: bool | None = await self._connection.fetchval(_SQL["evicts"], cluster)
        return found is not False

    async def drains(self, cluster: str, nodes: Collection[str] | None = None) -> list[Drain]:
        """Where nodes stand, by name: the named ones; None: all that are wanted cordoned, or whose return was not said."""
        rows = await self._connection.fetch(_SQL["drains"], cluster, None if nodes is None else list(nodes))
        return [_drain(row) for row in rows]

    async def occupants(self, cluster: str, nodes: Sequence[str]) -> list[Attempt]:
        """Attempts that hold GPUs on these nodes, with all that they hold anywhere."""
        rows = await self._connection.fetch(_SQL["occupants"], cluster, list(nodes))
        held = await self._connection.fetch(_SQL["held_by"], cluster, [row["attempt"] for row in rows])
        by_attempt = {row["attempt"]: tuple(zip(row["nodes"], row["gpus"], strict=True)) for row in held}
        return [_attempt(row, by_attempt.get(row["attempt"], ()), ()) for row in rows]

    async def said(self, cluster: str, drain: Drain, word: Word) -> None:
        """A word goes out: the node's next revision."""
        terms = None if word.kind == RETURNED else _encode(word.terms).decode()
        await self._connection.execute(_SQL["say_of_node"], cluster, drain.node, word.kind, terms)

    async def put_cordon(self, cluster: str, node: str, source: str, cordon: Cordon | None) -> None:
        """Who wants the node cordoned, and how; None: he no longer does."""
        if cordon is None:
            await self._connection.execute(_SQL["drop_cordon"], cluster, node, source)
        else:
            await self._connection.execute(_SQL["put_cordon"], cluster, node, source, _encode(cordon).decode())

    async def unknown_nodes(self, cluster: str, nodes: Sequence[str]) -> list[str]:
        """Those of the nodes that no agent of the cluster has ever reported."""
        return [row["name"] for row in await self._connection.fetch(_SQL["unknown_nodes"], cluster, list(nodes))]

    async def keep_drain_plan(
        self, plan: str, cluster: str, made_at_ms: Ms, revisions: tuple[int, int], orders: list[str], attempts: list[str]
    ) -> None:
        """Keep the orders of a drain for ever, and mark who leaves."""
        await self._connection.execute(_SQL["add_drain_plan"], plan, cluster, made_at_ms, *revisions, orders)
        await self._connection.execute(_SQL["send_away"], cluster, attempts, plan)


def _claim_row(row: ClaimRow) -> tuple[Any, ...]:
    # A column of lists does not travel beside others, so the names go as one text.
    *plain, avoid, reserved = row.claim
    return (*plain, " ".join(avoid), " ".join(reserved), row.stream_seq, row.message)


def _attempt(row: asyncpg.Record, held: tuple[NodeGpus, ...], saved_at_ms: tuple[Ms, ...]) -> Attempt:
    return Attempt(
        attempt=row["attempt"],
        job=row["job"],
        budget=row["budget"],
        held=held,
        replicas=row["replicas"],
        gpus_per_replica=row["gpus_per_replica"],
        priority=row["priority"],
        started_at_ms=row["started_at_ms"],
        protected_until_ms=row["protected_until_ms"],
        saved_at_ms=saved_at_ms,
        leaving=row["leaving_plan"] is not None,
        overdue=row["overdue"],
    )


def _cordon_of(terms: str | None) -> Cordon | None:
    return None if terms is None else _cordon.decode(terms)


def _drain(row: asyncpg.Record) -> Drain:
    closed = None if row["closed_revision"] is None else Closed(row["closed_revision"], row["closed_grant_seq"])
    return Drain(
        node=row["node"],
        operator=_cordon_of(row["operator"]),
        agent=_cordon_of(row["agent"]),
        said=row["said"],
        terms=_cordon_of(row["terms"]),
        terms_revision=row["terms_revision"],
        revision=row["revision"],
        closed=closed,
    )
