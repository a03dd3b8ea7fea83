"""What the handler needs of its rows. `store.Store` is the one that keeps them; the protocol says what each call promises."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeVar

from allmende.chassis.db import Transaction
from allmende.chassis.worker import Outcome
from allmende.preemptor.model import (
    Attempt,
    Claim,
    Cordon,
    Departure,
    Drain,
    Expired,
    Facts,
    Heard,
    Planned,
    Progress,
    Stuck,
    Waiting,
    Word,
)
from allmende.proto.units import Ms

T = TypeVar("T")


class Rows(Protocol):
    """The preemptor's rows inside one open transaction. Whoever writes to a cluster's rows holds that cluster's lock."""

    async def clusters_with_waiting_claims(self) -> set[str]:
        """Clusters where somebody waits for an answer."""

    async def learn(self, heard: Heard, now_ms: Ms, rate: int) -> None:
        """Write what a batch says. Whatever was known already, or has been overtaken, changes nothing. `rate`: of the clock."""

    async def add_tree(self, heard: Heard) -> None:
        """Write what a batch says about the tree; nothing of it is in force yet."""

    async def announced_revisions(self) -> list[tuple[int, int, str]]:
        """Complete revisions that are not in force: (revision, budgets, digest), newest first."""

    async def tree_in_force(self) -> tuple[int, str] | None:
        """Revision and digest of the tree in force."""

    async def definitions(self, revision: int) -> list[str]:
        """The budgets of a revision, as far as they were heard, as JSON."""

    async def put_in_force(self, revision: int) -> None:
        """Switch to a revision and drop what it replaces."""

    async def waiting_claims(self, cluster: str) -> list[Waiting]:
        """Claims without an answer, in the order in which admission raised them."""

    async def progress(self, cluster: str, tree_revision: int | None) -> Progress:
        """How far the cluster has been heard."""

    async def facts(self, cluster: str, silent_after_ms: Ms) -> Facts:
        """All that a snapshot needs. `silent_after_ms`: real milliseconds without a sign of life."""

    async def settle(self, claim: Claim, state: str) -> None:
        """The claim is answered (`planned`, `infeasible`) or `void`."""

    async def keep_plan(
        self, plan: str, claim: Claim, planned: Planned, made_at_ms: Ms, revisions: tuple[int, int], answer: str, orders: list[str]
    ) -> None:
        """Keep a plan for ever, promise its room, and mark its victims as leaving. `revisions`: of tree and usage."""

    async def take_due(self, now_ms: Ms, most: int) -> list[Expired]:
        """Take the timers that are due, earliest first; no other replica gets them."""

    async def expect(self, departures: Sequence[Departure]) -> None:
        """Set a timer for each attempt that was told to leave."""

    async def take_overdue(self, now_ms: Ms, most: int, silent_after_ms: Ms) -> list[Stuck]:
        """Take those that should be gone, earliest first, and mark them; who holds nothing any more is left out."""

    async def next_due(self) -> Ms | None:
        """The earliest timer."""

    async def clusters_with_cordons(self) -> set[str]:
        """Clusters where somebody wants a node cordoned, or where a node's return was not said yet."""

    async def evicts(self, cluster: str) -> bool:
        """Whether the cluster's policy lets anybody be evicted unless an operator says so; so it is where nobody has set one."""

    async def drains(self, cluster: str, nodes: Collection[str] | None = None) -> list[Drain]:
        """Where nodes stand, by name: the named ones; None: all that are wanted cordoned, or whose return was not said."""

    async def occupants(self, cluster: str, nodes: Sequence[str]) -> list[Attempt]:
        """Attempts that hold GPUs on these nodes, with all that they hold anywhere."""

    async def said(self, cluster: str, drain: Drain, word: Word) -> None:
        """A word goes out: the node's next revision."""

    async def put_cordon(self, cluster: str, node: str, source: str, cordon: Cordon | None) -> None:
        """Who wants the node cordoned, and how; None: he no longer does."""

    async def unknown_nodes(self, cluster: str, nodes: Sequence[str]) -> list[str]:
        """Those of the nodes that no agent of the cluster has ever reported."""

    async def keep_drain_plan(
        self, plan: str, cluster: str, made_at_ms: Ms, revisions: tuple[int, int], orders: list[str], attempts: list[str]
    ) -> None:
        """Keep the orders of a drain for ever, and mark who leaves."""


class Writer(Protocol):
    """Runs commands one after another and between batches, each in a transaction of its own, and says what they decided."""

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """Do the work in a transaction; its drafts go into the same transaction's outbox."""
