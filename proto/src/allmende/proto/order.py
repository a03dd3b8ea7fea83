"""Who comes first, and who may displace whom: contract §4 and §7, in the one place that admission and preemptor share.

Pure. Never reads a queue or a cluster; it compares leaves by their standings.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from allmende.proto.standing import Ratio, Standing
from allmende.proto.units import LARGEST_AMOUNT, PPM_WHOLE, GpuMs, Ppm

# Contract §7: near-equal teams otherwise swap at every slice's end.
DEFAULT_MARGIN_PPM: Ppm = 100_000

Path: TypeAlias = tuple[str, ...]
"""Budgets from the root to a leaf, both included."""

LevelKey: TypeAlias = tuple[Ratio, GpuMs, str]
LeafKey: TypeAlias = tuple[int, tuple[LevelKey, ...]]

GUARANTEED = 0
SURPLUS = 1


def _level_key(budget: str, standing: Standing) -> LevelKey:
    return (standing.ratio, -standing.shortfall, budget)


def leaf_key(path: Path, standings: Mapping[str, Standing]) -> LeafKey:
    """The key that sorts leaves: smaller comes first.

    Guaranteed leaves (ratio below 1) come first, all against all by their own ratio. Surplus leaves are compared at the two
    children of their lowest common ancestor, which is the lexicographic order of the ratios along the path (Fair Tree).
    Ties: larger shortfall in GPU-ms, then id.

    Raises:
        KeyError: a budget on the path has no standing; the caller must not decide then.
    """
    leaf = standings[path[-1]]
    if leaf.guaranteed:
        return (GUARANTEED, (_level_key(path[-1], leaf),))
    # The root is common to all: a path of the root alone still needs one level to compare.
    levels = path[1:] or path
    return (SURPLUS, tuple(_level_key(budget, standings[budget]) for budget in levels))


class Comparison(NamedTuple):
    """The two ratios that decide a displacement, and the budgets they belong to."""

    allowed: bool
    claimant_budget: str
    claimant_after: Standing
    victim_budget: str
    victim_before: Standing
    margin_ppm: Ppm


def may_displace(
    claimant: Path, hold: GpuMs, victim: Path, standings: Mapping[str, Standing], margin_ppm: Ppm = DEFAULT_MARGIN_PPM
) -> Comparison:
    """May a job of leaf `claimant` that adds `hold` displace an interruptible allocated attempt of leaf `victim`?

    Contract §7: only if `claimant's ratio after the grant + margin < victim's ratio before the eviction`; leaf against leaf
    when the claimant is in the guaranteed tier; otherwise the victim's leaf must be in the surplus tier too, and the ratios are
    those at the children of the lowest common ancestor. Inside one leaf the answer is no: priority decides there.

    Raises:
        KeyError: a budget that must be compared has no standing.
    """
    leaf, victim_leaf = standings[claimant[-1]], standings[victim[-1]]
    if leaf.guaranteed or claimant == victim:
        ours, theirs = claimant[-1], victim[-1]
    else:
        ours, theirs = _below_common_ancestor(claimant, victim)
    after, before = standings[ours].after(hold), standings[theirs]
    allowed = claimant != victim and (leaf.guaranteed or not victim_leaf.guaranteed) and after.ratio.plus(margin_ppm) < before.ratio
    return Comparison(allowed, ours, after, theirs, before, margin_ppm)


def largest_hold(claimant: Path, victim: Path, standings: Mapping[str, Standing], margin_ppm: Ppm = DEFAULT_MARGIN_PPM) -> GpuMs:
    """The largest `hold` for which `may_displace` allows it: every smaller one is allowed too. Negative: none is.

    From `(used + hold) / owed + margin < used' / owed'`, multiplied out. A victim without entitlement may be displaced by any
    hold: `LARGEST_AMOUNT`.

    Raises:
        KeyError: a budget that must be compared has no standing.
    """
    leaf, victim_leaf = standings[claimant[-1]], standings[victim[-1]]
    if claimant == victim or (not leaf.guaranteed and victim_leaf.guaranteed):
        return -1
    ours, theirs = (claimant[-1], victim[-1]) if leaf.guaranteed else _below_common_ancestor(claimant, victim)
    (used, owed), (their_used, their_owed) = standings[ours], standings[theirs]
    if not owed:
        return -1
    if not their_owed:
        return LARGEST_AMOUNT
    room = owed * (their_used * PPM_WHOLE - margin_ppm * their_owed)
    return (room - 1) // (PPM_WHOLE * their_owed) - used


def _below_common_ancestor(first: Path, second: Path) -> tuple[str, str]:
    for ours, theirs in zip(first, second, strict=False):
        if ours != theirs:
            return ours, theirs
    # One path is the other's beginning: only a leaf that became a parent has such a path. Compare the leaves themselves.
    return first[-1], second[-1]


def spared(lost: GpuMs, courtesy: GpuMs, hold: GpuMs, waste_ppm: Ppm) -> bool:
    """Is an allocated attempt spared because it has not saved its work lately? Decision 0015.

    Spared while its going would lose more than `waste_ppm` of what the claimant holds by its slice. Who has saved nothing for
    longer than its own slice is spared no more (`courtesy`: slice x GPUs): who saves once in each slice leaves right after a save.
    `waste_ppm` 0: nobody is spared.
    """
    return bool(waste_ppm) and lost <= courtesy and lost * PPM_WHOLE > hold * waste_ppm


def unspared_from(lost: GpuMs, courtesy: GpuMs, waste_ppm: Ppm) -> GpuMs:
    """The smallest `hold` for which the attempt is not `spared`: every larger one is enough too."""
    if not waste_ppm or lost > courtesy:
        return 0
    return -(-lost * PPM_WHOLE // waste_ppm)
