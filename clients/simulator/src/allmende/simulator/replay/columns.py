"""The three columns: what was, the rules on today's tree, the rules on the proposed tree. Measures and compares; never judges.

The second tells how far a replay is from the truth; only the third against the second tells what the proposal changes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from allmende.admission.model.values import Terms
from allmende.preemptor.model import Policy
from allmende.proto.admission import PastJob
from allmende.proto.budget import Budget
from allmende.proto.history import LabHistory
from allmende.proto.units import DAY_MS, MINUTE_MS, format_duration
from allmende.simulator.figures import Figures, measure
from allmende.simulator.figures.model import Team, Waits
from allmende.simulator.figures.quotients import hours
from allmende.simulator.inputs.listed import Listed
from allmende.simulator.inputs.trees import with_members
from allmende.simulator.model import Cluster, History, Job, NodeSpec, TreeChange, Window
from allmende.simulator.policies.settings import Settings
from allmende.simulator.ports import Scenario
from allmende.simulator.replay import truth
from allmende.simulator.replay.jobs import again

WAS: Final = "was"
TODAY: Final = "today"
PROPOSAL: Final = "proposal"

# What no default of a rule says: the services set the ledger's window and how long free work is kept back, and no agent has told
# them yet whose devices are idle.
_SET_BY_SERVICES: Final = {"window_ms": 7 * DAY_MS, "requeue_backoff_max_ms": 30 * MINUTE_MS, "idle_after_ms": 0}

# Why a job is refused whose leaf is gone or has become an inner budget: `with_members` says how many there are.
_NO_LEAF: Final = ("unknown_budget", "budget_not_leaf")


def _as_services() -> Settings:
    rules = {each.name: each.default for each in fields(Terms) if each.default is not NODEFAULT} | Policy._field_defaults
    left_alone = {name: rules[name] for name in Settings.__struct_fields__ if name in rules}
    return Settings(**left_alone | _SET_BY_SERVICES)


AS_SERVICES: Final = _as_services()
"""The rules as the services have them by default: what the simulator can do beyond that would be held against the proposal."""

Play: TypeAlias = Callable[[Scenario, str], History | None]
"""Runs a scenario by the rules; None: it was stopped. The text is for the progress bar."""


class Lab(Struct, frozen=True, kw_only=True):
    """One column's figures of the whole cluster (contract §10). None: nobody knows."""

    available_gpu_hours: float
    occupancy: float | None
    demand: float | None
    owed_gpu_hours: float
    delivered_gpu_hours: float
    unallocated_gpu_hours: float
    delivered_owed_plain: float | None
    delivered_owed_weekly: float | None
    teams_at_95: int
    teams_owed: int
    worst_team: float | None
    worst_team_name: str | None
    waits_s: Waits
    waits_debug_s: Waits
    evictions: int
    lost_fraction: float | None
    jobs_submitted: int
    jobs_started: int
    jobs_finished: int
    jobs_refused: int


class Side(Struct, frozen=True, kw_only=True):
    """One team in one column. Ratios None: nothing was owed to it."""

    budget: str
    effective_share_ppm: int | None
    """At the end; None: unset, or no leaf of that tree."""
    entitled_gpu_hours: float
    demand_gpu_hours: float
    owed_gpu_hours: float
    delivered_gpu_hours: float
    delivered_owed_plain: float | None
    delivered_owed_weekly: float | None
    waits_s: Waits
    evictions: int


class Column(Struct, frozen=True, kw_only=True):
    """One column: the whole cluster, each team, and sentences about this column alone."""

    lab: Lab
    teams: tuple[Side, ...]
    notes: tuple[str, ...]


class Replay(Struct, frozen=True, kw_only=True):
    """All that a report shows, and `--json` prints."""

    cluster: str
    gpus: int
    proposal_file: str
    from_ms: int
    to_ms: int
    asked_from_ms: int
    notes: tuple[str, ...]
    columns: dict[str, Column]


class Prepared(NamedTuple):
    """The past, ready: what was, and what is to be run again."""

    past: LabHistory
    window: Window
    was: History
    jobs: tuple[Job, ...]
    notes: tuple[str, ...]


def prepare(past: LabHistory) -> Prepared:
    """Make of the past what is measured and what is run."""
    span = truth.window(past)
    own = truth.here(past)
    cluster = _cluster(past, own)
    was = truth.history(past, cluster, own)
    work = again(past, own, span.begin_ms)
    return Prepared(past, span, was, work.jobs, (*_span_said(past, span), *work.notes, *_lab_said(past, span)))


