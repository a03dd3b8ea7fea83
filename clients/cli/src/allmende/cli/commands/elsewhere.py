"""Commands that other packages bring, such as `allmende simulate`: found and loaded only when they are called.

Such a package has an entry point in the group `allmende.commands`: a function that takes the arguments after the command's name
and the name it was called by, and exits as a program does. Nothing is looked up or imported for the help or for another command.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup

from allmende.cli.errors import CommandFailed, Exit
from allmende.cli.session import fail

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "allmende.commands"
# Commands that the help names whether they are installed or not.
BROUGHT_BY: Final = {"simulate": "simulator", "agent": "agent"}
# A package's own help is its own: every option goes to it unread.
UNREAD: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class Commands(TyperGroup):
    """The command line's own commands, and behind them those of other packages."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name; None: nobody brings it."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or not _found(cmd_name):
            return own
        beside = typer.Typer(add_completion=False, rich_markup_mode=None)
        beside.command(cmd_name, context_settings=UNREAD, add_help_option=False)(call)
        return typer.main.get_command(beside)


def simulate(context: typer.Context) -> None:
    """Say what the scheduler would have done."""
    call(context)


def agent(context: typer.Context) -> None:
    """Make this machine a cluster, or try an agent: `agent process`, `agent conformance`."""
    call(context)


def call(context: typer.Context) -> None:
    """Hand the command line to the package that brings the command."""
    name = context.info_name or ""
    # An argument "--" is taken away by the parser; none of these commands has a use for it.
    run(name, _found(name), context.args, context.command_path)


def run(name: str, found: "Sequence[EntryPoint]", arguments: Sequence[str], called: str) -> None:
    """Load the command out of the one package that brings it, and run it; says how to get it where it is missing."""
    if not found:
        package = f"allmende-{BROUGHT_BY[name]}"
        sentence = f"{name} comes with the package {package}, which is not installed here; get it with: pip install {package}"
        fail(CommandFailed(Exit.UNREACHABLE, sentence))
    if len(found) > 1:
        packages = ", ".join(sorted(point.dist.name if point.dist else point.value for point in found))
        fail(CommandFailed(Exit.USAGE, f"several packages bring the command {name}: {packages}; uninstall all but one"))
    (point,) = found
    package = point.dist.name if point.dist else point.value
    try:
        program = point.load()
    except (ImportError, AttributeError) as error:
        fail(CommandFailed(Exit.USAGE, f"the command {name} of {package} cannot be loaded ({error}): install {package} again"))
    program(arguments, called)


def _found(name: str) -> "list[EntryPoint]":
    # Imported when needed: it takes longer than the help of all commands together.
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP, name=name))
