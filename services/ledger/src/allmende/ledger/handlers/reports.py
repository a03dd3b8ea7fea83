"""Answers to people's questions: a budget's statement, and usage by budget and time. Reads one snapshot; never writes."""

from allmende.chassis.db import Database
from allmende.chassis.ports import Clock
from allmende.ledger.model import BUCKET_MS, Charged, Part, Used
from allmende.ledger.ports import ReportReadings
from allmende.ledger.rules.reports import state
from allmende.proto.envelope import Refusal
from allmende.proto.reports import (
    StatementLine,
    StatementPage,
    StatementQuery,
    UsageByMark,
    UsageByPage,
    UsageByQuery,
    UsageByRow,
    UsageMark,
    UsagePage,
    UsageQuery,
    UsageRow,
)
from allmende.proto.units import Ms, format_instant

# A reply must fit one message of 64 KiB. With the longest names and numbers a line has 320 bytes, a row 150, a part 180.
LINES_MAX = 120
ROWS_MAX = 350
PARTS_MAX = 300
# Users and models are not kept by bucket: every attempt of the span is cut at every edge. 41 days of hours.
CUTS_MAX = 1_000


class Reports:
    """The ledger's reports."""

    def __init__(self, db: Database, store: ReportReadings, clock: Clock) -> None:
        self._db, self._store, self._clock = db, store, clock

    async def statement(self, caller: str, query: StatementQuery) -> StatementPage:
        """A leaf's opening, attempts and closing on one cluster, up to 120 attempts a reply.

        Raises:
            Refusal: `empty_span`, `unknown_cluster`, `unknown_budget`; `has_budgets_below`: it is not a leaf.
        """
        _check_span(query.from_ms, query.to_ms)
        async with self._db.reading() as connection:
            if not await self._store.has_cluster(connection, query.cluster):
                raise _unknown_cluster(query.cluster)
            budget = await self._store.known(connection, query.cluster, query.budget)
            if not budget.known:
                raise Refusal("unknown_budget", f"there is no budget {query.budget!r}; `allmende budgets` shows which there are")
            found = await self._store.charged(connection, query.cluster, query.budget, query.from_ms, query.to_ms)
            corrected = await self._store.corrected(connection, query.cluster, query.budget, query.from_ms, query.to_ms)
            if budget.has_below and not found:
                sentence = f"{query.budget!r} has budgets below it, and only leaves are charged: ask for one of those"
                raise Refusal("has_budgets_below", sentence)
        whole = state(found, query.from_ms, corrected)
        left = [each for each in whole.lines if query.after is None or each.attempt > query.after]
        page = left[:LINES_MAX]
        return StatementPage(
            cluster=query.cluster,
            budget=query.budget,
            as_of_ms=self._clock.now_ms(),
            opening_gpu_ms=whole.opening_gpu_ms,
            closing_gpu_ms=whole.closing_gpu_ms,
            held_gpu_ms=whole.held_gpu_ms,
            corrected_gpu_ms=whole.corrected_gpu_ms,
            lines=tuple(_line(each) for each in page),
            next_after=page[-1].attempt if len(left) > len(page) else None,
        )

    async def usage(self, caller: str, query: UsageQuery) -> UsagePage:
        """Who was charged how much, by step and budget, up to 350 rows a reply. The last step ends at `to_ms`.

        Raises:
            Refusal: `empty_span`, `unknown_cluster`; `not_on_an_edge`: an instant or the step is no multiple of 5 minutes.
        """
        _check_steps(query)
        async with self._db.reading() as connection:
            if not await self._store.has_cluster(connection, query.cluster):
                raise _unknown_cluster(query.cluster)
            rows = await self._store.used(connection, query, ROWS_MAX + 1)
        page = rows[:ROWS_MAX]
        last = page[-1] if len(rows) > len(page) else None
        return UsagePage(
            cluster=query.cluster,
            as_of_ms=self._clock.now_ms(),
            rows=tuple(_row(each) for each in page),
            next_after=None if last is None else UsageMark(from_ms=last.from_ms, budget=last.budget),
        )

    async def usage_by(self, caller: str, query: UsageByQuery) -> UsageByPage:
        """What each user, or the GPUs of each model, held by step, up to 300 rows a reply. The last step ends at `to_ms`.

        Raises:
            Refusal: as `usage`; `too_many_steps`: more than 1,000.
        """
        _check_steps(query)
        cuts = -(-(query.to_ms - query.from_ms) // query.step_ms)
        if cuts > CUTS_MAX:
            sentence = f"{cuts} steps are more than {CUTS_MAX} at once: ask for longer steps or a shorter span"
            raise Refusal("too_many_steps", sentence)
        async with self._db.reading() as connection:
            if not await self._store.has_cluster(connection, query.cluster):
                raise _unknown_cluster(query.cluster)
            parts = await self._store.used_by(connection, query, PARTS_MAX + 1)
        page = parts[:PARTS_MAX]
        last = page[-1] if len(parts) > len(page) else None
        return UsageByPage(
            cluster=query.cluster,
            by=query.by,
            as_of_ms=self._clock.now_ms(),
            rows=tuple(_part(each) for each in page),
            next_after=None if last is None else UsageByMark(from_ms=last.from_ms, name=last.name),
        )


def _line(each: Charged) -> StatementLine:
    return StatementLine(
        attempt=each.attempt,
        job=each.job,
        gpus=each.gpus,
        granted_at_ms=each.granted_at_ms,
        ended_at_ms=each.ended_at_ms,
        outcome=each.outcome,
        charged_gpu_ms=each.within_gpu_ms,
        held_gpu_ms=each.held_gpu_ms,
    )


def _row(each: Used) -> UsageRow:
    return UsageRow(from_ms=each.from_ms, budget=each.budget, gpu_ms=each.gpu_ms)


def _part(each: Part) -> UsageByRow:
    return UsageByRow(
        from_ms=each.from_ms,
        name=each.name,
        allocated_gpu_ms=each.allocated_gpu_ms,
        unallocated_gpu_ms=each.unallocated_gpu_ms,
    )


def _check_steps(query: UsageQuery | UsageByQuery) -> None:
    _check_span(query.from_ms, query.to_ms)
    for name, value in (("from_ms", query.from_ms), ("to_ms", query.to_ms), ("step_ms", query.step_ms)):
        if value % BUCKET_MS:
            nearest = max(BUCKET_MS, value - value % BUCKET_MS)
            # A step is a length, and exact: a duration in words is rounded.
            may, asked = (f"{at} ms" if name == "step_ms" else format_instant(at) for at in (nearest, value))
            raise Refusal("not_on_an_edge", f"usage is kept in steps of 5 minutes: {name} may be {may}, not {asked}")


def _check_span(from_ms: Ms, to_ms: Ms) -> None:
    if from_ms >= to_ms:
        begin, end = format_instant(from_ms), format_instant(to_ms)
        raise Refusal("empty_span", f"the span ends at {end}, not after its beginning {begin}: let it end later")


def _unknown_cluster(cluster: str) -> Refusal:
    return Refusal("unknown_cluster", f"nothing was ever heard of a cluster {cluster!r}; `allmende nodes` lists what is known")
