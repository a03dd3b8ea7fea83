"""What the ledger answers about how well a cluster serves its teams (contract §10), by hour and over a span.

Amounts are exact GPU-milliseconds and quotients are pairs of them; None is "not known", never zero.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from allmende.proto.ids import Id, Name
from allmende.proto.units import Amount, GpuCount, Instant, Span


class DemandMark(Struct, frozen=True, kw_only=True):
    """How far a reader has come: behind this budget in the hour that begins at `from_ms`; None: before all of that hour."""

    from_ms: Instant
    budget: Name | None = None


class DemandQuery(Struct, frozen=True, kw_only=True):
    """Ask who wanted how much of a cluster in `[from_ms, to_ms)`, by hour of UTC: both are full hours, at most 1,000 of them.

    `budget`: only it and what is below it.
    """

    cluster: Name
    from_ms: Instant
    to_ms: Instant
    budget: Name | None = None
    after: DemandMark | None = None


class DemandRow(Struct, frozen=True, kw_only=True):
    """One leaf in one hour. `owed` = the smaller of entitlement and demand, `unmet` = demand - delivered, never below 0.

    `delivered_gpu_ms` is what its allocated attempts were charged.
    """

    from_ms: Instant
    budget: Name
    entitled_gpu_ms: Amount | None
    demand_gpu_ms: Amount | None
    owed_gpu_ms: Amount | None
    delivered_gpu_ms: Amount
    unmet_gpu_ms: Amount | None


class DemandPage(Struct, frozen=True, kw_only=True):
    """Rows by hour and budget, none where nothing was asked for or delivered. `next_after` unset: this was the last page.

    A page may be empty and not the last. `to_ms`: the span's end, or now. `jobs_not_known`: jobs of which no word told what they
    ask for; their demand is in no row.
    """

    cluster: Name
    as_of_ms: Instant
    to_ms: Instant
    jobs_not_known: int
    rows: tuple[DemandRow, ...]
    next_after: DemandMark | None = None


class FiguresQuery(Struct, frozen=True, kw_only=True):
    """Ask how well a cluster did in `[from_ms, to_ms)`, by the figures of contract §10: both are full hours, at most 1,000 of them.

    `budget`: impact of it and what is below it alone. Teams come by name, behind `after`.
    """

    cluster: Name
    from_ms: Instant
    to_ms: Instant
    budget: Name | None = None
    after: Name | None = None


class TeamFigures(Struct, frozen=True, kw_only=True):
    """One leaf. Delivered/owed: plain `delivered / owed`, weekly `weekly / owed`, strict `strict / owed`; no owed, no ratio.

    Over the hours in which owed is known. Utilisation is `busy / watched`, over all hours: of `watched` held time the device
    activity is known.
    """

    budget: Name
    entitled_gpu_ms: Amount
    demand_gpu_ms: Amount
    owed_gpu_ms: Amount
    delivered_gpu_ms: Amount
    weekly_gpu_ms: Amount
    strict_gpu_ms: Amount
    watched_gpu_ms: Amount
    busy_gpu_ms: Amount


class FiguresPage(Struct, frozen=True, kw_only=True):
    """availability = available / installed; occupancy = (allocated + unallocated) / available; utilisation = busy / watched.

    These are of the whole cluster, in the hours in which its capacity is known; `owed` to `strict` are the sums of all teams asked
    for, in the hours in which owed is known, whether or not they are on this page. `teams_owed`: those that were owed anything;
    `teams_at_95`: those of them whose weekly ratio is 95 % or more. `jobs_not_known`: no word told what they ask for, so their
    demand is in no figure.
    """

    cluster: Name
    budget: Name | None
    as_of_ms: Instant
    from_ms: Instant
    to_ms: Instant
    hours: int
    hours_of_unknown_capacity: int
    hours_of_unknown_owed: int
    jobs_not_known: int
    installed_gpu_ms: Amount
    available_gpu_ms: Amount
    allocated_gpu_ms: Amount
    unallocated_gpu_ms: Amount
    watched_gpu_ms: Amount
    busy_gpu_ms: Amount
    owed_gpu_ms: Amount
    delivered_gpu_ms: Amount
    weekly_gpu_ms: Amount
    strict_gpu_ms: Amount
    teams_owed: int
    teams_at_95: int
    teams: tuple[TeamFigures, ...]
    next_after: Name | None = None


class WaitsQuery(Struct, frozen=True, kw_only=True):
    """Ask how long the allocated jobs that were submitted in `[from_ms, to_ms)` waited for their first start, by size class.

    Both are full hours, at most 1,000 of them. `budget`: only jobs of it and what is below it.
    """

    cluster: Name
    from_ms: Instant
    to_ms: Instant
    budget: Name | None = None


class ClassWaits(Struct, frozen=True, kw_only=True):
    """One class of `proto.impact.SIZE_CLASSES`, by nearest rank; None: it has no jobs.

    A job that has not started counts with its wait so far, or until it ended; `never_started`: those that still wait.
    """

    name: str
    jobs: int
    never_started: int
    p50_ms: Span | None
    p90_ms: Span | None
    max_ms: Span | None


class WaitsReply(Struct, frozen=True, kw_only=True):
    """All classes. `jobs_not_known`: no word told what they ask for, so they are in no class."""

    cluster: Name
    budget: Name | None
    as_of_ms: Instant
    from_ms: Instant
    to_ms: Instant
    jobs_not_known: int
    classes: tuple[ClassWaits, ...]


class IdleQuery(Struct, frozen=True, kw_only=True):
    """Ask who held GPUs in `[from_ms, to_ms)` without using them: most idle first, behind the first `offset`.

    Both are full hours, at most 1,000 of them. `budget`: only it and what is below it; unset: also unallocated attempts.
    """

    cluster: Name
    from_ms: Instant
    to_ms: Instant
    budget: Name | None = None
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class IdleRow(Struct, frozen=True, kw_only=True):
    """One attempt. `idle_gpu_ms`: held in hours in which neither its devices nor their memory did anything.

    `watched_gpu_ms` and `busy_gpu_ms`: held, as far as activity is known, and of that busy. `user` None: not known.
    """

    attempt: Id
    job: Id
    user: Name | None
    budget: Name | None
    gpus: GpuCount
    granted_at_ms: Instant
    ended_at_ms: Instant | None
    watched_gpu_ms: Amount
    busy_gpu_ms: Amount
    idle_gpu_ms: Amount


class IdlePage(Struct, frozen=True, kw_only=True):
    """Attempts that were idle for at least a piece of one hour. `more`: there are others behind these."""

    cluster: Name
    as_of_ms: Instant
    to_ms: Instant
    rows: tuple[IdleRow, ...]
    more: bool = False


class PaceQuery(Struct, frozen=True, kw_only=True):
    """Ask when the budgets of a cluster come to 100 % of their entitlement at the pace of the last day, by name, behind `after`."""

    cluster: Name
    budget: Name | None = None
    after: Name | None = None


class PaceRow(Struct, frozen=True, kw_only=True):
    """One budget now, `used` = charged + held over the look-back window, and at `then_ms`, up to a day before.

    `reaches` by the rule of `proto.pace`: `at` an instant (`at_ms`; it may have passed), `not_soon` within a week, or `unknown`:
    less than six hours of history, or no entitlement.
    """

    budget: Name
    used_gpu_ms: Amount
    entitlement_gpu_ms: Amount
    then_ms: Instant | None
    then_used_gpu_ms: Amount | None
    then_entitlement_gpu_ms: Amount | None
    reaches: Literal["at", "not_soon", "unknown"]
    at_ms: Instant | None


class PacePage(Struct, frozen=True, kw_only=True):
    """Every budget of the tree on one cluster, by name. `next_after` unset: this was the last page."""

    cluster: Name
    as_of_ms: Instant
    rows: tuple[PaceRow, ...]
    next_after: Name | None = None
