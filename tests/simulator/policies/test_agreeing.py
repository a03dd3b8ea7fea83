"""Admission asks for room, the preemptor makes it: on one snapshot both read the same law, so neither asks nor evicts in vain."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from allmende.admission.model.books import Books
from allmende.admission.model.values import Attempt, Job, Saves, Terms
from allmende.preemptor import model as preemptor
from allmende.preemptor.rules.judge import judge
from allmende.proto.units import HOUR_MS, MINUTE_MS
from allmende.simulator.policies.handover import snapshot_of
from tests.admission.builders import CLUSTER, NOW, OWED, TERMS, attempt, granted_jobs, job, lab, node, run_pass, tree

LEAVES = ("p1", "p2", "q1")
BUDGETS = tree(programs={"p": ["p1", "p2"], "q": ["q1"]})
# Around the edges: of the guaranteed tier, and of the margin of a tenth.
PERCENTS = st.sampled_from((0, 50, 80, 89, 90, 91, 99, 100, 101, 110, 111, 130))
SLICES = st.sampled_from((30 * MINUTE_MS, HOUR_MS, OWED // 100, OWED // 80))
# By law, or because too much work is not saved: nothing that admission asks for may be refused so.
REFUSED_BY_LAW = {"ratio_within_margin", "claimant_over_budget", "priority_not_higher", "standing_unknown", "unsaved_work"}


class Scene(NamedTuple):
    """One cluster, one job that waits."""

    books: Books
    claimant: Job
    terms: Terms


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Up to four nodes, mostly full: slices around their ends, saves around what may be lost, standings around each other."""
    number = draw(st.integers(1, 4))
    free = {f"n{each:03d}": 8 for each in range(1, number + 1)}
    holders: list[Job] = []
    running: list[Attempt] = []
    saves: dict[str, Saves] = {}
    idle: set[str] = set()
    for each in range(draw(st.integers(1, 8))):
        names = draw(st.lists(st.sampled_from(sorted(free)), min_size=1, max_size=2, unique=True))
        gpus = min(draw(st.sampled_from((2, 4, 8))), *(free[name] for name in names))
        if not gpus:
            continue
        for name in names:
            free[name] -= gpus
        budget = draw(st.sampled_from((None, *LEAVES)))
        slice_ms = 0 if budget is None else draw(st.sampled_from((30 * MINUTE_MS, HOUR_MS)))
        started_ms = NOW - slice_ms - draw(st.sampled_from((-1, 0, 1, 10 * MINUTE_MS)))
        holder = job(
            100 + each, budget=budget, slice_ms=slice_ms, gpus_per_replica=gpus, priority=draw(st.integers(0, 2)), state="running"
        )
        holder = replace(holder, replicas=len(names))
        times = {"granted_at_ms": started_ms, "started_at_ms": started_ms, "protected_until_ms": started_ms + slice_ms}
        running.append(attempt(each + 1, holder, dict.fromkeys(names, 1), **times))
        holders.append(replace(holder, attempt=running[-1].attempt))
        saved_ago_ms = draw(st.sampled_from((None, 0, MINUTE_MS, 108_000, 108_001, 20 * MINUTE_MS)))
        if saved_ago_ms is not None and NOW - saved_ago_ms >= started_ms:
            saves[running[-1].attempt] = Saves(NOW - saved_ago_ms, None)
        if draw(st.integers(0, 5)) == 0:
            idle.add(running[-1].attempt)
    claimant = job(
        1,
        budget=draw(st.sampled_from(LEAVES)),
        slice_ms=draw(SLICES),
        replicas=draw(st.integers(1, 3)),
        gpus_per_replica=draw(st.sampled_from((1, 4, 8))),
        priority=draw(st.integers(0, 2)),
    )
    standings = {name: draw(PERCENTS) for name in ("p", "q", *LEAVES)}
    books = lab([*holders, claimant], [node(each) for each in range(1, number + 1)], standings, BUDGETS, running)
    books.saves.update(saves)
    books.idle.update(idle)
    terms = replace(TERMS, waste_ppm=draw(st.sampled_from((0, 30_000))), margin_ppm=draw(st.sampled_from((0, 1, 100_000))))
    return Scene(books, claimant, terms)


def seen_by_preemptor(books: Books) -> preemptor.Snapshot:
    """The same cluster as messages tell it to the preemptor: handed over as the policy does it."""
    saves = books.saves
    return snapshot_of(books, CLUSTER, NOW, 1, lambda each: saves[each.attempt].at_ms if each.attempt in saves else None)


def asked_of_preemptor(of: Job) -> preemptor.Claim:
    assert of.budget is not None
    return preemptor.Claim(
        cluster=CLUSTER,
        claim="claim",
        job=of.job,
        budget=of.budget,
        replicas=of.replicas,
        gpus_per_replica=of.gpus_per_replica,
        gpu_model=None,
        slice_ms=of.next_slice_ms,
        hold_gpu_ms=of.next_slice_ms * of.gpus,
        priority=of.priority,
        newest_grant_seq=0,
        fence=1,
        tree_revision=1,
        usage_revision=1,
    )


@given(scenes())
@settings(max_examples=200, deadline=None)
def test_admission_asks_for_what_the_preemptor_would_do_and_for_nothing_that_the_law_forbids(scene: Scene) -> None:
    books, claimant, terms = scene
    policy = preemptor.Policy(margin_ppm=terms.margin_ppm, waste_ppm=terms.waste_ppm)
    decision = judge(seen_by_preemptor(books), asked_of_preemptor(claimant), policy)
    passed = run_pass(books, terms=terms)
    if granted_jobs(passed.change):
        assert isinstance(decision, preemptor.Planned)
        assert decision.code == "fits_now"
        assert passed.change.claims == ()
    elif passed.change.claims:
        (raised,) = passed.change.claims
        assert (raised.job, raised.hold_gpu_ms) == (claimant.job, claimant.next_slice_ms * claimant.gpus)
        # What all victims together cost is for the preemptor alone to say.
        assert isinstance(decision, preemptor.Planned) or decision.code == "costs_too_much", decision
    else:
        assert isinstance(decision, preemptor.Infeasible), "room could be made, and nobody asked for it"
        assert decision.code in REFUSED_BY_LAW | {"slices_running", "nothing_interruptible", "does_not_fit"}
