"""Whether a reservation kept its word: a job that starts no later than first promised, in a window of four hours."""

from typing import Any

import pytest

from allmende.proto.units import SECOND_MS
from allmende.simulator import figures
from allmende.simulator.model import Promise
from tests.simulator.figures.builders import at, history, job, life, run

KINDS = ("kept", "broken", "open", "withdrawn", "moved_by_failure")


def said(made: float, by: float, moved: bool = False) -> Promise:
    return Promise(at(made), "j", at(by), moved)


def check(promises: list[Promise], lived: Any, starts: tuple[float, ...], expected: str) -> None:
    """`expected` names the outcomes that are counted, each once; several are joined by a plus."""
    runs = [run("j", start, start + 0.5, granted_at_ms=at(start)) for start in starts]
    found = figures.measure(history([lived], runs, promises=promises))
    counted = {kind: getattr(found, f"promises_{kind}") for kind in KINDS}
    wanted = expected.split(" + ") if expected else []
    assert counted == {kind: wanted.count(kind) for kind in KINDS}
    assert found.promises_made == len(wanted)


WAITING = life(job("j"))
LATE = SECOND_MS / 3_600_000


def ended(hour: float) -> Any:
    return life(job("j"), "a", None, hour, end="cancelled")


TABLE: dict[str, tuple[list[Promise], Any, tuple[float, ...], str]] = {
    "no promise, nothing to keep": ([], WAITING, (2,), ""),
    "started earlier": ([said(0, 2)], WAITING, (1,), "kept"),
    "started at the last moment": ([said(0, 2)], WAITING, (2,), "kept"),
    "granted at the last moment: the agent's own second is not the promise's": ([said(0, 2)], WAITING, (2 + LATE,), "kept"),
    "started later": ([said(0, 2)], WAITING, (2 + LATE * 1.001,), "broken"),
    "the first word binds, not a later one": ([said(0, 2), said(1, 3)], WAITING, (3,), "broken"),
    "an earlier word later on binds nobody": ([said(0, 3), said(1, 2)], WAITING, (3,), "kept"),
    "a promise that a failure moved stands apart": ([said(0, 2), said(1, 3, True)], WAITING, (3,), "moved_by_failure"),
    "even if it was kept after all": ([said(0, 2), said(1, 3, True)], WAITING, (2,), "moved_by_failure"),
    "a failure that moved it earlier moved nothing": ([said(0, 2), said(1, 2, True)], WAITING, (3,), "broken"),
    "withdrawn in time is not broken": ([said(0, 2)], ended(1), (), "withdrawn"),
    "withdrawn after waiting in vain is": ([said(0, 2)], ended(3), (), "broken"),
    "still waiting past the promise": ([said(0, 2)], WAITING, (), "broken"),
    "still waiting, not yet due": ([said(0, 5)], WAITING, (), "open"),
    "a start after the end of the window is not seen": ([said(0, 5)], WAITING, (4.5,), "open"),
    "a promise of the warm-up does not count": ([said(-1, 2)], WAITING, (3,), ""),
    "each wait has its own promise": ([said(0, 1), said(2, 3)], WAITING, (1, 3.5), "kept + broken"),
    "a wait without one between two": ([said(0, 1), said(3, 3.5)], WAITING, (1, 2, 3.5), "kept + kept"),
    "said at the instant of the start": ([said(1, 1)], WAITING, (1,), "kept"),
}


@pytest.mark.parametrize("sentence", TABLE)
def test_promises(sentence: str) -> None:
    check(*TABLE[sentence])
