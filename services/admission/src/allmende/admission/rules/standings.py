"""Standings as admission judges by them: the ledger's, plus the holds of its own grants that the ledger has not counted yet, and
those of jobs that nodes are gathered for: a leaf saves up for its gang (decision 0015).

Pure. Unknown is not zero: a budget without a standing is absent.
"""

from collections.abc import Iterable

from allmende.admission.model.books import Books
from allmende.proto.order import LeafKey, Path, leaf_key
from allmende.proto.standing import Standing
from allmende.proto.units import GpuMs


class Standings:
    """The standings of one cluster during one pass: every grant counts at once, at the leaf and at all its ancestors."""

    def __init__(self, books: Books, cluster: str) -> None:
        self.version = 0
        """Grows with every hold."""
        counted = books.counted.get(cluster, {})
        self.now = {name: Standing(each.used_gpu_ms, each.entitlement_gpu_ms) for name, each in counted.items()}
        self.revision = max((each.usage_revision for each in counted.values()), default=0)
        self.paths = books.tree.paths if books.tree is not None else {}
        # Holds change amounts, never which budgets have a standing.
        self._known: dict[str, bool] = {}
        # A budget that is gone is counted no further.
        newest_for_all = min((each.counted_grants for name, each in counted.items() if name in self.paths), default=0)
        for attempt in books.attempts.values() if newest_for_all < books.newest_grant[cluster] else ():
            if attempt.cluster == cluster and attempt.budget is not None and attempt.grant_seq > newest_for_all:
                for budget in self.paths.get(attempt.budget, ()):
                    if budget in self.now and attempt.grant_seq > counted[budget].counted_grants:
                        self.now[budget] = self.now[budget].after(attempt.hold_gpu_ms)
        for name in books.reserved[cluster]:
            job = books.jobs[name]
            for budget in self.paths.get(job.budget or "", ()):
                if budget in self.now:
                    self.now[budget] = self.now[budget].after(job.next_slice_ms * job.gpus)

    def knows(self, leaf: str) -> bool:
        """True when every budget on the leaf's path has a standing: only then may anything be decided about it."""
        known = self._known.get(leaf)
        if known is None:
            path = self.paths.get(leaf, ())
            known = self._known[leaf] = bool(path) and all(budget in self.now for budget in path)
        return known

    def path(self, leaf: str) -> Path:
        """From the root to the leaf."""
        return self.paths[leaf]

    def key(self, leaf: str) -> LeafKey:
        """What sorts the leaf now. Within a pass it only grows, because holds are only added."""
        return leaf_key(self.paths[leaf], self.now)

    def hold(self, leaf: str, amount: GpuMs) -> None:
        """Count a hold."""
        self.version += 1
        for budget in self.paths[leaf]:
            self.now[budget] = self.now[budget].after(amount)

    def unhold(self, leaf: str, amount: GpuMs) -> None:
        """Take back a hold that was counted before: a reserved job's, when it is granted and counts as any other."""
        self.version += 1
        for budget in self.paths[leaf]:
            now = self.now[budget]
            self.now[budget] = Standing(now.used - amount, now.entitlement)

    def with_holds(self, holds: Iterable[tuple[str, GpuMs]]) -> "Standings":
        """A copy that counts these holds (leaf, GPU-ms) as well."""
        copy = Standings.__new__(Standings)
        copy.now, copy.revision, copy.paths, copy.version = dict(self.now), self.revision, self.paths, 0
        copy._known = self._known
        for leaf, amount in holds:
            if copy.knows(leaf):
                copy.hold(leaf, amount)
        return copy
