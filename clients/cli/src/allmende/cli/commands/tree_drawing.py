"""The tree of budgets as people look at it: shares, what they are worth a day on the GPUs of now, who manages what."""

from collections.abc import Iterator, Mapping
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
from allmende.proto.tree import effective_share, leaves, named_clusters, paths, share_on
from allmende.proto.units import DAY_MS, PPM_WHOLE, format_share

_MANAGERS_NAMED = 3


async def available(opened: Session) -> Mapping[str, int] | None:
    """GPUs available now on each cluster of the lab; None, unknown, where the ledger cannot say it of all of them.

    Raises:
        CommandFailed: somebody else than the ledger is missing.
    """
    if not opened.place.clusters:
        return None
    gpus: dict[str, int] = {}
    for cluster in opened.place.clusters:
        # The last name that there can be: the figure of the cluster comes with any page.
        query = StandingsQuery(cluster=cluster, after="z" * 63)
        try:
            gpus[cluster] = (await opened.ask(subjects.STANDINGS, query, StandingsReply)).available_gpus
        except CommandFailed as failed:
            # The tree is worth showing although the ledger is away.
            if failed.exit_code in (Exit.REFUSED, Exit.UNREACHABLE):
                return None
            raise
    return gpus


def drawn(tree: WholeTree, gpus: Mapping[str, int] | None) -> RenderableType:
    """A revision as a tree. `gpus`: GPUs available now, by cluster; None where that is unknown, and then no amounts are shown."""
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


def _line(
    each: Budget, trail: tuple[str, ...], by_name: Mapping[str, Budget], is_leaf: bool, gpus: Mapping[str, int] | None
) -> str:
    parts = [each.budget + (f" ({each.title})" if each.title else "")]
    parts += _shares(each, trail, by_name)
    if gpus is not None:
        worth = [_effective(trail, by_name, cluster) * number * DAY_MS for cluster, number in gpus.items()]
        if each.parent is None or any(share_on(each, cluster) is not None for cluster in gpus):
            parts.append(f"{render.gpu_hours(int(sum(worth)))} GPU-hours a day")
    if is_leaf:
        parts.append(render.count(len(each.members), "member"))
    if each.managers:
        more = len(each.managers) - _MANAGERS_NAMED
        named = ", ".join(each.managers[:_MANAGERS_NAMED]) + (f" and {more} more" if more > 0 else "")
        parts.append(f"managed by {named}")
    return ", ".join(parts)


def _shares(each: Budget, trail: tuple[str, ...], by_name: Mapping[str, Budget]) -> Iterator[str]:
    if each.parent is None:
        return
    if each.share_ppm is None:
        yield "no share set"
    else:
        yield f"{format_share(each.share_ppm)} of {each.parent}"
        yield f"{_percent(_effective(trail, by_name, None))} of everything"
    # Also where only a budget above has a share of its own there: the effective share is another one all the same.
    for cluster in named_clusters(by_name[name] for name in trail):
        own = share_on(each, cluster)
        if own is not None:
            yield f"on {cluster} {share(own)} of {each.parent}: {_percent(_effective(trail, by_name, cluster))} of it"


def _effective(trail: tuple[str, ...], by_name: Mapping[str, Budget], cluster: str | None) -> Fraction:
    effective = Fraction(1)
    for factor in effective_share(trail, by_name, cluster)[0]:
        effective *= Fraction(factor, PPM_WHOLE)
    return effective


def _percent(effective: Fraction) -> str:
    return format_share(int(effective * PPM_WHOLE))
