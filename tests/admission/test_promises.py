"""Reservations under a cluster's policy: which it allows, what its limits do to them, and what is said of a promise. Pure."""

from typing import Any

import pytest
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change, Claimed
from allmende.admission.model.values import Cordon, KnownPolicy
from allmende.admission.rules import explaining, policies
from allmende.admission.rules.changing import Wanted, altered
from allmende.admission.wire import said
from allmende.proto.admission import ClaimRaised
from allmende.proto.policy import Policy
from allmende.proto.units import MINUTE_MS, PPM_WHOLE
from tests.admission.builders import CLUSTER, NOW, OWED, TERMS, an_id, granted_jobs, job, run_pass
from tests.admission.gathering import FULL, GATHER, Row, gang, held, with_lab
from tests.admission.test_gathered import alive, leaves, word
from tests.admission.test_policies import ruled

# What the services have: no setting allows any, so that a cluster's policy must.
OFF = TERMS
ORDER = 20 * MINUTE_MS


# the policy -> is anything gathered for a job of 2 x 8 on 4 x 8 GPUs?
ALLOWED: dict[str, tuple[Policy, bool]] = {
    "unset: the service's own, which is none": (Policy(), False),
    "one": (Policy(reservations=1), True),
    "zero": (Policy(reservations=0), False),
    "as large as is asked for": (Policy(reservations=1, reserve_from_gpus=16), True),
    "a GPU smaller": (Policy(reservations=1, reserve_from_gpus=17), False),
    "mode admit can promise nothing, because nobody is told to leave": (Policy(reservations=1, mode="admit"), False),
    "nor can mode observe": (Policy(reservations=1, mode="observe"), False),
    "nor a paused cluster": (Policy(reservations=1, paused=True), False),
    "a budget that may not hold so much is promised nothing": (Policy(reservations=1, gpus_at_once={"a": 15}), False),
    "one that may is": (Policy(reservations=1, gpus_at_once={"a": 16}), True),
    "a slice above the cap": (Policy(reservations=1, slice_cap_ms=MINUTE_MS), False),
}


@pytest.mark.parametrize("sentence", ALLOWED)
def test_what_a_policy_allows(sentence: str) -> None:
    policy, expected = ALLOWED[sentence]
    books = ruled(with_lab(Row([gang(1)], {})), policy)
    books.apply(run_pass(books, terms=OFF).change)
    assert (books.jobs[an_id(1)].reserved is not None) == expected


def test_zero_and_unset_differ_where_the_service_allows_some() -> None:
    for policy, expected in ((Policy(), True), (Policy(reservations=0), False)):
        books = ruled(with_lab(Row([gang(1)], {})), policy)
        books.apply(run_pass(books, terms=GATHER).change)
        assert (books.jobs[an_id(1)].reserved is not None) == expected


def promised(*others: Any, **fields: Any) -> Books:
    """Job 1 of `a` has n001 and n002 gathered under a policy that allows it."""
    books = ruled(with_lab(Row([gang(1)], {})), Policy(reservations=4, **fields))
    books.apply(run_pass(books, terms=OFF).change)
    assert word(books).order_ms == NOW + ORDER
    books.load(others, (), (), (), (), ())
    return books


def test_a_limit_counts_what_was_promised_so_that_nobody_of_the_budget_takes_it_away() -> None:
    # 16 of 17 are promised: one of the two that would be gone in time may start, and the gang all the same.
    small = [job(number, budget="a", slice_ms=MINUTE_MS) for number in (2, 3)]
    books = promised(*small, gpus_at_once={"a": 17})
    leaves(books, 3)
    change = run_pass(books, terms=OFF).change
    assert granted_jobs(change) == [an_id(2)]
    books.apply(change)
    leaves(books, 1)
    leaves(books, 2)
    change = run_pass(books, terms=OFF).change
    assert granted_jobs(change) == [an_id(1)]


def test_what_leaves_share_is_promised_once_so_that_no_promise_stands_in_the_way_of_another() -> None:
    # `b` holds 32 of the 48 GPUs: there is room for one gang of the two.
    books = ruled(with_lab(Row([gang(1), gang(2, budget="c")], {})), Policy(reservations=4, gpus_at_once={"org": 48}))
    all_nodes = replace(OFF, reserved_ppm=PPM_WHOLE)
    books.apply(run_pass(books, terms=all_nodes).change)
    assert list(books.reserved[CLUSTER]) == [an_id(1)]
    leaves(books, 1)
    leaves(books, 2)
    assert granted_jobs(run_pass(books, terms=all_nodes).change)[0] == an_id(1)


def test_a_limit_that_a_promise_uses_up_does_not_keep_its_job_from_earlier_room_elsewhere() -> None:
    books = promised(gpus_at_once={"a": 16})
    leaves(books, 3)
    leaves(books, 4)
    change = run_pass(books, terms=OFF).change
    assert [[part.node for part in each.placement] for each in change.attempts] == [["n003", "n004"]]


