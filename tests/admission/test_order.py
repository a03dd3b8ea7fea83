"""Who starts first: contract §4, one sentence a row."""

from typing import NamedTuple

import pytest

from allmende.admission.model.values import Job
from allmende.proto.budget import Budget
from allmende.proto.units import HOUR_MS
from tests.admission.builders import OWED, an_id, attempt, granted_jobs, job, lab, node, run_pass, tree


class Row(NamedTuple):
    """Jobs wait for `gpus` free GPUs on one node; `expected` start, in this order."""

    jobs: list[Job]
    standings: dict[str, int]
    expected: list[int]
    gpus: int = 8
    budgets: dict[str, Budget] | None = None


def whole(number: int, budget: str | None, **fields: object) -> Job:
    """A job that takes all 8 GPUs of the node."""
    return job(number, budget=budget, gpus_per_replica=8, **fields)


PROGRAMS = tree(programs={"p": ["p1", "p2"], "q": ["q1", "q2"]})
SOON = HOUR_MS // 60

ROWS: dict[str, Row] = {
    "the leaf that has had least of what it is owed comes first": Row(
        [whole(1, "a"), whole(2, "b"), whole(3, "c")], {"a": 60, "b": 20, "c": 40}, [2]
    ),
    "between equal leaves the id decides": Row([whole(1, "b"), whole(2, "a")], {"a": 50, "b": 50}, [2]),
    "a leaf below its entitlement goes before one above, whatever their programmes use": Row(
        [whole(1, "p1"), whole(2, "q1")], {"p": 180, "p1": 90, "q": 20, "q1": 110}, [1], budgets=PROGRAMS
    ),
    "above it, what a programme leaves unused stays in the family": Row(
        [whole(1, "p1"), whole(2, "q1")], {"p": 60, "p1": 150, "q": 90, "q1": 110}, [1], budgets=PROGRAMS
    ),
    "at exactly 1 a leaf is over budget": Row([whole(1, "a"), whole(2, "b")], {"a": 100, "b": 99}, [2]),
    "over budget it still starts on GPUs that nobody ahead can use": Row([whole(1, "a")], {"a": 300}, [1]),
    "inside a leaf the higher priority goes first": Row([whole(1, "a"), whole(2, "a", priority=5)], {}, [2]),
    "priority never compares two teams": Row([whole(1, "a"), whole(2, "b", priority=1_000)], {"a": 10, "b": 20}, [1]),
    "inside a leaf the earlier submission goes first": Row(
        [whole(1, "a", submitted_at_ms=20), whole(2, "a", submitted_at_ms=10)], {}, [2]
    ),
    "inside a leaf and at one instant the id decides": Row(
        [whole(2, "a", submitted_at_ms=10), whole(1, "a", submitted_at_ms=10)], {}, [1]
    ),
    "inside a leaf who has received least in the pass goes next": Row(
        [job(1, user="u1"), job(2, user="u1"), job(3, user="u2")], {}, [1, 3], gpus=2
    ),
    "a leaf is not blocked by its first job": Row([job(1, gpus_per_replica=16), job(2)], {}, [2]),
    "a hold counts at once, so two equal leaves take turns": Row(
        [job(1, budget="a"), job(2, budget="a"), job(3, budget="b"), job(4, budget="b")], {}, [1, 3, 2, 4]
    ),
    "a grant that carries a leaf past 1 is its last before all others": Row(
        [job(1, budget="a", slice_ms=OWED // 10), job(2, budget="a"), job(3, budget="b")], {"a": 95, "b": 98}, [1, 3, 2]
    ),
    "a leaf without entitlement sorts last": Row([whole(1, "z"), whole(2, "a")], {"a": 900}, [2]),
    "unallocated jobs start only on what allocated jobs cannot use": Row(
        [whole(1, None, slice_ms=0), whole(2, "a")], {"a": 500}, [2]
    ),
    "unallocated jobs start beside allocated jobs that do not fit": Row(
        [job(1, gpus_per_replica=16), job(2, budget=None, slice_ms=0)], {}, [2]
    ),
    "a job with slice 0 is unallocated though it names a budget": Row([whole(1, "a", slice_ms=0), whole(2, "b")], {"b": 90}, [2]),
    "among unallocated jobs the user who holds least goes next": Row(
        [job(n, user=user, budget=None, slice_ms=0) for n, user in ((1, "u1"), (2, "u1"), (3, "u2"))], {}, [1, 3], gpus=2
    ),
    "a budget that is gone starts nothing": Row([whole(1, "gone"), whole(2, "a")], {}, [2]),
    "a leaf without a share of its own covers no slice": Row([whole(1, "unset"), whole(2, "a")], {"a": 500}, [2]),
    "unless the job may run unallocated": Row([whole(1, "unset", may_run_unallocated=True)], {}, [1]),
}


def check(row: Row) -> None:
    budgets = row.budgets or tree("a", "b", "c") | {
        "z": Budget(budget="z", parent="org", share_ppm=0, members=("u1",)),
        "unset": Budget(budget="unset", parent="org", members=("u1",)),
    }
    books = lab(row.jobs, [node(1, installed=row.gpus, healthy=row.gpus)], row.standings, budgets)
    if "z" in budgets:
        zero = books.counted["c1"]["z"]
        books.counted["c1"]["z"] = type(zero)(**{f: getattr(zero, f) for f in zero.__struct_fields__} | {"entitlement_gpu_ms": 0})
    assert granted_jobs(run_pass(books).change) == [an_id(number) for number in row.expected]


@pytest.mark.parametrize("sentence", ROWS)
def test_order(sentence: str) -> None:
    check(ROWS[sentence])


def test_a_user_who_already_holds_unallocated_gpus_waits_behind_one_who_holds_none() -> None:
    held = job(9, user="u1", budget=None, slice_ms=0, gpus_per_replica=8, state="running")
    queue = [job(1, user="u1", budget=None, slice_ms=0), job(2, user="u2", budget=None, slice_ms=0)]
    books = lab([held, *queue], [node(1), node(2, installed=1, healthy=1)], attempts=[attempt(1, held, {"n001": 1})])
    assert granted_jobs(run_pass(books).change) == [an_id(2)]


def test_holds_that_the_ledger_has_not_counted_yet_count_at_leaf_and_ancestors() -> None:
    young = job(9, budget="a", slice_ms=OWED // 2, next_slice_ms=OWED // 2, state="running")
    books = lab(
        [young, job(1, budget="a", gpus_per_replica=8), job(2, budget="b", gpus_per_replica=8)],
        [node(1), node(2, installed=1, healthy=1)],
        {"a": 10, "b": 40},
        attempts=[attempt(7, young, {"n002": 1})],
    )
    for name, each in books.counted["c1"].items():
        books.counted["c1"][name] = type(each)(**{f: getattr(each, f) for f in each.__struct_fields__} | {"counted_grants": 6})
    assert granted_jobs(run_pass(books).change) == [an_id(2)]
    for name, each in books.counted["c1"].items():
        books.counted["c1"][name] = type(each)(**{f: getattr(each, f) for f in each.__struct_fields__} | {"counted_grants": 7})
    assert granted_jobs(run_pass(books).change) == [an_id(1)]
