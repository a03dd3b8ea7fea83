"""The demo's screen while it runs: one panel on a terminal, a line every few seconds elsewhere."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from rich.console import Group, RenderableType

from allmende.cli import render
from allmende.proto.ledger import UsageStanding
from allmende.proto.standing import Standing
from allmende.proto.units import Ms, format_duration


class Moment(Struct, frozen=True, kw_only=True):
    """What is known right now. GPUs are counts; `elapsed_ms` is lab time since the load began.

    Jobs are submitted and end once; `started` counts attempts, of which a job has several.
    """

    elapsed_ms: Ms
    healthy: int
    held: int
    waiting: int
    submitted: int
    started: int
    ended: int
    evicted: int
    standings: Mapping[str, UsageStanding]
    leaves: Sequence[str]


def line(moment: Moment) -> str:
    """One line for a log."""
    share = 100 * moment.held / moment.healthy if moment.healthy else 0
    return (
        f"{format_duration(moment.elapsed_ms):>8}  {moment.held}/{moment.healthy} GPUs held ({share:.1f} %)  "
        f"{moment.waiting} wait  {moment.submitted} submitted  {render.count(moment.started, 'start')}  {moment.ended} ended  "
        f"{render.count(moment.evicted, 'eviction')}"
    )


def panel(moment: Moment) -> RenderableType:
    """The same with the standings that sort the queue, most owed first."""
    ordered = sorted(
        (moment.standings[leaf] for leaf in moment.leaves if leaf in moment.standings),
        key=lambda each: (_standing(each).ratio, each.budget),
    )
    rows = [(each.budget, render.ratio(*_standing(each)), render.tier(_standing(each)), _bar(_standing(each))) for each in ordered]
    return Group(line(moment), "", render.table("Who is owed, who has had more", ("TEAM", "RATIO#", "", ""), rows))


def _standing(each: UsageStanding) -> Standing:
    return Standing(each.charged_gpu_ms + each.held_gpu_ms, each.entitlement_gpu_ms)


def _bar(standing: Standing, whole: int = 20) -> str:
    """A bar whose 20 characters are a ratio of 1; twice as long at most."""
    if not standing.entitlement:
        return ""
    return "█" * min(2 * whole, standing.used * whole // standing.entitlement)
