"""Answers about demand and how well it was served (contract §10). Reads one snapshot; never writes, and never asks admission."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from allmende.chassis.db import Connection, Database
from allmende.chassis.ports import Clock
from allmende.ledger.model import Level, Used
from allmende.ledger.ports import Activities, Demands, Readings, ReportReadings, Trees
from allmende.ledger.rules.capacity import levels
from allmende.ledger.rules.figures import NOT_WATCHED, Asking, Hours, TeamHours, hours, team_figures, whole
from allmende.ledger.rules.figures import TeamFigures as Team
from allmende.ledger.rules.hours import Span
from allmende.ledger.rules.standings import Window
from allmende.ledger.rules.waits import Waiting, wait
from allmende.proto import figures
from allmende.proto.envelope import Refusal
from allmende.proto.impact import SERVED_PERCENT, total
from allmende.proto.reports import UsageQuery
from allmende.proto.units import HOUR_MS, LARGEST_AMOUNT, Ms, format_instant

# A reply must fit one message of 64 KiB. With the longest names and numbers a row has 340 bytes.
ROWS_MAX = 170
# A team has 490 bytes.
TEAMS_MAX = 110
# An attempt has 480 bytes.
IDLE_MAX = 120
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
    activity: Activities


class Read(NamedTuple):
    """What the figures are made of."""

    found: Hours
    capacity: Sequence[Level]
    used: Sequence[Used]


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
            found, _, _ = await self._read(connection, query.cluster, query.budget, piece)
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

    async def measure(self, caller: str, query: figures.FiguresQuery) -> figures.FiguresPage:
        """The figures of contract §10 over a span, up to 110 teams a reply. Each page is of its own instant.

        Raises:
            Refusal: as `demand`.
        """
        now_ms = self._clock.now_ms()
        span = measured(query.from_ms, query.to_ms, now_ms)
        async with self._db.reading() as connection:
            await self._check(connection, query.cluster, query.budget)
            read = await self._read(connection, query.cluster, query.budget, span)
            busy = await self._stores.activity.by_budget(connection, query.cluster, span)
            not_known = await self._stores.demand.not_known(connection, span.from_ms)
        found = read.found
        teams = team_figures(found, busy)
        every, cluster = total(team.impact for team in teams), whole(found, read.capacity, read.used)
        watched = list(busy.values()) if query.budget is None else [busy.get(team.budget, NOT_WATCHED) for team in teams]
        left = [team for team in teams if query.after is None or team.budget > query.after]
        page = left[:TEAMS_MAX]
        owed = [team.impact for team in teams if team.impact.owed]
        return figures.FiguresPage(
            cluster=query.cluster,
            budget=query.budget,
            as_of_ms=now_ms,
            from_ms=span.from_ms,
            to_ms=span.to_ms,
            hours=span.hours,
            hours_of_unknown_capacity=span.hours - sum(found.capacity_known),
            hours_of_unknown_owed=sum(not found.known(hour) for hour in range(span.hours)),
            jobs_not_known=not_known,
            installed_gpu_ms=cluster.installed,
            available_gpu_ms=cluster.available,
            allocated_gpu_ms=cluster.allocated,
            unallocated_gpu_ms=cluster.unallocated,
            watched_gpu_ms=sum(each.watched_gpu_ms for each in watched),
            busy_gpu_ms=sum(each.busy_gpu_ms for each in watched),
            owed_gpu_ms=every.owed,
            delivered_gpu_ms=every.delivered,
            weekly_gpu_ms=every.weekly,
            strict_gpu_ms=every.strict,
            teams_owed=len(owed),
            teams_at_95=sum(each.weekly * 100 >= each.owed * SERVED_PERCENT for each in owed),
            teams=tuple(_team(team) for team in page),
            next_after=page[-1].budget if len(left) > len(page) else None,
        )

    async def waits(self, caller: str, query: figures.WaitsQuery) -> figures.WaitsReply:
        """How long the allocated jobs that were submitted in a span waited for their first start, by size class.

        Raises:
            Refusal: as `demand`.
        """
        now_ms = self._clock.now_ms()
        span = measured(query.from_ms, query.to_ms, now_ms)
        waiting = Waiting()
        async with self._db.reading() as connection:
            await self._check(connection, query.cluster, query.budget)
            below = await self._below(connection, query.cluster, query.budget, span)
            async for job in self._stores.demand.asked(connection, query.cluster, span):
                found = wait(job, query.cluster, now_ms)
                is_asked = span.has(job.want.submitted_at_ms) and (below is None or job.leaf in below)
                if found is not None and is_asked:
                    waiting.add(found)
            not_known = await self._stores.demand.not_known(connection, span.from_ms)
        return figures.WaitsReply(
            cluster=query.cluster,
            budget=query.budget,
            as_of_ms=now_ms,
            from_ms=span.from_ms,
            to_ms=span.to_ms,
            jobs_not_known=not_known,
            classes=tuple(figures.ClassWaits(**each._asdict()) for each in waiting.classes()),
        )

    async def idle(self, caller: str, query: figures.IdleQuery) -> figures.IdlePage:
        """Who held GPUs without using them, most idle first, up to 120 attempts a reply.

        Raises:
            Refusal: as `demand`.
        """
        now_ms = self._clock.now_ms()
        span = measured(query.from_ms, query.to_ms, now_ms)
        async with self._db.reading() as connection:
            await self._check(connection, query.cluster, query.budget)
            below = await self._below(connection, query.cluster, query.budget, span)
            rows = await self._stores.activity.idle(connection, query.cluster, span, below, query.offset, IDLE_MAX + 1)
        return figures.IdlePage(
            cluster=query.cluster,
            as_of_ms=now_ms,
            to_ms=span.to_ms,
            rows=tuple(figures.IdleRow(**each._asdict()) for each in rows[:IDLE_MAX]),
            more=len(rows) > IDLE_MAX,
        )

    async def _below(self, connection: Connection, cluster: str, budget: str | None, span: Span) -> set[str] | None:
        """A budget and all that was below it at any time of a span; None: no budget is asked for."""
        if budget is None:
            return None
        tree = await self._stores.trees.tree(connection, cluster, *span)
        return {budget, *(share.budget for share in tree.shares if budget in share.path)}

    async def _check(self, connection: Connection, cluster: str, budget: str | None) -> None:
        if not await self._stores.reports.has_cluster(connection, cluster):
            raise Refusal(
                "unknown_cluster", f"nothing was ever heard of a cluster {cluster!r}; `allmende nodes` lists what is known"
            )
        if budget is not None and not (await self._stores.reports.known(connection, cluster, budget)).known:
            raise Refusal("unknown_budget", f"there is no budget {budget!r}; `allmende budgets` shows which there are")

    async def _read(self, connection: Connection, cluster: str, budget: str | None, span: Span) -> Read:
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
        if budget is not None:
            below = {share.budget for share in tree.shares if budget in share.path} | {budget}
            found = found._replace(teams=tuple(team for team in found.teams if team.budget in below))
        return Read(found, capacity, used)


def measured(from_ms: Ms, to_ms: Ms, now_ms: Ms) -> Span:
    """The span of a question, up to now.

    Raises:
        Refusal: `not_on_an_hour`, `empty_span`, `too_many_hours`.
    """
    for name, value in (("from_ms", from_ms), ("to_ms", to_ms)):
        if value % HOUR_MS:
            may, asked = format_instant(value - value % HOUR_MS), format_instant(value)
            sentence = f"demand is kept by full hours of UTC: {name} may be {may}, not {asked}"
            raise Refusal("not_on_an_hour", sentence)
    span = Span(from_ms, min(to_ms, now_ms))
    if span.from_ms >= span.to_ms:
        begin, end = format_instant(from_ms), format_instant(span.to_ms)
        raise Refusal("empty_span", f"the span ends at {end}, not after its beginning {begin}: let it begin earlier")
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


def _team(team: Team) -> figures.TeamFigures:
    return figures.TeamFigures(
        budget=team.budget,
        entitled_gpu_ms=team.entitled,
        demand_gpu_ms=team.demand,
        owed_gpu_ms=team.impact.owed,
        delivered_gpu_ms=team.impact.delivered,
        weekly_gpu_ms=team.impact.weekly,
        strict_gpu_ms=team.impact.strict,
        watched_gpu_ms=team.busy.watched_gpu_ms,
        busy_gpu_ms=team.busy.busy_gpu_ms,
    )


def _place(row: figures.DemandRow) -> tuple[Ms, str]:
    return row.from_ms, row.budget


def _mark(mark: figures.DemandMark) -> tuple[Ms, str]:
    return mark.from_ms, mark.budget or ""
