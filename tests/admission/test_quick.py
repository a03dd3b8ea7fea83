"""Nodes that are kept for unallocated work and short slices, so that a short test need not wait: decision 0015."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from allmende.admission.model.values import Job, Node, Terms
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.admission.builders import TERMS, an_id, attempt, job, lab, node, run_pass

SHORT = 15 * MINUTE_MS
# Of four nodes the last one is kept.
QUICK = replace(TERMS, quick_ppm=250_000, quick_slice_ms=SHORT)
NODES = tuple(node(number) for number in range(1, 5))


class Row(NamedTuple):
    """Nodes are `held` for hours (the others free); `expected`: who starts, and on which nodes."""

    jobs: list[Job]
    expected: dict[int, list[str]]
    held: Sequence[str] = ("n001", "n002", "n003")
    terms: Terms = QUICK
    nodes: Sequence[Node] = NODES


def whole(number: int, slice_ms: int, **fields: object) -> Job:
    """A job that takes a whole node."""
    return job(number, gpus_per_replica=8, slice_ms=slice_ms, **fields)


STARTS: dict[str, Row] = {
    "a slice as long as a short one may be starts there": Row([whole(1, SHORT)], {1: ["n004"]}),
    "a slice that is a millisecond longer does not": Row([whole(1, SHORT + 1)], {}),
    "unallocated work starts there": Row([whole(1, 0, budget=None)], {1: ["n004"]}),
    "a short slice starts there also over budget": Row([whole(1, SHORT, budget="c")], {1: ["n004"]}),
    "the slice that counts is the next one: bad luck has made it longer": Row([whole(1, SHORT, next_slice_ms=2 * SHORT)], {}),
    "a long slice starts on any other node": Row([whole(1, HOUR_MS)], {1: ["n003"]}, held=("n001", "n002")),
    "a gang of long slices has no part there": Row([whole(1, HOUR_MS, replicas=2)], {}, held=("n001", "n002")),
    "a gang of short slices has": Row([whole(1, SHORT, replicas=2)], {1: ["n003", "n004"]}, held=("n001", "n002")),
    "a short one starts though a long one of the same shape stands before it": Row(
        [whole(1, HOUR_MS), whole(2, SHORT)], {2: ["n004"]}
    ),
    "so does unallocated work": Row([whole(1, HOUR_MS), whole(2, 0, budget=None)], {2: ["n004"]}),
    "the part of the nodes is rounded down": Row([whole(1, HOUR_MS)], {1: ["n004"]}, terms=replace(QUICK, quick_ppm=249_999)),
    "by default no node is kept": Row([whole(1, HOUR_MS)], {1: ["n004"]}, terms=TERMS),
    "a node that is down is not one of them: the last that is up is kept": Row(
        [whole(1, HOUR_MS), whole(2, SHORT)],
        {2: ["n003"]},
        held=("n001", "n002"),
        nodes=(*NODES[:3], replace(NODES[3], healthy=0)),
        terms=replace(QUICK, quick_ppm=340_000),
    ),
}


def check(row: Row) -> None:
    holders = [whole(100 + number, HOUR_MS * 8, budget="b", state="running") for number in range(len(row.held))]
    running = [attempt(number + 1, holder, {row.held[number]: 1}) for number, holder in enumerate(holders)]
    books = lab([*holders, *row.jobs], row.nodes, {"a": 50, "c": 300}, attempts=running)
    passed = run_pass(books, terms=row.terms)
    found = {each.job: sorted(part.node for part in each.placement) for each in passed.change.attempts}
    assert found == {an_id(number): where for number, where in row.expected.items()}


@pytest.mark.parametrize("sentence", STARTS)
def test_who_starts_on_the_nodes_that_are_kept(sentence: str) -> None:
    check(STARTS[sentence])


# claimant, held unallocated -> the nodes that its claim leaves alone; None: it raises none
CLAIMS: dict[str, tuple[Job, tuple[str, ...], tuple[str, ...] | None]] = {
    "nobody is evicted there for a long slice": (whole(1, HOUR_MS), ("n003", "n004"), ("n004",)),
    "a long slice does not even ask where only that could help": (whole(1, HOUR_MS), ("n004",), None),
    "for a short one unallocated work leaves, over budget or not": (whole(1, SHORT, budget="c"), ("n004",), ()),
    "a gang of long slices counts the other nodes alone": (whole(1, HOUR_MS, replicas=2), ("n003", "n004"), None),
}


@pytest.mark.parametrize("sentence", CLAIMS)
def test_who_asks_for_room_there(sentence: str) -> None:
    claimant, loose, expected = CLAIMS[sentence]
    names = [each.node for each in NODES]
    holders = [
        whole(100 + number, 0 if name in loose else HOUR_MS * 8, budget=None if name in loose else "b", state="running")
        for number, name in enumerate(names)
    ]
    running = [attempt(number + 1, holder, {names[number]: 1}) for number, holder in enumerate(holders)]
    books = lab([*holders, claimant], NODES, {"c": 300}, attempts=running)
    raised = [each.avoid for each in run_pass(books, terms=QUICK).change.claims]
    assert raised == ([] if expected is None else [expected])
