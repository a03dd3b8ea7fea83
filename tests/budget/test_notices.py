"""Notices over a real PostgreSQL and a real NATS server: told once, whatever comes twice, late or after a restart."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from allmende.budget.app import run
from allmende.budget.config import Settings
from allmende.budget.handlers.notices import NoticeAnswers
from allmende.budget.handlers.telling import Telling
from allmende.budget.store.notices import NoticeStore
from allmende.budget.store.trees import TreeStore
from allmende.chassis.boot import Chassis
from allmende.chassis.db import Database
from allmende.chassis.entropy import RandomIds
from allmende.chassis.errors import Misconfigured, Transient
from allmende.chassis.health import Health
from allmende.chassis.outbox import draft, seal
from allmende.chassis.ports import Bus, Event
from allmende.chassis.rpc import ask
from allmende.chassis.settings import load
from allmende.proto import subjects
from allmende.proto.budget import Budget
from allmende.proto.envelope import Refusal, decode
from allmende.proto.ledger import UsageStanding
from allmende.proto.notices import BudgetNotice, DeliveriesPage, DeliveriesQuery, NoticesPage, NoticesQuery, RetryDeliveries
from allmende.proto.pace import SAMPLES_KEPT_MS
from allmende.proto.subjects import subject_of
from allmende.proto.units import DAY_MS, HOUR_MS
from tests.budget.receiver import SECRET_TEXT
from tests.budget.replicas import Silent, replica
from tests.budget.test_service import load as load_tree
from tests.servers import Lab

WAIT_S = 20.0
T0 = 1_796_000_000_000
TREE = (
    Budget(budget="lab", managers=("ada",)),
    Budget(budget="vision", parent="lab", share_ppm=400_000, members=("bo", "cy")),
    Budget(budget="speech", parent="lab", share_ppm=600_000, managers=("dee",)),
)


def standing(revision: int, used: int, budget: str = "vision", *, at: int | None = None, cluster: str = "c1") -> UsageStanding:
    """A standing of so many GPU-hours of a thousand, `at` hours after T0 (as many as the revision)."""
    return UsageStanding(
        cluster=cluster,
        budget=budget,
        as_of_ms=T0 + (revision if at is None else at) * HOUR_MS,
        usage_revision=revision,
        tree_revision=1,
        counted_grants=0,
        charged_gpu_ms=used * HOUR_MS,
        held_gpu_ms=0,
        entitlement_gpu_ms=1_000 * HOUR_MS,
        available_gpus=8,
    )


class Told:
    """The handler of standings on a database of its own, as a worker calls it: one transaction a batch."""

    def __init__(self, lab: Lab, db: Database, *, deliver: bool = False) -> None:
        self.lab, self.db, self.deliver = lab, db, deliver
        self.store = NoticeStore()
        self.answers = NoticeAnswers(db, self.store, Silent(db), sends=deliver)

    async def hear(self, *standings: UsageStanding, breaks: bool = False) -> list[BudgetNotice]:
        """What is said after a batch. `breaks`: the transaction is rolled back. Each call is a process of its own."""
        telling = Telling(self.store, self.lab.clock, RandomIds(), deliver=self.deliver)
        events = []
        for each in standings:
            envelope = decode(seal(draft(each, ids=RandomIds(), now_ms=T0), T0))
            events.append(Event(envelope, subject_of(each), "STANDINGS", 1, T0))
        said: Sequence[Any] = ()
        try:
            async with self.db.transaction() as tx:
                outcome = await telling(tx, events)
                await tx.say(outcome.drafts)
                said = [msgspec.json.decode(each.body, type=BudgetNotice) for each in outcome.drafts]
                if breaks:
                    raise Transient("the line broke")
        except Transient:
            return []
        return list(said)

    async def kept(self, **query: Any) -> list[BudgetNotice]:
        """What is answered, oldest first."""
        page = await self.answers.notices("ada", NoticesQuery(**query))
        return [each.notice for each in reversed(page.notices)]


@pytest.fixture
async def told(lab: Lab) -> Told:
    """The handler with the tree above in force."""
    db = await lab.database("budget")
    await replica(db, lab.clock, ("olga",)).trees.load_first(TREE, (), "agreed in May")
    return Told(lab, db)


def levels(notices: Sequence[BudgetNotice]) -> list[int]:
    """Of each notice its level."""
    return [each.level_percent for each in notices]


async def test_a_crossing_is_told_once_with_its_numbers_and_people(told: Told) -> None:
    assert await told.hear(standing(1, 700)) == []
    (notice,) = await told.hear(standing(2, 810))
    assert (notice.kind, notice.budget, notice.cluster, notice.level_percent, notice.passed_percent) == (
        "entitlement_level",
        "vision",
        "c1",
        80,
        (80,),
    )
    assert (notice.charged_gpu_ms, notice.entitlement_gpu_ms, notice.usage_revision, notice.as_of_ms) == (
        810 * HOUR_MS,
        1_000 * HOUR_MS,
        2,
        T0 + 2 * HOUR_MS,
    )
    # It has no manager of its own: the one above may do something about it.
    assert (notice.managers, notice.members, notice.people_left_out) == (("ada",), ("bo", "cy"), 0)
    assert "81 %" in notice.sentence
    assert await told.hear(standing(3, 830)) == []
    assert await told.kept() == [notice]


async def test_each_budget_and_each_cluster_has_its_own_levels(told: Told) -> None:
    said = await told.hear(standing(1, 800), standing(1, 1_000, "speech"), standing(1, 1_200, cluster="c2"))
    assert sorted((each.budget, each.cluster, each.level_percent) for each in said) == [
        ("speech", "c1", 100),
        ("vision", "c1", 80),
        ("vision", "c2", 120),
    ]
    assert levels(await told.kept(budget="vision")) == [80, 120]
    assert levels(await told.kept(cluster="c1")) == [100, 80]
    assert await told.kept(budget="nobody") == []


async def test_within_a_batch_the_rounds_count_in_their_order_and_none_is_left_out(told: Told) -> None:
    assert levels(await told.hear(standing(3, 1_000), standing(2, 900), standing(1, 1_000))) == [100, 100]


async def test_what_comes_twice_or_late_says_nothing(told: Told) -> None:
    assert levels(await told.hear(standing(5, 1_000))) == [100]
    for late in (standing(5, 1_000), standing(4, 0), standing(4, 2_000)):
        assert await told.hear(late) == []
    # Had the late fall counted, this would be a second crossing.
    assert await told.hear(standing(6, 1_000)) == []


async def test_a_batch_that_was_rolled_back_is_told_by_the_next_try_and_once(told: Told) -> None:
    assert await told.hear(standing(1, 1_000), breaks=True) == []
    assert await told.kept() == []
    assert levels(await told.hear(standing(1, 1_000))) == [100]
    assert levels(await told.kept()) == [100]


async def test_two_replicas_with_the_same_standings_tell_once(told: Told) -> None:
    rounds = [told.hear(standing(1, 1_000), standing(1, 1_200, "speech")) for _ in range(6)]
    said = [notice for each in await asyncio.gather(*rounds) for notice in each]
    assert sorted(levels(said)) == [100, 120]


async def test_while_no_gpu_is_available_nothing_is_told_nor_taken_for_told(told: Told) -> None:
    """A lab that starts says standings before its agents have reported: what is owed for now is missing in them."""
    silent = replace(standing(1, 2_000), available_gpus=0)
    assert await told.hear(silent) == []
    assert await told.hear(replace(silent, usage_revision=2), standing(3, 10)) == []
    assert levels(await told.hear(standing(4, 850))) == [80]


async def test_of_a_budget_that_is_gone_nothing_is_told_nor_taken_for_told(told: Told) -> None:
    assert await told.hear(standing(1, 1_000, "gone")) == []
    assert await told.kept() == []
    async with told.db.transaction() as tx:
        assert await told.store.watches(tx, [("c1", "gone")]) == {}


async def test_the_pace_comes_with_the_level_or_as_soon_as_it_is_known(told: Told) -> None:
    for revision, used in enumerate(range(0, 800, 100)):
        assert await told.hear(standing(revision, used)) == []
    (notice,) = await told.hear(standing(8, 800))
    assert (notice.kind, notice.whole_at_ms) == ("entitlement_level", T0 + 10 * HOUR_MS)
    assert notice.sentence.endswith("at this rate it comes to 100 % by Monday 2026-11-30 10:54 UTC")
    # Another one starts at 80 %, and nobody can say how fast it goes; six hours later somebody can.
    (first,) = await told.hear(standing(1, 800, "speech"))
    assert first.whole_at_ms is None
    for revision in range(2, 7):
        assert await told.hear(standing(revision, 800 + revision, "speech")) == []
    (second,) = await told.hear(standing(7, 860, "speech"))
    assert (second.kind, second.passed_percent, second.whole_at_ms) == ("entitlement_pace", (), T0 + 21 * HOUR_MS)
    assert await told.hear(standing(8, 870, "speech")) == []


async def test_samples_are_few_and_forgotten(told: Told) -> None:
    for revision in range(200):
        await told.hear(standing(revision, 10, at=revision // 4))
    async with told.db.transaction() as tx:
        samples = (await told.store.samples(tx, [("c1", "vision")]))[("c1", "vision")]
    assert len(samples) == SAMPLES_KEPT_MS // HOUR_MS + 1
    assert samples[0].at_ms == samples[-1].at_ms - DAY_MS


async def test_people_in_great_number_fit_the_message_and_a_page_fits_a_reply(told: Told) -> None:
    many = tuple(f"{number:063d}" for number in range(500))
    crowd = (Budget(budget="lab", managers=many), Budget(budget="vision", parent="lab", share_ppm=1, members=many))
    handlers = replica(told.db, told.lab.clock, ("olga",)).trees
    async with told.db.transaction() as tx:
        tree = await TreeStore().tree_for_writing(tx)
    assert tree.revision == 1
    await load_tree(handlers, crowd, expected=1)
    for revision in range(1, 9):
        await told.hear(standing(revision, 1_000 * (revision % 2)))
    page = await told.answers.notices("ada", NoticesQuery())
    numbers = []
    while True:
        assert len(msgspec.json.encode(page)) < 60_000
        numbers += [each.number for each in page.notices]
        assert all(each.notice.people_left_out == 600 for each in page.notices)
        if page.next_before is None:
            break
        page = await told.answers.notices("ada", NoticesQuery(before=page.next_before))
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == 4


# ------------------------------------------------------------------------------------------------------------- the whole service


@asynccontextmanager
async def serving(lab: Lab, **more: Any) -> AsyncIterator[None]:
    """The service as a process would run it."""
    bus, db = await lab.bus("budget"), await lab.database("budget")
    settings = Settings(nats_url="unused", database_url="unused", **more)
    chassis = Chassis(settings, bus, db, lab.clock, RandomIds(), Health(), "test")
    task = asyncio.get_running_loop().create_task(run(chassis, settings))
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # As a process that ends does: a pull left open would take the next standings and keep them for the ack's wait.
        await bus.close()


async def say(bus: Bus, body: UsageStanding) -> None:
    """Say a standing as the ledger does."""
    made = draft(body, ids=RandomIds(), now_ms=T0)
    await bus.publish(made.subject, made.id, seal(made, T0))


async def until(lab: Lab, most: int) -> NoticesPage:
    """Ask as bo until there are so many notices."""
    bo = await lab.bus("user", "bo")
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                page: NoticesPage = await ask(bo, subjects.NOTICES, "bo", NoticesQuery())
                if len(page.notices) >= most:
                    return page
            except Transient:
                pass
            await asyncio.sleep(0.02)


async def test_people_hear_a_notice_live_and_ask_for_it_later_also_over_a_restart(told: Told) -> None:
    lab = told.lab
    ledger, bo = await lab.bus("ledger"), await lab.bus("user", "bo")
    # By its id: an event may be said twice, the second time by the next start.
    heard: dict[str, BudgetNotice] = {}

    def hear(subject: str, data: bytes) -> None:
        envelope = decode(data)
        subjects.check(subject, envelope)
        assert isinstance(envelope.body, BudgetNotice)
        heard[envelope.body.notice] = envelope.body

    stop = await bo.watch("budget.budget_notice.v1.*", hear)
    async with serving(lab):
        await say(ledger, standing(1, 1_000))
        page = await until(lab, 1)
    # Said while nobody is there; of two rounds the stream keeps the newer one.
    await say(ledger, standing(2, 0))
    await say(ledger, standing(3, 1_250))
    async with serving(lab):
        page = await until(lab, 2)
        async with asyncio.timeout(WAIT_S):
            while len(heard) < 2:  # noqa: ASYNC110 a dictionary is no event
                await asyncio.sleep(0.02)
    await stop()
    assert [each.notice for each in reversed(page.notices)] == list(heard.values())
    assert levels(list(heard.values())) == [100, 120]


async def test_who_may_ask_what(told: Told) -> None:
    lab = told.lab
    async with serving(lab):
        await until(lab, 0)
        bo, olga = await lab.bus("user", "bo"), await lab.bus("operator", "olga")
        for row, request in ((subjects.DELIVERIES, DeliveriesQuery()), (subjects.RETRY_DELIVERIES, RetryDeliveries())):
            with pytest.raises(Refusal) as caught:
                await ask(bo, row, "bo", request)
            assert caught.value.problem.code == "not_permitted"
        page: DeliveriesPage = await ask(olga, subjects.DELIVERIES, "olga", DeliveriesQuery())
        assert (page.sender, page.deliveries) == ("off", ())
        with pytest.raises(Refusal) as caught:
            await ask(olga, subjects.RETRY_DELIVERIES, "olga", RetryDeliveries())
        assert caught.value.problem.code == "webhook_off"


# ------------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("sentence", "url", "secret", "fault"),
    [
        ("a secret alone", None, SECRET_TEXT, "go together"),
        ("an address alone", "https://chat.example.org/x", None, "go together"),
        ("no scheme", "chat.example.org/x", SECRET_TEXT, "should read like"),
        ("another scheme", "file:///etc/passwd", SECRET_TEXT, "should read like"),
        ("a user in it", "https://me:pw@chat.example.org/x", SECRET_TEXT, "should read like"),
        ("an impossible port", "https://chat.example.org:99999/x", SECRET_TEXT, "should read like"),
        ("a line break", "https://chat.example.org/x\r\nevil: 1", SECRET_TEXT, "should read like"),
        ("a short secret", "https://chat.example.org/x", "whsec_c2hvcnQ=", "24 to 64 random bytes"),
        ("a secret that is not base64", "https://chat.example.org/x", "correct horse battery staple", "24 to 64 random bytes"),
    ],
)
def test_a_webhook_that_cannot_work_is_refused_and_not_shown(
    sentence: str, url: str | None, secret: str | None, fault: str
) -> None:
    given = {"ALLMENDE_BUDGET_WEBHOOK_URL": url or "", "ALLMENDE_BUDGET_WEBHOOK_SECRET": secret or ""}
    with pytest.raises(Misconfigured, match=fault) as caught:
        load("budget", Settings, {"ALLMENDE_NATS_URL": "nats://n", "ALLMENDE_DATABASE_URL": "postgresql://p", **given}, None)
    assert not any(text in str(caught.value) for text in (url, secret) if text)
