"""What the budget service answers about notices: those that were told, and how they fare on their way to the webhook."""

from allmende.budget import wire
from allmende.budget.ports import Notices, Writer
from allmende.chassis.db import Database, Transaction
from allmende.chassis.worker import Outcome
from allmende.proto.envelope import Refusal
from allmende.proto.notices import DeliveriesPage, DeliveriesQuery, Delivery, NoticesPage, NoticesQuery, Retried, RetryDeliveries


class NoticeAnswers:
    """The answers. `sends`: there is a webhook."""

    def __init__(self, db: Database, store: Notices, writer: Writer, *, sends: bool) -> None:
        self._db, self._store, self._writer, self._sends = db, store, writer, sends

    async def notices(self, caller: str, query: NoticesQuery) -> NoticesPage:
        """Notices, newest first; of a budget that never was, none."""
        async with self._db.glancing() as connection:
            rows = await self._store.before(connection, query.budget, query.cluster, query.before, query.limit + 1)
        return wire.notices_page(rows[: query.limit], more=len(rows) > query.limit)

    async def deliveries(self, caller: str, query: DeliveriesQuery) -> DeliveriesPage:
        """Deliveries, newest first. At most 100, each below half a kilobyte: they always fit."""
        async with self._db.glancing() as connection:
            rows = await self._store.deliveries_before(connection, query.state, query.before, query.limit + 1)
        found = tuple(
            Delivery(
                number=row.number,
                notice=row.notice.notice,
                budget=row.notice.budget,
                state=row.state,
                tries=row.tries,
                problem=row.problem,
                next_try_at_ms=row.next_try_at_ms,
                settled_at_ms=row.settled_at_ms,
            )
            for row in rows[: query.limit]
        )
        before = found[-1].number if len(rows) > query.limit else None
        return DeliveriesPage(sender="on" if self._sends else "off", deliveries=found, next_before=before)

    async def retry(self, caller: str, request: RetryDeliveries) -> Retried:
        """Let what was given up wait again.

        Raises:
            Refusal: `webhook_off` where there is no webhook; `not_given_up` for a delivery that was not given up, or is not there.
        """
        if not self._sends:
            raise Refusal("webhook_off", "there is no webhook: set webhook_url and webhook_secret of the budget service first")

        async def work(tx: Transaction) -> tuple[int, Outcome]:
            return await self._store.retry(tx, request.number), Outcome()

        count = await self._writer.exclusively(work)
        if request.number is not None and not count:
            raise Refusal("not_given_up", f"the delivery of notice {request.number} was not given up, so it cannot be tried again")
        return Retried(deliveries=count)
