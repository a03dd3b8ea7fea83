"""`allmende budgets`: show the tree of shares, check a file, load one, set the shares below one budget, replay a proposal."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from allmende.cli import session
from allmende.cli.commands import dated, replay, tree_closing, tree_history, tree_writes, writes
from allmende.cli.commands.dated import FromOption, UntilOption
from allmende.cli.commands.tree import WholeTree, fetch_changed, fetch_tree, read_file
from allmende.cli.commands.tree_drawing import available, drawn
from allmende.cli.commands.tree_history import AtOption, RevisionOption, past_tree
from allmende.cli.commands.tree_writes import ExpectOption, ReasonOption
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session
from allmende.proto import subjects
from allmende.proto.budget import (
    Budget,
    ChildShare,
    Committed,
    SetShares,
    UploadPiece,
    WriteReply,
)
from allmende.proto.message import Problem
from allmende.proto.tree import leaves, share_on
from allmende.proto.tree_file import TreeFile, split
from allmende.proto.units import parse_share

app = typer.Typer(help="The tree of shares: who is owed which part of the GPU time.", no_args_is_help=False)

NO_TREE = "no_tree"

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A budget file (TOML), see docs/guides/budget-file.md.", show_default=False)
]


class Checked(Struct, frozen=True, kw_only=True):
    """What `check --json` prints."""

    file: str
    budgets: int
    leaves: int
    faults: tuple[Problem, ...]


app.command()(replay.replay)
app.command()(tree_writes.create)
app.command()(tree_writes.rename)
app.command()(tree_writes.move)
app.command()(tree_writes.people)
app.command()(tree_closing.close)
app.command()(tree_history.history)
app.command()(tree_history.diff)
app.command()(tree_history.export)
app.command()(tree_history.verify)


@app.callback(invoke_without_command=True)
def budgets(context: typer.Context, lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Without a subcommand: show the tree."""
    if context.invoked_subcommand is None:
        show(lab=lab, as_json=as_json)


