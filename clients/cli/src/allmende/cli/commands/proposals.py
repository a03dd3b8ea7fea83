"""`allmende budgets propose|proposals|accept|decline|take-back`: shares that are asked for, beside the figures that decide them.

The figures are read from the tree and the ledger when they are shown; nothing of them is kept, and nothing is decided here.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from msgspec import Struct

from allmende.cli import session
from allmende.cli.commands import dated, proposal_figures
from allmende.cli.commands.cluster import all_standings
from allmende.cli.commands.dated import FromOption, UntilOption
from allmende.cli.commands.paging import ending_in, newest
from allmende.cli.commands.proposal_figures import Beside, beside
from allmende.cli.commands.tree import fetch_tree
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.budget import ChildShare
from allmende.proto.ledger import UsageStanding
from allmende.proto.proposals import (
    AcceptProposal,
    DeclineProposal,
    Proposal,
    ProposalReply,
    ProposalsPage,
    ProposalsQuery,
    Propose,
    State,
    WithdrawProposal,
)
from allmende.proto.units import Ms, Ppm, parse_share

STALE = "stale_revision"

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The proposal's id, or the last letters of it (four at least).", show_default=False)
]


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
            words = f"{asked.proposal}: asked for {proposal_figures.what_is_asked(asked)} of {asked.parent}; {who} may decide"
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
                session.show(Shown(proposals=(one,)), proposal_figures.in_full(one, opened.now_ms()), as_json)
                return
            state: State | None = None if everything or mine else "open"
            author = opened.place.user if mine else None
            query = ProposalsQuery(budget=budget, author=author, state=state, to_decide=to_decide)
            found = await _newest(opened, query, limit)
            shown = Shown(proposals=tuple(await _beside(opened, found)))
            session.show(shown, proposal_figures.table(shown.proposals, opened.now_ms()), as_json)

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
            words = f"accepted: revision {revision} is in force\n{proposal_figures.figures(after)}"
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


async def _newest(opened: Session, query: ProposalsQuery, most: int) -> tuple[Proposal, ...]:
    return await newest(opened, subjects.PROPOSALS, query, ProposalsPage, lambda page: page.proposals, most)


async def _find(opened: Session, ending: str) -> Proposal:
    """The proposal whose id ends so.

    Raises:
        CommandFailed: none or several do.
    """

    async def two(letters: str) -> tuple[Proposal, ...]:
        return await _newest(opened, ProposalsQuery(proposal=letters), 2)

    return await ending_in(ending, two, thing="proposal", owner="proposal", listed_by="allmende budgets proposals --all")


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
