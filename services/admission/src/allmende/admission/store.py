"""Rows: the only place that knows SQL. Few statements a batch, each for all rows of its kind. Decides nothing."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from asyncpg import Record
from msgspec import Struct
from msgspec.structs import replace

from allmende.admission.model.arrays import Unfolding
from allmende.admission.model.books import Books, Dirty
from allmende.admission.model.values import (
    Attempt,
    Claim,
    Cluster,
    Cordon,
    Counted,
    Decided,
    Job,
    KnownBudget,
    KnownPolicy,
    KnownRevision,
    Node,
    Tree,
)
from allmende.admission.ports import JobFilter, Owner, PastFilter
from allmende.admission.rules import trees
from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.chassis.errors import StaleTerm
from allmende.proto.budget import Budget
from allmende.proto.units import Ms

_SQL = load_queries("allmende.admission")
_encoder = msgspec.json.Encoder()
_jobs = msgspec.json.Decoder(Job)
_unfoldings = msgspec.json.Decoder(Unfolding)
_attempts = msgspec.json.Decoder(Attempt)
_claims = msgspec.json.Decoder(Claim)
_nodes = msgspec.json.Decoder(Node)
_cordons = msgspec.json.Decoder(Cordon)
_clusters = msgspec.json.Decoder(Cluster)
_counted = msgspec.json.Decoder(Counted)
_known_budgets = msgspec.json.Decoder(KnownBudget)
_known_revisions = msgspec.json.Decoder(KnownRevision)
_policies = msgspec.json.Decoder(KnownPolicy)
_decisions = msgspec.json.Decoder(Decided)
_budgets = msgspec.json.Decoder(list[Budget])

T = TypeVar("T", bound=Struct)


class AdmissionStore:
    """The queries. Keeps no state."""

    async def load(self, tx: Transaction) -> Books:
        """Books of everything that has not ended. The caller holds the term, so nobody writes meanwhile."""
        fetch = tx.connection.fetch
        books = Books()
        books.load_policies(_decoded(_policies, await fetch(_SQL["policies"])))
        newest = await tx.connection.fetchrow(_SQL["known_revision"])
        tree = _tree(await tx.connection.fetchrow(_SQL["tree"]))
        books.load_tree(
            _decoded(_known_budgets, await fetch(_SQL["known_budgets"])),
            None if newest is None else _known_revisions.decode(newest["body"]),
            tree,
        )
        books.load(
            jobs=[_job(row) for row in await fetch(_SQL["live_jobs"])],
            attempts=_decoded(_attempts, await fetch(_SQL["live_attempts"])),
            claims=_decoded(_claims, await fetch(_SQL["open_claims"])),
            nodes=_decoded(_nodes, await fetch(_SQL["nodes"])),
            clusters=_decoded(_clusters, await fetch(_SQL["clusters"])),
            counted=_decoded(_counted, await fetch(_SQL["counted"])),
            cordons=_decoded(_cordons, await fetch(_SQL["cordons"])),
        )
        for first in books.arrays.load(_decoded(_unfoldings, await fetch(_SQL["arrays"]))):
            books.set_timer(0, "array", first)
        return books

    async def write(self, tx: Transaction, dirty: Dirty) -> None:
        """Write what a decision changed.

        Raises:
            StaleTerm: a job's row is not as it was; somebody else has written it.
        """
        await _put_jobs(tx, dirty.jobs)
        if dirty.payloads:
            names, bodies = zip(*dirty.payloads, strict=True)
            await tx.connection.execute(_SQL["put_payloads"], list(names), [body.decode() for body in bodies])
        await _put_arrays(tx, dirty.arrays)
        await _put_attempts(tx, dirty.attempts)
        await _put_claims(tx, dirty.claims)
        await _put_decisions(tx, dirty.decisions)
        await _put_state(tx, dirty)

    async def owners(self, tx: Transaction, jobs: Sequence[str]) -> Mapping[str, Owner]:
        """Who submitted each of these jobs that exists, and what."""
        rows = await tx.connection.fetch(_SQL["owners"], list(jobs))
        return {row["job"]: Owner(row["user_name"], row["digest"]) for row in rows}

    async def jobs_by_suffix(self, connection: Connection, suffix: str) -> Sequence[Job]:
        """At most two jobs whose id ends so."""
        return [_job(row) for row in await connection.fetch(_SQL["jobs_by_suffix"], suffix)]

    async def page_of_jobs(self, connection: Connection, wanted: JobFilter) -> Sequence[tuple[Job, Attempt | None]]:
        """Jobs, newest first, each with its latest attempt."""
        rows = await connection.fetch(
            _SQL["page_of_jobs"], wanted.user, wanted.budget, list(wanted.states), wanted.before, wanted.limit, wanted.array
        )
        return [(_job(row), None if row["latest"] is None else _attempts.decode(row["latest"])) for row in rows]

    async def page_of_past(self, connection: Connection, wanted: PastFilter) -> Sequence[tuple[Job, Attempt | None]]:
        """Jobs by id that had not ended before an instant, each as often as it has attempts; once where it has none."""
        rows = await connection.fetch(_SQL["page_of_past"], *wanted)
        return [(_job(row), None if row["attempt"] is None else _attempts.decode(row["attempt"])) for row in rows]

    async def attempts_of_job(self, connection: Connection, job: str) -> Sequence[Attempt]:
        """All attempts of a job, oldest first."""
        found = _decoded(_attempts, await connection.fetch(_SQL["attempts_of_job"], job))
        return sorted(found, key=lambda attempt: (attempt.granted_at_ms, attempt.attempt))

    async def decisions_of_job(self, connection: Connection, job: str, limit: int) -> Sequence[Decided]:
        """The last decisions about a job, oldest first."""
        return _decoded(_decisions, await connection.fetch(_SQL["decisions_of_job"], job, limit))

    async def payload_of_job(self, connection: Connection, job: str) -> bytes | None:
        """What a job runs."""
        body = await connection.fetchval(_SQL["payload_of_job"], job)
        return None if body is None else str(body).encode()

    async def policies_of(self, connection: Connection, cluster: str, before: int | None, limit: int) -> Sequence[KnownPolicy]:
        """A cluster's policies below a revision, newest first."""
        return _decoded(_policies, await connection.fetch(_SQL["policies_of"], cluster, before, limit))

    async def forget_ended(self, tx: Transaction, before_ms: Ms, limit: int) -> int:
        """Delete jobs that ended before an instant; returns how many."""
        tag = await tx.connection.execute(_SQL["forget_ended"], before_ms, limit)
        return int(tag.rpartition(" ")[2])


