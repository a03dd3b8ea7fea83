"""The history of the tree: revisions become shares with validity, so that "as of t" is a query.

Reads a revision only when it is whole. Never judges a tree: that is the budget service's.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from allmende.ledger.model import Share
from allmende.proto.budget import Budget
from allmende.proto.tree import covers_slices, effective_share, leaves, paths
from allmende.proto.units import Ms


class Revision(NamedTuple):
    """A revision as announced: what its budgets must number and hash to."""

    revision: int
    effective_from_ms: Ms
    budgets: int
    digest: str


def shares_of(definitions: Mapping[str, Budget], revision: int, from_ms: Ms, cluster: str = "") -> dict[str, Share]:
    """Every budget's share on a cluster from an instant on; empty: on those that have none of their own.

    An unset leaf covers nothing; unset inner budgets are transparent (contract §2).
    """
    trails = paths(definitions)
    ends = leaves(definitions)
    shares: dict[str, Share] = {}
    for budget, path in trails.items():
        ppm, _ = effective_share(path, definitions, cluster)
        covers = budget not in ends or covers_slices(definitions[budget])
        shares[budget] = Share(budget, path, ppm, covers, from_ms, None, revision, cluster)
    return shares


def own_shares_of(definitions: Mapping[str, Budget], revision: int, from_ms: Ms, cluster: str) -> dict[str, Share]:
    """The shares of a cluster that differ from the general ones: its own, and what they make of those below."""
    general = shares_of(definitions, revision, from_ms)
    theirs = shares_of(definitions, revision, from_ms, cluster)
    return {budget: share for budget, share in theirs.items() if share.ppm != general[budget].ppm}


def on_cluster(general: Iterable[Share], own: Iterable[Share]) -> list[Share]:
    """The history of one cluster: its own shares, and of the general ones what these leave. Each budget's are disjoint."""
    theirs: dict[str, list[Share]] = {}
    for share in sorted(own, key=lambda each: each.from_ms):
        theirs.setdefault(share.budget, []).append(share)
    found = [share for shares in theirs.values() for share in shares]
    for share in general:
        found.extend(_without(share, theirs.get(share.budget, [])))
    return found


def _without(share: Share, gaps: Iterable[Share]) -> Iterator[Share]:
    """What is left of a share outside of intervals that are in order and disjoint."""
    from_ms = share.from_ms
    for gap in gaps:
        if gap.until_ms is not None and gap.until_ms <= from_ms:
            continue
        if share.until_ms is not None and gap.from_ms >= share.until_ms:
            break
        if gap.from_ms > from_ms:
            yield share._replace(from_ms=from_ms, until_ms=gap.from_ms)
        if gap.until_ms is None:
            return
        from_ms = gap.until_ms
    if share.until_ms is None or from_ms < share.until_ms:
        yield share._replace(from_ms=from_ms)


class Succession(NamedTuple):
    """What a revision changes: budgets whose share ends at `at_ms`, and shares that begin then."""

    at_ms: Ms
    ended: tuple[str, ...]
    begun: tuple[Share, ...]


def succeed(
    before: Mapping[str, Share], definitions: Mapping[str, Budget], revision: int, at_ms: Ms, cluster: str = ""
) -> Succession:
    """The change from the shares in force on a cluster (empty: the general ones) to those of a revision, all of its budgets."""
    return _succession(before, shares_of(definitions, revision, at_ms, cluster), at_ms)


def succeed_own(
    before: Mapping[str, Share], definitions: Mapping[str, Budget], revision: int, at_ms: Ms, cluster: str
) -> Succession:
    """As `succeed`, of those shares alone that differ on the cluster from the general ones."""
    return _succession(before, own_shares_of(definitions, revision, at_ms, cluster), at_ms)


def _succession(before: Mapping[str, Share], after: Mapping[str, Share], at_ms: Ms) -> Succession:
    # Shares that stay as they are keep their row.
    same = {
        budget
        for budget, share in after.items()
        if budget in before and before[budget][1:4] == share[1:4]  # path, ppm, covers
    }
    ended = tuple(sorted(budget for budget in before if budget not in same))
    begun = tuple(after[budget] for budget in sorted(after) if budget not in same)
    return Succession(at_ms, ended, begun)
