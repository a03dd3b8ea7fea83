"""What the handler needs of its rows. `store.Store` is the one that keeps them; the protocol says what each call promises."""

from typing import Protocol

from allmende.preemptor.model import Claim, Expired, Facts, Heard, Planned, Progress, Waiting
from allmende.proto.units import Ms


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

    async def next_due(self) -> Ms | None:
        """The earliest timer."""
