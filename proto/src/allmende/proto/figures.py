"""What the ledger answers about how well a cluster serves its teams (contract §10), by hour and over a span.

Amounts are exact GPU-milliseconds and quotients are pairs of them; None is "not known", never zero.
"""

from msgspec import Struct

from allmende.proto.ids import Name
from allmende.proto.units import Amount, Instant


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
