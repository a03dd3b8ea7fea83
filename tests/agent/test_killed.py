"""A cluster that was killed: its next run ends what its log leaves running, and says what the last one did not live to say."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from allmende.agent.sdk.attempts import Ending, Keep, lost_with_agent
from allmende.agent.sdk.journal import Journal
from allmende.agent.synthetic.truth import Opened, Started, left_by, lost, to_line
from allmende.proto.units import SECOND_MS
from tests.agent.builders import T0, attempt, attempts, grant, job, run, said, stop, the_end

OPENED = to_line(Opened(at_ms=T0, cluster="c1", seed=1))


Open = Callable[[Path], Journal]


@pytest.fixture
def open_() -> Iterator[Open]:
    """Opens journals as one run after the other does, none of which closes its own."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(Journal(path)))


def started(number: int) -> Started:
    return Started(at_ms=T0, attempt=attempt(number), job=job(number), budget="a", slice_ms=0, gpus_per_replica=1, nodes=("n0001",))


def ending(number: int) -> Ending:
    return lost_with_agent("c1", attempt(number), job(number), T0, "killed")


def test_what_a_log_leaves_open_still_ran(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    assert left_by(path) == ((), ()), "a first run has no log"
    first, second = started(1), started(2)
    path.write_bytes(OPENED + to_line(first) + to_line(second) + to_line(lost(first, T0 + 5)))
    assert left_by(path) == ((second,), (lost(first, T0 + 5),))
    with path.open("ab") as file:
        file.write(to_line(lost(second, T0 + 9)))
    assert left_by(path).running == (), "its end is written once"
    with path.open("ab") as file:
        file.write(OPENED)
    assert left_by(path) == ((), ()), "what a run left is settled before the next one opens"


def test_a_lost_attempt_is_said_once_and_kept_until_confirmed() -> None:
    made = attempts("n1")
    end = the_end(made.lost(attempt(), job(), T0, "killed"))
    assert (end.outcome, end.counters, end.detail) == ("node_lost", (), "killed")
    assert [each.body for each in made.unconfirmed] == [end]
    assert made.lost(attempt(), job(), T0, "killed") == []
    assert said(made.granted(grant(), T0)) == [], "its grant, delivered again, starts nothing"
    made.confirmed([attempt()])
    assert made.unconfirmed == ()


def test_every_end_is_to_be_kept_before_it_is_said() -> None:
    made = attempts("n1")
    never = made.stopped(stop(2), T0)
    run(made, grant())
    lost_one = made.lost(attempt(3), job(3), T0, "killed")
    for actions in (never, lost_one):
        assert isinstance(actions[0], Keep)
        assert actions[0].ending.body == the_end(actions)


def test_a_kept_end_is_said_by_the_next_agent_as_it_was(tmp_path: Path, open_: Open) -> None:
    path = tmp_path / "ends"
    journal = open_(path)
    first = attempts("n1")
    run(first, grant())
    kept = first.stopped(stop(4), T0)[0]
    assert isinstance(kept, Keep)
    journal.keep(kept.ending)
    again = open_(path)
    assert again.unconfirmed == (kept.ending,)
    second = attempts("n1")
    assert the_end(second.left_behind(again.unconfirmed)) == kept.ending.body
    assert [each.body.attempt for each in second.unconfirmed] == [attempt(4)]
    assert second.granted(grant(4), T0 + SECOND_MS) == [], "it has ended, whatever is delivered again"


def test_a_confirmed_end_is_known_and_not_said_again(tmp_path: Path, open_: Open) -> None:
    path = tmp_path / "ends"
    journal = open_(path)
    journal.keep(ending(1))
    journal.keep(ending(2))
    journal.confirmed([attempt(1), attempt(9)])
    for _ in range(2):  # the second time from what the first one wrote anew
        journal = open_(path)
        assert journal.unconfirmed == (ending(2),)
        assert [journal.knows(attempt(number)) for number in (1, 2, 9)] == [True, True, False]


def test_a_line_that_was_cut_short_is_left_out_and_the_next_one_is_whole(tmp_path: Path, open_: Open) -> None:
    path = tmp_path / "ends"
    open_(path).keep(ending(1))
    with path.open("ab") as file:
        file.write(b'{"what":"kept","end":{"clus')
    open_(path).keep(ending(2))
    assert open_(path).unconfirmed == (ending(1), ending(2))


def test_what_is_no_journal_is_refused_by_name_and_line(tmp_path: Path, open_: Open) -> None:
    path = tmp_path / "ends"
    path.write_bytes(b'{"what":"else"}\n')
    with pytest.raises(ValueError, match="journal of ends, line 1"):
        open_(path)
    assert path.read_bytes() == b'{"what":"else"}\n', "nothing of it is lost"


def test_the_file_is_written_anew_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_: Open) -> None:
    monkeypatch.setattr("allmende.agent.sdk.journal.REWRITE_AFTER", 10)
    path = tmp_path / "ends"
    journal = open_(path)
    for number in range(100):
        journal.keep(ending(number))
        journal.confirmed([attempt(number)] if number != 50 else [])
    assert len(path.read_bytes().splitlines()) < 20
    assert open_(path).unconfirmed == (ending(50),)