@app.command()
def show(revision: RevisionOption = None, at: AtOption = None, lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Show the tree in force, or as it was: every share, what it is worth a day, who manages it."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            tree = await past_tree(opened, revision, at)
            session.show(tree, drawn(tree, await available(opened)), as_json)

    session.run(work())


@app.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a budget file without a server. Exit 0, or 1 with every fault named; nothing is changed."""
    tree = read_file(file)
    checked = Checked(file=str(file), budgets=len(tree.budgets), leaves=len(leaves(_by_name(tree))), faults=tree.faults)
    if not tree.faults:
        words = f"{file}: good, {checked.budgets} budgets, {checked.leaves} of them leaves"
    else:
        words = "\n".join(f"{file}: {fault.sentence} [{fault.code}]" for fault in tree.faults)
    session.show(checked, words, as_json)
    if tree.faults:
        raise typer.Exit(int(Exit.REFUSED))


@app.command()
def load(
    file: FileArgument,
    reason: ReasonOption,
    expect: Annotated[
        int | None, typer.Option(min=0, help="The revision your file began from; refused if another one is in force.")
    ] = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the whole tree by a budget file, and say what changes. Refused whole if anything is wrong.

    With `--expect` nobody else's change is overwritten: `allmende budgets` shows the revision in force.
    """
    tree = read_file(file)
    if tree.faults:
        first = tree.faults[0]
        session.fail(CommandFailed(Exit.USAGE, f"{first.sentence}; see all with `allmende budgets check {file}`", first.code))

    async def work() -> None:
        async with session.opened(lab) as opened:
            before = await _tree_in_force(opened)
            if expect is not None and expect != before.revision:
                older = expect < before.revision
                raise writes.stale(expect, before.revision, await fetch_changed(opened, expect, before.revision) if older else ())
            committed = await _upload(opened, tree.budgets, before.revision, reason)
            same = committed.status == "unchanged"
            words = [
                f"nothing differs from revision {committed.revision}" if same else f"revision {committed.revision} is in force"
            ]
            changed = writes.differences(before.budgets, tree.budgets)
            session.show(committed, "\n".join([*words, *writes.difference(changed)]), as_json)

    session.run(work())


@app.command(name="set")
def set_(
    parent: Annotated[str, typer.Argument(metavar="PARENT", help="The budget whose children are set.", show_default=False)],
    shares: Annotated[
        list[str],
        typer.Argument(metavar="NAME=SHARE...", help="ALL its children: 35%, 0.35, or `unset`.", show_default=False),
    ],
    reason: ReasonOption,
    cluster: Annotated[
        str | None, session.name_option("Set what holds on this cluster alone; `unset`: as everywhere.", "CLUSTER")
    ] = None,
    from_: FromOption = None,
    until: UntilOption = None,
    expect: ExpectOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the shares of all children of one budget, everywhere or on one cluster, at once or with dates.

    All together, for example: `allmende budgets set lab vision=35% language=65% --reason "..."`. With `--cluster` the shares hold
    on that cluster alone, in place of those that hold everywhere.
    """
    children = tuple(_child(pair) for pair in shares)

    async def work() -> None:
        async with session.opened(lab) as opened:
            if any(child.share_ppm is not None for child in children):
                # What holds on a cluster that is gone, or was misspelt, may still be taken back.
                opened.check_cluster(cluster)
            before = await fetch_tree(opened)
            expected = before.revision if expect is None else expect
            if from_ is not None or until is not None:
                when = dated.read_dates(from_, until, opened.now_ms())
                change = await dated.plan(opened, parent, children, when, expected, reason, cluster)
                session.show(change, dated.summary(change), as_json)
                return
            request = SetShares(parent=parent, children=children, expected_revision=expected, reason=reason, cluster=cluster)
            committed = writes.committed(await opened.ask(subjects.SET_SHARES, request, WriteReply), expected)
            session.show(committed, _changes(before, children, cluster, committed), as_json)

    session.run(work())


async def _tree_in_force(opened: Session) -> WholeTree:
    try:
        return await fetch_tree(opened)
    except CommandFailed as failed:
        if failed.code == NO_TREE:
            return WholeTree(revision=0, author="", reason="", budgets=())
        raise


def _by_name(tree: TreeFile) -> dict[str, Budget]:
    return {each.budget: each for each in tree.budgets}


async def _upload(opened: Session, tree: tuple[Budget, ...], revision: int, reason: str) -> Committed:
    upload = opened.ids.new(opened.now_ms())
    pieces = list(split(tree))
    committed: Committed | None = None
    for number, piece in enumerate(pieces):
        request = UploadPiece(
            upload=upload,
            piece=number,
            last=number == len(pieces) - 1,
            expected_revision=revision,
            reason=reason,
            budgets=piece,
        )
        committed = writes.committed(await opened.ask(subjects.LOAD_TREE, request, WriteReply), revision)
    if committed is None:
        raise CommandFailed(Exit.USAGE, "the file names no budget")
    return committed


def _child(pair: str) -> ChildShare:
    name, equals, share = pair.partition("=")
    if not equals:
        raise typer.BadParameter(f"{pair!r} is not NAME=SHARE, such as {name or 'vision'}=35%")
    try:
        return ChildShare(budget=name, share_ppm=None if share == "unset" else parse_share(share))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _changes(before: WholeTree, children: tuple[ChildShare, ...], cluster: str | None, committed: Committed) -> str:
    if committed.status == "unchanged":
        return f"nothing differs from revision {committed.revision}"
    old = {each.budget: each for each in before.budgets}
    lines = [f"revision {committed.revision}" + ("" if cluster is None else f", on {cluster}")]
    for child in children:
        was = old.get(child.budget)
        now = was.share_ppm if was is not None and cluster is not None and child.share_ppm is None else child.share_ppm
        lines.append(f"{child.budget}: {writes.share(None if was is None else share_on(was, cluster))} -> {writes.share(now)}")
    return "\n".join(lines)
