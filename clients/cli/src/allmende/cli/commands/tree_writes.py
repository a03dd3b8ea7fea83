"""`allmende budgets create, rename, move, people`: one budget as it shall stand. Shares are divided with `budgets set`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from msgspec import UNSET
from msgspec.structs import replace

from allmende.cli import session
from allmende.cli.commands import writes
from allmende.cli.commands.tree import WholeTree, fetch_tree
from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import JsonOption, LabOption, Session, name_option
from allmende.proto import subjects
from allmende.proto.budget import Budget, PutBudgets, WriteReply
from allmende.proto.units import Ppm, parse_share

ReasonOption = Annotated[str, typer.Option(help="Why; kept in the history for everybody to read.", show_default=False)]
ExpectOption = Annotated[
    int | None, typer.Option(min=0, help="The revision you have looked at; refused if another one is in force.", show_default=False)
]
ShareOption = Annotated[
    str | None, typer.Option("--share", metavar="SHARE", help="Its part of the parent: 35%, 0.35. Unset where left out.")
]
Change: TypeAlias = Callable[[WholeTree], Budget]
"""From the tree in force to the one budget as it shall stand."""

BudgetArgument = Annotated[str, typer.Argument(metavar="BUDGET", help="The budget, by name.", show_default=False)]


def create(
    budget: BudgetArgument,
    parent: Annotated[str, name_option("The budget it hangs on.", "BUDGET")],
    reason: ReasonOption,
    share: ShareOption = None,
    title: Annotated[str, typer.Option(help="What people call it.")] = "",
    manager: Annotated[list[str] | None, name_option("May divide what lies below it; may be repeated.", "PERSON")] = None,
    member: Annotated[list[str] | None, name_option("May charge it; may be repeated.", "PERSON")] = None,
    expect: ExpectOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a budget below another one.

    Without `--share` it is unset: it covers no slice until the shares below its parent are set.
    """
    ppm = _share(share)

    def change(tree: WholeTree) -> Budget:
        if any(row.budget == budget for row in tree.budgets):
            raise CommandFailed(Exit.USAGE, f"there is a budget {budget!r} already; see `allmende budgets`")
        managers, members = tuple(manager or ()), tuple(member or ())
        return Budget(budget=budget, parent=parent, title=title, share_ppm=ppm, managers=managers, members=members)

    _put(change, reason, expect, lab, as_json)


def rename(
    budget: BudgetArgument,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What people shall call it.", show_default=False)],
    reason: ReasonOption,
    expect: ExpectOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a budget another title. Its name stays: what was used is kept under it, and jobs name it."""
    _put(lambda tree: replace(_one(tree, budget), title=title), reason, expect, lab, as_json)


def move(
    budget: BudgetArgument,
    to: Annotated[str, name_option("The budget it shall hang on.", "BUDGET")],
    reason: ReasonOption,
    share: ShareOption = None,
    expect: ExpectOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hang a budget, with all below it, on another one.

    A share of another parent is another amount, so it is said anew. What was used stays where it was used.
    """
    ppm = _share(share)
    _put(lambda tree: replace(_one(tree, budget), parent=to, share_ppm=ppm, cluster_shares=UNSET), reason, expect, lab, as_json)


def people(
    budget: BudgetArgument,
    reason: ReasonOption,
    add_manager: Annotated[list[str] | None, name_option("Shall divide what lies below it; may be repeated.", "PERSON")] = None,
    remove_manager: Annotated[list[str] | None, name_option("Shall no longer; may be repeated.", "PERSON")] = None,
    add_member: Annotated[list[str] | None, name_option("May charge it from now on; may be repeated.", "PERSON")] = None,
    remove_member: Annotated[list[str] | None, name_option("May no longer charge it; may be repeated.", "PERSON")] = None,
    expect: ExpectOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change who manages a budget and who may charge it."""
    if not any((add_manager, remove_manager, add_member, remove_member)):
        session.fail(CommandFailed(Exit.USAGE, "say whom: --add-manager, --remove-manager, --add-member or --remove-member"))

    def change(tree: WholeTree) -> Budget:
        row = _one(tree, budget)
        managers = _changed("managers", row.managers, add_manager, remove_manager)
        return replace(row, managers=managers, members=_changed("members", row.members, add_member, remove_member))

    _put(change, reason, expect, lab, as_json)


def _put(change: Change, reason: str, expect: int | None, lab: Path | None, as_json: bool) -> None:
    async def work() -> None:
        async with session.opened(lab) as opened:
            await _written(opened, change, reason, expect, as_json)

    session.run(work())


async def _written(opened: Session, change: Change, reason: str, expect: int | None, as_json: bool) -> None:
    before = await fetch_tree(opened)
    row = change(before)
    expected = before.revision if expect is None else expect
    request = PutBudgets(budgets=(row,), expected_revision=expected, reason=reason)
    left = writes.committed(await opened.ask(subjects.PUT_BUDGETS, request, WriteReply), expected)
    was = [each for each in before.budgets if each.budget == row.budget]
    same = left.status == "unchanged"
    first = f"nothing differs from revision {left.revision}" if same else f"revision {left.revision} is in force"
    session.show(left, "\n".join([first, *writes.difference(writes.differences(was, [row]))]), as_json)


def _one(tree: WholeTree, name: str) -> Budget:
    found = next((row for row in tree.budgets if row.budget == name), None)
    if found is None:
        raise CommandFailed(Exit.USAGE, f"there is no budget {name!r} in revision {tree.revision}; see `allmende budgets`")
    return found


def _changed(role: str, old: tuple[str, ...], add: list[str] | None, remove: list[str] | None) -> tuple[str, ...]:
    for person in remove or ():
        if person not in old:
            raise CommandFailed(Exit.USAGE, f"{person} is not among the {role}: {', '.join(old) or 'there are none'}")
    stay = [person for person in old if person not in (remove or ())]
    return (*stay, *(person for person in dict.fromkeys(add or ()) if person not in stay))


def _share(text: str | None) -> Ppm | None:
    if text is None or text == "unset":
        return None
    try:
        return parse_share(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--share") from None
