"""Which nodes are gathered for whom, and by when: contract §5 and decision 0015, one sentence a row."""

from typing import Any

import pytest
from msgspec.structs import replace

from allmende.admission.model.values import Saves
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.admission.builders import (
    NOW,
    an_id,
    job,
    run_pass,
)
from tests.admission.gathering import FULL, GATHER, LONG, NODES, Held, Row, gang, held, reserved_in, unallocated, with_lab


def check(row: Row) -> None:
    passed = run_pass(with_lab(row), terms=row.terms)
    found = {name: word for name, word in reserved_in(passed.change).items() if word is not None}
    assert set(found) == {an_id(number) for number in row.expected}
    for number, (where, minutes) in row.expected.items():
        word = found[an_id(number)]
        assert dict(word.placement) == where
        assert (word.order_ms - NOW) / MINUTE_MS == minutes
        assert word.by_ms == word.order_ms + row.terms.notice_ms, "the promise: when all are told, and the longest notice"
        assert word.made_at_ms == NOW


FIRST_TWO = ({"n001": 1, "n002": 1}, 20.0)
LAST_TWO = ({"n003": 1, "n004": 1}, 40.0)
WAITED = {"gang_wait_ms": HOUR_MS, "gang_ratio_ppm": 1_250_000}
# Builders let a job be submitted an hour before now, and its number of milliseconds later.
PATIENT = replace(GATHER, **{**WAITED, "gang_wait_ms": HOUR_MS - 1})

WHO: dict[str, Row] = {
    "a gang of a leaf that is owed time gets nodes by name": Row([gang(1)], {1: FIRST_TWO}),
    "where no reservations are allowed it gets none": Row([gang(1)], {}, terms=replace(GATHER, reservations_max=0)),
    "a job that is smaller than a gang gets none": Row([gang(1, shape="3x5")], {}),
    "a gang of a leaf just below 1 gets nodes": Row([gang(1)], {1: FIRST_TWO}, {"a": 99}),
    "a gang of a leaf at 1 gets none": Row([gang(1)], {}, {"a": 100}),
    "after its wait it does, over budget": Row([gang(1)], {1: FIRST_TWO}, {"a": 124}, terms=PATIENT),
    "a millisecond before the wait is over it does not": Row([gang(2)], {}, {"a": 124}, terms=PATIENT),
    "however long it waited not where its leaf stands too far above 1": Row([gang(1)], {}, {"a": 125}, terms=PATIENT),
    "a ratio of at most 1: never over budget": Row([gang(1)], {}, {"a": 100}, terms=replace(PATIENT, gang_ratio_ppm=1_000_000)),
    "a leaf that is owed time need not wait": Row([gang(2)], {2: FIRST_TWO}, {"a": 99}, terms=replace(PATIENT, gang_wait_ms=LONG)),
    "one a leaf: the one that has waited longest": Row([gang(1), gang(2)], {1: FIRST_TWO}),
    "one a leaf: the highest priority before the longest wait": Row([gang(1), gang(2, priority=1)], {2: FIRST_TWO}),
    "one a leaf: of different shapes, too, the one that has waited longest": Row([gang(1), gang(2, shape="4x4")], {1: FIRST_TWO}),
    "two leaves get different nodes, who has waited longest the first": Row(
        [gang(1, "c"), gang(2, "a")], {1: FIRST_TWO, 2: LAST_TWO}, {"c": 90, "a": 10}
    ),
    "where one more is allowed it is for the longest wait, not for the lowest ratio": Row(
        [gang(1, "c"), gang(2, "a")], {1: FIRST_TWO}, {"c": 90, "a": 10}, terms=replace(GATHER, reservations_max=1)
    ),
    "whoever does not get enough nodes blocks those behind it, smaller ones, too": Row(
        [
            gang(1, "c", "3x8", submitted_at_ms=NOW - 3),
            gang(2, "a", submitted_at_ms=NOW - 2),
            gang(3, "b", "1x8", submitted_at_ms=NOW - 1),
        ],
        {1: ({"n001": 1, "n002": 1, "n003": 1}, 30.0)},
        terms=replace(GATHER, gang_ppm=250_000),
    ),
    "beside others only a part of the nodes is gathered": Row(
        [gang(1, "c"), gang(2, "a")], {1: FIRST_TWO}, terms=replace(GATHER, reserved_ppm=750_000)
    ),
    "the first may be as large as it is": Row(
        [gang(1, shape="4x8")],
        {1: ({"n001": 1, "n002": 1, "n003": 1, "n004": 1}, 40.0)},
        terms=replace(GATHER, reserved_ppm=250_000),
    ),
    "a job that rests gets none, the next of its leaf does": Row([gang(1, not_before_ms=NOW + 1), gang(2)], {2: FIRST_TWO}),
    "a job whose rest is over does": Row([gang(1, not_before_ms=NOW), gang(2)], {1: FIRST_TWO}),
    "a job that was idle before gets none": Row([gang(1, idled=True)], {}),
    "a job for another cluster gets none here": Row([gang(1, clusters=("c2",))], {}),
    "unallocated work gets none": Row([job(1, budget=None, slice_ms=0, replicas=2, gpus_per_replica=8)], {}),
    "a gang that could not even fit into all of the nodes gets none": Row([gang(1, shape="5x8")], {}),
    "what fits at once is granted, not gathered": Row([gang(1)], {}, holders=FULL[:2]),
}

