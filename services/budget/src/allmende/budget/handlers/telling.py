"""What the budget service makes of standings: notices, once each. Load, decide, commit, say.

A standing that comes twice, late or again after a restart changes nothing: the revision that was looked at is in the same row as
what was told. Never computes a standing itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from allmende.budget import wire
from allmende.budget.ports import Key, Notices
from allmende.budget.rules.notices import Notice, Seen, Watch, concerned, is_news, judge, may_want_pace
from allmende.chassis.db import Transaction
from allmende.chassis.log import get_logger
from allmende.chassis.outbox import draft
from allmende.chassis.ports import Clock, Draft, Event, Ids
from allmende.chassis.worker import Outcome
from allmende.proto.ledger import UsageStanding
from allmende.proto.pace import Sample, is_sample_due, pace

_log = get_logger(__name__)


class _Told(NamedTuple):
    key: Key
    seen: Seen
    notice: Notice


class Telling:
    """The handler of standings. `deliver`: there is a webhook, so notices are put on their way."""

    def __init__(self, store: Notices, clock: Clock, ids: Ids, *, deliver: bool) -> None:
        self._store, self._clock, self._ids, self._deliver = store, clock, ids, deliver

    async def __call__(self, tx: Transaction, events: Sequence[Event]) -> Outcome:
        """Look at fresh standings, and say what people should know."""
        # While no agent has reported (a lab that starts) nothing is owed for now, and every budget of a young lab seems far over.
        standings = _by_budget(
            event.body for event in events if isinstance(event.body, UsageStanding) and event.body.available_gpus > 0
        )
        if not standings:
            return Outcome()
        await self._store.lock(tx)
        watches = await self._store.watches(tx, standings)
        news = {key: [each for each in several if is_news(watches.get(key, Watch()), each)] for key, several in standings.items()}
        news = {key: several for key, several in news.items() if several}
        asking = [key for key, several in news.items() if may_want_pace(watches.get(key, Watch()), several)]
        history = await self._store.samples(tx, asking) if asking else {}
        kept: dict[Key, Watch] = {}
        samples: dict[Key, Sample] = {}
        told: list[_Told] = []
        for key, several in news.items():
            watch = watches.get(key, Watch())
            for seen in several:
                if is_sample_due(watch.sampled_at_ms, seen.as_of_ms):
                    samples[key] = seen.sample
                watch, notice = judge(watch, seen, pace(history.get(key, ()), seen.sample))
                told += [_Told(key, seen, notice)] if notice else []
            kept[key] = watch
        drafts = await self._tell(tx, told, kept)
        if kept:
            await self._store.keep(tx, kept, {key: samples[key] for key in samples if key in kept})
        return Outcome(drafts=drafts)

    async def _tell(self, tx: Transaction, told: Sequence[_Told], kept: dict[Key, Watch]) -> list[Draft]:
        """Keep and draft what is told. Of a budget that is gone nothing is told, so nothing is remembered as told either."""
        if not told:
            return []
        path = await self._store.with_those_above(tx, {each.key[1] for each in told})
        now_ms = self._clock.now_ms()
        drafts = []
        for (cluster, budget), seen, notice in told:
            people = concerned(budget, path)
            if people is None:
                kept.pop((cluster, budget), None)
                continue
            body = wire.budget_notice(self._ids.new(now_ms), cluster, budget, seen, notice, people)
            await self._store.add(tx, body, deliver=self._deliver)
            drafts.append(draft(body, ids=self._ids, now_ms=now_ms))
            _log.info("people are told of a budget", budget=budget, cluster=cluster, kind=body.kind, level=notice.level)
        return drafts


def _by_budget(standings: Iterable[UsageStanding]) -> Mapping[Key, Sequence[Seen]]:
    """What was said of each budget, oldest round first, whatever the order in which it came."""
    found: dict[Key, list[Seen]] = {}
    for each in sorted(standings, key=lambda each: (each.cluster, each.budget, each.usage_revision)):
        found.setdefault((each.cluster, each.budget), []).append(wire.seen_in(each))
    return found
