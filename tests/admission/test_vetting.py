"""What is refused at submission, kept undecided, or warned about: contract §5, one sentence a row."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from allmende.admission.model.values import Job, Node
from allmende.admission.rules.vetting import vet, warnings
from allmende.proto.budget import Budget, ClusterShare
from allmende.proto.units import HOUR_MS
from tests.admission.builders import NOW, TERMS, job, lab, node, run_pass, tree

TREE = tree("a", programs={"p": ["p1"]}) | {
    "unset": Budget(budget="unset", parent="org", members=("u1",)),
    "zero": Budget(budget="zero", parent="org", share_ppm=0, members=("u1",)),
    "far": Budget(
        budget="far", parent="org", share_ppm=0, members=("u1",), cluster_shares=(ClusterShare(cluster="far", share_ppm=1),)
    ),
}
NODES = [node(1), node(2), node(3, node="m1", gpu_model="h100", installed=4, healthy=0)]
CAP = TERMS.slice_cap_ms


class Row(NamedTuple):
    """A job and the code it is refused with; None: accepted."""

    job: Job
    expected: str | None
    nodes: Sequence[Node] = NODES


ROWS: dict[str, Row] = {
    "a plain job is accepted": Row(job(1), None),
    "a budget that does not exist": Row(job(1, budget="nowhere"), "unknown_budget"),
    "a budget that has others below it": Row(job(1, budget="p"), "budget_not_leaf"),
    "a budget of other people": Row(job(1, user="stranger"), "not_a_member"),
    "a budget of other people, though nothing is charged to it": Row(job(1, user="stranger", slice_ms=0), "not_a_member"),
    "a slice without a budget": Row(job(1, budget=None), "no_covering_budget"),
    "a slice without a budget for a job that may run unallocated": Row(job(1, budget=None, may_run_unallocated=True), None),
    "no slice needs no budget": Row(job(1, budget=None, slice_ms=0), None),
    "a slice of a leaf without a share": Row(job(1, budget="unset"), "no_covering_budget"),
    "a leaf with a share of one cluster alone covers on every cluster, where it is owed nothing too": Row(
        job(1, budget="far"), None
    ),
    "the same, may run unallocated": Row(job(1, budget="unset", may_run_unallocated=True), None),
    "a share of zero may be charged": Row(job(1, budget="zero"), None),
    "a slice at the cap": Row(job(1, slice_ms=CAP), None),
    "a slice above the cap": Row(job(1, slice_ms=CAP + 1), "slice_above_cap"),
    "a maximum runtime that is the slice": Row(job(1, max_runtime_ms=HOUR_MS), None),
    "a maximum runtime below the slice": Row(job(1, max_runtime_ms=HOUR_MS - 1), "max_runtime_below_slice"),
    "the whole cluster": Row(job(1, replicas=2, gpus_per_replica=8), None),
    "one replica more than the cluster takes": Row(job(1, replicas=3, gpus_per_replica=8), "never_fits"),
    "a replica larger than any node": Row(job(1, gpus_per_replica=9), "never_fits"),
    "GPUs of nodes that are down count: they come back": Row(job(1, gpu_model="h100", gpus_per_replica=4), None),
    "more of a model than there is": Row(job(1, gpu_model="h100", gpus_per_replica=5), "never_fits"),
    "a model that nobody has": Row(job(1, gpu_model="abacus"), "unknown_gpu_model"),
    "a cluster that does not exist": Row(job(1, clusters=("c9",)), "unknown_cluster"),
    "one that does among some that do not": Row(job(1, clusters=("c1", "c9")), None),
    "too large, but nodes are still being told": Row(
        job(1, replicas=3, gpus_per_replica=8), None, [node(1, first_seen_ms=NOW - 1)]
    ),
}


def check(row: Row) -> None:
    verdict = vet(row.job, lab(nodes=row.nodes, budgets=TREE), NOW, TERMS)
    assert (verdict.refusal.code if verdict.refusal else None) == row.expected
    assert verdict.accepted == (row.expected is None)


@pytest.mark.parametrize("sentence", ROWS)
def test_vetting(sentence: str) -> None:
    check(ROWS[sentence])


def test_a_root_that_stands_alone_is_the_whole_and_its_members_need_no_share() -> None:
    """The smallest lab of all. The ledger owes it everything, so admission may not refuse it."""
    budgets = {"org": Budget(budget="org", members=("u1",))}
    verdict = vet(job(1, user="u1", budget="org"), lab(nodes=NODES, budgets=budgets), NOW, TERMS)
    assert (verdict.refusal, verdict.accepted) == (None, True)
    books = lab([job(1, user="u1", budget="org")], NODES, {"org": 500}, budgets=budgets)
    assert [each.budget for each in run_pass(books).change.attempts] == ["org"]


def test_every_refusal_is_one_sentence_that_says_what_to_do() -> None:
    for row in ROWS.values():
        refusal = vet(row.job, lab(nodes=row.nodes, budgets=TREE), NOW, TERMS).refusal
        if refusal is not None:
            assert any(mark in refusal.sentence for mark in (";", "there are:")), refusal


def test_while_no_tree_is_known_a_job_is_neither_admitted_nor_refused() -> None:
    books = lab(nodes=NODES)
    books.tree = None
    for each in (job(1), job(2, user="stranger"), job(3, budget=None, slice_ms=0)):
        verdict = vet(each, books, NOW, TERMS)
        assert (verdict.refusal, verdict.accepted) == (None, False)
        assert [reason.code for reason in verdict.unknown] == ["tree_unknown"]


def test_while_no_node_is_known_a_job_is_neither_admitted_nor_refused() -> None:
    verdict = vet(job(1, replicas=4_000), lab(budgets=TREE), NOW, TERMS)
    assert (verdict.refusal, verdict.accepted) == (None, False)


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"resumable": False, "stated_runtime_ms": HOUR_MS + 1}, True),
        ({"resumable": False, "stated_runtime_ms": HOUR_MS}, False),
        ({"resumable": True, "stated_runtime_ms": 9 * HOUR_MS}, False),
        ({"resumable": False, "stated_runtime_ms": None}, False),
    ],
)
def test_a_job_that_cannot_resume_is_warned_of_a_slice_below_its_runtime(fields: dict[str, object], warned: bool) -> None:
    assert [reason.code for reason in warnings(job(1, **fields))] == (["slice_shorter_than_runtime"] if warned else [])
