"""Waits by size class: a job's wait is one cluster's, ends with its first start, and unallocated and refused jobs have none."""

import pytest

from allmende.ledger.rules.demand import AskedJob, JobEnd, Placing, Want
from allmende.ledger.rules.waits import ClassWaits, Wait, Waiting, wait
from allmende.proto.figures import WaitsQuery
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.ledger.asking import HOUR_0, AskingDesk, asked, grant, job_ended, queued
from tests.ledger.builders import node, started, tree
from tests.ledger.desk import clock_at
from tests.servers import Lab

WANT = Want("nlp", 100, (), 4, None, HOUR_MS)


def placing(cluster: str, started_ms: int | None, budget: str | None = "nlp") -> Placing:
    return Placing(cluster, budget, 150, started_ms, None, None)


# A job submitted at 100; now it is 1,000. Its wait for c1.
WAITS = [
    ("it still waits", {}, None, (), (900, True)),
    ("it names another cluster", {"clusters": ("c2",)}, None, (), None),
    ("it started here", {}, None, (placing("c1", 160),), (60, False)),
    ("it started elsewhere", {}, None, (placing("c2", 160),), None),
    ("granted and not started it still waits", {}, None, (placing("c1", None),), (900, True)),
    ("the first start counts", {}, None, (placing("c1", None), placing("c1", 300), placing("c1", 500)), (200, False)),
    ("cancelled while it waited", {}, JobEnd(400, "cancelled", None), (), (300, False)),
    ("where no start was heard, the job's end tells it", {}, JobEnd(400, "finished", 170), (placing("c1", None),), (70, False)),
    ("unallocated", {"budget": None, "slice_ms": 0}, None, (), None),
    ("granted unallocated", {}, None, (placing("c1", 160, budget=None),), None),
]


@pytest.mark.parametrize(("sentence", "want", "end", "placings", "expected"), WAITS, ids=[row[0] for row in WAITS])
def test_a_jobs_wait(
    sentence: str, want: dict[str, object], end: JobEnd | None, placings: tuple[Placing, ...], expected: tuple[int, bool] | None
) -> None:
    found = wait(AskedJob(WANT._replace(**want), end, placings), "c1", 1_000)  # type: ignore[arg-type]
    assert (None if found is None else (found.waited_ms, found.open)) == expected


def test_classes_have_nearest_ranks_and_none_where_there_is_no_job() -> None:
    waiting = Waiting()
    for minutes in range(1, 11):
        waiting.add(Wait(8, 15 * MINUTE_MS, minutes * MINUTE_MS, open=minutes == 10))
    waiting.add(Wait(64, HOUR_MS, 20 * MINUTE_MS, open=False))
    classes = {each.name: each for each in waiting.classes()}
    assert classes["debug"] == ClassWaits("debug", 10, 1, 5 * MINUTE_MS, 9 * MINUTE_MS, 10 * MINUTE_MS)
    assert (classes["all"].jobs, classes["large"].jobs, classes["gpus_64_255"].p50_ms) == (11, 1, 20 * MINUTE_MS)
    assert classes["gpus_256"] == ClassWaits("gpus_256", 0, 0, None, None, None)


async def test_waits_are_of_jobs_submitted_in_the_span(lab: Lab) -> None:
    desk = AskingDesk(await lab.database("ledger"), clock_at(4))
    early, late = asked(gpus=8), asked(gpus=8, budget="rl", at_ms=HOUR_0 + HOUR_MS)
    await desk.hear(*tree(at_ms=HOUR_0), node(at_ms=HOUR_0), queued(1, early), queued(2, late), queued(3, late))
    await desk.hear(grant(1, early, HOUR_0 + 5), started(1, HOUR_0 + 7), grant(2, late, HOUR_0 + 2 * HOUR_MS))
    await desk.hear(started(2, HOUR_0 + 2 * HOUR_MS), job_ended(3, HOUR_0 + 3 * HOUR_MS, late, "cancelled"))

    async def of(begin: int, end: int, budget: str | None = None) -> tuple[int, int | None]:
        query = WaitsQuery(cluster="c1", budget=budget, from_ms=HOUR_0 + begin * HOUR_MS, to_ms=HOUR_0 + end * HOUR_MS)
        reply = await desk.figures.waits("olga", query)
        (whole,) = (each for each in reply.classes if each.name == "all")
        return whole.jobs, whole.max_ms

    assert await of(0, 1) == (1, 7)
    assert await of(1, 2) == (2, 2 * HOUR_MS)
    assert await of(0, 3, "research") == (3, 2 * HOUR_MS)
    assert await of(0, 3, "nlp") == (1, 7)
    assert await of(2, 3) == (0, None)
