"""`allmende nodes`: what there is; cordon, drain, uncordon, and until when each cordoned node will be empty.

Decides nothing: the preemptor keeps cordons, and no slice is cut for one.
"""

from typing import Annotated

import typer
from msgspec import Struct
from rich.console import RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands.cluster import ClusterOption
from allmende.cli.commands.paging import pages
from allmende.cli.session import JsonOption, LabOption, Session, WatchOption
from allmende.proto import subjects
from allmende.proto.admission import NodesPage, NodesQuery, NodeView
from allmende.proto.lost import DeclaredLost, DeclareLost
from allmende.proto.preemptor import CordonNodes, DrainPage, DrainQuery, NodeDrain, UncordonNodes
from allmende.proto.units import Ms

app = typer.Typer(help="The nodes: what is held and free, and which are taken out of use for a repair.", no_args_is_help=False)

NodesArgument = Annotated[list[str], typer.Argument(metavar="NODE...", help="Nodes by name.", show_default=False)]
ReasonOption = Annotated[str, typer.Option(help="Why; whoever finds the node will ask for it.", show_default=False)]
FromOption = Annotated[str | None, typer.Option("--from", metavar="TIME", help="When it begins: 2026-12-24T08:00Z, or in 4h.")]
UntilOption = Annotated[str | None, typer.Option(metavar="TIME", help="When it ends by itself.")]
DeadlineOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="When it should be empty: who stays longer is named. No slice is cut for it.")
]


