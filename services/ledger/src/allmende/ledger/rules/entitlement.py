"""Entitlement: the integral of effective share x available capacity over the window (contract §3), exact to the GPU-ms.

Of each bucket `floor(available x product of ppm / 10^6k)`, where a bucket in which the share changes is two. Whole buckets of one
level are taken together, so the cost follows the number of changes, not the length of the window.
"""

from collections import Counter as Multiset
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from allmende.ledger.model import BUCKET_MS, Level, Share
from allmende.proto.units import PPM_WHOLE, GpuMs, Ms


def floored(amount_gpu_ms: GpuMs, share: Share) -> GpuMs:
    """`floor(amount x share)`; 0 for a leaf whose share is unset."""
    if not share.covers:
        return 0
    whole: int = PPM_WHOLE ** len(share.ppm)
    return amount_gpu_ms * prod(share.ppm) // whole


def amounts(levels: Iterable[Level], from_ms: Ms, to_ms: Ms) -> Mapping[GpuMs, int]:
    """How often each amount of available GPU-ms occurs among the buckets of `[from_ms, to_ms)`; edge buckets are cut there."""
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
        whole[level.available * BUCKET_MS] += (last_ms - first_ms) // BUCKET_MS
    whole.update(broken.values())
    return whole


def entitlements(history: Mapping[str, Sequence[Share]], levels: Sequence[Level], from_ms: Ms, to_ms: Ms) -> dict[str, GpuMs]:
    """What each budget is owed over `[from_ms, to_ms)`. `history`: its shares in the window, in order, without overlap."""
    known: dict[tuple[Ms, Ms], Mapping[GpuMs, int]] = {}
    owed: dict[str, GpuMs] = {}
    for budget, shares in history.items():
        total = 0
        for share in shares:
            span = (max(share.from_ms, from_ms), to_ms if share.until_ms is None else min(share.until_ms, to_ms))
            if span[0] >= span[1] or not share.covers:
                continue
            if span not in known:
                known[span] = amounts(levels, *span)
            product, whole = prod(share.ppm), PPM_WHOLE ** len(share.ppm)
            total += sum(times * (amount * product // whole) for amount, times in known[span].items())
        owed[budget] = total
    return owed
