"""Rounds of looks for claims: whoever was looked at in vain is looked at in the next round, whoever comes meanwhile at once.

Decision 0015. What a claim is and who may raise one: test_claims.py.
"""

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.values import Counted, Job, Terms
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.admission.builders import CLUSTER, NOW, TERMS, an_id, attempt, job, lab, node, run_pass

# No node is silent here.
RESTING = replace(TERMS, claims_rest_ms=MINUTE_MS, silent_after_ms=HOUR_MS)


def whole(number: int, budget: str, **fields: object) -> Job:
    return job(number, budget=budget, gpus_per_replica=8, **fields)


def full() -> Books:
    """One node, held past its slice by a leaf that stands too near to the claimant's for an eviction."""
    holder = whole(9, "b", state="running")
    running = attempt(9, holder, {"n001": 1})
    return lab([replace(holder, attempt=running.attempt), whole(1, "a")], [node(1)], {"a": 50, "b": 55}, attempts=[running])


def far_ahead(books: Books) -> None:
    """From now on the holder's leaf stands so high that the claimant may displace it."""
    known: Counted = books.counted[CLUSTER]["b"]
    books.put_counted(replace(known, used_gpu_ms=3 * known.entitlement_gpu_ms, usage_revision=known.usage_revision + 1))


def claims(books: Books, at_ms: int, terms: Terms = RESTING) -> list[str]:
    return [each.job for each in run_pass(books, at_ms, terms).change.claims]


def test_between_two_rounds_nobody_is_looked_at_again() -> None:
    books = full()
    assert claims(books, NOW) == []
    far_ahead(books)
    assert claims(books, NOW + MINUTE_MS - 1) == []
    assert claims(books, NOW + MINUTE_MS) == [an_id(1)]


def test_without_a_rest_every_pass_looks() -> None:
    books = full()
    assert claims(books, NOW, TERMS) == []
    far_ahead(books)
    assert claims(books, NOW + 1, TERMS) == [an_id(1)]


def test_who_comes_between_two_rounds_is_looked_at_at_once() -> None:
    books = full()
    assert claims(books, NOW) == []
    far_ahead(books)
    books.load([whole(2, "a", slice_ms=30 * SECOND_MS)], (), (), (), (), ())
    assert claims(books, NOW + 1) == [an_id(2)]


def test_who_comes_back_between_two_rounds_is_looked_at_at_once() -> None:
    books = full()
    assert claims(books, NOW) == []
    far_ahead(books)
    books.load([replace(books.jobs[an_id(1)], evictions=1)], (), (), (), (), ())
    assert claims(books, NOW + 1) == [an_id(1)]
