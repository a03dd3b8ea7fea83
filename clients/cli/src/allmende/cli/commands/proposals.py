"""`allmende budgets propose|proposals|accept|decline|take-back`: shares that are asked for, beside the figures that decide them.

The figures are read from the tree and the ledger when they are shown; nothing of them is kept, and nothing is decided here.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType

from allmende.cli import instants, render, session
from allmende.cli.commands import dated
from allmende.cli.commands.cluster import all_standings
from allmende.cli.commands.dated import FromOption, UntilOption
from allmende.cli.commands.tree import WholeTree, fetch_tree
from allmende.cli.commands.writes import share
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.budget import Budget, ChildShare
from allmende.proto.ledger import UsageStanding
from allmende.proto.proposals import (
    AcceptProposal,
    DeclineProposal,
    Proposal,
    ProposalReply,
    ProposalsPage,
    ProposalsQuery,
    Propose,
    ShareProposed,
    State,
    WithdrawProposal,
)
from allmende.proto.tree import named_clusters, share_on
from allmende.proto.units import PPM_WHOLE, Ms, Ppm, format_share, parse_share

STALE = "stale_revision"

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The proposal's id, or the last letters of it (four at least).", show_default=False)
]


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


class Shown(Struct, frozen=True, kw_only=True):
    """What `proposals --json` prints."""

    proposals: tuple[Beside, ...]


def propose(
    budget: Annotated[str, typer.Argument(metavar="BUDGET", help="The budget that should have more, or less.", show_default=False)],
    text: Annotated[str, typer.Option(help="Why; whoever decides reads it beside the figures.", show_default=False)],
    share: Annotated[
        str | None, typer.Option(help="The share of its parent that it should have: 41%, 0.41.", show_default=False)
    ] = None,
    from_: FromOption = None,
    until: UntilOption = None,
    renew: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Instead of --share: let a dated change stay, until --until.", show_default=False),
    ] = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for a share, for good or with dates. Nothing changes until the managers above accept.

    For example: allmende budgets propose detection --share 41% --until 14d --text "6 % more for two weeks, because ..."
    """
    if (share is None) == (renew is None):
        raise typer.BadParameter("say one of --share and --renew")

    async def work() -> None:
        async with session.opened(lab) as opened:
            request = await _request(opened, budget, text, share, dated.read_dates(from_, until, opened.now_ms()), renew)
            made = _proposal(await opened.ask(subjects.PROPOSE, request, ProposalReply))
            asked = made.proposed
            who = ", ".join(asked.managers[:5]) or "an operator"
            words = f"{asked.proposal}: asked for {_asked(asked)} of {asked.parent}; {who} may decide"
            session.show(made, words, as_json)

    session.run(work())


async def _request(
    opened: Session, budget: str, text: str, share: str | None, when: tuple[Ms | None, Ms | None], renew: str | None
) -> Propose:
    """What is asked. A renewal asks for the share that the dated change gives."""
    ppm, renews = None if share is None else _ppm(share), None
    if renew is not None:
        change = (await dated.find(opened, renew)).planned
        renews = change.change
        ppm = next((child.share_ppm for child in change.children if child.budget == budget), None)
    if ppm is None:
        raise CommandFailed(Exit.USAGE, f"change {renew!r} gives {budget!r} no share; see `allmende budgets planned`")
    return Propose(
        proposal=opened.ids.new(opened.now_ms()),
        budget=budget,
        share_ppm=ppm,
        text=text,
        effective_from_ms=when[0],
        effective_until_ms=when[1],
        renews=renews,
    )


