"""Cordoned nodes as admission sees them: nothing new is granted there, and it says when others may rely on that. Decision 0025."""

from typing import NamedTuple

import pytest

from allmende.admission.model.books import Books
from allmende.admission.model.facts import NOTHING, Closed
from allmende.admission.model.values import Cordon, Job
from allmende.admission.rules import cordons, explaining
from allmende.admission.rules.rooms import Rooms, Wish
from allmende.proto import subjects
from allmende.proto.admission import JobGranted, JobQueued, NodeClosed, NodesQuery
from allmende.proto.preemptor import NodeCordoned, NodeReturned
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.admission.builders import CLUSTER, NOW, TERMS, attempt, granted_jobs, job, lab, node, run_pass
from tests.admission.scene import Scene
from tests.admission.test_service import furnish


def word(number: int = 1, revision: int = 1, from_ms: int | None = NOW) -> Cordon:
    """A word about a node; `from_ms` None: it returns."""
    return Cordon(cluster=CLUSTER, node=f"n{number:03d}", revision=revision, from_ms=from_ms, by="olga", reason="firmware")


def books(*words: Cordon, jobs: tuple[Job, ...] = (), nodes: int = 2) -> Books:
    """Books of two empty nodes that have heard these words."""
    made = lab(jobs, [node(number + 1) for number in range(nodes)])
    for each in words:
        made.apply(cordons.heard(made, each, NOW))
    return made


class Row(NamedTuple):
    """What was heard about n001 of two nodes, the slice that a job of 8 GPUs asks for (0: unallocated), where it starts."""

    words: tuple[Cordon, ...]
    expected: str
    slice_ms: int = HOUR_MS


SOON = word(from_ms=NOW + HOUR_MS)
PLACES: dict[str, Row] = {
    "a free cluster": Row((), "n001"),
    "a cordoned node takes nothing": Row((word(),), "n002"),
    "not even unallocated work": Row((word(),), "n002", slice_ms=0),
    "one that has returned takes it": Row((word(), word(revision=2, from_ms=None)), "n001"),
    "a late word changes nothing": Row((word(revision=2, from_ms=None), word()), "n001"),
    "announced, it takes no slice that would not end before": Row((SOON,), "n002"),
    "but one that does, with the time that a start takes": Row((SOON,), "n001", slice_ms=HOUR_MS - TERMS.start_timeout_ms),
    "not a millisecond more": Row((SOON,), "n002", slice_ms=HOUR_MS - TERMS.start_timeout_ms + 1),
    "and unallocated work until then": Row((SOON,), "n001", slice_ms=0),
}


@pytest.mark.parametrize("sentence", PLACES)
def test_where_a_job_starts(sentence: str) -> None:
    row = PLACES[sentence]
    made = books(*row.words, jobs=(job(1, gpus_per_replica=8, slice_ms=row.slice_ms),))
    [placed] = run_pass(made).change.attempts
    assert [part.node for part in placed.placement] == [row.expected]


def test_whoever_does_not_fit_reads_which_node_is_missing() -> None:
    waiting = job(1, gpus_per_replica=8)
    made = books(word(), jobs=(waiting,), nodes=1)
    passed = run_pass(made)
    assert granted_jobs(passed.change) == []
    reasons = explaining.blockers(waiting, made, {CLUSTER: passed.outlook}, NOW, TERMS)
    assert [each.sentence for each in reasons if each.code == "nodes_cordoned"] == [
        "1 node of c1 with 8 GPUs takes nothing new: n001 is cordoned by olga (firmware)"
    ]


def test_no_room_is_counted_on_for_a_claim_there() -> None:
    holder = job(1, gpus_per_replica=8, state="running")
    running = attempt(1, holder, {"n001": 1})
    made = lab([holder], [node(1)], attempts=[running])
    made.apply(cordons.heard(made, word(), NOW))
    made.loosen(NOW)
    rooms = Rooms(made, CLUSTER, NOW, TERMS)
    assert rooms.silent == {"n001"}
    assert (rooms.open(), rooms.node("n001")) == ({}, None)
    announced = books(SOON)
    assert Rooms(announced, CLUSTER, NOW, TERMS).closed_to(Wish("x", HOUR_MS)) == {"n001"}
    assert Rooms(announced, CLUSTER, NOW, TERMS).closed_to(Wish("x", 30 * MINUTE_MS)) == frozenset()


def test_the_word_that_others_rely_on_names_the_newest_grant() -> None:
    made = books(jobs=(job(1), job(2)))
    made.apply(run_pass(made).change)
    change = cordons.heard(made, word(), NOW)
    assert [(fact.cordon.revision, fact.newest_grant_seq) for fact in change.facts if isinstance(fact, Closed)] == [(1, 2)]
    made.apply(change)
    assert cordons.heard(made, word(), NOW) is NOTHING


def test_an_announced_cordon_is_answered_when_it_begins_and_once() -> None:
    made = books(SOON)
    assert cordons.begun(made, CLUSTER, "n001", NOW + HOUR_MS - 1) is NOTHING
    assert [timer for timer in made.due(NOW + HOUR_MS) if timer[1] == "cordon"] == [(NOW + HOUR_MS, "cordon", "c1/n001")]
    change = cordons.begun(made, CLUSTER, "n001", NOW + HOUR_MS)
    assert len(change.facts) == 1
    made.apply(change)
    assert cordons.begun(made, CLUSTER, "n001", NOW + HOUR_MS) is NOTHING


def test_a_node_may_be_cordoned_before_it_has_reported() -> None:
    made = books(word(3), nodes=2)
    assert made.cluster_names() == [CLUSTER]
    made.apply(run_pass(made).change)
    assert set(made.nodes) == {(CLUSTER, "n001"), (CLUSTER, "n002")}


async def test_cordoned_over_a_restart_and_back(scene: Scene) -> None:
    process = await scene.start()
    await furnish(scene)
    said = NodeCordoned(cluster="c1", node="n001", revision=1, by="olga", reason="firmware", drain=True, from_ms=scene.now_ms())
    await scene.say("preemptor", said)
    closed = await scene.hears(NodeClosed)
    assert (closed.node, closed.revision, closed.newest_grant_seq) == ("n001", 1, 0)
    await scene.kill(process)
    await scene.start("second")
    await furnish(scene)
    job_id = await scene.submit()
    queued = await scene.hears(JobQueued, lambda body: body.job == job_id)
    assert "nodes_cordoned" in [each.code for each in queued.blockers]
    page = await scene.ask(subjects.NODES, NodesQuery())
    assert [(view.cordon_reason, view.cordoned_from_ms) for view in page.nodes] == [("firmware", said.from_ms)]  # type: ignore[attr-defined]
    back = NodeReturned(cluster="c1", node="n001", revision=2, by="olga", reason="done", returned_at_ms=scene.now_ms())
    await scene.say("preemptor", back)
    assert (await scene.hears(JobGranted)).job == job_id
    # Said again by the second process perhaps, which cannot know what the first one got out: then it is the same message.
    assert len({each.id for each in scene.envelopes if isinstance(each.body, NodeClosed)}) == 1
