"""`allmende budgets`: show the tree of shares, check a file, load one, set the shares below one budget, replay a proposal."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from rich.console import RenderableType
from rich.tree import Tree

from allmende.cli import render, session
from allmende.cli.commands import replay
from allmende.cli.commands.tree import WholeTree, fetch_tree, read_file
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
from allmende.proto.tree import effective_share, leaves, paths
from allmende.proto.tree_file import TreeFile, split
from allmende.proto.units import PPM_WHOLE, format_share, parse_share

app = typer.Typer(help="The tree of shares: who is owed which part of the GPU time.", no_args_is_help=False)

STALE = "stale_revision"
NO_TREE = "no_tree"

ReasonOption = Annotated[str, typer.Option(help="Why; kept in the history for everybody to read.", show_default=False)]
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


@app.callback(invoke_without_command=True)
def budgets(context: typer.Context, lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Without a subcommand: show the tree."""
    if context.invoked_subcommand is None:
        show(lab, as_json)


@app.command()
def show(lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Show the tree in force, with every share."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            tree = await fetch_tree(opened)
            session.show(tree, _drawn(tree), as_json)

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
                raise _stale(expect, before.revision)
            committed = await _upload(opened, tree.budgets, before.revision, reason)
            same = committed.status == "unchanged"
            words = [
                f"nothing differs from revision {committed.revision}" if same else f"revision {committed.revision} is in force"
            ]
            session.show(committed, "\n".join([*words, *_differences(before.budgets, tree.budgets)]), as_json)

    session.run(work())


@app.command(name="set")
def set_(
    parent: Annotated[str, typer.Argument(metavar="PARENT", help="The budget whose children are set.", show_default=False)],
    shares: Annotated[
        list[str],
        typer.Argument(metavar="NAME=SHARE...", help="ALL its children: 35%, 0.35, or `unset`.", show_default=False),
    ],
    reason: ReasonOption,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the shares of all children of one budget.

    All at once, for example: `allmende budgets set lab vision=35% language=65% --reason "..."`.
    """
    children = tuple(_child(pair) for pair in shares)

    async def work() -> None:
        async with session.opened(lab) as opened:
            before = await fetch_tree(opened)
            request = SetShares(parent=parent, children=children, expected_revision=before.revision, reason=reason)
            committed = _committed(await opened.ask(subjects.SET_SHARES, request, WriteReply), before.revision)
            session.show(committed, _changes(before, children, committed), as_json)

    session.run(work())


async def _tree_in_force(opened: Session) -> WholeTree:
    try:
        return await fetch_tree(opened)
    except CommandFailed as failed:
        if failed.code == NO_TREE:
            return WholeTree(revision=0, author="", reason="", budgets=())
        raise


def _differences(before: Iterable[Budget], after: Iterable[Budget]) -> list[str]:
    """What a load changes, one line a budget."""
    old, new = {each.budget: each for each in before}, {each.budget: each for each in after}
    lines = [f"{name}: gone" for name in old if name not in new]
    for name, each in new.items():
        was = old.get(name)
        if was is None:
            lines.append(f"{name}: new, {_share(each.share_ppm)} of {each.parent}" if each.parent else f"{name}: new, the whole")
        elif was.share_ppm != each.share_ppm or was.parent != each.parent:
            moved = f", moved from {was.parent} to {each.parent}" if was.parent != each.parent else ""
            lines.append(f"{name}: {_share(was.share_ppm)} -> {_share(each.share_ppm)}{moved}")
        elif was != each:
            lines.append(f"{name}: other people or another title")
    return lines


def _drawn(tree: WholeTree) -> RenderableType:
    by_name = {each.budget: each for each in tree.budgets}
    trails = paths(by_name)
    leaf = leaves(by_name)
    drawn: dict[str, Tree] = {}
    root = Tree(f"revision {tree.revision} by {tree.author}" + (f": {tree.reason}" if tree.reason else ""))
    for name in sorted(by_name, key=lambda each: (len(trails[each]), trails[each])):
        each = by_name[name]
        above = drawn[each.parent] if each.parent else root
        drawn[name] = above.add(_line(each, trails[name], by_name, name in leaf))
    return root


def _line(each: Budget, trail: tuple[str, ...], by_name: dict[str, Budget], is_leaf: bool) -> str:
    factors, is_set = effective_share(trail, by_name)
    effective = Fraction(1)
    for factor in factors:
        effective *= Fraction(factor, PPM_WHOLE)
    parts = [each.budget]
    if each.parent:
        parts.append(f"{_share(each.share_ppm)} of {each.parent}" if each.share_ppm is not None else "no share set")
    if each.parent and is_set:
        parts.append(f"{format_share(int(effective * PPM_WHOLE))} of everything")
    if is_leaf:
        parts.append(render.count(len(each.members), "member"))
    return ", ".join(parts)


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
        committed = _committed(await opened.ask(subjects.LOAD_TREE, request, WriteReply), revision)
    if committed is None:
        raise CommandFailed(Exit.USAGE, "the file names no budget")
    return committed


def _committed(reply: WriteReply, read_at: int) -> Committed:
    if reply.committed:
        return reply.committed
    faults = reply.rejected.faults if reply.rejected else ()
    now = reply.rejected.revision if reply.rejected else read_at
    if any(fault.code == STALE for fault in faults):
        raise _stale(read_at, now)
    sentences = "; ".join(fault.sentence for fault in faults) or "refused without a reason"
    raise CommandFailed(Exit.REFUSED, f"nothing was changed: {sentences}", faults[0].code if faults else "")


def _stale(read_at: int, now: int) -> CommandFailed:
    return CommandFailed(Exit.STALE, f"the tree changed since you read it ({read_at} -> {now}): look again, then repeat", STALE)


def _child(pair: str) -> ChildShare:
    name, equals, share = pair.partition("=")
    if not equals:
        raise typer.BadParameter(f"{pair!r} is not NAME=SHARE, such as {name or 'vision'}=35%")
    try:
        return ChildShare(budget=name, share_ppm=None if share == "unset" else parse_share(share))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _changes(before: WholeTree, children: tuple[ChildShare, ...], committed: Committed) -> str:
    old = {each.budget: each.share_ppm for each in before.budgets}
    lines = [f"revision {committed.revision}"]
    for child in children:
        was = old.get(child.budget)
        lines.append(f"{child.budget}: {_share(was)} -> {_share(child.share_ppm)}")
    return "\n".join(lines)


def _share(ppm: int | None) -> str:
    return "unset" if ppm is None else format_share(ppm)
