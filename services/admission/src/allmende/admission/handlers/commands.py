"""What people command: end a job. Runs between the batches, in a transaction of its own."""

from allmende.admission.handlers.desk import Desk
from allmende.admission.handlers.queries import one_of
from allmende.admission.ports import Store, Writer
from allmende.admission.rules import life
from allmende.chassis.db import Database, Transaction
from allmende.chassis.ports import Clock
from allmende.chassis.worker import Outcome
from allmende.proto.admission import CancelJob, Cancelled
from allmende.proto.envelope import Refusal


class Commands:
    """Answers to requests that change something."""

    def __init__(self, desk: Desk, store: Store, db: Database, writer: Writer, clock: Clock, operators: tuple[str, ...]) -> None:
        self._desk, self._store, self._db, self._writer, self._clock = desk, store, db, writer, clock
        self._operators = operators

    async def cancel(self, caller: str, request: CancelJob) -> Cancelled:
        """End a job of the caller's own; an operator may end anybody's.

        Raises:
            Refusal: `unknown_job`, `ambiguous_job` or `not_your_job`.
        """

        # Refused out here: a transaction that fails drops the books, and a stranger must not cause that.
        async with self._db.reading() as connection:
            stored = one_of(await self._store.jobs_by_suffix(connection, request.job), request.job)
        if stored.user != caller and caller not in self._operators:
            raise Refusal("not_your_job", f"job {stored.job} belongs to {stored.user}; only its owner or an operator may cancel it")
        name = stored.job

        async def work(tx: Transaction) -> tuple[Cancelled, Outcome]:
            books = await self._desk.open(tx)
            job = books.jobs.get(name)
            if job is None:
                return Cancelled(job=name, status="already_ended"), await self._desk.close(tx)
            self._desk.apply(life.cancel(books, job, self._clock.now_ms()))
            self._desk.want(job.clusters or books.cluster_names())
            reply = Cancelled(job=name, status="ending" if name in books.jobs else "ended")
            return reply, await self._desk.close(tx)

        return await self._writer.exclusively(work)
