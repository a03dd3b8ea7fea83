"""Watches, samples, notices and their deliveries in PostgreSQL. Decides nothing."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from allmende.budget.model import DeliveryRow, Parcel
from allmende.budget.ports import Key
from allmende.budget.rules.notices import Watch
from allmende.chassis.db import Connection, Transaction, load_queries
from allmende.proto.budget import MAX_DEPTH, Budget
from allmende.proto.notices import BudgetNotice, DeliveryState
from allmende.proto.pace import SAMPLES_KEPT_MS, Sample

_SQL = load_queries("allmende.budget", "notices.sql")
_encode = msgspec.json.Encoder().encode
_notice = msgspec.json.Decoder(BudgetNotice)
_budget = msgspec.json.Decoder(Budget)

# Replicas share the standings; whoever looks at one has seen what the others have told.
_LOCK = "notices"
# Long enough for "when did this begin?"; a notice and its delivery take about a kilobyte.
_KEPT_DAYS = 366


class NoticeStore:
    """The queries. Keeps no state: every replica sees what is committed."""

    async def lock(self, tx: Transaction) -> None:
        """Only one replica looks at standings at a time."""
        await tx.lock(_LOCK)

    async def watches(self, tx: Transaction, keys: Iterable[Key]) -> dict[Key, Watch]:
        """What is remembered; nothing for a budget whose standing was never seen."""
        rows = await tx.connection.fetch(_SQL["watches"], *_columns(keys, 2))
        return {(row[0], row[1]): Watch(*list(row.values())[2:]) for row in rows}

    async def keep(self, tx: Transaction, watches: Mapping[Key, Watch], samples: Mapping[Key, Sample]) -> None:
        """Remember watches, and the samples that are due; samples that no pace looks at any more are forgotten."""
        await tx.connection.execute(_SQL["keep_watches"], *_columns((*key, *watch) for key, watch in sorted(watches.items())))
        if samples:
            await tx.connection.execute(_SQL["keep_samples"], *_columns((*key, *sample) for key, sample in samples.items()))
            newest = _columns((*key, sample.at_ms) for key, sample in samples.items())
            await tx.connection.execute(_SQL["forget_samples"], *newest, SAMPLES_KEPT_MS)

    async def samples(self, tx: Transaction, keys: Iterable[Key]) -> dict[Key, list[Sample]]:
        """The samples that are kept, oldest first."""
        found: dict[Key, list[Sample]] = {}
        for cluster, budget, *amounts in await tx.connection.fetch(_SQL["samples"], *_columns(keys, 2)):
            found.setdefault((cluster, budget), []).append(Sample(*amounts))
        return found

    async def with_those_above(self, tx: Transaction, budgets: Iterable[str]) -> dict[str, Budget]:
        """Budgets of the tree in force and all budgets above them, by name; those that are gone are missing."""
        found: dict[str, Budget] = {}
        wanted = set(budgets)
        for _ in range(MAX_DEPTH):
            if not wanted:
                break
            rows = await tx.connection.fetch(_SQL["definitions"], sorted(wanted))
            level = [_budget.decode(row[0]) for row in rows if row[0] is not None]
            found.update((row.budget, row) for row in level)
            wanted = {row.parent for row in level if row.parent is not None} - set(found)
        return found

    async def add(self, tx: Transaction, notice: BudgetNotice, *, deliver: bool) -> None:
        """Keep a notice, and put it on its way where there is a webhook."""
        number = await tx.connection.fetchval(_SQL["add_notice"], notice.budget, notice.cluster, _encode(notice).decode())
        if deliver:
            await tx.connection.execute(_SQL["add_delivery"], number)
        await tx.connection.execute(_SQL["forget_notices"], _KEPT_DAYS)

    async def before(
        self, connection: Connection, budget: str | None, cluster: str | None, number: int | None, limit: int
    ) -> list[tuple[int, BudgetNotice]]:
        """Up to `limit` notices with smaller numbers, newest first."""
        rows = await connection.fetch(_SQL["notices_before"], budget, cluster, number, limit)
        return [(row[0], _notice.decode(row[1])) for row in rows]

    async def deliveries_before(
        self, connection: Connection, state: DeliveryState | None, number: int | None, limit: int
    ) -> list[DeliveryRow]:
        """Up to `limit` deliveries with smaller numbers, newest first."""
        rows = await connection.fetch(_SQL["deliveries_before"], state, number, limit)
        return [DeliveryRow(row[0], _notice.decode(row[1]), *list(row.values())[2:]) for row in rows]

    async def take_due(self, tx: Transaction, out_of_the_way_s: float) -> Parcel | None:
        """One delivery that is due, taken out of other replicas' way for so many seconds; None: none is."""
        row = await tx.connection.fetchrow(_SQL["take_due_delivery"], out_of_the_way_s)
        return None if row is None else Parcel(row[0], row[1], _notice.decode(row[2]), row[3])

    async def delivered(self, tx: Transaction, number: int) -> None:
        """The receiver has it."""
        await tx.connection.execute(_SQL["delivered"], number)

    async def failed(self, tx: Transaction, parcel: Parcel, problem: str, again_in_s: float | None) -> None:
        """A try failed: again after so many seconds, or never (None). Nothing, where another replica has tried since."""
        if again_in_s is None:
            await tx.connection.execute(_SQL["given_up"], parcel.number, parcel.tries, problem)
        else:
            await tx.connection.execute(_SQL["failed"], parcel.number, parcel.tries, problem, again_in_s)

    async def retry(self, tx: Transaction, number: int | None) -> int:
        """Let what was given up wait again: one, or all. Returns how many."""
        count: int = await tx.connection.fetchval(_SQL["retry"], number)
        return count


def _columns(rows: Iterable[Sequence[object]], width: int = 0) -> list[list[object]]:
    """Rows as columns; `width` empty ones where there are no rows."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]