WHERE: dict[str, Row] = {
    "of free nodes and others those that have room first": Row([gang(1)], {1: ({"n001": 1, "n004": 1}, 10.0)}, holders=FULL[:3]),
    "nodes that the job avoids are not gathered for it": Row(
        [gang(1, avoid=("n001",), avoid_until_ms=NOW + HOUR_MS)], {1: ({"n002": 1, "n003": 1}, 30.0)}
    ),
    "nor are nodes of another model": Row(
        [gang(1, gpu_model="h100")],
        {1: LAST_TWO},
        nodes=(*(replace(each, gpu_model="a100") for each in NODES[:2]), *(replace(each, gpu_model="h100") for each in NODES[2:])),
    ),
    "nor nodes that were granted a moment ago": Row(
        [gang(1), job(2, budget="c", gpus_per_replica=8, slice_ms=LONG)],
        {1: ({"n002": 1, "n003": 1}, 30.0)},
        {"a": 50},
        holders=FULL[1:],
    ),
    "nor silent nodes": Row(
        [gang(1)], {1: LAST_TWO}, nodes=(*(replace(each, last_seen_ms=NOW - HOUR_MS) for each in NODES[:2]), *NODES[2:])
    ),
    "nor nodes that are down": Row([gang(1)], {1: LAST_TWO}, nodes=(*(replace(each, healthy=0) for each in NODES[:2]), *NODES[2:])),
    "nor nodes that are kept for quick work": Row(
        [gang(1, shape="4x8")], {}, terms=replace(GATHER, quick_ppm=250_000, quick_slice_ms=MINUTE_MS)
    ),
    "several replicas share a node": Row([gang(1, shape="4x4")], {1: ({"n001": 2, "n002": 2}, 20.0)}),
    "a node with fewer healthy GPUs takes fewer": Row(
        [gang(1, shape="4x4")],
        {1: ({"n001": 1, "n002": 2, "n003": 1}, 30.0)},
        nodes=(replace(NODES[0], healthy=7), *NODES[1:]),
        holders=(held(1, "n001", 10, 7), *FULL[1:]),
    ),
    "of nodes with room at the same time the one where fewest must leave": Row(
        [gang(1)],
        {1: ({"n001": 1, "n003": 1}, 10.0)},
        holders=(
            held(1, "n001", 10), held(2, "n002", 10, 4), held(5, "n002", 10, 4), held(3, "n003", 10), held(4, "n004", 10, 3),
            held(6, "n004", 10, 5),
        ),
    ),
}  # fmt: skip


