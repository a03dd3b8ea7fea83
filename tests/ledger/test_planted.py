"""For every figure that must be nothing: a fault planted in the tables makes it something."""

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from allmende.ledger.model import BUCKET_MS
from allmende.proto.units import HOUR_MS
from tests.ledger.builders import START_MS, counter, ended, granted, id_of, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at, joined
from tests.servers import Lab

# Attempt 1 ran 20 minutes on 4 GPUs, attempt 2 still runs on 2; the cluster has 8.
TRUTH = {(id_of(1), 0): 4 * 4 * BUCKET_MS, (id_of(2), 0): 2 * 6 * BUCKET_MS}
NUMBERS = "cluster, attempt, replica, epoch, from_ms, to_ms, gpus, debit_account, credit_account, amount_gpu_ms, event"


async def figures(desk: Desk) -> dict[str, int]:
    """What must be 0 when the books are right, against the truth of who ran when."""
    postings = await desk.postings()
    try:
        amounts = {key: held.amount_gpu_ms for key, held in joined(postings).items()}
        twice = 0
    except AssertionError:
        amounts, twice = {}, 1
    books = await desk.books(START_MS, START_MS + 6 * BUCKET_MS, BUCKET_MS)
    idle = [4 * BUCKET_MS if number >= 4 else 0 for number in range(6)]
    state = await desk.state()
    return {
        "posted twice": twice,
        "difference": sum(posting.amount_gpu_ms for posting in postings) - sum(TRUTH.values()),
        "wrong replicas": 0 if twice else sum(amounts.get(key, 0) != TRUTH.get(key, 0) for key in TRUTH | amounts),
        "idle": sum(abs(row.idle_gpu_ms - (idle_ms + 2 * BUCKET_MS)) for row, idle_ms in zip(books, idle, strict=True)),
        "unknown": sum(row.unknown_gpu_ms for row in books),
        "unattributed": state.unattributed_counters,
        "quarantined": state.quarantined,
        "gap": state.oldest_gap_ms or 0,
    }


async def lived(lab: Lab) -> Desk:
    desk = Desk(await lab.database("ledger"), clock_at(0.5))
    await desk.hear(
        *tree(),
        node(gpus=8),
        granted(1, gpus=4),
        started(1),
        ended(1, START_MS + 4 * BUCKET_MS, counter(1, 4 * BUCKET_MS, 9, gpus=4)),
        granted(2, gpus=2),
        started(2),
        tick(counter(2, 6 * BUCKET_MS, 9, gpus=2)),
    )
    return desk


async def test_right_books_show_nothing(lab: Lab) -> None:
    assert set((await figures(await lived(lab))).values()) == {0}


async def tamper(lab: Lab, statement: str) -> None:
    """As the superuser, past trigger and privileges: what a broken disk or a bad operator could do."""
    connection = await asyncpg.connect(lab.dsn("postgres"), server_settings={"search_path": "ledger"})
    try:
        await connection.execute(f"SET session_replication_role = replica; {statement}")
    finally:
        await connection.close()


SELECTED = f"SELECT {NUMBERS} FROM posting ORDER BY number LIMIT 1"
PLANTED = {
    "a lost posting": (
        "DELETE FROM posting WHERE number = (SELECT min(number) FROM posting)",
        {"difference", "wrong replicas", "idle"},
    ),
    "a posting under another epoch": (
        f"INSERT INTO posting ({NUMBERS}) {SELECTED.replace('epoch', '2')}",
        {"posted twice", "difference", "idle"},
    ),
    "a posting for an attempt that never was": (
        f"INSERT INTO posting ({NUMBERS}) {SELECTED.replace('attempt', repr(id_of(7)), 1)}",
        {"difference", "wrong replicas", "idle"},
    ),
    "a counter that lost its last hour": (
        f"UPDATE counter SET to_ms = {START_MS}, posted_until_ms = {START_MS}, held_ms = 0 WHERE attempt = '{id_of(2)}'",
        {"unknown", "idle", "gap"},
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
async def test_a_fault_in_the_tables_shows(lab: Lab, fault: str) -> None:
    desk = await lived(lab)
    statement, shows = PLANTED[fault]
    await tamper(lab, statement)
    found = await figures(desk)
    assert {name for name, figure in found.items() if figure} == shows


SAID: dict[str, tuple[Callable[[Desk], Awaitable[object]], set[str]]] = {
    "a tick of an attempt nobody granted": (lambda desk: desk.hear(tick(counter(5, BUCKET_MS, 1))), {"unattributed"}),
    "a tick that goes backwards": (lambda desk: desk.hear(tick(counter(2, 1, 10, gpus=2))), {"quarantined"}),
    "an attempt that nobody told the truth of": (
        lambda desk: desk.hear(granted(3, gpus=1), started(3), tick(counter(3, 6 * BUCKET_MS, 1))),
        {"difference", "wrong replicas", "idle"},
    ),
    "a running attempt that falls silent": (lambda desk: _pass(desk), {"gap"}),
}


async def _pass(desk: Desk) -> None:
    desk.clock.advance(HOUR_MS)


@pytest.mark.parametrize("fault", SAID)
async def test_a_fault_in_what_is_said_shows(lab: Lab, fault: str) -> None:
    desk = await lived(lab)
    say, shows = SAID[fault]
    await say(desk)
    found = await figures(desk)
    assert {name for name, figure in found.items() if figure} == shows
