"""Proposals and their answers in PostgreSQL, append-only, each as it was said. Decides nothing."""

from collections.abc import Sequence

import msgspec
from asyncpg import Record

from allmende.budget.model import ProposalFilter
from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.proto.proposals import Proposal, ProposalDecided, ShareProposed

_SQL = load_queries("allmende.budget", "proposals.sql")
_encode = msgspec.json.Encoder().encode
_proposed = msgspec.json.Decoder(ShareProposed)
_decided = msgspec.json.Decoder(ProposalDecided)


class ProposalStore:
    """The queries. Whoever writes holds the lock of the tree (`TreeStore.tree_for_writing`)."""

    async def add(self, tx: Transaction, proposed: ShareProposed) -> None:
        """Keep a proposal."""
        row = (proposed.proposal, proposed.budget, proposed.author, _encode(proposed).decode(), proposed.renews)
        await tx.connection.execute(_SQL["add_proposal"], *row)

    async def end(self, tx: Transaction, decided: ProposalDecided) -> None:
        """Keep the answer to a proposal."""
        await tx.connection.execute(_SQL["end_proposal"], decided.proposal, decided.ending, _encode(decided).decode())

    async def one(self, connection: Connection, proposal: str) -> Proposal | None:
        """A proposal by its whole id; None where there is none."""
        row = await connection.fetchrow(_SQL["one_proposal"], proposal)
        return None if row is None else _proposal(row)

    async def open_for(self, connection: Connection, budgets: Sequence[str]) -> Sequence[Proposal]:
        """The proposals for these budgets that wait for an answer, oldest first."""
        return [_proposal(row) for row in await connection.fetch(_SQL["open_proposals_for"], list(budgets))]

    async def budgets_with_open(self, connection: Connection) -> Sequence[str]:
        """The budgets for which a proposal waits, by name."""
        return [row["budget"] for row in await connection.fetch(_SQL["budgets_with_open_proposals"])]

    async def before(self, connection: Connection, number: int | None, wanted: ProposalFilter, limit: int) -> Sequence[Proposal]:
        """Up to `limit` proposals, newest first, those before `number` (None: all)."""
        budgets = None if wanted.budgets is None else list(wanted.budgets)
        row = (number, wanted.proposal, budgets, wanted.author, wanted.state, limit)
        return [_proposal(each) for each in await connection.fetch(_SQL["proposals_before"], *row)]


def _proposal(row: Record) -> Proposal:
    decided = None if row["decided"] is None else _decided.decode(row["decided"])
    return Proposal(number=row["number"], proposed=_proposed.decode(row["proposed"]), decided=decided)