def proposals(
    proposal: Annotated[str | None, typer.Argument(metavar="[ID]", help="One, with all its figures.", show_default=False)] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only what you asked for, whatever became of it.")] = False,
    to_decide: Annotated[bool, typer.Option("--to-decide", help="Only what you may decide.")] = False,
    budget: Annotated[str | None, session.name_option("Only for this budget.", "BUDGET")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many, newest first.")] = 30,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which shares are asked for, with what there is to give. Open ones, unless told otherwise."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            if proposal is not None:
                (one,) = await _beside(opened, [await _find(opened, proposal)])
                session.show(Shown(proposals=(one,)), _in_full(one, opened.now_ms()), as_json)
                return
            state: State | None = None if everything or mine else "open"
            author = opened.place.user if mine else None
            query = ProposalsQuery(budget=budget, author=author, state=state, to_decide=to_decide, limit=limit)
            found = await _pages(opened, query, limit)
            shown = Shown(proposals=tuple(await _beside(opened, found)))
            session.show(shown, _table(shown, opened.now_ms()), as_json)

    session.run(work())


def accept(
    proposal: IdArgument,
    shares: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=SHARE...]", help="Siblings that shall have another share; the others keep theirs."),
    ] = None,
    reason: Annotated[str, typer.Option(help="What the history should say besides the proposal's own text.")] = "",
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give what was asked: sets the shares of all children of the parent at once, and shows them.

    Where the siblings leave no room, say what they give: allmende budgets accept 0gtfa2 language=59%
    """
    siblings = tuple(_child(pair) for pair in shares or ())

    async def work() -> None:
        async with session.opened(lab) as opened:
            found = await _find(opened, proposal)
            (before,) = await _beside(opened, [found])
            request = AcceptProposal(
                proposal=found.proposed.proposal,
                siblings=siblings,
                expected_revision=before.tree_revision,
                reason=reason,
            )
            done = _proposal(await opened.ask(subjects.ACCEPT_PROPOSAL, request, ProposalReply))
            revision = done.decided.tree_revision if done.decided else before.tree_revision
            (after,) = await _beside(opened, [done])
            words = f"accepted: revision {revision} is in force\n{_figures(after)}"
            if done.proposed.effective_from_ms is not None or done.proposed.effective_until_ms is not None:
                change = await dated.find(opened, done.proposed.renews or done.proposed.proposal)
                words = f"accepted: {dated.summary(change)}"
            session.show(done, words, as_json)

    session.run(work())


def decline(
    proposal: IdArgument,
    reason: Annotated[str, typer.Option(help="Why not; the author and the history read it.", show_default=False)],
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say no to a proposal, with the reason. No share changes."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            found = await _find(opened, proposal)
            request = DeclineProposal(proposal=found.proposed.proposal, reason=reason)
            done = _proposal(await opened.ask(subjects.DECLINE_PROPOSAL, request, ProposalReply))
            session.show(done, f"declined: {done.proposed.budget} stays as it is", as_json)

    session.run(work())


def take_back(
    proposal: IdArgument,
    reason: Annotated[str, typer.Option(help="Why, if that is of use.")] = "",
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Withdraw a proposal of your own."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            found = await _find(opened, proposal)
            request = WithdrawProposal(proposal=found.proposed.proposal, reason=reason)
            done = _proposal(await opened.ask(subjects.WITHDRAW_PROPOSAL, request, ProposalReply))
            session.show(done, f"withdrawn: you ask no longer for {done.proposed.budget}", as_json)

    session.run(work())


def add_to(app: typer.Typer) -> None:
    """Make them commands of `allmende budgets`."""
    for command in (propose, proposals, accept, decline, take_back):
        app.command()(command)


# ------------------------------------------------------------------------------------------------------------- asking the services


async def _pages(opened: Session, query: ProposalsQuery, most: int) -> list[Proposal]:
    found: list[Proposal] = []
    before: int | None = None
    while len(found) < most:
        asked = ProposalsQuery(
            proposal=query.proposal,
            budget=query.budget,
            author=query.author,
            state=query.state,
            to_decide=query.to_decide,
            before=before,
            limit=most - len(found),
        )
        page = await opened.ask(subjects.PROPOSALS, asked, ProposalsPage)
        found += page.proposals
        before = page.next_before
        if before is None:
            break
    return found


async def _find(opened: Session, ending: str) -> Proposal:
    """The proposal whose id ends so.

    Raises:
        CommandFailed: none or several do.
    """
    letters = ending.lower()
    if not (4 <= len(letters) <= 26 and letters.isascii() and letters.isalnum()):
        raise CommandFailed(Exit.USAGE, f"{ending!r} is not a proposal's id, nor at least four of its last letters")
    found = await _pages(opened, ProposalsQuery(proposal=letters), 2)
    if not found:
        raise CommandFailed(Exit.REFUSED, f"there is no proposal {ending!r}; `allmende budgets proposals --all` lists them")
    if len(found) > 1:
        raise CommandFailed(Exit.USAGE, f"several proposals end in {ending!r}: give more letters of the id")
    return found[0]


async def _beside(opened: Session, found: Sequence[Proposal]) -> list[Beside]:
    if not found:
        return []
    tree = await fetch_tree(opened)
    standings = await _standings(opened)
    return [beside(each, tree, standings.get(each.proposed.budget, ())) for each in found]


async def _standings(opened: Session) -> Mapping[str, Sequence[UsageStanding]]:
    """Standings by budget, one a cluster. A ledger that does not answer must not keep anybody from reading a proposal."""
    found: dict[str, list[UsageStanding]] = {}
    for cluster in opened.place.clusters:
        try:
            reply = await all_standings(opened, cluster)
        except CommandFailed:
            continue
        for each in reply.standings:
            found.setdefault(each.budget, []).append(each)
    return found


def _proposal(reply: ProposalReply) -> Proposal:
    if reply.proposal is not None:
        return reply.proposal
    faults = reply.rejected.faults if reply.rejected else ()
    sentences = "; ".join(fault.sentence for fault in faults) or "refused without a reason"
    stale = any(fault.code == STALE for fault in faults)
    raise CommandFailed(
        Exit.STALE if stale else Exit.REFUSED, f"nothing was changed: {sentences}", faults[0].code if faults else ""
    )


# ------------------------------------------------------------------------------------------------------------------- the figures


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


def _table(shown: Shown, now_ms: Ms) -> RenderableType:
    columns = ("PROPOSAL", "BUDGET", "NOW#", "ASKED#", "OF", "LEFT#", "RATIO#", "UNTIL?", "BY", "WHEN?", "STATE", "TEXT~")
    title = "shares asked for, newest first" if shown.proposals else "nobody asks for a share"
    return render.table(title, columns, [_row(each, now_ms) for each in shown.proposals])


def _row(each: Beside, now_ms: Ms) -> tuple[str, ...]:
    asked, decided = each.proposal.proposed, each.proposal.decided
    return (
        render.short(asked.proposal),
        asked.budget,
        share(each.share_now_ppm),
        format_share(asked.share_ppm),
        asked.parent,
        " ".join([_amount(each.left_over_ppm), *(f"{own.cluster}:{_amount(own.left_over_ppm)}" for own in each.on_clusters)]),
        " ".join(_ratio(standing) for standing in each.standings) or "-",
        _until(asked),
        asked.author,
        render.ago(asked.proposed_at_ms, now_ms),
        decided.ending if decided else "open",
        asked.text if decided is None or not decided.reason else f"{asked.text} | {decided.by}: {decided.reason}",
    )


def _until(asked: ShareProposed) -> str:
    return "for good" if asked.effective_until_ms is None else instants.show(asked.effective_until_ms)


def _in_full(each: Beside, now_ms: Ms) -> RenderableType:
    asked, decided = each.proposal.proposed, each.proposal.decided
    lines = [
        f"{asked.proposal}: {asked.budget} should have {_asked(asked)} of {asked.parent}",
        f"asked by {asked.author} {render.ago(asked.proposed_at_ms, now_ms)}: {asked.text}",
    ]
    if decided is not None:
        lines.append(f"{decided.ending} by {decided.by} {render.ago(decided.decided_at_ms, now_ms)}: {decided.reason or '-'}")
    return Group("\n".join(lines), _figures(each))


def _figures(each: Beside) -> str:
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


def _asked(asked: ShareProposed) -> str:
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


def _ppm(text: str) -> Ppm:
    try:
        return parse_share(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _child(pair: str) -> ChildShare:
    name, equals, share = pair.partition("=")
    if not equals:
        raise typer.BadParameter(f"{pair!r} is not NAME=SHARE, such as {name or 'language'}=59%")
    return ChildShare(budget=name, share_ppm=None if share == "unset" else _ppm(share))
