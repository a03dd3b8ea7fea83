"""Who stands before whom, and by which rule: the queue's order and its explanation must agree (contract §4 and §9)."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from allmende.admission.model.values import Job
from allmende.admission.rules import explaining
from allmende.proto import subjects
from allmende.proto.admission import JobGranted, JobQueued, WhyQuery, WhyReply
from tests.admission.builders import CLUSTER, job, lab, node, run_pass, tree
from tests.admission.scene import Scene
from tests.admission.test_service import furnish
from tests.servers import Lab


class Row(NamedTuple):
    """Two jobs, the first of which stands before the second, and the rule."""

    sentence: str
    before: Job
    behind: Job
    rule: str
    standings: Mapping[str, int] = {}


ROWS = (
    Row("a smaller ratio", job(2, budget="b"), job(1), "ratio", {"a": 50}),
    Row("owed time before over budget", job(2, budget="b"), job(1), "tier", {"a": 100}),
    Row("allocated before unallocated", job(2), job(1, slice_ms=0), "tier"),
    Row("a higher priority inside the budget", job(2, priority=1), job(1), "priority"),
    Row("who submitted first inside the budget", job(1), job(2), "inside_leaf"),
    Row("unallocated: who submitted first", job(1, slice_ms=0), job(2, slice_ms=0), "unallocated"),
    Row("both over budget", job(1, budget="b"), job(2), "ancestors", {"a": 200, "b": 100}),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_the_rule_is_the_one_that_made_the_order(row: Row) -> None:
    # Nobody starts: the node is gone.
    books = lab([row.before, row.behind], [node(1, healthy=0)], row.standings, tree("a", "b"))
    outlook = run_pass(books).outlook
    first, second = explaining.queue(books, {CLUSTER: outlook}, None)
    assert (first.job.job, second.job.job) == (row.before.job, row.behind.job)
    assert explaining.rule(first, second)[0] == row.rule


def test_the_slices_of_those_before_count() -> None:
    """Of two equal budgets, the second job of the first stands behind the first job of the second."""
    books = lab([job(1), job(2), job(3, budget="b")], [node(1, healthy=0)], {}, tree("a", "b"))
    order = explaining.queue(books, {CLUSTER: run_pass(books).outlook}, None)
    assert [each.job.budget for each in order] == ["a", "b", "a"]
    assert explaining.rule(order[1], order[2])[0] == "holds"


async def test_why_says_who_is_ahead(lab: Lab) -> None:
    scene = Scene(lab)
    await scene.open()
    await scene.start()
    await furnish(scene, a=50, b=25)
    await scene.submit(gpus_per_replica=8)
    await scene.hears(JobGranted)
    last = await scene.submit(gpus_per_replica=8)
    first = await scene.submit(user="bob", budget="b", gpus_per_replica=8)
    for name in (last, first):
        await scene.hears(JobQueued, lambda body, name=name: body.job == name)  # type: ignore[misc]
    why = await scene.ask(subjects.WHY, WhyQuery(job=last))
    assert isinstance(why, WhyReply)
    assert (why.position, why.tier) == (1, "guaranteed")
    (ahead,) = why.ahead
    assert (ahead.position, ahead.job, ahead.budget, ahead.rule) == (0, first, "b", "ratio")
    assert why.used_gpu_ms is not None
    assert ahead.used_gpu_ms is not None
    assert ahead.used_gpu_ms < why.used_gpu_ms
    head = await scene.ask(subjects.WHY, WhyQuery(job=first))
    assert (head.position, head.ahead) == (0, ())  # type: ignore[attr-defined]
    await scene.close()
