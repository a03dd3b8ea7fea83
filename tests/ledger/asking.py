"""Builders for what admission says of jobs, and a desk that hears it. Attempt n is of job n + 1000, as in `builders`."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from allmende.chassis import inbox
from allmende.chassis.db import Database
from allmende.chassis.fakes import ManualClock
from allmende.chassis.ports import Event
from allmende.ledger.handlers.activity import ActivityHearing
from allmende.ledger.handlers.demand import DemandHearing
from allmende.ledger.handlers.figures import Figures, Stores
from allmende.ledger.handlers.pace import Forecast
from allmende.ledger.store.activity import ActivityStore
from allmende.ledger.store.demand import DemandStore
from allmende.ledger.store.reading import ReadingStore
from allmende.ledger.store.reports import ReportStore
from allmende.ledger.store.tree import TreeStore
from allmende.ledger.store.verify import VerifyStore
from allmende.proto import admission
from allmende.proto.demand import Asked
from allmende.proto.figures import DemandMark, DemandPage, DemandQuery, DemandRow
from allmende.proto.message import Message
from allmende.proto.units import HOUR_MS
from tests.ledger.builders import START_MS, granted, id_of, read
from tests.ledger.desk import Desk

# 22:00 UTC, the full hour before START_MS.
HOUR_0 = START_MS - START_MS % HOUR_MS


def asked(
    *,
    gpus: int = 1,
    replicas: int = 1,
    budget: str | None = "nlp",
    slice_ms: int = HOUR_MS,
    at_ms: int = HOUR_0,
    clusters: Sequence[str] = (),
) -> Asked:
    """What a job asks for."""
    return Asked(
        budget=budget,
        submitted_at_ms=at_ms,
        clusters=tuple(clusters),
        replicas=replicas,
        gpus_per_replica=gpus,
        gpu_model=None,
        slice_ms=slice_ms,
    )


def queued(number: int, want: Asked | None) -> admission.JobQueued:
    """The job of attempt `number` waits."""
    return admission.JobQueued(
        user="bob", job=id_of(number + 1_000), budget=want.budget if want else "nlp", submitted_at_ms=HOUR_0, asked=want
    )


def grant(number: int, want: Asked, at_ms: int, *, cluster: str = "c1", job: int | None = None, seq: int | None = None) -> Any:
    """Attempt `number` of its job, or of the job of another attempt."""
    said = granted(
        number,
        gpus=want.gpus_per_replica,
        replicas=want.replicas,
        budget=want.budget,
        slice_ms=want.slice_ms,
        at_ms=at_ms,
        cluster=cluster,
        seq=seq,
    )
    return replace(said, asked=want, job=id_of((number if job is None else job) + 1_000))


def job_ended(
    number: int, at_ms: int, want: Asked | None, outcome: admission.JobOutcome = "finished", first_started_at_ms: int | None = None
) -> admission.JobEnded:
    """Nothing more happens to the job of attempt `number`."""
    return admission.JobEnded(
        user="bob",
        job=id_of(number + 1_000),
        budget="nlp",
        outcome=outcome,
        attempts=1,
        submitted_at_ms=HOUR_0,
        first_started_at_ms=first_started_at_ms,
        ended_at_ms=at_ms,
        asked=want,
    )


class AskingDesk(Desk):
    """A ledger that hears of jobs, and answers how they were served."""

    def __init__(self, db: Database, clock: ManualClock, start: int = 1) -> None:
        super().__init__(db, clock, start)
        self.whole = DemandHearing(ActivityHearing(self.hearing, ActivityStore()), DemandStore())
        self.forecast = Forecast(db, self._rounds, DemandStore(), VerifyStore(), clock)
        self.figures = Figures(db, Stores(DemandStore(), ReadingStore(), ReportStore(), TreeStore(), ActivityStore()), clock)

    def event(self, body: Message, sent_at_ms: int | None = None) -> Event:
        """A message in an envelope of its own, that says when it happened as admission does."""
        event = super().event(body, sent_at_ms)
        match body:
            case admission.JobQueued(asked=Asked(submitted_at_ms=at_ms)):
                return event._replace(envelope=replace(event.envelope, occurred_at_ms=at_ms))
            case admission.JobGranted(granted_at_ms=at_ms) | admission.JobEnded(ended_at_ms=at_ms):
                return event._replace(envelope=replace(event.envelope, occurred_at_ms=at_ms))
        return event

    async def hear_events(self, events: Sequence[Event]) -> list[Any]:
        """Hear events in one batch, as the ledger's worker does."""
        async with self.db.transaction() as tx:
            outcome = await self.whole(tx, await inbox.fresh(tx, events))
        return read(outcome.drafts)

    async def demand(
        self,
        hours: int,
        from_ms: int = HOUR_0,
        cluster: str = "c1",
        budget: str | None = None,
        pages: list[DemandPage] | None = None,
    ) -> list[DemandRow]:
        """Demand by hour and leaf, all pages."""
        query = DemandQuery(cluster=cluster, from_ms=from_ms, to_ms=from_ms + hours * HOUR_MS, budget=budget)
        found: list[DemandRow] = []
        after: DemandMark | None = None
        while True:
            page = await self.figures.demand("olga", replace(query, after=after))
            found += page.rows
            if pages is not None:
                pages.append(page)
            after = page.next_after
            if after is None:
                return found
