"""How many counters a second the ledger's handler books, against PostgreSQL alone writing the same rows with no ledger in between.

128 nodes tick every 10 s of the clock with 16 running replicas each. A batch is 512 ticks, so each counter advances four times in
it, and every 30th tick crosses a bucket's edge. Decoding and the bus are not in it; the ceiling upserts each counter once a batch.
"""

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from allmende.chassis.db import Database
from allmende.chassis.fakes import ManualClock
from allmende.chassis.migrate import migrate
from allmende.ledger.model import Counter
from allmende.ledger.store.booking import BookingStore
from allmende.proto.units import SECOND_MS
from tests.ledger.builders import START_MS, counter, granted, id_of, node, tick, tree
from tests.ledger.desk import Desk
from tests.servers import TEMPLATE, start_session_postgres

NODES, REPLICAS, BATCHES, TICKS_A_BATCH = 128, 16, 24, 4
TICK_MS = 10 * SECOND_MS
COUNTERS = NODES * REPLICAS


def bench() -> dict[str, float]:
    """Counters and ticks a second of real time, CPU of our process per counter, and the ceiling in the same unit."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return asyncio.run(_bench(Path(folder)))


async def _bench(folder: Path) -> dict[str, float]:
    server = await start_session_postgres(folder)
    try:
        db = await Database.connect(server.dsn(TEMPLATE, "ledger"), "ledger")
        await migrate(db, "ledger")
        booked_s, cpu_s = await _book(db)
        ceiling_s = await _ceiling(db)
        await db.close()
    finally:
        await server.stop()
    advances = COUNTERS * TICKS_A_BATCH * BATCHES
    return {
        "advances_per_s": round(advances / booked_s),
        "ticks_of_16_per_s": round(advances / REPLICAS / booked_s),
        "cpu_us_per_advance": round(cpu_s * 1e6 / advances, 2),
        "ceiling_advances_per_s": round(advances / ceiling_s),
        "share_of_ceiling": round(ceiling_s / booked_s, 3),
    }


async def _book(db: Database) -> tuple[float, float]:
    clock = ManualClock(START_MS)
    desk = Desk(db, clock)
    await desk.hear(*tree(), *(node(f"n{number}") for number in range(NODES)))
    await desk.hear(*(granted(number, replicas=REPLICAS) for number in range(1, NODES + 1)))
    real_s = cpu_s = 0.0
    for batch in range(BATCHES):
        clock.advance(TICKS_A_BATCH * TICK_MS)
        events = [
            desk.event(
                tick(*(counter(number, seq * TICK_MS, seq, replica=replica) for replica in range(REPLICAS)), name=f"n{number}")
            )
            for seq in range(batch * TICKS_A_BATCH + 1, (batch + 1) * TICKS_A_BATCH + 1)
            for number in range(1, NODES + 1)
        ]
        begun_s, begun_cpu_s = perf_counter(), process_time()
        await desk.hear_events(events)
        real_s += perf_counter() - begun_s
        cpu_s += process_time() - begun_cpu_s
    return real_s, cpu_s


async def _ceiling(db: Database) -> float:
    store = BookingStore()
    keys = [(number, replica) for number in range(1, NODES + 1) for replica in range(REPLICAS)]
    real_s = 0.0
    for batch in range(BATCHES):
        at_ms = START_MS + batch * TICK_MS
        rows = [Counter("c2", id_of(n), r, 1, batch, START_MS, 0, 0, START_MS, at_ms, START_MS, False, id_of(9)) for n, r in keys]
        begun_s = perf_counter()
        async with db.transaction() as tx:
            await store.save_counters(tx, rows)
        real_s += perf_counter() - begun_s
    return real_s
