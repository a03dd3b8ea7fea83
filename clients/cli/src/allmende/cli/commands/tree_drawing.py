"""The tree of budgets as people look at it: shares, what they are worth a day on the GPUs of now, who manages what."""

from collections.abc import Mapping
from fractions import Fraction

from rich.console import RenderableType
from rich.tree import Tree

from allmende.cli import render
from allmende.cli.commands.tree import WholeTree
from allmende.cli.commands.writes import share
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import Session
from allmende.proto import subjects
from allmende.proto.budget import Budget
from allmende.proto.ledger import StandingsQuery, StandingsReply
from allmende.proto.tree import effective_share, leaves, paths
from allmende.proto.units import DAY_MS, PPM_WHOLE, format_share

_MANAGERS_NAMED = 3


async def available(opened: Session) -> int | None:
    """GPUs available on all clusters of the lab now; None, unknown, where the ledger cannot say it of each.

    Raises:
        CommandFailed: somebody else than the ledger is missing.
    """
    if not opened.place.clusters:
        return None
    gpus = 0
    for cluster in opened.place.clusters:
        try:
            # The last name that there can be: the figure of the cluster comes with any page.
            gpus += (
                await opened.ask(subjects.STANDINGS, StandingsQuery(cluster=cluster, after="z" * 63), StandingsReply)
            ).available_gpus
        except CommandFailed as failed:
            # The tree is worth showing although the ledger is away.
            if failed.exit_code in (Exit.REFUSED, Exit.UNREACHABLE):
                return None
            raise
    return gpus


def drawn(tree: WholeTree, gpus: int | None) -> RenderableType:
    """A revision as a tree. `gpus`: GPUs available now; None where that is unknown, and then no amounts are shown."""
    by_name = {each.budget: each for each in tree.budgets}
    trails = paths(by_name)
    leaf = leaves(by_name)
    branches: dict[str, Tree] = {}
    root = Tree(f"revision {tree.revision} by {tree.author}" + (f": {tree.reason}" if tree.reason else ""))
    for name in sorted(by_name, key=lambda each: (len(trails[each]), trails[each])):
        each = by_name[name]
        above = branches[each.parent] if each.parent else root
        branches[name] = above.add(_line(each, trails[name], by_name, name in leaf, gpus))
    return root


def _line(each: Budget, trail: tuple[str, ...], by_name: Mapping[str, Budget], is_leaf: bool, gpus: int | None) -> str:
    factors, is_set = effective_share(trail, by_name)
    effective = Fraction(1)
    for factor in factors:
        effective *= Fraction(factor, PPM_WHOLE)
    parts = [each.budget + (f" ({each.title})" if each.title else "")]
    if each.parent:
        parts.append(f"{share(each.share_ppm)} of {each.parent}" if each.share_ppm is not None else "no share set")
    if each.parent and is_set:
        parts.append(f"{format_share(int(effective * PPM_WHOLE))} of everything")
    if gpus is not None and (is_set or not each.parent):
        parts.append(f"{render.gpu_hours(int(effective * gpus * DAY_MS))} GPU-hours a day")
    if is_leaf:
        parts.append(render.count(len(each.members), "member"))
    if each.managers:
        more = len(each.managers) - _MANAGERS_NAMED
        named = ", ".join(each.managers[:_MANAGERS_NAMED]) + (f" and {more} more" if more > 0 else "")
        parts.append(f"managed by {named}")
    return ", ".join(parts)
