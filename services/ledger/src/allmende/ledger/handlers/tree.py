"""Reads whole revisions of the tree into the history of shares. Never believes half a revision."""

from allmende.chassis.db import Transaction
from allmende.ledger.model import Share
from allmende.ledger.ports import Trees
from allmende.ledger.rules.tree import Revision, succeed, succeed_own
from allmende.proto.budget import Budget
from allmende.proto.tree import is_whole, named_clusters
from allmende.proto.units import Ms


async def read_in(tx: Transaction, store: Trees) -> None:
    """Read in every announced revision that is whole by now.

    With several replicas an older revision may become whole after a newer one was read in; the history is then derived anew.
    """
    ready: list[tuple[Revision, dict[str, Budget]]] = []
    for revision in await store.pending(tx):
        definitions = await store.definitions(tx, revision.revision)
        if is_whole(definitions, revision.budgets, revision.digest):
            ready.append((revision, definitions))
    if not ready:
        return
    last = await store.last_in_force(tx)
    if last is not None and ready[0][0].revision < last[0]:
        applied = await store.applied(tx)
        ready += [(revision, await store.definitions(tx, revision.revision)) for revision in applied]
        await store.forget_shares(tx)
        last = None
    await _apply(tx, store, sorted(ready, key=lambda each: each[0].revision), 0 if last is None else last[1])


async def _apply(tx: Transaction, store: Trees, ready: list[tuple[Revision, dict[str, Budget]]], not_before_ms: Ms) -> None:
    shares: dict[str, dict[str, Share]] = await store.open_shares(tx)
    for revision, definitions in ready:
        not_before_ms = max(not_before_ms, revision.effective_from_ms)
        # Where a cluster has lost its last share of its own, the rows that are open must end.
        for cluster in sorted({"", *shares, *named_clusters(definitions.values())}):
            before, of = shares.get(cluster, {}), succeed_own if cluster else succeed
            change = of(before, definitions, revision.revision, not_before_ms, cluster)
            await store.apply(tx, cluster, change)
            ended = frozenset(change.ended)
            kept = {name: share for name, share in before.items() if name not in ended}
            shares[cluster] = kept | {share.budget: share for share in change.begun}
        await store.mark_applied(tx, revision.revision, not_before_ms)
