"""Admission asks for no room that would cost too much unsaved work (decision 0015); the preemptor has the last word."""

import pytest
from msgspec.structs import replace

from allmende.admission.model.values import Job, Saves, Terms
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.admission.builders import NOW, TERMS, an_id, attempt, job, lab, node, run_pass

# The claimant wants 8 GPUs for an hour: 3 % of that is 108 s of 8 GPUs.
WASTE = replace(TERMS, waste_ppm=30_000)
LIMIT_MS = 108 * SECOND_MS


def victim(slice_ms: int = HOUR_MS, **fields: object) -> Job:
    values: dict[str, object] = {"budget": "b", "user": "u2", "state": "running"} | fields
    return job(90, gpus_per_replica=8, slice_ms=slice_ms, **values)


def claimant(**fields: object) -> Job:
    return job(1, gpus_per_replica=8, **fields)


# victim, when it started, when it saved last (both ms ago; None: not yet), claimant, terms -> a claim is raised
ROWS: dict[str, tuple[Job, int, int | None, Job, Terms, bool]] = {
    "for whoever has just saved": (victim(), 2 * HOUR_MS, 0, claimant(), WASTE, True),
    "for whoever loses exactly as much as may be lost": (victim(), 2 * HOUR_MS, LIMIT_MS, claimant(), WASTE, True),
    "not for one who loses a millisecond more": (victim(), 2 * HOUR_MS, LIMIT_MS + 1, claimant(), WASTE, False),
    "where any loss is allowed for everybody": (victim(), 2 * HOUR_MS, LIMIT_MS + 1, claimant(), TERMS, True),
    "not for one who has saved nothing for as long as his slice": (victim(), HOUR_MS, None, claimant(), WASTE, False),
    "for one who has saved nothing for longer": (victim(), HOUR_MS + 1, None, claimant(), WASTE, True),
    "a save of an earlier attempt does not count": (victim(), HOUR_MS, 3 * HOUR_MS, claimant(), WASTE, False),
    "unallocated work is never spared": (victim(0, budget=None), 2 * HOUR_MS, HOUR_MS, claimant(), WASTE, True),
    "inside one leaf a higher priority waits for the save, too": (
        victim(budget="a"),
        2 * HOUR_MS,
        30 * MINUTE_MS,
        claimant(priority=1),
        WASTE,
        False,
    ),
    "and asks after it": (victim(budget="a"), 2 * HOUR_MS, 0, claimant(priority=1), WASTE, True),
    "a longer slice is worth a larger loss": (
        victim(),
        2 * HOUR_MS,
        2 * LIMIT_MS,
        claimant(slice_ms=2 * HOUR_MS),
        WASTE,
        True,
    ),
    "the slice that counts is the next one": (
        victim(),
        2 * HOUR_MS,
        2 * LIMIT_MS,
        claimant(next_slice_ms=2 * HOUR_MS),
        WASTE,
        True,
    ),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_room_is_asked_for(sentence: str) -> None:
    holder, started_ago_ms, saved_ago_ms, waiting, terms, expected = ROWS[sentence]
    started_ms = NOW - started_ago_ms
    times = {"granted_at_ms": started_ms, "started_at_ms": started_ms, "protected_until_ms": started_ms + holder.slice_ms}
    running = attempt(1, holder, {"n001": 1}, **times)
    books = lab([holder, waiting], [node(1)], {"a": 10, "b": 50}, attempts=[running])
    if saved_ago_ms is not None:
        books.saves[running.attempt] = Saves(NOW - saved_ago_ms, None)
    raised = [each.job for each in run_pass(books, terms=terms).change.claims]
    assert raised == ([an_id(1)] if expected else [])
