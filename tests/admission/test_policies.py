"""What a policy lets start: each sentence as a small lab, one pass, and who was granted what. Modes are in test_modes.py."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.values import Attempt, Job, KnownPolicy
from allmende.admission.rules import explaining, life, policies
from allmende.admission.rules.passing import Passed
from allmende.admission.rules.vetting import vet
from allmende.proto.policy import DebugLane, Policy
from allmende.proto.units import HOUR_MS, MINUTE_MS
from tests.admission.builders import CLUSTER, NOW, TERMS, an_id, attempt, granted_jobs, job, lab, node, run_pass, tree

SHORT = 15 * MINUTE_MS
LANE = DebugLane(gpus=2, slice_ms=SHORT, per_user=1)


def ruled(books: Books, policy: Policy, cluster: str = CLUSTER) -> Books:
    """The books under a policy."""
    books.put_policy(KnownPolicy(cluster=cluster, revision=1, from_ms=NOW, author="olga", reason="a test", policy=policy))
    return books


def session(number: int, **fields: Any) -> Job:
    return job(number, kind="session", **fields)


class Row(NamedTuple):
    """A sentence, the policy, who waits; expected: (job, charged to) in the order of grants."""

    sentence: str
    policy: Policy
    waiting: Sequence[Job]
    expected: Sequence[tuple[int, str | None]]
    standings: Mapping[str, int] = {}
    running: Sequence[tuple[Job, Attempt]] = ()
    gpus: int = 8


def running(number: int, gpus: int, **fields: Any) -> tuple[Job, Attempt]:
    """A job that runs on a node of its own."""
    of = job(number, gpus_per_replica=gpus, state="running", attempt=an_id(500_000 + number), attempts=1, **fields)
    return of, attempt(number, of, {"n099": 1})


ROWS = (
    Row("without a policy everything is as ever", Policy(), [job(1)], [(1, "a")]),
    Row(
        "over budget, queue: last, charged and protected", Policy(), [job(1), job(2, budget="b")], [(2, "b"), (1, "a")], {"a": 100}
    ),
    Row(
        "over budget, unallocated: after all others, charged to nobody",
        Policy(over_budget="unallocated"),
        [job(1), job(2, budget="b"), job(3, slice_ms=0, budget=None)],
        [(2, "b"), (3, None), (1, None)],
        {"a": 100},
    ),
    Row(
        "over budget, unallocated: who would lose its work waits, unless it said that it may",
        Policy(over_budget="unallocated"),
        [job(1, resumable=False), job(2, resumable=False, may_run_unallocated=True)],
        [(2, None)],
        {"a": 100},
    ),
    Row(
        "over budget, unallocated: no priority, by submission alone",
        Policy(over_budget="unallocated"),
        [job(1), job(2, priority=9), job(3, budget="b")],
        [(1, None), (2, None), (3, None)],
        {"a": 100, "b": 300},
    ),
    Row(
        "over budget, unallocated: the one whose slice carries its leaf past 1 is the last that is charged",
        Policy(over_budget="unallocated"),
        [job(1, slice_ms=8 * HOUR_MS, gpus_per_replica=4), job(2)],
        [(1, "a"), (2, None)],
        {"a": 99},
    ),
    Row("over budget, refuse: whoever waits already goes on waiting", Policy(over_budget="refuse"), [job(1)], [], {"a": 100}),
    Row("over budget, refuse: within budget nothing differs", Policy(over_budget="refuse"), [job(1)], [(1, "a")], {"a": 99}),
    Row("paused: nothing starts", Policy(paused=True), [job(1), job(2, slice_ms=0)], []),
    Row("observe: nothing starts", Policy(mode="observe"), [job(1), job(2, slice_ms=0)], []),
    Row("admit: the same order", Policy(mode="admit"), [job(1), job(2, budget="b")], [(2, "b"), (1, "a")], {"a": 50}),
    Row("a slice at the cap starts", Policy(slice_cap_ms=HOUR_MS), [job(1)], [(1, "a")]),
    Row("one above it waits", Policy(slice_cap_ms=HOUR_MS - 1), [job(1)], []),
    Row(
        "a cap of zero is not unset: only unallocated work",
        Policy(slice_cap_ms=0),
        [job(1), job(2, slice_ms=0)],
        [(2, None)],
    ),
    Row("a slice below the least waits", Policy(slice_min_ms=HOUR_MS + 1), [job(1), job(2, slice_ms=0)], [(2, None)]),
    Row("a limit is reached and not passed", Policy(gpus_at_once={"a": 2}), [job(1), job(2), job(3)], [(1, "a"), (2, "a")]),
    Row("a limit of zero lets nobody start", Policy(gpus_at_once={"a": 0}), [job(1), job(2, budget="b")], [(2, "b")]),
    Row("a budget without an entry has no limit", Policy(gpus_at_once={"b": 0}), [job(1)], [(1, "a")]),
    Row("a limit above the capacity does no harm", Policy(gpus_at_once={"a": 1_000}), [job(1)], [(1, "a")]),
    Row(
        "a smaller job passes one that the limit holds back",
        Policy(gpus_at_once={"a": 2}),
        [job(1, gpus_per_replica=4), job(2)],
        [(2, "a")],
    ),
    Row(
        "a limit counts what runs, also what is past its slice",
        Policy(gpus_at_once={"a": 4}),
        [job(1), job(2, gpus_per_replica=2)],
        [(1, "a")],
        running=[running(9, 3)],
    ),
    Row(
        "a limit above counts the budgets below it together",
        Policy(gpus_at_once={"org": 2}),
        [job(1), job(2, budget="b"), job(3, budget="c")],
        [(1, "a"), (2, "b")],
    ),
    Row(
        "unallocated GPUs count against no limit",
        Policy(gpus_at_once={"org": 1}),
        [job(1), job(2, slice_ms=0)],
        [(1, "a"), (2, None)],
        running=[running(9, 4, slice_ms=0)],
    ),
    Row(
        "so many sessions a person, and no more",
        Policy(sessions_per_user=1),
        [session(1), session(2), session(3, user="u2"), job(4)],
        [(1, "a"), (3, "a"), (4, "a")],
    ),
    Row("no sessions at all", Policy(sessions_per_user=0), [session(1), job(2)], [(2, "a")]),
    Row("sessions without a limit", Policy(), [session(1), session(2)], [(1, "a"), (2, "a")]),
    Row(
        "backfill any: a smaller one passes",
        Policy(),
        [job(1, gpus_per_replica=8), job(2), job(3, slice_ms=0)],
        [(2, "a"), (3, None)],
        gpus=4,
        running=[running(9, 8)],
    ),
    Row(
        "backfill unallocated only: no allocated job passes one that finds no room",
        Policy(backfill="unallocated_only"),
        [job(1, gpus_per_replica=4, replicas=2), job(2), job(3, slice_ms=0)],
        [(3, None)],
        gpus=4,
        running=[running(8, 4, user="u2")],
    ),
    Row(
        "backfill unallocated only: whom no empty cluster could hold stops nobody",
        Policy(backfill="unallocated_only"),
        [job(1, gpus_per_replica=64), job(2)],
        [(2, "a")],
    ),
    Row(
        "backfill unallocated only: whom a limit holds back stops nobody",
        Policy(backfill="unallocated_only", gpus_at_once={"a": 0}),
        [job(1), job(2, budget="b")],
        [(2, "b")],
    ),
    Row(
        "debug lane: first inside its leaf, past a higher priority",
        Policy(debug_lane=LANE),
        [job(1, priority=9), job(2, slice_ms=SHORT)],
        [(2, "a"), (1, "a")],
    ),
    Row(
        "debug lane: never past another leaf's turn",
        Policy(debug_lane=LANE),
        [job(1, budget="b", gpus_per_replica=8), job(2, slice_ms=SHORT)],
        [(1, "b")],
        {"a": 50},
    ),
    Row(
        "debug lane: one a person at a time, then everybody's order",
        Policy(debug_lane=LANE),
        [job(1, priority=9), job(2, slice_ms=SHORT), job(3, slice_ms=SHORT), job(4, slice_ms=SHORT, user="u2")],
        [(2, "a"), (4, "a"), (1, "a"), (3, "a")],
    ),
    Row(
        "debug lane: one that runs already counts",
        Policy(debug_lane=LANE),
        [job(1, priority=9), job(2, slice_ms=SHORT)],
        [(1, "a"), (2, "a")],
        running=[running(9, 1, slice_ms=SHORT)],
    ),
    Row(
        "debug lane: neither long, nor large, nor unallocated",
        Policy(debug_lane=LANE),
        [job(1, priority=9), job(2, slice_ms=SHORT + 1), job(3, slice_ms=SHORT, gpus_per_replica=3), job(4, slice_ms=0)],
        [(1, "a"), (2, "a"), (3, "a"), (4, None)],
    ),
    Row(
        "debug lane: what it cannot place does not hold up its leaf",
        Policy(debug_lane=LANE),
        [job(1), job(2, slice_ms=SHORT, clusters=("c2",))],
        [(1, "a")],
    ),
    Row(
        "an uncovered slice runs unallocated where the policy says so",
        Policy(uncovered="unallocated"),
        [job(1, budget=None), job(2, budget="b")],
        [(2, "b"), (1, None)],
    ),
)


def passed(row: Row) -> tuple[Books, Passed]:
    nodes = [node(1, installed=row.gpus, healthy=row.gpus)]
    if row.running:
        # Full: who runs there leaves no room.
        held = sum(each.gpus for _job, each in row.running)
        nodes.append(node(99, installed=held, healthy=held))
    books = lab(
        [*row.waiting, *(each for each, _attempt in row.running)],
        nodes,
        row.standings,
        attempts=[each for _job, each in row.running],
    )
    ruled(books, row.policy)
    return books, run_pass(books)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_who_starts(row: Row) -> None:
    """BR-050: among them a limit of zero, which lets nobody start, and none, which is no limit."""
    _books, found = passed(row)
    assert [(each.job, each.budget) for each in found.change.attempts] == [(an_id(number), leaf) for number, leaf in row.expected]


BLOCKED = (
    ("paused", Policy(paused=True), job(1), "paused"),
    ("observed", Policy(mode="observe"), job(1), "observed"),
    ("over the limit", Policy(gpus_at_once={"a": 0}), job(1), "gpu_limit"),
    ("too many sessions", Policy(sessions_per_user=0), session(1), "session_limit"),
    ("a cap that was lowered", Policy(slice_cap_ms=1), job(1), "slice_above_cap"),
    ("a least that was raised", Policy(slice_min_ms=2 * HOUR_MS), job(1), "slice_below_min"),
    ("over budget", Policy(over_budget="refuse"), job(1, budget="b"), "over_budget"),
)


@pytest.mark.parametrize(("sentence", "policy", "waits", "code"), BLOCKED, ids=[row[0] for row in BLOCKED])
def test_whoever_is_held_back_reads_why(sentence: str, policy: Policy, waits: Job, code: str) -> None:
    books = ruled(lab([waits], [node(1)], {"b": 100}), policy)
    found = run_pass(books)
    books.apply(found.change)
    codes = [reason.code for reason in explaining.blockers(books.jobs[waits.job], books, {CLUSTER: found.outlook}, NOW, TERMS)]
    assert code in codes, sentence


REFUSED = (
    ("above the service's own cap", Policy(), job(1, slice_ms=9 * HOUR_MS), "slice_above_cap"),
    ("above the cluster's", Policy(slice_cap_ms=HOUR_MS), job(1, slice_ms=HOUR_MS + 1), "slice_above_cap"),
    ("at the cluster's, which is above the service's", Policy(slice_cap_ms=9 * HOUR_MS), job(1, slice_ms=9 * HOUR_MS), None),
    ("below the least", Policy(slice_min_ms=HOUR_MS), job(1, slice_ms=HOUR_MS - 1), "slice_below_min"),
    ("slice 0 is unallocated, not short", Policy(slice_min_ms=HOUR_MS), job(1, slice_ms=0), None),
    ("never within its budget's limit", Policy(gpus_at_once={"org": 3}), job(1, gpus_per_replica=4), "above_gpu_limit"),
    ("just within it", Policy(gpus_at_once={"org": 4}), job(1, gpus_per_replica=4), None),
    ("not covered", Policy(), job(1, budget=None), "no_covering_budget"),
    ("not covered, and taken", Policy(uncovered="unallocated"), job(1, budget=None), None),
    ("paused clusters still take jobs in", Policy(paused=True), job(1), None),
    ("a cluster that only observes takes them too", Policy(mode="observe"), job(1), None),
)


@pytest.mark.parametrize(("sentence", "policy", "new", "code"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_no_cluster_will_ever_start_is_refused(sentence: str, policy: Policy, new: Job, code: str | None) -> None:
    verdict = vet(new, ruled(lab([], [node(1)]), policy), NOW, TERMS)
    assert (None if verdict.refusal is None else verdict.refusal.code) == code, sentence
    assert verdict.accepted == (code is None), sentence


@pytest.mark.parametrize(
    ("sentence", "had", "limits", "named"),
    [
        ("leaves and inner budgets may be limited", {}, {"org": 1, "a": 0}, []),
        ("what is not in the tree is named, in order", {}, {"z": 1, "a": 1, "vison": 1}, ["vison", "z"]),
        ("a limit that has outlived its budget may stay", {"gone": 4}, {"gone": 4, "a": 1}, []),
        ("and may be changed, since it limits nobody", {"gone": 4}, {"gone": 8}, []),
        ("and may go", {"gone": 4}, {}, []),
        ("beside it a new one is judged", {"gone": 4}, {"gone": 4, "z": 1}, ["z"]),
    ],
)
def test_a_policy_may_begin_to_limit_only_budgets_that_there_are(
    sentence: str, had: dict[str, int], limits: dict[str, int], named: list[str]
) -> None:
    books = ruled(lab([], [node(1)]), Policy(gpus_at_once=had))
    assert list(policies.strangers(books, CLUSTER, Policy(gpus_at_once=limits))) == named, sentence


def test_no_limit_is_judged_before_a_tree_is_known() -> None:
    assert list(policies.strangers(Books(), CLUSTER, Policy(gpus_at_once={"z": 1}))) == []


def test_one_cluster_that_takes_it_is_enough() -> None:
    books = ruled(lab([], [node(1), node(2, cluster="c2")]), Policy(slice_cap_ms=MINUTE_MS))
    assert vet(job(1), books, NOW, TERMS).refusal is None
    ruled(books, Policy(slice_cap_ms=MINUTE_MS), "c2")
    refusal = vet(job(1), books, NOW, TERMS).refusal
    assert refusal is not None
    assert refusal.code == "slice_above_cap"


@pytest.mark.parametrize(
    ("sentence", "policy", "percent", "refused"),
    [
        ("at 1 it is over budget", Policy(over_budget="refuse"), 100, True),
        ("below it is not", Policy(over_budget="refuse"), 99, False),
        ("where it may wait it is not refused", Policy(), 100, False),
    ],
)
def test_over_budget_is_refused_at_submission(sentence: str, policy: Policy, percent: int, refused: bool) -> None:
    books = ruled(lab([], [node(1)], {"a": percent}), policy)
    reason = policies.over_budget(job(1, accepted=False), books)
    assert (reason is not None and reason.code == "over_budget") == refused, sentence
    # What is not known is not judged, and unallocated work is in no budget.
    assert policies.over_budget(job(1, slice_ms=0), books) is None
    del books.counted[CLUSTER]["a"]
    assert policies.over_budget(job(1), books) is None


def test_a_grant_that_the_ledger_has_not_counted_yet_makes_a_leaf_over_budget() -> None:
    of, runs = running(9, 1, slice_ms=10 * HOUR_MS)
    books = ruled(lab([of], [node(1)], {"a": 99}, attempts=[runs]), Policy(over_budget="refuse"))
    assert policies.over_budget(job(1), books) is None
    books.counted[CLUSTER]["a"] = replace(books.counted[CLUSTER]["a"], counted_grants=8)
    assert policies.over_budget(job(1), books) is not None


WAITING = st.lists(
    st.builds(
        lambda leaf, gpus, slice_ms, user, priority: {
            "budget": leaf,
            "gpus_per_replica": gpus,
            "slice_ms": slice_ms,
            "user": user,
            "priority": priority,
        },
        st.sampled_from("abc"),
        st.sampled_from((1, 2, 3, 4, 8)),
        st.sampled_from((0, SHORT - 1, SHORT, SHORT + 1, HOUR_MS)),
        st.sampled_from(("u1", "u2")),
        st.sampled_from((0, 1)),
    ),
    max_size=12,
)


@given(waiting=WAITING, limits=st.dictionaries(st.sampled_from(("org", "a", "b")), st.integers(0, 9)), data=st.data())
def test_no_limit_is_passed_and_the_outcome_is_independent_of_arrival(
    waiting: list[dict[str, Any]], limits: dict[str, int], data: st.DataObject
) -> None:
    policy = Policy(
        gpus_at_once=limits,
        debug_lane=data.draw(st.sampled_from((None, LANE))),
        over_budget=data.draw(st.sampled_from(("queue", "unallocated", "refuse"))),
        backfill=data.draw(st.sampled_from(("any", "unallocated_only", "within_deadline"))),
    )
    standings = {leaf: data.draw(st.sampled_from((0, 99, 100, 150))) for leaf in "abc"}
    jobs = [job(number, **fields) for number, fields in enumerate(waiting, 1)]
    shuffled = data.draw(st.permutations(jobs))
    nodes = [node(1), node(2)]
    first = run_pass(ruled(lab(jobs, nodes, standings), policy)).change
    again = run_pass(ruled(lab(shuffled, nodes, standings), policy)).change
    assert [(each.job, each.placement) for each in first.attempts] == [(each.job, each.placement) for each in again.attempts]
    for budget, limit in limits.items():
        held = sum(each.gpus for each in first.attempts if each.budget is not None and budget in ("org", each.budget))
        assert held <= limit
    for name in ("n001", "n002"):
        placed = [(each, part) for each in first.attempts for part in each.placement if part.node == name]
        assert sum(part.replicas * each.gpus_per_replica for each, part in placed) <= 8


@given(waiting=WAITING, data=st.data())
def test_the_debug_lane_never_changes_the_order_between_leaves(waiting: list[dict[str, Any]], data: st.DataObject) -> None:
    """While all jobs of a leaf are alike but for their slices, which leaf is served when is the same with the lane as without."""
    standings = {leaf: data.draw(st.sampled_from((0, 50, 99))) for leaf in "abc"}
    # One hold for all, so that who goes first inside a leaf does not move the leaf.
    jobs = [job(number, **(fields | {"gpus_per_replica": 1, "slice_ms": SHORT})) for number, fields in enumerate(waiting, 1)]
    plain = run_pass(ruled(lab(jobs, [node(1)], standings), Policy())).change
    laned = run_pass(ruled(lab(jobs, [node(1)], standings), Policy(debug_lane=LANE))).change
    assert [each.budget for each in laned.attempts] == [each.budget for each in plain.attempts]


def test_a_member_of_a_limited_budget_is_judged_as_any_other() -> None:
    """BR-003: a limit belongs to a budget; which member asks makes no difference."""
    budgets = tree("a", "b", members=("u1", "u2", "u3"))
    found = set()
    for user in ("u1", "u2", "u3"):
        books = ruled(lab([job(1, user=user), job(2, user=user)], [node(1)], budgets=budgets), Policy(gpus_at_once={"a": 1}))
        found.add(tuple(each.job for each in run_pass(books).change.attempts))
    assert found == {(an_id(1),)}


def test_a_limit_cut_below_what_is_held_counts_all_that_runs() -> None:
    """BR-033: in whatever order the ten are loaded all count, nobody is stopped, and nobody more starts until enough ended."""
    ten = [running(number, 4) for number in range(10, 20)]
    nodes = [node(number) for number in range(1, 4)] + [node(99, installed=40, healthy=40)]
    runs = [each for _job, each in ten]
    books = ruled(lab([job(1), *(each for each, _run in reversed(ten))], nodes, attempts=runs), Policy(gpus_at_once={"a": 20}))
    change = run_pass(books).change
    assert (change.attempts, change.claims) == ((), ())
    assert len(books.attempts) == 10
    for gone in runs[:5]:
        books.apply(life.ended(books, gone.attempt, life.End("finished", NOW), NOW, TERMS))
    assert run_pass(books).change.attempts == ()
    books.apply(life.ended(books, runs[5].attempt, life.End("finished", NOW), NOW, TERMS))
    assert granted_jobs(run_pass(books).change) == [an_id(1)]
