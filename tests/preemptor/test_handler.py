"""What the preemptor learns, waits for, answers and says, batch by batch, over a real database."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from allmende.chassis.errors import action_for
from allmende.preemptor import wire
from allmende.preemptor.errors import InvariantBroken
from allmende.preemptor.handlers import batch
from allmende.proto.budget import Budget, ClusterShare
from allmende.proto.message import Message
from allmende.proto.preemptor import ClaimAnswered, EvictionOrdered, SliceExpired
from allmende.proto.units import DAY_MS, HOUR_MS, MINUTE_MS
from tests.preemptor.builders import ENTITLED, id_of
from tests.preemptor.messages import (
    START_MS,
    TREE,
    Ear,
    ended,
    freed,
    granted,
    node,
    protected,
    raised,
    standings,
    tick,
    tree,
    withdrawn,
)

# One attempt of nlp fills n1, another n2; both are past their slices.
FULL: list[Message] = [
    *tree(),
    *standings(),
    node("n1"),
    node("n2"),
    granted(1, {"n1": 8}),
    granted(2, {"n2": 8}),
    protected(1),
    protected(2),
]


def answers(said: list[Any]) -> list[ClaimAnswered]:
    return [it for it in said if isinstance(it, ClaimAnswered)]


def evicted(said: list[Any]) -> list[str]:
    return [it.attempt for it in said if isinstance(it, EvictionOrdered)]


async def test_a_claim_becomes_a_plan_with_one_order_for_each_victim(ear: Ear) -> None:
    await ear.hear(*FULL)
    said = await ear.hear(raised(newest=2))
    [answer] = answers(said)
    [order] = [it for it in said if isinstance(it, EvictionOrdered)]
    assert (answer.outcome, answer.code, answer.claim, answer.job) == ("planned", "makes_room", id_of(5_001), id_of(6_001))
    assert (order.attempt, order.plan, order.claim, order.claimant_job) == (id_of(1), answer.plan, answer.claim, answer.job)
    assert (order.ordered_at_ms, order.protected_until_ms, order.grace_ms) == (START_MS, START_MS, 2 * MINUTE_MS)
    assert order.rule == "over_served_leaf"
    assert order.compared is not None
    assert order.compared.claimant_used_gpu_ms == ENTITLED * 62 // 100
    assert [victim.attempt for victim in answer.victims] == [order.attempt]
    assert [(it.node, it.replicas) for it in answer.placement] == [("n1", 1)]


async def test_the_same_claim_again_is_not_answered_again(ear: Ear) -> None:
    await ear.hear(*FULL)
    assert len(await ear.hear(raised(newest=2), raised(newest=2))) == 2
    assert await ear.hear(raised(newest=2)) == []


async def test_for_a_reservation_that_is_due_whoever_is_past_his_slice_leaves_its_nodes_and_no_others(ear: Ear) -> None:
    # Nobody is over-served: by the ratios nobody may be displaced.
    await ear.hear(*FULL, *standings(revision=2, nlp=10, vision=99))
    assert [it.outcome for it in answers(await ear.hear(raised(1, newest=2)))] == ["infeasible"]
    claim = raised(2, newest=2, reserved=("n2",))
    said = await ear.hear(claim, claim)
    [order] = [it for it in said if isinstance(it, EvictionOrdered)]
    assert (order.attempt, order.rule, order.compared) == (id_of(2), "reserved", None)
    assert [it.node for it in answers(said)[0].placement] == ["n2"]
    assert await ear.hear(claim) == []


async def test_nobody_leaves_a_reserved_node_inside_his_slice(ear: Ear) -> None:
    await ear.hear(*FULL, granted(3, {"n3": 8}, seq=3), node("n3"), protected(3, START_MS + HOUR_MS))
    assert evicted(await ear.hear(raised(1, newest=3, reserved=("n3",)))) == []


@pytest.mark.parametrize("missing", ["grant", "tree", "standings", "newer standings", "newer tree", "nodes"])
async def test_a_claim_waits_for_what_admission_knew(ear: Ear, missing: str) -> None:
    kinds = {"grant": "job.granted", "tree": "budget", "standings": "usage.standing", "nodes": "node.reported"}
    late = [it for it in FULL if missing in kinds and it.TYPE.startswith(kinds[missing])]
    await ear.hear(*(it for it in FULL if it not in late))
    wish = raised(
        newest=2, usage_revision=2 if missing == "newer standings" else 1, tree_revision=2 if missing == "newer tree" else 1
    )
    assert answers(await ear.hear(wish)) == []
    assert answers(await ear.hear(tick("n1", {}))) == []
    rest = standings(revision=2) if missing == "newer standings" else tree(revision=2) if missing == "newer tree" else late
    assert [it.outcome for it in answers(await ear.hear(*rest))] == ["planned"]


async def test_a_gap_in_the_grants_is_waited_for(ear: Ear) -> None:
    await ear.hear(*FULL)
    assert answers(await ear.hear(granted(4, {"n1": 0 + 1}, seq=4), raised(newest=4))) == []
    assert len(answers(await ear.hear(granted(3, {"n2": 1}, seq=3)))) == 1


async def test_a_tree_of_which_a_message_is_missing_is_not_in_force(ear: Ear) -> None:
    await ear.hear(*FULL)
    third = (*TREE, Budget(budget="tax", parent="org", share_ppm=0))
    changed = tree(third, revision=2)
    assert answers(await ear.hear(changed[-1], raised(newest=2, tree_revision=2))) == []
    # Only what differs from the revision before is said.
    [answer] = answers(await ear.hear(changed[3]))
    assert answer.tree_revision == 2


async def test_a_tree_with_shares_of_single_clusters_comes_into_force(ear: Ear) -> None:
    await ear.hear(*FULL)
    own = tuple(ClusterShare(cluster=cluster, share_ppm=share) for cluster, share in (("c1", 100_000), ("c2", 500_000)))
    changed = [each if each.budget != "nlp" else replace(each, cluster_shares=own) for each in TREE]
    [answer] = answers(await ear.hear(*tree(changed, revision=2), raised(newest=2, tree_revision=2)))
    assert answer.tree_revision == 2


async def test_a_claim_of_an_older_term_is_dropped(ear: Ear) -> None:
    """BR-042: commands of a term that is over are refused."""
    await ear.hear(*FULL)
    assert await ear.hear(granted(3, {"n1": 1}, fence=2), raised(newest=2, fence=1)) == []
    assert await ear.hear(tick("n1", {})) == []


async def test_a_withdrawn_claim_is_not_answered_whichever_comes_first(ear: Ear) -> None:
    await ear.hear(*FULL)
    assert await ear.hear(raised(newest=2), withdrawn()) == []
    assert await ear.hear(withdrawn(2)) == []
    assert await ear.hear(raised(2, newest=2)) == []


async def test_after_a_withdrawal_the_evictions_go_on_and_the_room_is_everybodys(ear: Ear) -> None:
    await ear.hear(*FULL)
    assert evicted(await ear.hear(raised(newest=2))) == [id_of(1)]
    [second] = answers(await ear.hear(withdrawn(), raised(2, newest=2)))
    assert (second.code, second.victims) == ("room_is_coming", ())
    # Now promised to the second: a third must evict.
    assert evicted(await ear.hear(raised(3, newest=2))) == [id_of(2)]


async def test_room_promised_to_one_claim_is_not_given_to_another(ear: Ear) -> None:
    await ear.hear(*FULL)
    said = await ear.hear(raised(1, newest=2), raised(2, newest=2), raised(3, newest=2))
    assert evicted(said) == [id_of(1), id_of(2)]
    assert [it.outcome for it in answers(said)] == ["planned", "planned", "infeasible"]
    await ear.hear(ended(1), ended(2))
    assert [it.code for it in answers(await ear.hear(raised(4, newest=2)))] == ["does_not_fit"]


async def test_a_granted_claimant_holds_its_gpus_once(ear: Ear) -> None:
    await ear.hear(*FULL, node("n3", 4))
    await ear.hear(raised(newest=2))
    await ear.hear(ended(1), granted(3, {"n1": 8}, budget="vision", claim=id_of(5_001)))
    [answer] = answers(await ear.hear(raised(2, gpus=4, newest=3)))
    assert (answer.code, [it.node for it in answer.placement]) == ("fits_now", ["n3"])


async def test_the_hold_of_a_planned_claimant_counts_for_the_next(ear: Ear) -> None:
    await ear.hear(*FULL)
    hold = ENTITLED * 50 // 100
    said = await ear.hear(raised(1, newest=2, hold=hold), raised(2, newest=2, hold=hold))
    assert [it.code for it in answers(said)] == ["makes_room", "ratio_within_margin"]
    assert [it.code for it in answers(await ear.hear(raised(3, newest=2, hold=hold)))] == ["ratio_within_margin"]
    await ear.hear(withdrawn(1))
    assert [it.outcome for it in answers(await ear.hear(raised(4, newest=2, hold=hold)))] == ["planned"]


async def test_holds_of_grants_that_the_ledger_has_not_counted_are_added(ear: Ear) -> None:
    await ear.hear(*FULL, granted(3, {"n3": 8}, budget="vision", hold=ENTITLED * 60 // 100))
    assert [it.code for it in answers(await ear.hear(raised(1, newest=3)))] == ["ratio_within_margin"]
    await ear.hear(*standings(revision=2, counted=3))
    assert [it.code for it in answers(await ear.hear(raised(2, newest=3)))] == ["makes_room"]


async def test_an_older_standing_that_comes_late_changes_nothing(ear: Ear) -> None:
    await ear.hear(*FULL, *standings(revision=3))
    await ear.hear(*standings(revision=2, vision=200))
    assert [it.outcome for it in answers(await ear.hear(raised(newest=2)))] == ["planned"]


async def test_what_ended_before_its_grant_was_heard_holds_nothing(ear: Ear) -> None:
    """BR-042: victims are live attempts only."""
    await ear.hear(*FULL)
    await ear.hear(ended(3))
    await ear.hear(node("n3"), granted(3, {"n3": 8}), protected(3, START_MS + HOUR_MS))
    assert [it.code for it in answers(await ear.hear(raised(newest=3)))] == ["fits_now"]
    assert ear.wake_at_ms is None


async def test_freed_gpus_are_free_and_saying_it_again_frees_no_more(ear: Ear) -> None:
    await ear.hear(*FULL)
    await ear.hear(freed(1, {"n1": 4}))
    await ear.hear(freed(1, {"n1": 4}))
    assert [it.code for it in answers(await ear.hear(raised(1, gpus=4, newest=2)))] == ["fits_now"]
    assert [it.code for it in answers(await ear.hear(raised(2, gpus=4, newest=2)))] == ["makes_room"]


async def test_an_older_word_about_freed_gpus_takes_none_back(ear: Ear) -> None:
    await ear.hear(*FULL)
    await ear.hear(freed(1, {"n1": 8}))
    await ear.hear(freed(1, {"n1": 4}))
    assert [it.code for it in answers(await ear.hear(raised(newest=2)))] == ["fits_now"]


async def test_another_clusters_agent_ends_nothing_here(ear: Ear) -> None:
    await ear.hear(*FULL)
    await ear.hear(ended(1, cluster="c2"), freed(2, {"n2": 8}, cluster="c2"))
    assert [it.code for it in answers(await ear.hear(raised(newest=2)))] == ["makes_room"]


async def test_the_last_checkpoint_decides_between_equal_victims(ear: Ear) -> None:
    await ear.hear(*FULL)
    await ear.hear(tick("n2", {2: START_MS - MINUTE_MS, 77: START_MS}))
    await ear.hear(tick("n2", {2: START_MS - HOUR_MS, 1: None}))
    said = await ear.hear(raised(newest=2))
    assert evicted(said) == [id_of(2)]
    # Seven replicas lost an hour, one a minute.
    assert answers(said)[0].victims[0].lost_gpu_ms == 7 * HOUR_MS + MINUTE_MS


async def test_a_node_silent_for_half_a_minute_of_real_time_takes_nobody(ear: Ear) -> None:
    await ear.hear(*FULL)
    await ear.hear(node("n3"), sent_ago_ms=31_000)
    assert [it.code for it in answers(await ear.hear(raised(1, newest=2)))] == ["makes_room"]
    await ear.hear(tick("n3", {}))
    assert [it.code for it in answers(await ear.hear(raised(2, newest=2)))] == ["fits_now"]


async def test_a_node_that_lost_its_gpus_takes_nobody_and_an_older_report_does_not_bring_them_back(ear: Ear) -> None:
    await ear.hear(*FULL, node("n3"))
    await ear.hear(node("n3", 0, seq=2, at_ms=START_MS + 1))
    await ear.hear(node("n3", 8, seq=9, at_ms=START_MS))
    assert [it.code for it in answers(await ear.hear(raised(newest=2)))] == ["makes_room"]


async def test_a_slice_expires_once_at_its_instant_whoever_looks(ear: Ear) -> None:
    twin = Ear(ear.db, ear.clock, start=1_000_000)
    await ear.hear(granted(1, {"n1": 8}), protected(1, START_MS + HOUR_MS))
    assert ear.wake_at_ms == START_MS + HOUR_MS
    ear.clock.advance(HOUR_MS - 1)
    assert await ear.hear() == await twin.hear() == []
    ear.clock.advance(1)
    said = [it for batch in await asyncio.gather(*(each.hear() for each in (ear, twin) * 5)) for it in batch]
    assert said == [SliceExpired(cluster="c1", attempt=id_of(1), job=id_of(1_001), budget="nlp", expired_at_ms=START_MS + HOUR_MS)]
    # The same word in a new envelope, long after.
    assert await ear.hear(protected(1, START_MS + HOUR_MS)) == []
    assert ear.wake_at_ms is None


async def test_who_ends_inside_the_slice_has_no_expiry(ear: Ear) -> None:
    await ear.hear(granted(1, {"n1": 8}), protected(1, START_MS + HOUR_MS))
    await ear.hear(ended(1))
    ear.clock.advance(2 * HOUR_MS)
    assert await ear.hear() == []


async def test_protection_known_before_the_grant_protects(ear: Ear) -> None:
    late = [it for it in FULL if it.TYPE == "job.granted"]
    await ear.hear(*(it for it in FULL if it not in late and it.TYPE != "attempt.protected"))
    await ear.hear(protected(1, START_MS + 1), protected(2, START_MS + 1))
    await ear.hear(*late)
    [answer] = answers(await ear.hear(raised(newest=2)))
    assert answer.code == "nothing_interruptible"


async def test_protection_is_written_once(ear: Ear) -> None:
    await ear.hear(granted(1, {"n1": 8}), protected(1, START_MS + HOUR_MS))
    await ear.hear(protected(1, START_MS))
    assert await ear.hear() == []
    assert ear.wake_at_ms == START_MS + HOUR_MS


async def test_what_the_job_avoids_is_remembered_while_its_claim_waits(ear: Ear) -> None:
    await ear.hear(*FULL, raised(newest=2, usage_revision=2, avoid=("n1", "n9")))
    assert evicted(await ear.hear(*standings(revision=2))) == [id_of(2)]


async def test_a_plan_that_no_message_can_hold_is_no_plan(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    await ear.hear(*FULL)
    monkeypatch.setattr(wire, "fits", lambda body: False)
    said = await ear.hear(raised(newest=2))
    assert [(it.code, it.plan) for it in said] == [("answer_too_large", None)]
    monkeypatch.undo()
    assert evicted(await ear.hear(raised(2, newest=2))) == [id_of(1)]


async def test_two_replicas_answer_once(ear: Ear) -> None:
    twin = Ear(ear.db, ear.clock, start=1_000_000)
    await ear.hear(*FULL)
    said = [
        it
        for batch in await asyncio.gather(*(each.hear(raised(1, newest=2), tick("n1", {})) for each in (ear, twin) * 4))
        for it in batch
    ]
    assert len(answers(said)) == 1
    assert len(evicted(said)) == 1


async def test_two_replicas_give_the_same_room_to_one_claim_only(ear: Ear) -> None:
    twin = Ear(ear.db, ear.clock, start=1_000_000)
    await ear.hear(*FULL)
    pairs = zip((ear, twin) * 4, range(1, 9), strict=True)
    said = [it for batch in await asyncio.gather(*(each.hear(raised(number, newest=2)) for each, number in pairs)) for it in batch]
    assert sorted(it.outcome for it in answers(said)) == ["infeasible"] * 6 + ["planned"] * 2
    assert sorted(evicted(said)) == [id_of(1), id_of(2)]


async def test_two_replicas_that_wake_together_answer_a_waiting_claim_once(ear: Ear) -> None:
    twin = Ear(ear.db, ear.clock, start=1_000_000)
    await ear.hear(*FULL, raised(newest=2, usage_revision=2))
    async with ear.db.transaction() as tx:
        await tx.connection.execute("UPDATE standing SET usage_revision = 2")
    said = [it for batch in await asyncio.gather(*(each.hear() for each in (ear, twin) * 4)) for it in batch]
    assert len(answers(said)) == 1


async def test_health_names_what_a_claim_waits_for_once_it_has_waited_long(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(batch, "real_seconds", lambda: now_s[0])
    await ear.hear(*FULL, raised(newest=3))
    assert ear.health.why_not_ready() == {}
    now_s[0] = batch.PATIENCE_S + 1
    await ear.hear()
    assert ear.health.why_not_ready() == {"claims": f"1 without an answer; {id_of(5_001)}: grants up to 2 of 3 were heard"}
    await ear.hear(granted(3, {"n3": 8}))
    assert ear.health.why_not_ready() == {}


async def test_clusters_are_judged_apart(ear: Ear) -> None:
    await ear.hear(*FULL, *standings("c2"), node("n1", cluster="c2"), granted(1, {"n1": 8}, cluster="c2"))
    said = await ear.hear(raised(1, newest=2), raised(2, newest=1, cluster="c2"))
    assert {it.cluster: it.code for it in answers(said)} == {"c1": "makes_room", "c2": "nothing_interruptible"}


async def test_an_eviction_inside_a_slice_ends_the_process_and_leaves_nothing(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is planted where the plan is made: whatever made it, it does not get out."""
    await ear.hear(*FULL)
    honest = batch.judge

    def protects_nobody(snapshot: Any, claim: Any, policy: Any) -> Any:
        plan = honest(snapshot, claim, policy)
        later = [it._replace(attempt=it.attempt._replace(protected_until_ms=START_MS + 1)) for it in plan.victims]
        return plan._replace(victims=tuple(later))

    monkeypatch.setattr(batch, "judge", protects_nobody)
    with pytest.raises(InvariantBroken) as caught:
        await ear.hear(raised(newest=2))
    assert action_for(caught.value) == "stop"
    monkeypatch.undo()
    assert evicted(await ear.hear(raised(newest=2))) == [id_of(1)]


async def test_a_plan_is_kept_as_it_was_said_and_never_changes(ear: Ear) -> None:
    await ear.hear(*FULL)
    [answer] = answers(await ear.hear(raised(newest=2)))
    async with ear.db.transaction() as tx:
        await tx.connection.execute("UPDATE plan SET answer = ''")
        row = await tx.connection.fetchrow("SELECT * FROM plan")
    assert row is not None
    assert (row["plan"], row["claim"], row["usage_revision"], len(row["orders"])) == (answer.plan, answer.claim, 1, 1)
    assert answer.plan in row["answer"]


async def test_what_is_long_over_is_forgotten(ear: Ear) -> None:
    await ear.hear(*FULL, raised(newest=2), withdrawn())
    await ear.hear(ended(1))
    ear.clock.advance(31 * DAY_MS)
    await ear.hear(ended(2), withdrawn(9))
    async with ear.db.reading() as connection:
        left = await connection.fetch(
            "SELECT attempt FROM attempt UNION ALL SELECT claim FROM claim UNION ALL SELECT claim FROM claim_end"
        )
    assert sorted(row[0] for row in left) == [id_of(2), id_of(5_009)]
