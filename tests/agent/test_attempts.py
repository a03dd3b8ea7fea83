"""What the agent does with orders: started once, ended once, said until confirmed."""

import pytest

from allmende.agent.sdk.attempts import Fetch, Say, Start, Wake
from allmende.agent.sdk.backend import Cause, Exit, NodeState, Vitals
from allmende.agent.sdk.counters import COUNTERS_A_MESSAGE
from allmende.proto import envelope
from allmende.proto.agent import AttemptStarted, Counter, GpuFreed, NodeReported, UsageTick
from allmende.proto.units import MINUTE_MS, SECOND_MS
from tests.agent.builders import (
    EPOCH,
    PAYLOAD,
    PLAN,
    T0,
    attempt,
    attempts,
    eviction,
    grant,
    run,
    said,
    signals,
    stop,
    the_end,
)


def test_a_grant_is_fetched_started_and_reported() -> None:
    made = attempts()
    assert made.granted(grant(), T0) == [Fetch(attempt())]
    (start,) = made.payload(attempt(), PAYLOAD)
    assert isinstance(start, Start)
    assert [(place.node, place.devices) for place in start.launch.places] == [("n1", (0, 1))]
    (started,) = said(made.started(attempt(), T0 + 5, T0 + 9))
    assert isinstance(started, AttemptStarted)
    assert started.started_at_ms == T0 + 5


@pytest.mark.parametrize("when", ["fetching", "starting", "running", "ended", "never started"])
def test_a_repeated_grant_does_nothing(when: str) -> None:
    made = attempts()
    made.granted(grant(), T0)
    if when == "never started":
        made.cannot_start(attempt(), T0, "no payload")
    elif when != "fetching":
        made.payload(attempt(), PAYLOAD)
        if when != "starting":
            made.started(attempt(), T0, T0)
        if when == "ended":
            made.exited(Exit(attempt(), T0 + 1, "finished", 0))
            made.confirmed([attempt()])
    assert made.granted(grant(), T0 + 10) == []


@pytest.mark.parametrize(
    ("sentence", "given"),
    [
        ("a node that nobody knows", grant(placement=(("n9", 1),))),
        ("more GPUs than the node has", grant(placement=(("n1", 5),))),
        ("an older term than was heard", grant(fence=2)),
        ("a gang of which one replica has no place", grant(placement=(("n1", 4), ("n9", 1)))),
    ],
)
def test_a_grant_that_cannot_be_carried_out_never_started(sentence: str, given: object) -> None:
    made = attempts()
    made.granted(grant(50, placement=(("n2", 1),)), T0)
    end = the_end(made.granted(given, T0))  # type: ignore[arg-type]
    assert (end.outcome, end.counters, bool(end.detail)) == ("never_started", (), True), sentence
    # Nothing stays taken: all of n1 can still be granted.
    assert made.granted(grant(3, placement=(("n1", 4),)), T0) == [Fetch(attempt(3))]


def test_gpus_are_taken_until_the_end() -> None:
    made = attempts()
    run(made, grant(1, placement=(("n1", 4),)))
    assert the_end(made.granted(grant(2), T0)).outcome == "never_started"
    freed = said(made.exited(Exit(attempt(1), T0 + 7, "finished", 0)))[-1]
    assert isinstance(freed, GpuFreed)
    assert [(each.node, each.gpus) for each in freed.nodes] == [("n1", 8)]
    assert made.granted(grant(3), T0) == [Fetch(attempt(3))]


def test_counters_are_cumulative_and_the_last_is_exact() -> None:
    made = attempts()
    run(made, grant(placement=(("n1", 1), ("n2", 1))))
    ticks = [body for body in said(made.tick(T0 + 10_000, {attempt(): Vitals(T0 + 3, 5)})) if isinstance(body, UsageTick)]
    assert {tick.node: len(tick.counters) for tick in ticks} == {"n1": 1, "n2": 1}
    (counter,) = ticks[1].counters
    assert counter == Counter(
        attempt=attempt(),
        replica=1,
        epoch=EPOCH,
        seq=1,
        since_ms=T0,
        held_ms=10_000,
        used_gpu_ms=20_000,
        busy_gpu_ms=5,
        checkpoint_at_ms=T0 + 3,
    )
    end = the_end(made.exited(Exit(attempt(), T0 + 12_345, "finished", 0)))
    assert [(each.seq, each.held_ms, each.used_gpu_ms) for each in end.counters] == [(2, 12_345, 24_690)] * 2


def test_a_counter_never_falls_when_an_end_is_noticed_late() -> None:
    made = attempts()
    run(made, grant())
    made.tick(T0 + 10_000, {attempt(): Vitals()})
    end = the_end(made.exited(Exit(attempt(), T0 + 9_000, "finished", 0)))
    assert (end.ended_at_ms, end.counters[0].held_ms) == (T0 + 10_000, 10_000)


def test_a_node_without_work_says_that_it_lives_and_a_lost_one_does_not() -> None:
    made = attempts()
    made.node_changed(NodeState("n2", 8, 0), T0)
    (tick,) = said(made.tick(T0 + 1, {}))
    assert isinstance(tick, UsageTick)
    assert (tick.node, tick.counters) == ("n1", ())


def test_a_node_is_reported_when_it_changes_with_a_growing_number() -> None:
    made = attempts()
    assert made.node_changed(NodeState("n1", 8, 8), T0) == []
    bodies = said(made.node_changed(NodeState("n1", 8, 0, reason="dark"), T0)) + said(
        made.node_changed(NodeState("n1", 8, 8), T0 + 1)
    )
    assert [(body.healthy_gpus, body.seq) for body in bodies if isinstance(body, NodeReported)] == [(0, EPOCH + 3), (8, EPOCH + 4)]


