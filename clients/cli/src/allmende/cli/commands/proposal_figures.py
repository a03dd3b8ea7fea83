"""What is shown beside a proposal: shares, what is left over, standings. Pure: figures of now, as text; nothing is asked here."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType

from allmende.cli import instants, render
from allmende.cli.commands import dated
from allmende.cli.commands.tree import WholeTree
from allmende.cli.commands.writes import share
from allmende.proto.budget import Budget, ChildShare
from allmende.proto.ledger import UsageStanding
from allmende.proto.proposals import Proposal, ShareProposed
from allmende.proto.tree import named_clusters, share_on
from allmende.proto.units import PPM_WHOLE, Ms, Ppm, format_share


class LeftOn(Struct, frozen=True, kw_only=True):
    """What is left over on one cluster, now and with what is asked."""

    cluster: str
    left_over_ppm: Ppm | None
    left_over_after_ppm: Ppm | None
    """As now where the budget has a share of its own there: what is asked does not reach it. None: the budget is gone."""


class Beside(Struct, frozen=True, kw_only=True):
    """A proposal with the figures of now. What is unknown is None or missing, never zero."""

    proposal: Proposal
    tree_revision: int
    share_now_ppm: Ppm | None
    """None: unset, or the budget is gone."""
    siblings: tuple[ChildShare, ...]
    left_over_ppm: Ppm | None
    """What the parent has not shared; None where the parent is gone."""
    left_over_after_ppm: Ppm | None
    """The same with what is asked; below zero the siblings leave no room."""
    on_clusters: tuple["LeftOn", ...] = ()
    """The same on each cluster of which one of those who count in that sum has a share of its own."""
    standings: tuple[UsageStanding, ...]
    """Of the budget, one a cluster, where the ledger answers."""


def beside(proposal: Proposal, tree: WholeTree, standings: Sequence[UsageStanding]) -> Beside:
    """A proposal with the figures of a tree. Pure."""
    budgets = {row.budget: row for row in tree.budgets}
    asked = proposal.proposed
    row = budgets.get(asked.budget)
    after = {**budgets, row.budget: replace(row, share_ppm=asked.share_ppm)} if row is not None else None
    clusters = named_clusters(_counted(budgets, asked.parent))
    children = (each for each in tree.budgets if each.parent == asked.parent and each.budget != asked.budget)
    return Beside(
        proposal=proposal,
        tree_revision=tree.revision,
        share_now_ppm=row.share_ppm if row is not None else None,
        siblings=tuple(ChildShare(budget=each.budget, share_ppm=each.share_ppm) for each in children),
        left_over_ppm=left_over(budgets, asked.parent),
        left_over_after_ppm=None if after is None else left_over(after, asked.parent),
        on_clusters=tuple(_left_on(cluster, budgets, after, asked.parent) for cluster in clusters),
        standings=tuple(standings),
    )


def left_over(budgets: Mapping[str, Budget], parent: str, cluster: str | None = None) -> Ppm | None:
    """What is not shared of a budget, or of the nearest one above that has a share; None where it is gone.

    Those below an unset budget count where that one's parent is counted (contract §2). `cluster` None: where none has its own.
    """
    if parent not in budgets:
        return None
    return PPM_WHOLE - sum(share_on(row, cluster) or 0 for row in _counted(budgets, parent))


def _left_on(cluster: str, budgets: Mapping[str, Budget], after: Mapping[str, Budget] | None, parent: str) -> LeftOn:
    then = None if after is None else left_over(after, parent, cluster)
    return LeftOn(cluster=cluster, left_over_ppm=left_over(budgets, parent, cluster), left_over_after_ppm=then)


def _counted(budgets: Mapping[str, Budget], parent: str) -> list[Budget]:
    if parent not in budgets:
        return []
    holder = _holder(budgets, parent)
    return [row for row in budgets.values() if row.parent is not None and _holder(budgets, row.parent) == holder]


def _holder(budgets: Mapping[str, Budget], name: str) -> str:
    row = budgets[name]
    while row.share_ppm is None and row.parent is not None:
        row = budgets[row.parent]
    return row.budget


def table(proposals: Sequence[Beside], now_ms: Ms) -> render.Listing:
    columns = ("PROPOSAL", "BUDGET", "NOW#", "ASKED#", "OF", "LEFT#", "RATIO#", "FROM?", "UNTIL?", "BY", "WHEN?", "STATE", "TEXT~")
    title = "shares asked for, newest first" if proposals else "nobody asks for a share"
    return render.table(title, columns, [row_of(each, now_ms) for each in proposals])


def row_of(each: Beside, now_ms: Ms) -> tuple[str, ...]:
    asked, decided = each.proposal.proposed, each.proposal.decided
    return (
        render.short(asked.proposal),
        asked.budget,
        share(each.share_now_ppm),
        format_share(asked.share_ppm),
        asked.parent,
        " ".join([_amount(each.left_over_ppm), *(f"{own.cluster}:{_amount(own.left_over_ppm)}" for own in each.on_clusters)]),
        " ".join(_ratio(standing) for standing in each.standings) or "-",
        _from(asked),
        _until(asked),
        asked.author,
        render.ago(asked.proposed_at_ms, now_ms),
        decided.ending if decided else "open",
        asked.text if decided is None or not decided.reason else f"{asked.text} | {decided.by}: {decided.reason}",
    )


def _from(asked: ShareProposed) -> str:
    return "at once" if asked.effective_from_ms is None else instants.show(asked.effective_from_ms)


def _until(asked: ShareProposed) -> str:
    return "for good" if asked.effective_until_ms is None else instants.show(asked.effective_until_ms)


def in_full(each: Beside, now_ms: Ms) -> RenderableType:
    asked, decided = each.proposal.proposed, each.proposal.decided
    lines = [
        f"{asked.proposal}: {asked.budget} should have {what_is_asked(asked)} of {asked.parent}",
        f"asked by {asked.author} {render.ago(asked.proposed_at_ms, now_ms)}: {asked.text}",
    ]
    if decided is not None:
        lines.append(f"{decided.ending} by {decided.by} {render.ago(decided.decided_at_ms, now_ms)}: {decided.reason or '-'}")
    return Group("\n".join(lines), figures(each))


def figures(each: Beside) -> str:
    asked = each.proposal.proposed
    lines = [f"{asked.budget}: {share(each.share_now_ppm)} now, {format_share(asked.share_ppm)} asked"]
    lines += [f"{child.budget}: {share(child.share_ppm)}" for child in each.siblings]
    lines.append(f"left over: {_amount(each.left_over_ppm)}, with what is asked {_amount(each.left_over_after_ppm)}")
    lines += [
        f"left over on {own.cluster}: {_amount(own.left_over_ppm)}, with what is asked {_amount(own.left_over_after_ppm)}"
        for own in each.on_clusters
    ]
    lines += [
        f"{standing.cluster}, last seven days: {render.gpu_hours(standing.charged_gpu_ms + standing.held_gpu_ms)} GPU-h "
        f"of {render.gpu_hours(standing.entitlement_gpu_ms)} owed, ratio {_ratio(standing)}"
        for standing in each.standings
    ]
    return "\n".join(lines)


def _ratio(standing: UsageStanding) -> str:
    return render.ratio(standing.charged_gpu_ms + standing.held_gpu_ms, standing.entitlement_gpu_ms)


def what_is_asked(asked: ShareProposed) -> str:
    """The share, and for how long: of what is asked for good the share alone."""
    when = dated.dates(asked.effective_from_ms, asked.effective_until_ms)
    what = f"{format_share(asked.share_ppm)} instead of {share(asked.share_before_ppm)}"
    if asked.renews is not None:
        what = f"the renewal of {render.short(asked.renews)} ({format_share(asked.share_ppm)})"
    return what if when == "for good" else f"{what} {when}"


def _amount(ppm: Ppm | None) -> str:
    if ppm is None:
        return "-"
    return f"-{format_share(-ppm)}" if ppm < 0 else format_share(ppm)
