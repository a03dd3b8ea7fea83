"""Entitlement: the integral of effective share x available capacity over the window (contract §3), exact to the GPU-ms.

Of each bucket `floor(available x product of ppm / 10^6k)`, where a bucket in which the share changes is two. Whole buckets of one
level are taken together, so the cost follows the number of changes, not the length of the window. With a half-life each bucket
has the weight of its age.
"""

from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

from allmende.ledger.model import BUCKET_MS, Level, Share
from allmende.ledger.rules.aging import WEIGHT_BITS, Aging
from allmende.proto.units import PPM_WHOLE, GpuMs, Ms

Weigh: TypeAlias = Callable[[Ms, Ms], int]
"""How much the buckets of a span, both ends on edges, count together: their number, or the sum of their weights."""


def floored(amount_gpu_ms: GpuMs, share: Share) -> GpuMs:
    """`floor(amount x share)`; 0 for a leaf whose share is unset."""
    if not share.covers:
        return 0
    whole: int = PPM_WHOLE ** len(share.ppm)
    return amount_gpu_ms * prod(share.ppm) // whole


def amounts(levels: Iterable[Level], from_ms: Ms, to_ms: Ms, weigh: Weigh) -> Mapping[GpuMs, int]:
    """What each amount of available GPU-ms weighs among the buckets of `[from_ms, to_ms)`; edge buckets are cut there."""
    whole: Multiset[GpuMs] = Multiset()
    broken: dict[Ms, GpuMs] = {}
    for level in levels:
        begin_ms, end_ms = max(level.from_ms, from_ms), min(level.to_ms, to_ms)
        if begin_ms >= end_ms:
            continue
        first_ms = -(-begin_ms // BUCKET_MS) * BUCKET_MS
        last_ms = end_ms // BUCKET_MS * BUCKET_MS
        if first_ms > last_ms:  # begins and ends within one bucket
            broken[last_ms] = broken.get(last_ms, 0) + level.available * (end_ms - begin_ms)
            continue
        if begin_ms < first_ms:
            bucket_ms = first_ms - BUCKET_MS
            broken[bucket_ms] = broken.get(bucket_ms, 0) + level.available * (first_ms - begin_ms)
        if last_ms < end_ms:
            broken[last_ms] = broken.get(last_ms, 0) + level.available * (end_ms - last_ms)
        whole[level.available * BUCKET_MS] += weigh(first_ms, last_ms)
    for bucket_ms, amount in broken.items():
        whole[amount] += weigh(bucket_ms, bucket_ms + BUCKET_MS)
    return whole


def _number(from_ms: Ms, to_ms: Ms) -> int:
    return (to_ms - from_ms) // BUCKET_MS


def entitlements(
    history: Mapping[str, Sequence[Share]], levels: Sequence[Level], from_ms: Ms, to_ms: Ms, aging: Aging | None = None
) -> dict[str, GpuMs]:
    """What each budget is owed over `[from_ms, to_ms)`. `history`: its shares in the window, in order, without overlap.

    `aging`: the half-life's weights as of `to_ms`; the weighed sum is floored once.
    """

    def weigh(begin_ms: Ms, end_ms: Ms) -> int:
        return _number(begin_ms, end_ms) if aging is None else aging.over(begin_ms, end_ms, to_ms)

    known: dict[tuple[Ms, Ms], Mapping[GpuMs, int]] = {}
    owed: dict[str, GpuMs] = {}
    for budget, shares in history.items():
        total = 0
        for share in shares:
            span = (max(share.from_ms, from_ms), to_ms if share.until_ms is None else min(share.until_ms, to_ms))
            if span[0] >= span[1] or not share.covers:
                continue
            if span not in known:
                known[span] = amounts(levels, *span, weigh)
            product, whole = prod(share.ppm), PPM_WHOLE ** len(share.ppm)
            total += sum(times * (amount * product // whole) for amount, times in known[span].items())
        owed[budget] = total if aging is None else total >> WEIGHT_BITS
    return owed
