"""What the ledger says of a budget that was closed: as long as anything of it counts, its own standing and its place in history."""

from typing import NamedTuple

import pytest

from allmende.ledger.model import BUCKET_MS, Level, Live, Share
from allmende.ledger.rules.standings import Charges, Tree, eras, take, window_at
from allmende.ledger.rules.tree import shares_of
from allmende.proto.budget import BudgetChanged
from allmende.proto.units import DAY_MS, HOUR_MS
from tests.ledger.builders import START_MS, TREE, complete, counter, ended, granted, node, started, tick, tree
from tests.ledger.desk import Desk, clock_at
from tests.servers import Lab

T = START_MS
B = BUCKET_MS
LENGTH_MS = 12 * B
WITHOUT = tuple(each for each in TREE if each.budget != "nlp")
# nlp has half of 40 % of 8 GPUs.
OWED_A_BUCKET = 8 * B * 2 // 10


def shares() -> list[Share]:
    """nlp was in the tree from T to T + 2 buckets."""
    whole = shares_of({each.budget: each for each in TREE}, 1, T).values()
    return [each._replace(until_ms=T + 2 * B) if each.budget == "nlp" else each for each in whole]


class Row(NamedTuple):
    """What nlp has posted in its two buckets, what of it lives on; then its (charged, held, owed) and (charged, held) above."""

    posted: int
    live: list[Live]
    at_ms: int
    expected: tuple[int, int, int] | None
    above: tuple[int, int]


ROWS = {
    "what it was charged stays, and what it was owed while it was there": Row(
        1_000, [], 4 * B, (1_000, 0, 2 * OWED_A_BUCKET), (1_000, 0)
    ),
    "with a slice that runs, its hold is its own alone": Row(
        0, [Live("nlp", 2, 1, HOUR_MS, B, 0)], 4 * B, (0, 2 * (HOUR_MS - B), 2 * OWED_A_BUCKET), (0, 0)
    ),
    "what is counted and not posted yet too": Row(0, [Live("nlp", 2, 1, 0, B, 7)], 4 * B, (14, 0, 2 * OWED_A_BUCKET), (0, 0)),
    "when its first bucket has left the window, it is owed for the other": Row(5, [], 13 * B, (5, 0, OWED_A_BUCKET), (5, 0)),
    "nothing of it counts any more, and nothing is said": Row(0, [], 4 * B, None, (0, 0)),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_of_a_closed_budget(sentence: str) -> None:
    row = ROWS[sentence]
    window = window_at(T + row.at_ms, LENGTH_MS)
    charges = [Charges(era, {"nlp": row.posted}) for era in eras(shares(), window)]
    taken = take(Tree(2, shares()), charges, row.live, [Level(T, T + row.at_ms, 8, 8)], window, 8 * HOUR_MS)
    assert taken is not None
    found = {each.budget: each for each in taken.accounts}
    closed = found.pop("nlp", None)
    assert (None if closed is None else tuple(closed[1:])) == row.expected
    assert {name: (found[name].charged_gpu_ms, found[name].held_gpu_ms) for name in ("research", "org")} == {
        "research": row.above,
        "org": row.above,
    }


async def test_closed_while_it_runs_and_until_the_window_has_passed(lab: Lab) -> None:
    desk = Desk(await lab.database("ledger"), clock_at(1))
    await desk.hear(*tree(), node(), granted(1, gpus=2, slice_ms=8 * HOUR_MS), started(1), tick(counter(1, HOUR_MS, 1, gpus=2)))
    before = await desk.standings()
    assert before["nlp"].held_gpu_ms == before["org"].held_gpu_ms == 2 * 7 * HOUR_MS

    gone = BudgetChanged(budget="nlp", revision=2, definition=None, jobs_to="rl")
    await desk.hear(gone, complete(WITHOUT, 2, T + HOUR_MS))
    closed = await desk.standings()
    assert (closed["nlp"].charged_gpu_ms, closed["nlp"].held_gpu_ms) == (2 * HOUR_MS, 14 * HOUR_MS)
    assert (closed["research"].charged_gpu_ms, closed["research"].held_gpu_ms) == (2 * HOUR_MS, 0)
    said = {each.budget for each in await desk.pass_second()}
    assert "nlp" in said

    # It runs on, is charged to the end, and that along the path that was in force.
    desk.clock.advance(2 * HOUR_MS)
    await desk.hear(ended(1, T + 3 * HOUR_MS, counter(1, 3 * HOUR_MS, 2, gpus=2)))
    last = await desk.standings()
    assert last["nlp"].charged_gpu_ms == last["research"].charged_gpu_ms == 6 * HOUR_MS
    assert last["nlp"].held_gpu_ms == 0

    desk.clock.advance(7 * DAY_MS)
    assert "nlp" not in await desk.standings()
    assert sum(each.amount_gpu_ms for each in await desk.postings()) == 6 * HOUR_MS