async def _put_jobs(tx: Transaction, jobs: Sequence[Job]) -> None:
    if not jobs:
        return
    written = await tx.connection.fetch(
        _SQL["put_jobs"],
        [job.job for job in jobs],
        [job.user for job in jobs],
        [job.budget for job in jobs],
        [job.state for job in jobs],
        [job.ended_at_ms for job in jobs],
        [job.version for job in jobs],
        [job.digest for job in jobs],
        _texts(jobs),
        [None if job.array is None else job.array.first for job in jobs],
    )
    if len(written) != len(jobs):
        missed = {job.job for job in jobs} - {row["job"] for row in written}
        raise StaleTerm(f"somebody else has written jobs meanwhile: {', '.join(sorted(missed)[:3])}")


async def _put_arrays(tx: Transaction, arrays: Sequence[Unfolding]) -> None:
    whole, rest = [each.first for each in arrays if each.is_whole], [each for each in arrays if not each.is_whole]
    if rest:
        await tx.connection.execute(_SQL["put_arrays"], [each.first for each in rest], _texts(rest))
    if whole:
        await tx.connection.execute(_SQL["drop_arrays"], whole)


async def _put_attempts(tx: Transaction, attempts: Sequence[Attempt]) -> None:
    if attempts:
        await tx.connection.execute(
            _SQL["put_attempts"],
            [each.attempt for each in attempts],
            [each.job for each in attempts],
            [each.cluster for each in attempts],
            [each.grant_seq for each in attempts],
            [each.state for each in attempts],
            _texts(attempts),
        )


async def _put_claims(tx: Transaction, claims: Sequence[Claim]) -> None:
    if claims:
        await tx.connection.execute(
            _SQL["put_claims"],
            [each.claim for each in claims],
            [each.cluster for each in claims],
            [each.job for each in claims],
            [each.ended is None for each in claims],
            _texts(claims),
        )


async def _put_decisions(tx: Transaction, decisions: Sequence[Decided]) -> None:
    if decisions:
        await tx.connection.execute(_SQL["add_decisions"], [each.job for each in decisions], _texts(decisions))


async def _put_state(tx: Transaction, dirty: Dirty) -> None:
    execute = tx.connection.execute
    if dirty.nodes:
        nodes = dirty.nodes
        await execute(_SQL["put_nodes"], [each.cluster for each in nodes], [each.node for each in nodes], _texts(nodes))
    if dirty.cordons:
        cordons = dirty.cordons
        await execute(_SQL["put_cordons"], [each.cluster for each in cordons], [each.node for each in cordons], _texts(cordons))
    if dirty.clusters:
        clusters = dirty.clusters
        names, seqs = [each.cluster for each in clusters], [each.grant_seq for each in clusters]
        await execute(_SQL["put_clusters"], names, seqs, _texts(clusters))
    if dirty.counted:
        counted = dirty.counted
        await execute(_SQL["put_counted"], [each.cluster for each in counted], [each.budget for each in counted], _texts(counted))
    if dirty.known:
        await execute(_SQL["put_known_budgets"], [each.budget for each in dirty.known], _texts(dirty.known))
    if dirty.newest is not None:
        await execute(_SQL["put_known_revision"], _text(dirty.newest))
    if dirty.tree is not None:
        await execute(_SQL["put_tree"], dirty.tree.revision, _budgets_text(dirty.tree))
    for each in dirty.policies:
        await execute(_SQL["add_policy"], each.cluster, each.revision, each.from_ms, _text(each))


def _budgets_text(tree: Tree) -> str:
    return _encoder.encode([tree.budgets[name] for name in sorted(tree.budgets)]).decode()


def _text(value: Struct) -> str:
    return _encoder.encode(value).decode()


def _texts(values: Sequence[Struct]) -> list[str]:
    return [_text(value) for value in values]


def _decoded(decoder: msgspec.json.Decoder[T], rows: Sequence[Record]) -> list[T]:
    return [decoder.decode(row["body"]) for row in rows]


def _tree(row: Record | None) -> Tree | None:
    return None if row is None else trees.made(row["revision"], {each.budget: each for each in _budgets.decode(row["budgets"])})


def _job(row: Record) -> Job:
    # The column is what writes are conditional on; the body's copy of it is never read.
    return replace(_jobs.decode(row["body"]), version=row["version"])
