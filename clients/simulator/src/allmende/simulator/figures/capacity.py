"""Available capacity and what it entitles each leaf to, hour by hour: nodes that fail and trees that change are integrated exactly.

Entitlement of an hour is `floor(available x effective share)` (contract §10), where both may change within the hour; the floor is
taken once, at the end. Never looks at jobs.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain
from typing import NamedTuple, TypeAlias

from allmende.proto.tree import effective_share, leaves, paths
from allmende.proto.units import PPM_WHOLE, GpuMs, Ms, Ppm
from allmende.simulator.figures.span import HourSums, Span
from allmende.simulator.model import NodeChange, TreeChange

Shares: TypeAlias = dict[str, Fraction | None]


class Step(NamedTuple):
    """Healthy GPUs of the whole cluster during `[from_ms, to_ms)`."""

    healthy: int
    from_ms: Ms
    to_ms: Ms


def steps(changes: Iterable[NodeChange], span: Span) -> tuple[Step, ...]:
    """Healthy GPUs over the span. A node is not there before its first report."""
    healthy: dict[str, int] = {}
    total, since_ms = 0, span.from_ms
    found: list[Step] = []
    for change in sorted(changes, key=lambda each: each.at_ms):
        if change.at_ms >= span.to_ms:
            break
        if change.at_ms > since_ms:
            found.append(Step(total, since_ms, change.at_ms))
            since_ms = change.at_ms
        total += change.healthy - healthy.get(change.node, 0)
        healthy[change.node] = change.healthy
    if since_ms < span.to_ms:
        found.append(Step(total, since_ms, span.to_ms))
    return tuple(found)


def shares(change: TreeChange, cluster: str) -> Shares:
    """The effective share of each leaf on the cluster, exact; None where the leaf is unset. In the order of the tree."""
    budgets = {each.budget: each for each in change.budgets}
    trails, ends = paths(budgets), leaves(budgets)
    found: Shares = {}
    for name in budgets:
        if name not in ends:
            continue
        parts, is_set = effective_share(trails[name], budgets, cluster)
        product = Fraction(1)
        for part in parts:
            product *= Fraction(part, PPM_WHOLE)
        found[name] = product if is_set else None
    return found


def in_force(trees: Iterable[TreeChange], cluster: str, span: Span) -> Iterator[tuple[Shares, Span]]:
    """The shares, and the part of the span in which they were in force."""
    ordered = sorted(trees, key=lambda each: each.at_ms)
    ends = chain((each.at_ms for each in ordered[1:]), (span.to_ms,))
    for tree, end_ms in zip(ordered, ends, strict=False):
        from_ms, to_ms = span.clip(tree.at_ms, end_ms)
        if from_ms < to_ms:
            yield shares(tree, cluster), Span(from_ms, to_ms)


def shares_ppm(trees: Iterable[TreeChange], cluster: str, span: Span) -> dict[str, Ppm | None]:
    """The effective share of each leaf of the last tree, rounded down."""
    last: Shares = {}
    for found, _part in in_force(trees, cluster, span):
        last = found
    return {name: None if share is None else int(share * PPM_WHOLE) for name, share in last.items()}


def available_by_hour(capacity: Iterable[Step], span: Span) -> tuple[GpuMs, ...]:
    """Available GPU-ms of each hour of the span."""
    sums = HourSums(span)
    for step in capacity:
        sums.add(step.healthy, step.from_ms, step.to_ms)
    return sums.by_hour()


def entitled_by_hour(
    capacity: tuple[Step, ...], trees: Iterable[TreeChange], cluster: str, span: Span
) -> dict[str, tuple[GpuMs, ...]]:
    """What each leaf of any tree in force is entitled to in each hour of the span. An unset leaf has nothing."""
    whole = available_by_hour(capacity, span)
    found: dict[str, list[GpuMs]] = {}
    broken: dict[tuple[str, int], Fraction] = {}
    for leaves_now, part in in_force(trees, cluster, span):
        sums = HourSums(span)
        for step in capacity:
            sums.add(step.healthy, *part.clip(step.from_ms, step.to_ms))
        here = sums.by_hour()
        for leaf, share in leaves_now.items():
            row = found.setdefault(leaf, [0] * span.hours)
            if share is None:
                continue
            above, below = share.numerator, share.denominator
            for hour, amount in enumerate(here):
                if amount and amount == whole[hour]:
                    row[hour] = amount * above // below
                elif amount:
                    # A tree changed in this hour: the parts are added before the floor.
                    broken[leaf, hour] = broken.get((leaf, hour), Fraction(0)) + amount * share
    for (leaf, hour), amount_exact in broken.items():
        found[leaf][hour] = amount_exact.numerator // amount_exact.denominator
    return {leaf: tuple(row) for leaf, row in found.items()}
