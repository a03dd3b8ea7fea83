"""Trees of budgets as commands get them: from the budget service, any revision of it, or from a file. Never changes one."""

from pathlib import Path

from msgspec import Struct

from allmende.cli.commands.writes import differences
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import Session, fail
from allmende.proto import subjects
from allmende.proto.budget import Budget, BudgetDiff, TreePage, TreeQuery
from allmende.proto.tree_file import MAX_FILE_BYTES, TreeFile, read_tree
from allmende.proto.units import Ms


class WholeTree(Struct, frozen=True, kw_only=True):
    """What `show --json` prints: one revision, all its budgets."""

    revision: int
    author: str
    reason: str
    effective_from_ms: Ms = 0
    budgets: tuple[Budget, ...]


async def fetch_tree(
    opened: Session, revision: int | None = None, at_ms: Ms | None = None, differs_from: int | None = None
) -> WholeTree:
    """All pieces of a revision, or of the one at an instant, or of the newest when the first piece was read.

    `differs_from`: only the budgets that were written between that revision and this one.
    """
    found: list[Budget] = []
    page = await opened.ask(subjects.TREE, TreeQuery(revision=revision, at_ms=at_ms, differs_from=differs_from), TreePage)
    while True:
        found += page.budgets
        if page.next_after is None:
            return WholeTree(
                revision=page.revision,
                author=page.author,
                reason=page.reason,
                effective_from_ms=page.effective_from_ms,
                budgets=tuple(found),
            )
        query = TreeQuery(revision=page.revision, after=page.next_after, differs_from=differs_from)
        page = await opened.ask(subjects.TREE, query, TreePage)


async def fetch_changed(opened: Session, older: int, newer: int) -> tuple[BudgetDiff, ...]:
    """The budgets that stand otherwise in the second revision. Revision 0 is the time before there was a tree."""
    before = (await fetch_tree(opened, older, differs_from=newer)).budgets if older else ()
    after = (await fetch_tree(opened, newer, differs_from=older)).budgets if newer else ()
    return differences(before, after)


def read_file(file: Path) -> TreeFile:
    """Read a budget file; ends the command where it cannot be opened."""
    try:
        with file.open("rb") as opened:
            # One byte more than a budget file may have: the reader then says so, also of a file without end.
            content = opened.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        fail(CommandFailed(Exit.USAGE, f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"))
    return read_tree(content)
