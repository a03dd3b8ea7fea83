"""`allmende budgets history, diff, export, verify`: what was, who changed it, and whether that is what is stored. Never writes."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from allmende.cli import instants, session
from allmende.cli.commands import writes
from allmende.cli.commands.tree import WholeTree, fetch_changed, fetch_tree
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session, name_option
from allmende.proto import subjects
from allmende.proto.budget import Budget, BudgetDiff, RevisionRow, RevisionsPage, RevisionsQuery
from allmende.proto.tree import digest
from allmende.proto.tree_file import write_tree
from allmende.proto.units import Ms

AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="WHEN", help="As it was at an instant: 2026-11-01T00:00Z.", show_default=False),
]
RevisionOption = Annotated[int | None, typer.Option("--revision", min=1, help="A revision by its number.", show_default=False)]


class PastChange(Struct, frozen=True, kw_only=True):
    """One revision as `history --json` prints it."""

    revision: int
    effective_from_ms: Ms
    author: str
    reason: str
    changes: tuple[BudgetDiff, ...]
    jobs_to: str | None
    """Where the jobs of the budget went that it closed; None: it closed none."""


class History(Struct, frozen=True, kw_only=True):
    """What `history --json` prints: newest first; `more`: there are older ones."""

    revisions: tuple[PastChange, ...]
    more: bool


class Difference(Struct, frozen=True, kw_only=True):
    """What `diff --json` prints."""

    from_revision: int
    to_revision: int
    changes: tuple[BudgetDiff, ...]


class Verified(Struct, frozen=True, kw_only=True):
    """What `verify --json` prints: how many revisions were made anew, and those that came out otherwise than they were stored."""

    revisions: int
    differing: tuple[int, ...]


async def past_tree(opened: Session, revision: int | None, at: str | None) -> WholeTree:
    """The tree that `--revision` or `--at` names; the newest without either.

    Raises:
        CommandFailed: both are given, or the instant cannot be read, or there was no tree.
    """
    if revision is not None and at is not None:
        raise CommandFailed(Exit.USAGE, "--revision and --at name one tree each: give one of them")
    # A duration counts from now, and nothing in the past lies ahead: it would silently mean the tree of today.
    at_ms = instants.read("--at", at, opened.now_ms())
    if at_ms is not None and at_ms > opened.now_ms():
        raise CommandFailed(Exit.USAGE, f"--at {at!r} lies ahead; the tree is known up to now")
    return await fetch_tree(opened, revision, at_ms)


def history(
    budget: Annotated[str | None, name_option("Only what changed this budget.", "BUDGET")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many revisions, the newest.")] = 20,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who has changed the tree, when, why, and what."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            rows = await _revisions(opened, budget, limit + 1)
            past = [await _past(opened, row, budget) for row in rows[:limit]]
            found = History(revisions=tuple(past), more=len(rows) > limit)
            session.show(found, _told(found), as_json)

    session.run(work())


def diff(
    older: Annotated[int, typer.Argument(metavar="REVISION", min=0, help="The first revision; 0: before there was a tree.")],
    newer: Annotated[
        int | None, typer.Argument(metavar="[REVISION]", min=1, help="The second one; the newest if left out.")
    ] = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two revisions."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            to = newer or (await _revisions(opened, None, 1))[0].revision
            found = Difference(from_revision=older, to_revision=to, changes=await fetch_changed(opened, older, to))
            lines = list(writes.difference(found.changes)) or ["nothing differs"]
            session.show(found, "\n".join([f"revision {older} -> {to}", *lines]), as_json)

    session.run(work())


def export(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to; the terminal if left out.")] = None,
    revision: RevisionOption = None,
    at: AtOption = None,
    lab: LabOption = None,
) -> None:
    """Write the tree as a budget file, which `budgets load` reads back without loss. An existing file is not overwritten."""

    async def work() -> None:
        async with session.opened(lab) as opened:
            text = write_tree((await past_tree(opened, revision, at)).budgets)
        if file is None:
            session.put(text, nl=False)
            return
        try:
            with file.open("x", encoding="utf-8", newline="\n") as opened_file:
                opened_file.write(text)
        except OSError as error:
            raise CommandFailed(Exit.USAGE, f"{file} cannot be written: {error.strerror}") from None

    session.run(work())


def verify(lab: LabOption = None, as_json: JsonOption = False) -> None:
    """Make every revision anew from the changes since the first, and compare. Exit 1 where one is not what was stored."""

    async def work() -> Verified:
        async with session.opened(lab) as opened:
            rows = await _revisions(opened, None, None)
            budgets: dict[str, Budget] = {}
            differing = []
            for row in reversed(rows):
                for change in await fetch_changed(opened, row.revision - 1, row.revision):
                    if change.after is None:
                        budgets.pop(change.budget, None)
                    else:
                        budgets[change.budget] = change.after
                if len(budgets) != row.budgets or digest(budgets.values()) != row.digest:
                    differing.append(row.revision)
            return Verified(revisions=len(rows), differing=tuple(differing))

    verified = session.run(work())
    named = ", ".join(map(str, verified.differing))
    good = f"{verified.revisions} revisions made anew from their changes: each is what was stored"
    session.show(verified, f"not what was stored: revision {named}" if named else good, as_json)
    if verified.differing:
        raise typer.Exit(int(Exit.REFUSED))


async def _revisions(opened: Session, budget: str | None, limit: int | None) -> list[RevisionRow]:
    found: list[RevisionRow] = []
    before: int | None = None
    while True:
        page = await opened.ask(subjects.REVISIONS, RevisionsQuery(before=before, budget=budget), RevisionsPage)
        found += page.revisions
        before = page.next_before
        if before is None or (limit is not None and len(found) >= limit):
            break
    if not found:
        what = f"no revision has changed a budget {budget!r}" if budget else "there is no tree yet"
        raise CommandFailed(Exit.USAGE, f"{what}; see `allmende budgets`")
    return found[:limit]


async def _past(opened: Session, row: RevisionRow, budget: str | None) -> PastChange:
    changes = await fetch_changed(opened, row.revision - 1, row.revision)
    if budget is not None:
        changes = tuple(each for each in changes if each.budget == budget)
    return PastChange(
        revision=row.revision,
        effective_from_ms=row.effective_from_ms,
        author=row.author,
        reason=row.reason,
        changes=changes,
        jobs_to=row.jobs_to,
    )


def _told(found: History) -> str:
    lines = []
    for past in found.revisions:
        lines.append(f"revision {past.revision}, {instants.show(past.effective_from_ms)}, {past.author}: {past.reason}")
        lines += [f"  {line}" for line in writes.difference(past.changes)]
        lines += [f"  its jobs went to {past.jobs_to}"] if past.jobs_to is not None else []
    if found.more:
        lines.append("and older ones; see more with --limit")
    return "\n".join(lines)
