"""How well did we do: contract §10, computed from postings, the cluster's own truth and what people asked for.

Pure. Exact integers until the last division, which makes a figure for people out of two amounts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct

from allmende.proto.units import HOUR_MS, MINUTE_MS, PPM_WHOLE, SECOND_MS, GpuMs, Ms

# Contract §10: debug = at most 8 GPUs and slice at most 15 min. Slice 0 is unallocated work, to which no service is promised.
DEBUG_GPUS = 8
DEBUG_SLICE_MS = 15 * MINUTE_MS
# Eight whole nodes: from here on a job needs holes that open only by gathering nodes.
LARGE_GPUS = 64


class Held(NamedTuple):
    """`gpus` of an allocated job of `budget` during `[from_ms, to_ms)`: demanded, or delivered."""

    budget: str
    gpus: int
    from_ms: Ms
    to_ms: Ms


class Team(Struct, frozen=True, kw_only=True):
    """One leaf's figures. None: it asked for nothing, so nothing was owed."""

    budget: str
    effective_share_ppm: int
    delivered_owed_plain: float | None
    delivered_owed_strict: float | None


class Impact(NamedTuple):
    """Delivered against owed over all leaves, and by leaf."""

    plain: float | None
    strict: float | None
    teams: tuple[Team, ...]


class Waits(Struct, frozen=True, kw_only=True):
    """Seconds from submission to the first start: nearest-rank percentiles over the jobs of a class. None: no such jobs."""

    p50: float | None
    p90: float | None
    max: float | None


class Wait(NamedTuple):
    """How long one job waited, or has waited so far."""

    gpus: int
    slice_ms: Ms
    waited_ms: Ms


def by_hour(held: Iterable[Held]) -> dict[str, dict[int, GpuMs]]:
    """GPU-ms by budget and hour (number of hours since the epoch). An interval across an hour's edge is split exactly."""
    amounts: dict[str, dict[int, GpuMs]] = defaultdict(lambda: defaultdict(int))
    for each in held:
        at = each.from_ms
        while at < each.to_ms:
            hour = at // HOUR_MS
            until = min(each.to_ms, (hour + 1) * HOUR_MS)
            amounts[each.budget][hour] += each.gpus * (until - at)
            at = until
    return amounts


def impact(
    shares: Mapping[str, Fraction], available: Mapping[int, GpuMs], demanded: Iterable[Held], delivered: Iterable[Held]
) -> Impact:
    """Delivered against owed, plain and strict (contract §10).

    Args:
        shares: each leaf's effective share, exact.
        available: available GPU-ms by hour.
        demanded: allocated jobs from submission until their end, waiting or running.
        delivered: what allocated jobs held, from postings.

    owed(h) = min(entitlement in h, demand(h)); plain = sum delivered / sum owed;
    strict = sum min(delivered(h), owed(h)) / sum owed(h).
    """
    asked, given = by_hour(demanded), by_hour(delivered)
    teams: list[Team] = []
    totals = [0, 0, 0]
    for budget in sorted(shares):
        sums = _sums(shares[budget], available, asked.get(budget, {}), given.get(budget, {}))
        totals = [total + part for total, part in zip(totals, sums, strict=True)]
        share_ppm = int(shares[budget] * PPM_WHOLE)
        owed, plain, strict = sums
        teams.append(
            Team(
                budget=budget,
                effective_share_ppm=share_ppm,
                delivered_owed_plain=quotient(plain, owed),
                delivered_owed_strict=quotient(strict, owed),
            )
        )
    return Impact(quotient(totals[1], totals[0]), quotient(totals[2], totals[0]), tuple(teams))


def _sums(
    share: Fraction, available: Mapping[int, GpuMs], asked: Mapping[int, GpuMs], given: Mapping[int, GpuMs]
) -> tuple[GpuMs, GpuMs, GpuMs]:
    owed_sum = plain = strict = 0
    for hour, capacity in available.items():
        entitled = capacity * share.numerator // share.denominator
        owed = min(entitled, asked.get(hour, 0))
        delivered = given.get(hour, 0)
        owed_sum += owed
        plain += delivered
        strict += min(delivered, owed)
    return owed_sum, plain, strict


def waits(jobs: Iterable[Wait]) -> dict[str, Waits]:
    """Waits by class: `debug`, `all`, `large`. Jobs that still wait count with what they have waited so far."""
    listed = [job for job in jobs if job.slice_ms > 0]
    classes = {
        "debug": [job for job in listed if job.gpus <= DEBUG_GPUS and job.slice_ms <= DEBUG_SLICE_MS],
        "all": listed,
        "large": [job for job in listed if job.gpus >= LARGE_GPUS],
    }
    return {name: _percentiles(sorted(job.waited_ms for job in members)) for name, members in classes.items()}


def _percentiles(sorted_ms: Sequence[Ms]) -> Waits:
    if not sorted_ms:
        return Waits(p50=None, p90=None, max=None)
    return Waits(p50=_rank(sorted_ms, 50), p90=_rank(sorted_ms, 90), max=sorted_ms[-1] / SECOND_MS)


def _rank(sorted_ms: Sequence[Ms], percent: int) -> float:
    # Nearest rank: the smallest value with at least `percent` of all values at or below it.
    index = -(-len(sorted_ms) * percent // 100) - 1
    return sorted_ms[index] / SECOND_MS


def quotient(part: int, whole: int) -> float | None:
    """`part / whole` to six decimals; None where there is no whole."""
    return round(part / whole, 6) if whole else None