def test_eviction_is_term_then_kill_after_the_grace_and_names_its_plan() -> None:
    made = attempts()
    run(made, grant())
    actions = made.evicted(eviction(grace_ms=120_000), T0 + 1)
    assert signals(actions) == ["TERM"]
    assert Wake(T0 + 120_001) in actions
    assert made.due(T0 + 120_000) == []
    assert signals(made.due(T0 + 120_001)) == ["KILL"]
    assert made.due(T0 + 999_999) == []
    actions = made.exited(Exit(attempt(), T0 + 120_001, "signalled", 137, T0))
    end, freed = said(actions)
    assert (the_end(actions).outcome, the_end(actions).plan, the_end(actions).checkpoint_at_ms) == ("evicted", PLAN, T0)
    assert isinstance(freed, GpuFreed)
    assert freed.plan == PLAN
    assert end is the_end(actions)


def test_a_job_that_finishes_within_its_grace_has_finished_and_its_gpus_belong_to_the_plan() -> None:
    made = attempts()
    run(made, grant())
    made.evicted(eviction(), T0)
    actions = made.exited(Exit(attempt(), T0 + 5, "finished", 0))
    assert the_end(actions).outcome == "finished"
    assert [body.plan for body in said(actions) if isinstance(body, GpuFreed)] == [PLAN]


def test_a_shorter_grace_wins_and_sigterm_is_sent_once() -> None:
    made = attempts()
    run(made, grant())
    made.evicted(eviction(grace_ms=120 * SECOND_MS), T0)
    assert signals(made.stopped(stop(grace_ms=10 * SECOND_MS), T0 + 1)) == []
    assert signals(made.due(T0 + 10 * SECOND_MS + 1)) == ["KILL"]
    assert the_end(made.exited(Exit(attempt(), T0 + 10_001, "signalled", 137))).outcome == "evicted"


def test_a_stop_before_the_start_never_started_and_a_late_payload_does_nothing() -> None:
    made = attempts()
    made.granted(grant(), T0)
    end = the_end(made.stopped(stop(), T0))
    assert end.outcome == "never_started"
    assert made.payload(attempt(), PAYLOAD) == []


def test_a_stop_while_starting_is_carried_out_at_the_start() -> None:
    made = attempts()
    made.granted(grant(), T0)
    made.payload(attempt(), PAYLOAD)
    assert made.stopped(stop(), T0) == []
    assert signals(made.started(attempt(), T0 + 2, T0 + 3)) == ["TERM"]
    assert the_end(made.exited(Exit(attempt(), T0 + 5, "signalled", 143))).outcome == "stopped"


def test_an_order_that_comes_before_its_grant_is_answered_and_the_grant_never_starts() -> None:
    made = attempts()
    assert the_end(made.evicted(eviction(), T0)).plan == PLAN
    assert made.granted(grant(), T0) == []
    assert made.stopped(stop(), T0) == []


def test_an_end_before_the_start_was_reported_comes_after_it() -> None:
    made = attempts()
    made.granted(grant(), T0)
    made.payload(attempt(), PAYLOAD)
    assert made.exited(Exit(attempt(), T0 + 1, "failed", 127)) == []
    bodies = said(made.started(attempt(), T0, T0 + 2))
    assert [type(body).__name__ for body in bodies] == ["AttemptStarted", "AttemptEnded", "GpuFreed"]


def test_somebody_elses_signal_is_a_failure() -> None:
    made = attempts()
    run(made, grant())
    assert the_end(made.exited(Exit(attempt(), T0 + 1, "signalled", 137))).outcome == "failed"


def test_a_node_that_goes_down_takes_what_was_about_to_start_there() -> None:
    made = attempts()
    made.granted(grant(placement=(("n1", 1), ("n2", 1))), T0)
    assert the_end(made.node_changed(NodeState("n2", 8, 0), T0 + 1)).outcome == "never_started"


def test_ends_are_kept_until_confirmed() -> None:
    made = attempts()
    run(made, grant())
    made.exited(Exit(attempt(), T0 + 1, "finished", 0))
    assert [each.body.attempt for each in made.unconfirmed] == [attempt()]
    made.confirmed([attempt(5)])
    assert len(made.unconfirmed) == 1
    made.confirmed([attempt()])
    assert made.unconfirmed == ()


def test_finals_of_a_gang_too_large_for_one_message_come_with_its_nodes() -> None:
    nodes = tuple(f"n{number}" for number in range(1, 41))
    made = attempts(*nodes)
    run(made, grant(placement=tuple((node, 8) for node in nodes), gpus=1))
    bodies = said(made.exited(Exit(attempt(), T0 + MINUTE_MS, "finished", 0)))
    finals = [counter for body in bodies for counter in getattr(body, "counters", ())]
    assert sorted(counter.replica for counter in finals) == list(range(320))
    assert len(the_end([Say(body, T0) for body in bodies]).counters) == COUNTERS_A_MESSAGE
    for body in bodies:
        envelope.encode(envelope.Envelope(id=PLAN, type=body.TYPE, version=1, occurred_at_ms=T0, sent_at_ms=T0, body=body))


def test_cause_names_are_those_of_the_orders() -> None:
    made = attempts()
    run(made, grant())
    (signal, _) = made.stopped(stop(reason="max_runtime"), T0)
    assert getattr(signal, "cause", None) == Cause("stop", "max_runtime", 60_000)
