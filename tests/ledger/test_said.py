"""What viewers hear of a budget's use: when it changes, from one replica, at most every ten seconds, never out of a roll-back."""

from typing import Any

from allmende.chassis import inbox
from allmende.chassis.fakes import CountingIds
from allmende.ledger.handlers.said import EVERY_MS, UsageSaying
from allmende.ledger.store.said import SaidStore
from allmende.proto.ledger import BudgetUsage
from allmende.proto.message import Message
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS
from tests.ledger.asking import HOUR_0
from tests.ledger.builders import START_MS, counter, ended, granted, node, read, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab


class SayingDesk(Desk):
    """A ledger that tells viewers what each budget uses."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.whole = UsageSaying(self.hearing, SaidStore(), self.clock, CountingIds(7_000_000))

    async def told(self, *bodies: Message) -> dict[str, BudgetUsage]:
        """Hear messages; returns what viewers hear of use."""
        async with self.db.transaction() as tx:
            outcome = await self.whole(tx, await inbox.fresh(tx, [self.event(body) for body in bodies]))
        return {body.budget: body for body in read(outcome.drafts) if isinstance(body, BudgetUsage)}

    async def later(self, *bodies: Message) -> dict[str, BudgetUsage]:
        """The same when the next look is due."""
        self.clock.advance(EVERY_MS)
        return await self.told(*bodies)


async def test_use_is_said_when_it_changes_and_not_more_often_than_ticks_come(lab: Lab) -> None:
    desk = SayingDesk(await lab.database("ledger"), clock_at(0.5))
    first = await desk.told(*tree(), node(), granted(1, gpus=2), started(1), tick(counter(1, 7 * MINUTE_MS, 1, gpus=2)))
    assert {budget: (said.attempts, said.gpus, said.hour_gpu_ms, said.day_gpu_ms) for budget, said in first.items()} == {
        "nlp": (1, 2, 14 * MINUTE_MS, 14 * MINUTE_MS),
        "rl": (0, 0, 0, 0),
        "vision": (0, 0, 0, 0),
    }
    assert first["nlp"].hour_from_ms == HOUR_0
    assert await desk.told(tick(counter(1, 8 * MINUTE_MS, 2, gpus=2))) == {}, "ten seconds have not passed"
    assert [(said.budget, said.hour_gpu_ms) for said in (await desk.later()).values()] == [("nlp", 16 * MINUTE_MS)]
    assert await desk.later() == {}, "nothing has changed"
    end = await desk.later(ended(1, START_MS + 9 * MINUTE_MS, counter(1, 9 * MINUTE_MS, 3, gpus=2)))
    assert (end["nlp"].attempts, end["nlp"].gpus, end["nlp"].day_gpu_ms) == (0, 0, 18 * MINUTE_MS)


async def test_a_new_hour_and_a_new_day_begin_at_zero(lab: Lab) -> None:
    desk = SayingDesk(await lab.database("ledger"), clock_at(0.5))
    await desk.told(*tree(), node(), granted(1), started(1), tick(counter(1, 20 * MINUTE_MS, 1)))
    await desk.later()
    desk.clock.advance(HOUR_MS)
    hour = (await desk.later())["nlp"]
    assert (hour.hour_from_ms, hour.hour_gpu_ms, hour.day_gpu_ms) == (HOUR_0 + HOUR_MS, 0, 20 * MINUTE_MS)
    desk.clock.advance(DAY_MS)
    day = (await desk.later())["nlp"]
    assert (day.hour_gpu_ms, day.day_gpu_ms, day.attempts) == (0, 0, 1)


async def test_of_two_replicas_one_says_it(lab: Lab) -> None:
    db, clock = await lab.database("ledger"), clock_at(0.5)
    one, two = SayingDesk(db, clock), SayingDesk(db, clock, 2)
    said = [await one.told(*tree(), node(), granted(1), started(1)), await two.told()]
    assert [len(each) for each in said] == [3, 0]


async def test_what_is_rolled_back_was_not_said(lab: Lab) -> None:
    desk = SayingDesk(await lab.database("ledger"), clock_at(0.5))
    await desk.hear(*tree(), node())
    async with desk.db.transaction() as tx:
        await tx.connection.execute("SAVEPOINT before")
        outcome = await desk.whole(tx, [desk.event(granted(1))])
        assert BudgetUsage.TYPE in {each.type for each in outcome.drafts}
        await tx.connection.execute("ROLLBACK TO before")
    assert set(await desk.later(granted(1))) == {"nlp", "rl", "vision"}
