"""When budgets come to 100 % of their entitlement at the pace of the last day: the rule of the budget service's notices.

Two points: the standings now, and those of a day ago, which the books still tell. Reads one snapshot; never a promise.
"""

from allmende.chassis.db import Connection, Database
from allmende.chassis.ports import Clock
from allmende.ledger.handlers.rounds import Rounds
from allmende.ledger.model import BUCKET_MS, Account
from allmende.ledger.ports import PastHolds, Verifying
from allmende.proto import figures
from allmende.proto.envelope import Refusal
from allmende.proto.pace import SAMPLES_KEPT_MS, Sample, pace
from allmende.proto.units import Ms

# A reply must fit one message of 64 KiB. With the longest names and numbers a row has 370 bytes.
ROWS_MAX = 160


class Forecast:
    """Answers `pace`."""

    def __init__(self, db: Database, rounds: Rounds, past: PastHolds, begins: Verifying, clock: Clock) -> None:
        self._db, self._rounds, self._past, self._begins, self._clock = db, rounds, past, begins, clock

    async def pace(self, caller: str, query: figures.PaceQuery) -> figures.PacePage:
        """Every budget's pace, or that of one, up to 160 a reply. Each page is of its own instant.

        Raises:
            Refusal: `unknown_cluster`, `unknown_budget`; `not_ready` while the tree or the capacity is unknown.
        """
        now_ms = self._clock.now_ms()
        async with self._db.reading() as connection:
            taken = await self._rounds.now(connection, query.cluster, now_ms)
            if taken is None:
                raise Refusal("unknown_cluster", f"nothing was ever heard of a cluster {query.cluster!r}")
            if taken.standings is None:
                sentence = f"the tree of budgets or the capacity of {query.cluster!r} is not known yet; ask again"
                raise Refusal("not_ready", sentence)
            then_ms = await self._then_ms(connection, query.cluster, now_ms)
            live = await self._past.live_at(connection, query.cluster, then_ms)
            before = await self._rounds.past(connection, query.cluster, then_ms, live)
        then = {} if before is None else {each.budget: each for each in before.accounts}
        accounts = [each for each in taken.standings.accounts if query.budget in (None, each.budget)]
        if query.budget is not None and not accounts:
            raise Refusal("unknown_budget", f"there is no budget {query.budget!r} now; `allmende budgets` shows which there are")
        left = [each for each in accounts if query.after is None or each.budget > query.after]
        page = left[:ROWS_MAX]
        return figures.PacePage(
            cluster=query.cluster,
            as_of_ms=now_ms,
            rows=tuple(_row(each, now_ms, then.get(each.budget), then_ms) for each in page),
            next_after=page[-1].budget if len(left) > len(page) else None,
        )

    async def _then_ms(self, connection: Connection, cluster: str, now_ms: Ms) -> Ms:
        """The oldest edge of a bucket that is at most a day ago and not before the books."""
        begin_ms = await self._begins.begin_ms(connection, cluster)
        oldest_ms = max(now_ms - SAMPLES_KEPT_MS, now_ms if begin_ms is None else begin_ms, 1)
        return -(-oldest_ms // BUCKET_MS) * BUCKET_MS


def _sample(account: Account, at_ms: Ms) -> Sample:
    return Sample(at_ms, account.charged_gpu_ms + account.held_gpu_ms, account.entitlement_gpu_ms)


def _row(account: Account, now_ms: Ms, before: Account | None, then_ms: Ms) -> figures.PaceRow:
    now = _sample(account, now_ms)
    then = None if before is None else _sample(before, then_ms)
    found = pace(() if then is None else (then,), now)
    return figures.PaceRow(
        budget=account.budget,
        used_gpu_ms=now.used,
        entitlement_gpu_ms=now.entitlement,
        then_ms=None if then is None else then_ms,
        then_used_gpu_ms=None if then is None else then.used,
        then_entitlement_gpu_ms=None if then is None else then.entitlement,
        reaches=found if isinstance(found, str) else "at",
        at_ms=None if isinstance(found, str) else found,
    )