def replay(prepared: Prepared, proposal: Sequence[Budget], name: str, play: Play) -> Replay | None:
    """Measure what was, run both trees, and put them side by side; None: a run was stopped."""
    columns = {WAS: _column(prepared.was, ())}
    for key, tree, label in ((TODAY, prepared.past.trees[-1].budgets, "today's tree"), (PROPOSAL, proposal, name)):
        whole, notes = with_members(tree, prepared.jobs)
        scenario = Scenario(
            name=key,
            cluster=prepared.was.cluster,
            trees=(TreeChange(prepared.window.begin_ms, whole),),
            workload=Listed(prepared.jobs),
            window=prepared.window,
        )
        history = play(scenario, label)
        if history is None:
            return None
        columns[key] = _column(history, notes)
    return Replay(
        cluster=prepared.past.cluster,
        gpus=prepared.was.cluster.gpus,
        proposal_file=name,
        from_ms=prepared.window.from_ms,
        to_ms=prepared.window.to_ms,
        asked_from_ms=prepared.past.from_ms,
        notes=prepared.notes,
        columns=columns,
    )


def _cluster(past: LabHistory, jobs: Sequence[PastJob]) -> Cluster:
    nodes = tuple(NodeSpec(node.node, node.installed_gpus, node.gpu_model) for node in past.nodes if node.installed_gpus)
    starts = sorted(
        each.started_at_ms - each.granted_at_ms for job in jobs for each in job.attempts if each.started_at_ms is not None
    )
    plain = Cluster(past.cluster, nodes)
    # As long as half of the starts took at most.
    return plain._replace(start_ms=max(0, starts[(len(starts) - 1) // 2])) if starts else plain


def _span_said(past: LabHistory, span: Window) -> list[str]:
    said: list[str] = []
    if span.from_ms > past.from_ms:
        said.append(f"the lab's history begins {format_duration(span.to_ms - span.from_ms)} ago: that is what was measured")
    warm_up_ms = span.from_ms - span.begin_ms
    if warm_up_ms:
        said.append(
            f"the replays begin {format_duration(warm_up_ms)} before what is measured, so that queue and standings have built up"
        )
    changes = sum(span.begin_ms < tree.from_ms < span.to_ms for tree in past.trees[1:])
    if changes:
        times = "once" if changes == 1 else f"{changes} times"
        said.append(
            f"the tree changed {times} meanwhile: `was` is measured by what was in force, `today` by the last revision all along"
        )
    return said


def _lab_said(past: LabHistory, span: Window) -> list[str]:
    said = ["jobs come when they came, however long they wait; resumable ones are taken to save their work once a slice"]
    installed = sum(node.installed_gpus for node in past.nodes)
    measured = [bucket for bucket in past.books if bucket.from_ms >= span.from_ms]
    available = sum(bucket.available_gpu_ms for bucket in measured)
    whole = installed * sum(min(past.step_ms, past.to_ms - bucket.from_ms) for bucket in measured)
    if whole and abs(available - whole) * 100 > whole:
        percent = 100 * available // whole
        said.append(
            f"the replays have the {installed:,} GPUs of today's nodes all along; really {percent} % of so many were available"
        )
    return said


def _column(history: History, notes: tuple[str, ...]) -> Column:
    figures = measure(history)
    codes = Counter(life.refused for life in history.lives.values() if life.refused is not None)
    gone = sum(codes.pop(code, 0) for code in _NO_LEAF)
    if gone:
        notes = (*notes, "to see what a leaf would get that is only called otherwise, leave it its old name in the file")
    if codes:
        told = ", ".join(f"{count:,} {code}" for code, count in sorted(codes.items()))
        notes = (*notes, f"refused for other reasons: {told}" if gone else f"refused: {told}")
    # What each save was is not known of the past, so neither is what an eviction lost.
    lab = _lab(figures, known=history.policy != truth.NAME)
    return Column(lab=lab, teams=tuple(_side(team) for team in figures.teams), notes=notes)


def _side(team: Team) -> Side:
    return Side(**{name: getattr(team, name) for name in Side.__struct_fields__})


def _lab(figures: Figures, *, known: bool) -> Lab:
    return Lab(
        available_gpu_hours=hours(sum(figures.hourly.available)),
        occupancy=figures.occupancy,
        demand=figures.demand,
        owed_gpu_hours=hours(sum(sum(team.owed) for team in figures.hourly.teams)),
        delivered_gpu_hours=figures.delivered_gpu_hours,
        unallocated_gpu_hours=figures.unallocated_gpu_hours,
        delivered_owed_plain=figures.delivered_owed_plain,
        delivered_owed_weekly=figures.delivered_owed_weekly,
        teams_at_95=figures.teams_at_95,
        teams_owed=figures.teams_owed,
        worst_team=figures.worst_team,
        worst_team_name=figures.worst_team_name,
        waits_s=figures.waits_s["all"],
        waits_debug_s=figures.waits_s["debug"],
        evictions=figures.evictions,
        lost_fraction=figures.lost_fraction if known else None,
        jobs_submitted=figures.jobs_submitted,
        jobs_started=figures.jobs_started,
        jobs_finished=figures.jobs_finished,
        jobs_refused=figures.outcomes.get("refused", 0),
    )
