"""The history of the tree: revisions become shares with validity, so that "as of t" is a query.

Reads a revision only when it is whole. Never judges a tree: that is the budget service's.
"""

from collections.abc import Mapping
from typing import NamedTuple

from allmende.ledger.model import Share
from allmende.proto.budget import Budget
from allmende.proto.tree import effective_share, leaves, paths
from allmende.proto.units import Ms


class Revision(NamedTuple):
    """A revision as announced: what its budgets must number and hash to."""

    revision: int
    effective_from_ms: Ms
    budgets: int
    digest: str


def shares_of(definitions: Mapping[str, Budget], revision: int, from_ms: Ms) -> dict[str, Share]:
    """Every budget's share from an instant on. An unset leaf covers nothing; unset inner budgets are transparent (contract §2)."""
    trails = paths(definitions)
    ends = leaves(definitions)
    shares: dict[str, Share] = {}
    for budget, path in trails.items():
        ppm, is_set = effective_share(path, definitions)
        # A root that stands alone is the whole, even unset.
        covers = is_set or budget not in ends or len(path) == 1
        shares[budget] = Share(budget, path, ppm, covers, from_ms, None, revision)
    return shares


class Succession(NamedTuple):
    """What a revision changes: budgets whose share ends at `at_ms`, and shares that begin then."""

    at_ms: Ms
    ended: tuple[str, ...]
    begun: tuple[Share, ...]


def succeed(before: Mapping[str, Share], definitions: Mapping[str, Budget], revision: int, at_ms: Ms) -> Succession:
    """The change from the shares in force to those of a revision. Shares that stay as they are keep their row."""
    after = shares_of(definitions, revision, at_ms)
    same = {
        budget
        for budget, share in after.items()
        if budget in before and before[budget][1:4] == share[1:4]  # path, ppm, covers
    }
    ended = tuple(sorted(budget for budget in before if budget not in same))
    begun = tuple(after[budget] for budget in sorted(after) if budget not in same)
    return Succession(at_ms, ended, begun)
