"""Several runs side by side."""

from msgspec.structs import replace

from allmende.simulator import figures
from allmende.simulator.figures.compare import COMPARED
from tests.simulator.figures.builders import generated, history, job, life, run


def test_the_same_figures_of_each_run_stand_in_one_row() -> None:
    one, other = (
        history([life(job("j"), "a", 1, 4)], [run("j", 1, 4)]),
        history([life(job("j", "b"), "b")], shares={"a": 50, "b": 50}),
    )
    other.policy = "fifo"
    found = figures.compare([one, other])
    assert found.runs == ("by-hand", "fifo")
    rows = {row.figure: row.values for row in found.figures}
    assert (rows["delivered_owed_weekly"], rows["occupancy"], rows["waits_s all p90"]) == (
        (0.75, 0.0),
        (0.75, 0.0),
        (3_600.0, 14_400.0),
    )
    assert {row.figure: row.values for row in found.teams} == {"a": (0.75, None), "b": (None, 0.0)}
    assert {row.figure: row.values for row in found.delivered} == {"a": (24.0, 0.0), "b": (None, 0.0)}
    assert {row.figure: row.values for row in found.teams_waits} == {"a": (3_600.0, None), "b": (None, 14_400.0)}


def test_two_runs_of_one_policy_are_told_apart() -> None:
    assert figures.compare([generated(1, days=1), generated(2, days=1)]).runs == ("generated", "generated 2")


def test_names_may_come_from_the_caller() -> None:
    measured = figures.measure(generated(1, days=1))
    found = figures.side_by_side({"what was": measured, "as proposed": replace(measured, policy="x")})
    assert found.runs == ("what was", "as proposed")
    assert [row.figure for row in found.figures][: len(COMPARED)] == list(COMPARED)
