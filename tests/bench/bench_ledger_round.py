"""What a round of standings costs with seven days of history: by a ledger that keeps the sums of old buckets, and by one that has
just started, which sums the whole window. Real PostgreSQL; every leaf was charged in every bucket. The bus is not in it.
"""

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter

from allmende.chassis.db import Database
from allmende.chassis.fakes import ManualClock
from allmende.chassis.migrate import migrate
from allmende.ledger.model import BUCKET_MS
from allmende.proto.budget import Budget
from allmende.proto.units import DAY_MS, SECOND_MS
from tests.ledger.builders import START_MS, node, tree
from tests.ledger.desk import Desk
from tests.servers import start_session_postgres

LEAVES, ROUNDS, WINDOW_MS = (100, 1_000), 9, 7 * DAY_MS
_FILL = """
INSERT INTO usage_bucket (cluster, budget, bucket_ms, gpu_ms)
SELECT 'c1', 'leaf-' || leaf, $1 + bucket * $2::bigint, 1000
FROM generate_series(1, $3::int) leaf, generate_series(0, $4::int - 1) bucket
"""


def bench() -> dict[str, float]:
    """Milliseconds a round, medians; `whole_window` is the ceiling of what was saved."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return asyncio.run(_bench(Path(folder)))


async def _bench(folder: Path) -> dict[str, float]:
    server = await start_session_postgres(folder)
    figures: dict[str, float] = {}
    try:
        for leaves in LEAVES:
            await server.create_database(f"bench_{leaves}")
            await server.create_roles(f"bench_{leaves}")
            db = await Database.connect(server.dsn(f"bench_{leaves}", "ledger"), "ledger")
            await migrate(db, "ledger")
            figures |= await _rounds(db, leaves)
            await db.close()
    finally:
        await server.stop()
    return figures


async def _rounds(db: Database, leaves: int) -> dict[str, float]:
    clock = ManualClock(START_MS + WINDOW_MS)
    rows = [Budget(budget="org")]
    rows += [Budget(budget=f"leaf-{number}", parent="org", share_ppm=1_000_000 // leaves) for number in range(1, leaves + 1)]
    desk = Desk(db, clock)
    await desk.hear(*tree(rows), node())
    async with db.transaction() as tx:
        await tx.connection.execute(_FILL, START_MS, BUCKET_MS, leaves, WINDOW_MS // BUCKET_MS)
    kept, whole = [], []
    for number in range(ROUNDS):
        clock.advance(SECOND_MS)
        begun = perf_counter()
        await desk.hear()
        kept.append(perf_counter() - begun)
        fresh = Desk(db, clock, start=number + 2)
        clock.advance(SECOND_MS)
        begun = perf_counter()
        await fresh.hear()
        whole.append(perf_counter() - begun)
    kept_ms, whole_ms = (sorted(each)[ROUNDS // 2] * 1_000 for each in (kept, whole))
    name = f"{leaves}_leaves"
    return {
        f"round_ms_{name}": round(kept_ms, 1),
        f"round_ms_whole_window_{name}": round(whole_ms, 1),
        f"part_of_whole_window_{name}": round(kept_ms / whole_ms, 3),
    }