@app.callback(invoke_without_command=True)
def nodes(
    context: typer.Context,
    cluster: ClusterOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """List the nodes with what is held, free, silent and cordoned."""
    if context.invoked_subcommand is not None:
        return

    async def work() -> None:
        async with session.opened(lab) as opened:
            opened.check_cluster(cluster)

            async def fetch() -> tuple[Struct, RenderableType]:
                views = await _all_nodes(opened, cluster)
                return NodesPage(nodes=views), _nodes_table(views, opened.now_ms())

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


@app.command()
def cordon(
    names: NodesArgument,
    reason: ReasonOption,
    cluster: ClusterOption = None,
    from_: FromOption = None,
    until: UntilOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let nodes take nothing new; whoever runs there stays."""
    _cordon(names, reason, cluster, lab, as_json, drain=False, from_=from_, until=until, deadline=None)


@app.command()
def drain(
    names: NodesArgument,
    reason: ReasonOption,
    cluster: ClusterOption = None,
    from_: FromOption = None,
    until: UntilOption = None,
    deadline: DeadlineOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Empty nodes: what may be interrupted leaves now, what is protected when its slice ends."""
    _cordon(names, reason, cluster, lab, as_json, drain=True, from_=from_, until=until, deadline=deadline)


@app.command()
def uncordon(
    names: NodesArgument, reason: ReasonOption, cluster: ClusterOption = None, lab: LabOption = None, as_json: JsonOption = False
) -> None:
    """Let nodes take work again, unless their agent says that they are not well."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            request = UncordonNodes(cluster=opened.one_cluster(cluster), nodes=tuple(names), reason=reason)
            await opened.ask(subjects.UNCORDON, request, DrainPage)
            # Asked for whole: the answer to so many nodes may have no room for all that stay cordoned.
            page = await _all_drains(opened, request.cluster)
            left = {each.node: each for each in page.nodes}
            lines = [
                f"{name} stays cordoned: its agent says {left[name].agent_reason}" if name in left else f"{name} takes work again"
                for name in names
            ]
            session.show(page, "\n".join(lines), as_json)

    session.run(work())


@app.command("declare-lost")
def declare_lost(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node by name.", show_default=False)],
    reason: ReasonOption,
    cluster: ClusterOption = None,
    force: Annotated[bool, typer.Option(help="Also a node that gives signs of life.")] = False,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Declare a silent node dead: its attempts end at its last sign of life, and their jobs wait again."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            request = DeclareLost(cluster=opened.one_cluster(cluster), node=name, reason=reason, force=force)
            done = await opened.ask(subjects.DECLARE_LOST, request, DeclaredLost)
            if done.status == "already_lost":
                text = f"{name} was declared lost before, and has not been reported since"
            else:
                ended = render.count(len(done.attempts), "attempt")
                seen = instants.show(done.last_seen_ms)
                text = (
                    f"{name} is lost: {ended} ended at its last sign of life, {seen}. It takes work again once its agent reports it"
                )
            session.show(done, text, as_json)

    session.run(work())


@app.command("drain-plan")
def drain_plan(
    cluster: ClusterOption = None, lab: LabOption = None, as_json: JsonOption = False, watch: WatchOption = False
) -> None:
    """Show the cordoned nodes, who is still there, and until when each will be empty."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            chosen = opened.one_cluster(cluster)

            async def fetch() -> tuple[Struct, RenderableType]:
                page = await _all_drains(opened, chosen)
                return page, _drains_table(page)

            await session.repeatedly(fetch, as_json, watch)

    session.run(work())


def _cordon(
    names: list[str],
    reason: str,
    cluster: str | None,
    lab: LabOption,
    as_json: bool,
    *,
    drain: bool,
    from_: str | None,
    until: str | None,
    deadline: str | None,
) -> None:
    async def work() -> None:
        async with session.opened(lab) as opened:
            now_ms = opened.now_ms()
            request = CordonNodes(
                cluster=opened.one_cluster(cluster),
                nodes=tuple(names),
                reason=reason,
                drain=drain,
                from_ms=instants.read("--from", from_, now_ms),
                until_ms=instants.read("--until", until, now_ms),
                deadline_ms=instants.read("--deadline", deadline, now_ms),
            )
            page = await opened.ask(subjects.CORDON, request, DrainPage)
            session.show(page, _drains_table(page), as_json)

    session.run(work())


async def _all_drains(opened: Session, cluster: str) -> DrainPage:
    found = await pages(opened, subjects.DRAINS, DrainQuery(cluster=cluster), DrainPage)
    return DrainPage(cluster=cluster, as_of_ms=found[-1].as_of_ms, nodes=tuple(node for page in found for node in page.nodes))


def _drains_table(page: DrainPage) -> RenderableType:
    if not page.nodes:
        return f"no node of {page.cluster} is cordoned"
    title = f"{render.count(len(page.nodes), 'cordoned node')} of {page.cluster}"
    title += "" if page.next_after is None else "; more have no room here, see `allmende nodes drain-plan`"
    columns = ("NODE", "STATE", "EMPTY BY", "STILL THERE", "BY", "REASON~")
    rows = (
        (each.node, _state(each, page.as_of_ms), _empty_by(each, page.as_of_ms), _still_there(each), each.by, each.reason)
        for each in page.nodes
    )
    return render.table(title, columns, rows)


def _state(node: NodeDrain, now_ms: Ms) -> str:
    if node.state == "announced":
        return f"from {instants.show(node.from_ms)} ({render.ago(node.from_ms, now_ms)})"
    until = f" until {instants.show(node.until_ms)}" if node.until_ms is not None else ""
    return f"{node.state}{until}"


def _empty_by(node: NodeDrain, now_ms: Ms) -> str:
    if node.state == "drained":
        return "now"
    if not node.drain:
        return "nobody has to leave"
    if any(each.state == "overdue" for each in node.occupants):
        return "not known: an eviction is overdue"
    if node.empty_by_ms is None:
        return "not known: a start is not confirmed"
    late = " LATE" if any(each.late for each in node.occupants) else ""
    return f"{render.ago(node.empty_by_ms, now_ms)}{late}"


def _still_there(node: NodeDrain) -> str:
    told = [
        f"{render.short(each.job)} {each.gpus} GPUs, {each.state}{', after the deadline' if each.late else ''}"
        for each in node.occupants[:4]
    ]
    more = len(node.occupants) + node.more_occupants - len(told)
    return "; ".join([*told, *([f"{more} more"] if more else [])]) or "-"


async def _all_nodes(opened: Session, cluster: str | None) -> tuple[NodeView, ...]:
    found = await pages(opened, subjects.NODES, NodesQuery(cluster=cluster), NodesPage)
    return tuple(node for page in found for node in page.nodes)


def _nodes_table(views: tuple[NodeView, ...], now_ms: Ms) -> RenderableType:
    healthy, held = sum(view.healthy_gpus for view in views), sum(view.held_gpus for view in views)
    title = f"{render.count(len(views), 'node')}, {render.count(healthy, 'healthy GPU')}, {held} held"
    columns = ("CLUSTER", "NODE", "MODEL?", "INSTALLED#", "HEALTHY#", "HELD#", "FREE#", "EARMARKED#?", "ATTEMPTS#?", "STATE")
    rows = (
        (
            view.cluster,
            view.node,
            view.gpu_model or "-",
            str(view.installed_gpus),
            str(view.healthy_gpus),
            str(view.held_gpus),
            # A node that is down holds nothing that could be given to somebody.
            str(max(0, view.healthy_gpus - view.held_gpus)),
            str(view.earmarked_gpus),
            str(view.attempts),
            _node_state(view, now_ms),
        )
        for view in views
    )
    return render.table(title, columns, rows)


def _node_state(view: NodeView, now_ms: Ms) -> str:
    states = []
    if view.silent_since_ms is not None:
        states.append(f"silent since {render.ago(view.silent_since_ms, now_ms)}")
    if view.lost_at_ms is not None:
        states.append(f"lost: {view.lost_reason}")
    if view.cordoned_from_ms is not None:
        ahead = view.cordoned_from_ms > now_ms
        states.append(f"cordoned {render.ago(view.cordoned_from_ms, now_ms)}" if ahead else f"cordoned: {view.cordon_reason}")
    return "; ".join(states) or "up"
