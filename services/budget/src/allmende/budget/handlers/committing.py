"""What every write to the tree ends in: the revision kept, its followers asked, its messages drafted. Decides nothing."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from allmende.budget import wire
from allmende.budget.model import Commit, Rejection, Verdict
from allmende.budget.ports import Follower, Store
from allmende.chassis.db import Transaction
from allmende.chassis.log import get_logger
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Ids
from allmende.chassis.worker import Outcome

_log = get_logger(__name__)

CarryOut: TypeAlias = Callable[[Transaction, Verdict, str], Awaitable[Outcome]]
"""`Committer`, as those see it who need no more."""


class Committer:
    """Carries verdicts out. `followers`: what else a new tree changes, in the same transaction."""

    def __init__(self, store: Store, ids: Ids, followers: Sequence[Follower] = ()) -> None:
        self._store = store
        self._ids = ids
        self._followers = tuple(followers)

    async def __call__(self, tx: Transaction, verdict: Verdict, author: str, upload: str | None = None) -> Outcome:
        """Write what was decided; returns what is to be said. `tx` holds the lock of the tree."""
        if isinstance(verdict, Rejection):
            codes = [fault.code for fault in verdict.faults[:20]]
            _log.info("a write was refused", revision=verdict.revision, author=author, codes=codes)
        if not isinstance(verdict, Commit):
            return Outcome()
        await self._store.add(tx, verdict, upload)
        bodies = [*wire.messages(verdict)]
        for follow in self._followers:
            bodies += await follow(tx, verdict)
        now_ms = verdict.revision.effective_from_ms
        _log.info("a new tree of budgets", revision=verdict.revision.number, changed=len(verdict.changed), author=author)
        return Outcome(drafts=[draft(body, ids=self._ids, now_ms=now_ms) for body in bodies])
