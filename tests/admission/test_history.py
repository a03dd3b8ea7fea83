"""The past as admission tells it: every job and attempt of a span once, in pieces that fit a message, and never what a job runs."""

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change
from allmende.admission.model.values import Attempt, Job
from allmende.admission.store import AdmissionStore
from allmende.chassis.errors import Transient
from allmende.proto import subjects
from allmende.proto.admission import HistoryPage, HistoryQuery, PastAttempt, PastJob
from allmende.proto.envelope import MAX_MESSAGE_BYTES, Refusal
from allmende.proto.units import HOUR_MS
from tests.admission.builders import NOW, an_id, attempt, job
from tests.admission.scene import Scene
from tests.admission.test_service import answering
from tests.servers import Lab

STORE = AdmissionStore()
SPAN = {"from_ms": NOW - 24 * HOUR_MS, "to_ms": NOW}
# As many nodes as the largest gang may have, with names of a usual length.
WIDE = {f"gpu-node-{number:04d}": 1 for number in range(1_000)}


@pytest_asyncio.fixture
async def scene(scene: Scene) -> Scene:
    """Admission answers; its rows are written by the test."""
    await scene.start()
    await answering(scene)
    return scene


def ended(number: int, until_ms: int, **fields: object) -> Job:
    return job(number, state="ended", outcome="finished", ended_at_ms=until_ms, **fields)


def lost(number: int, of: Job, where: dict[str, int]) -> Attempt:
    return replace(attempt(number, of, where), state="ended", outcome="node_lost", ended_at_ms=NOW - HOUR_MS // 2)


async def write(lab: Lab, jobs: list[Job], attempts: list[Attempt]) -> None:
    books, db = Books(), await lab.database("admission")
    books.apply(Change(jobs=tuple(jobs), attempts=tuple(attempts)))
    for each in jobs:
        books.put_payload(each.job, b'{"command":["secret-recipe"]}')
    async with db.transaction() as tx:
        await STORE.write(tx, books.drain())


async def pages(scene: Scene, **query: object) -> list[HistoryPage]:
    """All pieces, as a reader gets them."""
    found: list[HistoryPage] = []
    after = None
    while not found or after is not None:
        page = await scene.ask(subjects.HISTORY, HistoryQuery(after=after, **SPAN | query))  # type: ignore[arg-type]
        assert isinstance(page, HistoryPage)
        assert len(msgspec.json.encode(page)) < MAX_MESSAGE_BYTES
        found.append(page)
        after = page.next_after
    return found


def together(found: list[HistoryPage]) -> dict[str, list[str]]:
    """The attempts of each job, in the order in which they were told."""
    told: dict[str, list[str]] = {}
    for page in found:
        for each in page.jobs:
            told.setdefault(each.job, []).extend(one.attempt for one in each.attempts)
    return told


async def test_a_span_holds_what_lived_in_it_and_nothing_else(scene: Scene) -> None:
    before, edge = ended(1, SPAN["from_ms"] - 1), ended(2, SPAN["from_ms"])
    inside, open_, after = ended(3, NOW - HOUR_MS), job(4), job(5, submitted_at_ms=NOW)
    last = job(6, submitted_at_ms=NOW - 1)
    await write(scene.lab, [before, edge, inside, open_, after, last], [])
    expected = [each.job for each in (edge, inside, open_, last)]
    assert list(together(await pages(scene))) == expected
    assert list(together(await pages(scene, limit=1))) == expected
    assert together(await pages(scene, from_ms=NOW, to_ms=NOW - HOUR_MS)) == {}


async def test_everything_is_told_but_what_a_job_runs_and_is_called(scene: Scene) -> None:
    made = job(1, name="my-secret-name", stated_runtime_ms=9, max_runtime_ms=HOUR_MS, priority=3, replicas=2, clusters=("c1",))
    ran = attempt(1, made, {"n001": 2})
    await write(scene.lab, [made], [ran])
    (page,) = await pages(scene)
    (told,) = page.jobs
    both = {*PastJob.__struct_fields__} & {*Job.__struct_fields__} - {"attempts"}
    assert {name: getattr(told, name) for name in both} == {name: getattr(made, name) for name in both}
    (past,) = told.attempts
    same = {*PastAttempt.__struct_fields__} - {"placement"}
    assert {name: getattr(past, name) for name in same} == {name: getattr(ran, name) for name in same}
    assert [(part.node, part.replicas) for part in past.placement] == [("n001", 2)]
    assert b"secret" not in msgspec.json.encode(page)


@pytest.mark.parametrize("limit", [1, 2, 3, 200])
async def test_pages_of_any_size_tell_each_attempt_once_and_in_the_same_order(scene: Scene, limit: int) -> None:
    jobs = [job(number) for number in range(1, 6)]
    attempts = [lost(10 * each + number, jobs[each], {"n001": 1}) for each in (0, 2, 4) for number in range(3)]
    await write(scene.lab, jobs, attempts)
    told = together(await pages(scene, limit=limit))
    assert list(told) == [each.job for each in jobs]
    assert [name for names in told.values() for name in names] == [each.attempt for each in attempts]


async def test_gangs_over_a_thousand_nodes_fit_a_message(scene: Scene) -> None:
    wide = job(1, replicas=1_000)
    attempts = [lost(number, wide, WIDE) for number in range(1, 4)]
    await write(scene.lab, [wide, job(2)], attempts)
    found = await pages(scene)
    assert together(found) == {wide.job: [each.attempt for each in attempts], an_id(2): []}
    assert len(found) == 3


async def test_watchers_may_ask_and_agents_may_not(scene: Scene) -> None:
    query = HistoryQuery(**SPAN)
    assert await scene.ask(subjects.HISTORY, query, caller="wall", role="dashboard") == HistoryPage(jobs=())
    with pytest.raises((Refusal, Transient)):
        await scene.ask(subjects.HISTORY, query, caller="c1", role="agent")
