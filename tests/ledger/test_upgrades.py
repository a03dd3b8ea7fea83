"""A ledger that ran before a migration goes on after it: what was written before is read as it was meant."""

import msgspec
from msgspec.structs import replace

from allmende.chassis.db import Database
from allmende.chassis.migrate import CHASSIS, apply, load_migrations, migrate
from allmende.ledger.model import Share
from allmende.ledger.rules.tree import shares_of, succeed
from allmende.ledger.store.tree import TreeStore
from allmende.proto.budget import BudgetChanged, ClusterShare
from allmende.proto.tree import digest
from allmende.proto.units import HOUR_MS
from tests.ledger.builders import START_MS, TREE, complete, node
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab

# Before the shares of single clusters: revision 1, and an hour later revision 2, in which research has half of what it had.
FIRST = TREE
SECOND = tuple(replace(each, share_ppm=200_000) if each.budget == "research" else each for each in TREE)
SECOND_MS = START_MS + HOUR_MS


async def written_before_012(db: Database) -> list[Share]:
    """The schema of before, and the rows that the ledger of that time would have in it; returns the shares."""
    ours = load_migrations("allmende.ledger.migrations")
    await apply(db, [*load_migrations(CHASSIS), *(each for each in ours if each.number < "012")])
    old = shares_of({each.budget: each for each in FIRST}, 1, START_MS)
    change = succeed(old, {each.budget: each for each in SECOND}, 2, SECOND_MS)
    shares = [share._replace(until_ms=SECOND_MS if share.budget in change.ended else None) for share in old.values()]
    shares += change.begun
    async with db.transaction() as tx:
        for revision, budgets, at_ms in ((1, FIRST, START_MS), (2, SECOND, SECOND_MS)):
            await tx.connection.execute(
                "INSERT INTO tree_revision VALUES ($1, $2, $3, $4, true, $2)", revision, at_ms, len(budgets), digest(budgets)
            )
        said = [(each.budget, 1, each) for each in FIRST] + [("research", 2, each) for each in SECOND if each.budget == "research"]
        rows = [(budget, revision, msgspec.json.encode(each).decode()) for budget, revision, each in said]
        await tx.connection.executemany("INSERT INTO tree_change VALUES ($1, $2, $3)", rows)
        await tx.connection.executemany(
            "INSERT INTO share (budget, path, ppm, covers, from_ms, until_ms, revision) VALUES ($1, $2, $3, $4, $5, $6, $7)",
            [tuple(share)[:7] for share in shares],
        )
    return shares


async def test_shares_of_before_hold_on_every_cluster_and_one_that_is_set_later_ends_none_of_them(lab: Lab) -> None:
    db = await Database.connect(lab.dsn("ledger"), "ledger")
    try:
        shares = await written_before_012(db)
        assert "012_cluster_shares.sql" in await migrate(db, "ledger")
        async with db.transaction() as tx:
            for cluster in ("c1", "c2"):
                read = await TreeStore().tree(tx.connection, cluster, START_MS, SECOND_MS)
                assert (read.revision, sorted(read.shares)) == (2, sorted(shares))
        desk = Desk(db, clock_at(2), slice_cap_ms=0)
        await desk.hear(*(node(gpus=8, cluster=cluster) for cluster in ("c1", "c2")))
        own = (ClusterShare(cluster="c2", share_ppm=100_000),)
        third = [replace(each, cluster_shares=own) if each.budget == "research" else each for each in SECOND]
        (research,) = (each for each in third if each.budget == "research")
        said = BudgetChanged(budget="research", revision=3, definition=research)
        await desk.hear(said, complete(third, 3, START_MS + 2 * HOUR_MS))
        desk.clock.advance(HOUR_MS)
        owed = {cluster: (await desk.standings(cluster))["research"].entitlement_gpu_ms for cluster in ("c1", "c2")}
        # Hours of 40 %, 20 % and 20 % of eight GPUs; in the third 10 % on c2.
        assert owed == {"c1": 8 * HOUR_MS * (4 + 2 + 2) // 10, "c2": 8 * HOUR_MS * (4 + 2 + 1) // 10}
    finally:
        await db.close()