def change_to(books: Books, policy: Policy) -> None:
    known = KnownPolicy(cluster=CLUSTER, revision=2, from_ms=NOW, author="olga", reason="a test", policy=policy)
    change = policies.decreed(books, known)
    books.apply(change)
    books.put_policy(known)
    passed = run_pass(books, terms=OFF).change
    books.apply(passed)
    assert books.jobs[an_id(1)].reserved is None
    (decided,) = [each for each in (*change.decisions, *passed.decisions) if each.job == an_id(1)]
    assert decided.sentence.startswith("the promise to start is void: ")


# A limit under which the job may not start: nodes would stand by for nobody.
BARRED: list[dict[str, Any]] = [{"gpus_at_once": {"a": 15}}, {"slice_cap_ms": MINUTE_MS}]


@pytest.mark.parametrize("fields", [{"mode": "admit"}, {"mode": "observe"}, {"paused": True}, {"reservations": 0}, *BARRED])
def test_a_policy_under_which_a_promise_cannot_be_kept_makes_it_void_and_says_so(fields: dict[str, Any]) -> None:
    change_to(promised(), Policy(**({"reservations": 4} | fields)))


@pytest.mark.parametrize("wanted", [Wanted(held=True), Wanted(priority=3), Wanted(slice_ms=MINUTE_MS)])
def test_a_job_that_is_changed_loses_its_promise_aloud(wanted: Wanted) -> None:
    books = promised()
    change = altered(books, books.jobs[an_id(1)], wanted, "u1", NOW, OFF)
    assert isinstance(change, Change)
    assert change.jobs[0].reserved is None
    sentences = [each.sentence for each in change.decisions if each.kind == "queued"]
    assert sentences == ["the promise to start is void: nodes were gathered for the job as it was"]


def test_a_promise_that_is_due_is_asked_for_under_every_over_budget_policy() -> None:
    # The gang's own hold carries its leaf past 1.
    for over_budget in ("queue", "unallocated", "refuse"):
        books = ruled(with_lab(Row([gang(1, slice_ms=OWED // 32)], {}, {"a": 90})), Policy(reservations=1, over_budget=over_budget))
        books.apply(run_pass(books, terms=OFF).change)
        at_ms = word(books).order_ms
        alive(books, at_ms)
        (claim,) = run_pass(books, at_ms, OFF).change.claims
        assert [part.node for part in claim.reserved] == ["n001", "n002"], over_budget


def test_the_claim_says_which_nodes_it_is_for() -> None:
    books = promised()
    alive(books, NOW + ORDER)
    change = run_pass(books, NOW + ORDER, OFF).change
    (fact,) = [fact for fact in change.facts if isinstance(fact, Claimed)]
    told = said.message(fact, 1, NOW + ORDER, 0)
    assert isinstance(told, ClaimRaised)
    assert told.reserved_nodes == ("n001", "n002")


def test_many_open_claims_do_not_stop_one_that_was_promised() -> None:
    books = promised()
    alive(books, NOW + ORDER)
    assert len(run_pass(books, NOW + ORDER, replace(OFF, claims_max=0)).change.claims) == 1


def test_why_says_what_is_promised_and_when_whoever_is_left_must_go() -> None:
    books = promised()
    outlooks: dict[str, Any] = {}
    for now_ms, expected in (
        (NOW, "2 nodes of c1 are gathered for it, and it starts no later than in 20m: in 20m whoever is past his slice there is"),
        (NOW + ORDER, "2 nodes of c1 are gathered for it, and it starts no later than in 0s: whoever was left there has been"),
        (NOW + ORDER + MINUTE_MS, "2 nodes of c1 are gathered for it, and it starts 1m late: whoever was left there has been"),
    ):
        (reason,) = explaining.blockers(books.jobs[an_id(1)], books, outlooks, now_ms, OFF)
        assert (reason.code, reason.sentence) == ("reserved", f"{expected} told to leave")


@pytest.mark.parametrize(
    ("at_ms", "late_ms", "sentence"),
    [(NOW, 0, "20m before the promised instant"), (NOW + ORDER + MINUTE_MS, MINUTE_MS, "1m later than was promised")],
)
def test_the_grant_says_whether_the_promise_was_kept(at_ms: int, late_ms: int, sentence: str) -> None:
    books = promised()
    leaves(books, 1, at_ms)
    leaves(books, 2, at_ms)
    alive(books, at_ms)
    (decided,) = [each for each in run_pass(books, at_ms, OFF).change.decisions if each.kind == "granted"]
    assert (decided.numbers["promised_by_ms"], decided.numbers["late_ms"]) == (NOW + ORDER, late_ms)
    assert sentence in decided.sentence


def test_who_was_never_promised_anything_is_not_said_to_be_late() -> None:
    books = with_lab(Row([job(1)], {}, holders=(held(1, "n001", -1), *FULL[1:3])))
    (decided,) = run_pass(books, terms=OFF).change.decisions
    assert "promised_by_ms" not in decided.numbers


def test_a_node_that_is_cordoned_is_replaced_and_that_is_said() -> None:
    books = promised()
    before = word(books)
    books.apply(Change(cordons=(Cordon(cluster=CLUSTER, node="n001", revision=1, from_ms=NOW),)))
    change = run_pass(books, terms=OFF).change
    books.apply(change)
    assert [part.node for part in word(books).placement] == ["n002", "n003"]
    assert word(books).by_ms > before.by_ms
    assert change.decisions[0].sentence.startswith("a node that was gathered failed or was taken out of use; ")
