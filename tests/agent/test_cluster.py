"""The simulated cluster: everything at its own instant, and a log that tells the truth."""

import pytest

from allmende.agent.sdk.backend import CannotStart, Cause, Exit, NodeState
from allmende.agent.synthetic.cluster import Cluster, NodeChange, nodes_of
from allmende.agent.synthetic.command import Command
from allmende.agent.synthetic.failures import Failure
from allmende.agent.synthetic.truth import AnyRecord, Ended, Signalled, Started, from_lines, to_line
from allmende.proto.units import HOUR_MS, MINUTE_MS, SECOND_MS
from allmende.proto.user import Payload
from tests.agent.builders import T0, attempt, cluster, job, launch

EVICTION = Cause("eviction", "p1")
JOB = Command(HOUR_MS, 10 * MINUTE_MS, startup_ms=0)


def exits(made: Cluster) -> list[Exit]:
    return [each for each in made.happened() if isinstance(each, Exit)]


def ends(log: list[AnyRecord]) -> list[tuple[str, int]]:
    return [(record.by, record.at_ms - T0) for record in log if isinstance(record, Ended)]


def test_a_job_ends_at_its_own_instant_however_late_somebody_looks() -> None:
    log: list[AnyRecord] = []
    made = cluster(log)
    made.start(launch(command=JOB), T0)
    made.advance(T0 + HOUR_MS - 1)
    assert exits(made) == []
    made.advance(T0 + 5 * HOUR_MS)
    assert exits(made) == [Exit(attempt(), T0 + HOUR_MS, "finished", 0, T0 + HOUR_MS)]
    assert ends(log) == [("itself", HOUR_MS)]


def test_sigterm_lets_a_job_leave_in_its_own_time_and_a_resumed_job_continues() -> None:
    log: list[AnyRecord] = []
    made = cluster(log)
    made.start(launch(command=JOB), T0)
    made.terminate(attempt(), EVICTION, T0 + 25 * MINUTE_MS)
    made.advance(T0 + 40 * MINUTE_MS)
    (left,) = exits(made)
    assert (left.how, left.exit_code, left.checkpoint_at_ms) == ("signalled", 143, T0 + 20 * MINUTE_MS)
    assert 25 * MINUTE_MS < left.ended_at_ms - T0 < 40 * MINUTE_MS
    again = launch(2, command=JOB)._replace(job=job(1))
    made.start(again, T0 + HOUR_MS)
    made.advance(T0 + 3 * HOUR_MS)
    assert exits(made)[0].ended_at_ms == T0 + HOUR_MS + 40 * MINUTE_MS


def test_who_ignores_sigterm_runs_until_sigkill() -> None:
    log: list[AnyRecord] = []
    made = cluster(log)
    made.start(launch(command=JOB._replace(ignore_sigterm=True)), T0)
    made.terminate(attempt(), EVICTION, T0 + MINUTE_MS)
    made.advance(T0 + 3 * MINUTE_MS)
    assert exits(made) == []
    made.kill(attempt(), EVICTION, T0 + 3 * MINUTE_MS)
    assert exits(made) == [Exit(attempt(), T0 + 3 * MINUTE_MS, "signalled", 137)]
    assert [(record.signal, record.name) for record in log if isinstance(record, Signalled)] == [("TERM", "p1"), ("KILL", "p1")]


@pytest.mark.parametrize(("command", "exit_code"), [(("python", "x.py"), 127), (("synthetic-job",), 2)])
def test_what_cannot_run_ends_like_in_a_shell(command: tuple[str, ...], exit_code: int) -> None:
    log: list[AnyRecord] = []
    made = cluster(log)
    made.start(launch()._replace(payload=Payload(command=command)), T0)
    (left,) = exits(made)
    assert (left.how, left.exit_code, left.ended_at_ms, bool(left.detail)) == ("failed", exit_code, T0, True)


def test_a_lost_node_takes_whole_gangs_comes_back_and_refuses_starts_meanwhile() -> None:
    log: list[AnyRecord] = []
    failing = iter([Failure(T0 + HOUR_MS // 2, 1, HOUR_MS)])
    states = (NodeState("n0001", 8, 8), NodeState("n0002", 8, 8))
    made = Cluster("c1", states, 1, failing, T0, log.append)
    made.start(launch(1, command=JOB, nodes=("n0001", "n0002")), T0)
    made.start(launch(2, command=JOB, nodes=("n0001",)), T0)
    made.advance(T0 + HOUR_MS // 2)
    change, left = made.happened()
    assert isinstance(change, NodeChange)
    assert (change.state.node, change.state.healthy_gpus, change.at_ms) == ("n0002", 0, T0 + HOUR_MS // 2)
    assert isinstance(left, Exit)
    assert (left.attempt, left.how) == (attempt(1), "node_lost")
    with pytest.raises(CannotStart, match="n0002"):
        made.start(launch(3, nodes=("n0002",)), T0 + HOUR_MS)
    made.advance(T0 + 2 * HOUR_MS)
    back = [each for each in made.happened() if isinstance(each, NodeChange)]
    assert [(each.state.healthy_gpus, each.at_ms - T0) for each in back] == [(8, 3 * HOUR_MS // 2)]


def test_power_off_ends_everything_at_one_instant() -> None:
    log: list[AnyRecord] = []
    made = cluster(log)
    made.start(launch(1, command=JOB, nodes=("n0001", "n0002")), T0)
    made.power_off(T0 + SECOND_MS)
    assert [left.how for left in exits(made)] == ["node_lost"]
    assert ends(log) == [("power_off", SECOND_MS)]
    assert made.next_due_ms is None


def test_the_same_seed_tells_the_same_story() -> None:
    def story(seed: int) -> list[AnyRecord]:
        log: list[AnyRecord] = []
        made = cluster(log, seed=seed)
        for number in range(1, 9):
            made.start(launch(number, command=JOB), T0)
            made.terminate(attempt(number), EVICTION, T0 + MINUTE_MS)
        made.advance(T0 + HOUR_MS)
        return log

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_the_log_reads_back_and_a_line_cut_by_a_crash_is_left_out() -> None:
    log: list[AnyRecord] = []
    made = cluster(log)
    made.start(launch(command=JOB), T0)
    made.power_off(T0 + 1)
    made.close(T0 + 1, 0)
    lines = [to_line(record) for record in log]
    assert list(from_lines(lines)) == log
    assert list(from_lines([*lines[:-1], lines[-1][:-5]])) == log[:-1]
    with pytest.raises(ValueError, match="line 2"):
        list(from_lines([lines[0], b'{"what":"rumour"}\n']))


@pytest.mark.parametrize(("gpus", "sizes"), [(1_024, [8] * 128), (500, [8] * 62 + [4]), (3, [3])])
def test_nodes_add_up(gpus: int, sizes: list[int]) -> None:
    assert [state.installed_gpus for state in nodes_of(gpus, 8)] == sizes


def test_starts_are_recorded_replica_by_replica() -> None:
    log: list[AnyRecord] = []
    cluster(log).start(launch(nodes=("n0001", "n0001", "n0002"), gpus=2), T0)
    (started,) = [record for record in log if isinstance(record, Started)]
    assert (started.nodes, started.gpus_per_replica) == (("n0001", "n0001", "n0002"), 2)
