"""The handler over a real database: what a story of messages leaves in the books, and what is said."""

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from allmende.ledger.model import BUCKET_MS
from allmende.proto.budget import Budget, BudgetChanged, ClusterShare
from allmende.proto.envelope import MAX_MESSAGE_BYTES
from allmende.proto.ledger import StandingsQuery, UsageConfirmed, UsageStanding
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.ledger.builders import START_MS, TREE, complete, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at, joined, refusals
from tests.servers import Lab

END_MS = START_MS + 2 * HOUR_MS


async def desk_of(lab: Lab, hours: float = 2) -> Desk:
    return Desk(await lab.database("ledger"), clock_at(hours))


async def test_a_life_is_posted_to_the_millisecond_and_confirmed(lab: Lab) -> None:
    desk = await desk_of(lab)
    said = await desk.hear(*tree(), node(), granted(1, gpus=4), started(1, START_MS + 7), tick(counter(1, 400_000, 1, gpus=4)))
    assert refusals(said) == []
    assert (await desk.state()).posted_gpu_ms == 4 * 300_000, "one whole bucket; the rest waits for the edge"
    last = counter(1, 1_234_567, 9, gpus=4)
    said = await desk.hear(ended(1, START_MS + 1_234_567, last))
    assert [body for body in said if isinstance(body, UsageConfirmed)] == [UsageConfirmed(cluster="c1", attempts=(id_of(1),))]
    held = joined(await desk.postings())[id_of(1), 0]
    assert held == (((START_MS, START_MS + 1_234_567),), 4 * 1_234_567, "nlp")


async def test_an_end_that_is_said_again_is_confirmed_again_and_posts_nothing(lab: Lab) -> None:
    desk = await desk_of(lab)
    end = ended(1, START_MS + 90_000, counter(1, 90_000, 3))
    await desk.hear(node(), granted(1), end)
    before = await desk.postings()
    said = await desk.hear(end)
    assert [body.attempts for body in said if isinstance(body, UsageConfirmed)] == [(id_of(1),)]
    assert await desk.postings() == before


async def test_usage_of_an_unknown_attempt_waits_for_its_grant(lab: Lab) -> None:
    """BR-039: usage that comes before its start is kept, and charged then."""
    desk = await desk_of(lab)
    said = await desk.hear(
        node(), tick(counter(1, 600_000, 1, gpus=2)), ended(1, START_MS + 900_000, counter(1, 900_000, 2, gpus=2))
    )
    assert not [body for body in said if isinstance(body, UsageConfirmed)]
    state = await desk.state()
    assert (state.unattributed_counters, state.posted_gpu_ms) == (1, 0)
    said = await desk.hear(granted(1, gpus=2))
    assert [body.attempts for body in said if isinstance(body, UsageConfirmed)] == [(id_of(1),)]
    state = await desk.state()
    assert (state.unattributed_counters, state.posted_gpu_ms) == (0, 1_800_000)