def saved(minutes_ago: float, every: float | None) -> Saves:
    return Saves(NOW - round(minutes_ago * MINUTE_MS), None if every is None else round(every * MINUTE_MS))


def after(*first: Held) -> tuple[Held, ...]:
    """n001 and n002 are held so; the others for very long."""
    return (*first, held(3, "n003", 110), held(4, "n004", 119))


STARTING: dict[str, Any] = {"state": "starting", "started_at_ms": None, "protected_until_ms": None, "granted_at_ms": NOW}

WHEN: dict[str, Row] = {
    "when the last of the nodes has room": Row([gang(1)], {1: FIRST_TWO}),
    "whoever is past his slice leaves as soon as he is told": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 5.0)}, holders=after(held(1, "n001", -30), held(2, "n002", 5))
    ),
    "unallocated work is no reason to wait": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 0.0)}, holders=after(unallocated(1, "n001"), held(2, "n002", -5))
    ),
    "nor is who leaves already": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 0.0)}, holders=after(held(1, "n001", 0, plan=an_id(9)), held(2, "n002", -5))
    ),
    "nor is who was declared lost: on a node that is up the agent kills it without grace": Row(
        [gang(1)], {1: ({"n001": 1, "n004": 1}, 10.0)}, holders=(*FULL[:3], held(4, "n004", 40, state="lost"))
    ),
    "who saves at a steady pace leaves at his first save after his slice": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 24.0)}, holders=after(held(1, "n001", 10, saves=saved(6, 30)), held(2, "n002", 20))
    ),
    "who saves at the end of his slice leaves then": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 20.0)}, holders=after(held(1, "n001", 10), held(2, "n002", 20, saves=saved(10, 30)))
    ),
    "past his slice he leaves at his next save": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 4.0)}, holders=after(held(1, "n001", -60, saves=saved(6, 10)), held(2, "n002", -1))
    ),
    "who has saved just now leaves now": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 0.0)}, holders=after(held(1, "n001", -60, saves=saved(10, 10)), held(2, "n002", -1))
    ),
    "a pace that was seen only once is not known": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 10.0)}, holders=after(held(1, "n001", 10, saves=saved(6, None)), held(2, "n002", 5))
    ),
    "a pace slower than his slice is not waited for": Row(
        [gang(1)], {1: ({"n001": 1, "n002": 1}, 10.0)}, holders=after(held(1, "n001", 10, saves=saved(6, 121)), held(2, "n002", 5))
    ),
    "who has not started yet has all of his slice before him, and may take all the time to start": Row(
        [gang(1)],
        {1: ({"n001": 1, "n003": 1}, 110.0)},
        holders=after(held(1, "n001", 5), held(2, "n002", 0, **STARTING)),
    ),
    "and is taken where there is nothing sooner": Row(
        [gang(1)],
        {1: ({"n001": 1, "n002": 1}, 120.5)},
        holders=(held(1, "n001", 5), held(2, "n002", 0, **STARTING), held(3, "n003", 121), held(4, "n004", 122)),
    ),
    "on one node several must be past their slices": Row(
        [gang(1)],
        {1: ({"n001": 1, "n002": 1}, 15.0)},
        holders=after(held(1, "n001", 5, 4), held(5, "n001", 15, 4), held(2, "n002", 10)),
    ),
    "only as many as are needed": Row(
        [gang(1, shape="4x4")],
        {1: ({"n001": 1, "n002": 2, "n003": 1}, 10.0)},
        holders=(
            held(1, "n001", 5, 4), held(5, "n001", 99, 4), held(2, "n002", 10), held(3, "n003", 9, 4), held(6, "n003", 98, 4),
            held(4, "n004", 97),
        ),
    ),
}  # fmt: skip

TABLE = WHO | WHERE | WHEN


@pytest.mark.parametrize("sentence", TABLE)
def test_reservations(sentence: str) -> None:
    check(TABLE[sentence])


def test_no_sentence_stands_twice() -> None:
    assert len(TABLE) == len(WHO) + len(WHERE) + len(WHEN)
