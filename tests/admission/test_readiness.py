"""What may be decided while not everything is known, and after somebody else has decided; br_NNN: out of bug_scenarios.jsonl."""

from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.facts import Change
from allmende.admission.rules import life, trees
from allmende.admission.rules.explaining import blockers
from allmende.admission.rules.passing import may_pass, not_ready
from allmende.proto.units import HOUR_MS
from tests.admission.builders import (
    CLUSTER,
    NOW,
    TERMS,
    an_id,
    attempt,
    counted,
    granted_jobs,
    job,
    lab,
    node,
    order,
    run_pass,
    tree,
)


def test_br_042_a_new_writer_claims_only_from_the_living() -> None:
    gone = job(1, budget="b", gpus_per_replica=8, state="running")
    held = attempt(1, gone, {"n001": 1})
    gone = replace(gone, attempt=held.attempt)
    books = lab([gone], [node(1)], {"b": 150}, attempts=[held])
    books.apply(life.ended(books, held.attempt, life.End("finished", NOW), NOW, TERMS))
    # What arrives late about the dead is no news; its GPUs are free, and nobody needs to claim them.
    assert life.ordered(books, held.attempt, order(an_id(8))).attempts == ()
    books.apply(Change(jobs=(job(2, budget="a", gpus_per_replica=8),)))
    change = run_pass(books).change
    assert (granted_jobs(change), change.claims) == ([an_id(2)], ())


def test_br_045_before_everything_is_known_nothing_is_decided_and_nobody_is_over_budget() -> None:
    books = Books()
    assert len(not_ready(books)) == 2
    assert not may_pass(books, CLUSTER, NOW)
    early = job(1, accepted=False, replicas=500, gpus_per_replica=8)
    books.apply(Change(jobs=(early,)))
    codes = [reason.code for reason in blockers(books.jobs[early.job], books, {}, NOW, TERMS)]
    assert codes == ["tree_unknown", "capacity_unknown"]
    books.put_tree(trees.made(1, tree("a")))
    books.apply(Change(nodes=(node(1),)))
    assert not may_pass(books, CLUSTER, NOW)
    # The leaf's own standing is missing: unknown use means wait, not zero.
    books.put_counted(counted("org", 100))
    books.apply(Change(jobs=(job(2),)))
    assert may_pass(books, CLUSTER, NOW)
    assert run_pass(books).change.attempts == ()
    books.put_counted(counted("a", 100))
    assert granted_jobs(run_pass(books).change) == [an_id(2)]


def test_br_045_a_silent_cluster_stops_nobody_elsewhere() -> None:
    books = lab([job(1)], [node(1), node(2, cluster="c2", last_seen_ms=0)])
    assert not_ready(books) == ("the ledger has not said how the budgets stand on cluster c2",)
    assert granted_jobs(run_pass(books).change) == [an_id(1)]


def test_br_031_a_share_cut_below_its_use_kills_nothing_until_somebody_is_owed() -> None:
    holders = [job(n, budget="a", gpus_per_replica=4, state="running") for n in range(1, 11)]
    running = [attempt(n, holder, {f"n{n:03d}": 1}) for n, holder in enumerate(holders, start=1)]
    nodes = [node(n, installed=4, healthy=4) for n in range(1, 11)]
    books = lab([*holders, job(50, budget="a", gpus_per_replica=4)], nodes, {"a": 200}, attempts=running)
    change = run_pass(books).change
    assert (change.attempts, change.claims) == ((), ())
    books.apply(Change(jobs=(job(60, budget="b", gpus_per_replica=4),)))
    assert [each.job for each in run_pass(books).change.claims] == [an_id(60)]


def test_a_tree_is_in_force_only_when_all_of_it_has_come_in_any_order() -> None:
    budgets = tree("a", "b")
    known = [trees.KnownBudget(budget=name, revision=1, definition=each) for name, each in budgets.items()]
    whole = trees.KnownRevision(revision=1, budgets=len(budgets), digest=trees.tree.digest(budgets.values()))
    books = Books()
    trees.heard_revision(books, whole)
    for each in reversed(known):
        assert trees.switch(books) is None
        trees.heard_budget(books, each)
    switched = trees.switch(books)
    assert switched is not None
    books.put_tree(switched)
    # An older definition that comes late does not undo a newer one, and the same revision is not switched to twice.
    trees.heard_budget(books, trees.KnownBudget(budget="a", revision=0, definition=None))
    assert books.known["a"].revision == 1
    assert trees.switch(books) is None


def test_a_budget_that_is_taken_away_keeps_its_jobs_waiting_and_gives_them_back_their_place() -> None:
    books = lab([job(1)], [node(1)])
    books.put_tree(trees.made(2, tree("b")))
    assert run_pass(books).change.attempts == ()
    reasons = blockers(books.jobs[an_id(1)], books, {}, NOW, TERMS)
    assert [reason.code for reason in reasons] == ["budget_not_valid"]
    books.put_tree(trees.made(3, tree("a", "b")))
    assert granted_jobs(run_pass(books).change) == [an_id(1)]


def test_blockers_say_the_numbers_that_were_compared() -> None:
    holder = job(90, budget="b", gpus_per_replica=8, state="running")
    held = attempt(1, holder, {"n001": 1}, protected_until_ms=NOW + HOUR_MS)
    queue = [holder, job(1, replicas=2, gpus_per_replica=8), job(2, budget="c")]
    books = lab(queue, [node(1), node(2, healthy=5)], {"a": 120}, attempts=[held])
    outlook = run_pass(books).outlook
    reasons = blockers(books.jobs[an_id(1)], books, {CLUSTER: outlook}, NOW, TERMS)
    assert [reason.code for reason in reasons] == ["no_room", "over_budget", "outranked"]
    assert "needs 2 x 8 GPUs" in reasons[0].sentence
    assert "120.0 %" in reasons[1].sentence
    assert "1 budget with waiting jobs stands before a (120.0 %) on c1: c" in reasons[2].sentence
