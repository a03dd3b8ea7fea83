"""Reads and writes of a batch: attempts, counters, postings, buckets, faults. One statement a kind of row.

Whoever writes a cluster's rows holds its lock, so what was read stays true until the commit, with any number of replicas.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asyncpg import Record
from msgspec.structs import astuple

from allmende.chassis.db import Transaction, load_queries
from allmende.ledger.model import Attempt, AttemptKey, Counter, Fault, Grant, Granted, NodeStep, Posting, ReplicaKey
from allmende.ledger.rules.posting import BucketKey
from allmende.ledger.rules.quarantine import claim_size
from allmende.ledger.store.quarantine import encode_claim
from allmende.proto.units import GpuMs, Ms

_SQL = load_queries("allmende.ledger")
# An attempt's row has the grant's values between its key and the rest.
_GRANT = len(Grant._fields)


def _columns(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows as columns, also when there are none."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    return columns or [[] for _ in range(width)]


class BookingStore:
    """The queries of a batch."""

    async def lock(self, tx: Transaction, clusters: Iterable[str]) -> None:
        """Lock clusters, always in the order of their names, so that two replicas never wait for one another in a circle.

        Raises:
            Transient: another replica held one for too long.
        """
        for cluster in sorted(clusters):
            await tx.lock(f"cluster:{cluster}")

    async def know(self, tx: Transaction, clusters: Iterable[str]) -> None:
        """Have a row for each cluster, from the first message on."""
        names = sorted(clusters)
        if names:
            await tx.connection.execute(_SQL["add_clusters"], names)

    async def attempts(self, tx: Transaction, names: Iterable[str]) -> dict[AttemptKey, Attempt]:
        """What is known of attempts, on whichever cluster."""
        rows = await tx.connection.fetch(_SQL["attempts"], list(names))
        return {(row["cluster"], row["attempt"]): read_attempt(row) for row in rows}

    async def counters_of_replicas(self, tx: Transaction, keys: Iterable[ReplicaKey]) -> list[Counter]:
        """All epochs of some replicas."""
        columns = _columns(keys, 3)
        return [Counter(*row.values()) for row in await tx.connection.fetch(_SQL["counters_of_replicas"], *columns)]

    async def counters_of_attempts(self, tx: Transaction, keys: Iterable[AttemptKey]) -> list[Counter]:
        """All counters of some attempts."""
        columns = _columns(keys, 2)
        if not columns[0]:
            return []
        return [Counter(*row.values()) for row in await tx.connection.fetch(_SQL["counters_of_attempts"], *columns)]

    async def save_attempts(self, tx: Transaction, attempts: Iterable[Attempt]) -> None:
        """Write attempts as they are now known."""
        rows = [_attempt_row(each) for each in sorted(attempts, key=lambda each: (each.attempt, each.cluster))]
        if rows:
            await tx.connection.execute(_SQL["save_attempts"], *_columns(rows, 14))

    async def add_placed(self, tx: Transaction, grants: Iterable[Granted]) -> None:
        """Keep who submitted newly granted attempts and on which nodes their replicas are. The attempts are saved before."""
        rows = [row for grant in grants for row in _placed(grant)]
        if rows:
            await tx.connection.execute(_SQL["add_placed"], *_columns(rows, 6))

    async def save_counters(self, tx: Transaction, counters: Sequence[Counter]) -> None:
        """Write counters as they now stand."""
        if counters:
            await tx.connection.execute(_SQL["save_counters"], *_columns(map(astuple, counters), 13))

    async def add_postings(self, tx: Transaction, postings: Sequence[Posting], buckets: Mapping[BucketKey, GpuMs]) -> None:
        """Add postings, and their amounts to the buckets."""
        if not postings:
            return
        await tx.connection.execute(_SQL["add_postings"], *_columns(postings, 9))
        rows = [(cluster, budget or "", bucket_ms, buckets[cluster, budget, bucket_ms]) for cluster, budget, bucket_ms in buckets]
        await tx.connection.execute(_SQL["add_to_buckets"], *_columns(sorted(rows), 4))

    async def add_faults(self, tx: Transaction, faults: Iterable[Fault], now_ms: Ms) -> None:
        """Keep what was not counted; several of one thing and code count up in one row."""
        groups: dict[tuple[str, str, str], list[Fault]] = {}
        for fault in faults:
            groups.setdefault((fault.cluster, fault.what, fault.code), []).append(fault)
        if not groups:
            return
        rows = [
            (*key, each[-1].sentence, each[-1].excess_gpu_ms, max(f.excess_gpu_ms for f in each), len(each), each[0].event)
            for key, each in sorted(groups.items())
        ]
        last = [each[-1].event for _, each in sorted(groups.items())]
        greatest = [max(each, key=claim_size) for _, each in sorted(groups.items())]
        claims = [None if each.claim is None else encode_claim(each.claim) for each in greatest]
        await tx.connection.execute(
            _SQL["add_faults"], *_columns(rows, 8), now_ms, last, claims, [claim_size(each) for each in greatest]
        )

    async def add_steps(self, tx: Transaction, steps: Sequence[NodeStep]) -> None:
        """Keep nodes' reports; of two for one instant the one with the greater seq stands."""
        if not steps:
            return
        newest: dict[tuple[str, str, Ms], NodeStep] = {}
        for step in sorted(steps, key=lambda each: each.seq):
            newest[step.cluster, step.node, step.at_ms] = step
        await tx.connection.execute(_SQL["add_steps"], *_columns([newest[key] for key in sorted(newest)], 7))


def _placed(grant: Granted) -> Iterator[tuple[Any, ...]]:
    first = 0
    for node, replicas in grant.nodes:
        yield grant.attempt, grant.cluster, first, replicas, node, grant.user
        first += replicas


def read_attempt(row: Record) -> Attempt:
    """An attempt as its row has it."""
    cluster, attempt, *values = row.values()
    grant = None if row["granted_at_ms"] is None else Grant(*values[:_GRANT])
    return Attempt(cluster, attempt, grant, *values[_GRANT:])


def _attempt_row(attempt: Attempt) -> tuple[Any, ...]:
    return (attempt.cluster, attempt.attempt, *(attempt.grant or (None,) * _GRANT), *attempt[3:])
