"""Declared lost: the agent kills it before it says anything else of it or its node, then reports the node anew. Record 0042."""

from allmende.agent.sdk.attempts import Action
from allmende.agent.sdk.backend import Exit, NodeState, Running, Vitals
from allmende.proto.agent import AttemptEnded, AttemptStarted, NodeReported, UsageTick
from allmende.proto.lost import LostAttempt, NodeDeclaredLost
from allmende.proto.units import SECOND_MS
from tests.agent.builders import T0, attempt, attempts, grant, job, launch, run, said, signals, the_end


def word(*numbers: int, node: str = "n1") -> NodeDeclaredLost:
    """An operator took a node for dead, and these attempts with it."""
    return NodeDeclaredLost(
        cluster="c1",
        node=node,
        by="olga",
        reason="no power",
        declared_at_ms=T0 + SECOND_MS,
        last_seen_ms=T0,
        reported_at_ms=T0,
        reported_seq=1,
        installed_gpus=8,
        attempts=tuple(LostAttempt(attempt=attempt(number), job=job(number), ended_at_ms=T0) for number in numbers),
    )


def reports(actions: list[Action]) -> list[str]:
    """The nodes that are reported."""
    return [body.node for body in said(actions) if isinstance(body, NodeReported)]


def test_a_whole_gang_is_killed_without_grace_and_its_node_is_reported_once_it_is_dead() -> None:
    made = attempts()
    run(made, grant(placement=(("n1", 1), ("n2", 1))))
    actions = made.declared_lost(word(1), T0 + 5)
    assert (signals(actions), said(actions)) == (["KILL"], [])
    assert made.is_fenced("n1")
    ticks = [body for body in said(made.tick(T0 + 9, {attempt(): Vitals()})) if isinstance(body, UsageTick)]
    assert [(each.node, each.counters) for each in ticks] == [("n2", ())]
    assert made.node_changed(NodeState("n1", 8, 7), T0 + 9) == []
    over = made.exited(Exit(attempt(), T0 + 10, "signalled"))
    assert (the_end(over).outcome, reports(over)) == ("node_lost", ["n1"])
    (report,) = [body for body in said(over) if isinstance(body, NodeReported)]
    assert (report.healthy_gpus, report.at_ms) == (7, T0 + 10)
    assert not made.is_fenced("n1")


def test_a_repeat_kills_nothing_and_reports_the_node_again() -> None:
    made = attempts()
    run(made, grant())
    made.declared_lost(word(1), T0 + 5)
    made.exited(Exit(attempt(), T0 + 10, "signalled"))
    run(made, grant(2), T0 + 20)
    again = made.declared_lost(word(1), T0 + 30)
    assert (signals(again), [body.TYPE for body in said(again)]) == ([], [NodeReported.TYPE])
    assert made.open == (attempt(2),)


def test_what_the_agent_does_not_run_is_said_to_have_ended() -> None:
    made = attempts()
    actions = made.declared_lost(word(1, 2), T0 + 5)
    ends = [(body.attempt, body.outcome, body.counters) for body in said(actions) if isinstance(body, AttemptEnded)]
    assert ends == [(attempt(1), "node_lost", ()), (attempt(2), "node_lost", ())]
    assert reports(actions) == ["n1"]
    assert made.granted(grant(1), T0 + 6) == [], "and its grant, coming after that, starts nothing"


def test_one_that_has_not_started_never_runs() -> None:
    made = attempts()
    made.granted(grant(1), T0)
    made.granted(grant(2), T0)
    made.payload(attempt(2), launch(2).payload)
    actions = made.declared_lost(word(1, 2), T0 + 5)
    assert (the_end(actions).attempt, reports(actions)) == (attempt(1), [])
    started = made.started(attempt(2), T0 + 6, T0 + 7)
    assert signals([*started, *made.due(T0 + 7)]) == ["TERM", "KILL"]


def test_one_that_could_not_be_started_after_all_opens_the_fence_as_well() -> None:
    made = attempts()
    made.granted(grant(), T0)
    made.payload(attempt(), launch().payload)
    assert reports(made.declared_lost(word(1), T0 + 5)) == []
    assert reports(made.cannot_start(attempt(), T0 + 6, "no such account")) == ["n1"]


def test_a_node_that_is_lost_twice_is_reported_once_all_of_both_are_dead() -> None:
    made = attempts()
    run(made, grant(1))
    run(made, grant(2))
    made.declared_lost(word(1), T0 + 5)
    assert reports(made.declared_lost(word(2), T0 + 6)) == []
    assert reports(made.exited(Exit(attempt(2), T0 + 7, "signalled"))) == []
    assert reports(made.exited(Exit(attempt(1), T0 + 8, "signalled"))) == ["n1"]


def test_an_adopted_one_is_killed_before_anything_is_said_of_it() -> None:
    made = attempts()
    running = Running(launch(1, nodes=("n1",)), T0, 500)
    assert made.adopted(running, T0 + 3, fenced=True) == []
    actions = made.declared_lost(word(1), T0 + 4)
    assert (signals(actions), len(actions)) == (["KILL"], 1)


def test_one_that_nobody_declared_lost_is_adopted_as_ever() -> None:
    made = attempts()
    (start,) = said(made.adopted(Running(launch(1, nodes=("n1",)), T0, 500), T0 + 3))
    assert isinstance(start, AttemptStarted)
