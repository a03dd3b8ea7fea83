"""Whatever happens, after every step: conservation, charges as they were said, and a replay from empty equals the store.

A made-up cluster says what agents and admission say; the machine loses, repeats, delays and reorders it. What is expected is kept
apart from the ledger's rules: the greatest counter of each epoch that was delivered.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from allmende.chassis.ports import Event
from allmende.ledger.handlers.heard import HeardVerification
from allmende.ledger.handlers.reports import Reports
from allmende.ledger.handlers.verify import Verification
from allmende.ledger.model import BUCKET_MS
from allmende.ledger.store.reading import ReadingStore
from allmende.ledger.store.reports import ReportStore
from allmende.ledger.store.verify import VerifyStore
from allmende.proto.budget import Budget
from allmende.proto.corrections import Correct, Correction
from allmende.proto.envelope import Refusal
from allmende.proto.lost import LostAttempt, NodeDeclaredLost
from allmende.proto.message import Message
from allmende.proto.reports import UsageQuery, VerifyEventsQuery, VerifyQuery
from allmende.proto.units import DAY_MS, SECOND_MS
from tests.ledger.builders import START_MS, TREE, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab

T = TypeVar("T")
GPUS = 64
LIVE_MOST = 8
LEAVES = ("nlp", "rl", "vision")
ACCOUNTS = ("budget/nlp", "budget/rl", "unallocated", "capacity")
STEPS_MS = st.sampled_from([BUCKET_MS, 3 * BUCKET_MS + 7, BUCKET_MS - 1, 40 * SECOND_MS, 10 * SECOND_MS, 1])


class Running(NamedTuple):
    """An attempt of the made-up cluster. `epochs`: beginning and greatest counter that was said, per epoch."""

    number: int
    gpus: int
    replicas: int
    budget: str | None
    granted_ms: int
    epochs: tuple[tuple[int, int], ...]


class Said(NamedTuple):
    """A message that was sent, and what it tells: attempt, replica, epoch, beginning and length of counters; an end; a grant."""

    body: Message
    sent_ms: int
    counters: tuple[tuple[int, int, int, int, int], ...] = ()
    end: tuple[int, int] | None = None
    grant: Running | None = None
    late: bool = False


class Machine(RuleBasedStateMachine):
    """One cluster on a desk that all examples share; each has a cluster of its own."""

    desk: Desk
    loop: asyncio.AbstractEventLoop
    made = 0
    numbers = 0
    revision = 1

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.cluster = f"m{self.made}"
        self.live: dict[int, Running] = {}
        self.up = True
        self.reports = 1
        self.seq = 0
        self.sent: list[Said] = []
        self.heard: list[Event] = []
        self.known: dict[int, Running] = {}
        self.ends: dict[int, int] = {}
        self.counted: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.moved: dict[str | None, int] = {}
        self.fenced: dict[int, Running] = {}
        self.declared: dict[int, int] = {}

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the desk's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    @property
    def now_ms(self) -> int:
        """The clock, ours and the agents'."""
        return self.desk.clock.now_ms()

    def number(self) -> int:
        """A number that no other example has."""
        type(self).numbers += 1
        return 1_000_000 + self.numbers * 10_000

    @initialize()
    def begin(self) -> None:
        """A node, and two attempts that have run for a while."""
        self.from_ms = self.now_ms - self.now_ms % BUCKET_MS
        self.wait(self.desk.hear(node(cluster=self.cluster, gpus=GPUS, installed=GPUS, at_ms=self.now_ms)))
        self.desk.clock.advance(1)
        self.grant(3, 2, "nlp")
        self.grant(1, 1, None)
        self.desk.clock.advance(4 * BUCKET_MS + 11)
        self.say_counters()
        said, self.sent = self.sent, []
        self.hear(said)

    @rule(ms=STEPS_MS)
    def pass_time(self, ms: int) -> None:
        self.desk.clock.advance(ms)

    @precondition(lambda self: self.up and len(self.live) < LIVE_MOST)
    @rule(gpus=st.sampled_from([1, 3]), replicas=st.sampled_from([1, 2]), budget=st.sampled_from(["nlp", "rl", None]))
    def grant(self, gpus: int, replicas: int, budget: str | None) -> None:
        number, at_ms = self.number(), self.now_ms
        it = Running(number, gpus, replicas, budget, at_ms, ((at_ms, 0),))
        self.live[number] = it
        body = granted(number, gpus=gpus, replicas=replicas, budget=budget, at_ms=at_ms, cluster=self.cluster)
        self.sent += [Said(body, at_ms, grant=it), Said(started(number, at_ms, cluster=self.cluster), at_ms)]

    def counters_of(self, it: Running) -> tuple[tuple[int, int, int, int, int], ...]:
        """The newest counters, as they are now."""
        epoch, (since_ms, _) = len(it.epochs), it.epochs[-1]
        return tuple((it.number, replica, epoch, since_ms, self.now_ms - since_ms) for replica in range(it.replicas))

    def messages_of(self, it: Running) -> list[Any]:
        self.seq += 1
        return [
            counter(number, held_ms, self.seq, gpus=it.gpus, replica=replica, epoch=epoch, since_ms=since_ms)
            for number, replica, epoch, since_ms, held_ms in self.counters_of(it)
        ]

    @precondition(lambda self: self.live)
    @rule()
    def say_counters(self) -> None:
        body = tick(*(each for it in self.live.values() for each in self.messages_of(it)), cluster=self.cluster)
        told = tuple(each for it in self.live.values() for each in self.counters_of(it))
        self.sent.append(Said(body, self.now_ms, told))
        for it in self.live.values():
            self.live[it.number] = it._replace(epochs=(*it.epochs[:-1], (it.epochs[-1][0], self.now_ms - it.epochs[-1][0])))

    @precondition(lambda self: self.live)
    @rule(last_word=st.booleans())
    def restart_agent(self, last_word: bool) -> None:
        if last_word:
            self.say_counters()
        for it in self.live.values():
            self.live[it.number] = it._replace(epochs=(*it.epochs, (self.now_ms, 0)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        it = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        body = ended(it.number, self.now_ms, *self.messages_of(it), cluster=self.cluster)
        self.sent.append(Said(body, self.now_ms, self.counters_of(it), end=(it.number, self.now_ms)))

    @precondition(lambda self: self.up)
    @rule()
    def lose_node(self) -> None:
        """Death ends the attempts at their last counter (contract §3); that and the loss are told in one batch."""
        self.up = False
        said = []
        for it in self.live.values():
            at_ms = max(since_ms + held_ms for since_ms, held_ms in it.epochs if held_ms or since_ms == it.granted_ms)
            body = ended(it.number, at_ms, outcome="node_lost", cluster=self.cluster)
            said.append(Said(body, self.now_ms, end=(it.number, at_ms)))
        self.live.clear()
        self.report(0)
        self.hear(said)

    @precondition(lambda self: self.up)
    @rule()
    def declare_lost(self) -> None:
        """An operator takes the node for dead; its agent, which nobody hears, goes on."""
        self.up = False
        body = NodeDeclaredLost(
            cluster=self.cluster,
            node="n1",
            by="olga",
            reason="drawn",
            declared_at_ms=self.now_ms,
            last_seen_ms=self.now_ms,
            reported_at_ms=self.now_ms,
            reported_seq=self.reports,
            installed_gpus=GPUS,
            attempts=tuple(
                LostAttempt(attempt=id_of(number), job=id_of(number + 1_000), ended_at_ms=self.now_ms) for number in self.live
            ),
        )
        self.declared |= dict.fromkeys(self.live, self.now_ms)
        self.ends |= dict.fromkeys(self.live, self.now_ms)
        self.fenced |= self.live
        self.live.clear()
        self.hear([Said(body, self.now_ms)])

    @precondition(lambda self: self.fenced)
    @rule(data=st.data(), kill=st.booleans())
    def say_late(self, data: st.DataObject, kill: bool) -> None:
        """The agent is back: it says what it has counted since, and perhaps that it has killed what was fenced."""
        it = self.fenced[data.draw(st.sampled_from(sorted(self.fenced)))]
        counters = self.messages_of(it)
        body = ended(it.number, self.now_ms, *counters, cluster=self.cluster) if kill else tick(*counters, cluster=self.cluster)
        if kill:
            del self.fenced[it.number]
        self.sent.append(Said(body, self.now_ms, self.counters_of(it), late=True))

    @precondition(lambda self: not self.up)
    @rule()
    def node_is_back(self) -> None:
        self.up = True
        self.report(GPUS)

    def report(self, gpus: int) -> None:
        self.reports += 1
        body = node(cluster=self.cluster, gpus=gpus, installed=GPUS, at_ms=self.now_ms, seq=self.reports)
        self.wait(self.desk.hear(body))

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), at_once=st.booleans())
    def deliver(self, data: st.DataObject, at_once: bool) -> None:
        """Some of what was sent, or all, in any order, in one batch or one by one."""
        every = range(len(self.sent))
        chosen = data.draw(st.permutations(every) | st.lists(st.sampled_from(every), unique=True, min_size=1))
        said = [self.sent[index] for index in chosen]
        self.sent = [each for index, each in enumerate(self.sent) if index not in chosen]
        for batch in [said] if at_once else [[each] for each in said]:
            self.hear(batch)

    def hear(self, said: list[Said]) -> None:
        events = [self.event_of(each) for each in said]
        self.heard += events
        self.wait(self.desk.hear_events(events))
        for each in said:
            if each.grant is not None:
                self.known[each.grant.number] = each.grant
            if each.end is not None:
                self.ends[each.end[0]] = each.end[1]
            for number, replica, epoch, since_ms, held_ms in each.counters:
                before = self.counted.get((number, replica, epoch), (since_ms, 0))
                self.counted[number, replica, epoch] = (since_ms, max(held_ms, before[1]))

    def event_of(self, said: Said) -> Event:
        """The message as the bus has it since it was sent."""
        return self.desk.event(said.body, said.sent_ms)._replace(waited_ms=self.now_ms - said.sent_ms)

    @precondition(lambda self: any(each.counters and each.end is None for each in self.sent))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A tick is lost. What must not be lost is said until it is heard."""
        self.sent.remove(data.draw(st.sampled_from([each for each in self.sent if each.counters and each.end is None])))

    @precondition(lambda self: self.heard)
    @rule(data=st.data(), other_id=st.booleans())
    def duplicate(self, data: st.DataObject, other_id: bool) -> None:
        event = data.draw(st.sampled_from(range(len(self.heard))).map(lambda index: self.heard[index]))
        again = self.desk.event(event.body, event.envelope.sent_at_ms) if other_id else event
        waited_ms = self.now_ms - event.envelope.sent_at_ms
        self.wait(self.desk.hear_events([again._replace(received_at_ms=self.now_ms, waited_ms=waited_ms)]))

    @precondition(lambda self: self.from_ms < self.now_ms - BUCKET_MS)
    @rule(data=st.data(), amount=st.sampled_from([None, 7_777, 1]), part=st.booleans())
    def correct(self, data: st.DataObject, amount: int | None, part: bool) -> None:
        """From an account that has something, or from the capacity, to another one; over all of the time or a part."""
        having = ["unallocated" if name is None else f"budget/{name}" for name, value in self.expected().items() if value]
        take_from = data.draw(st.sampled_from(sorted({*having, "capacity"})))
        charge_to = data.draw(st.sampled_from([account for account in ACCOUNTS if account != take_from]))
        edge_ms = self.now_ms - self.now_ms % BUCKET_MS
        request = Correct(
            correction=id_of(self.number()),
            cluster=self.cluster,
            take_from=take_from,
            charge_to=charge_to,
            from_ms=max(self.from_ms, edge_ms - 3 * BUCKET_MS) if part else self.from_ms,
            to_ms=edge_ms,
            amount_gpu_ms=amount,
            reason="drawn",
        )
        made = self.wait(self.corrected(request))
        if made is None:
            return
        for account, sign in ((made.take_from, -1), (made.charge_to, 1)):
            if account != "capacity":
                name = None if account == "unallocated" else account.removeprefix("budget/")
                self.moved[name] = self.moved.get(name, 0) + sign * made.amount_gpu_ms

    async def corrected(self, request: Correct) -> Correction | None:
        """A correction; None: there was not so much to take."""
        try:
            return await self.desk.corrections.correct("olga", request)
        except Refusal as refused:
            if refused.problem.code != "more_than_there_is":
                raise
            return None

    @rule(nlp=st.sampled_from([0, 250_000, 900_000]))
    def change_shares(self, nlp: int) -> None:
        type(self).revision += 1
        rows = tuple(
            Budget(budget=it.budget, parent=it.parent, share_ppm=nlp if it.budget == "nlp" else it.share_ppm) for it in TREE
        )
        rows = tuple(it if it.budget != "rl" else Budget(budget="rl", parent="research", share_ppm=100_000) for it in rows)
        self.wait(self.desk.hear(*tree(rows, self.revision, self.now_ms)))

    @invariant()
    def every_gpu_millisecond_is_somewhere(self) -> None:
        if not hasattr(self, "from_ms"):
            return
        occupied = sum(
            it.gpus * it.replicas * max(0, self.ends.get(it.number, self.now_ms) - it.granted_ms) for it in self.known.values()
        )
        books = self.wait(self.desk.books(self.from_ms, self.now_ms + BUCKET_MS, BUCKET_MS, self.cluster))
        told = [(it.allocated_gpu_ms, it.unallocated_gpu_ms, it.starting_gpu_ms, it.unknown_gpu_ms) for it in books]
        assert sum(map(sum, told)) == occupied
        assert all(
            sum(parts) + it.idle_gpu_ms == it.available_gpu_ms and it.idle_gpu_ms >= 0
            for parts, it in zip(told, books, strict=True)
        )

    def expected(self) -> dict[str | None, int]:
        """What is charged to whom, by what was delivered and corrected."""
        found = dict(self.moved)
        for (number, _, _), (since_ms, said_ms) in self.counted.items():
            it = self.known.get(number)
            held_ms = max(0, min(said_ms, self.declared.get(number, since_ms + said_ms) - since_ms))
            if it is not None:
                found[it.budget] = found.get(it.budget, 0) + it.gpus * held_ms
        return found

    @invariant()
    def charged_is_what_was_said(self) -> None:
        if not hasattr(self, "from_ms"):
            return
        expected = self.expected()
        from_ms = self.from_ms - DAY_MS
        to_ms = self.now_ms - self.now_ms % BUCKET_MS + BUCKET_MS
        query = UsageQuery(cluster=self.cluster, from_ms=from_ms, to_ms=to_ms, step_ms=to_ms - from_ms)
        rows = self.wait(Reports(self.desk.db, ReportStore(), self.desk.clock).usage("olga", query)).rows
        assert {row.budget: row.gpu_ms for row in rows if row.gpu_ms} == {name: value for name, value in expected.items() if value}
        standings = self.wait(self.desk.standings(self.cluster))
        assert {leaf: standings[leaf].charged_gpu_ms for leaf in LEAVES} == {leaf: expected.get(leaf, 0) for leaf in LEAVES}

    @invariant()
    def a_replay_from_empty_equals_the_store(self) -> None:
        if not hasattr(self, "from_ms"):
            return
        desk = self.desk
        told = self.wait(
            Verification(desk.db, VerifyStore(), ReadingStore(), desk.clock).verify("olga", VerifyQuery(cluster=self.cluster))
        )
        assert told.differences == ()
        if not self.heard:
            return
        checked = HeardVerification(desk.db, desk.heard, desk.clock)
        after: int | None = None
        while True:
            page = self.wait(checked.verify("olga", VerifyEventsQuery(cluster=self.cluster, after=after)))
            assert (page.differences, page.after > 0 or page.after == (after or 0)) == ((), True)
            after = page.next_after
            if after is None:
                return

    def teardown(self) -> None:
        """Once all has arrived, and everything has ended, the books are the truth."""
        if not hasattr(self, "from_ms"):
            return
        for number in sorted(self.live):
            it = self.live.pop(number)
            body = ended(number, self.now_ms, *self.messages_of(it), cluster=self.cluster)
            self.sent.append(Said(body, self.now_ms, self.counters_of(it), end=(number, self.now_ms)))
        said, self.sent = self.sent, []
        self.hear(said)
        self.charged_is_what_was_said()
        self.every_gpu_millisecond_is_somewhere()
        self.a_replay_from_empty_equals_the_store()
        state = self.wait(self.desk.state(self.cluster)) if said or self.heard else None
        assert state is None or (state.open_attempts, state.unattributed_counters) == (0, 0)
        # What an agent has counted after its attempts were declared lost is set aside and shown.
        assert state is None or self.declared or state.quarantined == 0


@pytest.mark.timeout(240)  # eight stories of twenty steps: half a minute on two idle cores
async def test_after_every_step_nothing_is_lost_and_a_replay_equals_the_store(lab: Lab) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(1), seal_words=9)
    await desk.hear(*tree(at_ms=START_MS))
    machine = type("Drawn", (Machine,), {"desk": desk, "loop": asyncio.get_running_loop()})
    drawn = settings(max_examples=8, stateful_step_count=20, deadline=None, derandomize=True, print_blob=False)
    await asyncio.to_thread(run_state_machine_as_test, machine, settings=drawn)
