"""Standings: who has had how much of what they are owed, for every budget of the tree (contract §1, §3).

charged: over the window, whole buckets and the current one, with what counters hold beyond their postings. Charges stay on the
path that was in force when their bucket began. held: what is left of granted slices, on today's path. Unallocated: for nobody.
A budget that was closed has a standing of its own as long as anything of it counts (decision 0029).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from allmende.ledger.model import BUCKET_MS, Account, Level, Live, Round, Share
from allmende.ledger.rules.aging import Aging
from allmende.ledger.rules.entitlement import entitlements, floored
from allmende.proto.units import GpuMs, Ms


class Window(NamedTuple):
    """The look-back window `[from_ms, to_ms)`: as many whole buckets as fit the length, plus the current one up to now."""

    from_ms: Ms
    to_ms: Ms


def window_at(now_ms: Ms, length_ms: Ms) -> Window:
    """The window at an instant. `length_ms` is rounded down to whole buckets."""
    bucket_ms = now_ms - now_ms % BUCKET_MS
    return Window(max(bucket_ms - length_ms // BUCKET_MS * BUCKET_MS, 0), now_ms)


class Era(NamedTuple):
    """A part of the window, in whole buckets, in which no budget moved: `paths` holds for all its charges."""

    from_ms: Ms
    to_ms: Ms
    paths: Mapping[str, tuple[str, ...]]


def eras(shares: Iterable[Share], window: Window) -> tuple[Era, ...]:
    """The eras of a window, in order."""
    history = _by_budget(shares)
    if not history:
        return ()
    end_ms = window.to_ms - window.to_ms % BUCKET_MS + BUCKET_MS
    edges = {window.from_ms, end_ms}
    for each in history.values():
        edges |= {_edge(after.from_ms) for before, after in pairwise(each) if before.path != after.path}
    cuts = sorted(edge for edge in edges if window.from_ms <= edge <= end_ms)
    return tuple(
        Era(begin_ms, cut_ms, {budget: _path_at(each, begin_ms) for budget, each in history.items()})
        for begin_ms, cut_ms in pairwise(cuts)
    )


def _edge(instant_ms: Ms) -> Ms:
    """The first bucket that begins at or after an instant: a bucket goes wholly along the path at its beginning."""
    return -(-instant_ms // BUCKET_MS) * BUCKET_MS


def _by_budget(shares: Iterable[Share]) -> dict[str, list[Share]]:
    history: dict[str, list[Share]] = defaultdict(list)
    for share in sorted(shares, key=lambda each: each.from_ms):
        history[share.budget].append(share)
    return history


def _path_at(shares: Sequence[Share], instant_ms: Ms) -> tuple[str, ...]:
    """The path of a budget at an instant: before it was known its first one, after it was removed its last one."""
    reached = [share for share in shares if share.from_ms <= instant_ms]
    return (reached[-1] if reached else shares[0]).path


class Tree(NamedTuple):
    """The revision in force at the window's end (None: none yet), and every share that held at any time in the window."""

    revision: int | None
    shares: Sequence[Share]


class Charges(NamedTuple):
    """GPU-ms posted per leaf in the buckets of one era; with a half-life each bucket by its weight, floored once."""

    era: Era
    by_budget: Mapping[str, GpuMs]


def weighed(sums: Mapping[str, int]) -> dict[str, GpuMs]:
    """Sums of buckets times their weights (2^32 = 1) as GPU-ms, floored once."""
    return {budget: amount >> 32 for budget, amount in sums.items()}


def take(
    tree: Tree,
    charges: Iterable[Charges],
    live: Iterable[Live],
    levels: Sequence[Level],
    window: Window,
    slice_cap_ms: Ms,
    aging: Aging | None = None,
) -> Round | None:
    """The standings at the window's end, or None while tree or capacity is unknown: unknown is never zero.

    A budget's entitlement has a floor of slice cap x today's share x today's available GPUs. One that is gone is owed what it was
    owed in the window while it was there; what its attempts count now is its own alone, because no path leads to it any more.
    `aging`: the half-life's weights, which `charges` and the rests of `live` have already; holds are of today and weigh 1.
    """
    today = {share.budget: share for share in tree.shares if share.holds_at(window.to_ms)}
    if tree.revision is None or not levels:
        return None
    available = levels[-1].available
    charged: dict[str, GpuMs] = defaultdict(int)
    held: dict[str, GpuMs] = defaultdict(int)
    for era, by_budget in charges:
        for budget, amount in by_budget.items():
            _add(charged, era.paths.get(budget, ()), amount)
    for each in live:
        if each.budget is None:
            continue
        path = today[each.budget].path if each.budget in today else (each.budget,)
        _add(charged, path, each.gpus * each.rest_ms)
        _add(held, path, hold_of(each))
    owed = entitlements(_by_budget(tree.shares), levels, *window, aging)
    floors = {budget: floored(available * slice_cap_ms, share) for budget, share in today.items()}
    accounts = tuple(
        Account(budget, charged[budget], held[budget], max(owed[budget], floors.get(budget, 0)))
        for budget in sorted(owed)
        if budget in today or charged[budget] or held[budget]
    )
    return Round(window.to_ms, tree.revision, available, accounts)


def _add(totals: dict[str, GpuMs], path: Iterable[str], amount: GpuMs) -> None:
    for budget in path:
        totals[budget] += amount


def hold_of(live: Live) -> GpuMs:
    """What is left of a granted slice: slice x GPUs less what the attempt has used, never below 0. Counts from the grant on."""
    return max(0, live.gpus * (live.replicas * live.slice_ms - live.counted_ms))
