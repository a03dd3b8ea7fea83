"""Three columns of one past: measured alike, run by the services' rules, and only the third knows the proposal."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import fields

from allmende.admission.config import Settings as AdmissionSettings
from allmende.admission.model.values import Terms
from allmende.ledger.config import Settings as LedgerSettings
from allmende.preemptor.config import Settings as PreemptorSettings
from allmende.preemptor.model import Policy
from allmende.proto.budget import Budget
from allmende.proto.history import LabHistory, PastTree
from allmende.simulator.model import History
from allmende.simulator.policies.allmende import Allmende
from allmende.simulator.ports import Scenario
from allmende.simulator.replay.columns import AS_SERVICES, PROPOSAL, TODAY, WAS, Column, Replay, Side, prepare, replay
from allmende.simulator.world.engine import World
from tests.simulator.replay.builders import at, books, busy, node, past, past_job, tree

TOOLS = {"user": "bob", "budget": "tools"}


def played(scenario: Scenario, _label: str) -> History:
    return World(scenario, Allmende(AS_SERVICES, scenario.cluster), 1).run()


def columns(known: LabHistory, proposal: Sequence[Budget] | None = None) -> Replay:
    found = replay(prepare(known), proposal or tree(vision=10, tools=90), "proposal.toml", played)
    assert found is not None
    return found


def side(column: Column, name: str) -> Side:
    return next(each for each in column.teams if each.budget == name)


# ---------------------------------------------------------------------------------------------------------------- three columns


def test_what_was_is_measured_like_a_replay() -> None:
    found = columns(past(past_job(1, (10, 60, "finished"), until=60)))
    assert list(found.columns) == [WAS, TODAY, PROPOSAL]
    lab, vision = found.columns[WAS].lab, side(found.columns[WAS], "vision")
    # 8 GPUs for 100 minutes, 50 of them held. Half of an hour is owed at most: 4 GPU-hours while it waited or ran.
    assert (lab.available_gpu_hours, lab.occupancy, lab.delivered_gpu_hours) == (13.333333, 0.5, 6.666667)
    assert (vision.effective_share_ppm, vision.owed_gpu_hours, vision.demand_gpu_hours) == (500_000, 4.0, 8.0)
    assert (vision.delivered_owed_weekly, vision.waits_s.p90) == (1.0, 600.0)
    # By the rules it starts at once: a second passes between grant and start, as it did.
    assert round(side(found.columns[TODAY], "vision").waits_s.p90 or 0) == 1
    assert found.columns[TODAY].lab.jobs_finished == 1


def test_what_an_eviction_lost_is_unknown_of_the_past_and_known_of_a_replay() -> None:
    found = columns(past(past_job(1, (0, 10, "evicted"), (20, 40, "finished"), until=40)))
    assert (found.columns[WAS].lab.evictions, found.columns[WAS].lab.lost_fraction) == (1, None)
    assert (found.columns[TODAY].lab.evictions, found.columns[TODAY].lab.lost_fraction) == (0, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_proposal_that_is_todays_tree_gives_the_same_column(seed: int) -> None:
    known = busy(seed)
    found = columns(known, known.trees[-1].budgets)
    assert found.columns[PROPOSAL] == found.columns[TODAY]
    # And the one that differs does so only in its own column.
    other = columns(known)
    assert [other.columns[key] == found.columns[key] for key in (WAS, TODAY, PROPOSAL)] == [True, True, False]


@pytest.mark.parametrize(("vision", "first"), [(90, "vision"), (10, "tools")])
def test_who_has_more_by_the_proposal_goes_first(vision: int, first: str) -> None:
    both = (past_job(1, (0, 30, "finished"), until=30), past_job(2, (30, 60, "finished"), until=60, **TOOLS))
    column = columns(past(*both), tree(vision=vision, tools=100 - vision)).columns[PROPOSAL]
    waits = {name: side(column, name).waits_s.p90 or 0 for name in ("vision", "tools")}
    other = "tools" if first == "vision" else "vision"
    # A second from grant to start, half an hour, and another second.
    assert {name: round(wait) for name, wait in waits.items()} == {first: 1, other: 30 * 60 + 2}


def test_what_was_is_measured_by_the_trees_that_were_in_force() -> None:
    shares = {-9: 50, 50: 25}
    trees = tuple(PastTree(revision=1, from_ms=at(minute), budgets=tree(vision=share)) for minute, share in shares.items())
    known = past(past_job(1, (0, 99, "finished"), until=99), trees=trees)
    found = columns(known)
    entitled = {key: side(found.columns[key], "vision").entitled_gpu_hours for key in (WAS, TODAY, PROPOSAL)}
    # 8 GPUs: a half for 50 minutes and a quarter for 50; a quarter all along; a tenth all along.
    assert {key: round(hours * 60) for key, hours in entitled.items()} == {WAS: 300, TODAY: 200, PROPOSAL: 80}
    assert any("the tree changed once meanwhile" in note for note in found.notes)


def test_a_replay_that_was_stopped_is_none() -> None:
    asked: list[str] = []

    def stops_at(label: str) -> Any:
        def play(scenario: Scenario, name: str) -> History | None:
            asked.append(name)
            return None if name == label else played(scenario, name)

        return play

    prepared = prepare(past(past_job(1, (0, 9, "finished"), until=9)))
    for label in ("today's tree", "p.toml"):
        assert replay(prepared, tree(vision=1), "p.toml", stops_at(label)) is None
    assert asked == ["today's tree", "today's tree", "p.toml"]


# ------------------------------------------------------------------------------------------------------------------ what is said

RAN = past_job(1, (0, 60, "finished"), until=60)

# A past and a proposal (None: today's tree), and a note: of the lab, or of the column that is named.
SAID: dict[str, tuple[LabHistory, Sequence[Budget] | None, str | None, str]] = {
    "a lab that is younger than what was asked about": (
        past(past_job(1, (40, 60, "finished"), submitted=40, until=60)), None, None, "the lab's history begins 1h ago"
    ),
    "what leads up to it": (
        past(past_job(1, (-30, 60, "finished"), submitted=-30, until=60), begin=-50), None, None, "begin 30m before"
    ),
    "that people do not wait for one another": (past(RAN), None, None, "jobs come when they came"),
    "that nodes were down": (past(RAN, books=books([8] * 5 + [0] * 5, 10)), None, None, "really 50 % of so many were available"),
    "that there were more nodes": (past(RAN, nodes=(node(gpus=4),)), None, None, "the 4 GPUs of today's nodes"),
    "whose budget is gone by the proposal": (past(RAN), tree(sound=50), PROPOSAL, "1 jobs name what is no leaf of the tree"),
    "what to do for a budget that has another name": (past(RAN), tree(sound=50), PROPOSAL, "leave it its old name in the file"),
    "who is no member by the proposal": (
        past(RAN), (Budget(budget="lab"), Budget(budget="vision", parent="lab", share_ppm=9)), PROPOSAL, "1 memberships were added"
    ),
    "who is refused for another reason": (past(RAN, nodes=(node(gpus=4),)), None, TODAY, "refused: 1 never_fits"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", SAID)
def test_it_is_said(sentence: str) -> None:
    known, proposal, key, note = SAID[sentence]
    found = columns(known, proposal or known.trees[-1].budgets)
    assert note in " | ".join(found.notes if key is None else found.columns[key].notes)


def test_nothing_is_said_that_is_not_so() -> None:
    found = columns(past(RAN))
    assert [note.split(",")[0] for note in found.notes] == ["jobs come when they came"]
    assert [column.notes for column in found.columns.values()] == [(), (), ()]


# ------------------------------------------------------------------------------------------------------------------------- rules


def test_the_rules_are_set_as_the_services_set_them() -> None:
    ours = msgspec.structs.asdict(AS_SERVICES)
    for settings in (AdmissionSettings, LedgerSettings, PreemptorSettings):
        theirs = {each.name: each.default for each in fields(settings) if each.name in ours}
        assert theirs == {name: ours[name] for name in theirs}, settings


def test_what_no_service_has_is_off_and_not_left_as_the_simulator_has_it() -> None:
    known = {each.name for settings in (AdmissionSettings, LedgerSettings, PreemptorSettings) for each in fields(settings)}
    known |= {each.name for each in fields(Terms) if each.default is not msgspec.NODEFAULT} | set(Policy._fields)
    ours = msgspec.structs.asdict(AS_SERVICES)
    # No agent has told the services yet whose devices are idle.
    assert {name: value for name, value in ours.items() if name not in known} == {"idle_after_ms": 0}
