"""Drains over a real database: what operators ask, what is said and ordered, over late, repeated and missing words."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from allmende.chassis.db import Transaction
from allmende.chassis.fakes import CountingIds
from allmende.chassis.worker import Outcome
from allmende.preemptor.handlers.drains import Drains, Operators
from allmende.preemptor.model import Policy
from allmende.preemptor.store import Store
from allmende.proto.admission import NodeClosed
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.message import Message
from allmende.proto.policy import Mode, PolicyChanged
from allmende.proto.policy import Policy as Policy_
from allmende.proto.preemptor import (
    ClaimAnswered,
    CordonNodes,
    DrainPage,
    DrainQuery,
    EvictionOrdered,
    NodeCordoned,
    NodeDrained,
    NodeReturned,
    UncordonNodes,
)
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.preemptor.builders import id_of
from tests.preemptor.messages import START_MS, Ear, ended, freed, granted, node, protected, raised, read, standings, tree

T = TypeVar("T")

# On n1 an attempt of nlp past its slice, on n2 one that is protected for an hour more, on n3 an unallocated one.
FULL: list[Message] = [
    *tree(),
    *standings(),
    *(node(f"n{i}") for i in range(1, 5)),
    granted(1, {"n1": 8}),
    granted(2, {"n2": 8}),
    granted(3, {"n3": 8}, budget=None),
    protected(1),
    protected(2, START_MS + HOUR_MS),
]


class Desk:
    """An operator beside the handler, on one database and clock."""

    def __init__(self, ear: Ear) -> None:
        self.ear = ear
        self.said: list[Any] = []
        self._operators = Operators(Drains(CountingIds(900_000), Policy()), ear.db, self, ear.clock, Store)

    async def exclusively(self, work: Callable[[Transaction], Awaitable[tuple[T, Outcome]]]) -> T:
        """What the worker does for a command."""
        async with self.ear.db.transaction() as tx:
            value, outcome = await work(tx)
        self.said += [read(draft) for draft in outcome.drafts]
        return value

    async def drain(self, *nodes: str, **terms: Any) -> DrainPage:
        request = CordonNodes(cluster="c1", nodes=nodes, **{"reason": "firmware", "drain": True, **terms})
        return await self._operators.cordon("olga", request)

    async def uncordon(self, *nodes: str) -> DrainPage:
        request = UncordonNodes(cluster="c1", nodes=nodes, reason="firmware is new")
        return await self._operators.uncordon("oscar", request)

    async def plan(self, after: str | None = None) -> DrainPage:
        return await self._operators.drains("ada", DrainQuery(cluster="c1", after=after))

    async def hear(self, *bodies: Message) -> list[Any]:
        """Something comes in, or only time has passed; returns all that was said since the last time."""
        self.said += await self.ear.hear(*bodies)
        said, self.said = self.said, []
        return said

    async def closed(self, *words: Any, newest: int = 3) -> list[Any]:
        """Admission answers these words."""
        return await self.hear(
            *(NodeClosed(cluster="c1", node=each.node, revision=each.revision, newest_grant_seq=newest) for each in words)
        )


@pytest_asyncio.fixture
async def desk(ear: Ear) -> Desk:
    desk = Desk(ear)
    await desk.hear(*FULL)
    return desk


def of(said: list[Any], kind: type[T]) -> list[T]:
    return [it for it in said if isinstance(it, kind)]


async def test_a_drain_from_the_word_to_the_repair_and_back(desk: Desk) -> None:
    page = await desk.drain("n1", deadline_ms=START_MS + HOUR_MS)
    [entry] = page.nodes
    assert (entry.state, entry.by, [each.state for each in entry.occupants]) == ("draining", "olga", ["leaving"])
    said = await desk.hear()
    [cordoned], [order] = of(said, NodeCordoned), of(said, EvictionOrdered)
    assert (cordoned.node, cordoned.drain, cordoned.revision, cordoned.by) == ("n1", True, 1, "olga")
    assert (order.attempt, order.rule, order.claim, order.claimant_job) == (id_of(1), "drain", None, None)
    assert (order.grace_ms, order.protected_until_ms) == (2 * MINUTE_MS, START_MS)
    assert "olga (firmware)" in order.sentence
    # Told once, however often anything is heard.
    assert await desk.closed(cordoned) == []
    assert of(await desk.hear(freed(1, {"n1": 8}), ended(1, plan=order.plan)), NodeDrained)[0].node == "n1"
    assert [each.state for each in (await desk.plan()).nodes] == ["drained"]
    await desk.uncordon("n1")
    [back] = await desk.hear()
    assert isinstance(back, NodeReturned)
    assert (back.revision, back.by, back.reason) == (3, "oscar", "firmware is new")
    assert (await desk.plan()).nodes == ()


async def test_a_protected_attempt_stays_until_its_slice_ends_whatever_the_deadline(desk: Desk) -> None:
    page = await desk.drain("n2", deadline_ms=START_MS + MINUTE_MS)
    [occupant] = page.nodes[0].occupants
    assert (occupant.state, occupant.late, occupant.leaves_by_ms) == ("protected", True, START_MS + HOUR_MS + 2 * MINUTE_MS)
    assert page.nodes[0].empty_by_ms == occupant.leaves_by_ms
    desk.ear.clock.advance(HOUR_MS - 1)
    assert of(await desk.hear(), EvictionOrdered) == []
    # The end of the slice is a timer: nobody has to say anything.
    assert desk.ear.wake_at_ms == START_MS + HOUR_MS
    desk.ear.clock.advance(1)
    assert [it.attempt for it in of(await desk.hear(), EvictionOrdered)] == [id_of(2)]


async def test_unallocated_work_leaves_at_once_after_its_short_notice(desk: Desk) -> None:
    await desk.drain("n3")
    [order] = of(await desk.hear(), EvictionOrdered)
    assert (order.attempt, order.protected_until_ms, order.grace_ms) == (id_of(3), None, 10_000)


async def test_an_empty_node_is_drained_only_once_admission_grants_nothing_there(desk: Desk) -> None:
    await desk.drain("n4")
    said = await desk.hear()
    assert of(said, NodeDrained) == []
    # Its word names a grant that we have not heard of: it may be on this very node, and it is.
    assert of(await desk.closed(*of(said, NodeCordoned), newest=4), NodeDrained) == []
    assert of(await desk.hear(granted(4, {"n4": 8})), NodeDrained) == []
    assert of(await desk.hear(ended(4)), NodeDrained)[0].node == "n4"


async def test_admissions_word_about_older_terms_does_not_count(desk: Desk) -> None:
    await desk.drain("n4")
    [first] = of(await desk.hear(), NodeCordoned)
    await desk.drain("n4", reason="another board")
    [second] = of(await desk.hear(), NodeCordoned)
    assert second.revision == first.revision + 1
    assert of(await desk.closed(first), NodeDrained) == []
    assert of(await desk.closed(second, first), NodeDrained)[0].reason == "another board"


async def test_cordoned_and_not_drained_nobody_leaves_and_nothing_new_comes(desk: Desk) -> None:
    page = await desk.drain("n1", drain=False)
    assert (page.nodes[0].state, page.nodes[0].empty_by_ms) == ("cordoned", None)
    said = await desk.hear()
    assert of(said, EvictionOrdered) == []
    await desk.closed(*of(said, NodeCordoned))
    # Room for a claim is made elsewhere or nowhere: n1 holds the only attempt that could be displaced.
    [answer] = of(await desk.hear(raised(newest=3, gpus=8)), ClaimAnswered)
    assert [part.node for part in answer.placement] == ["n4"]
    [answer] = of(await desk.hear(raised(2, newest=3, gpus=8)), ClaimAnswered)
    assert [part.node for part in answer.placement] == ["n3"]


async def test_a_window_is_announced_begins_and_ends_by_timers(desk: Desk) -> None:
    page = await desk.drain("n1", from_ms=START_MS + HOUR_MS, until_ms=START_MS + 2 * HOUR_MS)
    assert page.nodes[0].state == "announced"
    said = await desk.hear()
    assert ([it.from_ms for it in of(said, NodeCordoned)], of(said, EvictionOrdered)) == ([START_MS + HOUR_MS], [])
    assert desk.ear.wake_at_ms == START_MS + HOUR_MS
    desk.ear.clock.advance(HOUR_MS)
    assert [it.attempt for it in of(await desk.hear(), EvictionOrdered)] == [id_of(1)]
    await desk.hear(ended(1), ended(2))
    assert desk.ear.wake_at_ms == START_MS + 2 * HOUR_MS
    desk.ear.clock.advance(HOUR_MS)
    assert [it.node for it in of(await desk.hear(), NodeReturned)] == ["n1"]


async def test_an_agents_word_drains_and_its_recovery_returns_the_node(desk: Desk) -> None:
    hot = replace(node("n4", seq=2), cordon="GPU 3 is hot")
    said = await desk.hear(hot)
    assert [(it.by, it.reason, it.drain) for it in of(said, NodeCordoned)] == [("c1", "GPU 3 is hot", True)]
    assert of(await desk.closed(*of(said, NodeCordoned)), NodeDrained)
    # A late report from before says nothing; neither does an operator's uncordon end what the agent wants.
    assert await desk.hear(node("n4", seq=1)) == []
    page = await desk.uncordon("n4")
    assert (page.nodes[0].state, page.nodes[0].agent_reason) == ("drained", "GPU 3 is hot")
    assert of(await desk.hear(node("n4", seq=3)), NodeReturned)[0].node == "n4"


def policy(mode: Mode, revision: int = 1) -> PolicyChanged:
    return PolicyChanged(
        cluster="c1", revision=revision, from_ms=START_MS, author="olga", reason="a test", policy=Policy_(mode=mode)
    )


@pytest.mark.parametrize("mode", ["observe", "admit"])
async def test_in_a_mode_that_evicts_nobody_an_agents_word_only_cordons(desk: Desk, mode: Mode) -> None:
    hot = replace(node("n1", seq=2), cordon="GPU 3 is hot")
    said = await desk.hear(policy(mode, 2), hot, policy("enforce", 1))
    assert [it.drain for it in of(said, NodeCordoned)] == [False]
    assert of(said, EvictionOrdered) == []
    # An operator who says it himself is obeyed.
    await desk.drain("n3")
    assert [it.attempt for it in of(await desk.hear(), EvictionOrdered)] == [id_of(3)]
    said = await desk.hear(policy("enforce", 3))
    assert [it.drain for it in of(said, NodeCordoned)] == [True]
    assert [it.attempt for it in of(said, EvictionOrdered)] == [id_of(1)]


async def test_whoever_is_done_first_leaves_the_other_ones_cordon(desk: Desk) -> None:
    await desk.hear(replace(node("n4", seq=2), cordon="GPU 3 is hot"))
    await desk.drain("n4", reason="look at it")
    assert of(await desk.hear(), NodeCordoned)[-1].reason == "look at it; GPU 3 is hot"
    [word] = await desk.hear(node("n4", seq=3))
    assert (word.TYPE, word.reason) == ("node.cordoned", "look at it")


async def test_the_same_word_again_says_nothing(desk: Desk) -> None:
    await desk.drain("n2")
    assert of(await desk.hear(), NodeCordoned)
    desk.ear.clock.advance(1)
    await desk.drain("n2")
    assert await desk.hear() == []


async def test_a_node_that_does_not_exist_changes_nothing_for_the_others(desk: Desk) -> None:
    with pytest.raises(Refusal, match="never reported n8, n9"):
        await desk.drain("n1", "n9", "n8")
    assert await desk.hear() == []
    with pytest.raises(Refusal, match=r"needs a reason: .*; it would end before it begins"):
        await desk.drain("n1", reason=" ", until_ms=START_MS)


async def test_as_many_nodes_as_fit_are_answered_and_the_rest_is_asked_for(desk: Desk) -> None:
    names = [f"w{number:03d}" for number in range(256)]
    await desk.hear(*(node(name) for name in names))
    page = await desk.drain(*names, reason="x" * 1_000)
    assert len(msgspec.json.encode(page)) < MAX_MESSAGE_BYTES
    assert len(of(await desk.hear(), NodeCordoned)) == 256, "all of them are drained, also those that the answer has no room for"
    found: list[str] = []
    while True:
        page = await desk.plan(found[-1] if found else None)
        found += [each.node for each in page.nodes]
        if page.next_after is None:
            break
    assert found == names


async def test_a_replica_that_takes_over_says_nothing_twice(desk: Desk) -> None:
    await desk.drain("n2", "n4")
    assert len(of(await desk.hear(), NodeCordoned)) == 2
    other = Ear(desk.ear.db, desk.ear.clock, start=500_000)
    assert await other.hear() == []
    assert other.wake_at_ms == START_MS + HOUR_MS
