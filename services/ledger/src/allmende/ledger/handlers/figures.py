"""Answers about demand and how well it was served (contract §10). Reads one snapshot; never writes, and never asks admission."""

from collections.abc import Iterator
from typing import NamedTuple

from allmende.chassis.db import Connection, Database
from allmende.chassis.ports import Clock
from allmende.ledger.ports import Demands, Readings, ReportReadings, Trees
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.figures import Asking, Hours, TeamHours, hours
from allmende.ledger.rules.hours import Span
from allmende.ledger.rules.standings import Window
from allmende.proto import figures
from allmende.proto.envelope import Refusal
from allmende.proto.reports import UsageQuery
from allmende.proto.units import HOUR_MS, LARGEST_AMOUNT, Ms

# A reply must fit one message of 64 KiB. With the longest names and numbers a row has 340 bytes.
ROWS_MAX = 170
# So many hours are worked out for one page, so that a long span costs as many short reads and not one long one a page.
HOURS_A_PAGE = 48
# 41 days.
HOURS_MAX = 1_000


class Stores(NamedTuple):
    """What the figures are read from."""

    demand: Demands
    readings: Readings
    reports: ReportReadings
    trees: Trees


class Figures:
    """The ledger's answers about demand."""

    def __init__(self, db: Database, stores: Stores, clock: Clock) -> None:
        self._db, self._stores, self._clock = db, stores, clock

    async def demand(self, caller: str, query: figures.DemandQuery) -> figures.DemandPage:
        """Who wanted how much, was owed and got how much, by hour and leaf: up to 170 rows a reply.

        Raises:
            Refusal: `empty_span`, `not_on_an_hour`, `too_many_hours`, `unknown_cluster`, `unknown_budget`.
        """
        now_ms = self._clock.now_ms()
        span = measured(query.from_ms, query.to_ms, now_ms)
        begin_ms = span.from_ms if query.after is None else min(max(query.after.from_ms, span.from_ms), span.to_ms)
        begin_ms -= (begin_ms - span.from_ms) % HOUR_MS
        piece = Span(begin_ms, min(span.to_ms, begin_ms + HOURS_A_PAGE * HOUR_MS))
        async with self._db.reading() as connection:
            await self._check(connection, query.cluster, query.budget)
            found = await self._hours(connection, query.cluster, query.budget, piece)
            not_known = await self._stores.demand.not_known(connection, span.from_ms)
        left = [row for row in _rows(found) if query.after is None or _place(row) > _mark(query.after)]
        page = left[:ROWS_MAX]
        after: figures.DemandMark | None = None
        if len(left) > len(page):
            after = figures.DemandMark(from_ms=page[-1].from_ms, budget=page[-1].budget)
        elif piece.to_ms < span.to_ms:
            after = figures.DemandMark(from_ms=piece.to_ms)
        return figures.DemandPage(
            cluster=query.cluster, as_of_ms=now_ms, to_ms=span.to_ms, jobs_not_known=not_known, rows=tuple(page), next_after=after
        )

    async def _check(self, connection: Connection, cluster: str, budget: str | None) -> None:
        if not await self._stores.reports.has_cluster(connection, cluster):
            raise Refusal(
                "unknown_cluster", f"nothing was ever heard of a cluster {cluster!r}; `allmende nodes` lists what is known"
            )
        if budget is not None and not (await self._stores.reports.known(connection, cluster, budget)).known:
            raise Refusal("unknown_budget", f"there is no budget {budget!r}; `allmende budgets` shows which there are")

    async def _hours(self, connection: Connection, cluster: str, budget: str | None, span: Span) -> Hours:
        """The hours of a span; of all teams, or of a budget and those below it."""
        capacity = levels(await self._stores.readings.steps(connection, cluster, Window(*span)), *span)
        tree = await self._stores.trees.tree(connection, cluster, *span)
        # The last hour may not be over: what was charged in it is there up to now.
        asked_for = UsageQuery(cluster=cluster, from_ms=span.from_ms, to_ms=span.to_ms, step_ms=HOUR_MS)
        used = await self._stores.reports.used(connection, asked_for, LARGEST_AMOUNT)
        asking = Asking(cluster, span)
        async for job in self._stores.demand.asked(connection, cluster, span):
            asking.add(job)
        demand_from_ms = await self._stores.demand.demand_from_ms(connection, cluster)
        found = hours(span, capacity, tree.shares, asking.by_leaf(), used, demand_from_ms)
        if budget is None:
            return found
        below = {share.budget for share in tree.shares if budget in share.path} | {budget}
        return found._replace(teams=tuple(team for team in found.teams if team.budget in below))


def measured(from_ms: Ms, to_ms: Ms, now_ms: Ms) -> Span:
    """The span of a question, up to now.

    Raises:
        Refusal: `not_on_an_hour`, `empty_span`, `too_many_hours`.
    """
    for name, value in (("from_ms", from_ms), ("to_ms", to_ms)):
        if value % HOUR_MS:
            sentence = f"demand is kept by full hours of UTC: {name} may be {value - value % HOUR_MS}, not {value}"
            raise Refusal("not_on_an_hour", sentence)
    span = Span(from_ms, min(to_ms, now_ms))
    if span.from_ms >= span.to_ms:
        raise Refusal("empty_span", f"the span ends at {span.to_ms}, not after its beginning {from_ms}: let it begin earlier")
    if span.hours > HOURS_MAX:
        raise Refusal("too_many_hours", f"{span.hours} hours are more than {HOURS_MAX} at once: ask for a shorter span")
    return span


def _rows(found: Hours) -> Iterator[figures.DemandRow]:
    for hour in range(found.span.hours):
        for team in found.teams:
            if team.demand[hour] or team.delivered[hour]:
                yield _row(found, hour, team)


def _row(found: Hours, hour: int, team: TeamHours) -> figures.DemandRow:
    demand = team.demand[hour] if found.demand_known[hour] else None
    return figures.DemandRow(
        from_ms=found.span.begins(hour),
        budget=team.budget,
        entitled_gpu_ms=team.entitled[hour] if found.capacity_known[hour] else None,
        demand_gpu_ms=demand,
        owed_gpu_ms=team.owed[hour] if found.known(hour) else None,
        delivered_gpu_ms=team.delivered[hour],
        unmet_gpu_ms=None if demand is None else max(0, demand - team.delivered[hour]),
    )


def _place(row: figures.DemandRow) -> tuple[Ms, str]:
    return row.from_ms, row.budget


def _mark(mark: figures.DemandMark) -> tuple[Ms, str]:
    return mark.from_ms, mark.budget or ""
