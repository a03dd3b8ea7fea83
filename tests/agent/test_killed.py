"""A cluster that was killed: its next run ends what its log leaves running, once. Pure."""

from pathlib import Path

from allmende.agent.synthetic.truth import Started, lost, still_running, to_line
from tests.agent.builders import T0, attempt, attempts, grant, job, said, the_end


def started(number: int) -> Started:
    return Started(at_ms=T0, attempt=attempt(number), job=job(number), budget="a", slice_ms=0, gpus_per_replica=1, nodes=("n0001",))


def test_what_a_log_leaves_open_still_ran(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    assert still_running(path) == (), "a first run has no log"
    first, second = started(1), started(2)
    path.write_bytes(to_line(first) + to_line(second) + to_line(lost(first, T0 + 5)))
    assert still_running(path) == (second,)
    with path.open("ab") as file:
        file.write(to_line(lost(second, T0 + 9)))
    assert still_running(path) == (), "its end is written once"


def test_a_lost_attempt_is_said_once_and_kept_until_confirmed() -> None:
    made = attempts("n1")
    end = the_end(made.lost(attempt(), job(), T0, "killed"))
    assert (end.outcome, end.counters, end.detail) == ("node_lost", (), "killed")
    assert [each.body for each in made.unconfirmed] == [end]
    assert made.lost(attempt(), job(), T0, "killed") == []
    assert said(made.granted(grant(), T0)) == [], "its grant, delivered again, starts nothing"
    made.confirmed([attempt()])
    assert made.unconfirmed == ()