async def test_standings_are_said_once_a_second_and_only_when_they_change(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(*tree(), node(gpus=8), granted(1, gpus=2), started(1))
    said = await desk.pass_second()
    round_one = {body.budget: body for body in said if isinstance(body, UsageStanding)}
    assert set(round_one) == {"org", "vision", "research", "nlp", "rl"}
    assert {body.usage_revision for body in round_one.values()} == {1}
    assert {body.counted_grants for body in round_one.values()} == {1}
    assert (round_one["nlp"].held_gpu_ms, round_one["org"].held_gpu_ms) == (2 * HOUR_MS, 2 * HOUR_MS)
    assert round_one["vision"].entitlement_gpu_ms == 8 * 8 * HOUR_MS * 6 // 10, "the floor: 8 h of today's share"
    said = await desk.hear(tick(counter(1, 60_000, 1, gpus=2)))
    assert said == [], "the second has not passed"
    said = await desk.pass_second()
    nlp = next(body for body in said if isinstance(body, UsageStanding) and body.budget == "nlp")
    assert (nlp.usage_revision, nlp.charged_gpu_ms, nlp.held_gpu_ms) == (2, 120_000, 2 * HOUR_MS - 120_000)
    assert await desk.pass_second() == [], "nothing changed"


async def test_nothing_is_said_while_tree_or_capacity_is_unknown(lab: Lab) -> None:
    """BR-045: unknown is not zero, for capacity and for use."""
    desk = await desk_of(lab)
    assert not [body for body in await desk.hear(node()) if isinstance(body, UsageStanding)]
    assert await desk.pass_second() == []
    assert "standings" in desk.health.why_not_ready()
    whole = tree()
    await desk.hear(*whole[1:])
    assert await desk.pass_second() == [], "half a revision is none"
    await desk.hear(whole[0])
    assert len(await desk.pass_second()) == 5
    assert "standings" not in desk.health.why_not_ready()


async def test_a_gap_in_the_grants_holds_the_watermark_back(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(*tree(), node(), granted(1), granted(2), granted(4), granted(5))
    assert (await desk.standings())["org"].counted_grants == 2
    await desk.pass_second()
    await desk.hear(granted(3))
    assert {body.counted_grants for body in await desk.pass_second()} == {5}


async def test_every_gpu_is_in_one_account_in_every_minute(lab: Lab) -> None:
    desk = await desk_of(lab, hours=0.5)
    last = counter(1, 8 * MINUTE_MS, 2, gpus=4, since_ms=START_MS + 2 * MINUTE_MS)
    await desk.hear(
        *tree(),
        node(gpus=8),
        node(gpus=6, at_ms=START_MS + 15 * MINUTE_MS, seq=2),
        granted(1, gpus=4),
        started(1, START_MS + 2 * MINUTE_MS),
        ended(1, START_MS + 10 * MINUTE_MS, last),
        granted(2, gpus=3, budget=None),
        started(2, START_MS + MINUTE_MS),
        tick(counter(2, 18 * MINUTE_MS + 30_000, 1, gpus=3, since_ms=START_MS + MINUTE_MS)),
    )
    rows = await desk.books(START_MS, START_MS + 30 * MINUTE_MS, MINUTE_MS)
    seen = [
        tuple(
            amount // 30_000
            for amount in (
                row.allocated_gpu_ms,
                row.unallocated_gpu_ms,
                row.starting_gpu_ms,
                row.unknown_gpu_ms,
                row.idle_gpu_ms,
                row.available_gpu_ms,
            )
        )
        for row in rows
    ]
    assert seen[0] == (0, 0, 14, 0, 2, 16)
    assert seen[1] == (0, 6, 8, 0, 2, 16)
    assert seen[2] == (8, 6, 0, 0, 2, 16)
    assert seen[10] == (0, 6, 0, 0, 10, 16)
    assert seen[15] == (0, 6, 0, 0, 6, 12)
    assert seen[19] == (0, 3, 0, 3, 6, 12), "after its last counter the attempt is unknown, not idle"
    assert seen[29] == (0, 0, 0, 6, 6, 12)


async def test_every_answer_fits_one_message_however_many_budgets_there_are(lab: Lab) -> None:
    desk = await desk_of(lab)
    many = (
        Budget(budget="org"),
        *(Budget(budget="b" * 58 + f"{number:05d}", parent="org", share_ppm=1_000) for number in range(400)),
    )
    await desk.hear(*tree(many), node())
    assert len(await desk.standings()) == 401
    reply = await desk.answers.standings("olga", StandingsQuery(cluster="c1"))
    assert len(msgspec.json.encode(reply)) < MAX_MESSAGE_BYTES


async def test_a_share_changed_in_mid_window_counts_from_the_moment_it_changed(lab: Lab) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(0), slice_cap_ms=0)
    await desk.hear(*tree(), node(gpus=8))
    changed = [Budget(budget="vision", parent="org", share_ppm=200_000) if each.budget == "vision" else each for each in TREE]
    desk.clock.advance(HOUR_MS)
    await desk.hear(BudgetChanged(budget="vision", revision=2, definition=changed[1]), complete(changed, 2, START_MS + HOUR_MS))
    desk.clock.advance(HOUR_MS)
    found = (await desk.standings())["vision"]
    assert (found.tree_revision, found.entitlement_gpu_ms) == (2, 8 * HOUR_MS * 6 // 10 + 8 * HOUR_MS * 2 // 10)


async def test_a_revision_that_arrives_after_its_successor_takes_its_place_in_history(lab: Lab) -> None:
    shares = {1: 600_000, 2: 100_000, 3: 300_000}
    desk = Desk(await lab.database("ledger"), clock_at(3), slice_cap_ms=0)
    said = {}
    for revision, ppm in shares.items():
        budgets = [each if each.budget != "vision" else Budget(budget="vision", parent="org", share_ppm=ppm) for each in TREE]
        said[revision] = tree(budgets, revision, START_MS + (revision - 1) * HOUR_MS)
    await desk.hear(node(gpus=8), *said[1], *said[3])
    await desk.hear(*said[2])
    assert (await desk.standings())["vision"].entitlement_gpu_ms == 8 * HOUR_MS * (6 + 1 + 3) // 10


async def test_a_kill_in_mid_start_leaves_no_hold_and_confirms_what_ran(lab: Lab) -> None:
    desk = await desk_of(lab, hours=4)
    await desk.hear(*tree(), node(gpus=16, installed=16))
    begun = END_MS - 10 * MINUTE_MS
    await desk.hear(granted(1, replicas=8, at_ms=begun))
    finals = [counter(1, 600 * SECOND_MS, 60, replica=replica, since_ms=begun) for replica in range(4)]
    said = await desk.hear(ended(1, END_MS, *finals, outcome="stopped"), ended(1, END_MS, *finals[:2], outcome="stopped"))
    assert [body.attempts for body in said if isinstance(body, UsageConfirmed)] == [(id_of(1),)]
    org = (await desk.standings())["org"]
    assert (org.charged_gpu_ms, org.held_gpu_ms) == (2_400 * SECOND_MS, 0)
    assert all(row.idle_gpu_ms >= 0 for row in await desk.books(START_MS, END_MS, BUCKET_MS))


async def test_what_ended_holds_nothing(lab: Lab) -> None:
    desk = await desk_of(lab)
    await desk.hear(*tree(), node())
    await desk.hear(granted(1, gpus=8), started(1), granted(2, gpus=8), started(2))
    await desk.hear(ended(1, START_MS + HOUR_MS // 2, counter(1, HOUR_MS // 2, 9, gpus=8), outcome="evicted"))
    assert (await desk.standings())["nlp"].held_gpu_ms == 8 * HOUR_MS, "only the attempt that lives"


async def test_a_cluster_of_unknown_capacity_disturbs_no_other(lab: Lab) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(4))
    await desk.hear(*tree(), granted(1, cluster="c2"), node(cluster="c1"))
    said = await desk.pass_second()
    assert {body.cluster for body in said if isinstance(body, UsageStanding)} == {"c1"}
    assert "c2" in desk.health.why_not_ready()["standings"]
    await desk.hear(node(cluster="c2"))
    said = await desk.pass_second()
    assert {body.cluster for body in said if isinstance(body, UsageStanding)} >= {"c2"}
    assert "standings" not in desk.health.why_not_ready()


async def test_a_cluster_s_own_share_entitles_there_alone_and_from_the_moment_it_was_set_to_that_it_was_taken_back(
    lab: Lab,
) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(0), slice_cap_ms=0)
    clusters = ("c1", "c2")
    await desk.hear(*tree(), *(node(gpus=8, cluster=cluster) for cluster in clusters))
    c2 = (ClusterShare(cluster="c2", share_ppm=100_000),)
    for revision, own in ((2, c2), (3, UNSET)):
        desk.clock.advance(HOUR_MS)
        changed = [replace(each, cluster_shares=own) if each.budget == "research" else each for each in TREE]
        at_ms = START_MS + (revision - 1) * HOUR_MS
        await desk.hear(
            BudgetChanged(budget="research", revision=revision, definition=changed[2]), complete(changed, revision, at_ms)
        )
    desk.clock.advance(HOUR_MS)
    found = {cluster: await desk.standings(cluster) for cluster in clusters}
    hour = 8 * HOUR_MS
    owed = {
        (cluster, name): found[cluster][name].entitlement_gpu_ms for cluster in clusters for name in ("vision", "research", "nlp")
    }
    assert owed == {
        ("c1", "vision"): 3 * hour * 6 // 10,
        ("c1", "research"): 3 * hour * 4 // 10,
        ("c1", "nlp"): 3 * hour * 2 // 10,
        ("c2", "vision"): 3 * hour * 6 // 10,
        ("c2", "research"): hour * (4 + 1 + 4) // 10,
        ("c2", "nlp"): hour * (40 + 10 + 40) // 200,
    }
    assert {each.tree_revision for standings in found.values() for each in standings.values()} == {3}
